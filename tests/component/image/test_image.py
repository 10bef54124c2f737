#!/usr/bin/env python3
"""box-image over descriptors, as the client starts it, against the tools of e2fsprogs.

usage: test_image.py BOX-IMAGE TAR-TREE TINY-TAR TINY.PY

Every image must pass e2fsck without a word, and hold what the archive held, whichever program made
the archive. Prints TAP.
"""

import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid

BOX_IMAGE, TAR_TREE, TINY_TAR, TINY_PY = sys.argv[1:]
MIB = 1 << 20
GIB = 1 << 30
TESTS = []

os.environ["PATH"] += ":/usr/sbin:/sbin"
os.environ["LC_ALL"] = "C"


class Skipped(Exception):
    """A test that cannot run here, with the reason."""


def test(function):
    """Marks a test."""
    TESTS.append(function)
    return function


def need(program):
    """Skips the test when a program is missing."""
    if not shutil.which(program):
        raise Skipped(f"{program} is not installed")


def equal(found, wanted, what=""):
    """Fails unless both are the same."""
    assert found == wanted, f"{what}: {found!r} is not {wanted!r}"


class Image:
    """An image file, and what box-image said when it made it."""

    def __init__(self, path):
        self.path = path
        self.code = None
        self.errors = ""

    def make(self, mode, size, archive=None, options=()):
        """Runs box-image. archive: bytes through a pipe, or the path of a file."""
        pipe = isinstance(archive, bytes)
        with open(self.path, "w+b") as out, open(archive if isinstance(archive, str) else
                                                 os.devnull, "rb") as given:
            numbers = [str(out.fileno()), str(size)]
            if mode == "tar":
                numbers.insert(0, "0")
            done = subprocess.run(
                [BOX_IMAGE, mode, *numbers, *options], check=False, capture_output=True,
                pass_fds=[out.fileno()], env={}, **({"input": archive} if pipe else
                                                    {"stdin": given}))
        self.code = done.returncode
        self.errors = done.stderr.decode()
        return self

    def check(self):
        """Holds a finished image against e2fsck."""
        equal((self.code, self.errors), (0, ""), "box-image")
        return self.fsck()

    def fsck(self):
        """The same for an image with notes."""
        done = subprocess.run(["e2fsck", "-fn", self.path], check=False, capture_output=True,
                              text=True)
        equal(done.returncode, 0, done.stdout)
        assert "fix? no" not in done.stdout.lower(), done.stdout
        return self

    def debugfs(self, request):
        """What debugfs prints for one request."""
        done = subprocess.run(["debugfs", "-R", request, self.path], check=True,
                              capture_output=True)
        return done.stdout

    def stat(self, path):
        """The lines of debugfs stat, as one string."""
        return self.debugfs(f'stat "{path}"').decode("latin-1")

    def header(self):
        """Fields of the superblock."""
        text = subprocess.run(["dumpe2fs", "-h", self.path], check=True, capture_output=True,
                              text=True).stdout
        return dict(re.findall(r"^([^:\n]+):\s*(.*)$", text, re.M))

    def tree(self, scratch):
        """Everything inside, as snapshot() sees it."""
        target = os.path.join(scratch, "out")
        os.mkdir(target)
        self.debugfs(f"rdump / {target}")
        found = snapshot(target)
        found.pop("lost+found", None)
        return found


def snapshot(top):
    """Names with type, permissions and content of a directory."""
    found = {}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            relative = os.path.relpath(path, top)
            if stat.S_ISLNK(status.st_mode):
                found[relative] = ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                found[relative] = ("directory", oct(status.st_mode))
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                found[relative] = ("file", oct(status.st_mode), status.st_size, digest)
    return found


def make_tar(entries, form=tarfile.PAX_FORMAT):
    """An archive of (name, type, data, attributes)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, kind, data, attributes in entries:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(data)
            for key, value in attributes.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def file(name, data=b"", **attributes):
    """A regular file for make_tar."""
    return (name, tarfile.REGTYPE, data, attributes)


def link(name, target, kind=tarfile.SYMTYPE):
    """A link for make_tar."""
    return (name, kind, b"", {"linkname": target})


def folder(name, **attributes):
    """A directory for make_tar."""
    return (name, tarfile.DIRTYPE, b"", {"mode": 0o755, **attributes})


def make_source(scratch, plain=False):
    """A tree with a bit of everything. plain: only what the oldest formats can say."""
    top = os.path.join(scratch, "source")
    os.makedirs(os.path.join(top, "d/e/f"))
    with open(os.path.join(top, "d/big"), "wb") as out:
        out.write(os.urandom(3 * MIB + 17))
    with open(os.path.join(top, "d/empty"), "wb"):
        pass
    os.chmod(os.path.join(top, "d/empty"), 0o401)
    os.symlink("../somewhere/else", os.path.join(top, "d/link"))
    os.link(os.path.join(top, "d/big"), os.path.join(top, "again"))
    with open(os.path.join(top, "sparse"), "wb") as out:
        for piece in range(12):
            out.seek(piece * 512 * 1024)
            out.write(b"data" * 1024)
        out.truncate(8 * MIB)
    if not plain:
        long = "n" * 200
        os.mkdir(os.path.join(top, long))
        with open(os.path.join(top, long, "\u00e4" * 90), "wb") as out:
            out.write(b"umlauts")
        os.symlink("t" * 300, os.path.join(top, long, "l" * 150))
    os.chmod(os.path.join(top, "d/e"), 0o700)
    return top


@test
def empty_image(scratch):
    """10 GiB take next to nothing and hold only lost+found."""
    image = Image(scratch + "/i")
    identity = str(uuid.uuid4())
    begun = time.monotonic()
    image.make("empty", 10 * GIB, options=["--label", "data", "--uuid", identity])
    took = time.monotonic() - begun
    image.check()
    status = os.stat(image.path)
    equal(status.st_size, 10 * GIB)
    assert status.st_blocks * 512 < 10 * MIB, status.st_blocks
    # A tenth of this is usual; a busy machine gets the rest.
    assert took < 5, took
    header = image.header()
    equal(header["Filesystem volume name"], "data")
    equal(header["Filesystem UUID"], identity)
    equal(header["Block size"], "4096")
    equal(header["Reserved block count"], "0")
    equal(header["Inode count"], str(10 * GIB // 16384))
    for feature in ("has_journal", "extent", "64bit", "metadata_csum", "flex_bg", "dir_index"):
        assert feature in header["Filesystem features"].split(), feature
    names = re.findall(r"(\S+)$", image.debugfs("ls -l /").decode(), re.M)
    equal(names, [".", "..", "lost+found"])
    # Whoever commands run as inside can keep something there.
    assert "Mode:  01777" in image.stat("/"), image.stat("/")


@test
def no_background_work_is_left(scratch):
    """Every inode table is marked as zeroed, so that the guest does not zero them."""
    image = Image(scratch + "/i").make("empty", GIB).check()
    text = subprocess.run(["dumpe2fs", image.path], check=True, capture_output=True,
                          text=True).stdout
    groups = re.findall(r"^Group \d+:.*$", text, re.M)
    equal(len(groups), 8)
    for group in groups:
        assert "ITABLE_ZEROED" in group, group


@test
def sizes(scratch):
    """Odd and small sizes; the file has exactly the size that was asked for."""
    for size in (8 * MIB, 8 * MIB + 1, 63 * MIB + 4095, 128 * MIB, 128 * MIB + 4096, 129 * MIB,
                 1000 * MIB):
        image = Image(scratch + "/i").make("empty", size).check()
        equal(os.path.getsize(image.path), size)
    for size in (0, 1, 8 * MIB - 1):
        image = Image(scratch + "/i").make("empty", size)
        equal(image.code, 1)
        equal(image.errors, "box-image: image: its size must be from 8 MiB to 16 TiB\n")


@test
def attributes_arrive(scratch):
    """Modes, owners, times, links and extended attributes."""
    archive = make_tar([
        folder(".", mode=0o711, uid=5, mtime=1000),
        folder("d", mode=0o2750, uid=70000, gid=3000000000, mtime=2**33 + 0.5),
        file("d/suid", b"x", mode=0o6755, uid=1, mtime=-500000000),
        file("deep/er/f", b"data"),
        link("d/fast", "f" * 59), link("d/slow", "s" * 60), link("d/slowest", "z" * 4095),
        link("d/hard", "d/suid", tarfile.LNKTYPE), link("hardlink-to-link", "./d/fast",
                                                        tarfile.LNKTYPE),
        file("cap", b"", pax_headers={
            "SCHILY.xattr.security.capability": "\1\0\0\2\0\x20" + "\0" * 14,
            "SCHILY.xattr.user.long": "v" * 2000, "SCHILY.xattr.trusted.x": "no"}),
        folder("d", mode=0o1770, uid=6, pax_headers={"SCHILY.xattr.user.d": "dir"}),
    ])
    image = Image(scratch + "/i").make("tar", 64 * MIB, archive).check()
    root = image.stat("/")
    assert "Mode:  0711" in root and "User:     5" in root, root
    again = image.stat("/d")
    assert "Mode:  01770" in again and "User:     6" in again, again
    assert "Type: directory" in image.stat("/deep/er") and "Mode:  0755" in image.stat("/deep")
    suid = image.stat("/d/suid")
    assert "Mode:  06755" in suid and "Links: 2" in suid, suid
    equal(re.search(r"Inode: (\d+)", suid).group(1),
          re.search(r"Inode: (\d+)", image.stat("/d/hard")).group(1))
    assert "mtime: 0xe2329b00" in suid, suid
    assert "Links: 2" in image.stat("/hardlink-to-link")
    assert 'Fast link dest: "' + "f" * 59 + '"' in image.stat("/d/fast")
    equal(image.debugfs("cat /d/slow"), b"s" * 60)
    equal(image.debugfs("cat /d/slowest"), b"z" * 4095)
    attributes = image.debugfs("ea_list /cap").decode()
    assert "security.capability" in attributes and "user.long (2000)" in attributes, attributes
    assert "trusted" not in attributes
    assert "user.d" in image.debugfs("ea_list /d").decode()


@test
def large_owner_and_time(scratch):
    """32-bit owners, and times beyond 2038."""
    archive = make_tar([file("f", uid=3000000000, gid=70000, mtime=2**33 + 0.25)])
    image = Image(scratch + "/i").make("tar", 64 * MIB, archive).check()
    text = image.stat("/f")
    # debugfs prints the owner as a signed number.
    assert f"User: {3000000000 - 2**32}" in text and "Group: 70000" in text, text
    # Two epochs and a quarter of a second: 250000000 << 2 | 2.
    assert "mtime: 0x00000000:3b9aca02" in text, text


def check_tree(scratch, source, archive):
    """An archive of source must become an image of source."""
    image = Image(scratch + "/i").make("tar", 128 * MIB, archive).check()
    equal(image.tree(scratch), snapshot(source))
    first, second = image.stat("/again"), image.stat("/d/big")
    equal(re.search(r"Inode: (\d+)", first).group(1), re.search(r"Inode: (\d+)", second).group(1))
    # 12 pieces of 4 KiB and one block of extents: holes stayed holes.
    assert "Blockcount: 104" in image.stat("/sparse"), image.stat("/sparse")


def run_tar(scratch, command, plain=False):
    """Lets a program make the archive and checks the image of it."""
    need(command[0])
    source = make_source(scratch, plain)
    archive = subprocess.run([*command, "-C", source, "."], check=True,
                             capture_output=True).stdout
    check_tree(scratch, source, archive)


@test
def gnu_tar_gnu(scratch):
    """GNU tar, its own format, sparse."""
    run_tar(scratch, ["tar", "--format=gnu", "--sparse", "-cf", "-"])


@test
def gnu_tar_pax(scratch):
    """GNU tar, pax, every way to write holes."""
    for version in ("0.0", "0.1", "1.0"):
        inner = os.path.join(scratch, version)
        os.mkdir(inner)
        run_tar(inner, ["tar", "--format=pax", "--sparse", f"--sparse-version={version}", "-cf",
                        "-"])


@test
def gnu_tar_old(scratch):
    """GNU tar, the old formats; zeros that are stored become holes."""
    for form in ("v7", "oldgnu", "ustar"):
        inner = os.path.join(scratch, form)
        os.mkdir(inner)
        run_tar(inner, ["tar", f"--format={form}", "-cf", "-"], plain=True)


@test
def bsd_tar(scratch):
    """bsdtar, pax."""
    run_tar(scratch, ["bsdtar", "--format=pax", "-cf", "-"])


@test
def busybox_tar(scratch):
    """busybox tar, with GNU long names."""
    run_tar(scratch, ["busybox", "tar", "-cf", "-"])


@test
def python_tar(scratch):
    """Python's tarfile, three formats."""
    for form, plain in ((tarfile.PAX_FORMAT, False), (tarfile.GNU_FORMAT, False),
                        (tarfile.USTAR_FORMAT, True)):
        inner = os.path.join(scratch, str(form))
        os.mkdir(inner)
        source = make_source(inner, plain)
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as tar:
            tar.add(source, ".")
        check_tree(inner, source, out.getvalue())


@test
def own_tar(scratch):
    """archive_write_tree, as dir: bases go."""
    source = make_source(scratch)
    archive = subprocess.run([TAR_TREE, source], check=True, capture_output=True).stdout
    assert len(archive) < 5 * MIB, "holes were written as data"
    names = subprocess.run(["tar", "-tf", "-"], input=archive, check=True,
                           capture_output=True).stdout.decode().split("\n")
    assert "./d/link" in names, names
    check_tree(scratch, source, archive)


@test
def compressed(scratch):
    """Each filter, through a pipe."""
    archive = make_tar([file("f", os.urandom(100000) + b"\0" * 100000)])
    plain = Image(scratch + "/i").make("tar", 64 * MIB, archive).check().debugfs("cat /f")
    for command in (["gzip"], ["bzip2"], ["xz"], ["zstd"], ["lz4"], ["xz", "--check=crc32"]):
        need(command[0])
        packed = subprocess.run([*command, "-c"], input=archive, check=True,
                                capture_output=True).stdout
        image = Image(scratch + "/j").make("tar", 64 * MIB, packed).check()
        assert image.debugfs("cat /f") == plain, command
        image.make("tar", 64 * MIB, packed[:len(packed) // 2])
        equal(image.code, 1, command)
        assert "cut short" in image.errors or "cannot be unpacked" in image.errors, image.errors


@test
def many_names(scratch):
    """5,000 files in one directory get an index, and 60,000 long names one with two levels."""
    archive = make_tar([file(f"many/file-{number:05d}", b"%d" % number)
                        for number in range(5000)])
    image = Image(scratch + "/i").make("tar", 128 * MIB, archive).check()
    equal(image.debugfs("cat /many/file-04321"), b"4321")
    equal(image.debugfs("ls -l /many").count(b"file-"), 5000)
    text = image.debugfs("htree_dump /many").decode()
    assert "Indirect levels: 0" in text, text[:500]
    archive = make_tar([link(f"many/{number:05d}" + "n" * 240, "t") for number in range(60000)])
    image = Image(scratch + "/i").make("tar", 1200 * MIB, archive).check()
    assert "Indirect levels: 1" in image.debugfs("htree_dump /many").decode()[:500]


@test
def directories_that_just_fit(scratch):
    """Around the size at which a directory needs a second block."""
    for count in range(250, 260):
        archive = make_tar([file(f"d/{number:08d}") for number in range(count)])
        image = Image(scratch + "/i").make("tar", 64 * MIB, archive).check()
        equal(image.debugfs("ls -l /d").count(b" 000"), count)


@test
def big_sparse_file(scratch):
    """A file much larger than the image, with three bytes in it."""
    source = scratch + "/s"
    os.mkdir(source)
    with open(source + "/huge", "wb") as out:
        out.truncate(100 * GIB)
        out.seek(50 * GIB)
        out.write(b"abc")
    archive = subprocess.run(["tar", "--sparse", "-C", source, "-cf", "-", "."], check=True,
                             capture_output=True).stdout
    image = Image(scratch + "/i").make("tar", 64 * MIB, archive).check()
    text = image.stat("/huge")
    assert f"Size: {100 * GIB}" in text and "Blockcount: 8" in text, text


@test
def file_in_many_pieces(scratch):
    """More extents than fit into one node of their tree."""
    data = b"".join(os.urandom(4096) if block % 2 else b"\0" * 4096 for block in range(4000))
    image = Image(scratch + "/i").make("tar", 128 * MIB, make_tar([file("f", data)])).check()
    assert image.debugfs("cat /f") == data
    # 2000 blocks of data and 7 of extents, in units of 512 bytes.
    assert "Blockcount: 16056" in image.stat("/f"), image.stat("/f")


@test
def devices_are_dropped(scratch):
    """They are counted and nothing of them is kept."""
    archive = make_tar([("dev/null", tarfile.CHRTYPE, b"", {}), ("sda", tarfile.BLKTYPE, b"", {}),
                        ("pipe", tarfile.FIFOTYPE, b"", {}), file("f", b"x")])
    image = Image(scratch + "/i").make("tar", 64 * MIB, archive).fsck()
    equal((image.code, image.errors), (0, "box-image: note: 3 devices or fifos were left out\n"))
    equal(sorted(image.tree(scratch)), ["dev", "f"])


@test
def too_small(scratch):
    """The error names disk_size and a size that is enough."""
    archive = make_tar([file(f"f{number}", os.urandom(3 * MIB)) for number in range(20)])
    image = Image(scratch + "/i").make("tar", 16 * MIB, archive)
    equal(image.code, 1)
    wanted = re.fullmatch(r"box-image: image: 16 MiB are too small for its content, which needs "
                          r"about (\d+) MiB\nset disk_size to (\d+)M or more in the Boxfile\n",
                          image.errors)
    assert wanted, image.errors
    assert 60 < int(wanted.group(1)) < 100, image.errors
    image.make("tar", int(wanted.group(2)) * MIB, archive).check()


@test
def too_many_files(scratch):
    """The same when inodes run out."""
    archive = make_tar([file(f"d/{number}") for number in range(3000)])
    image = Image(scratch + "/i").make("tar", 16 * MIB, archive)
    equal(image.code, 1)
    wanted = re.search(r"set disk_size to (\d+)M", image.errors)
    assert wanted, image.errors
    image.make("tar", int(wanted.group(1)) * MIB, archive).check()


@test
def bad_archives(scratch):
    """Nothing that is broken becomes an image."""
    good = make_tar([file("a", b"x" * 5000), file("b", b"y")])
    for archive, why in (
            (b"", "archive: it is empty"),
            (os.urandom(20000), "archive: this is not a tar archive"),
            (good[:3000], 'archive: entry "a": its data is cut short'),
            (good[:6656], "archive: it is cut short after 2 entries"),
            (make_tar([file("/etc/x")]), 'archive: entry "/etc/x": the name is absolute'),
            (make_tar([file("a/../../x")]), "the name goes up"),
            (make_tar([link("l", "/etc"), file("l/passwd")]), "leads through a link"),
            (make_tar([file("new\nline\033[31m"), file("new\nline\033[31m")]),
             'archive: entry "new\\012line\\033[31m": it comes twice\n'),
            (make_tar([file("lost+found")]), "this name is kept for a directory"),
            (make_tar([link("l", "t" * 4096)]), "its target is over 4095 bytes"),
    ):
        image = Image(scratch + "/i").make("tar", 64 * MIB, archive)
        equal(image.code, 1, why)
        assert image.errors.startswith("box-image: "), image.errors
        assert why in image.errors, (why, image.errors)


@test
def own_lost_found(scratch):
    """An archive may bring lost+found itself."""
    archive = make_tar([folder("lost+found", mode=0o750), file("lost+found/x", b"x")])
    image = Image(scratch + "/i").make("tar", 64 * MIB, archive).check()
    equal(image.debugfs("cat /lost+found/x"), b"x")
    assert "Inode: 11 " in image.stat("/lost+found"), image.stat("/lost+found")


@test
def bad_command_lines(scratch):
    """Usage, and an output that is not empty."""
    for arguments in ([], ["foo"], ["tar", "0", "1"], ["empty", "1"], ["empty", "-1", "8388608"],
                      ["empty", "1", "8M"], ["empty", "1", "8388608", "x"],
                      ["empty", "1", "8388608", "--label", "12345678901234567"],
                      ["empty", "1", "8388608", "--uuid", "1"], ["empty", "1", "8388608", "--no"],
                      ["empty", "1", "99999999999999999999999"]):
        done = subprocess.run([BOX_IMAGE, *arguments], check=False, capture_output=True, text=True)
        equal(done.returncode, 1, arguments)
        assert done.stderr.startswith("box-image: the command line cannot be read\n"), arguments
    with open(scratch + "/used", "w+b") as used:
        used.write(b"x")
        used.flush()
        done = subprocess.run([BOX_IMAGE, "empty", str(used.fileno()), str(64 * MIB)], check=False,
                              capture_output=True, text=True, pass_fds=[used.fileno()])
    equal(done.stderr, "box-image: image: the output must be an empty regular file\n")
    equal(os.path.getsize(scratch + "/used"), 1)


@test
def host_limit(scratch):
    """A limit on the size of files is an error, not a death."""
    need("prlimit")
    with open(scratch + "/i", "w+b") as out:
        done = subprocess.run(["prlimit", f"--fsize={MIB}", BOX_IMAGE, "empty",
                               str(out.fileno()), str(64 * MIB)], check=False,
                              capture_output=True, text=True, pass_fds=[out.fileno()])
    equal(done.returncode, 1)
    assert "a file of this size is not allowed there" in done.stderr, done.stderr


@test
def progress(scratch):
    """Lines with growing numbers, ending with all that was read."""
    archive = make_tar([file(f"f{number}", os.urandom(MIB)) for number in range(100)])
    with open(scratch + "/p", "w+b") as lines:
        begun = time.monotonic()
        done = subprocess.Popen([BOX_IMAGE, "tar", "0", "1", str(256 * MIB), "--progress-fd",
                                 str(lines.fileno())], pass_fds=[lines.fileno()],
                                stdin=subprocess.PIPE, stdout=open(scratch + "/i", "w+b"))
        for start in range(0, len(archive), 10 * MIB):
            done.stdin.write(archive[start:start + 10 * MIB])
            done.stdin.flush()
            time.sleep(0.03)
        done.stdin.close()
        equal(done.wait(), 0)
        took = time.monotonic() - begun
        lines.seek(0)
        text = lines.read().decode()
    found = [tuple(map(int, line)) for line in re.findall(r"^progress (\d+) (\d+)$", text, re.M)]
    equal(len(found), text.count("\n"))
    assert 2 <= len(found) <= took * 10 + 2, (found, took)
    equal(found, sorted(found))
    equal(found[-1], (len(archive), 100))


@test
def progress_that_nobody_reads(scratch):
    """A closed pipe does not end the work."""
    reader, writer = os.pipe()
    os.close(reader)
    archive = make_tar([file("f", b"x")])
    with open(scratch + "/i", "w+b") as out:
        done = subprocess.run([BOX_IMAGE, "tar", "0", str(out.fileno()), str(64 * MIB),
                               "--progress-fd", str(writer)], check=False, input=archive,
                              pass_fds=[out.fileno(), writer])
    os.close(writer)
    equal(done.returncode, 0)


@test
def tiny_base(scratch):
    """The built-in base: a shell, two users, no setuid program, the same bytes every time."""
    image = Image(scratch + "/i").make("tar", 64 * MIB, TINY_TAR).check()
    tree = image.tree(scratch)
    equal(tree["bin/sh"], ("link", "/bin/busybox"))
    for name in ("bin/ls", "sbin/init", "usr/bin/env", "usr/sbin/chroot"):
        equal(tree[name], ("link", "/bin/busybox"), name)
    equal(tree["bin/busybox"][1], "0o100755")
    with open(scratch + "/out/etc/passwd", encoding="ascii") as text:
        users = {line.split(":")[0]: line.strip().split(":")[2:] for line in text}
    equal(users["root"], ["0", "0", "root", "/root", "/bin/sh"])
    equal(users["agent"], ["1000", "1000", "agent", "/home/agent", "/bin/sh"])
    assert "User:  1000" in image.stat("/home/agent"), image.stat("/home/agent")
    assert "Mode:  01777" in image.stat("/tmp") and "Mode:  01777" in image.stat("/var/tmp")
    for name in ("run", "proc", "sys", "dev", "data", "usr/lib", "mnt", "root"):
        equal(tree[name][0], "directory", name)
    for entry in tarfile.open(TINY_TAR):
        equal(entry.mode & 0o6000, 0, entry.name)
    busybox = next(path for path in ("/bin/busybox", "/usr/bin/busybox") if os.path.exists(path))
    subprocess.run([sys.executable, TINY_PY, busybox, scratch + "/again.tar"], check=True)
    with open(scratch + "/again.tar", "rb") as again, open(TINY_TAR, "rb") as first:
        assert again.read() == first.read(), "two archives differ"


def main():
    """Runs all tests, or those that are named in ONLY."""
    only = os.environ.get("ONLY", "").split()
    tests = [function for function in TESTS if not only or function.__name__ in only]
    failed = 0
    print(f"1..{len(tests)}")
    for number, function in enumerate(tests, 1):
        with tempfile.TemporaryDirectory(prefix="box-test-image-") as scratch:
            try:
                function(scratch)
                print(f"ok {number} - {function.__name__}", flush=True)
            except Skipped as reason:
                print(f"ok {number} - {function.__name__} # SKIP {reason}", flush=True)
            except (AssertionError, subprocess.CalledProcessError, OSError, KeyError) as error:
                failed += 1
                print(f"not ok {number} - {function.__name__}", flush=True)
                # Long enough to see what differs.
                for line in f"{type(error).__name__}: {error}"[:2000].split("\n"):
                    print(f"# {line}", flush=True)
    return 1 if failed else 0


sys.exit(main())
