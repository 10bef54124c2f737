#!/usr/bin/env python3
"""Measures forks: of little and of much data, what has changed among few and many files, live forks.

    bench/fork.py              100 MiB and 5 GiB, 7 rounds
    bench/fork.py --quick      100 MiB and 1000 MiB, 3 rounds
    bench/fork.py PART…        only these of: sizes, differences, live

BOX names the program to measure (build/root/usr/local/bin/box). bench/run writes the same into
bench/RESULTS.md. Rounds are interleaved. The data is a block of random bytes over and over: every
cluster of it is written by the guest and is there in the disk, which a file of zeros or of holes
would not be sure to be.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TOP, "tests/vm"))
sys.dont_write_bytecode = True

import lib  # noqa: E402  (the folder must be known first)

SMALL, LARGE, FEW, MANY = "fork-small", "fork-large", "fork-few", "fork-many"
BLOCK_MIB = 10
SMALL_MIB = 100
# With --quick, and without.
LARGE_MIB = (1000, 5120)
ROUNDS = (3, 7)
# (directories, files in each); both file systems are as large, so that both have as many groups.
FEW_FILES, MANY_FILES = (10, 10), (1000, 100)
CHANGED = 10
RAMS_MIB = (256, 1024)
# Of the larger one, in another row.
IN_USE, IN_USE_MIB = "in use", 400
# Files of a chain, data.qcow2 included (store/chain.h).
CHAIN_MAX = 7
STILL_SECONDS = 2
PATIENCE = 1800


def boxfile(ram_mib, data_size):
    return f"base: tiny\ncpus: 1\nram_mib: {ram_mib}\ndata_size: {data_size}\n"


def fill(path, mib):
    """A script that writes this much."""
    return (f"head -c {BLOCK_MIB}m /dev/urandom >/tmp/block; i=0; "
            f"while [ $i -lt {mib // BLOCK_MIB} ]; do cat /tmp/block; i=$((i + 1)); "
            f"done >{path}; rm /tmp/block; sync")


def tree(directories, files):
    """A script that makes short files, as many in each directory."""
    return (f"cd /data; for d in $(seq {directories}); do mkdir d$d; for f in $(seq {files}); do "
            "echo $f >d$d/f$f; done; done")


class Forks:
    def __init__(self, box, quick, say):
        self.box, self.say = box, say
        self.rounds, self.large_mib = ROUNDS[not quick], LARGE_MIB[not quick]
        self.samples = {}

    def run(self, *arguments):
        return self.box.run(*arguments, timeout=PATIENCE).ok()

    def sh(self, name, script):
        return self.box.sh(script, name=name, timeout=PATIENCE).ok()

    def timed(self, what, *arguments):
        """One sample, in milliseconds."""
        result = self.run(*arguments)
        self.samples.setdefault(what, []).append(result.seconds * 1000)
        return result

    def make(self, name, ram_mib, data_size, script=None):
        self.say(f"building {name}")
        self.box.make(name, boxfile(ram_mib, data_size))
        self.run("build", name)
        if script:
            seconds = self.sh(name, script).seconds
            self.say(f"filling {name} took {seconds:.1f} s")

    def unmake(self, *names):
        for name in names:
            self.run("destroy", "--yes", "--data", name)

    def change_and_fork(self, what, name, fork):
        """A fork of what has changed since the last one, so that there is something to freeze."""
        self.sh(name, "date >/data/changed")
        self.timed((what, name), "fork", name, fork)

    def sizes(self):
        both = (SMALL, LARGE)
        for name, mib in zip(both, (SMALL_MIB, self.large_mib)):
            self.make(name, 512, "7G", fill("/data/content", mib))
        for number in range(self.rounds):
            self.say(f"forks, round {number + 1} of {self.rounds}")
            for name in both:
                self.change_and_fork("fork", name, f"{name}-f")
                self.timed(("discard", name), "discard", "--yes", f"{name}-f")
        for name in both:
            forks = []
            while len(os.listdir(self.box.path("sandboxes", name, "data"))) < CHAIN_MAX:
                forks.append(f"{name}-{len(forks)}")
                self.change_and_fork("filling", name, forks[-1])
            self.say(f"one fork more of {name} than its chain has room for")
            forks.append(f"{name}-{len(forks)}")
            self.change_and_fork("full", name, forks[-1])
            for each in forks:
                self.run("discard", "--yes", each)
        self.unmake(*both)

    def differences(self):
        both = (FEW, MANY)
        for name, files in zip(both, (FEW_FILES, MANY_FILES)):
            self.make(name, 512, "2G", tree(*files))
            self.run("fork", name, f"{name}-f")
            self.sh(f"{name}-f", f"cd /data; for d in $(seq {CHANGED}); do echo changed >>d$d/f5; done")
        for number in range(self.rounds):
            self.say(f"differences, round {number + 1} of {self.rounds}")
            for name in both:
                # What of it is a machine that comes and goes.
                self.timed(("true", name), "run", "--data", "clone", f"{name}-f", "--", "true")
                result = self.timed(("diff", name), "diff", f"{name}-f")
                lib.equal(len(result.text.splitlines()), CHANGED, "changes")
                self.timed(("apply", name), "apply", f"{name}-f")
                self.timed(("undo", name), "apply", "--undo", name)
        for name in both:
            self.run("discard", "--yes", f"{name}-f")
        self.unmake(*both)

    def stillness(self, what, function, name):
        """Milliseconds of the longest time without a line of a loop inside, while function runs."""
        running = self.box.start_exec("while :; do echo; usleep 5000; done", name=name)
        times = []

        def read():
            while os.read(running.process.stdout.fileno(), 4096):
                times.append(time.perf_counter())

        reader = threading.Thread(target=read)
        reader.start()
        try:
            lib.wait_until("lines", lambda: len(times) > 10, 30)
            first = len(times)
            function()
            # A time that has not ended yet counts as well.
            last = len(times)
            lib.wait_until("more lines", lambda: len(times) > last, 30)
        finally:
            running.process.terminate()
            reader.join()
            running.wait(30)
        during = times[first - 1:last + 1]
        self.samples.setdefault(what, []).append(
            1000 * max(after - before for before, after in zip(during, during[1:])))

    def live_round(self, key, name, script=None):
        self.run("up", name)
        if script:
            self.box.exec(script, name=name, timeout=PATIENCE).ok()
        self.stillness(("quiet", key), lambda: time.sleep(STILL_SECONDS), name)
        self.stillness(("still", key),
                       lambda: self.timed(("live", key), "fork", "--live", name, f"{name}-f"), name)
        self.run("down", f"{name}-f")
        # The chain of a machine that is up does not become shorter.
        self.run("down", name)
        self.run("discard", "--yes", f"{name}-f")

    def live(self):
        names = [f"fork-ram-{ram}" for ram in RAMS_MIB]
        for name, ram in zip(names, RAMS_MIB):
            self.make(name, ram, "256M")
        for number in range(self.rounds):
            self.say(f"live forks, round {number + 1} of {self.rounds}")
            for name in names:
                self.live_round(name, name)
            self.live_round(IN_USE, names[-1], fill("/tmp/content", IN_USE_MIB))
        self.unmake(*names)

    def median(self, what, name):
        return statistics.median(self.samples[what, name])


def measure(box, quick, say, parts=("sizes", "differences", "live")):
    """All of it, in sandboxes of its own in the home of box (tests/vm/lib.py)."""
    forks = Forks(box, quick, say)
    for part in parts:
        getattr(forks, part)()
    box.clean()
    return forks


def spread(values, format_time):
    return (f"{format_time(statistics.median(values))} "
            f"({format_time(min(values))} to {format_time(max(values))})")


def pair_rows(forks, cases, both, format_time):
    small, large = both
    for what, label in cases:
        yield [label, *(spread(forks.samples[what, name], format_time) for name in both),
               str(len(forks.samples[what, small])),
               f"{forks.median(what, large) / forks.median(what, small):.2f}"]


def report_sizes(forks, table, format_time):
    lines = ["Something small was written before each fork. The data is a block of "
             f"{BLOCK_MIB} MiB of random bytes over and over, written by the guest.", ""]
    return lines + table(
        ["what", f"{SMALL_MIB} MiB", f"{forks.large_mib} MiB", "runs", "ratio"],
        pair_rows(forks, (
            ("fork", "`box fork`"), ("discard", "`box discard` of that fork"),
            ("full", f"`box fork`, where {CHAIN_MAX - 2} disks are shared with forks already")),
            (SMALL, LARGE), format_time))


def report_differences(forks, table, format_time):
    few, many = (f"{directories * files:,}" for directories, files in (FEW_FILES, MANY_FILES))
    lines = [f"{CHANGED} changed files among {few} in {FEW_FILES[0]} directories and among {many} in "
             f"{MANY_FILES[0]:,}, in file systems of one size:", ""]
    return lines + table(
        ["what", f"of {few}", f"of {many}", "runs", "ratio"],
        pair_rows(forks, (
            ("diff", "`box diff`"), ("apply", "`box apply`"), ("undo", "`box apply --undo`"),
            ("true", "`box run --data clone FORK -- true`, to compare")),
            (FEW, MANY), format_time))


def report_live(forks, table, format_time):
    cases = [(f"fork-ram-{ram}", ram, "nothing") for ram in RAMS_MIB]
    rows = [[str(ram), held, *(spread(forks.samples[what, key], format_time)
                               for what in ("live", "still", "quiet")),
             str(len(forks.samples["live", key]))]
            for key, ram, held in [*cases, (IN_USE, RAMS_MIB[-1], f"{IN_USE_MIB} MiB")]]
    lines = ["`box fork --live`. A guest stands still while a loop inside, which writes a line every few "
             "milliseconds, is not heard outside: the longest such time during a fork, and in "
             f"{STILL_SECONDS} s without one.", ""]
    return lines + table(["`ram_mib`", "held in a tmpfs", "fork", "stands still", "without a fork",
                          "runs"], rows)


def report(forks, table, format_time):
    """The lines of the section: what was measured."""
    lines = ["", "## Forks", "", "Medians, in brackets the least and the most."]
    for key, function in ((("fork", SMALL), report_sizes), (("diff", FEW), report_differences),
                          (("still", IN_USE), report_live)):
        if key in forks.samples:
            lines += ["", *function(forks, table, format_time)]
    return lines


def aims(forks):
    """(what, value, aim, unit, whether more is better)"""
    for key, small, large, aim, what in (
            ("fork", SMALL, LARGE, 1.2, f"`box fork` of {forks.large_mib} MiB against {SMALL_MIB} MiB"),
            ("diff", FEW, MANY, 3, f"`box diff` of {CHANGED} files among 100,000 against among 100")):
        if (key, small) in forks.samples:
            yield what, forks.median(key, large) / forks.median(key, small), aim, "times", False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("part", nargs="*", default=["sizes", "differences", "live"])
    options = parser.parse_args()
    lib.adopt_orphans()
    scratch = tempfile.mkdtemp(prefix="box-bench-fork-")
    try:
        forks = measure(lib.Box(os.path.join(scratch, "home")), options.quick,
                        lambda text: print(f"bench: {text}", file=sys.stderr, flush=True), options.part)
        print("\n".join(report(forks, lambda header, rows: [" | ".join(row) for row in [header, *rows]],
                               lambda milliseconds: f"{milliseconds:.0f} ms")))
        for what, value, aim, unit, _ in aims(forks):
            print(f"{what}: {value:.2f} {unit}, aim {aim:g}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
