#!/usr/bin/env python3
"""box-copy in its jail, as the client starts it, fed with archives of all kinds.

usage: test_copy.py BOX-COPY RECEIVE TAR-TREE

Runs as whoever starts it, and when that is root as a normal user as well. Prints TAP.
"""

import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time

BOX_COPY, RECEIVE, TAR_TREE = sys.argv[1:]
TESTS = []
# No account of a Debian system has it; the kernel knows no difference.
USER_ID = 1876544
os.environ["LC_ALL"] = "C"


def test(function):
    """Marks a test."""
    TESTS.append(function)
    return function


def equal(found, wanted, what=""):
    """Fails unless both are the same."""
    assert found == wanted, f"{what}: {found!r} is not {wanted!r}"


class Place:
    """A scratch directory with an installed box-copy, used under one user ID."""

    def __init__(self, top, uid):
        self.top = top
        self.uid = uid
        self.program = top + "/bin/receive"
        os.makedirs(top + "/bin")
        os.makedirs(top + "/libexec/box")
        shutil.copy(RECEIVE, self.program)
        shutil.copy(BOX_COPY, top + "/libexec/box/box-copy")
        self.out = self.directory("out")
        os.chmod(top, 0o755)

    def directory(self, name):
        """Makes a directory of the user's."""
        path = f"{self.top}/{name}"
        os.mkdir(path)
        os.chown(path, self.uid, self.uid)
        return path

    def identity(self):
        """What makes a child run as the user."""
        return {} if self.uid == os.geteuid() else {
            "user": self.uid, "group": self.uid, "extra_groups": []}

    def receive(self, archive, path=None, name="top"):
        """Runs one receive; archive is bytes. Returns (exit code, message)."""
        done = subprocess.run([self.program, path or self.out, name], input=archive, check=False,
                              capture_output=True, timeout=60, cwd=self.out, **self.identity())
        return done.returncode, done.stderr.decode().strip()

    def names(self):
        """Everything that is in out, sorted."""
        return sorted(os.path.relpath(os.path.join(folder, name), self.out)
                      for folder, folders, files in os.walk(self.out) for name in folders + files)


def tree(top):
    """A directory with everything that a copy keeps."""
    os.makedirs(top + "/deep/er")
    with open(top + "/file", "w", encoding="ascii") as file:
        file.write("text\n")
    os.chmod(top + "/file", 0o4751)
    os.link(top + "/file", top + "/deep/again")
    os.symlink("../file", top + "/deep/link")
    os.symlink("/nowhere/at all", top + "/dangling")
    with open(top + "/sparse", "wb") as file:
        file.truncate(64 << 20)
        file.seek(20 << 20)
        file.write(b"x" * 5000)
    with open(top + "/large", "wb") as file:
        file.write(os.urandom(3 << 20))
    open(top + "/" + "n" * 200, "wb").close()
    open(top + "/deep/er/new\nline\x1b[31m", "wb").close()
    os.chmod(top + "/deep/er", 0o1555)
    os.utime(top + "/file", ns=(5, 981173106789012345))
    os.utime(top + "/dangling", ns=(5, 881173106000000001), follow_symlinks=False)
    os.utime(top + "/deep/er", ns=(5, 781173106000000002))


def pictures(top):
    """What a tree is, for comparing."""
    seen = {}
    files = {}
    for folder, folders, names in os.walk(top):
        for name in folders + names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            first = seen.setdefault(status.st_ino, os.path.relpath(path, top))
            data = None
            if kind == stat.S_IFREG:
                with open(path, "rb") as file:
                    data = hash(file.read())
            files[os.path.relpath(path, top)] = (
                kind, status.st_mode & 0o1777, first if kind != stat.S_IFDIR else None,
                status.st_mtime_ns, data, os.readlink(path) if kind == stat.S_IFLNK else None)
    # Which of two names comes first is chance: what counts is which are the same file.
    return {path: picture[:2] + (sorted(other for other in files
                                        if files[other][2] == picture[2]
                                        and picture[2] is not None),) + picture[3:]
            for path, picture in files.items()}


def made(*entries):
    """An archive of (name, type, link or data)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, value in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            entry.mode = 0o755
            entry.mtime = 1000000000
            if kind == tarfile.REGTYPE:
                entry.size = len(value)
                archive.addfile(entry, io.BytesIO(value))
            else:
                entry.linkname = value or ""
                archive.addfile(entry)
    return out.getvalue()


FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def copy_whole(place, archive):
    """An archive of tree() arrives as it was."""
    equal(place.receive(archive, name="copy"), (0, ""))
    equal(pictures(place.out + "/copy"), pictures(place.top + "/tree"))
    sparse = os.stat(place.out + "/copy/sparse")
    assert sparse.st_blocks * 512 < 2 << 20, "the holes are gone"
    equal(os.stat(place.out + "/copy/file").st_uid, place.uid, "owner")
    equal(os.stat(place.out + "/copy/file").st_mode & 0o7777, 0o751, "mode without setuid")


@test
def test_gnu_tar(place):
    """What GNU tar writes."""
    tree(place.top + "/tree")
    for form in ("pax", "gnu"):
        archive = subprocess.run(["tar", "--format=" + form, "-S", "-C", place.top, "-cf", "-",
                                  "tree"], check=True, capture_output=True).stdout
        if form == "gnu":
            # That format has whole seconds only.
            subprocess.run([place.program, place.out, "gnu"], input=archive, check=True,
                           cwd=place.out, **place.identity())
            equal(os.stat(place.out + "/gnu/file").st_mtime, 981173106.0)
        else:
            copy_whole(place, archive)


@test
def test_a_directory_that_was_there(place):
    """What goes into one does not change who may write there."""
    os.chmod(place.out, 0o750)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made_tar:
        entry = tarfile.TarInfo("./")
        entry.type, entry.mode, entry.mtime = FOLDER, 0o777, 1
        made_tar.addfile(entry)
        made_tar.addfile(tarfile.TarInfo("./file"))
    equal(place.receive(archive.getvalue(), name=""), (0, ""))
    equal(place.names(), ["file"])
    equal(os.stat(place.out).st_mode & 0o7777, 0o750, "mode of the directory")
    assert os.stat(place.out).st_mtime > 1, "time of the directory"


@test
def test_own_writer(place):
    """What our writer writes, as the contents of a directory with a new name."""
    tree(place.top + "/tree")
    archive = subprocess.run([TAR_TREE, place.top + "/tree"], check=True,
                             capture_output=True).stdout
    equal(place.receive(archive, path=place.out + "/copy", name=""), (0, ""))
    equal(pictures(place.out + "/copy"), pictures(place.top + "/tree"))
    equal(place.receive(archive, path=place.out + "/copy/", name=""), (0, ""), "once more")
    equal(pictures(place.out + "/copy"), pictures(place.top + "/tree"))
    # GNU tar reads it too.
    os.mkdir(place.top + "/theirs")
    subprocess.run(["tar", "-C", place.top + "/theirs", "-xpf", "-"], input=archive, check=True)
    theirs = pictures(place.top + "/theirs")
    # GNU tar drops no setuid bit, and neither the times of links to links nor holes differ.
    equal(theirs, pictures(place.top + "/tree"))


@test
def test_only_the_name_that_was_asked_for(place):
    """A guest chooses no name outside of the one top."""
    for archive in (made((".bashrc", FILE, b"x"), ("b", FILE, b"y")),
                    made(("./", FOLDER, None), ("./.bashrc", FILE, b"x")),
                    made(("a/b", FILE, b"x"), ("c/d", FILE, b"y"))):
        code, message = place.receive(archive)
        equal(code, 1, message)
        assert set(place.names()) <= {"top", "top/b"}, place.names()
    equal(place.receive(made(("../../x", FILE, b"x")))[0], 1)
    equal(place.receive(made(("evil", FILE, b"x")), name="asked"), (0, ""))
    assert "evil" not in place.names() and "asked" in place.names()


@test
def test_hostile_names(place):
    """Nothing is written outside, whatever an archive says."""
    outside = place.directory("outside")
    with open(outside + "/file", "w", encoding="ascii") as file:
        file.write("mine")
    hostile = [
        made(("/abs", FILE, b"x")),
        made(("t/../../x", FILE, b"x")),
        made(("t/l", LINK, outside), ("t/l/x", FILE, b"x")),
        made(("t/l", LINK, outside + "/file"), ("t/l", FILE, b"x")),
        made(("t/h", HARD, "../outside/file")),
        made(("t/h", HARD, outside + "/file")),
        made(("t/l", LINK, ".."), ("t/h", HARD, "t/l/outside/file")),
        made(("t/dev", tarfile.CHRTYPE, None)),
        made(("t/fifo", tarfile.FIFOTYPE, None)),
        made(("t/" + "n" * 256, FILE, b"x")),
        made(("t", FILE, b"x"), ("t/x", FILE, b"x")),
    ]
    for number, archive in enumerate(hostile):
        code, message = place.receive(archive, name=f"top{number}")
        equal(code, 1, f"archive {number}")
        assert message.startswith("copy-failed: archive: "), message
    equal(os.listdir(outside), ["file"])
    with open(outside + "/file", encoding="ascii") as file:
        equal(file.read(), "mine")


@test
def test_links_that_are_there_are_not_followed(place):
    """Neither a link in the way nor one as a directory."""
    outside = place.directory("outside")
    os.symlink(outside, place.out + "/top")
    code, message = place.receive(made(("t", FOLDER, None), ("t/x", FILE, b"x")))
    equal((code, message), (1, 'copy-failed: cannot write "top": something that is no directory is '
                               "in the way"))
    equal(os.listdir(outside), [])
    os.unlink(place.out + "/top")
    os.symlink(outside + "/victim", place.out + "/top")
    equal(place.receive(made(("t", FILE, b"x"))), (0, ""))
    assert not os.path.islink(place.out + "/top"), "the link was followed"
    equal(os.listdir(outside), [])


@test
def test_what_is_in_the_way(place):
    """Files and links are replaced, directories merged, and the two kinds never mixed."""
    os.mkdir(place.out + "/top")
    os.chown(place.out + "/top", place.uid, place.uid)
    for name in ("old", "keep"):
        with open(f"{place.out}/top/{name}", "w", encoding="ascii") as file:
            file.write(name)
    equal(place.receive(made(("t", FOLDER, None), ("t/old", FILE, b"new"), ("t/l", LINK, "old"))),
          (0, ""))
    equal(place.receive(made(("t", FOLDER, None), ("t/l", LINK, "keep"))), (0, ""))
    equal(os.readlink(place.out + "/top/l"), "keep")
    equal(place.names(), ["top", "top/keep", "top/l", "top/old"])
    code, message = place.receive(made(("t", FILE, b"x")))
    equal((code, message), (1, 'copy-failed: cannot write "top": a directory is in the way'))
    equal(place.receive(made(("t/old", FOLDER, None)))[0], 1)
    equal(place.names(), ["top", "top/keep", "top/l", "top/old"])


@test
def test_the_same_hard_links_again(place):
    """rename(2) does nothing for two names of one file; no temporary name may be left."""
    archive = made(("t/a", FILE, b"x"), ("t/b", HARD, "t/a"))
    for _ in range(2):
        equal(place.receive(archive), (0, ""))
        equal(place.names(), ["top", "top/a", "top/b"])
        equal(os.stat(place.out + "/top/a").st_nlink, 2)


@test
def test_cut_short(place):
    """No half file and no temporary name, wherever an archive ends."""
    archive = made(("t/first", FILE, b"1" * 1000), ("t/second", FILE, b"2" * 100000))
    for end in (0, 512, 1500, 2000, 50000, 100000):
        code, _ = place.receive(archive[:end])
        equal(code, 1, f"{end} bytes")
        for name in place.names():
            assert name in ("top", "top/first"), name
    equal(place.receive(archive + b"x")[0], 1, "bytes behind the end")


@test
def test_a_killed_receiver(place):
    """Whoever started it is killed: it ends too, and no file has its final name."""
    archive = made(("t", FILE, b"1" * 3000000))
    child = subprocess.Popen([place.program, place.out, "top"], stdin=subprocess.PIPE,
                             cwd=place.out, **place.identity())
    child.stdin.write(archive[:1000000])
    child.stdin.flush()
    for _ in range(200):
        if os.listdir(place.out):
            break
        time.sleep(0.05)
    names = os.listdir(place.out)
    equal(len(names), 1)
    assert names[0].startswith(".box-copy-"), names
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    equal(os.listdir(place.out), names)


@test
def test_no_room(place):
    """A full file system is told as such."""
    if os.geteuid() != 0 or place.uid != 0:
        return
    disk = place.directory("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
    try:
        code, message = place.receive(made(("t/x", FILE, b"x" * (2 << 20))), path=disk)
        equal((code, message), (1, 'disk-full: cannot write "top/x": No space left on device'))
        equal(os.listdir(disk + "/top"), [])
    finally:
        subprocess.run(["umount", disk], check=True)


@test
def test_mounts_below_the_directory(place):
    """A directory with another file system in it is written to as a whole."""
    if os.geteuid() != 0 or place.uid != 0:
        return
    os.makedirs(place.out + "/top/disk")
    subprocess.run(["mount", "-t", "tmpfs", "none", place.out + "/top/disk"], check=True)
    try:
        equal(place.receive(made(("t/disk/x", FILE, b"x"), ("t/y", FILE, b"y"))), (0, ""))
        equal(os.listdir(place.out + "/top/disk"), ["x"])
    finally:
        subprocess.run(["umount", place.out + "/top/disk"], check=True)
    equal(os.listdir(place.out + "/top/disk"), [])


@test
def test_where_nothing_may_be_written(place):
    """The caller's own rights hold, in words."""
    if place.uid == 0:
        return
    os.chmod(place.out, 0o555)
    equal(place.receive(made(("t", FILE, b"x"))),
          (1, 'copy-failed: cannot write "top": Permission denied'))


@test
def test_targets(place):
    """What DST may be."""
    archive = made(("t", FILE, b"x"))
    equal(place.receive(archive, path=place.out + "/new", name="top"), (0, ""))
    equal(place.names(), ["new"])
    equal(place.receive(archive, path=place.out + "/new/", name="top"),
          (1, f'copy-path: "{place.out}/new/": there is no such directory'))
    equal(place.receive(archive, path=place.out + "/none/", name="top"),
          (1, f'copy-path: "{place.out}/none/": there is no such directory'))
    equal(place.receive(archive, path=place.out + "/none/x", name="top"),
          (1, f'copy-path: "{place.out}/none/x": the directory above it is not there'))
    equal(place.receive(archive, path="relative", name="top"), (0, ""))
    equal(place.names(), ["new", "relative"])


def main():
    """Runs all tests, or those that are named in ONLY."""
    only = os.environ.get("ONLY", "").split()
    users = [os.geteuid()] + ([USER_ID] if os.geteuid() == 0 else [])
    tests = [(function, uid) for function in TESTS for uid in users
             if not only or function.__name__ in only]
    failed = 0
    print(f"1..{len(tests)}")
    for number, (function, uid) in enumerate(tests, 1):
        top = tempfile.mkdtemp(prefix="box-test-copy-")
        try:
            function(Place(top, uid))
            print(f"ok {number} - {function.__name__} as {uid}", flush=True)
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            failed += 1
            print(f"not ok {number} - {function.__name__} as {uid}", flush=True)
            for line in f"{type(error).__name__}: {error}"[:2000].split("\n"):
                print(f"# {line}", flush=True)
        finally:
            subprocess.run(["chmod", "-R", "u+rwX", top], check=False)
            shutil.rmtree(top, ignore_errors=True)
    return 1 if failed else 0


sys.exit(main())
