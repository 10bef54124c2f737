"""Machines that are kept ready: `warm: N` in the Boxfile."""

import hashlib
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import time

from lib import (MIB, TINY, check, contains, descendants, equal, processes, test, wait_until)

# A machine is made in one or two seconds; on a busy host in ten.
PATIENCE = 60


def boxfile(count, *lines):
    return TINY + f"warm: {count}\n" + "".join(line + "\n" for line in lines)


def ready(box, name="tiny"):
    """The names of the sockets of the machines that are ready."""
    try:
        return sorted(each for each in os.listdir(box.path("run", name))
                      if each.startswith("warm-"))
    except FileNotFoundError:
        return []


def keepers(box, name="tiny"):
    """The process IDs of the keepers that listen there."""
    found = set()
    for each in ready(box, name):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            try:
                peer.connect(box.path("run", name, each))
            except OSError:
                # Claimed or gone since.
                continue
            pid, _, _ = struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET,
                                                             socket.SO_PEERCRED, 12))
            found.add(pid)
    return found


def monitor_of(keeper):
    """The monitor below a keeper: the innermost of its processes."""
    return descendants(keeper)[-1].pid


def live():
    return {each.pid for each in descendants(os.getpid())}


def await_ready(box, count, name="tiny"):
    wait_until(f"{count} machines that are ready", lambda: len(keepers(box, name)) == count,
               PATIENCE)


def fill(box, count, *lines):
    """Has `count` machines made, by a run."""
    box.write_boxfile("tiny", boxfile(count, *lines))
    box.sh("true", "--data", "none").ok()
    await_ready(box, count)


def drain(box, count=None):
    """Ends them, and nothing is left."""
    result = box.run("down", "--pool", "tiny").ok()
    if count is not None:
        contains(result.out, re.compile(rf"^{count} machines? kept ready ended", re.M))
    box.clean(1)


def warm(box, *arguments, **rest):
    """Runs box with these arguments, and makes sure that it took a machine that was ready."""
    with open(box.path("sandboxes/tiny/Boxfile"), encoding="utf-8") as file:
        # All of them, so that it is known which there are.
        await_ready(box, int(re.search(r"^warm: (\d+)", file.read(), re.M).group(1)))
    before = keepers(box)
    result = box.run(*arguments, **rest)
    one_is_gone(before, result)
    return result


def one_is_gone(before, said):
    """Of these keepers one has been used. It ends a moment after box does."""
    wait_until(f"that one of {before} is used: {said}", lambda: len(before - live()) == 1, 5)


def warm_sh(box, script, *options, **rest):
    return warm(box, "run", *options, "tiny", "--", "sh", "-c", script, **rest)


@test(home="copy")
def as_many_are_kept_as_the_boxfile_says(box):
    fill(box, 3)
    first = keepers(box)
    time.sleep(2)
    equal(keepers(box), first, "those that are ready")
    equal(len([each for each in descendants(os.getpid())
               if each.parent in first and each.name.startswith("qemu-system")]), 3, "monitors")
    drain(box, 3)
    equal(box.run("down", "--pool", "tiny").ok().text.splitlines()[-1],
          "0 machines kept ready ended")


@test(home="copy")
def those_that_are_just_being_made_are_ended_too(box):
    box.write_boxfile("tiny", boxfile(2))
    for _ in range(5):
        box.sh("true", "--data", "none").ok()
        # At once, before they listen.
        box.run("down", "--pool", "tiny").ok()
        equal(ready(box), [])
        box.clean(0.2)


@test(home="copy")
def none_are_kept_unless_the_boxfile_says_so(box):
    box.sh("true").ok()
    time.sleep(2)
    box.clean(0.5)


@test(home="copy")
def their_memory_is_listed(box):
    fill(box, 2)
    pool = box.run("ls", "--json").ok().json()[0]["pool"]
    equal(pool["machines"], 2, pool)
    check(10 * MIB < pool["memory_bytes"] < 2 * 256 * MIB, pool)
    contains(box.run("ls").ok().out, "2 warm")
    drain(box, 2)
    equal(box.run("ls", "--json").ok().json()[0]["pool"], {"machines": 0, "memory_bytes": 0})


@test(home="copy")
def a_run_that_was_waited_for_is_like_any_other(box):
    fill(box, 2)
    for code in (0, 3, 255):
        warm_sh(box, f"exit {code}").exits(code)
    warm_sh(box, "kill -9 $$").exits(137)
    warm(box, "run", "tiny", "--", "no-such-command").exits(127)
    result = warm_sh(box, "echo out; echo err >&2")
    equal((result.out, result.err), (b"out\n", b"err\n"), "the streams")
    data = bytes(range(256)) * 4096
    equal(warm(box, "run", "-i", "tiny", "--", "cat", input=data).ok().out == data, True, "stdin")
    result = warm(box, "run", "-e", "WORD=a  b", "-w", "/usr", "-u", "agent", "tiny", "--", "sh",
                  "-c", 'echo "$WORD $(pwd) $(id -un)"')
    equal(result.ok().text, "a  b /usr agent\n")
    drain(box)


@test(home="copy")
def time_limits_and_terminals_work_in_it(box):
    fill(box, 2)
    result = warm_sh(box, "echo begun; sleep 100", "--timeout", "1").exits(124)
    equal(result.out, b"begun\n")
    check(result.seconds < 20, f"took {result.seconds:.1f} s")
    wait_until("a machine that is ready", lambda: keepers(box), PATIENCE)
    before = keepers(box)
    terminal = box.terminal("run", "-it", "tiny", "--", "sh", "-c",
                            "test -t 0 && test -t 1 && stty size; read x; echo \"<$x>\"",
                            rows=31, columns=99)
    terminal.expect(b"31 99\r\n")
    terminal.send(b"typed\r")
    code, seen = terminal.wait()
    equal(code, 0, seen)
    contains(seen, "<typed>")
    one_is_gone(before, seen)
    drain(box)


@test(home="copy")
def data_of_its_own(box):
    digest = "head -c 3000000 /data/large | sha256sum"
    script = "head -c 3000000 /dev/urandom > /data/large; echo kept > /data/word; " + digest
    before = box.sh(script).ok().text
    fill(box, 2)
    equal(warm_sh(box, digest).ok().text, before, "what a run before had written")
    warm_sh(box, "echo warm >> /data/word; mkdir /data/folder; rm /data/large").ok()
    equal(warm_sh(box, "cat /data/word; ls -d /data/folder /data/large 2>/dev/null").text,
          "kept\nwarm\n/data/folder\n")
    result = warm_sh(box, """
        device=$(awk '$2 == "/data" { print $1 }' /proc/mounts)
        cat /sys/class/block/${device##*/}/size""").ok()
    equal(int(result.text) * 512, 64 * MIB, "size of the disk")
    drain(box)
    equal(box.sh("cat /data/word").ok().text, "kept\nwarm\n", "in a machine that was not waiting")
    drain(box)


@test(home="copy")
def what_comes_next_need_not_wait(box):
    """/data is free when a run ends. Its monitor stands still then, and is killed only after that."""
    fill(box, 1)
    states = []
    for _ in range(6):
        await_ready(box, 1)
        keeper, = keepers(box)
        # What it has touched takes time to give back; the shell loses none between the two.
        touch = "dd if=/dev/zero of=/tmp/x bs=1M count=100 2>/dev/null"
        result = subprocess.run(
            ["sh", "-c", f"'{box.binary}' run tiny -- sh -c '{touch}' || exit; "
             f"{{ read a b state c < /proc/{monitor_of(keeper)}/stat; }} 2>/dev/null || state=gone; "
             f"echo $state; '{box.binary}' run tiny -- true"],
            env=box.environ(), capture_output=True, check=True)
        check(b"held by" not in result.stderr, result.stderr)
        states.append(result.stdout.decode().strip())
    # The processors may have had more to do than that.
    check("T" in states and "S" not in states, states)
    drain(box)


@test(home="copy")
def a_run_ends_with_its_command(box):
    """Also while its client stands still, which finds all there when it goes on."""
    fill(box, 1)
    for kind in ("from the pool", "restored"):
        if kind == "restored":
            drain(box)
        running = box.start_sh(f"echo ready; sleep 1; echo {kind} > /data/word; echo last; exit 7")
        running.read_until(b"ready\n")
        running.signal(signal.SIGSTOP)
        try:
            # It waits for /data.
            equal(box.sh("cat /data/word; rm /data/word", timeout=20).ok().text, f"{kind}\n")
        finally:
            running.signal(signal.SIGCONT)
        equal(running.wait(20).exits(7).out, b"ready\nlast\n")
    drain(box)


@test(home="copy")
def a_claim_was_rehearsed(box):
    """Before it waits, a machine has mounted a new /data and a used one, and looked for commands."""
    fill(box, 1)
    said = warm_sh(box, "dmesg").ok().text
    equal(len(re.findall(r"EXT4-fs \(vdb\): mounted", said)), 3, said)
    drain(box)


@test(home="copy")
def data_that_cannot_be_mounted(box):
    """Said by the machine that was ready as by one that was not; the next /data is mounted again."""
    box.sh("device=$(awk '$2 == \"/data\" { print $1 }' /proc/mounts); "
           "dd if=/dev/urandom of=$device bs=4096 seek=1 count=1; sync").ok()
    fill(box, 1)
    equal(warm_sh(box, "echo ran").fails("cannot mount", "box reset").text, "")
    box.clean(5)
    box.sh("echo ran", "--cold").fails("cannot mount")
    box.run("reset", "-y", "tiny").ok()
    equal(box.sh("echo ran > /data/file; cat /data/file").ok().text, "ran\n")
    await_ready(box, 1)
    drain(box)


@test(home="copy")
def no_data_and_a_copy_of_it(box):
    box.sh("echo kept > /data/word").ok()
    fill(box, 2)
    equal(warm_sh(box, "grep -c ' /data ' /proc/mounts; ls -A /data", "--data", "none").text,
          "0\n")
    equal(warm_sh(box, "cat /data/word; echo lost > /data/word", "--data", "clone").ok().text,
          "kept\n")
    equal(warm_sh(box, "cat /data/word").ok().text, "kept\n")
    # A copy of what a machine holds that was waiting itself.
    await_ready(box, 2)
    holder = box.start_sh("echo now > /data/word; sync; echo ready; read x", "-i", stdin=-1)
    holder.read_until(b"ready\n")
    equal(warm_sh(box, "cat /data/word", "--data", "clone").ok().text, "now\n")
    waiting = box.start_sh("cat /data/word")
    waiting.read_until(b"is held by another machine", stream=2)
    holder.process.stdin.close()
    holder.process.stdin = None
    holder.wait().exits(1)
    equal(waiting.wait().ok().text, "now\n")
    drain(box)


@test(home="copy")
def a_machine_is_used_once(box):
    fill(box, 2)
    warm_sh(box, "echo secret > /tmp/x; echo secret > /etc/x; echo secret > /data/../x").ok()
    for _ in range(2):
        equal(warm_sh(box, "ls /tmp/x /etc/x /x 2>/dev/null | wc -l").text, "0\n")
    drain(box)


@test(home="copy")
def no_two_runs_get_the_same(box):
    fill(box, 4)
    running = [box.start_sh("cat /etc/machine-id; sleep 1", "--data", "none") for _ in range(20)]
    found = [each.wait().ok() for each in running]
    for each in found:
        check(re.fullmatch("[0-9a-f]{32}\n", each.text), each)
        equal(each.error, "", each)
    equal(len({each.text for each in found}), 20, "machines")
    # All at once for the only one.
    box.write_boxfile("tiny", boxfile(1))
    drain(box)
    fill(box, 1)
    for _ in range(3):
        await_ready(box, 1)
        running = [box.start_sh("cat /etc/machine-id", "--data", "none") for _ in range(3)]
        equal(len({each.wait().ok().text for each in running}), 3, "machines")
    drain(box)


@test(home="copy")
def what_is_used_is_made_anew(box):
    fill(box, 2)
    before = keepers(box)
    running = box.start_sh("echo ready; read x", "-i", stdin=-1)
    running.read_until(b"ready\n")
    used = before - keepers(box)
    equal(len(used), 1, "machines taken")
    # While it runs.
    await_ready(box, 2)
    equal(len(keepers(box) - before), 1, "new machines")
    check(used <= live(), "the machine of the run is gone")
    running.process.stdin.close()
    running.process.stdin = None
    running.wait().exits(1)
    equal(len(keepers(box)), 2, "machines after the run")
    drain(box, 2)


@test(home="copy")
def a_machine_of_an_older_boxfile_is_not_taken(box):
    fill(box, 2)
    before = keepers(box)
    box.write_boxfile("tiny", boxfile(2).replace("ram_mib: 256", "ram_mib: 192"))
    memory = "awk '/MemTotal/ { print $2 }' /proc/meminfo"
    result = box.sh(memory).ok()
    check(int(result.text) < 192 * 1024, result)
    contains(result.err, "instead of restoring it")
    wait_until("the end of those of the older Boxfile", lambda: not before & live(), 5)
    box.run("build", "tiny", timeout=200).ok()
    result = box.sh(memory).ok()
    check(int(result.text) < 192 * 1024, result)
    equal(result.error, "")
    await_ready(box, 2)
    check(int(warm_sh(box, memory).ok().text) < 192 * 1024, "a warm machine has more")
    drain(box)


@test(home="copy")
def a_build_ends_them(box):
    fill(box, 2)
    before = keepers(box)
    box.run("build", "tiny").ok()
    equal(keepers(box), before, "after a build that had nothing to do")
    result = box.run("build", "--no-cache", "tiny", timeout=200).ok()
    equal((ready(box), before & live()), ([], set()), "machines that are ready")
    box.clean(0.5)
    box.sh("true").ok()
    await_ready(box, 2)
    warm_sh(box, "true").ok()
    drain(box)
    check(result.seconds > 1, "it built nothing")


@test(home="copy")
def one_that_is_not_used_goes_away(box):
    fill(box, 1, "warm_idle: 10s")
    began = time.monotonic()
    keeper = keepers(box)
    wait_until("that it has gone", lambda: not keeper & live(), 20)
    passed = time.monotonic() - began
    check(passed > 8, f"it went after {passed:.1f} s")
    box.clean(1)


@test(home="copy")
def with_warm_0_none_are_made(box):
    fill(box, 2)
    box.write_boxfile("tiny", boxfile(0))
    before = keepers(box)
    for _ in range(3):
        box.sh("true").ok()
    time.sleep(2)
    equal(keepers(box) - before, set(), "machines that were made")
    drain(box)
    # And with fewer, fewer.
    fill(box, 3)
    box.write_boxfile("tiny", boxfile(1))
    drain(box, 3)
    box.sh("true").ok()
    await_ready(box, 1)
    time.sleep(2)
    equal(len(keepers(box)), 1, "machines")
    drain(box, 1)


@test(home="copy")
def the_keeper_of_one_is_killed(box):
    fill(box, 2)
    for pid in keepers(box):
        os.kill(pid, signal.SIGKILL)
    equal(box.sh("echo fine").ok().out, b"fine\n")
    await_ready(box, 2)
    os.kill(min(keepers(box)), signal.SIGKILL)
    drain(box)
    # Without a run that finds out.
    fill(box, 1)
    os.kill(min(keepers(box)), signal.SIGKILL)
    drain(box)


@test(home="copy")
def the_monitor_of_one_is_killed(box):
    fill(box, 2)
    before = keepers(box)
    for pid in before:
        os.kill(monitor_of(pid), signal.SIGKILL)
    equal(box.sh("echo fine").ok().out, b"fine\n")
    wait_until("that their keepers have gone", lambda: not before & live(), 10)
    await_ready(box, 2)
    drain(box, 2)


@test(home="copy")
def a_machine_dies_while_it_is_used(box):
    for name in ("keeper", "monitor"):
        fill(box, 1)
        keeper = min(keepers(box))
        running = box.start_sh("echo ready; sleep 100")
        running.read_until(b"ready\n")
        os.kill(keeper if name == "keeper" else monitor_of(keeper), signal.SIGKILL)
        result = running.wait(20).exits(125)
        check(result.err.startswith(b"box: "), result)
        drain(box)
        equal(box.sh("echo fine").ok().out, b"fine\n")
        drain(box)


@test(home="copy")
def box_is_killed_while_it_takes_one(box):
    fill(box, 2)
    for pause in (0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.15):
        await_ready(box, 2)
        running = box.start_sh("sleep 100")
        time.sleep(pause)
        running.signal(signal.SIGKILL)
        running.wait(20)
        equal(box.sh("echo fine", "--timeout", "60").ok().out, b"fine\n")
    drain(box)


@test(home="copy")
def one_that_hangs_can_be_given_up(box):
    fill(box, 1)
    keeper = min(keepers(box))
    os.kill(monitor_of(keeper), signal.SIGSTOP)
    running = box.start_sh("true")
    time.sleep(1)
    check(running.process.poll() is None, "it did not wait")
    running.signal(signal.SIGINT)
    running.wait(20).exits(130)
    wait_until("that it has gone", lambda: keeper not in live(), 10)
    equal(box.sh("echo fine").ok().out, b"fine\n")
    drain(box)


@test(home="copy")
def destroy_ends_them(box):
    fill(box, 2)
    before = keepers(box)
    box.run("destroy", "-y", "--data", "tiny").ok()
    equal(before & live(), set(), "machines that are ready")
    box.clean(0.5)
    equal(box.run("ls", "--json").ok().json(), [])


@test(home="copy", timeout=400)
def warmup_runs_before_the_snapshot(box):
    lines = ["warmup:", "  - mkdir /run/warmed && echo $$ > /run/warmed/first",
             "  - cp /run/warmed/first /run/warmed/second", "  - echo disk > /warmed"]
    box.write_boxfile("tiny", boxfile(1, *lines))
    box.run("build", "tiny", timeout=200).ok()
    look = "grep -c ' /run tmpfs' /proc/mounts; cat /run/warmed/second /warmed"
    result = box.sh(look).ok()
    check(re.fullmatch(r"1\n\d+\ndisk\n", result.text), result)
    await_ready(box, 1)
    equal(warm_sh(box, look).ok().text, result.text, "in a machine that was waiting")
    # Only the snapshot has it.
    equal(box.sh("ls /run/warmed /warmed 2>/dev/null | wc -l", "--cold").text, "0\n")
    # One that fails fails the build, and what was built before stays.
    box.write_boxfile("tiny", boxfile(1, "warmup:", "  - echo broken >&2; exit 7"))
    result = box.run("build", "tiny", timeout=200)
    check(result.code not in (0, -signal.SIGABRT), result)
    contains(result.err, "box: ")
    drain(box)


@test(home="copy")
def no_two_are_alike(box):
    script = "head -c 32 /dev/urandom | sha256sum; cat /etc/machine-id; " \
        "cat /proc/sys/kernel/random/boot_id; cat /proc/sys/kernel/random/uuid; hostname"
    fill(box, 2)
    found = [warm_sh(box, script).ok().text.split("\n") for _ in range(3)]
    drain(box)
    found.append(box.sh(script).ok().text.split("\n"))
    for index, what in enumerate(("random bytes", "machine ID", "boot ID", "random uuid")):
        values = {each[index] for each in found}
        check(min(map(len, values)) >= 32, f"no {what}: {values}")
        equal(len(values), len(found), f"different {what} of {len(found)} machines")
    equal({each[4] for each in found}, {"tiny"}, "host name")
    drain(box)


def ask_time(running):
    """(how much the guest is ahead of this host, how long the way took), in seconds."""
    began = time.time()
    size = len(running.seen[1])
    running.process.stdin.write(b"\n")
    running.process.stdin.flush()
    while not running.seen[1][size:].endswith(b"\n"):
        running.seen[1] += os.read(running.process.stdout.fileno(), 4096)
    ended = time.time()
    inside = float(running.seen[1][size:])
    return inside - (began + ended) / 2, ended - began


@test(home="copy")
def the_clock_of_one_that_was_stopped(box):
    fill(box, 1)
    monitor = monitor_of(min(keepers(box)))
    os.kill(monitor, signal.SIGSTOP)
    time.sleep(5)
    os.kill(monitor, signal.SIGCONT)
    # adjtimex prints the time with microseconds; date(1) of busybox does not. To step the clock must
    # not have changed what it counts in (STA_NANO, 0x2000).
    running = box.start_sh("while read x; do adjtimex | awk '"
                           "/status/ && int($2 / 8192) % 2 { print 0; exit } "
                           "/time.tv_sec/ { s = $2 } "
                           "/time.tv_usec/ { printf \"%d.%06d\\n\", s, $2 }'; done", "-i", stdin=-1)
    found = [ask_time(running) for _ in range(12)]
    check(monitor in live(), "another machine was used")
    ahead, way = min(found, key=lambda each: each[1])
    check(way < 1, f"the shortest way took {way:.3f} s")
    check(abs(ahead) < 0.05 + way / 2, f"the clock is {ahead:.3f} s ahead: {found}")
    # Nor was it wrong for whoever looked first.
    check(abs(found[0][0]) < 0.05 + found[0][1] / 2, f"at first {found[0]}")
    running.process.stdin.close()
    running.process.stdin = None
    running.wait()
    drain(box)


def picture(top):
    """Everything below a directory, as it is on the disk."""
    found = {}
    for folder, folders, names in os.walk(top):
        for name in folders + names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            data = None
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    data = hashlib.sha256(file.read()).hexdigest()
            found[path] = (status.st_ino, status.st_mode, status.st_mtime_ns, data)
    return found


@test(home="copy")
def other_sandboxes_are_let_alone(box):
    box.make("other", TINY)
    before = picture(box.path("sandboxes/other"))
    tree = box.tree()
    fill(box, 2)
    warm_sh(box, "echo x > /data/x").ok()
    drain(box)
    equal(box.tree(), tree, "files in the home")
    fill(box, 2)
    # A pool of one is none of the other.
    contains(box.run("down", "--pool", "other").ok().out, "0 machines kept ready")
    await_ready(box, 2)
    equal(picture(box.path("sandboxes/other")), before, "files of the other sandbox")
    box.run("destroy", "-y", "--data", "tiny").ok()
    equal(picture(box.path("sandboxes/other")), before, "files of the other sandbox")
    box.clean(1)


@test(home="copy")
def the_log_has_what_was_run_and_no_more(box):
    fill(box, 1)
    warm_sh(box, "echo logged-command").ok()
    lines = box.run("logs", "--json", "tiny").ok().text.splitlines()
    check(any("logged-command" in line for line in lines), lines)
    check(not any("exec true" in line for line in lines), lines)
    drain(box)


@test(home="copy")
def a_machine_that_stays_beside_them(box):
    fill(box, 1)
    before = keepers(box)
    box.run("up", "tiny").ok()
    equal(keepers(box), before, "those that are ready")
    equal(box.run("exec", "tiny", "--", "echo", "up").ok().out, b"up\n")
    warm_sh(box, "echo beside", "--data", "none").ok()
    await_ready(box, 1)
    box.run("down", "tiny").ok()
    equal(len(keepers(box)), 1, "those that are ready after `down`")
    drain(box, 1)


@test(home="copy")
def none_are_a_child_of_the_terminal(box):
    fill(box, 1)
    for pid in keepers(box):
        # Its streams lead nowhere, and its directory keeps no file system busy.
        for fd in (0, 1, 2):
            equal(os.readlink(f"/proc/{pid}/fd/{fd}"), "/dev/null", f"descriptor {fd}")
        equal(os.readlink(f"/proc/{pid}/cwd"), "/", "directory")
        check(os.getsid(pid) != os.getsid(0) and os.getpgid(pid) != os.getpgid(0),
              "it is in the session of whoever ran box")
        check(processes()[pid].parent in (1, os.getpid()), "it is somebody's child")
    drain(box)
