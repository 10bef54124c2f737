"""Which rules of policies/*.policy a trace of strace(1) has met.

A line of a list that no program of box needs is a line that only helps whoever broke the program. One
that no machine of test_calls.py meets has `elsewhere:` in its reason when that of test_kvm.py does, or
`seldom:` when tests/jail/test_lists.c makes the call. A line that denies helps nobody.
"""

import glob
import os
import re

from lib import TOP

# A program is known by its argv[0]; a process that puts a list on itself and goes on is the keeper.
PROGRAMS = {"qemu-system-x86_64": "qemu", "box-net": "net", "box-image": "image", "box-copy": "copy"}
CLONE_THREAD, AT_EMPTY_PATH = 0x10000, 0x1000
# With these the trace has numbers for all arguments, but for the two calls whose words are needed.
STRACE = ["strace", "-ff", "-D", "--quiet=all", "--pidns-translation", "-e", "raw=!execveat,clone"]
CALL = re.compile(r"(\w+)\((.*)\) += (-?\w+)(?: /\* (\d+) in strace)?")
RULE = re.compile(r"(\w+): *([^#]*?) *# *(.*)")
CONDITION = re.compile(r"arg(\d)(?: & (\w+))? == (\w+)")


class Rule:
    def __init__(self, policy, number, line):
        self.call, text, self.reason = RULE.fullmatch(line).groups()
        self.place = f"{policy}.policy:{number}: {line}"
        self.elsewhere, self.seldom = "elsewhere:" in self.reason, "seldom:" in self.reason
        self.must_be_met = not (self.elsewhere or self.seldom or "errno" in text.split())
        self.conditions = [(int(argument), int(mask or "0xffffffffffffffff", 0), int(value, 0))
                           for argument, mask, value in CONDITION.findall(text)]

    def matches(self, arguments):
        # strace leaves out what a call does not have.
        return all(argument < len(arguments) and arguments[argument] & mask == value
                   for argument, mask, value in self.conditions)


def read_policies():
    found = {}
    for path in sorted(glob.glob(os.path.join(TOP, "policies/*.policy"))):
        policy = os.path.basename(path)[:-len(".policy")]
        with open(path, encoding="ascii") as file:
            found[policy] = [Rule(policy, number, line.strip())
                             for number, line in enumerate(file, 1)
                             if line.strip() and not line.startswith("#")]
    return found


class Call:
    def __init__(self, match):
        self.name, text, result, child = match.groups()
        self.failed = result.startswith("-1")
        self.child = child or result
        self.program = None
        if self.name == "clone":
            self.arguments = [CLONE_THREAD if "CLONE_THREAD" in text else 0]
        elif self.name == "execveat":
            words = re.match(r'(\d+), "", \["([^"]*)"', text)
            self.program = os.path.basename(words.group(2)) if words else None
            self.arguments = [int(words.group(1)) if words else -1, 0, 0, 0,
                              AT_EMPTY_PATH if "AT_EMPTY_PATH" in text else 0]
        else:
            self.arguments = [int(each, 0) for each in text.split(", ")] if text else []


def read_trace(path):
    # A call that did not end is written without a result.
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [re.sub(r"(\)|<unfinished \.\.\.>\)?) += \?.*", ") = 0", line.rstrip("\n"))
                 for line in file]
    return [Call(match) for match in map(CALL.match, lines) if match]


def confined_part(calls):
    """What a process did behind a list, and which list that was; or nothing."""
    for index, call in enumerate(calls):
        if call.name == "seccomp" and call.arguments[0] == 1 and not call.failed:
            rest = calls[index + 1:]
            programs = [each.program for each in rest if each.program and not each.failed]
            return (PROGRAMS.get(programs[0]) if programs else "keeper"), rest
    return None, []


def used_rules(folder, policies):
    """The rules that the traces in folder have met, and calls that no rule is for."""
    traces = {path.rsplit(".", 1)[1]: read_trace(path) for path in glob.glob(f"{folder}/*")}
    work = [confined_part(calls) for calls in traces.values()]
    used, strange = set(), []
    while work:
        policy, calls = work.pop()
        for call in calls if policy else []:
            rule = next((each for each in policies[policy]
                         if each.call == call.name and each.matches(call.arguments)), None)
            if rule:
                used.add(rule)
            else:
                strange.append(f"{policy}: {call.name}({', '.join(map(hex, call.arguments))})")
            if call.name == "clone" and not call.failed and call.arguments[0]:
                work.append((policy, traces.get(call.child, [])))
    return used, strange
