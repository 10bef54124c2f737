"""The first ten minutes of a normal user, without root anywhere."""

import os
import pwd
import re
import shutil
import stat
import subprocess

from lib import PREFIX, Box, check, contains, descendants, equal, mirror_reason, need_root, skip, test


class User:
    """A fresh user with a home, a copy of box that it can read, and nothing else."""

    def __init__(self, folder):
        self.name = f"boxtest{os.getpid()}"
        self.folder = folder
        os.makedirs(folder, mode=0o755)

    def __enter__(self):
        self.prefix = os.path.join(self.folder, "prefix")
        subprocess.run(["cp", "-a", PREFIX, self.prefix], check=True)
        subprocess.run(["useradd", "-m", "-d", os.path.join(self.folder, "home"), self.name],
                       check=True, capture_output=True)
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


def as_user(box):
    need_root()
    if not shutil.which("useradd", path="/usr/sbin:/usr/bin"):
        skip("no useradd")
    return User(box.home + ".user")


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
