"""The security report: what a machine is confined to, held against what it is."""

import ctypes
import json
import os
import re

from lib import TINY, TOP, check, contains, equal, need_root, skip, test

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool,
         "null": type(None)}
CLONE_NEWNS = 0x00020000


def hold(value, schema, where="report"):
    """Holds a value against the part of JSON Schema that ours uses."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    check(not kinds or any(isinstance(value, TYPES[kind]) for kind in kinds)
          and not (isinstance(value, bool) and "boolean" not in kinds),
          f"{where} is of no type of {kinds}: {value!r}")
    check(value in schema.get("enum", [value]), f"{where}: {value!r}")
    for key in schema.get("required", []):
        check(key in value, f"{where} has no {key}")
    for key, inner in schema.get("properties", {}).items():
        if key in value:
            hold(value[key], inner, f"{where}.{key}")
    for number, each in enumerate(value if "items" in schema else []):
        hold(each, schema["items"], f"{where}[{number}]")


def report_of(box, code=0):
    report = box.run("inspect", "tiny", "--security-report=json").exits(code).json()
    with open(os.path.join(TOP, "docs/security-report.schema.json"), encoding="ascii") as file:
        hold(report, json.load(file))
    return report


def monitor_in(report):
    found, = [each for each in report["processes"] if each["role"] == "monitor"]
    return found


@test()
def a_machine_that_is_up(box):
    with box.up():
        report = report_of(box)
        monitor = monitor_in(report)
        equal((report["up"], report["data"], report["differences"]), (True, "own", 0))
        with open(f"/proc/{monitor['pid']}/status", encoding="ascii") as file:
            status = dict(line.split(":", 1) for line in file if ":" in line)
        equal(int(status["Uid"].split()[0]), monitor["description"]["host_uid"], "ID")
        equal(int(status["CapEff"], 16), 0, "capabilities")
        equal(int(status["Seccomp"]), 2, "seccomp")
        keeper = box.keeper()
        held = f"{2 if os.getuid() == 0 else 0:016x}"
        equal([keeper.status(each) for each in ("Seccomp", "NoNewPrivs", "CapEff", "CapPrm")],
              ["2", "1", held, held], "the keeper")
        with open(f"/proc/{keeper.pid}/limits", encoding="ascii") as file:
            contains(file.read(), re.compile(r"Max core file size +0 +0 "))
        text = box.run("inspect", "tiny").ok().text
        contains(text, "every process is as it was described")
        contains(text, str(monitor["description"]["host_uid"]))


@test()
def without_a_machine_one_is_started_for_it(box):
    result = box.run("inspect", "tiny", "--json").ok()
    contains(result.err, "started for the report")
    report = result.json()
    equal((report["up"], report["data"], report["differences"]), (False, "none", 0))
    check(report["kernel_proof"]["guest_digest"], "the proof of the build is in it")
    check(not os.path.exists(box.path("run/tiny")), "something is left")


@test()
def a_group_that_was_left_is_seen(box):
    """Its memory is limited by a control group: outside of it the limit does not hold."""
    need_root()
    with box.up():
        monitor = monitor_in(report_of(box))
        if monitor["missing"]:
            skip("this host gives no control group")
        pid = monitor["pid"]
        with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:
            lines = [line.strip().split(":", 2) for line in file]
        left = 0
        for _, controllers, path in lines:
            where = f"/sys/fs/cgroup/{controllers}{os.path.dirname(path)}/cgroup.procs"
            if "/box-" in path and os.path.exists(where):
                with open(where, "w", encoding="ascii") as file:
                    file.write(str(pid))
                left += 1
        if left == 0:
            skip("its control group has another place here")
        seen = monitor_in(report_of(box, code=1))["differences"]
        contains("\n".join(seen), "cgroup")
        contains(box.run("inspect", "tiny").exits(1).text, "DIFFERENCE")


@test()
def a_limit_that_was_changed_is_seen(box):
    need_root()
    with box.up():
        report = report_of(box)
        if monitor_in(report)["missing"]:
            skip("this host gives no control group")
        keeper, = [each["pid"] for each in report["processes"] if each["role"] == "keeper"]
        limits = [os.path.join(folder, name) for folder, _, names in os.walk("/sys/fs/cgroup")
                  if os.path.basename(folder).startswith(f"box-{keeper}-")
                  for name in names if name in ("pids.max", "memory.max", "memory.limit_in_bytes")]
        equal(len(limits), 2, limits)
        for path in limits:
            with open(path, "r+", encoding="ascii") as file:
                before = int(file.read())
                file.write(str(before // 8 * 7))
            seen = monitor_in(report_of(box, code=1))["differences"]
            equal(seen, [f"{path} is {before // 8 * 7} and not {before}"])
            with open(path, "w", encoding="ascii") as file:
                file.write(str(before))
        equal(report_of(box)["differences"], 0)


@test()
def a_mount_that_was_added_is_seen(box):
    need_root()
    with box.up():
        pid = monitor_in(report_of(box))["pid"]
        libc = ctypes.CDLL(None, use_errno=True)
        child = os.fork()
        if child == 0:
            with open(f"/proc/{pid}/ns/mnt", "rb") as namespace:
                done = libc.setns(namespace.fileno(), CLONE_NEWNS) == 0 and \
                    libc.mount(b"tmpfs", b"/firmware", b"tmpfs", 0, None) == 0
            os._exit(0 if done else 1)
        equal(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "the mount was made")
        seen = monitor_in(report_of(box, code=1))["differences"]
        check(seen, "nobody noticed the mount")
        contains("\n".join(seen), "/firmware")


@test(home="copy")
def the_boxfile_takes_calls_away(box):
    """Without a build: no snapshot depends on the list. QEMU cannot do without the last one."""
    box.write_boxfile("tiny", TINY + "seccomp: [gettimeofday, time]\n")
    equal(box.sh("echo fine").ok().out, b"fine\n")
    seccomp = monitor_in(report_of(box))["description"]["seccomp"]
    equal(seccomp["without"], ["gettimeofday", "time"])
    contains(box.run("inspect", "tiny").ok().text, "gettimeofday")
    box.write_boxfile("tiny", TINY + "seccomp: [time, fork]\n")
    for command in (("run", "tiny", "--", "true"), ("build", "tiny")):
        box.run(*command).fails("seccomp: fork is not on the list", "out of `seccomp`")
    box.write_boxfile("tiny", TINY + "seccomp: [futex]\n")
    box.sh("true").fails("list", "`seccomp`: name fewer")


@test()
def what_cannot_be_inspected(box):
    box.run("inspect", "nobody").fails("no sandbox")
    box.run("inspect", "tiny", "--security-report=xml").fails("=json")
