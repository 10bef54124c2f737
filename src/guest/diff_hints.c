/*
 * Theory of operation.
 *
 * A changed inode does not say where its names are. Listing all directories to find them costs a
 * system call or five and a request of the disk for each. So their blocks are read first as they
 * lie on the disk, many with one request, and those that hold the number of a changed inode are
 * marked, with all directories above them.
 *
 * The marks are hints, and nothing is taken from here but the order in which the kernel is asked
 * (diff_walk). So whatever goes wrong may be passed over: what is not marked is looked at later.
 */
#include "guest/diff_hints.h"

#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/array.h"
#include "base/check.h"

/* Of one request. Whole blocks of any size. */
#define CHUNK_BYTES ((size_t)1 << 20)
#define ALIGNMENT 4096
/* More than that is not read for hints: they would cost more than they save. */
#define HINT_BYTES_MAX ((uint64_t)256 << 20)
#define HINT_RUNS_MAX ((size_t)1 << 20)

struct hint_directory {
	uint32_t number;
	/* 0: it was not told. */
	uint32_t parent;
	bool holds_change;
};

/* At most a chunk. */
struct hint_run {
	uint64_t block;
	uint32_t blocks;
	uint32_t directory;
};

static bool add_run(struct hints *hints, const struct hint_run *run)
{
	struct hint_run *grown =
		array_reserve(hints->runs, hints->run_count, &hints->run_capacity, sizeof(*grown));

	if (!grown) {
		return false;
	}
	hints->runs = grown;
	hints->runs[hints->run_count++] = *run;
	return true;
}

void hints_add(struct hints *hints, const struct ext4_super *super, uint32_t number,
	       const uint8_t *inode)
{
	struct ext4_run runs[EXT4_RUNS_MAX];
	uint32_t step = (uint32_t)(CHUNK_BYTES / super->block_bytes);
	size_t count = ext4_directory_runs(super, inode, runs);
	struct hint_directory *grown;

	if (count == 0) {
		return;
	}
	grown = array_reserve(hints->directories, hints->directory_count,
			      &hints->directory_capacity, sizeof(*grown));
	if (!grown) {
		return;
	}
	hints->directories = grown;
	hints->directories[hints->directory_count] = (struct hint_directory){.number = number};
	for (size_t i = 0; i < count; i++) {
		for (uint32_t at = 0; at < runs[i].blocks; at += step) {
			struct hint_run run = {
				.block = runs[i].block + at,
				.blocks = MIN(step, runs[i].blocks - at),
				.directory = (uint32_t)hints->directory_count,
			};

			hints->blocks += run.blocks;
			if (hints->blocks > HINT_BYTES_MAX / super->block_bytes ||
			    hints->run_count == HINT_RUNS_MAX || !add_run(hints, &run)) {
				break;
			}
		}
	}
	hints->directory_count++;
}

static int compare_runs(const void *left, const void *right)
{
	const struct hint_run *a = left, *b = right;

	return (a->block > b->block) - (a->block < b->block);
}

static int compare_directories(const void *left, const void *right)
{
	const struct hint_directory *a = left, *b = right;

	return (a->number > b->number) - (a->number < b->number);
}

static void scan_block(struct hint_directory *directory, const uint8_t *block, size_t size,
		       const struct inode_changes *changes)
{
	struct ext4_entry entry;
	size_t at = 0;

	while (ext4_entry_next(block, size, &at, &entry)) {
		if (entry.is_parent) {
			directory->parent = entry.number;
		} else if (inode_changes_find(changes, entry.number)) {
			directory->holds_change = true;
		}
	}
}

/* Reads the runs, as many at once as lie within a chunk; they are sorted. */
static void scan_runs(struct hints *hints, const struct ext4_super *super, int fd, uint8_t *chunk,
		      const struct inode_changes *changes)
{
	size_t block_bytes = super->block_bytes;

	for (size_t first = 0, next; first < hints->run_count; first = next) {
		uint64_t begin = hints->runs[first].block, end = begin;
		size_t size;

		for (next = first; next < hints->run_count; next++) {
			const struct hint_run *run = &hints->runs[next];

			if (run->block + run->blocks - begin > CHUNK_BYTES / block_bytes) {
				break;
			}
			end = MAX(end, run->block + run->blocks);
		}
		size = (size_t)(end - begin) * block_bytes;
		if (pread(fd, chunk, size, (off_t)(begin * block_bytes)) != (ssize_t)size) {
			continue;
		}
		for (size_t i = first; i < next; i++) {
			const struct hint_run *run = &hints->runs[i];
			const uint8_t *blocks = chunk + (run->block - begin) * block_bytes;

			for (size_t k = 0; k < run->blocks; k++) {
				scan_block(&hints->directories[run->directory],
					   blocks + k * block_bytes, block_bytes, changes);
			}
		}
	}
}

/* Marks a directory and those above it, up to one that is marked already. */
static void mark(const struct hints *hints, uint32_t number, struct inode_changes *changes)
{
	while (number != 0 && number <= changes->last && !inode_changes_hint(changes, number)) {
		const struct hint_directory key = {.number = number};
		const struct hint_directory *found =
			bsearch(&key, hints->directories, hints->directory_count, sizeof(key),
				compare_directories);

		changes->hints[number / 8] |= (uint8_t)(1u << number % 8);
		number = found ? found->parent : 0;
	}
}

void hints_find(struct hints *hints, const struct ext4_super *super, int fd,
		struct inode_changes *changes)
{
	uint8_t *chunk = aligned_alloc(ALIGNMENT, CHUNK_BYTES);

	changes->hints = calloc((size_t)changes->last / 8 + 1, 1);
	if (chunk && changes->hints && hints->run_count > 0) {
		qsort(hints->runs, hints->run_count, sizeof(*hints->runs), compare_runs);
		scan_runs(hints, super, fd, chunk, changes);
		for (size_t i = 0; i < hints->directory_count; i++) {
			if (hints->directories[i].holds_change) {
				mark(hints, hints->directories[i].number, changes);
			}
		}
	}
	free(chunk);
}

void hints_clear(struct hints *hints)
{
	free(hints->directories);
	free(hints->runs);
	*hints = (struct hints){0};
}
