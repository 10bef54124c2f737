"""Archives that other tools have made, in every format they have, into `box restore`.

Each is made from a tree of files of many kinds, restored, exported again, and compared.
"""

import io
import os
import shutil
import subprocess
import tarfile

from lib import MIB, check, equal, skip, test
from test_data import clear, host_listing, make_tree, packed, restore_file, scratch

# More pieces than the headers of GNU's old format hold (4, and 21 in each that follows).
PIECES = 50
PIECE_BYTES = 64 << 10
# A length that eleven octal digits cannot tell.
HUGE_BYTES = 9 << 30


def mark(path, name):
    """Gives it an attribute, where the file system here has such."""
    try:
        os.setxattr(path, "user." + name, os.fsencode(name))
    except OSError:
        return False
    return True


def make_short_tree(folder):
    """What the oldest formats can hold: names below 100 bytes, no long links."""
    os.makedirs(os.path.join(folder, "deep/er"))
    for name, mode in (("plain", 0o644), ("deep/secret", 0o600), ("deep/er/script", 0o751),
                       ("new\nline", 0o644), ("b\udcffd", 0o604), ("x" * 97, 0o644)):
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(os.urandom(len(name) * 300))
        os.chmod(path, mode)
        os.utime(path, (1, 1000000000 + len(name)))
    open(os.path.join(folder, "nothing"), "wb").close()
    os.symlink("../up/and/away", os.path.join(folder, "deep/link"))
    os.link(os.path.join(folder, "deep/secret"), os.path.join(folder, "again"))
    os.mkdir(os.path.join(folder, "empty"), 0o711)
    os.utime(os.path.join(folder, "deep"), (1, 1100000000))
    return folder


def make_full_tree(folder):
    """Long and odd names too, attributes, and a file with holes."""
    make_tree(folder)
    with open(os.path.join(folder, "pieces"), "wb") as file:
        for number in range(PIECES):
            file.seek(number * 2 * PIECE_BYTES)
            file.write(os.urandom(4096))
        file.truncate((PIECES + 1) * 2 * PIECE_BYTES)
    return folder


def make_holes(folder):
    os.mkdir(folder)
    for name, size, at in (("huge", HUGE_BYTES, HUGE_BYTES // 2), ("ends with a hole", 5 * MIB, 0),
                           ("only a hole", 3 * MIB, None), ("begins with a hole", 2 * MIB, MIB)):
        with open(os.path.join(folder, name), "wb") as file:
            file.truncate(size)
            if at is not None:
                file.seek(at)
                file.write(b"data" * 1024)
    return folder


def pieces(path):
    """The length of a file, and what is in it apart from zeros: [(offset, content)]."""
    found = []
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            for block in range(at, end, 4096):
                content = os.pread(file.fileno(), min(4096, end - block), block)
                if content.strip(b"\0"):
                    found.append((block, content))
            at = end
    return size, found


def tool(source, *command):
    return subprocess.run(command, cwd=source, capture_output=True, check=True,
                          env={**os.environ, "LC_ALL": "C.UTF-8"}).stdout


def python(source, form):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        tar.add(source, ".")
    return out.getvalue()


def come_back(box, name, archive):
    restore_file(box, archive, name).ok()
    out = scratch(box, "out")
    subprocess.run(["chmod", "-R", "u+rwx", out], capture_output=True, check=False)
    shutil.rmtree(out, ignore_errors=True)
    box.run("data", "export", "tiny", out).ok()
    return out


def compare(name, source, out):
    wanted, found = host_listing(source), host_listing(out)
    equal(sorted(found), sorted(wanted), name)
    for path, value in wanted.items():
        equal(found[path], value, name, path)
    equal(os.stat(out + "/again").st_ino, os.stat(out + "/deep/secret").st_ino, name)


@test(home="copy", timeout=600)
def the_oldest_formats(box):
    source = make_short_tree(scratch(box, "source"))
    made = {
        "gnu tar, v7": tool(source, "tar", "--format=v7", "-cf", "-", "."),
        "gnu tar, ustar": packed(tool(source, "tar", "--format=ustar", "-cf", "-", "."), "gzip"),
        "gnu tar, oldgnu": packed(tool(source, "tar", "--format=oldgnu", "-cf", "-", "."), "xz"),
        "bsdtar, v7": tool(source, "bsdtar", "--format=v7", "-cf", "-", "."),
        "bsdtar, ustar": packed(tool(source, "bsdtar", "--format=ustar", "-cf", "-", "."), "zstd"),
        "python, ustar": packed(python(source, tarfile.USTAR_FORMAT), "bzip2"),
    }
    for name, archive in made.items():
        compare(name, source, come_back(box, name, archive))
    clear(box)


@test(home="copy", timeout=600)
def the_formats_with_long_names(box):
    source = make_full_tree(scratch(box, "source"))
    sparse = ("tar", "-S", "-cf", "-", ".")
    made = {
        "gnu tar, gnu": tool(source, "tar", "--format=gnu", "-cf", "-", "."),
        "gnu tar, gnu, sparse": packed(tool(source, *sparse, "--format=gnu"), "gzip"),
        "gnu tar, oldgnu, sparse": packed(tool(source, *sparse, "--format=oldgnu"), "zstd"),
        "gnu tar, pax": tool(source, "tar", "--format=pax", "-cf", "-", "."),
        "bsdtar, gnutar": packed(tool(source, "bsdtar", "--format=gnutar", "-cf", "-", "."), "bzip2"),
        "bsdtar, pax": packed(tool(source, "bsdtar", "--format=pax", "-cf", "-", "."), "xz"),
        "python, gnu": python(source, tarfile.GNU_FORMAT),
        "python, pax": packed(python(source, tarfile.PAX_FORMAT), "gzip"),
        "busybox": packed(tool(source, "busybox", "tar", "-cf", "-", "."), "zstd"),
    }
    for version in ("0.0", "0.1", "1.0"):
        made[f"gnu tar, pax, sparse {version}"] = tool(
            source, *sparse, "--format=pax", "--sparse-version=" + version)
    for name, archive in made.items():
        out = come_back(box, name, archive)
        compare(name, source, out)
        if "sparse" in name:
            check(os.stat(out + "/pieces").st_blocks * 512 <= PIECES * 8192, name, "holes are filled")
    clear(box)


@test(home="copy", timeout=600)
def holes_of_every_kind(box):
    source = make_holes(scratch(box, "source"))
    wanted = {name: pieces(os.path.join(source, name)) for name in os.listdir(source)}
    made = {"bsdtar": packed(tool(source, "bsdtar", "-cf", "-", "."), "zstd")}
    for form in ("gnu", "oldgnu"):
        made[form] = tool(source, "tar", "--format=" + form, "-S", "-cf", "-", ".")
    for version in ("0.0", "0.1", "1.0"):
        made["pax " + version] = tool(source, "tar", "--format=pax", "-S", "--sparse-version=" +
                                      version, "-cf", "-", ".")
    for name, archive in made.items():
        check(len(archive) < MIB, name, len(archive))
        out = come_back(box, name, archive)
        equal({each: pieces(os.path.join(out, each)) for each in os.listdir(out)}, wanted, name)
    clear(box)


@test(home="copy", timeout=600)
def attributes_of_other_tools(box):
    source = make_short_tree(scratch(box, "source"))
    marked = [name for name in ("plain", "deep", "deep/secret")
              if mark(os.path.join(source, name), "of-" + os.path.basename(name))]
    if not marked:
        clear(box)
        skip("the file system here keeps no attributes of users")
    made = {
        "gnu tar": tool(source, "tar", "--format=pax", "--xattrs", "-cf", "-", "."),
        "bsdtar": tool(source, "bsdtar", "--format=pax", "-cf", "-", "."),
    }
    for name, archive in made.items():
        out = come_back(box, name, archive)
        compare(name, source, out)
        for each in marked:
            key = "user.of-" + os.path.basename(each)
            equal(os.getxattr(os.path.join(out, each), key), key[5:].encode(), name, each)
    clear(box)
