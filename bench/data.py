#!/usr/bin/env python3
"""Measures how fast all of /data goes out, against tar of the same tree on the host.

    bench/data.py              10,000 small files and 1 GiB, 5 rounds
    bench/data.py --quick      10,000 small files and 256 MiB, 3 rounds

BOX names the program to measure (build/root/usr/local/bin/box). bench/run writes the same into
bench/RESULTS.md. Rounds are interleaved.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TOP, "tests/vm"))
sys.dont_write_bytecode = True

import lib  # noqa: E402  (the folder must be known first)

MIB = lib.MIB
SMALL_FILES = 10000
BOXFILE = "base: tiny\ncpus: 1\nram_mib: 256\ndata_size: 3G\n"


def make_small(folder):
    """10,000 files of 0 to 8 KiB in 100 directories."""
    block = os.urandom(8192)
    for number in range(SMALL_FILES):
        directory = os.path.join(folder, f"d{number % 100}")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"file-{number}"), "wb") as file:
            file.write(block[:number * 7919 % 8193])


def make_large(folder, mib):
    """One part in four can be packed, as in ordinary data."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "large"), "wb") as file:
        for number in range(mib):
            file.write(bytes(MIB) if number % 4 == 0 else os.urandom(MIB))


def timed(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def tar_copy(source, target):
    os.mkdir(target)
    subprocess.run(f"tar -C {source} -cf - . | tar -C {target} -xf -", shell=True, check=True)


def measure(box, scratch, quick):
    """Makes a sandbox "data" in the home of box (tests/vm/lib.py). Returns rows of (what, seconds
    of box, seconds of tar); for report(). scratch: a folder for the trees."""
    rounds, mib = (3, 256) if quick else (5, 1024)
    cases = ((f"{SMALL_FILES:,} small files", make_small),
             (f"one file of {mib} MiB", lambda folder: make_large(folder, mib)))
    if not os.path.exists(box.path("sandboxes", "data")):
        box.make("data", BOXFILE)
    box.run("build", "data", timeout=1800).ok()
    rows = []
    for what, make in cases:
        source, target = os.path.join(scratch, "source"), os.path.join(scratch, "target")
        make(source)
        box.run("reset", "--yes", "data").ok()
        box.run("data", "import", "data", source, timeout=1800).ok()
        jobs = {
            "export": lambda to: box.run("data", "export", "data", to, timeout=1800).ok(),
            "tar": lambda to: tar_copy(source, to),
        }
        took = {job: [] for job in jobs}
        for _ in range(rounds):
            for job, function in jobs.items():
                took[job].append(timed(lambda: function(target)))
                shutil.rmtree(target)
        packing = timed(lambda: box.run("snapshot", "data", timeout=1800).ok())
        host = statistics.median(took["tar"])
        rows.append((f"export of {what}", statistics.median(took["export"]), host))
        rows.append((f"snapshot of {what}", packing, timed(lambda: subprocess.run(
            ["tar", "-C", source, "-I", "zstd -1", "-cf", target, "."], check=True))))
        os.remove(target)
        shutil.rmtree(source)
    return rows


def report(rows, table):
    """The section of bench/RESULTS.md."""
    lines = ["", "## All of /data", "",
             "Against `tar` on the host, which reads the same tree and writes the same: `tar | tar` for "
             "an export, `tar -I 'zstd -1'` for a snapshot. The times of box have the start and the end "
             "of a machine in them.", ""]
    return lines + table(["what", "box", "tar on the host", "times tar"],
                         [[what, f"{ours:.2f} s", f"{theirs:.2f} s", f"{ours / theirs:.1f}"]
                          for what, ours, theirs in rows])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    scratch = tempfile.mkdtemp(prefix="box-bench-data-")
    try:
        rows = measure(lib.Box(os.path.join(scratch, "home")), scratch, options.quick)
        for what, ours, theirs in rows:
            print(f"{what}: {ours:.2f} s, tar on the host {theirs:.2f} s, ratio {ours / theirs:.1f}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
