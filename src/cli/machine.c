/* Machines that stay: `box up`, `box down`, `box forward`. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "client/client.h"
#include "ipc/tcp.h"
#include "json/json.h"
#include "spec/spec.h"

/* A boot takes tens of seconds at the very worst; its keeper gives up after three minutes. */
#define OTHER_STEP_MS 20
#define OTHER_TRIES 9000
#define UP_TRIES 16

/* What `up` tells. */
struct up {
	const char *name;
	const struct spec *spec;
	bool already;
	uint64_t took_ns;
	struct ipc_ready ready;
};

static void print_ports(FILE *out, const char *name, const struct spec *spec)
{
	for (size_t i = 0; i < spec->network_port_count; i++) {
		struct spec_port port;

		if (spec_parse_port(spec->network_ports[i], &port, NULL) == 0) {
			bool six = strchr(port.address, ':') != NULL;

			fprintf(out, "%s%s%s:%u -> %s:%u\n", six ? "[" : "", port.address,
				six ? "]" : "", port.host, name, port.guest);
		}
	}
}

void cli_print_up(FILE *out, const char *name, const struct spec *spec,
		  const struct ipc_ready *ready, uint64_t took_ns)
{
	fprintf(out, "%s is up: %.2f s, %s, engine %s %s\n", name, (double)took_ns / 1e9,
		ready->restored ? "restored" : "booted", ready->engine,
		ready->hardware ? "with KVM" : "in software emulation");
	if (ready->missing[0]) {
		fprintf(stderr, "box: this host cannot give all confinement: %s\n", ready->missing);
	}
	print_ports(out, name, spec);
}

static struct json *ports_to_json(const struct spec *spec)
{
	_cleanup_(json_freep) struct json *array = json_new_array();

	for (size_t i = 0; array && i < spec->network_port_count; i++) {
		if (json_append_string(array, spec->network_ports[i]) < 0) {
			return NULL;
		}
	}
	return TAKE_PTR(array);
}

static int print_up_json(const struct up *up, struct err *err)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	const struct ipc_ready *ready = &up->ready;
	int rc = json_set_string(object, "name", up->name);

	if (rc == 0) {
		rc = json_set_boolean(object, "already_up", up->already);
	}
	if (rc == 0 && !up->already &&
	    (json_set_real(object, "took_ms", (double)up->took_ns / 1e6) < 0 ||
	     json_set_boolean(object, "restored", ready->restored != 0) < 0 ||
	     json_set_string(object, "boot_reason", ready->boot_reason) < 0 ||
	     json_set_string(object, "engine", ready->engine) < 0 ||
	     json_set_boolean(object, "hardware", ready->hardware != 0) < 0 ||
	     json_set_string(object, "kernel", ready->release) < 0 ||
	     json_set_string(object, "missing_confinement", ready->missing) < 0)) {
		rc = -ENOMEM;
	}
	if (rc == 0) {
		rc = json_set_child(object, "ports", ports_to_json(up->spec));
	}
	return rc < 0 ? err_context(err, rc, "JSON") : cli_print_json(object, err);
}

static int tell_up(const struct cli_args *args, const struct up *up, struct err *err)
{
	if (cli_has(args, "json")) {
		return print_up_json(up, err);
	}
	if (up->already) {
		printf("%s is up already\n", up->name);
		print_ports(stdout, up->name, up->spec);
	} else {
		cli_print_up(stdout, up->name, up->spec, &up->ready, up->took_ns);
	}
	return EXIT_OK;
}

/*
 * There is one already, which may still be starting or be on its way down. Waits until it is the
 * one or the other: 0 when it is up, 1 when it has gone, or a negative errno with err filled.
 */
static int await_other(struct store *store, const char *name, struct err *err)
{
	for (int i = 0; i < OTHER_TRIES; i++) {
		_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
		_cleanup_(json_freep) struct json *listing = NULL;
		struct err failed = {0};
		int rc = cli_connect_and_list(name, store, &machine, &listing, &failed);
		const char *state = json_get_string(listing, "state");

		if (rc == -ENOENT || rc == -EPIPE ||
		    (rc < 0 && strcmp(failed.code, "went-down") == 0)) {
			return 1;
		}
		if (rc < 0) {
			*err = failed;
			return rc;
		}
		if (state && strcmp(state, "up") == 0) {
			return 0;
		}
		poll(NULL, 0, OTHER_STEP_MS);
	}
	err_set(err, -ETIMEDOUT, "busy", "%s neither comes up nor goes down", name);
	err_mend(err, "`box down %s` ends it", name);
	return -ETIMEDOUT;
}

int cli_ensure_up(struct store *store, const char *name, const struct client_start_options *options,
		  struct ipc_ready *ret_ready, struct err *err)
{
	for (int i = 0; i < UP_TRIES; i++) {
		struct err failed = {0};
		int rc = client_up(store, name, options, ret_ready, &failed);

		if (rc != -EALREADY) {
			if (rc < 0) {
				*err = failed;
			}
			return rc;
		}
		rc = await_other(store, name, err);
		if (rc <= 0) {
			return rc < 0 ? rc : -EALREADY;
		}
	}
	err_set(err, -EBUSY, "busy", "%s goes up and down all the time", name);
	err_mend(err, "look which other commands use it");
	return -EBUSY;
}

int cli_up(const struct cli_args *args, struct err *err)
{
	struct run_job job;
	struct up up = {.name = args->operands[0]};
	struct client_start_options options = {
		.mode = IPC_START_RUN,
		.stage = "",
		.force_boot = cli_has(args, "cold"),
		.notice = run_notice,
	};
	uint64_t began = clock_monotonic_ns();
	int rc;

	run_job_init(&job, args);
	rc = run_prepare(&job, err);
	if (rc == 0) {
		options.data = job.data;
		up.spec = job.spec;
		rc = cli_ensure_up(&job.store, up.name, &options, &up.ready, err);
		up.took_ns = clock_monotonic_ns() - began;
		up.already = rc == -EALREADY;
		if (rc == 0 || up.already) {
			rc = tell_up(args, &up, err);
		}
	}
	run_job_free(&job);
	return rc;
}

int cli_down(const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0];
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	uint64_t began = clock_monotonic_ns();
	int drained = 0;
	int rc = store_open(false, &store, err);

	if (rc < 0) {
		return rc;
	}
	rc = client_down(&store, name, err);
	if (rc < 0) {
		return rc;
	}
	if (cli_has(args, "pool")) {
		drained = client_pool_drain(&store, name, err);
		if (drained < 0) {
			return drained;
		}
	}
	if (rc > 0) {
		printf("%s is down (took %.2f s)\n", name,
		       (double)(clock_monotonic_ns() - began) / 1e9);
	} else {
		printf("%s is not up\n", name);
	}
	if (cli_has(args, "pool")) {
		printf("%d machine%s kept ready ended\n", drained, drained == 1 ? "" : "s");
	}
	return EXIT_OK;
}

int cli_forward(const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0];
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	_cleanup_close_ int listen_fd = -EBADF;
	struct spec_port port;
	uint16_t taken = 0;
	bool six;
	int rc = spec_parse_port(args->operands[1], &port, err);

	if (rc == 0) {
		rc = store_open(false, &store, err);
	}
	if (rc == 0) {
		rc = client_connect(&store, name, &machine, err);
	}
	if (rc < 0) {
		return rc;
	}
	listen_fd = ipc_tcp_listen(port.address, port.host, &taken, err);
	if (listen_fd < 0) {
		return listen_fd;
	}
	six = strchr(port.address, ':') != NULL;
	printf("%s%s%s:%u -> %s:%u\n", six ? "[" : "", port.address, six ? "]" : "", taken, name,
	       port.guest);
	/* Whoever reads it in a script needs the port now, not when we end. */
	if (fflush(stdout) != 0) {
		return err_context(err, -errno, "standard output");
	}
	return client_forward(machine, listen_fd, port.guest, err);
}
