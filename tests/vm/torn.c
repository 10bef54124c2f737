/*
 * A witness of what a disk keeps: a writer whose every step is decided by its number alone, and a
 * checker that knows from the number of the last step what must be there.
 *
 *     torn write DIR STEP    checks as below, then goes on with the next step until it is killed
 *     torn check DIR STEP    exits 1 with a line when something that step STEP left is not there
 *
 * A step changes one file in one of five ways, syncs that, appends a record to a log and syncs that
 * too; only then its number goes to standard output. Each record holds the checksum of the one
 * before. So whenever the power goes: every step up to the last whole record of the log must be
 * there to the last byte, at most the next one may be half done, and the log must reach what was
 * told to the outside. A child writes and removes files that nobody syncs, so that the journal
 * always has something else under way.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Enough of each that they differ in age, few enough for a /data of 64 MiB. */
#define SLOTS 8
#define BLOCKS 64
#define TOKENS 4
#define MADE 10
#define CUTS 4
#define BLOCK_BYTES 4096
#define CONTENT_MAX 40000
#define PAYLOAD_MAX 2000
/* Steps in one file of the log; two files are kept. */
#define LOG_STEPS 500

struct record {
	uint64_t step;
	/* Of the record before. */
	uint64_t before;
	uint64_t size;
	/* Of the above and the payload that follows. */
	uint64_t sum;
};

enum kind { REPLACE = 0, OVERWRITE, MOVE, MAKE, CUT, KINDS };

/* Which step was the last to change each thing; 0: none. */
struct state {
	uint64_t slots[SLOTS];
	uint64_t blocks[BLOCKS];
	uint64_t cuts[CUTS];
	uint64_t moves[TOKENS];
	/* The files that are there, oldest first. */
	uint64_t made[MADE + 1];
	size_t made_count;
};

static char buffer[CONTENT_MAX + BLOCK_BYTES], expected[CONTENT_MAX + BLOCK_BYTES];

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("torn: ", stdout);
	vprintf(format, args);
	fputc('\n', stdout);
	va_end(args);
	fflush(stdout);
	_exit(1);
}

static void must(bool condition, const char *what)
{
	if (!condition) {
		fail("%s: %s", what, strerror(errno));
	}
}

/* Numbers that look random and are the same in every run (the finalizer of a 64-bit hash). */
static uint64_t mix(uint64_t step, uint64_t what)
{
	uint64_t x = step * 0x9e3779b97f4a7c15u + what * 0xd1b54a32d192ed03u + 1;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t sum_of(uint64_t sum, const void *data, size_t size)
{
	const uint8_t *bytes = data;

	for (size_t i = 0; i < size; i++) {
		sum = (sum ^ bytes[i]) * 0x100000001b3u;
	}
	return sum;
}

static enum kind kind_of(uint64_t step)
{
	return (enum kind)(mix(step, 1) % KINDS);
}

/* Which slot, block, token or file of its kind the step is about. */
static size_t target_of(uint64_t step, size_t count)
{
	return (size_t)(mix(step, 2) % count);
}

/* What the step writes. Returns how much. */
static size_t content_of(uint64_t step, char *ret_data)
{
	size_t size =
		kind_of(step) == OVERWRITE ? BLOCK_BYTES : 1 + (size_t)(mix(step, 3) % CONTENT_MAX);

	for (size_t i = 0; i < size; i += 8) {
		uint64_t word = mix(step, 100 + i);

		memcpy(ret_data + i, &word, 8);
	}
	return size;
}

static size_t payload_of(uint64_t step)
{
	return (size_t)(mix(step, 4) % PAYLOAD_MAX);
}

static void advance(struct state *state, uint64_t step)
{
	switch (kind_of(step)) {
	case REPLACE:
		state->slots[target_of(step, SLOTS)] = step;
		break;
	case OVERWRITE:
		state->blocks[target_of(step, BLOCKS)] = step;
		break;
	case MOVE:
		state->moves[target_of(step, TOKENS)]++;
		break;
	case MAKE:
		state->made[state->made_count++] = step;
		if (state->made_count > MADE) {
			memmove(state->made, state->made + 1, MADE * sizeof(state->made[0]));
			state->made_count--;
		}
		break;
	default:
		state->cuts[target_of(step, CUTS)] = step;
		break;
	}
}

__attribute__((format(printf, 2, 3))) static const char *name(char *text, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(text, 64, format, args);
	va_end(args);
	return text;
}

/* ---- writing ---- */

static void sync_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY);

	must(fd >= 0 && fsync(fd) == 0, path);
	close(fd);
}

static void write_file(const char *path, int flags, const char *data, size_t size, off_t at)
{
	int fd = open(path, O_WRONLY | O_CREAT | flags, 0644);

	must(fd >= 0, path);
	for (size_t done = 0; done < size;) {
		ssize_t wrote = pwrite(fd, data + done, size - done, at + (off_t)done);

		must(wrote > 0, path);
		done += (size_t)wrote;
	}
	must((flags & O_TRUNC ? fsync(fd) : fdatasync(fd)) == 0, path);
	close(fd);
}

static void move_token(uint64_t step, const struct state *state)
{
	size_t token = target_of(step, TOKENS);
	bool back = state->moves[token] % 2 != 0;
	char from[64], to[64];

	name(from, "%s/token-%zu", back ? "there" : "here", token);
	name(to, "%s/token-%zu", back ? "here" : "there", token);
	/* Half of this step may have been done before a crash. */
	must(rename(from, to) == 0 || errno == ENOENT, from);
	sync_directory("here");
	sync_directory("there");
}

static void change(uint64_t step, const struct state *state)
{
	size_t size = content_of(step, buffer);
	char path[64], temporary[64];

	switch (kind_of(step)) {
	case REPLACE:
		name(path, "slot-%zu", target_of(step, SLOTS));
		name(temporary, "%s.new", path);
		write_file(temporary, O_TRUNC, buffer, size, 0);
		must(rename(temporary, path) == 0, path);
		sync_directory(".");
		break;
	case OVERWRITE:
		write_file("blocks", 0, buffer, size, (off_t)target_of(step, BLOCKS) * BLOCK_BYTES);
		break;
	case MOVE:
		move_token(step, state);
		break;
	case MAKE:
		write_file(name(path, "made-%" PRIu64, step), O_TRUNC, buffer, size, 0);
		if (state->made_count == MADE) {
			unlink(name(path, "made-%" PRIu64, state->made[0]));
		}
		sync_directory(".");
		break;
	default:
		write_file(name(path, "cut-%zu", target_of(step, CUTS)), O_TRUNC, buffer, size, 0);
		sync_directory(".");
		break;
	}
}

static struct record record_of(uint64_t step, uint64_t before, char *ret_payload)
{
	struct record record = {.step = step, .before = before, .size = payload_of(step)};

	for (size_t i = 0; i < record.size; i++) {
		ret_payload[i] = (char)mix(step, 1000 + i);
	}
	record.sum = sum_of(14695981039346656037u, &record, offsetof(struct record, sum));
	record.sum = sum_of(record.sum, ret_payload, record.size);
	return record;
}

/* Appends one record. *end is where the log ends now, *sum the checksum of the last record. */
static void append(uint64_t step, uint64_t *end, uint64_t *sum)
{
	char path[64], data[sizeof(struct record) + PAYLOAD_MAX];
	struct record record = record_of(step, *sum, data + sizeof(record));

	memcpy(data, &record, sizeof(record));
	name(path, "log-%" PRIu64, step / LOG_STEPS);
	if (step % LOG_STEPS == 0) {
		*end = 0;
	}
	/* What a crash has left behind the last whole record is written over. */
	write_file(path, 0, data, sizeof(record) + record.size, (off_t)*end);
	if (step % LOG_STEPS == 0) {
		unlink(name(path, "log-%" PRIu64, step / LOG_STEPS - 2));
		sync_directory(".");
	} else if (step % 16 == 0) {
		sync();
	}
	*end += sizeof(record) + record.size;
	*sum = record.sum;
}

static void begin(void)
{
	static const char zeros[BLOCKS * BLOCK_BYTES];
	char path[64];

	/* A crash may have come in the middle of this. */
	(void)mkdir("here", 0755);
	(void)mkdir("there", 0755);
	for (size_t i = 0; i < TOKENS; i++) {
		write_file(name(path, "here/token-%zu", i), O_TRUNC, "token", 5, 0);
	}
	write_file("blocks", O_TRUNC, zeros, sizeof(zeros), 0);
	write_file("log-0", O_TRUNC, "", 0, 0);
	sync();
	write_file("begun", O_TRUNC, "", 0, 0);
	sync_directory(".");
}

/* Never synced, so nothing is ever said about it. */
static void make_noise(void)
{
	char path[64];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	mkdir("noise", 0755);
	for (uint64_t i = 0;; i++) {
		int fd = open(name(path, "noise/%u", (unsigned)(mix(i, 7) % 20)),
			      O_WRONLY | O_CREAT | O_TRUNC, 0644);

		if (fd >= 0) {
			(void)!write(fd, expected, (size_t)(mix(i, 8) % sizeof(expected)));
			close(fd);
		}
		if (i % 3 == 0) {
			unlink(name(path, "noise/%u", (unsigned)(mix(i, 9) % 20)));
		}
		usleep(3000);
	}
}

/* ---- checking ---- */

/* Reads a file of at most sizeof(buffer) bytes. Returns its size, or -1 when it is not there. */
static ssize_t read_file(const char *path)
{
	int fd = open(path, O_RDONLY);
	ssize_t size = 0, got = 1;

	if (fd < 0 && errno == ENOENT) {
		return -1;
	}
	must(fd >= 0, path);
	while (got > 0 && (size_t)size < sizeof(buffer)) {
		got = read(fd, buffer + size, sizeof(buffer) - (size_t)size);
		must(got >= 0, path);
		size += got;
	}
	close(fd);
	return size;
}

static bool holds(ssize_t size, uint64_t step)
{
	return size >= 0 && (size_t)size == content_of(step, expected) &&
	       memcmp(buffer, expected, (size_t)size) == 0;
}

/* A whole file that step wrote. next: the step that may be under way; it may have replaced it. */
static void check_file(const char *path, uint64_t step, uint64_t next, bool in_place)
{
	ssize_t size = read_file(path);

	if (step != 0 ? holds(size, step) : size == -1) {
		return;
	}
	if (next == 0 || (!in_place && !holds(size, next))) {
		fail("%s has %zd bytes that are not those of step %" PRIu64, path, size, step);
	}
}

static void check_blocks(const struct state *state, uint64_t next)
{
	static const char zeros[BLOCK_BYTES];
	int fd = open("blocks", O_RDONLY);

	must(fd >= 0, "blocks");
	for (size_t i = 0; i < BLOCKS; i++) {
		bool under_way = kind_of(next) == OVERWRITE && target_of(next, BLOCKS) == i;

		must(pread(fd, buffer, BLOCK_BYTES, (off_t)i * BLOCK_BYTES) == BLOCK_BYTES,
		     "blocks");
		if (!under_way && (state->blocks[i] ? !holds(BLOCK_BYTES, state->blocks[i])
						    : memcmp(buffer, zeros, BLOCK_BYTES) != 0)) {
			fail("block %zu is not that of step %" PRIu64, i, state->blocks[i]);
		}
	}
	close(fd);
}

static void check_tokens(const struct state *state, uint64_t next)
{
	for (size_t i = 0; i < TOKENS; i++) {
		bool under_way = kind_of(next) == MOVE && target_of(next, TOKENS) == i;
		char here[64], there[64];
		ssize_t at_here = read_file(name(here, "here/token-%zu", i));
		ssize_t at_there = read_file(name(there, "there/token-%zu", i));

		if ((at_here == 5) == (at_there == 5) || at_here + at_there != 4 ||
		    (!under_way && (at_there == 5) != (state->moves[i] % 2 != 0))) {
			fail("token %zu moved %" PRIu64 " times: %zd bytes here, %zd there", i,
			     state->moves[i], at_here, at_there);
		}
	}
}

static void check_made(const struct state *state, uint64_t last)
{
	uint64_t next = kind_of(last + 1) == MAKE ? last + 1 : 0;
	/* Removed by the step that may be under way. */
	size_t first = next != 0 && state->made_count == MADE ? 1 : 0;
	DIR *directory = opendir(".");
	const struct dirent *entry;
	char path[64];

	for (size_t i = first; i < state->made_count; i++) {
		check_file(name(path, "made-%" PRIu64, state->made[i]), state->made[i], 0, false);
	}
	must(directory, "DIR");
	while ((entry = readdir(directory))) {
		uint64_t step = strncmp(entry->d_name, "made-", 5) == 0
					? strtoull(entry->d_name + 5, NULL, 10)
					: 0;
		bool known = step == 0 || step == next;

		for (size_t i = 0; i < state->made_count; i++) {
			known = known || state->made[i] == step;
		}
		if (!known) {
			fail("%s was removed and is there again", entry->d_name);
		}
	}
	closedir(directory);
}

static void check_state(const struct state *state, uint64_t last)
{
	uint64_t next = last + 1;
	char path[64];

	for (size_t i = 0; i < SLOTS; i++) {
		bool hit = kind_of(next) == REPLACE && target_of(next, SLOTS) == i;

		check_file(name(path, "slot-%zu", i), state->slots[i], hit ? next : 0, false);
	}
	for (size_t i = 0; i < CUTS; i++) {
		bool hit = kind_of(next) == CUT && target_of(next, CUTS) == i;

		check_file(name(path, "cut-%zu", i), state->cuts[i], hit ? next : 0, true);
	}
	check_blocks(state, next);
	check_tokens(state, next);
	check_made(state, last);
}

/*
 * Reads one file of the log. *last is the last step known, *sum the checksum of its record, or 0
 * when the file before is not kept any more. Returns where the whole records end.
 */
static uint64_t read_log(uint64_t number, uint64_t *last, uint64_t *sum)
{
	static char data[LOG_STEPS * (sizeof(struct record) + PAYLOAD_MAX)], payload[PAYLOAD_MAX];
	char path[64];
	int fd = open(name(path, "log-%" PRIu64, number), O_RDONLY);
	uint64_t end = 0, step = number * LOG_STEPS;
	ssize_t size = fd < 0 ? 0 : read(fd, data, sizeof(data));

	must(fd >= 0 || errno == ENOENT, path);
	must(size >= 0, path);
	close(fd);
	for (step += number == 0; step < (number + 1) * LOG_STEPS; step++) {
		struct record record, wanted;

		if ((uint64_t)size - end < sizeof(record)) {
			break;
		}
		memcpy(&record, data + end, sizeof(record));
		wanted = record_of(step, *sum ? *sum : record.before, payload);
		if (memcmp(&record, &wanted, sizeof(record)) != 0 ||
		    (uint64_t)size - end - sizeof(record) < record.size ||
		    memcmp(data + end + sizeof(record), payload, record.size) != 0) {
			break;
		}
		end += sizeof(record) + record.size;
		*last = step;
		*sum = record.sum;
	}
	if ((uint64_t)size > end + sizeof(struct record) + payload_of(step)) {
		fail("%s has %zd bytes and is good up to %" PRIu64 " (step %" PRIu64 ")", path,
		     size, end, *last);
	}
	return end;
}

/* Checks everything. Returns the last step that is there whole. */
static uint64_t check(uint64_t told, struct state *ret_state, uint64_t *ret_end, uint64_t *ret_sum)
{
	uint64_t last = 0, first = 0;
	char path[64];

	*ret_sum = 1;
	while (access(name(path, "log-%" PRIu64, first), F_OK) < 0) {
		first++;
		*ret_sum = 0;
		last = first * LOG_STEPS - 1;
		if (last > told + 2 * LOG_STEPS) {
			fail("no log before step %" PRIu64 " is there", last);
		}
	}
	for (uint64_t number = first;; number++) {
		uint64_t end = read_log(number, &last, ret_sum);

		*ret_end = end > 0 ? end : *ret_end;
		if (last + 1 < (number + 1) * LOG_STEPS || end == 0) {
			break;
		}
	}
	if (last < told) {
		fail("step %" PRIu64 " was synced and told, and the log ends with %" PRIu64, told,
		     last);
	}
	for (uint64_t step = 1; step <= last; step++) {
		advance(ret_state, step);
	}
	check_state(ret_state, last);
	return last;
}

int main(int argc, char **argv)
{
	uint64_t told = argc == 4 ? strtoull(argv[3], NULL, 10) : 0, end = 0, sum = 0, step = 0;
	struct state state = {0};
	bool begun;

	if (argc != 4) {
		fail("usage: torn write|check DIR STEP");
	}
	(void)mkdir(argv[2], 0755);
	must(chdir(argv[2]) == 0, argv[2]);
	begun = access("begun", F_OK) == 0;
	if (begun || told > 0) {
		step = check(told, &state, &end, &sum);
	} else if (strcmp(argv[1], "write") == 0) {
		begin();
		sum = 1;
	}
	printf("checked %" PRIu64 "\n", step);
	fflush(stdout);
	if (strcmp(argv[1], "check") == 0) {
		return 0;
	}
	if (fork() == 0) {
		make_noise();
	}
	for (step++;; step++) {
		change(step, &state);
		advance(&state, step);
		append(step, &end, &sum);
		printf("%" PRIu64 "\n", step);
		fflush(stdout);
	}
}
