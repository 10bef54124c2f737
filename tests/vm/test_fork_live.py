"""Forks of a machine that is up: of its /data alone, and of the machine with all that runs in it."""

import contextlib
import hashlib
import os
import random
import re
import signal
import time

from lib import Failed, check, contains, equal, test, wait_until

# Counts in a process, in a tmpfs and through a pipe, with files held open; fast enough that two
# machines that went on from different instants would be told apart.
COUNTER = r"""
exec 3>>/data/log 4>/tmp/open
mkfifo /tmp/pipe; sleep 100000 >/tmp/pipe & exec 5</tmp/pipe
(while read n <&5; do echo $n >/tmp/through; done) &
i=0
while :; do
  i=$((i + 1)); echo $i >&3; echo $i >&4; echo $i >/tmp/now; echo $i >/tmp/pipe
  usleep 20000
done
"""

IDENTITY = ("hostname; cat /etc/machine-id; cat /proc/sys/kernel/random/boot_id; "
            "head -c 16 /dev/urandom | hexdump -v -e '16/1 \"%02x\"'; echo; date +%s")


@contextlib.contextmanager
def live_forks(box, *names, options=()):
    """Names of forks of tiny that are up, and all gone after it."""
    try:
        yield box.run("fork", "--live", *options, "tiny", names[0].rsplit("-", 1)[0]
                      if options else names[0]).ok()
    finally:
        for name in names:
            box.run("down", name, timeout=60)
            box.run("discard", "-y", name, timeout=60)


def numbers(box, name, path="/data/log"):
    # The detached command may not have made its files yet.
    said = box.exec(f"test ! -e /data/log || cat {path}", name=name).ok()
    return [int(each) for each in said.text.split()]


def counts_on(box, name):
    """The counter of a machine has lost nothing, and goes on."""
    before = numbers(box, name)
    equal(before, list(range(1, len(before) + 1)), f"{name}: /data/log")
    equal(numbers(box, name, "/tmp/open")[:len(before)], before, f"{name}: an open file")

    def further():
        now = numbers(box, name, "/tmp/now /tmp/through")
        return len(now) == 2 and min(now) > before[-1]
    wait_until(f"{name} counts on", further, 20)
    return before


# Stops what the keeper runs inside before it forks, as soon as it is seen.
STOPPER = r"""
echo $$ >/tmp/stopper
while :; do
  for p in /proc/[0-9]*; do
    c=; read -r c 2>/dev/null <$p/cmdline
    case $c in box-sync*)
      kill -STOP ${p#/proc/} && { [ -e /tmp/stopped ] || echo ${p#/proc/} >/tmp/stopped; };;
    esac
  done
done
"""


@test(home="copy", timeout=300)
def a_guest_that_never_syncs(box):
    """Root inside cannot keep the chain's lock in use, nor a client waiting for ever."""
    with box.up():
        box.run("exec", "--detach", "--user", "root", "tiny", "--", "sh", "-c", STOPPER).ok()
        # What is to be written, so that there is time to be seen.
        box.exec("head -c 50000000 /dev/zero >/data/large").ok()
        box.run("fork", "tiny", "two", timeout=100).fails("could not be made to keep still")
        box.run("exec", "--user", "root", "tiny", "--", "sh", "-c",
                "kill -9 $(cat /tmp/stopper); kill -CONT $(cat /tmp/stopped)").ok()
        wait_until("a fork", lambda: box.run("fork", "tiny", "two").code == 0, 20)
        box.run("discard", "-y", "two").ok()


@test(home="copy")
def what_runs_runs_on_in_both(box):
    with box.up():
        box.run("exec", "--detach", "tiny", "--", "sh", "-c", COUNTER).ok()
        wait_until("a count", lambda: len(numbers(box, "tiny")) > 20)
        command = box.ps()[0]["id"]
        before = len(numbers(box, "tiny"))
        with live_forks(box, "two") as said:
            equal(said.text, "two\n")
            counts_on(box, "tiny")
            counts_on(box, "two")
            # They are two: each has what it wrote itself, after a common beginning.
            box.exec("echo mine >/data/who", name="two").ok()
            equal(box.exec("cat /data/who").code, 1)
            equal([each["id"] for each in box.ps("two")], [command])
            equal(box.ps("two")[0]["attached"], False)
            equal(box.row("two")["state"], "up")
            # It is box's own command in the fork too, and ends there alone.
            box.run("kill", "two", command).ok()
            wait_until("its end", lambda: not box.ps("two"))
            equal(len(box.ps()), 1)
            check(len(numbers(box, "two")) >= before)
        counts_on(box, "tiny")
        equal(box.ps()[0]["id"], command)
    box.clean()


@test(home="copy")
def a_fork_is_a_machine_of_its_own(box):
    with box.up():
        with live_forks(box, "two"):
            mine = box.exec(IDENTITY).ok().text.split()
            its = box.exec(IDENTITY, name="two").ok().text.split()
            equal((mine[0], its[0]), ("tiny", "two"))
            for index, what in ((1, "machine ID"), (2, "boot ID"), (3, "random bytes")):
                check(mine[index] != its[index], what, mine)
                equal(len(mine[index]), len(its[index]), what)
            for told in (mine, its):
                check(abs(int(told[4]) - time.time()) < 30, "the clock", told)
            contains(box.run("inspect", "two").ok().text, "two")
            # Its own state is as safe as any: down, and up again without the parent's memory.
            box.exec("echo kept >/data/kept; touch /tmp/gone", name="two").ok()
            box.run("down", "two").ok()
            equal(box.sh("cat /data/kept; ls /tmp", name="two").ok().text, "kept\n")
    box.clean()


@test(home="copy")
def several_at_once(box):
    names = ["many-1", "many-2", "many-3"]
    with box.up():
        box.run("exec", "--detach", "tiny", "--", "sh", "-c", COUNTER).ok()
        wait_until("a count", lambda: len(numbers(box, "tiny")) > 5)
        with live_forks(box, *names, options=("-n", "3")) as said:
            equal(said.text.split(), names)
            for name in ["tiny", *names]:
                counts_on(box, name)
            identities = [box.exec(IDENTITY, name=name).ok().text.split() for name in names]
            for index in range(4):
                equal(len({each[index] for each in identities}), 3, identities)
    box.clean()


@test(home="copy")
def a_machine_that_was_booted_and_a_fork_of_a_fork(box):
    with box.up("--cold"):
        box.run("exec", "--detach", "tiny", "--", "sh", "-c", COUNTER).ok()
        wait_until("a count", lambda: len(numbers(box, "tiny")) > 5)
        with live_forks(box, "two"):
            box.run("fork", "--live", "two", "three").ok()
            try:
                for name in ("tiny", "two", "three"):
                    counts_on(box, name)
                    equal(box.exec("hostname", name=name).ok().text, name + "\n")
            finally:
                box.run("down", "three", timeout=60)
                box.run("discard", "-y", "three", timeout=60)
    box.clean()


@test(home="copy")
def streams_are_whole_over_forks(box):
    """A command's input and output, while the machine is forked again and again."""
    data = random.Random(1).randbytes(3 << 20)
    with box.up():
        echo = box.start("exec", "-i", "tiny", "--", "cat", stdin=-1)
        got = hashlib.sha256()
        sent = received = 0
        forks = 0
        os.set_blocking(echo.process.stdin.fileno(), False)
        os.set_blocking(echo.process.stdout.fileno(), False)
        fork = box.start("fork", "tiny", f"f{forks}")
        deadline = time.monotonic() + 120
        while received < len(data):
            check(time.monotonic() < deadline, f"{sent} sent, {received} received")
            moved = 0
            if sent < len(data):
                # Not faster than the forks are made.
                limit = min(sent + 32768, max((forks + 1) * len(data) // 4, sent))
                try:
                    moved = os.write(echo.process.stdin.fileno(), data[sent:limit])
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    raise Failed(f"{sent} sent: {echo.wait(20)}") from None
                sent += moved
            with contextlib.suppress(BlockingIOError):
                piece = os.read(echo.process.stdout.fileno(), 65536)
                got.update(piece)
                received += len(piece)
                moved += len(piece)
            if fork and fork.process.poll() is not None:
                fork.wait().ok()
                forks += 1
                # The last of them with the machine.
                words = ("--live",) if forks == 3 else ()
                fork = box.start("fork", *words, "tiny", f"f{forks}") if forks < 4 else None
            if not moved:
                time.sleep(0.005)
        equal(got.hexdigest(), hashlib.sha256(data).hexdigest())
        echo.process.stdin.close()
        echo.process.stdin = None
        echo.wait(30).ok()
        if fork:
            fork.wait(60).ok()
        # What hung on a client is there still, and waits; box's own programs are not.
        box.run("down", "f3", timeout=60)
        for index in range(4):
            box.run("discard", "-y", f"f{index}", timeout=60)
    box.clean()


@test(home="copy")
def what_was_synced_is_in_the_fork(box):
    """Under write load: every line that was synced before the fork is there, and whole."""
    script = ("i=0; while :; do i=$((i + 1)); "
              "n=$(head -c 3000 /dev/urandom | md5sum | cut -c1-32); "
              "echo $i $n >/data/f$i; sync; echo $i $n; done")
    with box.up():
        writer = box.start_exec(script)
        writer.read_until(b"\n5 ")
        for index, words in enumerate(((), ("--live",))):
            name = f"f{index}"
            seen = writer.read_until(b"\n%d " % (len(writer.seen[1].splitlines()) + 3))
            synced = [line.split() for line in seen.decode().splitlines()[:-1]]
            box.run("fork", *words, "tiny", name).ok()
            run = box.exec if words else box.sh
            found = run("cd /data; for f in f*; do cat $f; done", name=name).ok().text
            lines = {line.split()[0]: line.split()[1] for line in found.splitlines()}
            for number, digest in synced:
                equal(lines.get(number), digest, f"{name}, line {number}")
        writer.process.kill()
        writer.wait(20)
        box.run("down", "f1").ok()
        for name in ("f0", "f1"):
            box.run("discard", "-y", name).ok()
    box.clean()


@test(home="copy")
def a_run_that_holds_data_is_forked(box):
    running = box.start_sh("echo begun >/data/x; echo ready; sleep 1000")
    running.read_until(b"ready\n")
    box.run("fork", "tiny", "two").ok()
    equal(box.sh("cat /data/x", name="two").ok().text, "begun\n")
    box.run("fork", "--live", "tiny", "three", timeout=60).fails("not up")
    running.signal(signal.SIGTERM)
    running.wait(30)
    equal(box.sh("cat /data/x").ok().text, "begun\n")
    box.run("discard", "-y", "two").ok()
    box.run("fork", "--live", "tiny", "three", timeout=60).fails(re.compile("not up"))
    box.clean()


@test(home="copy")
def what_keeps_the_guest_from_standing_still_is_told(box):
    with box.up():
        box.exec("umount /data").ok()
        box.run("fork", "tiny", "two").fails("keep still", "unmounted")
        equal(box.exec("echo fine").ok().text, "fine\n")
        equal(box.run("ls", "--json").json()[0]["name"], "tiny")
    box.clean()


@test(home="copy")
def a_copy_of_another_kernel_or_box_is_refused(box):
    with box.up():
        # What the fork's image was made from is not what the machine was started from.
        path = box.path("sandboxes/tiny/image/key")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        os.unlink(path)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "changed\n")
        box.run("fork", "--live", "tiny", "two").fails("have changed since")
        check(not os.path.exists(box.path("sandboxes/two")), "the fork is there")
        equal(box.exec("echo fine").ok().text, "fine\n")
    box.clean()


def last_line(box, name):
    """What the writer had got to, of a sandbox that is not up."""
    return int(box.sh("tail -n 1 /data/n", name=name, timeout=60).text or "0")


@test(home="copy", timeout=900, long=True)
def whatever_dies_meanwhile(box):
    """Thirty live forks, each with a process killed at a random instant."""
    chance = random.Random(int(os.environ.get("SEED", "7")))
    took = 1.5
    for turn in range(30):
        if box.row()["state"] != "up":
            box.run("up", "tiny").ok()
            box.run("exec", "--detach", "tiny", "--", "sh", "-c",
                    "i=0; while :; do i=$((i+1)); echo $i >>/data/n; sync; echo $i >/tmp/s; "
                    "done").ok()
        victim = chance.choice(("client", "keeper", "monitor", "any"))
        keeper, monitor = box.keeper().pid, box.monitor().pid
        synced = (box.exec("cat /tmp/s || echo 0").ok().text or "0").split()[0]
        began = time.monotonic()
        fork = box.start("fork", "--live", "tiny", "two")
        time.sleep(chance.uniform(0, 1.1 * took))
        pid = {"client": fork.pid, "keeper": keeper, "monitor": monitor}.get(victim)
        if pid is None:
            pid = chance.choice([each.pid for each in box.machines()] or [keeper])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        result = fork.wait(60)
        if result.code == 0:
            took = 0.5 * took + 0.5 * (time.monotonic() - began)
        what = f"turn {turn}, {victim}:\n{result}"
        if victim == "client":
            equal(box.row()["state"], "up", what)
        # Whatever there is of the fork is a whole sandbox.
        if os.path.exists(box.path("sandboxes/two")):
            box.run("down", "two", timeout=60).ok()
            there = last_line(box, "two")
            check(there >= int(synced), what, there, synced)
            box.run("discard", "-y", "two").ok()
        # A keeper that has lost its monitor is on its way out.
        wait_until(what, lambda: box.row()["state"] != "up" or
                   box.exec("true", timeout=60).code == 0, 20)
        if box.row()["state"] != "up":
            there = last_line(box, "tiny")
            check(there >= int(synced), what, there, synced)
    box.run("down", "tiny", timeout=60).ok()
    box.clean()
    equal(sorted(os.listdir(box.path("sandboxes"))), ["tiny"])
