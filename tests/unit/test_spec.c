#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "policy/network.h"
#include "spec/spec.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define TIB ((uint64_t)1 << 40)

static struct spec *parse(const char *text)
{
	struct spec *spec = NULL;
	struct err err = {0};
	int rc = spec_parse(text, strlen(text), "Boxfile", &spec, &err);

	if (rc < 0) {
		print_error("%s\n", err.text);
	}
	assert_int_equal(rc, 0);
	assert_non_null(spec);
	return spec;
}

/* What is said when no word is near. */
#define GENERAL_MEND "`box help boxfile` tells what each key takes"

/* The text is refused with exactly this message; mend may be NULL: none is looked for. */
static void refused_bytes(const char *text, size_t size, const char *message, const char *mend)
{
	struct spec *spec = NULL;
	struct err err = {0};

	assert_int_equal(spec_parse(text, size, "B", &spec, &err), -EINVAL);
	assert_null(spec);
	assert_string_equal(err.text, message);
	assert_string_equal(err.code, "bad-boxfile");
	if (mend) {
		assert_string_equal(err.mend, mend);
	}
	/* The message is not needed for the refusal. */
	assert_int_equal(spec_parse(text, size, "B", &spec, NULL), -EINVAL);
}

static void refused(const char *text, const char *message, const char *mend)
{
	refused_bytes(text, strlen(text), message, mend);
}

/* The text is refused and the message begins so. */
static void refused_at(const char *text, const char *beginning)
{
	struct spec *spec = NULL;
	struct err err = {0};
	int rc = spec_parse(text, strlen(text), "B", &spec, &err);

	if (rc != -EINVAL || strncmp(err.text, beginning, strlen(beginning)) != 0) {
		print_error("%s\ngave %d \"%s\", not \"%s\"\n", text, rc, err.text, beginning);
	}
	assert_int_equal(rc, -EINVAL);
	assert_memory_equal(err.text, beginning, strlen(beginning));
}

static void test_defaults(void **state)
{
	static const char *const texts[] = {
		"",
		"\n\n",
		"# nothing\n",
		"---\n",
		"--- ~\n...\n",
		"\xef\xbb\xbf# mark\n",
		"%YAML 1.1\n---\n",
		"base:\ncpus:\nnetwork: ~\nrun: null\nblueprint:\n  users:\n",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		_cleanup_(spec_freep) struct spec *spec = parse(texts[i]);

		assert_string_equal(spec->base, "debian/bookworm");
		assert_int_equal(spec->base_kind, SPEC_BASE_DEBIAN);
		assert_string_equal(spec->base_value, "bookworm");
		assert_int_equal(spec->cpus, 2);
		assert_int_equal(spec->ram_mib, 1024);
		assert_true(spec->disk_size_bytes == 8 * GIB);
		assert_true(spec->data_size_bytes == 10 * GIB);
		assert_int_equal(spec->network.kind, SPEC_NETWORK_NONE);
		assert_int_equal(spec->isolation, SPEC_ISOLATION_STRICT);
		assert_int_equal(spec->engine, SPEC_ENGINE_AUTO);
		assert_false(spec->readonly);
		assert_false(spec->secrets);
		assert_int_equal(spec->timeout_seconds, 0);
		assert_int_equal(spec->warm, 0);
		assert_int_equal(spec->warm_idle_seconds, 1800);
		assert_int_equal(spec->log_output, SPEC_LOG_TAIL);
		assert_string_equal(spec->user, "root");
		assert_int_equal(spec->warmup_count + spec->package_count + spec->run_count +
					 spec->env_count + spec->user_count + spec->file_count +
					 spec->runcmd_count + spec->mount_count +
					 spec->seccomp_count + spec->notice_count,
				 0);
		assert_null(spec->run);
		assert_int_equal(spec_check_available(spec, "B", NULL), 0);
	}
}

static void test_scalars(void **state)
{
	_cleanup_(spec_freep) struct spec *spec = parse(
		"cpus: 16\nram_mib: 128\ndisk_size: 64M\ndata_size: 16777216\n"
		"isolation: standard\nengine: qemu\nreadonly: Yes\ntimeout_seconds: 31536000\n"
		"warm: 8\nuser: agent\n");
	_cleanup_(spec_freep) struct spec *upper =
		parse("{cpus: 1, ram_mib: 1048576, disk_size: 16T, data_size: '16TiB',"
		      " isolation: strict, engine: kvm, readonly: off, secrets: {a: [b]}}");

	(void)state;
	assert_int_equal(spec->cpus, 16);
	assert_int_equal(spec->ram_mib, 128);
	assert_true(spec->disk_size_bytes == 64 * MIB);
	assert_true(spec->data_size_bytes == 16 * MIB);
	assert_int_equal(spec->isolation, SPEC_ISOLATION_STANDARD);
	assert_int_equal(spec->engine, SPEC_ENGINE_QEMU);
	assert_true(spec->readonly);
	assert_int_equal(spec->timeout_seconds, 31536000);
	assert_int_equal(spec->warm, 8);
	assert_string_equal(spec->user, "agent");
	assert_int_equal(upper->cpus, 1);
	assert_int_equal(upper->ram_mib, 1048576);
	assert_true(upper->disk_size_bytes == 16 * TIB);
	assert_true(upper->data_size_bytes == 16 * TIB);
	assert_int_equal(upper->isolation, SPEC_ISOLATION_STRICT);
	assert_int_equal(upper->engine, SPEC_ENGINE_KVM);
	assert_false(upper->readonly);
	assert_true(upper->secrets);
}

static void test_scalar_limits(void **state)
{
	(void)state;
	refused("cpus: 0", "B:1:7: cpus: \"0\" is not within 1 and 16", NULL);
	refused("cpus: 17", "B:1:7: cpus: \"17\" is not within 1 and 16", NULL);
	refused("\ncpus: two", "B:2:7: cpus: \"two\" is not a whole number", NULL);
	refused_at("cpus: -1", "B:1:7: cpus: \"-1\" is not a whole");
	refused_at("cpus: 02", "B:1:7: cpus: \"02\" is not a whole");
	refused_at("cpus: 0x2", "B:1:7: cpus: \"0x2\" is not a whole");
	refused_at("cpus: 1.0", "B:1:7: cpus: \"1.0\" is not a whole");
	refused_at("cpus: 1_0", "B:1:7: cpus: \"1_0\" is not a whole");
	refused_at("cpus: ''", "B:1:7: cpus: \"\" is not a whole");
	refused_at("cpus: 18446744073709551618", "B:1:7: cpus: \"18446744073709551618\" is not w");
	refused_at("cpus: [1]", "B:1:7: cpus must be a single value, not a list");
	refused_at("cpus: {a: b}", "B:1:7: cpus must be a single value, not a map");
	refused_at("ram_mib: 127", "B:1:10: ram_mib: \"127\" is not within 128 and 1048576");
	refused_at("ram_mib: 1048577", "B:1:10: ram_mib: \"1048577\" is not within");
	refused_at("ram_mib: 2G", "B:1:10: ram_mib: \"2G\" is not a whole number");
	refused_at("warm: 9", "B:1:7: warm: \"9\" is not within 0 and 8");
	refused_at("timeout_seconds: 31536001", "B:1:18: timeout_seconds: \"31536001\" is not wi");
	refused_at("readonly: maybe", "B:1:11: readonly: \"maybe\" is neither true nor false");
	refused_at("user: Root", "B:1:7: user: \"Root\" is not a user");
	refused_at("user: 0abc", "B:1:7: user: ");
	refused_at("user: a23456789012345678901234567890123", "B:1:7: user: ");
	refused("engine: qemo", "B:1:9: engine: \"qemo\" is none of auto, kvm, qemu",
		"did you mean \"qemu\"?");
	refused("isolation: strickt", "B:1:12: isolation: \"strickt\" is none of strict, standard",
		"did you mean \"strict\"?");
	refused("network: brigde", "B:1:10: network: \"brigde\" is none of none, bridge",
		"did you mean \"bridge\"?");
	refused("network: zzzzzz", "B:1:10: network: \"zzzzzz\" is none of none, bridge",
		GENERAL_MEND);
}

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{"512M", 512 * MIB}, {"8G", 8 * GIB},	   {"10GiB", 10 * GIB},
		{"10GB", 10 * GIB},  {"10Gi", 10 * GIB},   {"8g", 8 * GIB},
		{"1T", TIB},	     {"16384K", 16 * MIB}, {"67108864", 64 * MIB},
	};
	static const char *const bad[] = {"G",	 "8X",	 "8GG", "8 G", "1.5G",
					  "-8G", "8Gib", "8iB", "08G"};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		_cleanup_(spec_freep) struct spec *spec = NULL;
		char text[64];

		snprintf(text, sizeof(text), "data_size: %s", good[i].text);
		spec = parse(text);
		assert_true(spec->data_size_bytes == good[i].bytes);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		char text[64], message[128];

		snprintf(text, sizeof(text), "data_size: %s", bad[i]);
		snprintf(message, sizeof(message), "B:1:12: data_size: \"%s\" is not a size",
			 bad[i]);
		refused_at(text, message);
	}
	refused("data_size: 16777215",
		"B:1:12: data_size: \"16777215\" is not within 16.0 MiB and 16.0 TiB", NULL);
	refused_at("data_size: 17T", "B:1:12: data_size: \"17T\" is not within");
	refused_at("data_size: 18446744073709551615T", "B:1:12: data_size: ");
	refused_at("data_size: 999999999999999999999999999999999999999", "B:1:12: data_size: ");
	refused_at("data_size: 16777217", "B:1:12: data_size: \"16777217\" is not a multiple");
	refused_at("disk_size: 63M", "B:1:12: disk_size: \"63M\" is not within 64.0 MiB and");
}

static void test_base(void **state)
{
	static const struct {
		const char *text;
		enum spec_base_kind kind;
		const char *value;
	} good[] = {
		{"tiny", SPEC_BASE_TINY, ""},
		{"debian/trixie", SPEC_BASE_DEBIAN, "trixie"},
		{"tar:/a/b c.tar", SPEC_BASE_TAR, "/a/b c.tar"},
		{"dir:rootfs", SPEC_BASE_DIR, "rootfs"},
		{"oci:/x", SPEC_BASE_OCI, "/x"},
		{"docker.io/library/alpine:3.20", SPEC_BASE_OCI, "docker.io/library/alpine:3.20"},
		{"localhost/a", SPEC_BASE_OCI, "localhost/a"},
		{"registry:5000/a/b@sha256:00ff", SPEC_BASE_OCI, "registry:5000/a/b@sha256:00ff"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		_cleanup_(spec_freep) struct spec *spec = NULL;
		char text[64];

		snprintf(text, sizeof(text), "base: %s", good[i].text);
		spec = parse(text);
		assert_string_equal(spec->base, good[i].text);
		assert_int_equal(spec->base_kind, good[i].kind);
		assert_string_equal(spec->base_value, good[i].value);
	}
	refused("base: debian/bookwurm;x",
		"B:1:7: base: \"debian/bookwurm;x\" is not a suite of Debian (such as "
		"debian/bookworm)",
		"did you mean \"debian/bookworm\"?");
	refused("base: tinny", "B:1:7: base: \"tinny\" is not a base", "did you mean \"tiny\"?");
	refused("base: debian", "B:1:7: base: \"debian\" is not a base",
		"did you mean \"debian/bookworm\"?");
	refused_at("base: alpine:3.20", "B:1:7: base: \"alpine:3.20\" is not a base");
	refused_at("base: library/alpine", "B:1:7: base: ");
	refused_at("base: docker.io/a b", "B:1:7: base: ");
	refused_at("base: docker.io/../b", "B:1:7: base: ");
	refused_at("base: ''", "B:1:7: base: \"\" is not a base");
	refused_at("base: 'tar:'", "B:1:7: base: \"tar:\" is empty");
	refused_at("base: \"dir:a\\nb\"", "B:1:7: base: \"dir:a\\nb\" has a control character");
	refused_at("base: \"dir:a\\u009bb\"",
		   "B:1:7: base: \"dir:a\\xc2\\x9bb\" has a control character");
	refused_at("base: debian/", "B:1:7: base: ");
	refused_at("base: [tiny]", "B:1:7: base must be a single value");
	refused("base: tiny\npackages: [git]",
		"B:2:11: packages: base: tiny has no package manager", NULL);
}

static void test_shape(void **state)
{
	(void)state;
	refused("pakages: []", "B:1:1: unknown key \"pakages\" in a Boxfile",
		"did you mean \"packages\"?");
	refused("# x\n\n  timeout: 3", "B:3:3: unknown key \"timeout\" in a Boxfile",
		"did you mean \"timeout_seconds\"?");
	refused("zzzzzzzz: 3", "B:1:1: unknown key \"zzzzzzzz\" in a Boxfile", GENERAL_MEND);
	refused("\"a\\e[2J\\n\": 3", "B:1:1: unknown key \"a\\e[2J\\n\" in a Boxfile", NULL);
	refused("cpus: 1\nbase: tiny\ncpus: 2",
		"B:3:1: the key \"cpus\" stands twice, first in line 1", NULL);
	refused("env: {A: 1, A: 2}", "B:1:13: the key \"A\" stands twice, first in line 1", NULL);
	refused("cpus: &a 1", "B:1:7: anchors are not allowed", NULL);
	refused("run: &a [x]", "B:1:6: anchors are not allowed", NULL);
	refused("env: &a {A: b}", "B:1:6: anchors are not allowed", NULL);
	refused("cpus: *a", "B:1:7: aliases are not allowed", NULL);
	refused("<<: *a", "B:1:5: aliases are not allowed", NULL);
	refused("cpus: !!int 1", "B:1:7: tags are not allowed", NULL);
	refused("cpus: ! 1", "B:1:7: tags are not allowed", NULL);
	refused("run: !x [a]", "B:1:6: tags are not allowed", NULL);
	refused("!x {cpus: 1}", "B:1:1: tags are not allowed", NULL);
	refused("%TAG ! tag:x,1:\n---\ncpus: 1", "B:1:1: tags are not allowed", NULL);
	refused("cpus: 1\n---\ncpus: 2", "B:2:1: a second document begins; a Boxfile is one", NULL);
	refused("- cpus", "B:1:1: a Boxfile must be a map, not a list", NULL);
	refused("cpus", "B:1:1: a Boxfile must be a map, not a single value", NULL);
	refused("[a]: b", "B:1:1: a key must be a word, not a list or a map", NULL);
	refused("? {a: b}\n: c", "B:1:3: a key must be a word, not a list or a map", NULL);
	refused_at("cpus: [", "B:2:1: did not find");
	refused_at("cpus: 1: 2", "B:1:8: mapping values are not allowed");
	refused_at("cpus: 1\n\tbase: tiny", "B:2:1: ");
	refused("secrets: [[[[[[[[1]]]]]]]]", "B:1:17: nested deeper than 8 levels", NULL);
	refused("cpus: \"\\0\"", "B:1:7: a NUL character is not allowed", NULL);
	refused("run: x", "B:1:6: run must be a list, not a single value", NULL);
	refused("run: {a: b}", "B:1:6: run must be a list, not a map", NULL);
	refused("run: [[a]]", "B:1:7: an item of run must be a single value, not a list", NULL);
	refused("mounts: x", "B:1:9: mounts must be a list, not a single value", NULL);
	refused("blueprint: []", "B:1:12: blueprint must be a map, not a list", NULL);
}

static void test_bytes(void **state)
{
	static const char nul[] = "cpus: 1\n\0";
	_cleanup_free_ char *large = calloc(1, SPEC_FILE_MAX + 1);
	_cleanup_(spec_freep) struct spec *spec = NULL;

	(void)state;
	refused("cpus: 1\n# \xff", "B:2:3: this is not UTF-8 (byte 0xff)", NULL);
	refused("# \xc0\xaf", "B:1:3: this is not UTF-8 (byte 0xc0)", NULL);
	refused("# \xed\xa0\x80", "B:1:3: this is not UTF-8 (byte 0xed)", NULL);
	/* Columns are counted in characters, not bytes. */
	refused("# \xc3\xa4\xc3\xb6\x1b", "B:1:5: control character 0x1b", NULL);
	refused("# \xc2\x9b", "B:1:3: control character 0x9b", NULL);
	refused_bytes(nul, sizeof(nul) - 1, "B:2:1: control character 0x00", NULL);
	refused_bytes("\xff\xfe"
		      "c\0p\0",
		      6, "B:1:1: this is not UTF-8 (byte 0xff)", NULL);
	assert_non_null(large);
	memset(large, '#', SPEC_FILE_MAX + 1);
	refused_bytes(large, SPEC_FILE_MAX + 1, "B:1:1: larger than 1048576 bytes", NULL);
	assert_int_equal(spec_parse(large, SPEC_FILE_MAX, "B", &spec, NULL), 0);
}

/* Writes count times the item, formatted with its number, between head and tail. */
static char *repeat(const char *head, size_t count, const char *item)
{
	char *text = NULL;
	size_t size;
	FILE *stream = open_memstream(&text, &size);

	assert_non_null(stream);
	fputs(head, stream);
	for (size_t i = 0; i < count; i++) {
		fprintf(stream, "%s%zu\n", item, i);
	}
	assert_int_equal(fclose(stream), 0);
	return text;
}

static void test_counts(void **state)
{
	static const struct {
		const char *head;
		const char *item;
		size_t limit;
		const char *message;
	} lists[] = {
		{"run:\n", "- x", 256, "run: more than 256 items"},
		{"packages:\n", "- x", 4096, "more than 4096 entries"},
		{"seccomp:\n", "- x", 512, "seccomp: more than 512 items"},
		{"blueprint:\n  runcmd:\n", "  - x", 256, "more than 256 commands"},
		{"blueprint:\n  users:\n", "  - x", 32, "more than 32 users"},
		{"blueprint:\n  write_files:\n", "  - path: /a", 256, "more than 256 files"},
		{"mounts:\n", "- host: /a\n  guest: /b", 16, "more than 16 mounts"},
		{"network:\n  allow:\n", "  - x", 1024, "allow: more than 1024 items"},
		{"network:\n  ports:\n", "  - 1:1", 64, "ports: more than 64 items"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		_cleanup_(spec_freep) struct spec *spec = NULL;
		_cleanup_free_ char *full = repeat(lists[i].head, lists[i].limit, lists[i].item);
		_cleanup_free_ char *over =
			repeat(lists[i].head, lists[i].limit + 1, lists[i].item);
		struct err err = {0};

		spec = parse(full);
		spec_free(TAKE_PTR(spec));
		assert_int_equal(spec_parse(over, strlen(over), "B", &spec, &err), -EINVAL);
		assert_non_null(strstr(err.text, lists[i].message));
	}
}

static void test_many_nodes(void **state)
{
	_cleanup_free_ char *text = NULL;
	size_t size;
	FILE *stream = open_memstream(&text, &size);

	(void)state;
	assert_non_null(stream);
	fputs("secrets:\n", stream);
	for (int i = 0; i < 20; i++) {
		fprintf(stream, "  k%d: [", i);
		for (int j = 0; j < 4000; j++) {
			fputs("a,", stream);
		}
		fputs("]\n", stream);
	}
	assert_int_equal(fclose(stream), 0);
	/* 17th line: 16 lists with all that is around them fit. */
	refused_at(text, "B:18:");
}

static void test_lists(void **state)
{
	_cleanup_(spec_freep) struct spec *spec = parse(
		"packages: [git, g++, 'libc6:amd64', 'python3=3.11.2-1+b1', r-base:arm64=1:4~rc]\n"
		"run:\n- echo a\n- |\n  if true; then\n  \techo b\n  fi\n"
		"warmup: ['true']\n"
		"env: {B: x y, A: '1', C: , _d0: \"a\\tb=c\"}\n"
		"seccomp: [ptrace, _llseek]\n");
	_cleanup_(spec_freep) struct spec *list = parse("env: [B=1, A=, 'C=a=b']");

	(void)state;
	assert_int_equal(spec->package_count, 5);
	assert_string_equal(spec->packages[1], "g++");
	assert_string_equal(spec->packages[4], "r-base:arm64=1:4~rc");
	assert_int_equal(spec->run_count, 2);
	assert_string_equal(spec->run[0], "echo a");
	assert_string_equal(spec->run[1], "if true; then\n\techo b\nfi\n");
	assert_int_equal(spec->warmup_count, 1);
	assert_string_equal(spec->warmup[0], "true");
	assert_int_equal(spec->env_count, 4);
	assert_string_equal(spec->env[0], "B=x y");
	assert_string_equal(spec->env[1], "A=1");
	assert_string_equal(spec->env[2], "C=");
	assert_string_equal(spec->env[3], "_d0=a\tb=c");
	assert_int_equal(spec->seccomp_count, 2);
	assert_string_equal(spec->seccomp[1], "_llseek");
	assert_int_equal(list->env_count, 3);
	assert_string_equal(list->env[0], "B=1");
	assert_string_equal(list->env[1], "A=");
	assert_string_equal(list->env[2], "C=a=b");
}

static void test_bad_lists(void **state)
{
	static const char *const packages[] = {
		"Git",	 "-x",	  "a b",   "a;b", "$x", "a=",	     "a:",	 "a=b c",
		"a/sid", "a=1=2", "a:b:c", "",	  "a*", "a\xc3\xa4", "../a.deb", "a=1;x",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(packages); i++) {
		char text[64];

		snprintf(text, sizeof(text), "packages: ['%s']", packages[i]);
		refused_at(text, "B:1:12: packages: \"");
	}
	refused("packages: [git-]",
		"B:1:12: packages: \"git-\" ends with -, which would remove the package", NULL);
	refused("run: ['']", "B:1:7: run: \"\" is empty", NULL);
	refused("run:\n-\n", "B:2:2: run: \"\" is empty", NULL);
	refused("run: [\"a\\rb\"]", "B:1:7: run: \"a\\rb\" has a control character in it", NULL);
	refused_at("warmup: [\"\\x7f\"]", "B:1:10: warmup: \"\\x7f\" has a control");
	refused("env: [A]", "B:1:7: env: \"A\" is not KEY=VALUE", NULL);
	refused_at("env: [=a]", "B:1:7: env: \"\" has a key that is no identifier");
	refused_at("env: [1A=a]", "B:1:7: env: \"1A\" has a key that is no identifier");
	refused_at("env: ['A B=a']", "B:1:7: env: \"A B\" has a key that is no identifier");
	refused_at("env: {A-B: a}", "B:1:7: env: \"A-B\" has a key that is no identifier");
	refused_at("env: {A=B: a}", "B:1:7: env: \"A=B\" has a key that is no identifier");
	refused("env: [A=1, A=2]", "B:1:12: env: A stands twice", NULL);
	refused("env: {A: [b]}", "B:1:10: a value of env must be a single value, not a list", NULL);
	refused("env: A=b", "B:1:6: env must be a map (KEY: VALUE) or a list (KEY=VALUE)", NULL);
	/* The value may be a secret: it is not in the message. */
	refused("env: {A: \"hush\\n\"}", "B:1:7: env: \"A\" has a newline in its value", NULL);
	refused("env: {A: \"hush\\e\"}", "B:1:7: env: \"A\" has a control character in its value",
		NULL);
	refused_at("seccomp: [Ptrace]", "B:1:11: seccomp: \"Ptrace\" is not the name");
	refused_at("seccomp: [1a]", "B:1:11: seccomp: ");
}

static void test_long_values(void **state)
{
	_cleanup_free_ char *text = malloc(70000);
	struct spec *spec = NULL;

	(void)state;
	assert_non_null(text);
	memset(text, 'a', 70000);
	memcpy(text, "run: [", 6);
	memcpy(text + 6 + 65536, "]", 2);
	assert_int_equal(spec_parse(text, strlen(text), "B", &spec, NULL), 0);
	spec_free(TAKE_PTR(spec));
	memcpy(text + 6 + 65536, "a]", 3);
	assert_int_equal(spec_parse(text, strlen(text), "B", &spec, NULL), -EINVAL);
	memset(text, 'a', 70000);
	memcpy(text, "env: [A=", 8);
	memcpy(text + 6 + 32768, "]", 2);
	assert_int_equal(spec_parse(text, strlen(text), "B", &spec, NULL), 0);
	spec_free(TAKE_PTR(spec));
	memcpy(text + 6 + 32768, "a]", 3);
	assert_int_equal(spec_parse(text, strlen(text), "B", &spec, NULL), -EINVAL);
}

static void test_blueprint(void **state)
{
	_cleanup_(spec_freep) struct spec *spec = parse(
		"blueprint:\n"
		"  users:\n"
		"  - name: anna\n    uid: 1000\n    shell: /bin/bash\n    groups: [video, audio]\n"
		"  - {name: bert, groups: 'a, b,c', sudo: 'ALL=(ALL)', lock_passwd: true}\n"
		"  - carl\n  - default\n"
		"  write_files:\n"
		"  - path: /etc/motd\n    content: |\n      hello\n        there\n"
		"    permissions: '0600'\n    owner: anna:users\n"
		"  - {path: /etc/empty, mode: 755, encoding: text/plain}\n"
		"  runcmd:\n"
		"  - echo \"$HOME\"\n"
		"  - [echo, \"it's\", '$HOME', '', a/b-c]\n"
		"  packages: [git]\n"
		"packages: [vim]\n");

	(void)state;
	assert_int_equal(spec->user_count, 3);
	assert_string_equal(spec->users[0].name, "anna");
	assert_int_equal(spec->users[0].uid, 1000);
	assert_string_equal(spec->users[0].shell, "/bin/bash");
	assert_int_equal(spec->users[0].group_count, 2);
	assert_string_equal(spec->users[0].groups[1], "audio");
	assert_string_equal(spec->users[1].name, "bert");
	assert_int_equal(spec->users[1].uid, 0);
	assert_null(spec->users[1].shell);
	assert_int_equal(spec->users[1].group_count, 3);
	assert_string_equal(spec->users[1].groups[2], "c");
	assert_string_equal(spec->users[2].name, "carl");
	assert_int_equal(spec->file_count, 2);
	assert_string_equal(spec->files[0].path, "/etc/motd");
	assert_string_equal(spec->files[0].content, "hello\n  there\n");
	assert_int_equal(spec->files[0].mode, 0600);
	assert_string_equal(spec->files[0].owner, "anna:users");
	assert_string_equal(spec->files[1].content, "");
	assert_int_equal(spec->files[1].mode, 0755);
	assert_null(spec->files[1].owner);
	assert_int_equal(spec->runcmd_count, 2);
	assert_string_equal(spec->runcmd[0], "echo \"$HOME\"");
	assert_string_equal(spec->runcmd[1], "echo 'it'\\''s' '$HOME' '' a/b-c");
	assert_int_equal(spec->package_count, 2);
	assert_int_equal(spec->notice_count, 3);
	assert_string_equal(spec->notices[0],
			    "Boxfile:7:42: sudo of a user has no meaning here and "
			    "is ignored");
}

#define USERS "blueprint: {users: "
#define FILES "blueprint: {write_files: "

static void test_bad_blueprint(void **state)
{
	(void)state;
	refused("blueprint: {user: x}", "B:1:13: unknown key \"user\" in blueprint",
		"did you mean \"users\"?");
	refused(USERS "[{uid: 3}]}", "B:1:21: a user needs a name", NULL);
	refused(USERS "[root]}", "B:1:21: root is there already", NULL);
	refused(USERS "[a, a]}", "B:1:24: the user \"a\" stands twice", NULL);
	refused(USERS "[{name: a, uid: 5}, {name: b, uid: 5}]}",
		"B:1:40: \"a\" and \"b\" have one uid", NULL);
	refused_at(USERS "[{name: a, uid: 0}]}", "B:1:36: uid: \"0\" is not within 1 and 59999");
	refused_at(USERS "[{name: a, uid: 60000}]}", "B:1:36: uid: ");
	refused_at(USERS "[{name: a, shell: sh}]}",
		   "B:1:38: shell: \"sh\" is not an absolute path");
	refused_at(USERS "[{name: a, groups: 'A'}]}", "B:1:39: groups: \"A\" is not a user");
	refused_at(USERS "[{name: a, groups: [a b]}]}", "B:1:40: groups: \"a b\" is not a user");
	refused(USERS "[{nmae: a}]}", "B:1:22: unknown key \"nmae\" in a user",
		"did you mean \"name\"?");
	refused(FILES "[{content: a}]}", "B:1:27: a file needs a path", NULL);
	refused(FILES "[/a]}", "B:1:27: a file must be a map, not a single value", NULL);
	refused_at(FILES "[{path: a}]}", "B:1:34: path: \"a\" is not an absolute path");
	refused_at(FILES "[{path: /}]}", "B:1:34: path: \"/\" has an empty part");
	refused_at(FILES "[{path: /a/../b}]}", "B:1:34: path: \"/a/../b\" has an empty part");
	refused_at(FILES "[{path: /a/./b}]}", "B:1:34: path: \"/a/./b\" has an empty part");
	refused_at(FILES "[{path: /a//b}]}", "B:1:34: path: \"/a//b\" has an empty part");
	refused_at(FILES "[{path: /a/}]}", "B:1:34: path: \"/a/\" has an empty part");
	refused_at(FILES "[{path: /a b}]}", "B:1:34: path: \"/a b\" has a character");
	refused_at(FILES "[{path: /a, mode: 8}]}", "B:1:44: mode: \"8\" is not an octal mode");
	refused_at(FILES "[{path: /a, mode: 4755}]}", "B:1:44: mode: \"4755\" is not an octal");
	refused_at(FILES "[{path: /a, mode: 'rwx'}]}", "B:1:44: mode: \"rwx\" is not an octal");
	refused_at(FILES "[{path: /a, owner: 'A'}]}", "B:1:45: owner: \"A\" is not USER");
	refused_at(FILES "[{path: /a, owner: 'a:'}]}", "B:1:45: owner: \"a:\" is not USER");
	refused_at(FILES "[{path: /a, owner: 'a:b:c'}]}", "B:1:45: owner: ");
	refused_at(FILES "[{path: /a, encoding: b64}]}", "B:1:48: encoding: \"b64\" is none of");
	refused_at(FILES "[{path: /a, mode: 644, permissions: 644}]}", "B:1:27: permissions and");
	refused_at("blueprint: {runcmd: [[]]}", "B:1:22: runcmd: the command is empty");
	refused_at("blueprint: {runcmd: [{a: b}]}", "B:1:22: a command must be a single value");
	refused_at("blueprint: {runcmd: [[[a]]]}", "B:1:23: an argument of runcmd must be");
	refused_at("blueprint: {runcmd: [[a, \"\\b\"]]}", "B:1:22: runcmd: the command has a");
}

static void test_network(void **state)
{
	_cleanup_(spec_freep) struct spec *bridge = parse("network: bridge");
	_cleanup_(spec_freep) struct spec *spec =
		parse("network:\n  allow: [pypi.org, '*.pythonhosted.org:443', 'github.com:443',\n"
		      "          10.1.2.3, '10.1.2.3:80', localhost, a-b.c1]\n"
		      "  deny: ['*.evil.example']\n"
		      "  reach: [10.0.0.0/8, 'fd00::/8', 192.168.1.1]\n"
		      "  ports: ['127.0.0.1:8080:80', '80:80', '[::1]:1:65535', 'localhost:1:1']\n"
		      "  limits: {connections: 65536, bytes: 1G}\n");

	(void)state;
	assert_int_equal(bridge->network.kind, SPEC_NETWORK_BRIDGE);
	assert_int_equal(spec->network.kind, SPEC_NETWORK_LIST);
	assert_int_equal(spec->network.allow_count, 7);
	assert_string_equal(spec->network.allow[1], "*.pythonhosted.org:443");
	assert_int_equal(spec->network.deny_count, 1);
	assert_int_equal(spec->network.reach_count, 3);
	assert_string_equal(spec->network.reach[1], "fd00::/8");
	assert_int_equal(spec->network_port_count, 4);
	assert_int_equal(spec->network.connections_max, 65536);
	assert_true(spec->network.bytes_max == GIB);
}

/* Ports alone are no network, and a machine with one has a device more. */
static void test_has_network(void **state)
{
	static const struct {
		const char *text;
		bool has;
		enum policy_kind kind;
	} cases[] = {
		{"cpus: 1", false, POLICY_NONE},
		{"network: none", false, POLICY_NONE},
		{"network: {}", false, POLICY_LIST},
		{"network: {ports: ['1:1']}", false, POLICY_LIST},
		{"network: bridge", true, POLICY_BRIDGE},
		{"network: {allow: [a.b]}", true, POLICY_LIST},
		{"network: {deny: [a.b]}", true, POLICY_LIST},
		{"network: {reach: [10.0.0.0/8]}", true, POLICY_LIST},
		{"network: {limits: {bytes: 1}}", true, POLICY_LIST},
		{"network: {limits: {connections: 1}}", true, POLICY_LIST},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(spec_freep) struct spec *spec = parse(cases[i].text);
		_cleanup_free_ struct policy_network *policy = NULL;
		_cleanup_free_ char *key = NULL;

		assert_int_equal(spec_has_network(spec), cases[i].has);
		assert_int_equal(spec_snapshot_key(spec, &key), 0);
		assert_non_null(
			strstr(key, cases[i].has ? "network=\"true\"\n" : "network=\"false\"\n"));
		assert_int_equal(spec_make_policy(&spec->network, &policy, NULL), 0);
		assert_int_equal(policy->kind, cases[i].kind);
	}
}

static void test_policy(void **state)
{
	_cleanup_(spec_freep) struct spec *spec =
		parse("network: {allow: [a.b, c.d], deny: ['*.e'], reach: [10.0.0.0/8],\n"
		      "          limits: {connections: 7, bytes: 1K}}");
	_cleanup_free_ struct policy_network *policy = NULL;

	(void)state;
	assert_int_equal(spec_make_policy(&spec->network, &policy, NULL), 0);
	assert_int_equal(policy->rule_count, 4);
	assert_true(policy_decide_name(policy, "c.d", 443).allowed);
	assert_false(policy_decide_name(policy, "x.e", 443).allowed);
	assert_int_equal(policy->connections_max, 7);
	assert_int_equal(policy->bytes_max, 1024);
}

static void test_bad_network(void **state)
{
	static const char *const hosts[] = {
		"",	     "*",
		"*.",	     "a..b",
		".a",	     "a:",
		"a:0",	     "a:65536",
		"a:80:80",   "a b",
		"http://a",  "a/b",
		"**.a",	     "a.*.b",
		"1.2.3",     "300.1.1.1",
		"*.1.2.3.4", "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg.a",
	};
	static const char *const ranges[] = {
		"10.0.0.0/33", "10.0.0.0/", "10.0.0.1/8",  "fd00::1/64",  "fd00::/129",
		"10.0/8",      "a/8",	    "10.0.0.0/-1", "10.0.0.0/08", "10.0.0.0/8/8"};
	static const char *const ports[] = {"80",	"0:80",	  "80:0",      "80:65536",
					    "a:80:80",	":80:80", "1.2.3:1:1", "::1:80:80",
					    "[::1:1:1", "80:",	  "[]:1:1",    "1:2:3:4"};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(hosts); i++) {
		char text[128];

		snprintf(text, sizeof(text), "network: {allow: ['%s']}", hosts[i]);
		refused_at(text, "B:1:19: allow: \"");
		snprintf(text, sizeof(text), "network: {deny: ['%s']}", hosts[i]);
		refused_at(text, "B:1:18: deny: \"");
	}
	for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
		char text[128];

		snprintf(text, sizeof(text), "network: {reach: ['%s']}", ranges[i]);
		refused_at(text, "B:1:19: reach: \"");
	}
	for (size_t i = 0; i < ARRAY_SIZE(ports); i++) {
		char text[128];

		snprintf(text, sizeof(text), "network: {ports: ['%s']}", ports[i]);
		refused_at(text, "B:1:19: ports: \"");
	}
	refused_at("network: {reach: [8.8.8.8]}",
		   "B:1:19: reach: 8.8.8.8 does not lie in one reserved range");
	refused_at("network: [a]", "B:1:10: network must be none, bridge or a map");
	refused("network: {alow: [a]}", "B:1:11: unknown key \"alow\" in network",
		"did you mean \"allow\"?");
	refused_at("network: {limits: {connections: 0}}",
		   "B:1:33: connections: \"0\" is not within");
	refused_at("network: {limits: {bytes: 0}}", "B:1:27: bytes: \"0\" is not within");
	refused_at("network: {limits: {byte: 1}}", "B:1:20: unknown key \"byte\" in limits");
}

static void test_mounts(void **state)
{
	_cleanup_(spec_freep) struct spec *spec = parse(
		"mounts:\n- {host: /a b/c, guest: /work}\n- {host: ~/src, guest: /src, mode: rw}\n"
		"isolation: standard");

	(void)state;
	assert_int_equal(spec->mount_count, 2);
	assert_string_equal(spec->mounts[0].host, "/a b/c");
	assert_string_equal(spec->mounts[0].guest, "/work");
	assert_false(spec->mounts[0].writable);
	assert_true(spec->mounts[1].writable);
	refused("mounts: [{host: /a}]", "B:1:10: a mount needs host and guest", NULL);
	refused("mounts: [{guest: /a}]", "B:1:10: a mount needs host and guest", NULL);
	refused_at("mounts: [{host: a, guest: /b}]", "B:1:17: host: \"a\" is neither absolute nor");
	refused_at("mounts: [{host: ~b/c, guest: /b}]", "B:1:17: host: ");
	refused_at("mounts: [{host: /a/../b, guest: /b}]", "B:1:17: host: ");
	refused_at("mounts: [{host: \"/a\\nb\", guest: /b}]", "B:1:17: host: ");
	refused_at("mounts: [{host: /a, guest: b}]",
		   "B:1:28: guest: \"b\" is not an absolute path");
	refused_at("mounts: [{host: /a, guest: /proc/x}]", "B:1:28: guest: \"/proc/x\" is used by");
	refused_at("mounts: [{host: /a, guest: /data}]", "B:1:28: guest: \"/data\" is used by");
	refused_at("mounts: [{host: /a, guest: '/b,x=y'}]", "B:1:28: guest: ");
	refused_at("mounts: [{host: /a, guest: /b}, {host: /c, guest: /b}]",
		   "B:1:51: guest: \"/b\" s");
	refused_at("mounts: [{host: /a, guest: /b, mode: rwx}]",
		   "B:1:38: mode: \"rwx\" is none of");
	refused("mounts: [{host: /a, guest: /b, mode: rw}]\nisolation: strict",
		"B:1:9: mounts: rw is refused under isolation: strict", NULL);
	refused("mounts: [{host: /a, guest: /b, mode: rw}]",
		"B:1:9: mounts: rw is refused under isolation: strict", NULL);
}

static void test_legacy(void **state)
{
	static const char *const backends[] = {"podman", "krun", "firecracker"};
	_cleanup_(spec_freep) struct spec *spec =
		parse("passt: true\npkgmgr: {apt: [a]}\nengine: qemu\n"
		      "backend: krun\n");

	(void)state;
	assert_int_equal(spec->notice_count, 3);
	assert_string_equal(spec->notices[0],
			    "Boxfile:1:8: passt has no meaning here and is ignored");
	assert_string_equal(spec->notices[1],
			    "Boxfile:2:9: pkgmgr has no meaning here and is ignored");
	assert_string_equal(spec->notices[2],
			    "Boxfile:4:10: backend: krun is not there any more; it "
			    "is ignored, and engine decides");
	assert_int_equal(spec->engine, SPEC_ENGINE_QEMU);
	for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
		_cleanup_(spec_freep) struct spec *old = NULL;
		char text[64];

		snprintf(text, sizeof(text), "backend: %s", backends[i]);
		old = parse(text);
		assert_int_equal(old->engine, SPEC_ENGINE_AUTO);
		assert_int_equal(old->notice_count, 1);
	}
	refused("backend: podmann",
		"B:1:10: backend: \"podmann\" is none of podman, krun, firecracker",
		"did you mean \"podman\"?");
}

static void test_available(void **state)
{
	static const struct {
		const char *text;
		const char *message;
	} missing[] = {
		{"secrets: {a: b}", "B: secrets: "},
		{"mounts: [{host: /a, guest: /b}]", "B: mounts: "},
		{"base: docker.io/a/b", "B: base: "},
		{"base: oci:/a", "B: base: "},
		{"engine: kvm", "B: engine: kvm is not available yet; this version has only "},
	};
	static const char *const there[] = {
		"network: none",
		"network: {ports: ['1:1', '[::1]:2:2']}",
		"network: {}",
		"network: bridge",
		"network: {allow: [a.b], deny: [c.d], reach: [10.0.0.0/8]}",
		"warm: 8",
		"warm_idle: 1h",
		"log_output: full",
		"secrets:",
		"mounts: []",
		"warm: 0",
		"isolation: strict",
		"isolation: standard",
		"base: tiny",
		"base: dir:/a",
		"base: tar:/a",
		"engine: qemu",
		"engine: auto",
		"readonly: true",
		"warmup: [a]",
		"user: agent",
		"timeout_seconds: 3",
		"seccomp: [ptrace]",
		"blueprint: {users: [a]}",
		"backend: podman",
		"packages: [a]",
		"run: [a]",
		"env: {A: b}",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(missing); i++) {
		_cleanup_(spec_freep) struct spec *spec = parse(missing[i].text);
		struct err err = {0};

		assert_int_equal(spec_check_available(spec, "B", &err), -ENOTSUP);
		assert_string_equal(err.code, "not-available-yet");
		assert_memory_equal(err.text, missing[i].message, strlen(missing[i].message));
		assert_true(err.mend[0] != '\0');
	}
	for (size_t i = 0; i < ARRAY_SIZE(there); i++) {
		_cleanup_(spec_freep) struct spec *spec = parse(there[i]);

		assert_int_equal(spec_check_available(spec, "B", NULL), 0);
	}
}

static void test_names(void **state)
{
	static const char *const good[] = {
		"a",
		"A",
		"0",
		"a.b",
		"a_b-c",
		"a.",
		"a234567890123456789012345678901234567890123456789012345678901234"};
	static const char *const bad[] = {
		"",    ".",
		"..",  ".a",
		"-a",  "_a",
		"a/b", "a b",
		"a\n", "\xc3\xa4",
		"a:b", "a2345678901234567890123456789012345678901234567890123456789012345"};
	struct err err = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		assert_int_equal(spec_check_name(good[i], NULL), 0);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(spec_check_name(bad[i], &err), -EINVAL);
		assert_string_equal(err.code, "bad-name");
	}
	assert_int_equal(spec_check_name("a\x1b[2J", &err), -EINVAL);
	assert_string_equal(err.text, "\"a\\e[2J\" is not a name");
}

static void test_env(void **state)
{
	static const char *const bad[] = {"",	   "A",	    "=",    "=a",     "1=a",
					  "A B=c", "A\n=b", "A=\n", "A=\x1b", "\xc3\xa4=a"};
	struct err err = {0};

	(void)state;
	assert_int_equal(spec_check_env("A=", NULL), 0);
	assert_int_equal(spec_check_env("_a1=x=y z\t\xc3\xa4", NULL), 0);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(spec_check_env(bad[i], &err), -EINVAL);
	}
	assert_int_equal(spec_check_env("TOKEN=hush\n", &err), -EINVAL);
	assert_string_equal(err.code, "bad-env");
	assert_string_equal(err.text, "the variable \"TOKEN\" has a newline in its value");
}

static void keys_of(const char *text, char **ret_image, char **ret_snapshot)
{
	_cleanup_(spec_freep) struct spec *spec = parse(text);

	assert_int_equal(spec_image_key(spec, ret_image), 0);
	assert_int_equal(spec_snapshot_key(spec, ret_snapshot), 0);
}

static void test_keys(void **state)
{
	/* What changes the image, what only the snapshot, what neither; against an empty file. */
	static const char *const image[] = {
		"base: tiny",
		"packages: [a]",
		"run: [a]",
		"env: {A: b}",
		"blueprint: {users: [a]}",
		"blueprint: {write_files: [{path: /a}]}",
		"blueprint: {runcmd: [a]}",
		"disk_size: 1G",
	};
	static const char *const snapshot[] = {
		"network: bridge", "network: {allow: [a.b]}",
		"cpus: 1",	   "ram_mib: 512",
		"data_size: 1G",   "warmup: [a]",
		"readonly: true",  "engine: qemu",
	};
	static const char *const neither[] = {
		"timeout_seconds: 5",
		"warm: 1",
		"passt: 1",
		"isolation: standard",
		"# x",
		"cpus: 2",
		"data_size: 10G",
		"base: debian/bookworm",
		"packages: []",
		"warm_idle: 1h",
		"log_output: none",
		"network: {ports: ['1:1']}",
	};
	_cleanup_free_ char *image_key = NULL, *snapshot_key = NULL;

	(void)state;
	keys_of("", &image_key, &snapshot_key);
	assert_string_equal(image_key, "base=\"debian/bookworm\"\ndisk_size=\"8589934592\"\n");
	assert_string_equal(snapshot_key,
			    "base=\"debian/bookworm\"\ndisk_size=\"8589934592\"\n"
			    "cpus=\"2\"\nram_mib=\"1024\"\ndata_size=\"10737418240\"\n"
			    "readonly=\"false\"\nengine=\"auto\"\nnetwork=\"false\"\n");
	for (size_t i = 0; i < ARRAY_SIZE(image); i++) {
		_cleanup_free_ char *a = NULL, *b = NULL;

		keys_of(image[i], &a, &b);
		assert_string_not_equal(a, image_key);
		assert_string_not_equal(b, snapshot_key);
	}
	for (size_t i = 0; i < ARRAY_SIZE(snapshot); i++) {
		_cleanup_free_ char *a = NULL, *b = NULL;

		keys_of(snapshot[i], &a, &b);
		assert_string_equal(a, image_key);
		assert_string_not_equal(b, snapshot_key);
	}
	for (size_t i = 0; i < ARRAY_SIZE(neither); i++) {
		_cleanup_free_ char *a = NULL, *b = NULL;

		keys_of(neither[i], &a, &b);
		assert_string_equal(a, image_key);
		assert_string_equal(b, snapshot_key);
	}
}

static void test_key_text(void **state)
{
	_cleanup_free_ char *image = NULL, *snapshot = NULL;

	(void)state;
	keys_of("base: tiny\nrun: [\"a\\nrun=\\\"b\\\"\", 'c\\']\nenv: {A: x}\nblueprint:\n"
		"  users: [{name: u, uid: 7, groups: [g]}]\n"
		"  write_files: [{path: /f, content: \"x\\n\\x01\", owner: u}]\n  runcmd: [[a, b "
		"c]]\n",
		&image, &snapshot);
	assert_string_equal(image, "base=\"tiny\"\nrun=\"a\\nrun=\\\"b\\\"\"\nrun=\"c\\\\\"\n"
				   "env=\"A=x\"\nuser.name=\"u\"\nuser.uid=\"7\"\nuser.shell=\n"
				   "user.group=\"g\"\nfile.path=\"/f\"\nfile.mode=\"0644\"\n"
				   "file.owner=\"u\"\nfile.content=\"x\\n\\x01\"\n"
				   "runcmd=\"a 'b c'\"\ndisk_size=\"8589934592\"\n");
	assert_memory_equal(snapshot, image, strlen(image));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),      cmocka_unit_test(test_scalars),
		cmocka_unit_test(test_scalar_limits), cmocka_unit_test(test_sizes),

		cmocka_unit_test(test_base),	      cmocka_unit_test(test_shape),
		cmocka_unit_test(test_bytes),	      cmocka_unit_test(test_counts),
		cmocka_unit_test(test_many_nodes),    cmocka_unit_test(test_lists),
		cmocka_unit_test(test_bad_lists),     cmocka_unit_test(test_long_values),
		cmocka_unit_test(test_blueprint),     cmocka_unit_test(test_bad_blueprint),
		cmocka_unit_test(test_network),	      cmocka_unit_test(test_bad_network),
		cmocka_unit_test(test_has_network),   cmocka_unit_test(test_policy),
		cmocka_unit_test(test_mounts),	      cmocka_unit_test(test_legacy),
		cmocka_unit_test(test_available),     cmocka_unit_test(test_names),
		cmocka_unit_test(test_env),	      cmocka_unit_test(test_keys),
		cmocka_unit_test(test_key_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
