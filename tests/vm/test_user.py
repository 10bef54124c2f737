"""The first ten minutes of a normal user, without root anywhere."""

import json
import os
import pwd
import re
import shutil
import stat
import subprocess

from lib import (PREFIX, TINY, Box, check, contains, descendants, equal, mirror_reason, need_root,
                 skip, test)


class User:
    """A fresh user with a home, a copy of box that it can read, and nothing else."""

    def __init__(self, folder, options=()):
        self.options = options
        self.name = f"boxtest{os.getpid()}"
        self.folder = folder
        os.makedirs(folder, mode=0o755)

    def __enter__(self):
        self.prefix = os.path.join(self.folder, "prefix")
        subprocess.run(["cp", "-a", PREFIX, self.prefix], check=True)
        subprocess.run(["useradd", "-m", "-d", os.path.join(self.folder, "home"), *self.options,
                        self.name], check=True, capture_output=True)
        entry = pwd.getpwnam(self.name)
        box = Box(os.path.join(entry.pw_dir, ".box"), os.path.join(self.prefix, "bin/box"))
        os.chown(box.temporary, entry.pw_uid, entry.pw_gid)
        box.user = entry
        box.environment.update(HOME=entry.pw_dir, USER=self.name, LOGNAME=self.name)
        # The default, ~/.box, is what a new user has.
        del box.environment["BOX_HOME"]
        return box

    def __exit__(self, *_):
        subprocess.run(["userdel", "-r", self.name], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def as_user(box, *options):
    need_root()
    if not shutil.which("useradd", path="/usr/sbin:/usr/bin"):
        skip("no useradd")
    return User(box.home + ".user", options)


def ids_of_a_monitor(box, name):
    """The user IDs and group IDs, supplementary ones too, of the monitor of a run."""
    running = box.start_sh("echo ready; read x", "-i", name=name, stdin=-1)
    running.read_until(b"ready\n")
    monitor = box.monitor()
    found = [{int(each) for each in monitor.status(field).split()}
             for field in ("Uid", "Gid", "Groups")]
    running.process.stdin.close()
    running.process.stdin = None
    running.wait(60)
    box.clean()
    return found


def every_sandbox_has_its_own(box, uids, gids):
    """In these ranges, none of them an ID of an account, and not the same in two sandboxes."""
    found = {}
    for name in ("first", "second"):
        box.make(name)
        box.run("build", name, timeout=400).ok()
        found[name] = ids_of_a_monitor(box, name)
        uid, gid, groups = found[name]
        equal((len(uid), len(gid), groups), (1, 1, set()), f"IDs of the monitor: {found[name]}")
        check(min(uid) in uids and min(gid) in gids, f"the monitor has {found[name]}")
    check(not found["first"][0] & found["second"][0], f"one user ID for both: {found}")
    check(not found["first"][1] & found["second"][1], f"one group ID for both: {found}")
    # It keeps what it has.
    equal(ids_of_a_monitor(box, "first"), found["first"], "IDs at the second start")
    with open(box.path("ids.json"), encoding="utf-8") as file:
        equal(sorted(json.load(file)["slots"]), ["first", "second"], "slots")
    box.run("destroy", "-y", "--data", "first").ok()
    with open(box.path("ids.json"), encoding="utf-8") as file:
        equal(sorted(json.load(file)["slots"]), ["second"], "slots after a destroy")


def subordinates(path, name):
    with open(path, encoding="utf-8") as file:
        for line in file:
            owner, first, count = line.strip().split(":")
            if owner == name:
                return range(int(first), int(first) + int(count))
    return range(0)


@test(home="empty", timeout=900)
def every_sandbox_of_a_user_has_its_own_ids(box):
    with as_user(box) as user:
        uids, gids = (subordinates(path, user.user.pw_name) for path in ("/etc/subuid", "/etc/subgid"))
        check(uids and gids, "useradd gave no subordinate IDs")
        every_sandbox_has_its_own(user, uids, gids)
        user.write_boxfile("second", TINY + "isolation: standard\n")
        equal(ids_of_a_monitor(user, "second")[:2], [{user.user.pw_uid}, {user.user.pw_gid}],
              "IDs under isolation: standard")
        contains(user.run("doctor").text, re.compile("subordinate IDs +2560 slots .* 1 of them taken"))


@test(home="empty", timeout=900)
def every_sandbox_of_root_has_its_own_ids(box):
    need_root()
    own = [subordinates(path, "root") or range(524289, 1879048192)
           for path in ("/etc/subuid", "/etc/subgid")]
    every_sandbox_has_its_own(box, *own)
    box.write_boxfile("second", TINY + "isolation: standard\n")
    equal(ids_of_a_monitor(box, "second")[:2], [{524288}, {524288}], "IDs under isolation: standard")


@test(home="empty", timeout=600)
def a_user_without_subordinate_ids(box):
    with as_user(box, "-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0") as user:
        equal(len(subordinates("/etc/subuid", user.user.pw_name)), 0, "subordinate IDs")
        line = re.compile(r"`sudo (usermod --add-subuids (\d+)-(\d+) --add-subgids \2-\3 "
                          + user.user.pw_name + r")`, or put `isolation: standard` into the Boxfile")
        # It can be made, and edited, but not started.
        result = user.run("new", "first", "--from", "tiny").ok()
        contains(result.err, line)
        result = user.run("build", "first", timeout=200).fails()
        contains(result.err, line)
        command = re.search(line, result.err.decode()).group(1)
        check(user.run("doctor").exits(1), "doctor")
        contains(user.run("doctor").text, command)
        with open(user.path("sandboxes/first/Boxfile"), encoding="utf-8") as file:
            before = file.read()
        user.write_boxfile("first", before + "isolation: standard\n")
        user.run("build", "first", timeout=400).ok()
        equal(ids_of_a_monitor(user, "first")[0], {user.user.pw_uid}, "IDs without others")
        # What was told does mend it.
        subprocess.run(command.split(), check=True, capture_output=True)
        user.write_boxfile("first", before)
        found = ids_of_a_monitor(user, "first")
        check(min(found[0]) in subordinates("/etc/subuid", user.user.pw_name), f"{found}")


@test(home="empty", timeout=600)
def the_first_ten_minutes(box):
    with as_user(box) as user:
        result = user.run("new", "first", "--from", "tiny").ok()
        equal(result.text.strip(), user.path("sandboxes/first/Boxfile"))
        user.run("build", "first", timeout=400).ok()
        equal(user.run("run", "first", "--", "echo", "hello").ok().text, "hello\n")
        equal(user.sh("id -u; echo kept > /data/x", name="first").ok().text, "0\n")
        equal(user.sh("cat /data/x", name="first").ok().text, "kept\n")
        user.sh("exit 3", name="first").exits(3)
        user.sh("sleep 60", "--timeout", "1", name="first").exits(124)
        contains(user.run("ls").ok().text, re.compile("^first", re.M))
        user.run("verify", "first").ok()
        check(user.run("doctor").code in (0, 1), "doctor")
        owners = {os.lstat(os.path.join(folder, name)).st_uid
                  for folder, folders, names in os.walk(user.home) for name in folders + names}
        equal(owners, {user.user.pw_uid}, "owners of what is in the home")
        equal(stat.S_IMODE(os.stat(user.home).st_mode), 0o700, "mode of the home")
        user.clean()
        user.run("destroy", "-y", "--data", "first").ok()
        equal(user.run("ls").ok().out, b"")


@test(home="empty", timeout=600)
def no_process_of_a_user_is_root(box):
    with as_user(box) as user:
        user.run("new", "first", "--from", "tiny").ok()
        user.run("build", "first", timeout=400).ok()
        running = user.start_sh("echo ready; read x", "-i", name="first", stdin=-1)
        running.read_until(b"ready\n")
        for each in descendants(os.getpid()):
            uids = each.status("Uid").split()
            check("0" not in uids, f"{each} has the IDs {uids}")
        monitor = user.monitor()
        check(str(user.user.pw_uid) not in monitor.status("Uid").split(), "the monitor is the user")
        equal(monitor.status("CapEff"), "0" * 16, "capabilities of the monitor")
        equal(monitor.status("CapBnd"), "0" * 16, "bounding set of the monitor")
        equal(monitor.status("NoNewPrivs"), "1", "no_new_privs of the monitor")
        equal(monitor.status("Seccomp"), "2", "seccomp of the monitor")
        running.process.stdin.close()
        running.process.stdin = None
        running.wait(60)


@test()
def a_monitor_started_by_root_is_not_root(box):
    need_root()
    running = box.start_sh("echo ready; read x", "-i", stdin=-1)
    running.read_until(b"ready\n")
    monitor = box.monitor()
    uids = monitor.status("Uid").split()
    check("0" not in uids, f"{monitor} has the IDs {uids}")
    equal(monitor.status("CapEff"), "0" * 16, "capabilities of the monitor")
    equal(monitor.status("Seccomp"), "2", "seccomp of the monitor")
    for each in ("net", "mnt", "pid", "user", "ipc", "uts"):
        check(os.readlink(f"/proc/{monitor.pid}/ns/{each}") != os.readlink(f"/proc/self/ns/{each}"),
              f"the monitor shares this {each} namespace")
    running.process.stdin.close()
    running.process.stdin = None
    running.wait(60)


@test(home="empty", timeout=900, long=True)
def python_for_a_user(box):
    reason = mirror_reason()
    if reason:
        skip(reason)
    with as_user(box) as user:
        user.run("new", "py", "--from", "python").ok()
        user.run("build", "py", timeout=800).ok()
        result = user.run("run", "py", "--", "python3", "-c", "print(6*7)").ok()
        equal(result.text, "42\n")
        user.clean()
