"""The part of bench/run about machines that stay: exec, the warm pool, cp, ports."""

import os
import re
import signal
import socket
import statistics
import subprocess
import threading
import time

import lib

MIB = lib.MIB
WARM = "base: tiny\nram_mib: 256\nwarm: 2\n"
ECHO_PORT, FORK_PORT = 7, 8
ROUND_TRIPS = 50
FORKS_INSIDE = 100
AT_ONCE = 16
# Of the file that is copied, and execs in a row: with --quick, and without.
SIZES = (256 * MIB, 1024 * MIB)
COUNTS = (200, 1000)

ECHO = "raw round trip over a port"
FORK_INSIDE = "fork+exec, inside"
FORK = "raw fork+exec round trip"
EXEC_IN_TURN = "exec in turn with it"
EXEC = "exec tiny -- true"
WARM_RUN = "warm run tiny -- true"
WARM_NONE = "warm run --data none"
AT_ONCE_KEY = "execs at once"

ROWS = [
    (ECHO, "one byte to `nc -e cat` inside and back, over `box forward`"),
    (FORK_INSIDE, "`/bin/true` from a loop of `sh` inside, timed inside"),
    (FORK, "one line to a `sh` inside that runs `/bin/true` and answers, over `box forward`"),
    (EXEC_IN_TURN, "`box exec tiny -- true`, in turn with the line above"),
    (EXEC, "`box exec tiny -- true`, after a pause as the lines below"),
    (WARM_RUN, "`box run tiny -- true`, machine kept ready"),
    (WARM_NONE, "`box run --data none tiny -- true`, machine kept ready"),
    (AT_ONCE_KEY, f"`box exec tiny -- true`, {AT_ONCE} at once, each"),
]


class Forward:
    """A `box forward` and one connection through it."""

    def __init__(self, box, port):
        self.running = box.start("forward", "tiny", f"0:{port}")
        line = self.running.read_until(b"\n").decode()
        self.peer = socket.create_connection(
            ("127.0.0.1", int(re.search(r":(\d+) ->", line).group(1))))
        self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self):
        """Milliseconds of one byte there and one back."""
        began = time.perf_counter()
        self.peer.sendall(b"\n")
        self.peer.recv(1)
        return (time.perf_counter() - began) * 1000

    def close(self):
        self.peer.close()
        self.running.signal(signal.SIGINT)
        self.running.wait(20)


def inside(box, script, *options):
    return box.run("exec", *options, "tiny", "--", "sh", "-c", script).ok().text


def serve(box):
    for port, command in ((ECHO_PORT, "cat"),
                          (FORK_PORT, "sh -c 'while read x; do /bin/true; echo; done'")):
        box.run("exec", "--detach", "tiny", "--", "sh", "-c",
                f"exec nc -ll -p {port} -e {command}").ok()
        inside(box, f"until netstat -ltn | grep -q ':{port} '; do usleep 20000; done")


def pool_is_full(box):
    """Waits until two machines are ready and nothing is being made."""
    folder = box.path("run/tiny")
    lib.wait_until("two machines that are ready", lambda: len(
        [each for each in os.listdir(folder) if each.startswith("warm-")]) == 2, 60)
    time.sleep(0.3)


def fork_inside(box):
    """Milliseconds of one fork+exec, by the clock of the guest."""
    began, ended = inside(
        box, f"read a b < /proc/uptime; i=0; while [ $i -lt {FORKS_INSIDE} ]; do /bin/true; "
             "i=$((i+1)); done; read c d < /proc/uptime; echo $a $c").split()
    return (float(ended) - float(began)) * 1000 / FORKS_INSIDE


def at_once(bench):
    """One round of execs at once: each one's milliseconds."""
    def one():
        bench.time_box(AT_ONCE_KEY, "exec", "tiny", "--", "true")

    threads = [threading.Thread(target=one) for _ in range(AT_ONCE)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def megabytes_a_second(size, function):
    began = time.perf_counter()
    function()
    return size / 1e6 / (time.perf_counter() - began)


def rates(bench, size):
    """{what: MB/s} of a file of this size."""
    box = bench.box
    path = os.path.join(box.temporary, "file")
    with open(path, "wb") as file:
        block = os.urandom(MIB)
        for _ in range(size // MIB):
            file.write(block)

    def raw_in(where):
        with open(path, "rb") as file:
            box.run("exec", "-i", "tiny", "--", "sh", "-c", f"cat > {where}", stdin=file,
                    timeout=1800).ok()

    def raw_out(what):
        box.start("exec", "tiny", "--", "sh", "-c", what,
                  stdout=subprocess.DEVNULL).wait(1800).ok()

    found = {}
    for what, function in (
            ("raw in", lambda: raw_in("/dev/null")),
            ("raw into a file", lambda: raw_in("/raw")),
            ("cp in", lambda: box.run("cp", path, "tiny:/file", timeout=1800).ok()),
            # Not head(1), which is busybox's and copies byte by byte.
            ("raw out", lambda: raw_out(f"dd if=/dev/zero bs=64k count={size >> 16}")),
            ("raw out of a file", lambda: raw_out("cat /raw")),
            ("cp out", lambda: box.run("cp", "tiny:/file", path + ".back", timeout=1800).ok())):
        found[what] = megabytes_a_second(size, function)
        bench.say(f"{what}: {found[what]:.0f} MB/s")
    os.unlink(path)
    os.unlink(path + ".back")
    inside(box, "rm /raw /file; sync")
    return found


def memory_of(box):
    """(resident memory of the keeper, memory that the guest does not have free), in bytes."""
    text = inside(box, "cat /proc/meminfo")
    total, free = (int(re.search(rf"^{key}:\s+(\d+)", text, re.M).group(1)) * 1024
                   for key in ("MemTotal", "MemAvailable"))
    keeper = [each for each in box.machines() if each.name.startswith("box-keeper")
              and each.parent in (1, os.getpid())]
    sizes = [each.status("VmRSS") for each in keeper]
    return max(sizes), total - free


def in_a_row(bench, count):
    """Memory before and after many execs."""
    box = bench.box
    command = [lib.BOX, "exec", "tiny", "--", "true"]
    environment = box.environ()
    # What the first ones make is there to stay.
    for _ in range(20):
        subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL)
    before = memory_of(box)
    began = time.perf_counter()
    for _ in range(count):
        subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    return {"count": count, "seconds": seconds, "before": before, "after": memory_of(box)}


def measure(bench):
    """All of it; adds to bench.samples, and sets bench.rates and bench.row_of_execs."""
    box, runs = bench.box, bench.options.runs
    box.write_boxfile("tiny", WARM)
    box.run("run", "--data", "none", "tiny", "--", "true").ok()
    box.run("up", "--data", "none", "tiny").ok()
    serve(box)
    echo, fork = Forward(box, ECHO_PORT), Forward(box, FORK_PORT)
    for number in range(runs):
        bench.say(f"machines that stay, round {number + 1} of {runs}")
        pool_is_full(box)
        bench.time_box(EXEC, "exec", "tiny", "--", "true")
        # Each median of a round is one sample, so that a pause of the host counts once.
        bench.add(ECHO, statistics.median(echo.ask() for _ in range(ROUND_TRIPS)))
        pairs = [(fork.ask(), bench.milliseconds("exec", "tiny", "--", "true"))
                 for _ in range(ROUND_TRIPS)]
        for what, times in zip((FORK, EXEC_IN_TURN), zip(*pairs)):
            bench.add(what, statistics.median(times))
        bench.add(FORK_INSIDE, fork_inside(box))
        pool_is_full(box)
        bench.time_box(EXEC, "exec", "tiny", "--", "true")
        bench.time_box(WARM_RUN, "run", "tiny", "--", "true")
        pool_is_full(box)
        bench.time_box(WARM_NONE, "run", "--data", "none", "tiny", "--", "true")
        pool_is_full(box)
        at_once(bench)
    echo.close()
    fork.close()
    box.write_boxfile("tiny", WARM.replace("warm: 2", "warm: 0"))
    box.run("down", "--pool", "tiny").ok()
    box.run("up", "--data", "none", "tiny").ok()
    bench.row_of_execs = in_a_row(bench, COUNTS[0 if bench.options.quick else 1])
    size = SIZES[0 if bench.options.quick else 1]
    bench.rates = rates(bench, size)
    bench.rate_size = size
    box.run("down", "tiny").ok()
    box.clean()


def share(values, part):
    """The value below which this part of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def report(bench, table, format_time):
    """The lines of the section."""
    rows = []
    for key, label in ROWS:
        values = bench.samples[key]
        rows.append([label, format_time(bench.median(key)), format_time(min(values)),
                     format_time(share(values, 0.99)), format_time(max(values)), str(len(values))])
    lines = ["", "## Machines that stay", ""]
    lines += table(["what", "median", "least", "99 of 100 within", "most", "runs"], rows)
    lines += ["", f"A file of {bench.rate_size // MIB} MiB, in MB/s:", ""]
    lines += table(["", "in", "out"], [
        ["the port alone: `exec` with `cat > /dev/null`, `dd if=/dev/zero`",
         f"{bench.rates['raw in']:.0f}", f"{bench.rates['raw out']:.0f}"],
        ["the same with a file inside", f"{bench.rates['raw into a file']:.0f}",
         f"{bench.rates['raw out of a file']:.0f}"],
        ["`box cp`", f"{bench.rates['cp in']:.0f}", f"{bench.rates['cp out']:.0f}"]])
    execs = bench.row_of_execs
    lines += ["", f"{execs['count']} × `box exec tiny -- true` in a row took "
                  f"{execs['seconds']:.1f} s:", ""]
    lines += table(["", "before", "after"], [
        [what, f"{execs['before'][index] / MIB:.2f} MiB", f"{execs['after'][index] / MIB:.2f} MiB"]
        for index, what in ((0, "memory of the keeper"), (1, "memory in use in the guest"))])
    return lines


def aims(bench):
    """(what, value, aim, unit, whether more is better)"""
    yield ("`box exec tiny -- true` against the raw fork+exec round trip",
           bench.median(EXEC_IN_TURN) / bench.median(FORK), 1.5, "times", False)
    yield ("warm `box run tiny -- true` against `box exec`",
           bench.median(WARM_RUN) / bench.median(EXEC), 2.5, "times", False)
    for way in ("in", "out"):
        yield (f"`box cp` {way} against the port alone",
               100 * bench.rates[f"cp {way}"] / bench.rates[f"raw {way}"], 60, "%", True)
    execs = bench.row_of_execs
    for index, what in ((0, "keeper"), (1, "guest")):
        grown = (execs["after"][index] - execs["before"][index]) / MIB
        yield (f"growth of the {what} over {execs['count']} execs", max(0, grown), 1, "MiB", False)
