/*
 * A guest that has turned on its host. It runs as root inside a machine, takes a port away from
 * box-guest, and breaks the port's rules in the way that it is told to:
 *
 *     hostile MODE    of the table at the end
 *
 * The control port is process 1's, and nobody else may open it. But who is root may trace process
 * 1: it is made to stand still, and its descriptor is copied. When this program ends, process 1
 * goes on. The network port is its agent's, which is killed; its place is then free.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "wire/ctl.h"
#include "wire/frame.h"
#include "wire/net.h"

/* As many as the numbers of two bytes, and far from those of streams that there are. */
#define STREAMS 65536u
#define STREAMS_FROM 100000u
/* The stream of this command: the first of its machine. */
#define OWN 1u
#define CONSOLE_SECONDS 3

/* What is sent goes out when this is full, or at the end of a mode. */
struct port {
	int fd;
	size_t size;
	uint8_t bytes[1 << 16];
};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "hostile: %s: %s\n", what, strerror(errno));
	_exit(99);
}

/* The control port is open without waiting, and the host takes its time. */
static void write_all(int fd, const uint8_t *bytes, size_t size)
{
	while (size > 0) {
		ssize_t written = write(fd, bytes, size);

		if (written < 0 && errno == EAGAIN) {
			poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
		} else if (written <= 0) {
			fail("write");
		} else {
			bytes += written;
			size -= (size_t)written;
		}
	}
}

static void flush(struct port *port)
{
	write_all(port->fd, port->bytes, port->size);
	port->size = 0;
}

static void put(struct port *port, const void *bytes, size_t size)
{
	if (port->size + size > sizeof(port->bytes)) {
		flush(port);
	}
	memcpy(port->bytes + port->size, bytes, size);
	port->size += size;
}

static void put_frame(struct port *port, unsigned type, unsigned channel, uint32_t stream,
		      const void *payload, size_t size)
{
	uint8_t header[WIRE_HEADER_SIZE];

	wire_header_encode(header, (uint8_t)type, (uint8_t)channel, stream, (uint32_t)size);
	put(port, header, sizeof(header));
	if (size > 0) {
		put(port, payload, size);
	}
}

static void put_number(struct port *port, unsigned type, unsigned channel, uint32_t stream,
		       uint32_t number)
{
	put_frame(port, type, channel, stream, &number, sizeof(number));
}

static void put_exit(struct port *port)
{
	const uint32_t exited[2] = {WIRE_EXITED, 0};

	put_frame(port, WIRE_EXIT, 0, OWN, exited, sizeof(exited));
	put_frame(port, WIRE_EOF, 1, OWN, NULL, 0);
	put_frame(port, WIRE_EOF, 2, OWN, NULL, 0);
}

/* ---- Both ports: what is no frame ---- */

static void garbage(struct port *port)
{
	uint32_t state = 1;

	for (size_t i = 0; i < sizeof(port->bytes) / sizeof(state); i++) {
		state = state * 1664525u + 1013904223u;
		put(port, &state, sizeof(state));
	}
}

static void oversized(struct port *port)
{
	const uint8_t header[WIRE_HEADER_SIZE] = {0xff, 0xff, 0xff, 0xff, WIRE_DATA, 1, 0, 0, OWN};

	put(port, header, sizeof(header));
}

/* Only the beginning of a frame, and then nothing more. */
static void half(struct port *port)
{
	const uint8_t header[WIRE_HEADER_SIZE] = {0xf0, 0x7f, 0, 0, WIRE_DATA, 1, 0, 0, OWN};

	put(port, header, sizeof(header));
	put(port, "beginning", 9);
}

/* ---- The control port ---- */

static void truncated(struct port *port)
{
	put_frame(port, WIRE_EXIT, 0, OWN, "abc", 3);
}

static void out_of_order(struct port *port)
{
	put_frame(port, WIRE_BYE, 0, 0, NULL, 0);
}

/* The first question for the time was answered long ago, by box-guest. */
static void replayed(struct port *port)
{
	const uint64_t answer[2] = {1, 1000000000};

	put_frame(port, WIRE_TIME, 0, 0, answer, sizeof(answer));
}

static void ended_twice(struct port *port)
{
	put_exit(port);
	put_exit(port);
}

static void streams(struct port *port)
{
	for (uint32_t i = 0; i < STREAMS; i++) {
		put_number(port, WIRE_STARTED, 0, STREAMS_FROM + i, 1);
	}
}

/* Whole windows, whatever the host has granted. */
static void without_credit(struct port *port)
{
	static uint8_t bytes[16384];

	for (unsigned i = 0; i < 256; i++) {
		put_frame(port, WIRE_DATA, 1, OWN, bytes, sizeof(bytes));
	}
}

/* Frames that may cross with the end of a stream, and so are no mistake, for streams that never
 * were; and more lines than anybody wants to read. */
static void flood(struct port *port)
{
	for (uint32_t i = 0; i < STREAMS; i++) {
		put_number(port, WIRE_CREDIT, 0, STREAMS_FROM + i, WIRE_WINDOW);
		put_frame(port, WIRE_LOG, 0, STREAMS_FROM + i, "why", 3);
		put_frame(port, WIRE_LOG, 0, OWN, "why", 3);
	}
}

/* What is right, a byte at a time. */
static void slow(struct port *port)
{
	const uint8_t frame[] = {5, 0, 0, 0,   WIRE_LOG, 0,   0,   0,  OWN,
				 0, 0, 0, 's', 'l',	 'o', 'w', '!'};

	for (size_t i = 0; i < sizeof(frame); i++) {
		put(port, &frame[i], 1);
		flush(port);
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	}
}

/* Says nothing and takes nothing, for ever. */
static void silent(struct port *port)
{
	(void)port;
	for (;;) {
		pause();
	}
}

/* Takes all that it is told, ends the command, and does nothing else: the disks of its machine are
 * never said to be written. */
static void obeys(struct port *port)
{
	uint8_t bytes[4096];

	put_exit(port);
	flush(port);
	for (;;) {
		if (read(port->fd, bytes, sizeof(bytes)) < 0) {
			poll(&(struct pollfd){.fd = port->fd, .events = POLLIN}, 1, -1);
		}
	}
}

/* ---- The network port ---- */

static void put_hello(struct port *port)
{
	uint8_t payload[WIRE_PAYLOAD_MAX];
	const struct net_hello hello = {.magic = NET_MAGIC, .token = 7, .version = NET_VERSION};
	int size = net_hello_encode(&hello, payload);

	put_frame(port, NET_HELLO, 0, 0, payload, (size_t)size);
}

static void put_open(struct port *port, uint32_t stream)
{
	uint8_t payload[WIRE_PAYLOAD_MAX];
	const struct net_open open = {.kind = NET_KIND_V4, .port = 9, .address = {127, 0, 0, 1}};
	int size = net_open_encode(&open, payload);

	put_frame(port, NET_OPEN, 0, stream, payload, (size_t)size);
}

static void net_out_of_order(struct port *port)
{
	put_hello(port);
	put_frame(port, NET_OPENED, 0, 1, NULL, 0);
}

static void net_replayed(struct port *port)
{
	put_hello(port);
	put_open(port, 1);
	put_frame(port, NET_RESET, 0, 1, NULL, 0);
	put_open(port, 1);
}

/* All at once, and none is ever ended. */
static void net_streams(struct port *port)
{
	put_hello(port);
	for (uint32_t i = 1; i <= STREAMS; i++) {
		put_open(port, i);
	}
}

/* One after the other, as the rules are: they may all be opened, and nothing may come of it. No
 * answer is ever read. */
static void net_flood(struct port *port)
{
	put_hello(port);
	for (uint32_t i = 1; i <= STREAMS; i++) {
		put_open(port, i);
		put_frame(port, NET_RESET, 0, i, NULL, 0);
	}
}

/* ---- The console ---- */

static void console(struct port *port)
{
	static char bytes[4096];
	time_t until = time(NULL) + CONSOLE_SECONDS;
	int fd = open("/dev/console", O_WRONLY | O_NOCTTY);
	int log = open("/dev/kmsg", O_WRONLY);

	(void)port;
	memset(bytes, 'x', sizeof(bytes));
	if (fd < 0 || log < 0) {
		fail("/dev/console");
	}
	while (time(NULL) < until) {
		if (write(fd, bytes, sizeof(bytes)) < 0 || write(log, bytes, 900) < 0) {
			fail("write to the console");
		}
	}
}

/* ---- How a port is taken ---- */

/* Whether the first line of a file is this one. */
static bool is_line(const char *path, const char *line)
{
	FILE *file = fopen(path, "re");
	char text[64] = "";

	if (file) {
		if (fgets(text, sizeof(text), file)) {
			text[strcspn(text, "\n")] = '\0';
		}
		fclose(file);
	}
	return strcmp(text, line) == 0;
}

/* The device of the port with this name. */
static void find_device(const char *name, char *ret_path, size_t size)
{
	DIR *stream = opendir("/sys/class/virtio-ports");
	struct dirent *entry;

	while (stream && (entry = readdir(stream))) {
		char path[512];

		snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", entry->d_name);
		if (is_line(path, name)) {
			snprintf(ret_path, size, "/dev/%s", entry->d_name);
			closedir(stream);
			return;
		}
	}
	errno = ENOENT;
	fail(name);
}

static int take_control(void)
{
	char device[300], path[64], target[300];
	int pidfd = (int)syscall(SYS_pidfd_open, 1, 0);

	find_device(WIRE_CTL_PORT_NAME, device, sizeof(device));
	if (ptrace(PTRACE_SEIZE, 1, NULL, NULL) < 0 ||
	    ptrace(PTRACE_INTERRUPT, 1, NULL, NULL) < 0 || waitpid(1, NULL, __WALL) != 1) {
		fail("ptrace of process 1");
	}
	for (int number = 0; number < 1024; number++) {
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/1/fd/%d", number);
		length = readlink(path, target, sizeof(target) - 1);
		target[length > 0 ? length : 0] = '\0';
		if (strcmp(target, device) == 0) {
			int fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);

			if (fd < 0) {
				fail("pidfd_getfd");
			}
			return fd;
		}
	}
	errno = ENOENT;
	fail(device);
}

/* The process of this name, or 0. */
static pid_t find_process(const char *name)
{
	DIR *stream = opendir("/proc");
	struct dirent *entry;
	pid_t found = 0;

	while (stream && found == 0 && (entry = readdir(stream))) {
		char path[300];

		snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
		found = is_line(path, name) ? (pid_t)strtol(entry->d_name, NULL, 10) : 0;
	}
	if (stream) {
		closedir(stream);
	}
	return found;
}

static int take_network(void)
{
	char device[300];
	int fd;

	find_device(NET_PORT_NAME, device, sizeof(device));
	if (find_process("box-net-agent") > 0) {
		kill(find_process("box-net-agent"), SIGKILL);
	}
	/* It is another's until that one has ended. */
	while ((fd = open(device, O_RDWR | O_CLOEXEC)) < 0 && errno == EBUSY) {
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	}
	if (fd < 0) {
		fail(device);
	}
	return fd;
}

static int take_nothing(void)
{
	return STDOUT_FILENO;
}

static const struct mode {
	const char *name;
	int (*take)(void);
	void (*act)(struct port *port);
	/* Whether the host ends the machine for it; it is waited for then. */
	bool fatal;
} modes[] = {
	{"garbage", take_control, garbage, true},
	{"truncated", take_control, truncated, true},
	{"oversized", take_control, oversized, true},
	{"out-of-order", take_control, out_of_order, true},
	{"replayed", take_control, replayed, true},
	{"ended-twice", take_control, ended_twice, true},
	{"streams", take_control, streams, true},
	{"without-credit", take_control, without_credit, true},
	{"half", take_control, half, true},
	{"silent", take_control, silent, true},
	{"obeys", take_control, obeys, true},
	{"flood", take_control, flood, false},
	{"slow", take_control, slow, false},
	{"console", take_nothing, console, false},
	{"net-garbage", take_network, garbage, true},
	{"net-oversized", take_network, oversized, true},
	{"net-out-of-order", take_network, net_out_of_order, true},
	{"net-replayed", take_network, net_replayed, true},
	{"net-streams", take_network, net_streams, true},
	{"net-half", take_network, half, false},
	{"net-flood", take_network, net_flood, false},
};

int main(int argc, char **argv)
{
	static struct port port;

	for (size_t i = 0; argc == 2 && i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (strcmp(argv[1], modes[i].name) != 0) {
			continue;
		}
		port.fd = modes[i].take();
		modes[i].act(&port);
		flush(&port);
		if (modes[i].fatal) {
			silent(&port);
		}
		return EXIT_SUCCESS;
	}
	fputs("usage: hostile MODE\n", stderr);
	return 2;
}
