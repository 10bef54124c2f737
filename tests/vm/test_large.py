"""Memory does not grow with /data, and room that is free inside goes back to the host."""

import io
import os
import shutil
import subprocess
import tarfile

from lib import MIB, add_peaks, check, equal, meanwhile, test

# So little that a guest that gathers anything is killed by its own kernel.
BOXFILE = """\
base: tiny
cpus: 1
ram_mib: 128
disk_size: 512M
data_size: 3G
"""
FILES = 100000
# What a name of a file may cost in the memory of a host's process: a node, the name, a place in the
# table of names, all that twice while the table grows, and what the allocator adds.
NAME_BYTES = 100


def out_and_in(box, label):
    """Exports, snapshots and restores all of /data. Returns {command: {program: peak}}."""
    out = box.home + ".out"
    commands = {"export": ("data", "export", "large", out),
                "snapshot": ("snapshot", "large", label),
                "restore": ("restore", "-y", "large", label)}
    found = {}
    for command, words in commands.items():
        peaks = found[command] = {}
        with meanwhile(lambda seen=peaks: add_peaks(seen), 0.002):
            box.run(*words, timeout=1200).ok()
        shutil.rmtree(out, ignore_errors=True)
    for command, program in (("export", "box-copy"), ("snapshot", "box-image"),
                             ("restore", "box-image")):
        check(found[command].get(program, 0) > 0, "not seen:", command, program, found)
    return found


def compare(small, large, more):
    """Nothing had more than a fifth more, and more bytes."""
    print(f"peaks: {small}\nten times as much: {large}")
    for command, programs in large.items():
        for program, peak in programs.items():
            before = small[command].get(program, peak)
            check(peak <= before * 1.2 + more, command, program, before, peak)


@test(home="empty", timeout=1800, long=True)
def memory_is_flat_in_bytes(box):
    box.make("large", BOXFILE)
    box.run("build", "large", timeout=300).ok()
    peaks = []
    for mib in (30, 300):
        box.sh(f"dd if=/dev/zero of=/data/content bs=1M count={mib}; truncate -s {mib * 34}M /data/hole",
               name="large").ok()
        peaks.append(out_and_in(box, f"of-{mib}"))
    equal(box.sh("stat -c %s /data/content /data/hole", name="large").ok().text,
          f"{300 * MIB}\n{300 * 34 * MIB}\n")
    compare(*peaks, 0)


@test(home="empty", timeout=3600, long=True)
def a_hundred_thousand_files(box):
    box.make("large", BOXFILE)
    box.run("build", "large", timeout=300).ok()
    peaks = []
    for count in (FILES // 100, FILES):
        path = box.home + ".tar"
        with tarfile.open(path, "w") as tar:
            for number in range(count):
                entry = tarfile.TarInfo(f"directory-{number // 1000}/a-file-of-ordinary-name-{number}")
                entry.size = 4
                tar.addfile(entry, io.BytesIO(b"data"))
        box.run("restore", "-y", "large", path, timeout=1200).ok()
        peaks.append(out_and_in(box, f"of-{count}"))
        os.unlink(path)
        found = subprocess.run(["tar", "--zstd", "-tf", box.path(
            "sandboxes/large/archive", f"of-{count}.tar.zst")], capture_output=True, check=True).stdout
        equal(found.count(b"a-file-of"), count)
    compare(*peaks, FILES * NAME_BYTES)


def allocated(box):
    """What the files of /data take on the host."""
    folder = box.path("sandboxes/tiny/data")
    return sum(os.stat(os.path.join(folder, name)).st_blocks * 512 for name in os.listdir(folder))


@test(home="copy")
def what_is_discarded_goes_back_to_the_host(box):
    box.sh("true").ok()
    empty = allocated(box)
    box.sh("dd if=/dev/urandom of=/data/fill bs=1M count=40").ok()
    full = allocated(box)
    check(full - empty >= 40 * MIB, empty, full)
    box.sh("rm /data/fill; sync; fstrim /data").ok()
    check(allocated(box) - empty < 4 * MIB, empty, full, allocated(box))
    # And it is there to be used again.
    box.sh("dd if=/dev/urandom of=/data/fill bs=1M count=40").ok()
    check(allocated(box) - full < 4 * MIB, full, allocated(box))
