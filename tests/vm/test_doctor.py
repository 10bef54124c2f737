"""`box doctor`: what it finds, what it mends, and what it leaves alone."""

import json
import os
import re
import shutil
import socket
import subprocess

from lib import check, contains, equal, skip, test

# Everything that a start needs, and what makes one better.
NAMES = ["home", "programs", "qemu", "guest kernel", "kvm", "user namespaces", "seccomp",
         "subordinate IDs", "mmdebstrap", "cgroups", "landlock", "memory", "disk", "leftovers"]
HIERARCHIES = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")


def checks(box, *options, **rest):
    """{name: check} and the result."""
    result = box.run("doctor", "--json", *options, **rest)
    return {each["name"]: each for each in result.json()["checks"]}, result


@test()
def each_check_is_one_line(box):
    found, result = checks(box)
    equal(list(found), NAMES)
    plain = box.run("doctor")
    equal(plain.code, result.code)
    for name, each in found.items():
        check(each["state"] in ("ok", "warning", "failed"), each)
        check(each["text"], each)
        # A fault without a mend helps nobody; only what nobody can mend has none.
        check(each["state"] != "failed" or each["mend"], each)
        lines = re.findall(rf"^{each['state']} +{re.escape(name)} +\S.*$", plain.text, re.M)
        equal(len(lines), 1, name, plain.text)
    failed = any(each["state"] == "failed" for each in found.values())
    equal(result.code, 1 if failed else 0)
    equal(result.json()["ok"], not failed)
    check(result.json()["version"] in box.run("--version").text, result)


@test()
def what_is_missing_fails_it(box):
    nowhere = {"BOX_KERNEL": "/nonexistent/vmlinuz", "BOX_MODULES": "/nonexistent/modules"}
    found, result = checks(box, env=nowhere)
    result.exits(1)
    equal(result.json()["ok"], False)
    equal(found["guest kernel"]["state"], "failed")
    contains(found["guest kernel"]["text"], "/nonexistent")
    check(found["guest kernel"]["mend"], found["guest kernel"])
    plain = box.run("doctor", env=nowhere).exits(1)
    contains(plain.text, re.compile(r"^failed +guest kernel .*\n +mend: \S", re.M))


@test(home="empty")
def it_makes_a_home_when_told(box):
    found, _ = checks(box)
    equal(found["home"]["state"], "warning")
    check(not os.path.exists(box.home), "made without --fix")
    found, _ = checks(box, "--fix")
    equal(found["home"]["state"], "ok")
    equal(oct(os.stat(box.home).st_mode & 0o777), oct(0o700))
    shutil.rmtree(box.home)


@test(home="copy")
def free_slots_are_counted(box):
    def slots():
        each = checks(box)[0]["subordinate IDs"]
        match = re.search(r"(\d+) slots .* (\d+) of them taken, (\d+) free", each["text"])
        if not match:
            skip(each["text"])
        return [int(number) for number in match.groups()]

    total, taken, free = slots()
    equal(taken + free, total)
    box.run("new", "more", "--from", "tiny").ok()
    equal(slots(), [total, taken + 1, free - 1])
    box.run("destroy", "-y", "--data", "more").ok()
    equal(slots(), [total, taken, free])


def leave_things(box):
    """What killed commands and dead machines leave. Returns {path: what doctor calls it}."""
    left = {}
    for path, what in (("sandboxes/tiny/build-0badf00d", "1 unfinished builds"),
                       ("sandboxes/.trash-0badf00d", "1 half made")):
        os.mkdir(box.path(path), 0o700)
        left[box.path(path)] = what
    os.makedirs(box.path("run/tiny"), mode=0o700, exist_ok=True)
    left[box.path("run/tiny/sock")] = "1 sockets"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.bind(box.path("run/tiny/sock"))
    box.run("new", "gone", "--from", "tiny").ok()
    if "gone" in json.dumps(load(box.path("ids.json"))):
        left["gone"] = "1 slots of IDs"
    shutil.rmtree(box.path("sandboxes/gone"))
    return left


def of_this_home(check_of_leftovers):
    """The counts that are not 0. Control groups are left out: they are those of the whole host."""
    return re.findall(r"[1-9]\d* (?:unfinished|sockets|half|slots)", check_of_leftovers["text"])


def load(path):
    """A JSON file, or nothing when it is not there."""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


@test(home="copy")
def leftovers_are_found_and_removed(box):
    equal(of_this_home(checks(box)[0]["leftovers"]), [])
    left = leave_things(box)
    each, result = checks(box)
    check(result.code in (0, 1), result)
    equal(each["leftovers"]["state"], "warning")
    contains(each["leftovers"]["mend"], "box doctor --fix")
    for path, what in left.items():
        contains(each["leftovers"]["text"], what)
        check(path == "gone" or os.path.lexists(path), f"{path} went without --fix")
    each, _ = checks(box, "--fix")
    equal(of_this_home(each["leftovers"]), [])
    for path in left:
        check(not os.path.lexists(path), f"{path} is still there")
    check("gone" not in json.dumps(load(box.path("ids.json"))), "the slot is still taken")
    equal(box.sh("echo fine").ok().out, b"fine\n")


@test()
def a_control_group_of_a_dead_machine(box):
    dead = subprocess.Popen(["true"])
    dead.wait()
    for place in HIERARCHIES:
        group = f"{place}/box-{dead.pid}-test"
        try:
            os.mkdir(group)
            break
        except OSError:
            continue
    else:
        skip("no control group can be made here")
    # Any command of box may sweep, also one of another home. It cannot while a process is in it.
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        with open(group + "/cgroup.procs", "w", encoding="utf-8") as file:
            file.write(str(sleeper.pid))
        found = checks(box)[0]["leftovers"]
        equal(found["state"], "warning")
        contains(found["text"], re.compile(r"\b[1-9]\d* control groups"))
    finally:
        sleeper.kill()
        sleeper.wait()
    box.run("doctor", "--fix")
    check(not os.path.exists(group), f"{group} is still there")


@test(home="copy")
def what_lives_is_no_leftover(box):
    with box.up():
        each, _ = checks(box, "--fix")
        equal(of_this_home(each["leftovers"]), [])
        equal(box.exec("echo alive").ok().out, b"alive\n")
