/*
 * Turns a list of system calls into a constant seccomp filter. Runs at build time only.
 *
 * In: policies/NAME.policy, one rule a line:
 *
 *	SYSCALL: [argN [& MASK] == VALUE {and argN [& MASK] == VALUE}] [ACTION]  # reason
 *
 * ACTION is `allow` (the default after a condition), `errno NAME` or `notify`. Of several rules for
 * one system call the first that matches decides; a call without a matching rule, another
 * architecture and the x32 numbers kill the process. Numbers are C integers. A rule that no traced
 * machine meets (tests/vm/test_calls.py) has in its reason `elsewhere:` when another machine does
 * (tests/vm/test_kvm.py), or `seldom:` when tests/jail/test_lists.c makes the call behind the list.
 * One that denies opens nothing and need not be met.
 *
 * Out: a C source with the instructions as a constant array, the calls that have a rule, and
 * `struct jail_policy jail_policy_NAME`.
 *
 * libseccomp knows the system calls' numbers. The instructions are written here, because the order
 * of rules is part of what the lists mean: load the architecture, load the number, a binary search
 * over the numbers, then each call's rules from top to bottom.
 *
 * What may never happen: a rule that can never match, is given twice, names an unknown call or has
 * no reason. Each ends the build with file and line.
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Linux has some 370 system calls on x86-64; a list that needs more rules is no list. */
#define RULES_MAX 512
/* A system call has six arguments; a condition on each is enough. */
#define CONDITIONS_MAX 6
/* BPF_MAXINSNS, the kernel's own limit for one filter. */
#define INSTRUCTIONS_MAX 4096
#define LINE_BYTES 512
/* x32 calls have this bit in their number and the architecture of x86-64. */
#define X32_BIT 0x40000000U

struct condition {
	unsigned argument;
	uint64_t mask;
	uint64_t value;
};

struct rule {
	int number;
	int line;
	struct condition conditions[CONDITIONS_MAX];
	size_t condition_count;
	uint32_t action;
};

struct policy {
	const char *path;
	/* A running process puts it on itself; else jail_spawn does, before a program starts. */
	bool for_self;
	int line;
	struct rule rules[RULES_MAX];
	size_t rule_count;
	struct sock_filter code[INSTRUCTIONS_MAX];
	size_t code_count;
};

static const struct {
	const char *name;
	uint32_t value;
} errno_names[] = {
	{"EACCES", EACCES}, {"EAGAIN", EAGAIN},		{"EBADF", EBADF},
	{"EINVAL", EINVAL}, {"ENOENT", ENOENT},		{"ENOSYS", ENOSYS},
	{"ENOTTY", ENOTTY}, {"EOPNOTSUPP", EOPNOTSUPP}, {"EPERM", EPERM},
};

_Noreturn static void fail(const struct policy *policy, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

_Noreturn static void fail(const struct policy *policy, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s:%d: ", policy->path, policy->line);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

/* The next word of the rule, or NULL at its end. */
static char *next_word(char **state)
{
	return strtok_r(NULL, " \t", state);
}

static uint64_t parse_number(const struct policy *policy, const char *word)
{
	char *end;
	unsigned long long number;

	if (!word || word[0] < '0' || word[0] > '9') {
		fail(policy, "a number is missing");
	}
	errno = 0;
	number = strtoull(word, &end, 0);
	if (*end || errno) {
		fail(policy, "not a number: %s", word);
	}
	return number;
}

/* Reads "argN [& MASK] == VALUE", whose first word is given. */
static void parse_condition(const struct policy *policy, struct rule *rule, const char *word,
			    char **state)
{
	struct condition *condition = &rule->conditions[rule->condition_count];

	if (rule->condition_count == CONDITIONS_MAX) {
		fail(policy, "more than %d conditions", CONDITIONS_MAX);
	}
	if (strncmp(word, "arg", 3) != 0 || word[3] < '0' || word[3] > '5' || word[4]) {
		fail(policy, "expected arg0 to arg5 or an action: %s", word);
	}
	condition->argument = (unsigned)(word[3] - '0');
	condition->mask = UINT64_MAX;
	word = next_word(state);
	if (word && strcmp(word, "&") == 0) {
		condition->mask = parse_number(policy, next_word(state));
		word = next_word(state);
	}
	if (!word || strcmp(word, "==") != 0) {
		fail(policy, "expected ==");
	}
	condition->value = parse_number(policy, next_word(state));
	if (condition->mask == 0 || (condition->value & ~condition->mask) != 0) {
		fail(policy, "this condition is never or always true");
	}
	rule->condition_count++;
}

static uint32_t parse_action(const struct policy *policy, const char *word, char **state)
{
	uint32_t action = 0;

	if (strcmp(word, "allow") == 0) {
		action = SECCOMP_RET_ALLOW;
	} else if (strcmp(word, "notify") == 0) {
		action = SECCOMP_RET_USER_NOTIF;
	} else if (strcmp(word, "errno") == 0) {
		const char *name = next_word(state);

		for (size_t i = 0; name && i < sizeof(errno_names) / sizeof(errno_names[0]); i++) {
			if (strcmp(errno_names[i].name, name) == 0) {
				action = SECCOMP_RET_ERRNO | errno_names[i].value;
			}
		}
	}
	if (!action) {
		fail(policy, "expected allow, notify or errno with a known name: %s", word);
	}
	if (next_word(state)) {
		fail(policy, "something stands after the action");
	}
	return action;
}

static bool is_condition(const char *word)
{
	return strncmp(word, "arg", 3) == 0;
}

static void parse_body(const struct policy *policy, struct rule *rule, char **state)
{
	char *word = next_word(state);

	if (!word) {
		fail(policy, "neither condition nor action");
	}
	while (word && is_condition(word)) {
		parse_condition(policy, rule, word, state);
		word = next_word(state);
		if (word && strcmp(word, "and") == 0) {
			word = next_word(state);
			if (!word || !is_condition(word)) {
				fail(policy, "expected a condition after and");
			}
		} else if (word && is_condition(word)) {
			fail(policy, "expected and between conditions");
		}
	}
	rule->action = word ? parse_action(policy, word, state) : SECCOMP_RET_ALLOW;
}

static bool same_conditions(const struct rule *a, const struct rule *b)
{
	return a->condition_count == b->condition_count &&
	       memcmp(a->conditions, b->conditions,
		      a->condition_count * sizeof(a->conditions[0])) == 0;
}

static void refuse_unreachable(const struct policy *policy, const struct rule *rule)
{
	for (size_t i = 0; i < policy->rule_count; i++) {
		const struct rule *earlier = &policy->rules[i];

		if (earlier->number == rule->number &&
		    (earlier->condition_count == 0 || same_conditions(earlier, rule))) {
			fail(policy, "line %d decides this already", earlier->line);
		}
	}
}

static void parse_line(struct policy *policy, char *line)
{
	struct rule *rule = &policy->rules[policy->rule_count];
	char *reason = strchr(line, '#');
	char *colon, *state = NULL;

	if (line[strspn(line, " \t")] == '\0' || line[strspn(line, " \t")] == '#') {
		return;
	}
	if (!reason || reason[1 + strspn(reason + 1, " \t")] == '\0') {
		fail(policy, "the reason is missing");
	}
	*reason = '\0';
	colon = strchr(line, ':');
	if (!colon) {
		fail(policy, "expected a colon after the system call");
	}
	if (policy->rule_count == RULES_MAX) {
		fail(policy, "more than %d rules", RULES_MAX);
	}
	*colon = ' ';
	memset(rule, 0, sizeof(*rule));
	line = strtok_r(line, " \t", &state);
	rule->number =
		line ? seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, line) : __NR_SCMP_ERROR;
	if (rule->number < 0) {
		fail(policy, "no such system call: %s", line ? line : "");
	}
	rule->line = policy->line;
	parse_body(policy, rule, &state);
	refuse_unreachable(policy, rule);
	policy->rule_count++;
}

static void read_policy(struct policy *policy)
{
	FILE *file = fopen(policy->path, "re");
	char line[LINE_BYTES];

	if (!file) {
		fail(policy, "%s", strerror(errno));
	}
	while (fgets(line, sizeof(line), file)) {
		char *end = strchr(line, '\n');

		policy->line++;
		if (!end) {
			fail(policy, "longer than %d bytes or without an end", LINE_BYTES - 2);
		}
		*end = '\0';
		parse_line(policy, line);
	}
	if (ferror(file)) {
		fail(policy, "%s", strerror(errno));
	}
	fclose(file);
}

/* What whoever puts the filter on has to do afterwards. */
static void require_calls(const struct policy *policy)
{
	static const struct {
		const char *name;
		bool for_self, for_notify;
		const char *why;
	} required[] = {
		{"execveat", false, false, "jail_spawn needs it to start the program"},
		{"write", true, false, "it tells why the program could not be started"},
		{"exit_group", true, false, "it ends a process"},
		{"sendmsg", false, true, "jail_spawn hands over the notifications with it"},
	};
	bool notifies = false;

	for (size_t i = 0; i < policy->rule_count; i++) {
		notifies |= policy->rules[i].action == SECCOMP_RET_USER_NOTIF;
	}
	for (size_t k = 0; k < sizeof(required) / sizeof(required[0]); k++) {
		int number = seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, required[k].name);
		bool found = (required[k].for_notify && !notifies) ||
			     (policy->for_self && !required[k].for_self);

		for (size_t i = 0; i < policy->rule_count; i++) {
			found |= policy->rules[i].number == number &&
				 policy->rules[i].action == SECCOMP_RET_ALLOW;
		}
		if (!found) {
			fail(policy, "%s must be allowed: %s", required[k].name, required[k].why);
		}
	}
}

static size_t emit(struct policy *policy, uint16_t code, uint8_t if_true, uint8_t if_false,
		   uint32_t operand)
{
	if (policy->code_count == INSTRUCTIONS_MAX) {
		fail(policy, "more than %d instructions", INSTRUCTIONS_MAX);
	}
	policy->code[policy->code_count] = (struct sock_filter){code, if_true, if_false, operand};
	return policy->code_count++;
}

static void emit_return(struct policy *policy, uint32_t action)
{
	emit(policy, BPF_RET | BPF_K, 0, 0, action);
}

static void emit_load(struct policy *policy, size_t offset)
{
	emit(policy, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offset);
}

/* A jump whose target is not known yet; land() makes it reach the next instruction. */
static void land(struct policy *policy, size_t jump)
{
	policy->code[jump].k = (uint32_t)(policy->code_count - jump - 1);
}

/* Compares one half of an argument. Returns the jump that is taken when it differs. */
static size_t emit_half(struct policy *policy, unsigned argument, bool high, uint32_t mask,
			uint32_t value)
{
	/* x86-64 is little-endian: the low half comes first. */
	emit_load(policy,
		  offsetof(struct seccomp_data, args) + 8 * (size_t)argument + (high ? 4 : 0));
	if (mask != UINT32_MAX) {
		emit(policy, BPF_ALU | BPF_AND | BPF_K, 0, 0, mask);
	}
	emit(policy, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, value);
	return emit(policy, BPF_JMP | BPF_JA, 0, 0, 0);
}

static void emit_rule(struct policy *policy, const struct rule *rule)
{
	size_t misses[CONDITIONS_MAX * 2], miss_count = 0;

	for (size_t i = 0; i < rule->condition_count; i++) {
		const struct condition *condition = &rule->conditions[i];

		for (unsigned high = 0; high < 2; high++) {
			uint32_t mask = (uint32_t)(condition->mask >> (32 * high));
			uint32_t value = (uint32_t)(condition->value >> (32 * high));

			if (mask) {
				misses[miss_count++] = emit_half(policy, condition->argument,
								 high == 1, mask, value);
			}
		}
	}
	emit_return(policy, rule->action);
	for (size_t i = 0; i < miss_count; i++) {
		land(policy, misses[i]);
	}
}

/* All rules of one system call, in the order of the list. */
static void emit_call(struct policy *policy, int number)
{
	bool decided = false;

	for (size_t i = 0; i < policy->rule_count; i++) {
		if (policy->rules[i].number == number) {
			emit_rule(policy, &policy->rules[i]);
			decided |= policy->rules[i].condition_count == 0;
		}
	}
	if (!decided) {
		emit_return(policy, SECCOMP_RET_KILL_PROCESS);
	}
}

/* Binary search: depth is the logarithm of the number of calls, at most ten. */
static void emit_search(struct policy *policy, const int *numbers, size_t count)
{
	size_t jump;

	if (count == 1) {
		emit(policy, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, (uint32_t)numbers[0]);
		emit_return(policy, SECCOMP_RET_KILL_PROCESS);
		emit_call(policy, numbers[0]);
		return;
	}
	emit(policy, BPF_JMP | BPF_JGE | BPF_K, 0, 1, (uint32_t)numbers[count / 2]);
	jump = emit(policy, BPF_JMP | BPF_JA, 0, 0, 0);
	emit_search(policy, numbers, count / 2);
	land(policy, jump);
	emit_search(policy, numbers + count / 2, count - count / 2);
}

static int compare_numbers(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

static void emit_filter(struct policy *policy)
{
	int numbers[RULES_MAX];
	size_t count = 0;

	for (size_t i = 0; i < policy->rule_count; i++) {
		numbers[i] = policy->rules[i].number;
	}
	qsort(numbers, policy->rule_count, sizeof(numbers[0]), compare_numbers);
	for (size_t i = 0; i < policy->rule_count; i++) {
		if (count == 0 || numbers[count - 1] != numbers[i]) {
			numbers[count++] = numbers[i];
		}
	}
	emit_load(policy, offsetof(struct seccomp_data, arch));
	emit(policy, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, AUDIT_ARCH_X86_64);
	emit_return(policy, SECCOMP_RET_KILL_PROCESS);
	emit_load(policy, offsetof(struct seccomp_data, nr));
	emit(policy, BPF_JMP | BPF_JGE | BPF_K, 0, 1, X32_BIT);
	emit_return(policy, SECCOMP_RET_KILL_PROCESS);
	emit_search(policy, numbers, count);
}

/* Each call once: their rules need not stand together. */
static void write_calls(const struct policy *policy, FILE *file)
{
	fprintf(file, "static const struct jail_call calls[] = {\n");
	for (size_t i = 0; i < policy->rule_count; i++) {
		int number = policy->rules[i].number;
		bool seen = false;
		char *name;

		for (size_t k = 0; k < i; k++) {
			seen |= policy->rules[k].number == number;
		}
		name = seen ? NULL : seccomp_syscall_resolve_num_arch(SCMP_ARCH_X86_64, number);
		if (name) {
			fprintf(file, "\t{\"%s\", %d},\n", name, number);
		}
		free(name);
	}
	fprintf(file, "};\n\n");
}

static void write_source(const struct policy *policy, const char *name, const char *path)
{
	FILE *file = fopen(path, "we");

	if (!file) {
		fail(policy, "%s: %s", path, strerror(errno));
	}
	fprintf(file,
		"/* Made from %s.policy by policies/compile.c. */\n"
		"#include <linux/filter.h>\n\n#include \"jail/jail.h\"\n\n",
		name);
	write_calls(policy, file);
	fprintf(file, "static const struct sock_filter filter[] = {\n");
	for (size_t i = 0; i < policy->code_count; i++) {
		const struct sock_filter *code = &policy->code[i];

		fprintf(file, "\t{0x%02x, %u, %u, 0x%08" PRIx32 "},\n", code->code, code->jt,
			code->jf, code->k);
	}
	fprintf(file,
		"};\n\nconst struct jail_policy jail_policy_%s = {\n\t.name = \"%s\",\n"
		"\t.filter = filter,\n\t.count = %zu,\n\t.calls = calls,\n"
		"\t.call_count = sizeof(calls) / sizeof(calls[0]),\n};\n",
		name, name, policy->code_count);
	if (ferror(file) || fclose(file) != 0) {
		fail(policy, "%s: cannot write", path);
	}
}

int main(int argc, char **argv)
{
	static struct policy policy;

	if (argc != 4 && !(argc == 5 && strcmp(argv[4], "self") == 0)) {
		fprintf(stderr, "usage: policy-compile NAME POLICY SOURCE [self]\n");
		return 2;
	}
	policy.for_self = argc == 5;
	policy.path = argv[2];
	read_policy(&policy);
	require_calls(&policy);
	emit_filter(&policy);
	write_source(&policy, argv[1], argv[3]);
	return 0;
}
