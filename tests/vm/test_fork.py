"""Forks at rest: chains of disks, what they share, and how they become shorter again.

Every state is looked at from inside a machine, with checksums of all that is in /data.
"""

import json
import os
import random
import signal
import time

from lib import MIB, TINY, check, contains, descendants, equal, test, wait_until
from test_data import archives, clear, scratch, undo_of

# store/chain.h
CHAIN_MAX = 7

SUMS = "cd /data && find . -type f -print0 | sort -z | xargs -0 -r md5sum"


def sums(box, name="tiny", *options):
    return box.sh(SUMS, *options, name=name).ok().text


def write(box, name, *files, kib=64):
    """New files of random bytes; returns the sums of all of /data then."""
    script = "".join(f"head -c {kib}k /dev/urandom >/data/{each}; " for each in files)
    return box.sh(script + SUMS, name=name).ok().text


def fork(box, parent, name, *options):
    return box.run("fork", parent, name, *options, timeout=60).ok().text.split()


def discard(box, name):
    return box.run("discard", "-y", name, timeout=120).ok()


def chain(box, name):
    """The files of a chain, from the bottom up."""
    names = os.listdir(box.path("sandboxes", name, "data"))
    layers = sorted(each for each in names if each.startswith("layer-"))
    equal(sorted(names), sorted(["base-0.ext4", "data.qcow2"] + layers +
                                ["fork.json"] * ("fork.json" in names)))
    equal(layers, [f"layer-{i + 1}.qcow2" for i in range(len(layers))])
    check(len(layers) + 2 <= CHAIN_MAX, name, layers)
    return ["base-0.ext4", *layers, "data.qcow2"]


def links(box, name, file):
    return os.stat(box.path("sandboxes", name, "data", file)).st_nlink


def sandboxes(box):
    return sorted(os.listdir(box.path("sandboxes")))


def clean_up(box):
    """Forks before what they are forks of."""
    while True:
        rows = box.run("ls", "--json", timeout=20).ok().json()
        parents = {each["fork_of"] for each in rows}
        leaves = [each["name"] for each in rows if each["fork_of"] and each["name"] not in parents]
        if not leaves:
            return
        for each in leaves:
            discard(box, each)


@test(home="copy")
def both_sides_change(box):
    before = write(box, "tiny", "a", "b")
    result = box.run("fork", "tiny", "copy").ok()
    equal(result.text, "copy\n")
    equal(sums(box, "copy"), before)
    theirs = write(box, "copy", "b", "c")
    equal(sums(box), before)
    ours = write(box, "tiny", "a", "d")
    equal(sums(box, "copy"), theirs)
    equal(sums(box), ours)
    equal(box.row("copy")["fork_of"], "tiny")
    equal(box.row()["fork_of"], None)
    contains(box.run("ls").ok().text, "\ttiny\t-\n")
    report = box.run("inspect", "--json", "copy").ok().json()
    equal((report["name"], report["fork_of"]), ("copy", "tiny"))
    contains(box.run("inspect", "copy").ok().text, "a fork of that of tiny")
    # Nothing was made twice, and nothing of a build is needed.
    for file in ("image/image.ext4", "snapshot/memory", "data/layer-1.qcow2"):
        check(os.path.samefile(box.path("sandboxes/tiny", file), box.path("sandboxes/copy", file)))
    with box.up("--json", name="copy") as up:
        equal(up.json()["restored"], True)
        equal(box.exec(SUMS, name="copy").ok().text, theirs)
    equal(box.run("build", "copy").ok().seconds < 2, True)
    clean_up(box)
    equal(sums(box), ours)


@test(home="copy", timeout=400)
def forks_of_forks(box):
    states, name = {"tiny": write(box, "tiny", "f0")}, "tiny"
    for i in range(1, 10):
        equal(fork(box, name, f"f{i}"), [f"f{i}"])
        name = f"f{i}"
        states[name] = write(box, name, f"f{i}")
        equal(len(states[name].splitlines()), i + 1)
        chain(box, name)
    # The state at the fork is a place in the chain, however it was put together.
    for name, state in states.items():
        equal(sums(box, name), state, name)
        if name != "tiny":
            with open(box.path("sandboxes", name, "data/fork.json"), encoding="utf-8") as file:
                check(1 < json.load(file)["base_count"] < len(chain(box, name)), name)
    clean_up(box)
    equal(sandboxes(box), ["tiny"])
    equal(chain(box, "tiny"), ["base-0.ext4", "data.qcow2"])
    equal(sums(box), states["tiny"])


@test(home="copy", timeout=400)
def a_parent_is_forked_again_and_again(box):
    states, ours = {}, ""
    for i in range(9):
        ours = write(box, "tiny", f"f{i}", f"again{i % 2}")
        fork(box, "tiny", f"copy{i}")
        states[f"copy{i}"] = ours
        chain(box, "tiny")
    for name, state in states.items():
        equal(sums(box, name), state, name)
    # What goes takes nothing from the others, in whatever order.
    for name in random.sample(sorted(states), len(states)):
        discard(box, name)
        del states[name]
        equal(sums(box), ours)
        for other in random.sample(sorted(states), min(len(states), 2)):
            equal(sums(box, other), states[other], other)
    equal(chain(box, "tiny"), ["base-0.ext4", "data.qcow2"])


@test(home="copy")
def a_fork_of_nothing_new(box):
    write(box, "tiny", "a")
    fork(box, "tiny", "one")
    fork(box, "tiny", "two")
    # Both stand on the same: nothing was written in between.
    equal(len(chain(box, "tiny")), 3)
    equal(links(box, "tiny", "layer-1.qcow2"), 3)
    fork(box, "one", "three")
    equal(links(box, "tiny", "layer-1.qcow2"), 4)
    equal(sums(box, "three"), sums(box))
    clean_up(box)


@test(home="copy")
def several_from_one_state(box):
    before = write(box, "tiny", "a")
    equal(fork(box, "tiny", "some", "-n", "3"), ["some-1", "some-2", "some-3"])
    for i in range(1, 4):
        equal(sums(box, f"some-{i}"), before)
    # All or none.
    box.run("fork", "tiny", "more", "-n", "2").ok()
    box.run("fork", "tiny", "x", "-n", "0").exits(125)
    box.run("fork", "tiny", "x", "-n", "101").exits(125)
    box.run("fork", "tiny", "x", "-n", "2x").exits(125)
    os.mkdir(box.path("sandboxes/x-2"))
    box.run("fork", "tiny", "x", "-n", "3").fails("a sandbox x-2 already")
    check("x-1" not in sandboxes(box) and "x-3" not in sandboxes(box), sandboxes(box))
    os.rmdir(box.path("sandboxes/x-2"))
    box.run("fork", "tiny", "y" * 63, "-n", "10").fails("too long")
    box.run("fork", "tiny", "../x").exits(125)
    box.run("fork", "tiny", "tiny").fails("a sandbox tiny already")
    box.run("fork", "none", "x").fails("no sandbox none")
    clean_up(box)


@test(home="copy")
def what_is_refused(box):
    write(box, "tiny", "a")
    box.run("snapshot", "tiny", "before").ok()
    undo = undo_of(box.run("reset", "-y", "tiny").ok())
    box.run("restore", "-y", "tiny", "before").ok()
    fork(box, "tiny", "copy")
    fork(box, "copy", "copy2")
    for arguments in (("destroy", "-y", "--data", "tiny"), ("destroy", "-y", "tiny"),
                      ("rename", "tiny", "other"), ("restore", "-y", "tiny", "before"),
                      ("restore", "-y", "tiny", undo), ("reset", "-y", "tiny"),
                      ("discard", "-y", "copy")):
        result = box.run(*arguments).fails("a fork: copy", "box discard copy")
        check("tiny" in sandboxes(box) and "copy" in sandboxes(box), result)
    box.run("reset", "-y", "copy2").fails("a fork of copy", "box discard copy2")
    box.run("snapshot", "copy2", "label").ok()
    box.run("restore", "-y", "copy2", "label").fails("a fork of copy")
    box.run("discard", "-y", "tiny").fails("is no fork", "box destroy tiny")
    box.run("discard", "copy2").fails("no terminal", "--yes")
    with box.up(name="copy2"):
        box.run("discard", "-y", "copy2").fails("is up", "box down copy2")
    equal(sums(box, "copy2"), sums(box))
    # A fork may have another name, and what is kept of one is whole.
    box.run("rename", "copy2", "copy3").ok()
    kept = box.run("destroy", "-y", "copy3").ok().text.strip()
    equal(sorted(os.listdir(kept)), ["base-0.ext4", "data.qcow2", "fork.json", "layer-1.qcow2"])
    clean_up(box)
    # The layer is kept's as well, so it was not written to.
    equal(links(box, "tiny", "layer-1.qcow2"), 2)
    box.run("reset", "-y", "tiny").ok()
    box.run("rename", "tiny", "other").ok()
    box.run("rename", "other", "tiny").ok()


@test(home="copy")
def an_archive_survives_what_becomes_of_the_chain(box):
    before = write(box, "tiny", "a")
    fork(box, "tiny", "copy")
    before = write(box, "tiny", "b")
    discard(box, "copy")
    fork(box, "tiny", "copy")
    before = write(box, "tiny", "c")
    box.run("reset", "-y", "tiny").fails("copy")
    discard(box, "copy")
    undo = undo_of(box.run("reset", "-y", "tiny").ok())
    write(box, "tiny", "other")
    fork(box, "tiny", "copy")
    write(box, "tiny", "other")
    discard(box, "copy")
    box.run("restore", "-y", "tiny", undo).ok()
    equal(sums(box), before)
    equal(len(archives(box)), 1)


@test(home="copy")
def a_clone_stands_on_what_was_there(box):
    before = write(box, "tiny", "a", "b", kib=2048)
    fork(box, "tiny", "copy")
    middle = write(box, "tiny", "b", "c", kib=2048)
    # A machine reads the layers while all of them are merged away.
    running = box.start_sh(f"echo 3 >/proc/sys/vm/drop_caches; echo go; read x; {SUMS}", "-i",
                           "--data", "clone", stdin=-1)
    running.read_until(b"go\n")
    after = write(box, "tiny", "a", "b", "c", kib=2048)
    discard(box, "copy")
    equal(sums(box), after)
    running.process.stdin.write(b"\n")
    running.process.stdin.flush()
    equal(running.wait(60).ok().text.split("go\n")[-1], middle)
    equal(sums(box, "tiny", "--data", "clone"), after)
    # Nobody reads them any more.
    fork(box, "tiny", "copy")
    equal(sums(box, "copy", "--data", "clone"), after)
    discard(box, "copy")
    equal(chain(box, "tiny"), ["base-0.ext4", "data.qcow2"])
    equal(sums(box), after)
    check(before != after)


@test(home="copy")
def clones_while_it_is_forked(box):
    states = {write(box, "tiny", "a")}
    clones = []
    for i in range(6):
        clones.append(box.start_sh(SUMS, "--data", "clone"))
        time.sleep(random.random() * 0.3)
        fork(box, "tiny", f"copy{i}")
        states.add(write(box, "tiny", "a", f"b{i}"))
    for each in clones:
        check(each.wait(60).ok().text in states)
    clean_up(box)


@test(home="copy")
def data_may_grow_between_forks(box):
    before = write(box, "tiny", "a", kib=1024)
    fork(box, "tiny", "copy")
    box.write_boxfile("tiny", TINY.replace("data_size: 64M", "data_size: 200M"))
    box.run("build", "tiny", timeout=120).ok()
    # More than there was room for before.
    after = box.sh(f"yes | head -c 102400k >/data/b; {SUMS}").ok().text
    equal(sums(box, "copy"), before)
    fork(box, "tiny", "large")
    equal(sums(box, "large"), after)
    for each in ("copy", "large"):
        discard(box, each)
    equal(chain(box, "tiny"), ["base-0.ext4", "data.qcow2"])
    equal(sums(box), after)


@test(home="copy")
def forks_with_a_pool(box):
    box.write_boxfile("tiny", TINY + "warm: 1\n")
    before = write(box, "tiny", "a")
    fork(box, "tiny", "copy")
    equal(sums(box, "copy"), before)

    def is_warm():
        return box.row("copy")["pool"]["machines"] == 1
    wait_until("a machine is kept ready", is_warm, 60)
    theirs = write(box, "copy", "b")
    wait_until("a machine is kept ready", is_warm, 60)
    result = box.sh(SUMS, "--json", name="copy").ok().json()
    equal(result["stdout"], theirs)
    equal(sums(box), before)
    discard(box, "copy")
    box.run("down", "--pool", "tiny").ok()
    equal(sums(box), before)
    box.run("down", "--pool", "tiny").ok()


@test(home="copy")
def two_at_once(box):
    before = write(box, "tiny", "a")
    running = [box.start("fork", "tiny", f"copy{i}") for i in range(5)]
    for each in running:
        each.wait(60).ok()
    same = [box.start("fork", "tiny", "same") for i in range(4)]
    codes = sorted(each.wait(60).code for each in same)
    equal(codes, [0, 125, 125, 125])
    for name in ("copy0", "copy4", "same"):
        equal(sums(box, name), before)
    # One forks what another discards.
    running = [box.start("discard", "-y", f"copy{i}") for i in range(4)]
    running += [box.start("fork", "copy4", f"more{i}") for i in range(2)]
    for each in running:
        each.wait(120).ok()
    equal(sums(box, "more1"), before)
    clean_up(box)
    equal(sums(box), before)


def is_whole(box, name, state):
    """After a kill: as it was, nothing half there, nothing left that a sweep does not find."""
    box.clean(10)
    equal(sums(box, name), state)
    box.run("doctor", "--fix", timeout=60)
    hidden = [each for each in sandboxes(box) if each[0] == "."]
    equal(hidden, [], "what a killed fork has left")
    rest = [each for each in os.listdir(box.path("sandboxes", name)) if each.startswith("data.")]
    equal(rest, [], "what a killed change of the chain has left")
    chain(box, name)


@test(home="copy", timeout=400)
def a_fork_is_killed_at_any_instant(box):
    state = write(box, "tiny", "a")
    whole = box.run("fork", "tiny", "whole").ok().seconds
    for i in range(14):
        state = write(box, "tiny", "a", f"b{i % 3}") if i % 3 == 0 else state
        running = box.start("fork", "tiny", "copy", *(["-n", "4"] if i % 2 else []))
        time.sleep(whole * random.random() * (3 if i % 2 else 1.2))
        running.signal(signal.SIGKILL)
        running.wait(20)
        if i % 4 == 0:
            is_whole(box, "tiny", state)
        for name in sandboxes(box):
            if name.startswith("copy"):
                equal(sums(box, name), state, name)
                discard(box, name)
    is_whole(box, "tiny", state)
    clean_up(box)
    equal(sums(box), state)


@test(home="copy", timeout=500)
def a_merge_is_killed_at_any_instant(box):
    state = write(box, "tiny", *(f"a{i}" for i in range(6)), kib=2048)
    for i in range(8):
        fork(box, "tiny", "copy")
        state = write(box, "tiny", f"a{i % 6}", f"b{i % 2}", kib=2048)
        running = box.start("discard", "-y", "copy")
        if i % 2:
            found = wait_until("QEMU", lambda: [
                each for each in descendants(running.pid) if each.name.startswith("qemu")] or
                running.process.poll() is not None, 30)
            time.sleep(random.random() * 0.4)
            if found is not True:
                try:
                    os.kill(found[-1].pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            # It is a longer chain, and no failure.
            running.wait(60).ok()
        else:
            time.sleep(0.1 + random.random() * 1.2)
            running.signal(signal.SIGKILL)
            running.wait(20)
        is_whole(box, "tiny", state)
        if "copy" in sandboxes(box):
            discard(box, "copy")
    fork(box, "tiny", "copy")
    discard(box, "copy")
    equal(chain(box, "tiny"), ["base-0.ext4", "data.qcow2"])
    equal(sums(box), state)


@test(home="copy")
def archives_and_copies_of_forks(box):
    before = write(box, "tiny", "a")
    fork(box, "tiny", "copy")
    theirs = write(box, "copy", "b")
    path = scratch(box, "out")
    box.run("data", "export", "copy", path).ok()
    equal(sorted(os.listdir(path)), ["a", "b"])
    box.run("data", "import", "tiny", path).ok()
    equal(sums(box), theirs)
    box.run("snapshot", "copy", "label").ok()
    equal(sums(box, "copy"), theirs)
    discard(box, "copy")
    check(before != theirs)
    clear(box)


@test(home="empty", timeout=400)
def its_size_does_not_matter(box):
    for name, size, script in (
            ("small", "64M", "head -c 1024k /dev/urandom >/data/x"),
            ("large", "2G", "head -c 204800k /dev/zero | tr '\\0' x >/data/x; "
                            "truncate -s 1073741824 /data/x")):
        box.make(name, TINY.replace("data_size: 64M", f"data_size: {size}"))
        box.run("build", name, timeout=300).ok()
        box.sh(script, name=name).ok()
    best = {}
    for i in range(7):
        for name in ("small", "large"):
            seconds = box.run("fork", name, f"{name}-{i}").ok().seconds
            best[name] = min(seconds, best.get(name, seconds))
    check(best["large"] < 3 * best["small"] + 0.02, best)
    # And no room: what the forks of the large one have together is less than its file.
    files = {}
    for folder, _, names in os.walk(box.path("sandboxes")):
        for name in names:
            status = os.stat(os.path.join(folder, name))
            if "large-" in folder and status.st_nlink == 1:
                files[status.st_ino] = status.st_blocks * 512
    check(sum(files.values()) < 10 * MIB, files)
    clean_up(box)
