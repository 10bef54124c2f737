#!/usr/bin/env python3
"""box-diff and box-apply on real ext4 images, over loop devices.

usage: test_diff.py DRIVER [TEST…]

DIFF_ROUNDS is how many random pairs of states are tried, DIFF_SEED the first. Prints TAP.
"""

import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree  # pylint: disable=wrong-import-position
from tree import (ADDED, CONTENT, DELETED, MODE, MODIFIED, OWNER, RENAMED, TARGET, TYPE, XATTRS,
                  Disk, Editor, run)

DRIVER = os.path.abspath(sys.argv[1])
ROUNDS = int(os.environ.get("DIFF_ROUNDS", "200"))
SEED = int(os.environ.get("DIFF_SEED", "1"))
TESTS = []


def test(function):
    """Marks a test."""
    TESTS.append(function)
    return function


def equal(found, wanted, what=""):
    """Fails unless both are the same."""
    if isinstance(found, dict) and found != wanted:
        found, wanted = ({key: value for key, value in mine.items()
                          if key not in other or other[key] != value}
                         for mine, other in ((found, wanted), (wanted, found)))
    assert found == wanted, f"{what}: {found!r} is not {wanted!r}"


# ---- The stream, read by other hands ----

class Record:
    """One record, and its frame."""

    def __init__(self, frame):
        body = frame[5:]
        self.frame = frame
        self.kind, self.flags = struct.unpack_from("<II", body)
        self.old = struct.unpack_from("<IIIIQ", body, 8)
        self.new = struct.unpack_from("<IIIIQ", body, 32)
        self.text = b""
        at, strings = 56, []
        for _ in range(4):
            size = struct.unpack_from("<I", body, at)[0]
            strings.append(body[at + 4:at + 3 + size])
            at += 4 + size
        assert at == len(body)
        self.path, self.source, self.old_target, self.new_target = strings

    def has_content(self):
        return self.new[0] in (1, 2, 3) and \
            (self.kind == ADDED or self.flags & (CONTENT | TYPE | TARGET | XATTRS) != 0)


def end(count):
    return struct.pack("<IBQ", 9, 3, count)


def parse(stream):
    """(records, what follows the end mark)."""
    records, at = [], 0
    while True:
        size, kind = struct.unpack_from("<IB", stream, at)
        frame = stream[at:at + 4 + size]
        at += 4 + size
        if kind == 1:
            records.append(Record(frame))
            assert len(records) < 2 or records[-2].path < records[-1].path
        elif kind == 2:
            records[-1].text += frame[5:]
        else:
            equal((kind, frame[5:]), (3, struct.pack("<Q", len(records))), "end")
            return records, stream[at:]


def diff_at(data, device, mode="", fails=False):
    """Runs box-diff; with fails what it says."""
    done = subprocess.run([DRIVER, "diff", os.fsdecode(data), device] + ([mode] if mode else []),
                          capture_output=True, check=False, timeout=120)
    said = done.stderr.decode()
    equal(done.returncode, 1 if fails else 0, said)
    assert not fails or (said.count("\n") == 1 and said.isprintable() is False and
                         said[:-1].isprintable()), said
    return said if fails else done.stdout


def apply_to(data, records, archive, fails=False):
    """Runs box-apply with records that were accepted."""
    stream = b"".join(record.frame for record in records) + end(len(records)) + archive
    done = subprocess.run([DRIVER, "apply", os.fsdecode(data)], input=stream, capture_output=True,
                          check=False, timeout=120)
    said = done.stderr.decode()
    equal(done.returncode, 1 if fails else 0, said)
    assert not fails or (said.count("\n") == 1 and said[:-1].isprintable()), said
    return said


class Pair:
    """Two states: what make does, then what edit does to a copy of it."""

    def __init__(self, top, make, edit, *options, size="24M"):
        self.old = Disk(top + "/old.img", top + "/old").make(size, *options)
        self.new = Disk(top + "/new.img", top + "/new")
        self.third = Disk(top + "/third.img", top + "/third")
        with self.old as mount:
            make(mount)
            self.old_tree = tree.snapshot(mount)
        self.new.copy_of(self.old)
        with self.new as mount:
            edit(mount)
            self.new_tree = tree.snapshot(mount)

    def diff(self, mode="", fails=False):
        device = self.old.attach()
        try:
            with self.new as mount:
                return diff_at(mount, device, mode, fails)
        finally:
            self.old.detach()

    def records(self, mode=""):
        return parse(self.diff(mode))[0]

    def told(self):
        """{path: (kind, flags, from)}."""
        return {each.path: (each.kind, each.flags, each.source) for each in self.records()}

    def apply(self, records, archive, fails=False):
        """On a copy of the old state. Returns the tree that comes out, or what it said."""
        self.third.copy_of(self.old)
        with self.third as mount:
            said = apply_to(mount, records, archive, fails)
            return said if fails else tree.snapshot(mount)


def states(nodes):
    return {path: node.state() for path, node in nodes.items()}


def check_pair(pair):
    """Records are those of the slow comparison, and applying them makes the new state."""
    stream = pair.diff("content")
    records, archive = parse(stream)
    equal({each.path: (each.kind, each.flags, each.source) for each in records},
          tree.expected(pair.old_tree, pair.new_tree), "records")
    names = [os.fsencode(each.name).rstrip(b"/") for each in
             tarfile.open(fileobj=io.BytesIO(archive), encoding="utf-8",
                          errors="surrogateescape")]
    equal(names, [each.path for each in records if each.has_content()], "archive")
    for each in records:
        node = pair.new_tree.get(each.path) if each.kind != DELETED else None
        if node:
            equal(each.new, (node.type, node.mode, *node.owner, node.size), each.path)
            equal(each.new_target, node.target or b"", each.path)
    special = [each for each in records if each.new[0] > 3 and
               (each.kind == ADDED or each.flags & TYPE)]
    if special:
        said = pair.apply(records, archive, fails=True)
        assert "device, fifo or socket" in said, said
        return stream
    equal(states(pair.apply(records, archive)), states(pair.new_tree), "applied")
    return stream


def nothing(_):
    pass


# ---- Tests ----

@test
def random_states(top):
    """What comes out of random edits is told as change.h says, and can be applied."""
    for seed in range(SEED, SEED + ROUNDS):
        def make(mount):
            Editor(mount, seed * 2).edit(seed % 60)

        def edit(mount):
            Editor(mount, seed * 2 + 1, special=seed % 10 == 0).edit(1 + seed % 40)

        options = [["-b", "1024"], ["-I", "512"], ["-b", "4096"]][seed % 3]
        try:
            pair = Pair(top, make, edit, *options)
            stream = check_pair(pair)
            if seed % 10 == 0:
                equal(pair.diff("content") == stream, True, "told twice")
            elif seed % 10 == 5:
                # The result is another way to the same state: nothing is to tell.
                pair.new, pair.old = pair.third, pair.new
                equal(pair.told(), {}, "between two ways")
        except AssertionError:
            print(f"# seed {seed}")
            raise


@test
def nothing_changed(top):
    """Reading and times are no change."""
    def make(mount):
        Editor(mount, 5).edit(50)

    def edit(mount):
        for path in tree.snapshot(mount):
            os.utime(os.path.join(mount, path), ns=(1, 1), follow_symlinks=False)

    pair = Pair(top, make, edit)
    equal(pair.diff("content")[:13], end(0))
    equal(check_pair(pair)[:13], end(0))


@test
def same_size_same_time(top):
    """A byte that changed is found although size and time are as before."""
    def make(mount):
        with open(mount + b"/f", "wb") as file:
            file.write(b"x" * 3000000)
        with open(mount + b"/holes", "wb") as file:
            file.truncate(1 << 33)
            file.seek(1 << 32)
            file.write(b"data")

    def edit(mount):
        for name, at in ((b"/f", 2999999), (b"/holes", (1 << 32) + 2)):
            status = os.stat(mount + name)
            with open(mount + name, "r+b") as file:
                file.seek(at)
                file.write(b"y")
            os.utime(mount + name, ns=(status.st_atime_ns, status.st_mtime_ns))

    class Light(Pair):
        """Without reading 8 GiB of zeros."""

    snapshot, tree.snapshot = tree.snapshot, lambda mount: {}
    try:
        pair = Light(top, make, edit)
        begin = time.monotonic()
        told = pair.told()
        assert time.monotonic() - begin < 5
    finally:
        tree.snapshot = snapshot
    equal(told, {b"f": (MODIFIED, CONTENT, b""), b"holes": (MODIFIED, CONTENT, b"")})


@test
def lost_found(top):
    """ext4's own directory is no news until there is something in it."""
    def edit(mount):
        os.chmod(mount + b"/lost+found", 0o755)

    def remove(mount):
        os.rmdir(mount + b"/lost+found")

    def use(mount):
        with open(mount + b"/lost+found/x", "wb"):
            pass

    equal(Pair(top, nothing, edit).told(), {})
    equal(Pair(top, nothing, remove).told(), {})
    equal(Pair(top, remove, nothing).told(), {})
    equal(Pair(top, nothing, use).told(), {b"lost+found/x": (ADDED, 0, b"")})
    equal(Pair(top, use, remove_all).told(), {b"lost+found/x": (DELETED, 0, b"")})


def remove_all(mount):
    os.remove(mount + b"/lost+found/x")


@test
def access_lists(top):
    """An access list that changed is a flag."""
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, 6, who) for tag, who in (
        (1, 0xffffffff), (2, 1000), (4, 0xffffffff), (16, 0xffffffff), (32, 0xffffffff)))

    def make(mount):
        with open(mount + b"/f", "wb"):
            pass
        os.chmod(mount + b"/f", 0o666)

    def edit(mount):
        os.setxattr(mount + b"/f", "system.posix_acl_access", acl)

    told = Pair(top, make, edit).told()
    equal(told, {b"f": (MODIFIED, XATTRS, b"")})


@test
def patches(top):
    """Texts have hunks that patch(1) and we can read, other files none."""
    def make(mount):
        for name, data in ((b"text", b"1\n2\n3\n"), (b"binary", b"a\0b\n"), (b"gone", b"g\n"),
                           (b"big", b"x\n" * (2 << 20)), (b"moved", b"m\n" * 20),
                           (b"long", b"a\n" * 30000), (b"mode", b"same\n")):
            with open(mount + b"/" + name, "wb") as file:
                file.write(data)

    def edit(mount):
        for name in (b"text", b"binary", b"big", b"moved"):
            with open(mount + b"/" + name, "ab") as file:
                file.write(b"\xff")
        with open(mount + b"/long", "wb") as file:
            file.write(b"b\n" * 30000)
        os.remove(mount + b"/gone")
        os.rename(mount + b"/moved", mount + b"/there")
        os.chmod(mount + b"/mode", 0o600)
        with open(mount + b"/new", "wb") as file:
            file.write(b"n\n")

    found = {each.path: each.text for each in Pair(top, make, edit).records("patch")}
    equal(found.pop(b"long"), b"@@ -1,30000 +1,30000 @@\n" + b"-a\n" * 30000 + b"+b\n" * 30000)
    equal(found, {
        b"text": b"@@ -1,3 +1,4 @@\n 1\n 2\n 3\n+\xff\n\\ No newline at end of file\n",
        b"binary": b"", b"big": b"", b"mode": b"",
        b"gone": b"@@ -1 +0,0 @@\n-g\n",
        b"new": b"@@ -0,0 +1 @@\n+n\n",
        b"there": b"@@ -18,3 +18,4 @@\n m\n m\n m\n+\xff\n\\ No newline at end of file\n",
    })


@test
def grown(top):
    """A file system that has more groups now, which then hold files."""
    pair = Pair(top, nothing, nothing, size="40M")

    run("truncate", "-s", "200M", pair.new.image)
    run("resize2fs", "-f", pair.new.image, capture_output=True)
    with pair.new as mount:
        for number in range(20000):
            with open(mount + b"/%d" % number, "wb"):
                pass
    equal(len(pair.told()), 20000)
    device = pair.new.attach()
    with pair.old as mount:
        records = parse(diff_at(mount, device))[0]
    pair.new.detach()
    equal([each.kind for each in records], [DELETED] * 20000)


@test
def geometries(top):
    """Descriptors of both sizes, in the groups or in front, with and without what is unused."""
    for options in (["-O", "^64bit"], ["-O", "^64bit,^metadata_csum,uninit_bg"],
                    ["-O", "^metadata_csum"], ["-O", "meta_bg,^resize_inode", "-b", "1024", "-g",
                                               "1024"],
                    ["-O", "sparse_super2,meta_bg", "-b", "1024", "-g", "2048"],
                    ["-O", "^flex_bg"], ["-O", "^has_journal"], ["-I", "1024"],
                    ["-N", "50000"]):
        pair = Pair(top, lambda mount: Editor(mount, 7).edit(80),
                    lambda mount: Editor(mount, 8).edit(40), *options)
        assert len(pair.told()) > 10
        try:
            check_pair(pair)
        except AssertionError:
            print(f"# {options}")
            raise


@test
def deep_and_long(top):
    """A path that no system call takes is an error that says so, on either side."""
    def deep(mount):
        os.chdir(mount)
        for _ in range(30):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        with open("f", "wb"):
            pass
        os.chdir("/")

    def change_the_deepest(mount):
        os.chdir(mount)
        for _ in range(30):
            os.chdir("d" * 200)
        os.chmod("f", 0o600)
        os.chdir("/")

    for make, edit in ((nothing, deep), (deep, lambda mount: run("rm", "-r", mount + b"/" + b"d" * 200)),
                       (deep, change_the_deepest), (deep, nothing)):
        pair = Pair.__new__(Pair)
        pair.old = Disk(top + "/old.img", top + "/old").make()
        pair.new = Disk(top + "/new.img", top + "/new")
        with pair.old as mount:
            make(mount)
        pair.new.copy_of(pair.old)
        with pair.new as mount:
            edit(mount)
        # Nobody looks for it where nothing has changed.
        said = pair.diff(fails=edit is not nothing)
        assert edit is nothing or "4095 bytes" in said, said


@test
def directories_that_are_the_same(top):
    """They are looked at until all names of what has changed are found, and no longer."""
    def make(mount):
        for number in range(300):
            os.makedirs(mount + b"/d%d/in" % number)
            with open(mount + b"/d%d/a" % number, "wb"):
                pass
            with open(mount + b"/d%d/in/b" % number, "wb"):
                pass
        # Of many blocks.
        os.mkdir(mount + b"/A-large")
        for number in range(2000):
            with open(mount + b"/A-large/a-name-of-some-length-%d" % number, "wb"):
                pass
        os.link(mount + b"/d7/a", mount + b"/d290/linked")

    def opened(edit, *options):
        pair = Pair(top, make, edit, *options)
        device = pair.old.attach()
        # Leaks are not looked for in a program that is traced; it would be an error of its own.
        env = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
        try:
            with pair.new as mount:
                subprocess.run(["strace", "-f", "-e", "trace=openat2", "-o", top + "/trace", DRIVER,
                                "diff", os.fsdecode(mount), device], capture_output=True, check=True,
                               env=env)
        finally:
            pair.old.detach()
        check_pair(pair)
        with open(top + "/trace", encoding="utf-8", errors="replace") as file:
            return sum("openat2(" in line for line in file)

    def change_each(mount):
        for number in range(300):
            os.chmod(mount + b"/d%d/a" % number, 0o640)

    def change(*names):
        return lambda mount: [os.chmod(mount + b"/" + name, 0o640) for name in names]

    assert opened(nothing) < 20
    every = opened(change_each)
    assert every > 300, every
    # The blocks of directories say which of them hold it: the kernel lists no others.
    few = (b"d0/a", b"d180/in/b", b"d290/linked", b"d299/in", b"A-large/a-name-of-some-length-1999")
    for each in few:
        assert opened(change(each)) < 30, each
    assert opened(change(*few)) < 60
    # Where the blocks are not known all of them may be listed, and the same is found.
    assert sum(opened(change(each), "-O", "^extent,^64bit") > 100 for each in few) >= 2
    opened(change(*few), "-O", "inline_data")


@test
def another_file_system(top):
    """One that was made anew is not compared."""
    pair = Pair(top, nothing, nothing)
    pair.new.make()
    said = pair.diff(fails=True)
    assert "made anew" in said, said
    pair.new.copy_of(pair.old)
    run("mke2fs", "-q", "-F", "-t", "ext4", "-I", "512", "-U",
        run("blkid", "-s", "UUID", "-o", "value", pair.old.image,
            stdout=subprocess.PIPE).stdout.decode().strip(), pair.new.image)
    said = pair.diff(fails=True)
    assert "made anew" in said, said
    # Without fractions of a second a change may leave no trace.
    said = Pair(top, nothing, nothing, "-I", "128").diff(fails=True)
    assert "128 bytes" in said, said


@test
def renames(top):
    """Directories that move out of, into and past each other, with what is in them."""
    def make(mount):
        for name in (b"a/b/c/f", b"p/q/f", b"p/r", b"s/t/f", b"u/v"):
            os.makedirs(os.path.dirname(mount + b"/" + name), exist_ok=True)
            with open(mount + b"/" + name, "wb") as file:
                file.write(name)

    def edit(mount):
        def move(old, new):
            os.rename(mount + b"/" + old, mount + b"/" + new)
        move(b"a/b", b"b")
        move(b"a", b"b/a")
        move(b"b/c", b"b/a/c")
        move(b"p/q", b"o")
        move(b"p", b"z")
        os.mkdir(mount + b"/z/q")
        os.remove(mount + b"/z/r")
        move(b"s/t", b"z/q/t")
        os.rmdir(mount + b"/s")
        os.mkdir(mount + b"/w")
        move(b"u/v", b"w/v")

    pair = Pair(top, make, edit)
    check_pair(pair)
    equal(pair.told(), {
        b"b": (RENAMED, 0, b"a/b"), b"b/a": (RENAMED, 0, b"a"), b"b/a/c": (RENAMED, 0, b"a/b/c"),
        b"o": (RENAMED, 0, b"p/q"), b"z": (RENAMED, 0, b"p"), b"z/q": (ADDED, 0, b""),
        b"z/q/t": (RENAMED, 0, b"s/t"), b"s": (DELETED, 0, b""), b"w": (ADDED, 0, b""),
        b"w/v": (RENAMED, 0, b"u/v"), b"z/r": (DELETED, 0, b"")})


@test
def exchanged(top):
    """What lies in directories that changed places is renamed, unless its name was there."""
    def make(mount):
        for name in (b"a/in/deep/f", b"a/same/x", b"b/other/g", b"b/same/x"):
            os.makedirs(os.path.dirname(mount + b"/" + name))
            with open(mount + b"/" + name, "wb") as file:
                file.write(b"x")

    def edit(mount):
        os.rename(mount + b"/a", mount + b"/c")
        os.rename(mount + b"/b", mount + b"/a")
        os.rename(mount + b"/c", mount + b"/b")

    pair = Pair(top, make, edit)
    check_pair(pair)
    equal(pair.told(), {b"a/other": (RENAMED, 0, b"b/other"), b"b/in": (RENAMED, 0, b"a/in")})


@test
def hard_links(top):
    """Names of one file stay names of one file, also when the first was not accepted."""
    def make(mount):
        with open(mount + b"/a", "wb") as file:
            file.write(b"old")
        os.link(mount + b"/a", mount + b"/b")

    def edit(mount):
        with open(mount + b"/a", "wb") as file:
            file.write(b"new")
        for name in (b"x", b"y", b"z"):
            if name == b"x":
                with open(mount + b"/x", "wb") as file:
                    file.write(b"linked")
            else:
                os.link(mount + b"/x", mount + b"/" + name)
        os.symlink(b"t", mount + b"/s1")
        os.link(mount + b"/s1", mount + b"/s2", follow_symlinks=False)

    pair = Pair(top, make, edit)
    records, archive = parse(pair.diff("content"))
    equal([each.path for each in records], [b"a", b"b", b"s1", b"s2", b"x", b"y", b"z"])
    applied = pair.apply(records, archive)
    equal(states(applied), states(pair.new_tree))
    for names in ((b"a", b"b"), (b"x", b"y", b"z"), (b"s1", b"s2")):
        equal(len({applied[name].id for name in names}), 1, names)
    some = [each for each in records if each.path in (b"b", b"y", b"z", b"s2")]
    applied = pair.apply(some, archive)
    equal(sorted(applied), [b".", b"a", b"b", b"s2", b"y", b"z"])
    equal(applied[b"y"].id, applied[b"z"].id)
    equal(applied[b"a"].state(), pair.old_tree[b"a"].state())
    for name in (b"b", b"y", b"z", b"s2"):
        equal(applied[name].state(), pair.new_tree[name].state(), name)


@test
def only_what_was_accepted(top):
    """Each record alone makes its own path new and touches nothing else."""
    def make(mount):
        editor = Editor(mount, 31)
        for _ in range(15):
            editor.directory()
            editor.create()
            editor.symlink()
            editor.link()

    def edit(mount):
        for path in sorted(tree.snapshot(mount))[1:]:
            full = mount + b"/" + path
            if os.path.isfile(full) and not os.path.islink(full):
                with open(full, "ab") as file:
                    file.write(b"more")
            else:
                os.lchown(full, 5, 6)

    pair = Pair(top, make, edit)
    records, archive = parse(pair.diff("content"))
    assert len(records) > 20
    for number, each in enumerate(records):
        if number % 3 != 0:
            continue
        applied = states(pair.apply([each], archive))
        wanted = states(pair.old_tree)
        wanted[each.path] = pair.new_tree[each.path].state()
        # Other names of the inode are other files now, or have the owner as well.
        others = {path for path, node in pair.old_tree.items()
                  if node.id == pair.old_tree[each.path].id} - {each.path}
        for path in others:
            wanted.pop(path)
            applied.pop(path)
        equal(applied, wanted, each.path)


@test
def apply_refuses(top):
    """Whatever does not fit is an error, and nothing is written through a link."""
    def make(mount):
        for name in (b"dir/in", b"dir/stay", b"out/x"):
            os.makedirs(os.path.dirname(mount + b"/" + name), exist_ok=True)
            with open(mount + b"/" + name, "wb") as file:
                file.write(name)

    def edit(mount):
        shutil.rmtree(mount + b"/dir")
        os.mkdir(mount + b"/new")
        with open(mount + b"/new/f", "wb") as file:
            file.write(b"f")
        os.chmod(mount + b"/new/f", 0o4755)
        os.rename(mount + b"/out", mount + b"/moved")
        with open(mount + b"/moved/x", "ab") as file:
            file.write(b"more")

    pair = Pair(top, make, edit)
    records, archive = parse(pair.diff("content"))
    by_path = {each.path: each for each in records}
    equal(sorted(by_path), [b"dir", b"dir/in", b"dir/stay", b"moved", b"moved/x", b"new", b"new/f"])

    def refused(accepted, word, prepare=nothing, archive=archive):
        pair.third.copy_of(pair.old)
        with pair.third as mount:
            prepare(mount)
            said = apply_to(mount, [by_path[path] for path in accepted], archive, fails=True)
        assert word in said, said

    refused([b"dir", b"dir/in"], "something stays")
    refused([b"moved/x"], "not there")
    refused([b"new/f"], "No such file")
    refused([b"dir/in"], "not there", lambda mount: os.remove(mount + b"/dir/in"))
    refused([b"moved"], "not there", lambda mount: os.rename(mount + b"/out", mount + b"/o"))
    refused([b"moved"], "is there already", lambda mount: os.mkdir(mount + b"/moved"))
    refused([b"new", b"new/f"], "is there already", lambda mount: os.mkdir(mount + b"/new"))
    refused([b"moved", b"moved/x"], "cannot apply", lambda mount: (
        os.remove(mount + b"/out/x"), os.symlink(b"/etc/passwd", mount + b"/out/x")))
    refused([b"new", b"new/f"], "cut short", archive=archive[:-2000])
    refused([b"new", b"new/f"], "no entry", archive=b"\0" * 1024)

    def link(mount):
        shutil.rmtree(mount + b"/dir")
        os.symlink(b"/", mount + b"/dir")
    refused([b"dir/in"], "cannot apply", link)
    # The end mark lies; the order is wrong; a record twice.
    stream = by_path[b"dir"].frame
    for bad in (stream + end(2), stream + stream + end(2), by_path[b"new"].frame + stream + end(2),
                stream, stream + b"\0\0\0\0", b"", stream + struct.pack("<IB", 5, 7) + b"abcd"):
        done = subprocess.run([DRIVER, "apply", top], input=bad + archive, capture_output=True,
                              check=False)
        equal(done.returncode, 1)
        assert b"refused" in done.stderr, done.stderr


@test
def what_was_there_must_be_what_was_shown(top):
    """No record brings a mode, an owner or an end that it does not show, by lying of the old."""
    def make(mount):
        for name in (b"content", b"gone", b"mode", b"place"):
            with open(mount + b"/" + name, "wb") as file:
                file.write(name)
            os.chmod(mount + b"/" + name, 0o600)

    def edit(mount):
        with open(mount + b"/content", "ab") as file:
            file.write(b"more")
        os.remove(mount + b"/gone")
        os.chmod(mount + b"/mode", 0o640)
        os.rename(mount + b"/place", mount + b"/renamed")

    pair = Pair(top, make, edit)
    records, archive = parse(pair.diff("content"))
    equal([(each.path, each.kind, each.flags) for each in records],
          [(b"content", MODIFIED, CONTENT), (b"gone", DELETED, 0), (b"mode", MODIFIED, MODE),
           (b"renamed", RENAMED, 0)])
    equal(states(pair.apply(records, archive)), states(pair.new_tree), "applied")

    def lie(path, both, **values):
        """Sets fields of the old side, and with both of the new one, in the frame of a record."""
        lying = []
        for each in records:
            frame = bytearray(each.frame)
            for field, value in values.items() if each.path == path else ():
                at = {"mode": 4, "uid": 8, "gid": 12}.get(field, 16)
                for side in (13, 37) if both else (13,):
                    struct.pack_into("<Q" if field == "size" else "<I", frame, side + at, value)
            lying.append(Record(bytes(frame)))
        said = pair.apply(lying, archive, fails=True)
        assert f'of "{path.decode()}": what it ' in said and "than it says" in said, said

    lie(b"content", True, mode=0o4777)
    lie(b"content", True, uid=1000)
    lie(b"content", True, gid=1000)
    lie(b"content", False, size=1)
    lie(b"gone", False, size=1)
    lie(b"gone", False, mode=0)
    lie(b"gone", False, uid=1000)
    lie(b"mode", True, size=1)
    lie(b"renamed", True, mode=0o777)
    lie(b"renamed", True, uid=1000)


@test
def entries_must_be_what_was_shown(top):
    """An archive that says something else than its record is refused; modes are the record's."""
    pair = Pair(top, nothing, lambda mount: (
        os.symlink(b"target", mount + b"/l"), open(mount + b"/f", "wb").write(b"12345"),
        os.mkdir(mount + b"/d"), os.chmod(mount + b"/f", 0o600)))
    records, archive = parse(pair.diff("content"))

    def archive_of(changes):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as file:
            for name, kind, data in changes:
                info = tarfile.TarInfo(name)
                info.type, info.mode, info.uid = kind, 0o4777, 0 if name == "x" else 7
                info.linkname = data if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
                # A file that is left out is kept for a later hard link only when it says so.
                info.pax_headers = {"SCHILY.nlink": "2"} if name == "x" else {}
                info.size = len(data) if kind == tarfile.REGTYPE else 0
                file.addfile(info, io.BytesIO(data) if kind == tarfile.REGTYPE else None)
        return out.getvalue()

    good = [("d", tarfile.DIRTYPE, b""), ("f", tarfile.REGTYPE, b"abcde"),
            ("l", tarfile.SYMTYPE, "target")]
    applied = pair.apply(records, archive_of(good))
    for name in (b"d", b"f", b"l"):
        equal((applied[name].mode, applied[name].owner),
              (pair.new_tree[name].mode, pair.new_tree[name].owner), name)
    extra = ("extra", tarfile.REGTYPE, b"never")
    equal(sorted(pair.apply(records, archive_of(good + [extra]))), [b".", b"d", b"f", b"l"])
    for bad in ([good[0], ("f", tarfile.REGTYPE, b"abcdef"), good[2]],
                [good[0], good[1], ("l", tarfile.SYMTYPE, "other")],
                [good[0], good[1], ("l", tarfile.LNKTYPE, "f")],
                [good[0], ("f", tarfile.DIRTYPE, b""), good[2]],
                [("d", tarfile.REGTYPE, b""), good[1], good[2]],
                [("d", tarfile.SYMTYPE, "/tmp"), good[1], good[2]],
                good + [good[1]], good[:2],
                [good[0], ("x", tarfile.REGTYPE, b"abcde"), ("f", tarfile.LNKTYPE, "x"), good[2]],
                [("d/in", tarfile.REGTYPE, b"x")] + good):
        pair.apply(records, archive_of(bad), fails=True)
    del archive


@test
def links_must_be_what_was_shown(top):
    """A hard link brings neither another target than was shown, nor a file of the parent's."""
    def make(mount):
        os.mkdir(mount + b"/closed", 0o700)
        with open(mount + b"/closed/secret", "wb") as file:
            file.write(b"12345")

    def edit(mount):
        os.symlink(b"target", mount + b"/l")
        with open(mount + b"/f", "wb") as file:
            file.write(b"abcde")

    pair = Pair(top, make, edit)
    records, archive = parse(pair.diff("content"))
    equal([each.path for each in records], [b"f", b"l"])

    def archive_of(*entries):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as file:
            for name, kind, data, links in entries:
                info = tarfile.TarInfo(name)
                info.type, info.mode = kind, 0o644
                info.linkname = "" if kind == tarfile.REGTYPE else data
                info.pax_headers = {"SCHILY.nlink": links}
                info.size = len(data) if kind == tarfile.REGTYPE else 0
                file.addfile(info, io.BytesIO(data) if kind == tarfile.REGTYPE else None)
        return out.getvalue()

    # As it would be right, by a name that is left out.
    kept = [("a", tarfile.REGTYPE, b"abcde", "2"), ("b", tarfile.SYMTYPE, "target", "2")]
    named = [("f", tarfile.LNKTYPE, "a", "2"), ("l", tarfile.LNKTYPE, "b", "2")]
    applied = pair.apply(records, archive_of(*kept, *named))
    equal(states(applied), states(pair.new_tree))
    for bad in ([kept[0], ("b", tarfile.SYMTYPE, "/etc", "2"), *named],
                [("closed/secret", tarfile.REGTYPE, b"abcde", "1"), kept[1],
                 ("f", tarfile.LNKTYPE, "closed/secret", "2"), named[1]]):
        said = pair.apply(records, archive_of(*bad), fails=True)
        assert "name of is" in said, said
    del archive


@test
def attributes_must_be_what_was_shown(top):
    """Where a record says nothing of attributes they stay as they are."""
    def make(mount):
        os.mkdir(mount + b"/d")
        for name in (b"/f", b"/g"):
            with open(mount + name, "wb") as file:
                file.write(b"12345")
            os.setxattr(mount + name, b"user.kept", b"old")

    def edit(mount):
        for name in (b"/f", b"/g"):
            with open(mount + name, "wb") as file:
                file.write(b"abcde")
        os.setxattr(mount + b"/g", b"user.kept", b"new")
        os.setxattr(mount + b"/d", b"user.more", b"1")

    pair = Pair(top, make, edit)
    records, archive = parse(pair.diff("content"))
    equal([each.path for each in records], [b"d", b"f", b"g"])
    equal(states(pair.apply(records, archive)), states(pair.new_tree))

    def archive_of(f, g, d):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as file:
            for name, xattrs in (("d", d), ("f", f), ("g", g)):
                info = tarfile.TarInfo(name)
                info.type = tarfile.DIRTYPE if name == "d" else tarfile.REGTYPE
                info.pax_headers = {"SCHILY.xattr." + key: value for key, value in xattrs.items()}
                info.size = 0 if name == "d" else 5
                file.addfile(info, None if name == "d" else io.BytesIO(b"abcde"))
        return out.getvalue()

    d, f, g = {"user.more": "1"}, {"user.kept": "old"}, {"user.kept": "new"}
    equal(states(pair.apply(records, archive_of(f, g, d))), states(pair.new_tree))
    for bad in ({}, g, {**f, "user.evil": "1"}, {**f, "security.capability": "x" * 20}):
        said = pair.apply(records, archive_of(bad, g, d), fails=True)
        assert "attributes" in said, said
    del archive


@test
def hostile_images(top):
    """Broken superblocks, descriptors and directories end in an error, or in no difference."""
    pair = Pair(top, lambda mount: Editor(mount, 3).edit(40), lambda mount: Editor(mount, 4).edit(9),
                "-b", "4096")
    run("cp", pair.new.image, top + "/whole.img")
    with open(pair.new.image, "rb") as file:
        head = file.read(65536)
    lies = {"truncated": None, "super": (1024, 1024), "uuid": (1024 + 0x68, 16),
            "blocks": (1024 + 4, 4), "descriptors": (4096, 4096), "table": (4096 + 8, 4),
            "unused": (4096 + 0x1c, 2), "inodes": (1024 + 0x28, 4)}
    for name, place in lies.items():
        bad = top + "/bad.img"
        shutil.copy(top + "/whole.img", bad)
        with open(bad, "r+b") as file:
            if place is None:
                file.truncate(30000)
            else:
                file.seek(place[0])
                file.write(b"\xff" * place[1])
        for old, new in ((pair.old.image, bad), (bad, pair.new.image)):
            done = subprocess.run([DRIVER, "inodes", old, new], capture_output=True, check=False)
            equal(done.returncode, 1, name)
            equal(done.stderr.count(b"\n"), 1, name)
    generator = tree.random.Random(9)
    for _ in range(300):
        bad = bytearray(head)
        for _ in range(generator.choice([1, 3, 30])):
            bad[generator.choice([1024, 4096]) + generator.randrange(512)] = generator.randrange(256)
        with open(top + "/bad.img", "r+b") as file:
            file.write(bad)
        done = subprocess.run([DRIVER, "inodes", pair.old.image, top + "/bad.img"],
                              capture_output=True, check=False, timeout=20)
        assert done.returncode in (0, 1), done


@test
def hostile_directories(top):
    """A directory that holds itself, is there twice, or names what is not."""
    def make(mount):
        for name in (b"a/b/c", b"d/e"):
            os.makedirs(mount + b"/" + name)
        with open(mount + b"/f", "wb"):
            pass

    pair = Pair(top, make, nothing, "-O", "^metadata_csum,^dir_index")
    # It says that it has names which are nowhere, so that every directory is looked at.
    search = "set_inode_field f links_count 5"
    inode = {name: pair.old_tree[name].id[0] for name in (b"a", b"a/b", b"a/b/c", b"d", b"d/e")}
    root_b = 2
    for commands in ([f"link <{inode[b'a']}> a/b/again"], [f"link <{root_b}> d/e/root"],
                     [f"link <{inode[b'a/b']}> d/twice"], [f"link <{inode[b'd/e']}> a/b/c/e"],
                     ["link <8> journal"], ["link <4000000> outside"],
                     [f"set_inode_field d mode 0100644"], [f"set_inode_field d/e mode 0120777"],
                     [f"clri d/e"], [f"set_inode_field d/e size 999999999999"]):
        for side, other in (("new", "old"), ("old", "new")):
            bad = getattr(pair, side)
            run("cp", bad.image, top + "/keep.img")
            run("debugfs", "-w", "-f", "/dev/stdin", bad.image, capture_output=True,
                input="\n".join([search, *commands]).encode())
            device = pair.old.attach()
            try:
                with pair.new as mount:
                    done = subprocess.run([DRIVER, "diff", os.fsdecode(mount), device, "content"],
                                          capture_output=True, check=False, timeout=60)
            finally:
                pair.old.detach()
            run("cp", top + "/keep.img", bad.image)
            assert done.returncode in (0, 1), (commands, other, done)
            equal(done.stderr.count(b"\n"), done.returncode, commands)
            if "twice" in commands[0] and side == "new":
                assert b"broken there" in done.stderr, done


def main():
    """Runs the tests that were asked for, or all."""
    if os.geteuid() != 0 or subprocess.run(["losetup", "-f"], capture_output=True,
                                           check=False).returncode != 0:
        print("1..1\nok 1 - with_disks # SKIP it needs root and loop devices")
        return 0
    # A mount namespace that another program makes meanwhile would hold our mounts.
    if "DIFF_ALONE" not in os.environ:
        os.environ["DIFF_ALONE"] = "1"
        os.execvp("unshare", ["unshare", "-m", "--propagation", "private", sys.executable,
                              *sys.argv])
    wanted = sys.argv[2:]
    tests = [each for each in TESTS if not wanted or each.__name__ in wanted]
    failed = 0
    print(f"1..{len(tests)}")
    for number, function in enumerate(tests, 1):
        top = tempfile.mkdtemp(prefix="box-diff-")
        begin = time.monotonic()
        try:
            function(top)
            print(f"# {time.monotonic() - begin:.1f} s")
            print(f"ok {number} - {function.__name__}")
        except Exception:  # pylint: disable=broad-except
            failed += 1
            for line in traceback.format_exc().split("\n"):
                print(f"# {line}"[:2000])
            print(f"not ok {number} - {function.__name__}")
        sys.stdout.flush()
        shutil.rmtree(top, ignore_errors=True)
    return 1 if failed else 0


sys.exit(main())
