"""/data as a whole: import and export, archives, growth, rename, nuke.

What a restore must never do is leave /data half changed; so most of these tests look at /data with a
checksum listing made inside the machine, before and after.
"""

import hashlib
import io
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import tarfile
import time

from lib import MIB, TINY, check, contains, descendants, equal, test, wait_until
from test_user import as_user

# Every name below /data with its kind, mode, owner, link target and checksum; names in hex, since
# they may hold anything.
LISTING = r"""
cd /data && find . -path ./lost+found -prune -o -print0 | sort -z >/tmp/names
xargs -0 stat -c '%n %f %u %g %Y %h %N' </tmp/names
find . -path ./lost+found -prune -o -type f -print0 | sort -z | xargs -0 -r md5sum
"""
ODD_NAMES = [b"plain", b"new\nline", b"esc\x1b[2J\x1b]0;x\x07", b"bad\xff\xfeutf", b"-rf", b" space ",
             b"quote\"'`$(x)", b"back\\slash", b"star*?[a]", b"x" * 255]


def listing(box, name="tiny", **options):
    return box.sh(LISTING, name=name, **options).ok().text


def without_top_time(text):
    """/data itself has the time of the restore when an archive says nothing of it."""
    return re.sub(r"^(\. \w+ \d+ \d+) \d+", r"\1", text, flags=re.M)


def digest(data):
    return hashlib.md5(data).hexdigest()


def host_listing(folder):
    """The same for a directory of the host: {relative path: (kind, mode, content)}."""
    found = {}
    folder = os.fsencode(folder)
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = digest(file.read())
            else:
                content = None
            mode = 0 if stat.S_ISLNK(status.st_mode) else stat.S_IMODE(status.st_mode)
            found[os.path.relpath(path, folder)] = (stat.S_IFMT(status.st_mode), mode, content,
                                                    int(status.st_mtime))
    return found


def make_tree(folder):
    """Files of many kinds below folder, which must not be there yet."""
    top = pathlib.Path(folder)
    (top / "deep" / "er").mkdir(parents=True)
    for name in ODD_NAMES:
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(b"content of " + name)
    (top / "deep" / "er" / "script").write_bytes(b"#!/bin/sh\n")
    (top / "deep" / "er" / "script").chmod(0o751)
    (top / "deep" / "secret").write_bytes(os.urandom(70000))
    (top / "deep" / "secret").chmod(0o600)
    os.symlink("/etc/passwd", top / "absolute")
    os.symlink("../../out", top / "deep" / "up")
    os.symlink(b"to\xff\n", top / "odd-link")
    os.link(top / "deep" / "secret", top / "again")
    with open(top / "sparse", "wb") as file:
        file.seek(3 * MIB)
        file.write(b"end")
    (top / "empty").mkdir()
    (top / "closed").mkdir()
    (top / "closed" / "x").write_bytes(b"x")
    (top / "closed").chmod(0o555)
    os.utime(top / "deep", (1, 1000000000))
    long = top
    for _ in range(8):
        long = long / ("d" * 100)
        long.mkdir()
    (long / "bottom").write_bytes(b"long name")
    return folder


def scratch(box, name):
    path = os.path.join(box.home + ".files", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def clear(box):
    subprocess.run(["chmod", "-R", "u+rwx", box.home + ".files"], capture_output=True)
    shutil.rmtree(box.home + ".files", ignore_errors=True)


def archives(box, name="tiny"):
    return {each["label"]: each
            for each in box.run("snapshot", "-l", "--json", name).ok().json()}


def undo_of(result):
    return re.search(r"box restore \S+ (undo-\S+)", result.error).group(1)


# ---- the end of a life ----

# What root inside may have done with the mount when the machine ends. After all but the last the
# disk is clean: the next kernel has nothing to recover. Swap keeps it in use to the end.
LEFT = {
    "alone": "true",
    "covered": "mount -t tmpfs none /data && echo lost >/data/covered",
    "covered-twice": "mount -t tmpfs none /data && mount -t tmpfs none /data",
    "unmounted": "cd / && umount /data",
    "bound": "mkdir /data/deep && mount --bind /data/deep /mnt && echo x >/mnt/x",
    "covered-below": "mkdir /data/below && mount -t tmpfs none /data/below",
    "read-only": "mount -o remount,ro /data",
    "swap": "dd if=/dev/zero of=/data/space bs=1M count=8 2>/dev/null && mkswap /data/space >/dev/null "
            "&& swapon /data/space",
}


@test(timeout=400)
def what_was_written_stays_whatever_is_done_with_the_mount(box):
    for name, script in LEFT.items():
        result = box.sh(f"echo {name} >/data/{name} && {script}").ok()
        equal(result.error, "", name)
        result = box.sh(f"cat /data/{name}; dmesg | grep -c 'vdb.*recovery'; true").ok()
        equal(result.text, f"{name}\n0\n" if name != "swap" else f"{name}\n1\n", name)
    box.clean()


# ---- import and export ----

def round_trip(box):
    source, out = make_tree(scratch(box, "source")), scratch(box, "out")
    box.run("data", "import", "tiny", source).ok()
    box.run("data", "export", "tiny", out).ok()
    wanted, found = host_listing(source), host_listing(out)
    equal(sorted(found), sorted(wanted))
    for name, value in wanted.items():
        equal(found[name], value, name)
    equal(os.stat(out + "/again").st_ino, os.stat(out + "/deep/secret").st_ino, "hard link")
    check(os.stat(out + "/sparse").st_blocks * 512 < MIB, "the hole was filled")
    owners = {os.lstat(os.path.join(parent, name)).st_uid
              for parent, folders, names in os.walk(out) for name in folders + names}
    return owners


@test(home="copy")
def import_and_export_are_equal(box):
    equal(round_trip(box), {os.getuid()}, "owners of what was exported")
    # /data itself stays as it was, and files belong to the user of the Boxfile.
    equal(box.sh("stat -c '%a %u' /data /data/plain").ok().text, "1777 0\n644 0\n")
    clear(box)


@test(home="copy")
def import_merges_and_export_wants_an_empty_directory(box):
    box.sh("mkdir /data/deep; echo kept >/data/deep/kept; echo old >/data/plain").ok()
    source, out = make_tree(scratch(box, "source")), scratch(box, "out")
    box.run("data", "import", "tiny", source + "/").ok()
    equal(box.sh("cat /data/deep/kept /data/plain").ok().out, b"kept\ncontent of plain")
    box.run("data", "import", "tiny", source + "/nothing").fails("No such file")
    box.run("data", "import", "tiny", source + "/plain").fails("Not a directory")
    os.mkdir(out)
    box.run("data", "export", "tiny", out).ok()
    box.run("data", "export", "tiny", out).fails("it is not empty")
    box.run("data", "export", "tiny", source + "/plain").fails("Not a directory")
    box.run("data", "export", "tiny", out + "/a/b").fails("directory above it")
    box.run("data", "move", "tiny", out).fails("import or export")
    equal(open(out + "/deep/kept", "rb").read(), b"kept\n")
    clear(box)


@test(home="copy")
def an_export_drops_what_is_dangerous(box):
    box.sh("cd /data; echo x >s; chmod 6755 s; mkfifo f; mknod n c 1 3; chown 5:6 s;"
           "ln -s /etc/shadow l").ok()
    out = scratch(box, "out")
    result = box.run("data", "export", "tiny", out).ok()
    contains(result.error, "2 devices or fifos were left out")
    equal(sorted(os.listdir(out)), ["l", "s"])
    status = os.stat(out + "/s")
    equal((stat.S_IMODE(status.st_mode), status.st_uid), (0o755, os.getuid()))
    equal(os.readlink(out + "/l"), "/etc/shadow")
    clear(box)


@test(home="copy")
def all_of_it_goes_through_the_machine_that_is_up(box):
    source, out = make_tree(scratch(box, "source")), scratch(box, "out")
    with box.up():
        monitor = box.monitor().pid
        box.run("data", "import", "tiny", source).ok()
        # Not synced, and seen all the same.
        box.exec("echo fresh >/data/fresh").ok()
        box.run("data", "export", "tiny", out).ok()
        box.run("snapshot", "tiny", "live").ok()
        equal(box.monitor().pid, monitor)
        for words in (("reset", "-y", "tiny"), ("restore", "-y", "tiny", "live"),
                      ("rename", "tiny", "other"), ("nuke", "-y"),
                      ("destroy", "-y", "tiny")):
            contains(box.run(*words).fails("is up").error, "box down tiny")
    equal(open(out + "/fresh").read(), "fresh\n")
    names = tarfile_names(box, "live")
    check("./fresh" in names and "./plain" in names, names)
    # One that is up without /data is not the one to look into.
    with box.up("--data", "none"):
        box.run("snapshot", "tiny", "beside").ok()
        check("./fresh" in tarfile_names(box, "beside"), "another /data was read")
    clear(box)


@test(home="copy")
def who_holds_data_is_waited_for_or_named(box):
    running = box.start_sh("echo ready; read x; echo done >/data/done", "-i", stdin=-1)
    running.read_until(b"ready\n")
    box.run("reset", "-y", "tiny").fails("a machine of tiny holds /data")
    waiting = box.start("snapshot", "tiny", "later")
    waiting.read_until(b"waiting for it\n", stream=2)
    running.process.stdin.write(b"\n")
    running.process.stdin.close()
    running.process.stdin = None
    running.wait(30).ok()
    waiting.wait(30).ok()
    check("./done" in tarfile_names(box, "later"), "it did not wait to the end")


def tarfile_names(box, label):
    path = box.path("sandboxes/tiny/archive", label + ".tar.zst")
    return subprocess.run(["tar", "--zstd", "-tf", path], capture_output=True, check=True,
                          text=True, errors="replace").stdout.splitlines()


# ---- archives ----

@test(home="copy")
def a_snapshot_comes_back_as_it_was(box):
    source = make_tree(scratch(box, "source"))
    box.run("data", "import", "tiny", source).ok()
    box.sh("cd /data; chown -R 1234:5678 deep; chmod 4755 deep/er/script; chmod 2775 empty;"
           "chown 7:8 odd-link -h; touch -d @1 empty").ok()
    before = listing(box)
    result = box.run("snapshot", "tiny", "one").ok()
    path = box.path("sandboxes/tiny/archive/one.tar.zst")
    equal(result.text, path + "\n")
    equal(stat.S_IMODE(os.stat(path).st_mode), 0o600)
    # GNU tar reads it, with all names, and finds the same bytes.
    out = scratch(box, "out")
    os.mkdir(out)
    subprocess.run(["tar", "--zstd", "-xpf", path, "-C", out], check=True)
    wanted, found = host_listing(source), host_listing(out)
    equal(sorted(found), sorted(wanted))
    equal(found[b"deep/secret"][2], wanted[b"deep/secret"][2])
    check(os.stat(out + "/sparse").st_blocks * 512 < MIB, "the hole was filled")
    box.sh("cd /data; rm -rf deep sparse; echo changed >plain; echo new >new").ok()
    changed = listing(box)
    undo = undo_of(box.run("restore", "-y", "tiny").ok())
    equal(listing(box), before)
    box.run("restore", "-y", "tiny", undo).ok()
    equal(listing(box), changed)
    clear(box)


@test(home="copy")
def labels_and_lists(box):
    box.run("snapshot", "-l", "tiny").ok()
    box.run("restore", "-y", "tiny").fails("no archive yet")
    box.run("snapshot", "tiny", "first").ok()
    box.run("snapshot", "tiny", "first").fails("an archive first already")
    for label in ("undo-x", "a/b", "../x", ".x", "", "a b", "x" * 65, "a\x1b[2J"):
        contains(box.run("snapshot", "tiny", label).fails("no label").err, re.compile(r"^[ -~\n]*$"))
    box.run("restore", "-y", "tiny", "furst").fails("did you mean first")
    contains(box.run("snapshot", "tiny").ok().text, re.compile(r"/archive/\d{8}T\d{6}Z\.tar\.zst\n"))
    undo = undo_of(box.run("reset", "-y", "tiny").ok())
    found = archives(box)
    equal(len(found), 3)
    check(found[undo]["automatic"] and not found["first"]["automatic"], found)
    check(3600 < found[undo]["expires"] - time.time() <= 86400, found)
    contains(box.run("snapshot", "-l", "tiny").ok().text, re.compile(r"^first\t", re.M))
    # A day later it is gone.
    folder = box.path("sandboxes/tiny/archive")
    os.rename(f"{folder}/{undo}", f"{folder}/undo-20200101T000000Z")
    equal(sorted(archives(box)), sorted(set(found) - {undo}))
    check(not os.path.exists(f"{folder}/undo-20200101T000000Z"), "it takes room still")


@test(home="copy")
def a_reset_can_be_undone(box):
    box.sh("echo kept >/data/x").ok()
    before = listing(box)
    box.run("reset", "tiny").fails("no terminal to ask on", "--yes")
    terminal = box.terminal("reset", "tiny")
    terminal.expect(b"[y/N] ")
    terminal.send(b"n\n")
    equal(terminal.wait()[0], 1)
    equal(listing(box), before)
    result = box.run("reset", "--yes", "tiny").ok()
    check(result.seconds < 2, result)
    equal(box.sh("ls /data").ok().text, "lost+found\n")
    box.run("restore", "-y", "tiny", undo_of(result)).ok()
    equal(listing(box), before)
    # The one that was brought back is no archive any more; the empty one is.
    equal(len(archives(box)), 1)
    for _ in range(20):
        box.run("reset", "-y", "tiny").ok()
    equal(len(archives(box)), 16, "automatic archives")


def packed(data, kind):
    if kind == "plain":
        return data
    command = {"gzip": ["gzip"], "zstd": ["zstd", "-q"], "xz": ["xz", "-1"], "bzip2": ["bzip2"]}
    return subprocess.run(command[kind], input=data, capture_output=True, check=True).stdout


def restore_file(box, data, name="archive"):
    path = scratch(box, name)
    with open(path, "wb") as file:
        file.write(data)
    return box.run("restore", "-y", "tiny", path)


@test(home="copy")
def attributes_come_along(box):
    path = scratch(box, "x.tar")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo("f")
        entry.mode, entry.uid, entry.gid = 0o6755, 1234, 5678
        entry.pax_headers = {"SCHILY.xattr.user.colour": "blue"}
        tar.addfile(entry)
    box.run("restore", "-y", "tiny", path).ok()
    # From outside: owners and attributes, no setuid bits.
    equal(box.sh("stat -c '%a %u %g' /data/f").ok().text, "755 1234 5678\n")
    box.run("snapshot", "tiny", "with").ok()
    listed = subprocess.run(
        ["tar", "--zstd", "--xattrs", "-tvvf", box.path("sandboxes/tiny/archive/with.tar.zst")],
        capture_output=True, check=True, text=True).stdout
    contains(listed, "user.colour")
    clear(box)


class Maker:
    """Tar archives, entry by entry, with whatever one likes in them."""

    def __init__(self):
        self.out = io.BytesIO()

    def entry(self, name, kind=b"0", data=b"", link=b"", size=None, **headers):
        info = tarfile.TarInfo(os.fsdecode(name))
        info.type, info.linkname = kind, os.fsdecode(link)
        info.size = len(data) if size is None else size
        info.mode = headers.pop("mode", 0o644)
        if kind in (b"3", b"4"):
            info.devmajor, info.devminor = 1, 3
        info.pax_headers = headers
        encoding = {"encoding": "utf-8", "errors": "surrogateescape"}
        self.out.write(info.tobuf(tarfile.PAX_FORMAT if headers else tarfile.GNU_FORMAT, **encoding))
        self.out.write(data + b"\0" * (-len(data) % 512))
        return self

    def raw(self, data):
        self.out.write(data)
        return self

    def end(self):
        return self.out.getvalue() + b"\0" * 1024


def good():
    return Maker().entry("evil", data=b"evil")


def hostile():
    """(what, archive): each has a good entry before what is wrong with it."""
    entries = {
        "absolute name": [(b"/etc/x",)], "two slashes": [(b"//x",)],
        "up": [(b"../x",)], "up in the middle": [(b"a/../../x",)], "up at the end": [(b"a/..", b"5")],
        "only up": [(b"..", b"5")],
        "through a link": [(b"l", b"2", b"", b"/etc"), (b"l/passwd",)],
        "through a link to here": [(b"l", b"2", b"", b"."), (b"l/b/c",)],
        "over a link": [(b"l", b"2", b"", b"x"), (b"l", b"0", b"data")],
        "a directory over a link": [(b"l", b"2", b"", b"x"), (b"l/", b"5")],
        "a link over a link": [(b"l", b"2", b"", b"x"), (b"l", b"2", b"", b"y")],
        "a link over a file": [(b"f",), (b"f", b"2", b"", b"/")],
        "a link over a directory": [(b"d/x",), (b"d", b"2", b"", b"/")],
        "a name twice": [(b"f",), (b"f",)], "through a file": [(b"f",), (b"f/x",)],
        "a directory over a file": [(b"f",), (b"f", b"5")],
        "a hard link out": [(b"h", b"1", b"", b"/etc/shadow")],
        "a hard link up": [(b"h", b"1", b"", b"../../x")],
        "a hard link to nothing": [(b"h", b"1", b"", b"missing")],
        "a hard link to itself": [(b"h", b"1", b"", b"h")],
        "a hard link forward": [(b"h", b"1", b"", b"f"), (b"f",)],
        "a hard link to a directory": [(b"d/", b"5"), (b"h", b"1", b"", b"d")],
        "a hard link through a link": [(b"l", b"2", b"", b"/"), (b"h", b"1", b"", b"l/etc/shadow")],
        "through a hard link to a link": [(b"l", b"2", b"", b"/"), (b"h", b"1", b"", b"l"), (b"h/x",)],
        "a link to nothing": [(b"l", b"2", b"", b"")],
        "a character device": [(b"n", b"3")], "a block device": [(b"s", b"4")],
        "a fifo": [(b"p", b"6")], "a kind that nobody knows": [(b"x", b"Z")],
        "a dump's directory": [(b"x", b"D")], "a directory with data": [(b"d", b"5", b"data")],
        "a link with data": [(b"l", b"2", b"data", b"x")],
    }
    for what, lines in entries.items():
        maker = good()
        for line in lines:
            name, kind, data, link = (line + (b"0", b"", b"")[len(line) - 1:])[:4]
            maker.entry(name, kind, data, link)
        yield what, maker.end()
    yield "a size that lies", good().entry("f", data=b"short", size=1000000).end()
    yield "a huge size", good().entry("f", size=0o77777777777).end()
    yield "a broken sparse map", good().entry("f", **{"GNU.sparse.map": "0,1,2"}).end()
    yield "a name over 4096 bytes", good().entry("d/" * 2100 + "x").end()
    yield "a part over 255 bytes", good().entry("y" * 256).end()
    yield "a pax path that is absolute", good().entry("f", **{"path": "/etc/x"}).end()
    yield "a pax path up", good().entry("f", **{"path": "a/../../x"}).end()
    yield "an owner out of range", good().entry("f", **{"uid": "4294967295"}).end()
    yield "a time that is none", good().entry("f", **{"mtime": "soon"}).end()
    yield "a pax header of two mebibytes", good().entry("f", **{"comment": "x" * 2 * MIB}).end()
    yield "a pax header that says too much", good().entry("f", b"x", b"99 path=/x\n").end()
    yield "two pax headers", good().entry("p", b"x", b"9 path=x\n").entry("f", path="y").end()
    yield "a global header that names", good().entry("g", b"g", b"9 path=x\n").entry("f").end()
    yield "a NUL in a pax path", good().entry("p", b"x", b"11 path=a\0b\n").entry("f").end()
    yield "a NUL in a long name", good().entry("././@LongLink", b"L", b"a\0b\0").entry("f").end()
    yield "a long name over a mebibyte", good().entry("L", b"L", b"x" * 2 * MIB).entry("f").end()
    yield "links in a circle", good().entry("a", b"1", link="b").entry("b", b"1", link="a").end()
    yield "a directory that is below itself through links", good().entry("d/", b"5").entry(
        "d/d", b"2", link="../d").entry("d/d/d/x").end()
    yield "too many attributes", good().entry(
        "f", **{f"SCHILY.xattr.user.{number}": "x" for number in range(65)}).end()
    yield "a sparse map that goes back", good().entry("f", data=b"x" * 2, **{
        "GNU.sparse.map": "5,1,2,1", "GNU.sparse.size": "9"}).end()
    yield "a sparse map beyond its end", good().entry("f", data=b"x" * 2, **{
        "GNU.sparse.map": "0,1,90,1", "GNU.sparse.size": "9"}).end()
    yield "a broken checksum", good().raw(b"\1" + Maker().entry("f").out.getvalue()[1:]).end()
    yield "cut in a header", good().out.getvalue()[:700]
    yield "cut in data", good().entry("f", data=b"x" * 5000).out.getvalue()[:-3000]
    yield "no end", good().out.getvalue()
    yield "something after its end", good().end() + b"x" * 512
    yield "garbage", os.urandom(8192)
    yield "nothing", b""
    yield "text", b"this is no archive\n" * 100
    whole = packed(good().entry("f", data=os.urandom(200000)).end(), "zstd")
    yield "zstd cut short", whole[:-5000]
    yield "zstd with a flipped bit", whole[:90000] + bytes([whole[90000] ^ 4]) + whole[90001:]
    gzipped = packed(good().entry("f", data=os.urandom(200000)).end(), "gzip")
    yield "gzip cut short", gzipped[:-5000]


@test(home="copy", timeout=900)
def hostile_archives_change_nothing(box):
    box.sh("echo kept >/data/kept; mkdir /data/d; ln -s /etc /data/d/l").ok()
    before = listing(box)
    seen = 0
    for what, data in hostile():
        result = restore_file(box, data)
        check(result.code == 125, what, result)
        contains(result.err, re.compile(r"^[ -~\n]*$"), what)
        result.fails()
        seen += 1
        if seen % 10 == 0:
            equal(listing(box), before, what)
    check(seen >= 60, seen)
    equal(listing(box), before)
    equal(archives(box), {}, "a restore that failed has left an archive")
    equal([name for name in os.listdir(box.path("sandboxes/tiny/data")) if name[0] == "."], [])
    clear(box)


@test(home="copy")
def what_does_not_fit_changes_nothing(box):
    box.sh("echo kept >/data/kept").ok()
    before = listing(box)
    big = Maker().entry("big", data=os.urandom(80 * MIB)).end()
    restore_file(box, big).fails("No space left")
    equal(listing(box), before)
    # Many zeros in a small file: the disk inside is the limit.
    bomb = packed(Maker().entry("zeros", data=bytes(200 * MIB)).end(), "zstd")
    check(len(bomb) < MIB)
    restore_file(box, bomb).fails("No space left")
    equal(listing(box), before)
    clear(box)


@test(home="copy", timeout=600)
def a_restore_that_is_killed_has_not_happened(box):
    box.sh("echo kept >/data/kept").ok()
    before = without_top_time(listing(box))
    path = scratch(box, "x.tar.zst")
    with open(path, "wb") as file:
        file.write(packed(Maker().entry("a", data=os.urandom(24 * MIB)).end(), "zstd"))
    whole = box.run("restore", "-y", "tiny", path).ok()
    after = without_top_time(listing(box))
    box.run("restore", "-y", "tiny", undo_of(whole)).ok()
    equal(without_top_time(listing(box)), before)
    for part, number in ((0.05, 9), (0.2, 15), (0.3, 9), (0.45, 2), (0.55, 9), (0.7, 9), (0.8, 9),
                         (0.9, 9), (0.97, 9)):
        running = box.start("restore", "-y", "tiny", path)
        time.sleep(whole.seconds * part)
        running.signal(number)
        running.wait(30)
        box.clean(10)
        found = without_top_time(listing(box))
        check(found in (before, after), part, found)
        if found == after:
            box.run("restore", "-y", "tiny", next(reversed(archives(box)))).ok()
            equal(without_top_time(listing(box)), before)
    # The helper's own processes.
    for name in ("box-keeper", "qemu-system", "box-image"):
        running = box.start("restore", "-y", "tiny", path)
        found = wait_until(name, lambda: [each for each in descendants(running.pid)
                                          if each.name.startswith(name)], 30)
        os.kill(found[-1].pid, signal.SIGKILL)
        running.wait(60).exits(125)
        box.clean(10)
        equal(without_top_time(listing(box)), before, name)
    box.run("reset", "-y", "tiny").ok()
    equal([each for each in os.listdir(box.path("sandboxes/tiny/data")) if each[0] == "."], [],
          "drafts that are left")
    clear(box)


# ---- growth ----

def with_size(box, size):
    box.write_boxfile("tiny", TINY.replace("data_size: 64M", f"data_size: {size}"))


def kilobytes(box):
    return int(box.sh("df -k /data | awk 'NR==2 { print $2 }'").ok().text)


@test(home="copy", timeout=600)
def data_grows_and_never_shrinks(box):
    box.sh("echo kept >/data/kept").ok()
    small = kilobytes(box)
    with_size(box, "1G")
    check(kilobytes(box) > 900 * 1024, "it did not grow")
    equal(box.sh("cat /data/kept; fallocate -l 500M /data/big; rm /data/big").ok().out, b"kept\n")
    contains(box.sh("fallocate -l 1G /data/big").error, "No space left")
    box.sh("rm -f /data/big").ok()
    box.run("build", "tiny", timeout=300).ok()
    check(kilobytes(box) > 900 * 1024, "it shrank")
    with_size(box, "100M")
    for words in (("run", "tiny", "--", "true"), ("build", "tiny")):
        contains(box.run(*words).fails("data_size", "made smaller").error, "set data_size back to")
    box.sh("true", "--data", "none").ok()
    with_size(box, "1G")
    box.run("snapshot", "tiny", "all").ok()
    with_size(box, "100M")
    undo = undo_of(box.run("restore", "-y", "tiny", "all").ok())
    check(small < kilobytes(box) < 110 * 1024, "the new disk has another size")
    equal(box.sh("cat /data/kept").ok().out, b"kept\n")
    box.run("restore", "-y", "tiny", undo).fails("made smaller")
    with_size(box, "32M")
    box.run("reset", "-y", "tiny").fails("made smaller")


# ---- rename, destroy, nuke ----

@test(home="copy")
def a_rename_takes_everything_along(box):
    box.sh("echo kept >/data/x").ok()
    box.run("snapshot", "tiny", "one").ok()
    lines = box.run("logs", "tiny", "--json").ok().text
    box.make("taken")
    box.run("rename", "tiny", "taken").fails("a sandbox taken already")
    box.run("rename", "nobody", "new").fails("no sandbox nobody")
    box.run("rename", "tiny", "../x").fails()
    # A log that an earlier sandbox of the new name has left is not mixed with this one.
    with open(box.path("log/new.jsonl"), "w", encoding="utf-8") as file:
        file.write('{"earlier":1}\n')
    box.run("rename", "tiny", "new").ok()
    check(not os.path.exists(box.path("sandboxes/tiny")))
    equal(box.run("logs", "new", "--json").ok().text, lines)
    result = box.sh("cat /data/x; hostname", name="new").ok()
    equal(result.text, "kept\nnew\n")
    check("booted" not in result.error, "the snapshot was not used any more", result)
    equal(sorted(archives(box, "new")), ["one"])
    box.run("run", "tiny", "--", "true").fails("no sandbox tiny")


@test(home="copy")
def archives_go_where_data_goes(box):
    box.sh("echo kept >/data/x").ok()
    box.run("snapshot", "tiny", "one").ok()
    kept = box.run("destroy", "-y", "tiny").ok().text.strip()
    check(os.path.exists(os.path.join(os.path.dirname(kept), "archive/one.tar.zst")), kept)


@test(home="copy")
def nuke_asks_for_the_word(box):
    box.make("other")
    running = box.start_sh("echo ready; sleep 100")
    running.read_until(b"ready\n")
    box.run("nuke", "--yes").fails("running")
    check(os.path.exists(box.path("sandboxes/other/Boxfile")), "it has begun all the same")
    running.signal(signal.SIGTERM)
    running.wait(30)
    box.run("nuke").fails("no terminal")
    terminal = box.terminal("nuke")
    contains(terminal.expect(b"word nuke"), "sandbox tiny")
    terminal.send(b"y\n")
    equal(terminal.wait()[0], 1)
    check(os.path.exists(box.path("sandboxes/tiny/data/data.qcow2")))
    box.run("destroy", "-y", "other").ok()
    terminal = box.terminal("nuke")
    terminal.expect(b"do it: ")
    terminal.send(b"nuke\n")
    equal(terminal.wait()[0], 0)
    equal(os.listdir(box.home), [])
    equal(box.run("ls").ok().out, b"")


# ---- a normal user ----

@test(home="empty", timeout=600)
def all_of_it_as_a_normal_user(box):
    with as_user(box) as user:
        user.make("tiny")
        user.run("build", "tiny", timeout=400).ok()
        source, out = scratch(user, "source"), scratch(user, "out")
        make_tree(source)
        subprocess.run(["chown", "-R", "-h", user.user.pw_name, user.home + ".files"], check=True)
        user.run("data", "import", "tiny", source).ok()
        before = listing(user)
        user.run("snapshot", "tiny", "one").ok()
        user.run("reset", "-y", "tiny").ok()
        user.run("restore", "-y", "tiny", "one").ok()
        equal(listing(user), before)
        user.run("data", "export", "tiny", out).ok()
        equal({name: value[:3] for name, value in host_listing(out).items()},
              {name: value[:3] for name, value in host_listing(source).items()})
        owners = {os.lstat(os.path.join(parent, name)).st_uid
                  for parent, folders, names in os.walk(out) for name in folders + names}
        equal(owners, {user.user.pw_uid})
        user.run("rename", "tiny", "other").ok()
        user.run("nuke", "--yes").ok()
        clear(user)
