/* A keeper of a machine that stays, between a hostile guest and clients that this test plays. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "ipc/tcp.h"
#include "keeper/keeper.h"
#include "wire/ctl.h"

#define PEERS 4

struct fixture {
	struct keeper *keeper;
	int guest;
	struct wire_decoder *decoder;
	/* Clients' ends. */
	int peers[PEERS];
	struct spec spec;
};

static void stop(struct loop *loop, void *data)
{
	(void)data;
	loop_stop(loop, 0);
}

static void work(struct fixture *f, uint64_t time_ms)
{
	uint64_t timer;

	assert_int_equal(loop_timer_add(f->keeper->loop, time_ms, stop, NULL, &timer), 0);
	assert_true(loop_run(f->keeper->loop) >= 0);
	loop_timer_cancel(f->keeper->loop, &timer);
}

static void turn(struct fixture *f)
{
	work(f, 3);
}

static void add_peer(struct fixture *f, size_t at)
{
	int pair[2];

	assert_int_equal(ipc_pair(pair), 0);
	assert_int_equal(set_nonblocking(pair[1], true), 0);
	assert_non_null(client_add(f->keeper, pair[0]));
	f->peers[at] = pair[1];
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	const struct control_events events = {keeper_frame, keeper_port_broken,
					      keeper_port_writable, NULL};
	struct control_events with_data = events;
	struct keeper *keeper = calloc(1, sizeof(*keeper));
	int pair[2];

	assert_non_null(f);
	assert_non_null(keeper);
	f->keeper = with_data.data = keeper;
	f->decoder = calloc(1, sizeof(*f->decoder));
	f->spec.warm_idle_seconds = 60;
	files_init(&keeper->files);
	keeper->files.spec = &f->spec;
	clients_init(keeper);
	keeper->live_fd = keeper->up_fd = keeper->console_fd = keeper->snapshot_fd = -EBADF;
	keeper->listen_fd = keeper->data_listen_fd = keeper->warm_listen_fd = -EBADF;
	keeper->run_fd = keeper->slot_fd = keeper->signal_fd = keeper->clock.jump_fd = -EBADF;
	for (size_t i = 0; i < ARRAY_SIZE(keeper->port_fds); i++) {
		keeper->port_fds[i] = -EBADF;
	}
	keeper->phase = KEEPER_RUNNING;
	keeper->start.mode = IPC_START_RUN;
	keeper->start.stay = IPC_STAY_UP;
	keeper->start.data_fate = IPC_DATA_OWN;
	assert_int_equal(loop_new(&keeper->loop), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	f->guest = pair[1];
	assert_int_equal(control_new(pair[0], keeper->loop, &with_data, &keeper->control), 0);
	for (size_t i = 0; i < PEERS; i++) {
		add_peer(f, i);
	}
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	commands_close(f->keeper);
	control_free(f->keeper->control);
	ports_close(f->keeper);
	clients_close(f->keeper);
	loop_free(f->keeper->loop);
	close_fd(&f->guest);
	for (size_t i = 0; i < PEERS; i++) {
		close_fd(&f->peers[i]);
	}
	free(f->keeper);
	free(f->decoder);
	free(f);
	return 0;
}

static void guest_says(struct fixture *f, uint8_t type, uint8_t channel, uint32_t stream,
		       const void *payload, size_t size)
{
	uint8_t header[WIRE_HEADER_SIZE];

	wire_header_encode(header, type, channel, stream, (uint32_t)size);
	assert_int_equal(write_full(f->guest, header, sizeof(header)), 0);
	if (size > 0) {
		assert_int_equal(write_full(f->guest, payload, size), 0);
	}
}

/* The next frame for the guest; false when there is none. */
static bool guest_hears(struct fixture *f, struct wire_frame *ret_frame)
{
	int rc = wire_decoder_next(f->decoder, ret_frame);

	while (rc == 0) {
		size_t room;
		uint8_t *space = wire_decoder_space(f->decoder, &room);
		ssize_t got = read(f->guest, space, room);

		if (got <= 0) {
			break;
		}
		wire_decoder_filled(f->decoder, (size_t)got);
		rc = wire_decoder_next(f->decoder, ret_frame);
	}
	assert_true(rc >= 0);
	return rc > 0;
}

/* Reads all that the guest was told; returns how often a type was among it, and the last stream. */
static unsigned guest_hears_all(struct fixture *f, uint8_t type, uint32_t *ret_stream)
{
	struct wire_frame frame;
	unsigned count = 0;

	turn(f);
	while (guest_hears(f, &frame)) {
		if (frame.type == type) {
			count++;
			*ret_stream = frame.stream;
		}
	}
	return count;
}

static void guest_ends(struct fixture *f, uint32_t stream, uint32_t value)
{
	const struct wire_exit exit = {WIRE_EXITED, value};
	uint8_t payload[16];
	int size = wire_exit_encode(&exit, payload);

	guest_says(f, WIRE_EXIT, 0, stream, payload, (size_t)size);
	guest_says(f, WIRE_EOF, 1, stream, NULL, 0);
	guest_says(f, WIRE_EOF, 2, stream, NULL, 0);
}

static int make_request(uint32_t flags)
{
	static const char *const argv[] = {"true"};
	static uint8_t payload[WIRE_EXEC_MAX];
	const struct wire_exec exec = {.flags = flags, .user = "root", .directory = "", .argc = 1};
	int size = wire_exec_encode(&exec, argv, NULL, payload);

	return ipc_memory_file("exec", payload, (size_t)size);
}

/* Sends IPC_EXEC. Output goes to ends of pipes whose readers are given, or nowhere. */
static void peer_executes(struct fixture *f, size_t at, uint32_t number, bool detaches,
			  int *ret_readers)
{
	struct ipc_message message = {.type = IPC_EXEC, .stream = number};
	_cleanup_close_ int request = make_request(0);
	int fds[3] = {request, -EBADF, -EBADF};

	message.exec.on_loss = detaches ? IPC_LOSS_DETACHES : IPC_LOSS_KILLS;
	for (size_t i = 0; ret_readers && i < 2; i++) {
		int ends[2];

		assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
		ret_readers[i] = ends[0];
		fds[1 + i] = ends[1];
		message.exec.has_output = 1;
	}
	assert_int_equal(ipc_send(f->peers[at], &message, fds, ret_readers ? 3 : 1), 0);
	close_fd(&fds[1]);
	close_fd(&fds[2]);
	turn(f);
}

/* The next message for a client; 0 when there is none. */
static uint32_t peer_hears(struct fixture *f, size_t at, struct ipc_message *ret_message)
{
	int fds[IPC_FDS_MAX];

	turn(f);
	if (ipc_receive(f->peers[at], ret_message, fds) <= 0) {
		return 0;
	}
	ipc_close_fds(fds);
	return ret_message->type;
}

static void peer_orders(struct fixture *f, size_t at, uint32_t type, uint32_t number)
{
	const struct ipc_message message = {.type = type, .stream = number};

	assert_int_equal(ipc_send(f->peers[at], &message, NULL, 0), 0);
	turn(f);
}

static uint64_t cpu_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* The others of a machine that stays do not suffer from a command that does not end. */
static void test_a_stuck_command_is_given_up_alone(void **state)
{
	struct fixture *f = *state;
	struct ipc_message message;
	uint32_t stuck, other;

	f->keeper->start.stay = IPC_STAY_NO;
	peer_executes(f, 0, 5, false, NULL);
	assert_int_equal(guest_hears_all(f, WIRE_EXEC, &stuck), 1);
	f->keeper->start.stay = IPC_STAY_UP;
	peer_executes(f, 1, 5, false, NULL);
	assert_int_equal(guest_hears_all(f, WIRE_EXEC, &other), 1);
	peer_orders(f, 0, IPC_CLOSE, 5);
	work(f, 3200);
	assert_int_equal(peer_hears(f, 0, &message), IPC_EXITED);
	assert_int_equal(message.stream, 5);
	assert_int_equal(message.exited.exit.kind, WIRE_SIGNALED);
	assert_int_equal(message.exited.exit.value, SIGKILL);
	assert_int_equal(f->keeper->phase, KEEPER_RUNNING);
	/* It keeps its number until the guest ends it after all. */
	assert_non_null(command_find(f->keeper, stuck));
	guest_ends(f, stuck, 0);
	guest_ends(f, other, 3);
	assert_int_equal(peer_hears(f, 1, &message), IPC_EXITED);
	assert_int_equal(message.exited.exit.value, 3);
	assert_int_equal(peer_hears(f, 0, &message), 0);
	assert_null(command_find(f->keeper, stuck));
	assert_int_equal(f->keeper->phase, KEEPER_RUNNING);
}

/* A machine for one command ends then, and nobody is told that the command went well. */
static void test_a_stuck_command_did_not_succeed(void **state)
{
	struct fixture *f = *state;
	struct ipc_message message;

	f->keeper->start.stay = IPC_STAY_NO;
	peer_executes(f, 0, 5, false, NULL);
	peer_orders(f, 0, IPC_CLOSE, 5);
	work(f, 3200);
	assert_int_equal(peer_hears(f, 0, &message), IPC_EXITED);
	assert_int_equal(message.exited.exit.kind, WIRE_SIGNALED);
	assert_int_equal(peer_hears(f, 0, &message), IPC_FAILED);
	assert_string_equal(message.failed.code, "guest-stuck");
}

/* Writing /data may take longer than a killed command is given. */
static void test_going_down_outlasts_killed_commands(void **state)
{
	struct fixture *f = *state;

	f->keeper->start.stay = IPC_STAY_NO;
	peer_executes(f, 0, 5, false, NULL);
	peer_orders(f, 0, IPC_CLOSE, 5);
	f->keeper->start.stay = IPC_STAY_UP;
	assert_int_equal(keeper_shutdown(f->keeper), 0);
	work(f, 3200);
	assert_int_equal(f->keeper->phase, KEEPER_GOING_DOWN);
	guest_says(f, WIRE_BYE, 0, 0, NULL, 0);
	work(f, 20);
	assert_int_equal(f->keeper->phase, KEEPER_ENDING);
}

static void peer_executes_last(struct fixture *f, size_t at, uint32_t number)
{
	struct ipc_message message = {.type = IPC_EXEC, .stream = number};
	_cleanup_close_ int request = make_request(0);

	message.exec.is_last = 1;
	assert_int_equal(ipc_send(f->peers[at], &message, &request, 1), 0);
	turn(f);
}

/* A machine goes down with its last command, and waits for no word of its client in between. */
static void test_the_last_command(void **state)
{
	struct fixture *f = *state;
	struct ipc_message message;
	uint32_t stream = 0;

	f->keeper->start.stay = IPC_STAY_NO;
	f->keeper->starter = &f->keeper->clients[0];
	/* Others may not end it so. */
	peer_executes_last(f, 1, 5);
	assert_int_equal(peer_hears(f, 1, &message), IPC_EXITED);
	assert_int_equal(message.exited.exit.kind, WIRE_NOT_STARTED);
	assert_int_equal(message.exited.exit.value, EPERM);
	assert_int_equal(guest_hears_all(f, WIRE_EXEC, &stream), 0);
	peer_executes_last(f, 0, 5);
	assert_int_equal(guest_hears_all(f, WIRE_EXEC, &stream), 1);
	assert_int_equal(f->keeper->phase, KEEPER_RUNNING);
	guest_ends(f, stream, 3);
	assert_int_equal(guest_hears_all(f, WIRE_SHUTDOWN, &stream), 1);
	assert_int_equal(f->keeper->phase, KEEPER_GOING_DOWN);
	assert_int_equal(peer_hears(f, 0, &message), IPC_EXITED);
	assert_int_equal(message.exited.exit.value, 3);
	/* Its own word for the same changes nothing. */
	peer_orders(f, 0, IPC_SHUTDOWN, 0);
	assert_int_equal(guest_hears_all(f, WIRE_SHUTDOWN, &stream), 0);
	guest_says(f, WIRE_BYE, 0, 0, NULL, 0);
	work(f, 20);
	assert_int_equal(peer_hears(f, 0, &message), IPC_DOWN);
}

/* One that cannot even be sent to the guest has ended as well. */
static void test_a_last_command_that_cannot_be(void **state)
{
	struct fixture *f = *state;
	struct ipc_message message = {.type = IPC_EXEC, .stream = 5};
	_cleanup_close_ int empty = ipc_memory_file("exec", "", 0);
	uint32_t stream = 0;

	f->keeper->start.stay = IPC_STAY_NO;
	f->keeper->starter = &f->keeper->clients[0];
	message.exec.is_last = 1;
	assert_int_equal(ipc_send(f->peers[0], &message, &empty, 1), 0);
	assert_int_equal(guest_hears_all(f, WIRE_SHUTDOWN, &stream), 1);
	assert_int_equal(peer_hears(f, 0, &message), IPC_EXITED);
	assert_int_equal(message.exited.exit.kind, WIRE_NOT_STARTED);
	assert_int_equal(f->keeper->phase, KEEPER_GOING_DOWN);
}

/* A file, locked, of which the monitor has a duplicate. Returns what the keeper has. */
static int locked_file(char *path, int operation, int *ret_duplicate)
{
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(flock(fd, operation), 0);
	*ret_duplicate = dup(fd);
	return fd;
}

static bool is_free(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);

	return flock(fd, LOCK_EX | LOCK_NB) == 0;
}

/* The locks on /data end with the machine, also while its monitor still has the files open; those
 * of a disk that somebody makes are that one's. */
static void locks_at_the_end(struct fixture *f, enum ipc_data_fate fate, bool wanted)
{
	char disk[] = "/tmp/box-test-disk-XXXXXX", layer[] = "/tmp/box-test-layer-XXXXXX";
	struct files *files = &f->keeper->files;
	int duplicates[2];

	f->keeper->start.stay = IPC_STAY_NO;
	f->keeper->start.data_fate = fate;
	files->data_fd = locked_file(disk, LOCK_EX, &duplicates[0]);
	files->data_layers.fds[files->data_layers.count++] =
		locked_file(layer, LOCK_SH, &duplicates[1]);
	assert_false(is_free(disk));
	assert_false(is_free(layer));
	keeper_gone_down(f->keeper);
	assert_int_equal(files->data_fd, -EBADF);
	assert_true(is_free(disk) == wanted);
	assert_true(is_free(layer) == wanted);
	for (size_t i = 0; i < ARRAY_SIZE(duplicates); i++) {
		close_fd(&duplicates[i]);
	}
	unlink(disk);
	unlink(layer);
}

static void test_locks_of_own_data(void **state)
{
	locks_at_the_end(*state, IPC_DATA_OWN, true);
}

static void test_locks_of_new_data(void **state)
{
	locks_at_the_end(*state, IPC_DATA_NEW, false);
}

static void on_own_ended(struct keeper *keeper)
{
	(void)keeper;
}

static void keeper_runs_its_own(struct fixture *f)
{
	static const char *const argv[] = {"true"};
	const struct wire_exec exec = {.user = "root", .directory = "/", .argc = 1};

	assert_int_equal(command_own(f->keeper, &exec, argv, on_own_ended), 0);
}

/* The answer to what was not asked yet. */
static void test_early_answers_of_a_warm_machine(void **state)
{
	struct fixture *f = *state;
	struct ipc_message message;

	f->keeper->phase = KEEPER_WARMING;
	f->keeper->start.stay = IPC_STAY_WARM;
	keeper_runs_its_own(f);
	guest_says(f, WIRE_DETACHED, 0, 0, NULL, 0);
	turn(f);
	assert_int_equal(f->keeper->phase, KEEPER_ENDING);
	assert_int_equal(peer_hears(f, 0, &message), IPC_FAILED);
	assert_string_equal(message.failed.code, "guest-broken");
	f->keeper->phase = KEEPER_TAKEN;
	guest_says(f, WIRE_ATTACHED, 0, 0, NULL, 0);
	turn(f);
	assert_int_equal(f->keeper->phase, KEEPER_ENDING);
}

/* Who drains the pool waits for one that is being made ready. */
static void test_making_ready_has_a_limit(void **state)
{
	struct fixture *f = *state;

	f->keeper->phase = KEEPER_WARMING;
	f->keeper->start.stay = IPC_STAY_WARM;
	keeper_runs_its_own(f);
	keeper_set_limit(f->keeper, 20);
	work(f, 60);
	assert_int_equal(f->keeper->phase, KEEPER_ENDING);
}

/* A guest that was started without input takes input for a broken protocol, and goes down. */
static void test_attach_to_a_command_without_stdin(void **state)
{
	struct fixture *f = *state;
	struct ipc_message message = {0};
	struct ipc_message attach = {.type = IPC_ATTACH, .stream = 9};
	int pipes[3][2], fds[3];
	uint32_t stream = 0;

	peer_executes(f, 0, 5, true, NULL);
	assert_int_equal(guest_hears_all(f, WIRE_EXEC, &stream), 1);
	guest_says(f, WIRE_STARTED, 0, stream, "\1\0\0\0", 4);
	assert_int_equal(peer_hears(f, 0, &message), IPC_STARTED);
	peer_orders(f, 0, IPC_DETACH, 5);
	memcpy(attach.command.id, message.command.id, sizeof(attach.command.id));
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(pipe2(pipes[i], O_CLOEXEC), 0);
		fds[i] = pipes[i][i == 0 ? 0 : 1];
	}
	assert_int_equal(write_full(pipes[0][1], "typed", 5), 0);
	assert_int_equal(ipc_send(f->peers[1], &attach, fds, 3), 0);
	assert_int_equal(peer_hears(f, 1, &message), IPC_STARTED);
	assert_int_equal(message.stream, 9);
	assert_int_equal(guest_hears_all(f, WIRE_DATA, &stream), 0);
	guest_ends(f, stream, 4);
	assert_int_equal(peer_hears(f, 1, &message), IPC_EXITED);
	assert_int_equal(message.stream, 9);
	for (size_t i = 0; i < 3; i++) {
		close(pipes[i][0]);
		close(pipes[i][1]);
	}
}

static void test_starting_has_a_code_of_its_own(void **state)
{
	struct fixture *f = *state;
	struct ipc_message message;

	f->keeper->phase = KEEPER_STARTING;
	peer_executes(f, 0, 5, false, NULL);
	assert_int_equal(peer_hears(f, 0, &message), IPC_REFUSED);
	assert_string_equal(message.failed.code, IPC_CODE_STARTING);
	f->keeper->phase = KEEPER_GOING_DOWN;
	peer_executes(f, 0, 5, false, NULL);
	assert_int_equal(peer_hears(f, 0, &message), IPC_REFUSED);
	assert_string_equal(message.failed.code, "going-down");
}

static void allow_files(rlim_t count)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = MIN(count, limit.rlim_max);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* All at once that keeper.h allows. */
static void test_everything_at_once(void **state)
{
	struct fixture *f = *state;
	struct ipc_message message;
	struct rlimit limit;
	static int ends[WIRE_STREAMS_MAX][3];
	static int others[KEEPER_CLIENTS_MAX];
	uint32_t stream;

	allow_files(4096);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	if (limit.rlim_cur < 3000) {
		skip();
	}
	for (size_t i = 0; i < KEEPER_CLIENTS_MAX - PEERS; i++) {
		int pair[2];

		assert_int_equal(ipc_pair(pair), 0);
		assert_non_null(client_add(f->keeper, pair[0]));
		others[i] = pair[1];
	}
	for (uint32_t i = 0; i < WIRE_STREAMS_MAX; i++) {
		struct ipc_message order = {.type = IPC_EXEC, .stream = i + 1};
		int in[2], out[2], err[2], fds[4] = {make_request(WIRE_EXEC_STDIN)};

		order.exec.has_stdin = order.exec.has_output = 1;
		assert_int_equal(pipe(in), 0);
		assert_int_equal(pipe(out), 0);
		assert_int_equal(pipe(err), 0);
		fds[1] = in[0];
		fds[2] = out[1];
		fds[3] = err[1];
		assert_int_equal(ipc_send(f->peers[i % PEERS], &order, fds, 4), 0);
		for (size_t j = 0; j < 4; j++) {
			close(fds[j]);
		}
		ends[i][0] = in[1];
		ends[i][1] = out[0];
		ends[i][2] = err[0];
		assert_int_equal(guest_hears_all(f, WIRE_EXEC, &stream), 1);
	}
	/* One more is refused, and nothing is refused before. */
	peer_executes(f, 0, 1000, false, NULL);
	assert_int_equal(peer_hears(f, 0, &message), IPC_REFUSED);
	assert_int_equal(message.stream, 1000);
	assert_string_equal(message.failed.code, "too-many");
	for (uint32_t i = 1; i <= WIRE_STREAMS_MAX; i++) {
		guest_ends(f, i, i % 200);
		assert_int_equal(peer_hears(f, (i - 1) % PEERS, &message), IPC_EXITED);
		assert_int_equal(message.stream, i);
		assert_int_equal(message.exited.exit.value, i % 200);
		for (size_t j = 0; j < 3; j++) {
			close(ends[i - 1][j]);
		}
	}
	assert_int_equal(f->keeper->phase, KEEPER_RUNNING);
	for (size_t i = 0; i < KEEPER_CLIENTS_MAX - PEERS; i++) {
		close(others[i]);
	}
}

/* Any program of the host may connect to a forwarded port. */
static void test_a_flood_of_connections_leaves_room_for_commands(void **state)
{
	struct fixture *f = *state;
	static int ends[WIRE_STREAMS_MAX];
	struct ipc_message message;
	uint32_t stream = 0;

	allow_files(4096);
	for (size_t i = 0; i < WIRE_STREAMS_MAX; i++) {
		int pair[2];

		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
		ends[i] = pair[1];
		command_tcp(f->keeper, NULL, 0, pair[0], 80);
		guest_hears_all(f, WIRE_TCP, &stream);
	}
	peer_executes(f, 0, 5, false, NULL);
	assert_int_equal(guest_hears_all(f, WIRE_EXEC, &stream), 1);
	assert_int_equal(peer_hears(f, 0, &message), 0);
	for (size_t i = 0; i < WIRE_STREAMS_MAX; i++) {
		close(ends[i]);
	}
}

static void connect_tcp(int *ret_ours, int *ret_theirs)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	uint16_t port;
	int listener = ipc_tcp_listen("127.0.0.1", 0, &port, NULL);

	assert_true(listener >= 0);
	assert_int_equal(set_nonblocking(listener, false), 0);
	address.sin_port = htons(port);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	*ret_theirs = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(*ret_theirs, (const struct sockaddr *)&address, sizeof(address)),
			 0);
	*ret_ours = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(*ret_ours >= 0);
	close(listener);
}

/* The guest takes its time to answer CLOSE: that is no reason to turn round and round. */
static void test_a_reset_connection_costs_nothing(void **state)
{
	const struct linger none = {.l_onoff = 1};
	struct fixture *f = *state;
	uint32_t stream;
	socklen_t size = sizeof(int);
	uint64_t began;
	int ours, theirs, again, error = 0;

	connect_tcp(&ours, &theirs);
	again = dup(ours);
	command_tcp(f->keeper, NULL, 0, ours, 80);
	assert_int_equal(guest_hears_all(f, WIRE_TCP, &stream), 1);
	setsockopt(theirs, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	close(theirs);
	/* The error is reported once, to whoever looks first; what stays is a hang-up. */
	assert_int_equal(getsockopt(again, SOL_SOCKET, SO_ERROR, &error, &size), 0);
	assert_int_equal(error, ECONNRESET);
	close(again);
	began = cpu_ms();
	work(f, 500);
	assert_true(cpu_ms() - began < 200);
	assert_int_equal(guest_hears_all(f, WIRE_CLOSE, &stream), 1);
}

/* Fills the port until it takes no more orders. */
static void fill_port(struct fixture *f)
{
	while (control_send(f->keeper->control, WIRE_CLOCK, 0, 0, "\0\0\0\0\0\0\0\0", 8) == 0) {
	}
}

/* What a full port could not take is sent later. */
static void test_credit_and_close_survive_a_full_port(void **state)
{
	static uint8_t bytes[8192];
	struct fixture *f = *state;
	struct wire_frame frame;
	int readers[2];
	uint32_t stream, credit = 0, closes = 0;

	peer_executes(f, 0, 5, false, readers);
	assert_int_equal(guest_hears_all(f, WIRE_EXEC, &stream), 1);
	fill_port(f);
	guest_says(f, WIRE_DATA, 1, stream, bytes, sizeof(bytes));
	turn(f);
	assert_int_equal(read(readers[0], bytes, sizeof(bytes)), sizeof(bytes));
	peer_orders(f, 0, IPC_CLOSE, 5);
	for (unsigned i = 0; i < 200; i++) {
		while (guest_hears(f, &frame)) {
			uint32_t value = 0;

			if (frame.type == WIRE_CREDIT) {
				wire_u32_decode(frame.payload, frame.length, &value);
			}
			credit += value;
			closes += frame.type == WIRE_CLOSE;
		}
		turn(f);
	}
	assert_int_equal(credit, sizeof(bytes));
	assert_int_equal(closes, 1);
	close(readers[0]);
	close(readers[1]);
}

/* Requests, which are large, do not take the room that orders need. */
static void test_requests_leave_room_for_orders(void **state)
{
	static uint8_t request[40000];
	struct fixture *f = *state;

	while (control_send_exec(f->keeper->control, 1, request, sizeof(request)) == 0) {
	}
	for (unsigned i = 0; i < 4000; i++) {
		assert_int_equal(control_send(f->keeper->control, WIRE_CLOSE, 0, 1, NULL, 0), 0);
	}
}

/* Its commands end while it is being dropped, and just after. */
static void test_a_client_that_goes_with_its_commands(void **state)
{
	struct fixture *f = *state;
	struct ipc_message message;
	uint32_t streams[8];
	int readers[8][2];

	for (uint32_t i = 0; i < 8; i++) {
		static const uint8_t chunk[16384];

		peer_executes(f, i < 6 ? 0 : 1, i + 1, i % 3 == 0, readers[i]);
		assert_int_equal(guest_hears_all(f, WIRE_EXEC, &streams[i]), 1);
		/* More than the pipe takes: with its reader gone the stream ends in the drop. */
		for (unsigned j = 0; j < WIRE_WINDOW / sizeof(chunk); j++) {
			guest_says(f, WIRE_DATA, 1, streams[i], chunk, sizeof(chunk));
			turn(f);
		}
		if (i % 2 == 0) {
			guest_ends(f, streams[i], 0);
			turn(f);
		}
	}
	close_fd(&f->peers[0]);
	turn(f);
	for (uint32_t i = 0; i < 6; i++) {
		struct command *command = command_find(f->keeper, streams[i]);

		assert_true((i % 2 == 0) == (command == NULL));
		assert_true(!command || !command->client);
		if (command) {
			guest_ends(f, streams[i], 0);
		}
	}
	/* The place of the lost one is taken by another at once. */
	add_peer(f, 0);
	peer_executes(f, 0, 1, false, NULL);
	turn(f);
	assert_int_equal(peer_hears(f, 0, &message), 0);
	assert_non_null(command_find(f->keeper, streams[7]));
	assert_int_equal(f->keeper->phase, KEEPER_RUNNING);
	for (size_t i = 0; i < 8; i++) {
		close(readers[i][0]);
		close(readers[i][1]);
	}
}

/* The most memory that this process has ever had. */
static uint64_t peak_kib(void)
{
	_cleanup_free_ char *status = NULL;
	unsigned long peak = 0;

	assert_int_equal(read_file_at(AT_FDCWD, "/proc/self/status", 65536, &status, NULL), 0);
	assert_int_equal(sscanf(strstr(status, "VmHWM:"), "VmHWM: %lu", &peak), 1);
	return peak;
}

/* As many commands as there may be, whose readers take nothing of all that the guest may send. */
static void test_memory_of_all_streams(void **state)
{
	static const uint8_t piece[16384];
	const struct rlimit files = {8192, 8192};
	struct fixture *f = *state;
	int readers[WIRE_STREAMS_MAX][2];
	struct ipc_message message;
	uint32_t stream = 0;

	if (setrlimit(RLIMIT_NOFILE, &files) < 0) {
		skip();
	}
	for (uint32_t i = 0; i < WIRE_STREAMS_MAX; i++) {
		peer_executes(f, i % PEERS, i + 1, false, readers[i]);
		assert_int_equal(guest_hears_all(f, WIRE_EXEC, &stream), 1);
		for (uint8_t channel = 1; channel <= 2; channel++) {
			/* One page is all that the pipe takes. */
			assert_true(fcntl(readers[i][channel - 1], F_SETPIPE_SZ, 4096) == 4096);
			for (size_t j = 0; j < WIRE_WINDOW / sizeof(piece); j++) {
				guest_says(f, WIRE_DATA, channel, stream, piece, sizeof(piece));
				if (j % 4 == 3) {
					turn(f);
				}
			}
		}
	}
	assert_int_equal(f->keeper->phase, KEEPER_RUNNING);
	peer_orders(f, 0, IPC_LIST, 0);
	assert_int_equal(peer_hears(f, 0, &message), IPC_LISTING);
	assert_true(peak_kib() > WIRE_STREAMS_MAX * 2 * (WIRE_WINDOW - 4096) / 1024);
#ifndef __SANITIZE_ADDRESS__
	assert_true(peak_kib() < 64 << 10);
#endif
	for (size_t i = 0; i < WIRE_STREAMS_MAX; i++) {
		close(readers[i][0]);
		close(readers[i][1]);
	}
}

/* A client that asks and asks and never reads is dropped; nobody else notices. */
static void test_a_client_that_never_reads(void **state)
{
	struct fixture *f = *state;
	const struct ipc_message list = {.type = IPC_LIST};
	struct ipc_message message;
	unsigned sent = 0;
	uint32_t stream;

	peer_executes(f, 0, 5, false, NULL);
	assert_int_equal(guest_hears_all(f, WIRE_EXEC, &stream), 1);
	while (sent < 5000 && ipc_send(f->peers[0], &list, NULL, 0) == 0) {
		sent++;
		turn(f);
	}
	assert_true(sent < 5000);
	assert_int_equal(guest_hears_all(f, WIRE_CLOSE, &stream), 1);
	assert_int_equal(ipc_send(f->peers[1], &list, NULL, 0), 0);
	assert_int_equal(peer_hears(f, 1, &message), IPC_LISTING);
	assert_int_equal(f->keeper->phase, KEEPER_RUNNING);
}

/* What a client is told at once may be more than its socket holds: it comes later, in its order. */
static void test_a_client_that_reads_late(void **state)
{
	struct fixture *f = *state;
	struct client *client = &f->keeper->clients[0];
	struct ipc_message message = {.type = IPC_EXITED};

	for (uint32_t i = 0; i < WIRE_STREAMS_MAX; i++) {
		message.stream = i;
		client_tell(client, &message);
	}
	assert_true(client->waiting_count > 0);
	for (uint32_t i = 0; i < WIRE_STREAMS_MAX; i++) {
		assert_int_equal(peer_hears(f, 0, &message), IPC_EXITED);
		assert_int_equal(message.stream, i);
		turn(f);
	}
	assert_int_equal(client->waiting_count, 0);
	/* There is an end to it. */
	for (uint32_t i = 0; i < 1000 && client->fd >= 0; i++) {
		client_tell(client, &message);
	}
	assert_true(client->fd < 0);
	assert_null(client->waiting);
}

/* Without descriptors a waiting connection is not looked at again and again, and not lost. */
static void test_a_listener_without_descriptors(void **state)
{
	struct fixture *f = *state;
	struct sockaddr_in address = {.sin_family = AF_INET};
	static char *ports[] = {NULL};
	char text[32];
	uint32_t stream;
	uint16_t port;
	uint64_t began;
	int probe = ipc_tcp_listen("127.0.0.1", 0, &port, NULL);
	int theirs = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct rlimit limit;
	int next;

	close(probe);
	snprintf(text, sizeof(text), "127.0.0.1:%u:80", port);
	ports[0] = text;
	f->spec.network_ports = ports;
	f->spec.network_port_count = 1;
	assert_int_equal(ports_open(f->keeper, NULL), 0);
	address.sin_port = htons(port);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	next = dup(0);
	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	allow_files((rlim_t)next);
	assert_int_equal(connect(theirs, (const struct sockaddr *)&address, sizeof(address)), 0);
	began = cpu_ms();
	work(f, 500);
	assert_true(cpu_ms() - began < 200);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	work(f, 200);
	assert_int_equal(guest_hears_all(f, WIRE_TCP, &stream), 1);
	close(theirs);
}

static uint32_t next_random(uint32_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	*seed ^= *seed << 5;
	return *seed;
}

/* One frame that may or may not be legal now, for one of the streams that run or for none. */
static void guest_says_anything(struct fixture *f, uint32_t *seed)
{
	uint8_t payload[64];
	uint32_t size = next_random(seed) % 4 == 0 ? next_random(seed) % sizeof(payload) : 4;
	uint8_t type = (uint8_t)(next_random(seed) % 26);

	for (size_t i = 0; i < sizeof(payload); i++) {
		payload[i] = next_random(seed) % 3 == 0 ? (uint8_t)next_random(seed) : 0;
	}
	if (type == WIRE_EXIT) {
		size = 8;
	} else if (type == WIRE_EOF) {
		size = 0;
	}
	guest_says(f, type, (uint8_t)(next_random(seed) % 3), next_random(seed) % 5, payload, size);
}

/* Whatever it says when: its machine may end, and nothing else happens. */
static void test_a_guest_that_says_anything(void **state)
{
	static const enum keeper_phase phases[] = {
		KEEPER_STARTING, KEEPER_WARMING, KEEPER_WARM,	    KEEPER_TAKEN,
		KEEPER_RUNNING,	 KEEPER_RUNNING, KEEPER_GOING_DOWN,
	};
	uint32_t seed = 20261129;

	for (unsigned round = 0; round < 400; round++) {
		struct fixture *f;
		void *inner;
		int readers[2];

		assert_int_equal(setup(&inner), 0);
		f = inner;
		peer_executes(f, 0, 1, round % 2 == 0, readers);
		peer_executes(f, 1, 1, false, NULL);
		keeper_runs_its_own(f);
		f->keeper->phase = phases[round % ARRAY_SIZE(phases)];
		for (unsigned i = 0; i < 40 && f->keeper->phase != KEEPER_ENDING; i++) {
			guest_says_anything(f, &seed);
			if (next_random(&seed) % 16 == 0) {
				close_fd(&f->peers[next_random(&seed) % PEERS]);
			}
			work(f, 1);
		}
		close(readers[0]);
		close(readers[1]);
		teardown(&inner);
	}
	(void)state;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_a_stuck_command_is_given_up_alone),
		TEST(test_a_stuck_command_did_not_succeed),
		TEST(test_going_down_outlasts_killed_commands),
		TEST(test_the_last_command),
		TEST(test_a_last_command_that_cannot_be),
		TEST(test_locks_of_own_data),
		TEST(test_locks_of_new_data),
		TEST(test_early_answers_of_a_warm_machine),
		TEST(test_making_ready_has_a_limit),
		TEST(test_attach_to_a_command_without_stdin),
		TEST(test_starting_has_a_code_of_its_own),
		TEST(test_everything_at_once),
		TEST(test_a_flood_of_connections_leaves_room_for_commands),
		TEST(test_a_reset_connection_costs_nothing),
		TEST(test_credit_and_close_survive_a_full_port),
		TEST(test_requests_leave_room_for_orders),
		TEST(test_a_client_that_goes_with_its_commands),
		TEST(test_memory_of_all_streams),
		TEST(test_a_client_that_never_reads),
		TEST(test_a_client_that_reads_late),
		TEST(test_a_listener_without_descriptors),
		cmocka_unit_test(test_a_guest_that_says_anything),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
