"""Guests that turn on their host.

hostile.c, run as root inside, takes a port away from box-guest and breaks its rules. Each time the
machine must end with the reason, or go on where it was no mistake; nothing may grow, and a machine
beside it must not notice.
"""

import contextlib
import glob
import os
import re
import subprocess
import tempfile
import time

from lib import (MIB, TINY, TOP, add_peaks, check, descendants, equal, meanwhile, test,
                 wait_until)

SOURCES = [os.path.join(TOP, "tests/vm/hostile.c"), os.path.join(TOP, "src/base/check.c"),
           *sorted(glob.glob(os.path.join(TOP, "src/wire/*.c")))]
MEMORY_MAX = 64 * MIB
# Whoever is stopped, or writes nothing, is given 10 and 20 seconds. A busy host is slow besides.
LATE = 120
# What the guest does wrong, and what is said of it.
WRONG = (
    ("garbage", "a frame that is no frame"),
    ("oversized", "a frame that is no frame"),
    ("truncated", "a command's message that is not legal now"),
    ("out-of-order", "a message that is not legal now"),
    ("replayed", "a TIME that nobody had asked for"),
    ("ended-twice", "a message for a command that does not run"),
    ("streams", "a message for a command that does not run"),
    ("without-credit", "a command's message that is not legal now"),
)
WRONG_NETWORK = (
    ("net-garbage", "what it sent is no frame"),
    ("net-oversized", "what it sent is no frame"),
    ("net-out-of-order", "it sent a frame that the port does not have"),
    ("net-replayed", "it opened a stream out of turn"),
    ("net-streams", "it opened more streams than there may be"),
)


def compile_program():
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "hostile")
        subprocess.run(["cc", "-std=gnu17", "-D_GNU_SOURCE", "-static", "-O2", "-I",
                        os.path.join(TOP, "src"), "-o", program, *SOURCES], check=True)
        with open(program, "rb") as file:
            return file.read()


def script(*modes):
    """Takes the program from standard input and runs it once for each mode."""
    return "cat >/tmp/hostile && chmod +x /tmp/hostile && " + \
        " && ".join(f"/tmp/hostile {mode}" for mode in modes)


@contextlib.contextmanager
def watched():
    """Nobody who reads a guest's bytes has more than MEMORY_MAX meanwhile."""
    found = {}
    with meanwhile(lambda: add_peaks(found), 0.02):
        yield
    peaks = {name: found[name] for name in ("box-keeper", "box-net") if name in found}
    print("most memory: " + ", ".join(f"{name} {peak >> 10} KiB" for name, peak in peaks.items()))
    check(peaks.get("box-keeper", 0) > 0, "no keeper was seen")
    check(max(peaks.values()) < MEMORY_MAX, peaks)


@contextlib.contextmanager
def neighbour(box):
    """A machine beside, in which one command after the other must succeed."""
    results = []
    with box.up("--data", "none"):
        with meanwhile(lambda: results.append(box.run("exec", "tiny", "--", "true")), 0):
            yield
        check(results, "the machine beside did nothing")
        for result in results:
            result.ok()
    print(f"{len(results)} commands beside, {max(each.seconds for each in results):.2f} s at most")


def ends_its_machine(box, program, mode, port, reason, name="tiny"):
    # A machine that has nothing to write is gone with its command, before it can say more.
    data = "own" if mode == "ended-twice" else "none"
    running = box.start_sh(script(mode), "-i", "--data", data, name=name, stdin=subprocess.PIPE)
    running.process.stdin.write(program)
    running.process.stdin.close()
    running.process.stdin = None
    if mode == "without-credit":
        # Nobody reads what is said until the keeper has had enough of it.
        wait_until("the end of the keeper",
                   lambda: sum(each.name == "box-keeper" for each in descendants(os.getpid())) < 2,
                   LATE)
    said = f"the guest broke the protocol of its {port} port: {reason}"
    running.wait(LATE).fails(said, "the machine was ended")
    downs = re.findall(r'"text": ?"([^"]*)"', box.run("logs", name, "--json").ok().text)
    equal(downs[-1:], [f"{name}: {said}"], "the log")


@test(timeout=600)
def whoever_breaks_the_rules_loses_the_machine(box):
    program = compile_program()
    with neighbour(box), watched():
        for mode, reason in WRONG:
            ends_its_machine(box, program, mode, "control", reason)


@test(timeout=300)
def what_is_no_mistake_is_bounded(box):
    program = compile_program()
    with neighbour(box), watched():
        result = box.sh(script("flood", "slow", "console"), "-i", "--data", "none", input=program)
        result.ok()
        # It says nothing any more, and reads nothing of what it is sent. The limit holds.
        box.sh(script("half"), "-i", "--data", "none", "--timeout", "3", input=program).exits(124)


@test(home="copy", timeout=600)
def the_network_port_is_no_weaker(box):
    program = compile_program()
    box.make("net", TINY + "network: {allow: [\"127.0.0.1\"]}\n")
    box.run("build", "net", timeout=300).ok()
    with neighbour(box), watched():
        for mode, reason in WRONG_NETWORK:
            ends_its_machine(box, program, mode, "network", reason, name="net")
        box.sh(script("net-flood", "net-half"), "-i", name="net", input=program).ok()


@test(timeout=300)
def a_guest_that_never_says_that_its_disks_are_written(box):
    """It obeys, and takes what it is told; but its machine is not waited for."""
    program = compile_program()
    with watched():
        result = box.sh(script("obeys"), "-i", input=program, timeout=LATE)
        result.fails("it writes nothing, and does not say that it is done")
        # Nothing of /data is held any longer.
        box.sh("true").ok()


@test(timeout=300)
def a_guest_that_takes_nothing(box):
    """Input waits where it is, and the machine goes down all the same."""
    program = compile_program()
    with watched():
        box.run("up", "--data", "none", "tiny").ok()
        box.exec(script("true || true"), "-i", input=program).ok()
        box.run("exec", "--detach", "tiny", "--", "/tmp/hostile", "silent").ok()
        time.sleep(1)
        waiting = box.start_exec("cat >/dev/null", "-i", stdin=subprocess.PIPE)
        with contextlib.suppress(BlockingIOError):
            os.set_blocking(waiting.process.stdin.fileno(), False)
            while True:
                os.write(waiting.process.stdin.fileno(), bytes(65536))
        requests = [box.start_exec("true " + 100000 * "x") for _ in range(16)]
        box.run("down", "tiny", timeout=LATE).ok()
        for each in [waiting, *requests]:
            each.wait(LATE)
