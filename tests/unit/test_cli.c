#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "json/json.h"

/* Splits a line of words without quotes into an array that may be changed, as main's is. */
struct words {
	char text[512];
	char *argv[32];
	int argc;
};

static void split(const char *line, struct words *words)
{
	char *state = NULL;

	*words = (struct words){0};
	snprintf(words->text, sizeof(words->text), "%s", line);
	for (char *word = strtok_r(words->text, " ", &state); word;
	     word = strtok_r(NULL, " ", &state)) {
		words->argv[words->argc++] = word;
	}
}

static int parse(const char *line, struct words *words, struct cli_args *args, struct err *err)
{
	const struct cli_command *command;

	split(line, words);
	command = cli_find_command(words->argv[0]);
	assert_non_null(command);
	return cli_parse(command, words->argc, words->argv, args, err);
}

/* Options and operands of a `run` line, written as "o=value,o|operand operand". */
static void describe(const struct cli_args *args, char *out, size_t size)
{
	size_t length = 0;

	out[0] = '\0';
	for (size_t i = 0; i < args->given_count; i++) {
		length += (size_t)snprintf(out + length, size - length, "%s%s%s,",
					   args->given[i].option->name,
					   args->given[i].value ? "=" : "",
					   args->given[i].value ? args->given[i].value : "");
	}
	length += (size_t)snprintf(out + length, size - length, "|");
	for (int i = 0; i < args->operand_count; i++) {
		length += (size_t)snprintf(out + length, size - length, "%s%s", i > 0 ? " " : "",
					   args->operands[i]);
	}
}

static void run_takes_options_around_the_name(void **state)
{
	static const struct {
		const char *line;
		const char *found;
	} cases[] = {
		{"run py python3 -c x", "|py python3 -c x"},
		{"run py -- python3 -c x", "|py python3 -c x"},
		{"run -i py -t -- cat -n", "interactive,tty,|py cat -n"},
		{"run -it py cat", "interactive,tty,|py cat"},
		{"run py -e A=1 -e B=2 env", "env=A=1,env=B=2,|py env"},
		{"run --timeout=3 py --data none -- true", "timeout=3,data=none,|py true"},
		{"run py -- -x", "|py -x"},
		{"run py -- -- x", "|py -- x"},
		{"run py true -- --json", "|py true -- --json"},
		{"run -- py --json", "|py --json"},
		{"run -w /tmp -u root py -c sh -c x", "workdir=/tmp,user=root,cold,|py sh -c x"},
		{"ls --json", "json,|"},
		{"destroy py --data -y", "data,yes,|py"},
		{"new py --from python", "from=python,|py"},
		{"new -- -x", "|-x"},
		{"exec py -d -- sh -c x", "detach,|py sh -c x"},
		{"exec -i py --timeout 3 cat -d", "interactive,timeout=3,|py cat -d"},
		{"shell py --attach abcdef", "attach,|py abcdef"},
		{"kill py abcdef", "|py abcdef"},
		{"kill -9 py abcdef", "signal=9,|py abcdef"},
		{"kill py -SIGHUP abcdef", "signal=SIGHUP,|py abcdef"},
		{"kill -s int py abcdef", "signal=int,|py abcdef"},
		{"kill --signal=QUIT py abcdef", "signal=QUIT,|py abcdef"},
		{"kill -- -9 abcdef", "|-9 abcdef"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct words words;
		struct cli_args args;
		struct err err = {0};
		char found[512];

		assert_int_equal(parse(cases[i].line, &words, &args, &err), 0);
		describe(&args, found, sizeof(found));
		assert_string_equal(found, cases[i].found);
		cli_args_free(&args);
	}
}

static void wrong_words_are_refused_with_a_mend(void **state)
{
	static const struct {
		const char *line;
		const char *text;
		const char *mend;
	} cases[] = {
		{"run", "too few", "box help run"},
		{"run py", "too few", "box help run"},
		{"run py --", "too few", "box help run"},
		{"run --timeot 3 py true", "--timeot", "--timeout"},
		{"run py --jsn true", "--jsn", "--json"},
		{"run -x py true", "-x", "box help run"},
		{"run py -x true", "-x", "box help run"},
		{"run --json=3 py true", "takes no value", "box help run"},
		{"run py --timeout", "no value", "box help run"},
		{"run -e", "no value", "box help run"},
		{"kill -65 py abcdef", "-6", "box help kill"},
		{"kill -NOPE py abcdef", "-N", "box help kill"},
		{"kill py", "too few", "box help kill"},
		{"exec py", "too few", "box help exec"},
		{"exec --data none py true", "--data", "box help exec"},
		{"ls extra", "\"extra\"", "box help ls"},
		{"build a b", "\"b\"", "box help build"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct words words;
		struct cli_args args;
		struct err err = {0};

		assert_int_equal(parse(cases[i].line, &words, &args, &err), -EINVAL);
		assert_string_equal(err.code, "usage");
		assert_non_null(strstr(err.text, cases[i].text));
		assert_non_null(strstr(err.mend, cases[i].mend));
	}
}

static void help_is_an_option_of_every_command(void **state)
{
	(void)state;
	for (size_t i = 0; i < cli_command_count; i++) {
		struct words words;
		struct cli_args args;
		char line[64];

		snprintf(line, sizeof(line), "%s --help", cli_commands[i].name);
		assert_int_equal(parse(line, &words, &args, NULL), 0);
		assert_true(args.help);
		cli_args_free(&args);
	}
}

static void the_last_value_counts(void **state)
{
	struct words words;
	struct cli_args args;

	(void)state;
	assert_int_equal(parse("run --timeout 3 py --timeout 5 true", &words, &args, NULL), 0);
	assert_string_equal(cli_value(&args, "timeout"), "5");
	assert_null(cli_value(&args, "user"));
	assert_true(cli_has(&args, "timeout"));
	assert_false(cli_has(&args, "json"));
	cli_args_free(&args);
}

static void every_command_and_option_has_its_help(void **state)
{
	(void)state;
	for (size_t i = 0; i < cli_command_count; i++) {
		const struct cli_command *command = &cli_commands[i];
		char needle[128];

		assert_non_null(command->run);
		assert_true(strlen(command->summary) > 0);
		assert_true(strlen(command->details) > 0);
		/* The example is one of this very command. */
		snprintf(needle, sizeof(needle), "box %s", command->name);
		assert_non_null(strstr(command->example, needle));
		for (size_t j = 0; j < command->option_count; j++) {
			assert_true(strlen(command->options[j].help) > 0);
			assert_true(strlen(command->options[j].name) > 0);
			for (size_t k = 0; k < j; k++) {
				assert_int_not_equal(command->options[j].letter,
						     command->options[k].letter);
				assert_string_not_equal(command->options[j].name,
							command->options[k].name);
			}
			assert_int_not_equal(command->options[j].letter, 'h');
		}
	}
}

/* Calls print with standard output in a file and returns what it wrote; owned by the caller. */
static char *printed_by(void (*print)(void))
{
	FILE *file = tmpfile();
	int saved = dup(STDOUT_FILENO);
	char *text;
	long size;

	assert_non_null(file);
	fflush(stdout);
	assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
	print();
	fflush(stdout);
	assert_true(dup2(saved, STDOUT_FILENO) >= 0);
	close(saved);
	size = lseek(fileno(file), 0, SEEK_END);
	text = calloc((size_t)size + 1, 1);
	assert_non_null(text);
	assert_int_equal(pread(fileno(file), text, (size_t)size, 0), size);
	fclose(file);
	return text;
}

static void print_hostile_json(void)
{
	_cleanup_(json_freep) struct json *object = json_new_object();

	/* U+009B is the one-character form of escape and "[". */
	assert_int_equal(json_set_string(object, "path",
					 "\xc2\x9b"
					 "31m\x1b[0m\xe2\x80\xae"),
			 0);
	assert_int_equal(cli_print_json(object, NULL), 0);
}

static void json_drives_no_terminal(void **state)
{
	_cleanup_free_ char *text = printed_by(print_hostile_json);

	(void)state;
	assert_string_equal(text, "{\n  \"path\": \"\\u009B31m\\u001B[0m\\u202E\"\n}\n");
}

static void all_texts_name_all_commands(void **state)
{
	_cleanup_free_ char *overview = printed_by(cli_print_overview);
	_cleanup_free_ char *man = printed_by(cli_print_man);
	_cleanup_free_ char *completion = printed_by(cli_print_completion_bash);

	(void)state;
	for (size_t i = 0; i < cli_command_count; i++) {
		const struct cli_command *command = &cli_commands[i];
		char needle[128];

		snprintf(needle, sizeof(needle), "\n  %-9s ", command->name);
		assert_non_null(strstr(overview, needle));
		snprintf(needle, sizeof(needle), "\n.SS box %s", command->name);
		assert_non_null(strstr(man, needle));
		snprintf(needle, sizeof(needle), "\t%s) options=\"--help", command->name);
		assert_non_null(strstr(completion, needle));
		for (size_t j = 0; j < command->option_count; j++) {
			snprintf(needle, sizeof(needle), " --%s", command->options[j].name);
			assert_non_null(strstr(completion, needle));
		}
	}
	for (size_t i = 0; cli_later_commands[i]; i++) {
		char needle[64];

		snprintf(needle, sizeof(needle), "\n  %-9s ", cli_later_commands[i]);
		assert_null(strstr(overview, needle));
		assert_null(cli_find_command(cli_later_commands[i]));
	}
	/* Every line of roff that begins with a dot is a request that is meant. */
	for (const char *line = man; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (*line == '.') {
			assert_true(line[1] >= 'A' && line[1] <= 'z');
		}
	}
}

static void environment_later_wins(void **state)
{
	char one[] = "A=spec", two[] = "B=spec";
	char *base[] = {one, two};
	const char *options[] = {"B=first", "C=x=y", "B=second", "FROM_CALLER", "NOT_THERE"};
	struct env_list list;

	(void)state;
	setenv("FROM_CALLER", "mine", 1);
	setenv("TERM", "xterm-test", 1);
	unsetenv("NOT_THERE");
	assert_int_equal(
		env_list_make(&(struct env_input){base, 2, options, 5, true, false}, &list, NULL),
		0);
	assert_int_equal(list.count, 5);
	assert_string_equal(list.items[0], "A=spec");
	assert_string_equal(list.items[1], "B=second");
	assert_string_equal(list.items[2], "C=x=y");
	assert_string_equal(list.items[3], "FROM_CALLER=mine");
	assert_string_equal(list.items[4], "TERM=xterm-test");
	env_list_free(&list);

	options[0] = "TERM=dumb";
	assert_int_equal(
		env_list_make(&(struct env_input){NULL, 0, options, 1, true, false}, &list, NULL),
		0);
	assert_int_equal(list.count, 1);
	assert_string_equal(list.items[0], "TERM=dumb");
	env_list_free(&list);

	assert_int_equal(env_list_make(&(struct env_input){0}, &list, NULL), 0);
	assert_int_equal(list.count, 0);
	env_list_free(&list);
}

static void environment_with_bad_keys(void **state)
{
	static const char *const bad[] = {"1A=x", "A B=x", "=x", "1A", "", "A-B"};
	struct env_list list;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct err err = {0};

		assert_int_equal(
			env_list_make(&(struct env_input){NULL, 0, &bad[i], 1, false, false}, &list,
				      &err),
			-EINVAL);
		assert_non_null(strstr(err.text, "--env"));
	}
}

static void timeouts(void **state)
{
	static const char *const bad[] = {"", "soon", "-1", "1.5", "3s", " 3", "4294967296", "+3"};
	uint32_t seconds = 7;

	(void)state;
	assert_int_equal(run_parse_timeout("exec", "0", &seconds, NULL), 0);
	assert_int_equal(seconds, 0);
	assert_int_equal(run_parse_timeout("exec", "4294967295", &seconds, NULL), 0);
	assert_int_equal(seconds, UINT32_MAX);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct err err = {0};

		assert_int_equal(run_parse_timeout("exec", bad[i], &seconds, &err), -EINVAL);
		assert_non_null(strstr(err.text, "exec: --timeout"));
		assert_true(err.mend[0] != '\0');
	}
	assert_int_equal(seconds, UINT32_MAX);
}

static void signals(void **state)
{
	static const struct {
		const char *text;
		int number;
	} cases[] = {
		{"TERM", SIGTERM}, {"SIGTERM", SIGTERM}, {"term", SIGTERM}, {"9", SIGKILL},
		{"1", 1},	   {"64", 64},		 {"0", -EINVAL},    {"65", -EINVAL},
		{"", -EINVAL},	   {"SIG", -EINVAL},	 {"9x", -EINVAL},   {"-9", -EINVAL},
		{"NOPE", -EINVAL}, {"TERMX", -EINVAL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_int_equal(cli_parse_signal(cases[i].text), cases[i].number);
	}
}

/* A shell's terminal is the caller's, unless the Boxfile says something else. */
static void environment_of_a_login(void **state)
{
	char lang[] = "LANG=de_DE.UTF-8";
	char *base[] = {lang};
	struct env_list list;

	(void)state;
	setenv("TERM", "xterm-test", 1);
	setenv("COLORTERM", "truecolor", 1);
	setenv("LANG", "C.UTF-8", 1);
	assert_int_equal(
		env_list_make(&(struct env_input){.base = base, .base_count = 1, .login = true},
			      &list, NULL),
		0);
	assert_int_equal(list.count, 3);
	assert_string_equal(list.items[0], "LANG=de_DE.UTF-8");
	assert_string_equal(list.items[1], "TERM=xterm-test");
	assert_string_equal(list.items[2], "COLORTERM=truecolor");
	env_list_free(&list);
}

static void base64_as_rfc_4648_has_it(void **state)
{
	static const struct {
		const char *in;
		const char *out;
	} cases[] = {
		{"", ""},
		{"f", "Zg=="},
		{"fo", "Zm8="},
		{"foo", "Zm9v"},
		{"foob", "Zm9vYg=="},
		{"fooba", "Zm9vYmE="},
		{"foobar", "Zm9vYmFy"},
		{"\xff\xfe", "//4="},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *out = text_base64(cases[i].in, strlen(cases[i].in));

		assert_string_equal(out, cases[i].out);
	}
}

/* Feeds bytes through a capture and gives back what the object says. */
static struct json *captured(const char *bytes, size_t size, size_t times)
{
	struct capture capture;
	struct json *object = json_new_object();

	assert_int_equal(capture_start(&capture, NULL), 0);
	for (size_t i = 0; i < times; i++) {
		assert_int_equal(write(capture.write_fd, bytes, size), size);
	}
	capture_end(&capture);
	assert_int_equal(capture_to_json(&capture, "stdout", object), 0);
	capture_free(&capture);
	return object;
}

static void captured_output(void **state)
{
	_cleanup_(json_freep) struct json *text = captured("caf\xc3\xa9\n", 6, 1);
	_cleanup_(json_freep) struct json *bytes = captured("\xff\0x", 3, 1);
	_cleanup_(json_freep) struct json *nothing = captured("", 0, 0);
	int64_t total;

	(void)state;
	assert_string_equal(json_get_string(text, "stdout"), "caf\xc3\xa9\n");
	assert_string_equal(json_get_string(text, "stdout_encoding"), "utf-8");
	assert_string_equal(json_get_string(bytes, "stdout"), "/wB4");
	assert_string_equal(json_get_string(bytes, "stdout_encoding"), "base64");
	assert_int_equal(json_get_integer(bytes, "stdout_bytes", &total), 0);
	assert_int_equal(total, 3);
	assert_string_equal(json_get_string(nothing, "stdout"), "");
}

static void captured_output_is_cut_at_a_whole_character(void **state)
{
	/* Three bytes each, which do not divide the limit. */
	char chunk[3 * 1024];
	_cleanup_(json_freep) struct json *object = NULL;
	size_t times = CAPTURE_MAX / sizeof(chunk) + 10;
	const char *text;
	int64_t total;
	bool truncated;

	(void)state;
	for (size_t i = 0; i < sizeof(chunk); i += 3) {
		memcpy(chunk + i, "\xe2\x82\xac", 3);
	}
	object = captured(chunk, sizeof(chunk), times);
	assert_string_equal(json_get_string(object, "stdout_encoding"), "utf-8");
	text = json_get_string(object, "stdout");
	assert_int_equal(strlen(text), CAPTURE_MAX / 3 * 3);
	assert_int_equal(json_get_boolean(object, "stdout_truncated", &truncated), 0);
	assert_true(truncated);
	assert_int_equal(json_get_integer(object, "stdout_bytes", &total), 0);
	assert_int_equal(total, (int64_t)(times * sizeof(chunk)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(run_takes_options_around_the_name),
		cmocka_unit_test(wrong_words_are_refused_with_a_mend),
		cmocka_unit_test(help_is_an_option_of_every_command),
		cmocka_unit_test(the_last_value_counts),
		cmocka_unit_test(every_command_and_option_has_its_help),
		cmocka_unit_test(all_texts_name_all_commands),
		cmocka_unit_test(json_drives_no_terminal),
		cmocka_unit_test(environment_later_wins),
		cmocka_unit_test(environment_with_bad_keys),
		cmocka_unit_test(timeouts),
		cmocka_unit_test(signals),
		cmocka_unit_test(environment_of_a_login),
		cmocka_unit_test(base64_as_rfc_4648_has_it),
		cmocka_unit_test(captured_output),
		cmocka_unit_test(captured_output_is_cut_at_a_whole_character),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
