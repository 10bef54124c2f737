#include "engine/replace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"

int replace_note_layer(struct disk_state *state, int fd, int set)
{
	struct stat status;

	if (fstat(fd, &status) < 0) {
		return -errno;
	}
	state->files[state->set_count].device = status.st_dev;
	state->files[state->set_count].inode = status.st_ino;
	state->sets[state->set_count++] = set;
	return 0;
}

void replace_print_node(const char *serial, unsigned generation,
			char ret_node[static DISK_NODE_MAX])
{
	int length = snprintf(ret_node, DISK_NODE_MAX, "%s-%u", serial, generation);

	ASSERT(length > 0 && length < DISK_NODE_MAX);
}

/* ---- The commands ---- */

/* The steps of a replacement: one for each layer, the node, the drive. */
static size_t count_steps(const struct engine_disk *disk)
{
	return disk->layer_count + 2;
}

/* The command of a step. Returns its name; ret_text are its arguments. */
static const char *print_step(const struct engine_disk *disk, const struct disk_state *next,
			      size_t step, char ret_text[static DISK_TEXT_MAX])
{
	char node[DISK_NODE_MAX];

	replace_print_node(disk->serial, next->generation, node);
	if (step < disk->layer_count) {
		snprintf(ret_text, DISK_TEXT_MAX, "{\"fdset-id\":%d}", next->sets[step]);
		return "add-fd";
	}
	if (step == disk->layer_count) {
		disk_describe(disk, node, next->sets, ret_text);
		return "blockdev-add";
	}
	snprintf(ret_text, DISK_TEXT_MAX,
		 "{\"path\":\"%s\",\"property\":\"drive\",\"value\":\"%s\"}", disk->serial, node);
	return "qom-set";
}

static bool is_ours(const char *command)
{
	static const char *const commands[] = {"add-fd", "blockdev-add", "qom-set", "blockdev-del",
					       "remove-fd"};

	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		if (strcmp(command, commands[i]) == 0) {
			return true;
		}
	}
	return false;
}

/* Over the monitor's own channel. */
static int send_command(struct replacer *replacer, const char *name, const char *arguments,
			int pass_fd)
{
	int rc = qmp_send(replacer->qmp, name, arguments, pass_fd);

	if (rc == 0) {
		replacer->pending++;
	}
	return rc;
}

/* The next command that is ready takes effect. */
static int finish_next(struct replacer *replacer, int pass_fd)
{
	int rc = qmp_finish(replacer->channels[replacer->finished++], pass_fd);

	if (rc == 0) {
		replacer->pending++;
	}
	return rc;
}

/* The old node goes with everything below it, and so do the duplicates of its descriptors; the
 * descriptors themselves go with their sets. */
static int close_old(struct replacer *replacer)
{
	const struct disk_state *old = replacer->disk;
	char node[DISK_NODE_MAX], text[DISK_TEXT_MAX];
	int rc;

	replace_print_node(replacer->serial, old->generation, node);
	snprintf(text, sizeof(text), "{\"node-name\":\"%s\"}", node);
	rc = send_command(replacer, "blockdev-del", text, -EBADF);
	for (size_t i = 0; rc == 0 && i < old->set_count; i++) {
		snprintf(text, sizeof(text), "{\"fdset-id\":%d}", old->sets[i]);
		rc = send_command(replacer, "remove-fd", text, -EBADF);
	}
	return rc;
}

/* ---- Channels ---- */

int replace_open(struct replacer *replacer, const struct engine_disk *disk)
{
	int pair[2];

	if (count_steps(disk) > REPLACE_CHANNELS_MAX) {
		return 0;
	}
	replacer->ready = disk;
	while (replacer->channel_count < count_steps(disk)) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
			return -errno;
		}
		replacer->ours[replacer->channel_count] = pair[0];
		replacer->theirs[replacer->channel_count++] = pair[1];
	}
	return 0;
}

int replace_get_ready(struct replacer *replacer, int next_set, struct loop *loop,
		      qmp_callback *callback, void *data)
{
	struct disk_state next = {.generation = 1};
	char text[DISK_TEXT_MAX];
	int rc = 0;

	replacer->next_set = next_set;
	for (size_t i = 0; i < replacer->channel_count; i++) {
		close_fd(&replacer->theirs[i]);
		next.sets[i] = next_set + (int)i;
	}
	for (size_t i = 0; rc == 0 && i < replacer->channel_count; i++) {
		const char *name = print_step(replacer->ready, &next, i, text);

		rc = qmp_new(replacer->ours[i], loop, callback, data, &replacer->channels[i]);
		if (rc == 0) {
			replacer->ours[i] = -EBADF;
			rc = qmp_begin(replacer->channels[i], name, text);
		}
	}
	return rc;
}

void replace_close(struct replacer *replacer)
{
	for (size_t i = 0; i < replacer->channel_count; i++) {
		close_fd(&replacer->ours[i]);
		close_fd(&replacer->theirs[i]);
		qmp_free(TAKE_PTR(replacer->channels[i]));
	}
	replacer->channel_count = 0;
	replacer->disk = NULL;
}

/* Whether the commands that are ready are those for these layers. */
static bool fits(const struct replacer *replacer, const struct engine_disk *disk)
{
	const struct engine_disk *ready = replacer->ready;
	bool same = ready && strcmp(ready->serial, disk->serial) == 0 &&
		    ready->layer_count == disk->layer_count;

	for (size_t i = 0; same && i < disk->layer_count; i++) {
		same = ready->layers[i].qcow2 == disk->layers[i].qcow2;
	}
	return same;
}

/* ---- A replacement ---- */

/* What is ready takes effect one after the other: the channels have no order among themselves. Only
 * the descriptors may come as they like. */
static int use_ready(struct replacer *replacer, const struct engine_disk *disk)
{
	int rc = 0;

	replacer->finished = 0;
	for (size_t i = 0; rc == 0 && i < disk->layer_count; i++) {
		rc = finish_next(replacer, disk->layers[i].fd);
	}
	/* Without layers there is no answer to wait for. */
	return rc == 0 && disk->layer_count == 0 ? finish_next(replacer, -EBADF) : rc;
}

/* All goes out at once. */
static int send_all(struct replacer *replacer, const struct engine_disk *disk)
{
	char text[DISK_TEXT_MAX];
	int rc = 0;

	replacer->finished = replacer->channel_count;
	for (size_t i = 0; rc == 0 && i < count_steps(disk); i++) {
		const char *name = print_step(disk, &replacer->next, i, text);

		rc = send_command(replacer, name, text,
				  i < disk->layer_count ? disk->layers[i].fd : -EBADF);
	}
	return rc;
}

int replace_begin(struct replacer *replacer, struct disk_state *state,
		  const struct engine_disk *disk, bool keep_old, void (*done)(void *data),
		  void *data)
{
	bool ready = fits(replacer, disk);
	int rc = 0;

	ASSERT(!replacer->disk);
	replacer->disk = state;
	replacer->next = (struct disk_state){.generation = state->generation + 1};
	replacer->serial = disk->serial;
	replacer->pending = 0;
	replacer->keep_old = keep_old;
	replacer->done = done;
	replacer->data = data;
	for (size_t i = 0; rc == 0 && i < disk->layer_count; i++) {
		rc = replace_note_layer(&replacer->next, disk->layers[i].fd, replacer->next_set++);
	}
	/* They have the numbers of the first replacement, of whichever disk that is. */
	replacer->ready = NULL;
	if (rc == 0) {
		rc = ready ? use_ready(replacer, disk) : send_all(replacer, disk);
	}
	if (rc < 0) {
		/* What has been sent already is answered to nobody. */
		replacer->disk = NULL;
	}
	return rc;
}

/* The disk stands on its new layers, and the old ones are closed unless they are kept. */
static void end(struct replacer *replacer, bool closed)
{
	struct disk_state *disk = TAKE_PTR(replacer->disk);
	const struct disk_state *next = &replacer->next;

	for (size_t i = 0; closed && i < disk->set_count; i++) {
		jail_forget_file(replacer->process, disk->files[i].device, disk->files[i].inode);
	}
	for (size_t i = 0; i < next->set_count; i++) {
		jail_note_file(replacer->process, next->files[i].device, next->files[i].inode);
	}
	*disk = *next;
	replacer->done(replacer->data);
}

int replace_on_done(struct replacer *replacer, const char *command)
{
	if (!replacer->disk || !is_ours(command) || replacer->pending == 0 ||
	    --replacer->pending > 0) {
		return 0;
	}
	if (replacer->finished < replacer->channel_count) {
		return finish_next(replacer, -EBADF);
	}
	if (!replacer->keep_old && strcmp(command, "qom-set") == 0) {
		return close_old(replacer);
	}
	end(replacer, !replacer->keep_old);
	return 0;
}
