"""`box cp`: files and trees into a machine, out of it, between two; and what a guest would try."""

import hashlib
import io
import os
import re
import shutil
import signal
import stat
import subprocess
import tarfile

from lib import MIB, PREFIX, TINY, check, contains, copy_home, descendants, equal, test, wait_until
from test_user import as_user

GIB = 1 << 30
ODD_NAMES = [b"new\nline", b"esc\x1b[31mred", b"not-utf8-\xff\xfe", b"-rf", b"--", b"n" * 255,
             b" space ", b"quote\"'\\", b"*", b"$HOME", b"a:b"]


def write(path, data=b"", mode=None, time_ns=None):
    with open(path, "wb") as file:
        file.write(data)
    if mode is not None:
        os.chmod(path, mode)
    if time_ns is not None:
        os.utime(path, ns=(5, time_ns))


def tree(top):
    """A directory with everything that a copy keeps."""
    os.makedirs(os.path.join(top, "deep/er/est"))
    write(top + "/file", b"text\n", 0o640, 981173106789012345)
    write(top + "/program", b"#!/bin/sh\n", 0o4755, 1)
    write(top + "/large", os.urandom(3 * MIB))
    write(top + "/empty", b"", 0o400)
    os.link(top + "/large", top + "/deep/again")
    os.symlink("../file", top + "/deep/link")
    os.symlink("/etc/passwd", top + "/absolute")
    os.symlink("no/where", top + "/dangling")
    os.utime(top + "/dangling", ns=(5, 881173106000000001), follow_symlinks=False)
    os.mkdir(top + "/hollow", 0o700)
    os.mkdir(top + "/odd")
    for name in ODD_NAMES:
        write(os.fsencode(top) + b"/odd/" + name, name)
    with open(top + "/sparse", "wb") as file:
        file.truncate(64 * MIB)
        file.seek(20 * MIB + 5)
        file.write(b"x" * 5000)
    os.chmod(top + "/deep/er", 0o1555)
    os.utime(top + "/deep/er", ns=(5, 781173106000000002))
    os.utime(top, ns=(5, 681173106999999999))


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def pictures(top):
    """What a tree is, for comparing: {path: what}. Setuid bits are not looked at."""
    found, groups = {}, {}
    top = os.fsencode(top)
    for folder, folders, names in os.walk(top):
        for name in folders + names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            relative = os.path.relpath(path, top)
            if kind != stat.S_IFDIR:
                groups.setdefault(status.st_ino, set()).add(relative)
            found[relative] = [kind, status.st_mode & 0o1777, status.st_mtime_ns, status.st_ino,
                               digest(path) if kind == stat.S_IFREG else None,
                               os.readlink(path) if kind == stat.S_IFLNK else None]
    for relative, picture in found.items():
        picture[3] = sorted(groups.get(picture[3], []))
    found[b"."] = [os.stat(top).st_mode, os.stat(top).st_mtime_ns]
    return found


def same(got, wanted):
    found, before = pictures(got), pictures(wanted)
    equal(sorted(found), sorted(before), "names")
    for name, picture in before.items():
        equal(found[name], picture, os.fsdecode(name))


def inside(box, script, name="tiny"):
    return box.run("exec", name, "--", "sh", "-c", script)


def cp(box, *arguments, **rest):
    return box.run("cp", *arguments, **rest)


class Scratch:
    """A directory on the host, which is gone afterwards."""

    def __init__(self, box):
        self.top = os.path.join(box.temporary, "scratch")

    def __enter__(self):
        os.mkdir(self.top)
        return self.top

    def __exit__(self, *_):
        shutil.rmtree(self.top)


@test()
def a_tree_goes_in_and_comes_out(box):
    with Scratch(box) as top, box.up():
        tree(top + "/tree")
        equal(cp(box, top + "/tree", "tiny:/tmp").ok().error, "")
        said = inside(box, """cd /tmp/tree
            stat -c '%a %Y %n' file program hollow deep/er
            for link in deep/link absolute dangling; do readlink $link; done
            test large -ef deep/again && echo same
            test $(stat -c %b sparse) -lt 100 && stat -c %s sparse
            ls -A hollow | wc -l; ls odd | wc -l""").ok().text.split("\n")
        equal(said[:4], ["640 981173106 file", "755 0 program", "700 %d hollow" %
                         os.stat(top + "/tree/hollow").st_mtime, "1555 781173106 deep/er"])
        equal(said[4:9], ["../file", "/etc/passwd", "no/where", "same", str(64 * MIB)])
        equal(said[9], "0", "files in an empty directory")
        equal(cp(box, "tiny:/tmp/tree", top + "/back").ok().error, "")
        same(top + "/back", top + "/tree")
        check(os.stat(top + "/back/sparse").st_blocks * 512 < MIB, "the holes are gone")
        equal(os.stat(top + "/back/program").st_mode & 0o7777, 0o755, "mode of the program")
        equal(os.lstat(top + "/back/file").st_uid, os.getuid(), "owner")


@test()
def where_it_goes(box):
    with Scratch(box) as top, box.up():
        os.makedirs(top + "/tree/sub")
        write(top + "/tree/sub/file", b"1\n", 0o600)
        write(top + "/one", b"one\n", 0o751)
        inside(box, "mkdir -p /tmp/there/tree /tmp/there/one.d").ok()
        cp(box, top + "/one", "tiny:/tmp/there").ok()
        cp(box, top + "/one", "tiny:/tmp/there/named").ok()
        cp(box, top + "/one", "tiny:/tmp/there/one.d/").ok()
        cp(box, top + "/tree", "tiny:/tmp/there").ok()
        cp(box, top + "/tree/", "tiny:/tmp/there/new").ok()
        cp(box, top + "/tree/.", "tiny:/tmp/there/what").ok()
        cp(box, top + "/tree/.", "tiny:/tmp/there").ok()
        equal(inside(box, "cd /tmp/there; find . -type f | sort; cat named; stat -c %a named").text,
              "./named\n./new/sub/file\n./one\n./one.d/one\n./sub/file\n./tree/sub/file\n"
              "./what/sub/file\none\n751\n")
        # And the same coming out.
        out = top + "/out"
        os.makedirs(out + "/dir")
        cp(box, "tiny:/tmp/there/one", out).ok()
        cp(box, "tiny:/tmp/there/one", out + "/named").ok()
        cp(box, "tiny:/tmp/there/one", out + "/dir/").ok()
        cp(box, "tiny:/tmp/there/sub", out).ok()
        cp(box, "tiny:/tmp/there/sub/.", out + "/what").ok()
        cp(box, "tiny:/tmp/there/sub/file", "here", cwd=out).ok()
        found = sorted(os.path.relpath(os.path.join(folder, name), out)
                       for folder, _, names in os.walk(out) for name in names)
        equal(found, ["dir/one", "here", "named", "one", "sub/file", "what/file"])
        # What is there is replaced, a directory is merged.
        write(top + "/one", b"two\n", 0o600)
        cp(box, top + "/one", "tiny:/tmp/there/named").ok()
        cp(box, "tiny:/tmp/there/named", out + "/named").ok()
        equal((digest(out + "/named"), os.stat(out + "/named").st_mode & 0o777),
              (digest(top + "/one"), 0o600))


@test()
def names_that_cannot_be_meant(box):
    with Scratch(box) as top:
        write(top + "/file", b"x")
        write(top + "/a:b", b"colon\n")
        cp(box, top + "/file", "tiny:/tmp").fails("is not up")
        cp(box, top + "/file", "no-such-box:/tmp").fails("no-such-box")
        with box.up():
            cp(box, top + "/file", "tiny:tmp").fails("must be absolute")
            cp(box, top + "/file", "tiny:").fails("must be absolute")
            cp(box, top + "/file", ":/tmp").fails("sandbox")
            cp(box, top + "/file", top + "/other").fails("neither of the two")
            cp(box, "-", top + "/other").fails("neither of the two")
            cp(box, "-", "-").fails("neither of the two")
            cp(box, "", "tiny:/tmp").fails("empty")
            cp(box, top + "/..", "tiny:/tmp").fails("..")
            cp(box, top + "/nothing", "tiny:/tmp").fails("nothing", "No such file")
            cp(box, "tiny:/tmp/nothing", top).fails("nothing", "No such file")
            cp(box, top + "/file", "tiny:/no/such/dir").fails("/no/such/dir")
            cp(box, top + "/file", "tiny:/tmp/new/").fails("no such directory")
            cp(box, "tiny:/etc/passwd", top + "/no/such").fails("no/such")
            cp(box, "tiny:/etc/passwd", top + "/new/").fails("no such directory")
            cp(box, "tiny:/etc/passwd", top + "/file/x").fails("file/x")
            cp(box, "--user", "no-such-user", top + "/file", "tiny:/tmp").fails("no-such-user")
            result = cp(box, "tiny:/tmp/a\x1b[31mb", top).fails()
            check("\x1b" not in result.error, result)
            # A colon before a slash is a sandbox, after it it is not.
            cp(box, "./a:b", "tiny:/tmp", cwd=top).ok()
            equal(inside(box, "cat /tmp/a:b").text, "colon\n")
            cp(box, "tiny:/tmp/a:b", "./c:d", cwd=top).ok()
            # Things that cannot replace one another.
            inside(box, "mkdir -p /tmp/dir /tmp/t; echo f > /tmp/t/dir").ok()
            os.mkdir(top + "/dir")
            write(top + "/dir/x", b"x")
            cp(box, top + "/dir", "tiny:/tmp/t").fails("no directory is in the way")
            cp(box, top + "/dir", "tiny:/tmp/a:b").fails("in the way")
            equal(inside(box, "cat /tmp/t/dir").text, "f\n", "what was there")
            equal(sorted(os.listdir(top)), ["a:b", "c:d", "dir", "file"], "what was made")


@test()
def owners_and_rights_are_those_of_who_copies(box):
    with Scratch(box) as top, box.up():
        write(top + "/file", b"x", 0o644)
        os.chown(top + "/file", 4321, 4321) if os.getuid() == 0 else None
        cp(box, top + "/file", "tiny:/tmp/root").ok()
        cp(box, "--user", "agent", top + "/file", "tiny:/tmp/agent").ok()
        cp(box, "--user", "1000", top + "/file", "tiny:/tmp/number").ok()
        equal(inside(box, "stat -c '%u %g' /tmp/root /tmp/agent /tmp/number").text,
              "0 0\n1000 1000\n1000 1000\n")
        cp(box, "--user", "agent", top + "/file", "tiny:/root/x").fails("Permission denied", "tiny")
        cp(box, "--user", "agent", top + "/file", "tiny:/etc").fails("Permission denied")
        cp(box, "--user", "agent", "tiny:/etc/shadow", top).fails("Permission denied", "shadow")
        equal(os.listdir(top), ["file"])
        equal(inside(box, "ls -A /etc | grep -c box-copy").text, "0\n")


@test()
def what_is_no_file_is_left_out(box):
    with Scratch(box) as top, box.up():
        inside(box, "mkdir /tmp/t; cd /tmp/t; mkfifo fifo; mknod null c 1 3; echo x > file").ok()
        result = cp(box, "tiny:/tmp/t", top).ok()
        contains(result.err, "2 devices or fifos were left out")
        equal(os.listdir(top + "/t"), ["file"])
        equal(cp(box, "--quiet", "tiny:/tmp/t", top).ok().error, "")
        os.mkdir(top + "/own")
        os.mkfifo(top + "/own/fifo")
        contains(cp(box, top + "/own", "tiny:/tmp").ok().err, "left out")
        equal(inside(box, "ls -A /tmp/own").text, "")
        # The target is never written through, whatever it is.
        inside(box, "mkfifo /tmp/pipe").ok()
        cp(box, top + "/t/file", "tiny:/tmp/pipe", timeout=30)
        equal(inside(box, "stat -c %F /tmp/pipe").text.strip() in ("fifo", "regular file"), True)


@test()
def a_sparse_file_stays_sparse(box):
    with Scratch(box) as top, box.up():
        with open(top + "/sparse", "wb") as file:
            file.truncate(GIB)
            for place in (0, 300 * MIB + 77, GIB - 4096):
                file.seek(place)
                file.write(os.urandom(4096))
        result = cp(box, top + "/sparse", "tiny:/tmp/sparse").ok()
        check(result.seconds < 30, f"took {result.seconds:.1f} s")
        size, blocks = inside(box, "stat -c '%s %b' /tmp/sparse").text.split()
        equal(int(size), GIB)
        check(int(blocks) * 512 < MIB, f"{blocks} blocks inside")
        cp(box, "tiny:/tmp/sparse", top + "/back").ok()
        status = os.stat(top + "/back")
        check(status.st_blocks * 512 < MIB, f"{status.st_blocks} blocks on the host")
        equal(subprocess.run(["cmp", top + "/sparse", top + "/back"], check=False).returncode, 0)


@test(home="copy", timeout=400)
def between_two_machines(box):
    copy_home(box.path("sandboxes/tiny"), box.path("sandboxes/other"))
    with Scratch(box) as top, box.up():
        box.run("up", "other").ok()
        tree(top + "/tree")
        cp(box, top + "/tree", "tiny:/tmp").ok()
        cp(box, "tiny:/tmp/tree", "other:/tmp/arrived").ok()
        inside(box, "rm -r /tmp/tree").ok()
        cp(box, "other:/tmp/arrived", top + "/back").ok()
        same(top + "/back", top + "/tree")
        cp(box, "tiny:/no/such", "other:/tmp").fails("no/such")
        cp(box, "tiny:/etc/passwd", "other:/no/such/dir").fails("no/such/dir")
        # To itself, and into itself.
        cp(box, "other:/tmp/arrived", "other:/tmp/again").ok()
        equal(inside(box, "diff -r /tmp/arrived/odd /tmp/again/odd && echo same", "other").text,
              "same\n")
        box.run("down", "other").ok()
        cp(box, "tiny:/etc/passwd", "other:/tmp").fails("other is not up")


@test()
def archives_on_the_streams(box):
    with Scratch(box) as top, box.up():
        tree(top + "/tree")
        for form in ("pax", "gnu", "ustar"):
            leave_out = ["--exclude=n*n", "--exclude=sparse"] if form == "ustar" else ["--sparse"]
            made = subprocess.run(["tar", "-C", top, f"--format={form}", *leave_out, "-cf", "-",
                                   "tree"], capture_output=True, check=False)
            inside(box, f"mkdir /tmp/{form}").ok()
            cp(box, "-", f"tiny:/tmp/{form}", input=made.stdout).ok()
        equal(inside(box, "cd /tmp; sha256sum pax/tree/large gnu/tree/large ustar/tree/large | "
                          "cut -d' ' -f1 | sort -u").text, digest(top + "/tree/large") + "\n")
        got = cp(box, "tiny:/tmp/pax/tree", "-").ok()
        equal(got.error, "")
        os.mkdir(top + "/out")
        done = subprocess.run(["tar", "-C", top + "/out", "-xpf", "-"], input=got.out,
                              capture_output=True, check=False)
        equal((done.returncode, done.stderr), (0, b""), "GNU tar")
        same(top + "/out/tree", top + "/tree")
        # What is not whole, or no archive, or packed.
        inside(box, "mkdir /tmp/bad").ok()
        for bad in (got.out[:len(got.out) // 2], got.out[:-1024], b"no archive at all" * 1000, b"",
                    subprocess.run(["gzip"], input=got.out, capture_output=True,
                                   check=True).stdout):
            cp(box, "-", "tiny:/tmp/bad", input=bad).fails()
        equal(inside(box, "find /tmp/bad -name '.box-copy*' | wc -l").text, "0\n")
        cp(box, "-", "tiny:/tmp/not-there", input=got.out).fails("not-there")
        # A reader that goes, long before the end.
        inside(box, "head -c 4194304 /dev/urandom >/tmp/pax/tree/more").ok()
        running = box.start("cp", "tiny:/tmp/pax/tree", "-")
        running.read_until(b"tree")
        running.process.stdout.close()
        running.process.stdout = None
        result = running.wait(20)
        check(result.code in (125, 141, -signal.SIGPIPE), result)


@test()
def links_of_the_guest_are_never_followed(box):
    with Scratch(box) as top, box.up():
        os.makedirs(top + "/elsewhere")
        write(top + "/canary", b"mine\n")
        before = pictures(top)
        inside(box, f"""mkdir -p /tmp/h/dir; cd /tmp/h
            ln -s /etc/passwd passwd; ln -s / root; ln -s ../canary up; ln -s {top}/canary host
            ln -s {top}/elsewhere elsewhere; echo evil > dir/file""").ok()
        out = top + "/out"
        cp(box, "tiny:/tmp/h", out).ok()
        equal([os.readlink(f"{out}/{name}") for name in ("passwd", "root", "up", "host")],
              ["/etc/passwd", "/", "../canary", top + "/canary"])
        # A link of the host lies where a file or directory of the guest is to go.
        os.unlink(out + "/passwd")
        shutil.rmtree(out + "/dir")
        os.symlink(top + "/elsewhere", out + "/dir")
        cp(box, "tiny:/tmp/h", top + "/again").ok()
        shutil.rmtree(top + "/again")
        cp(box, "tiny:/tmp/h/.", out).fails("in the way")
        os.unlink(out + "/dir")
        inside(box, "cd /tmp/h; rm host up; echo evil > host; echo evil > up").ok()
        cp(box, "tiny:/tmp/h/.", out).ok()
        check(not os.path.islink(out + "/host"), "the link is still there")
        equal(open(out + "/host", encoding="utf-8").read(), "evil\n")
        # A whole link is copied as a link, also one that leads to a directory.
        cp(box, "tiny:/tmp/h/root", top + "/link").ok()
        equal(os.readlink(top + "/link"), "/")
        os.unlink(top + "/link")
        shutil.rmtree(out)
        equal({name: what for name, what in pictures(top).items() if name != b"."},
              {name: what for name, what in before.items() if name != b"."}, "outside")


@test()
def a_directory_that_becomes_a_link_meanwhile(box):
    with Scratch(box) as top, box.up():
        os.makedirs(top + "/elsewhere")
        write(top + "/elsewhere/canary", b"mine\n")
        before = pictures(top + "/elsewhere")
        box.run("exec", "--detach", "tiny", "--", "sh", "-c", f"""
            mkdir -p /tmp/h/a/b /tmp/keep; cd /tmp/h; for i in 1 2 3 4 5 6 7 8; do
            echo evil > a/b/canary$i; done; echo evil > a/b/canary; ln -s {top}/elsewhere link
            while :; do mv a/b /tmp/keep/b; mv link a/b; mv a/b link; mv /tmp/keep/b a/b
            done""").ok()
        ends = set()
        for number in range(12):
            result = cp(box, "tiny:/tmp/h", f"{top}/out{number % 2}")
            check(result.code in (0, 125), result)
            ends.add(result.code)
            equal(pictures(top + "/elsewhere"), before, "a directory of the host")
        check(0 in ends, "none of the copies worked")
        for folder, folders, names in os.walk(top):
            check(not any(name.startswith(".box-copy") for name in names), f"{folder}: {names}")


def crafted(*entries):
    """An archive of (name, type, link or data)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, value in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.mtime = kind, 0o6755, 1
            if kind == tarfile.REGTYPE:
                entry.size = len(value)
                archive.addfile(entry, io.BytesIO(value))
            else:
                entry.linkname = value or ""
                archive.addfile(entry)
    return out.getvalue()


@test()
def archives_that_mean_harm(box):
    # As what comes out of a guest that has its own box-guest.
    program = os.path.join(PREFIX, "libexec/box/box-copy")
    file, link, hard, folder = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
    with Scratch(box) as top:
        os.mkdir(top + "/out")
        write(top + "/canary", b"mine\n")
        before = pictures(top)
        bad = [[("../canary", file, b"evil")], [("a/../../canary", file, b"evil")],
               [(top + "/canary", file, b"evil")],
               [("l", link, ".."), ("l/canary", file, b"evil")],
               [("l", link, "../canary"), ("l", file, b"evil"), ("l/x", file, b"evil")],
               [("h", hard, "../canary")], [("h", hard, top + "/canary")],
               [("d", folder, None), ("d", link, ".."), ("d/canary", file, b"evil")],
               [("dev", tarfile.CHRTYPE, None)], [("a" * 300, file, b"x")],
               [(".", link, "..")], [("a/.", link, "/"), ("..", folder, None)]]
        for entries in bad:
            directory = os.open(top + "/out", os.O_RDONLY)
            done = subprocess.run([program, "into", str(directory)], input=crafted(*entries),
                                  capture_output=True, pass_fds=[directory], check=False)
            os.close(directory)
            check(done.returncode in (0, 1), f"{entries}: {done}")
            check(b"\x1b" not in done.stderr, done.stderr)
            for name in os.listdir(top + "/out"):
                path = os.path.join(top, "out", name)
                mode = os.lstat(path).st_mode
                check(stat.S_ISLNK(mode) or not mode & 0o6000, f"{entries}: {name} is setuid")
                check(stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode), entries)
                os.unlink(path) if not os.path.isdir(path) or os.path.islink(path) else \
                    shutil.rmtree(path)
            os.utime(top + "/out", ns=(1, 1))
            equal(pictures(top)[b"canary"], before[b"canary"], entries)
            equal(sorted(os.listdir(top)), ["canary", "out"], entries)
        equal(done.returncode, 1, "the last of them")


def big_file(path):
    with open(path, "wb") as file:
        for _ in range(50):
            file.write(os.urandom(MIB))


def begun(look, running):
    """Waits until a copy is in the middle of its file."""
    wait_until("a file that is half there", look, 30)
    check(running.process.poll() is None, "it has ended already")


@test()
def an_interrupted_copy_into_a_machine(box):
    with Scratch(box) as top, box.up():
        big_file(top + "/big")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            running = box.start("cp", top + "/big", "tiny:/tmp/big")
            begun(lambda: inside(box, "ls -A /tmp | grep -c box-copy").text == "1\n", running)
            running.signal(number)
            result = running.wait(20)
            equal(result.code, 128 + number if number != signal.SIGKILL else -number, result)
            if number != signal.SIGKILL:
                wait_until("that it is cleaned up", lambda: inside(
                    box, "ls -A /tmp | wc -l").text == "0\n", 10)
            equal(inside(box, "ls /tmp | wc -l").text, "0\n", "files under the final name")
            wait_until("the end of the copy inside", lambda: box.run(
                "ps", "--json", "tiny").json() == [], 10)
        # One that is there is not touched, and a new try works.
        inside(box, "rm -f /tmp/.box-copy*; echo old > /tmp/big").ok()
        running = box.start("cp", top + "/big", "tiny:/tmp/big")
        begun(lambda: inside(box, "ls -A /tmp | grep -c box-copy").text == "1\n", running)
        running.signal(signal.SIGINT)
        running.wait(20).exits(130)
        equal(inside(box, "cat /tmp/big").text, "old\n")
        cp(box, top + "/big", "tiny:/tmp/big").ok()
        equal(inside(box, "sha256sum < /tmp/big").text.split()[0], digest(top + "/big"))


@test()
def an_interrupted_copy_out_of_a_machine(box):
    with Scratch(box) as top, box.up():
        inside(box, "dd if=/dev/zero of=/tmp/big bs=1M count=50; echo end >> /tmp/big").ok()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            running = box.start("cp", "tiny:/tmp/big", top + "/big")
            begun(lambda: any(name.startswith(".box-copy") for name in os.listdir(top)), running)
            running.signal(number)
            result = running.wait(20)
            equal(result.code, 128 + number if number != signal.SIGKILL else -number, result)
            if number != signal.SIGKILL:
                equal(os.listdir(top), [], "files on the host")
            check("big" not in os.listdir(top), "half a file has the final name")
            wait_until("the end of the copy inside", lambda: box.run(
                "ps", "--json", "tiny").json() == [], 10)
        wait_until("the end of box-copy", lambda: not any(
            each.name.startswith("box-copy") for each in descendants(os.getpid())), 5)
        cp(box, "tiny:/tmp/big", top + "/big").ok()
        equal(digest(top + "/big"), inside(box, "sha256sum < /tmp/big").text.split()[0])


@test()
def a_machine_that_goes_down_meanwhile(box):
    with Scratch(box) as top:
        for victim in ("down", "monitor"):
            with box.up():
                inside(box, "dd if=/dev/zero of=/tmp/big bs=1M count=50; echo end >> /tmp/big").ok()
                running = box.start("cp", "tiny:/tmp/big", top + "/big")
                begun(lambda: any(name.startswith(".box-copy")
                                  for name in os.listdir(top)), running)
                if victim == "down":
                    box.run("down", "tiny").ok()
                else:
                    os.kill(box.monitor().pid, signal.SIGKILL)
                result = running.wait(20)
                # `down` ends commands by SIGTERM, and the copying inside is one.
                check(result.code in (125,), result)
                contains(result.err, "box: ")
                equal(os.listdir(top), [], "files on the host")


@test(home="copy")
def a_disk_that_is_full(box):
    with Scratch(box) as top, box.up():
        before = inside(box, "df /data | tail -1").text.split()[-3]
        with open(top + "/big", "wb") as file:
            for _ in range(80):
                file.write(os.urandom(MIB))
        cp(box, top + "/big", "tiny:/data/big").fails("No space left on device", "tiny")
        equal(inside(box, "ls -A /data | grep -v lost+found | wc -l").text, "0\n", "files")
        after = inside(box, "sync; df /data | tail -1").text.split()[-3]
        check(int(after) > int(before) - 2048, f"{before} KiB were free, {after} are")


@test()
def copies_at_once(box):
    with Scratch(box) as top, box.up():
        for number in range(4):
            write(f"{top}/in{number}", os.urandom(3 * MIB))
        all_in = [box.start("cp", f"{top}/in{number}", "tiny:/tmp/") for number in range(4)]
        for each in all_in:
            each.wait().ok()
        out = [box.start("cp", f"tiny:/tmp/in{number}", f"{top}/out{number}")
               for number in range(4)]
        equal(inside(box, "echo meanwhile").ok().text, "meanwhile\n")
        for number, each in enumerate(out):
            each.wait().ok()
            equal(digest(f"{top}/out{number}"), digest(f"{top}/in{number}"))


@test()
def a_bar_on_a_terminal(box):
    with Scratch(box) as top, box.up():
        big_file(top + "/big")
        terminal = box.terminal("cp", top + "/big", "tiny:/tmp/big")
        terminal.expect(re.compile(rb"\d+(\.\d)? [MK]iB, \d+(\.\d)? [MK]iB/s"))
        code, seen = terminal.wait()
        equal(code, 0, seen)
        check(seen.endswith(b"\r\x1b[K"), f"it stays there: {seen[-50:]}")
        code, seen = box.terminal("cp", "-q", "tiny:/tmp/big", top + "/back").wait()
        equal((code, seen), (0, b""), "with --quiet")
        # A terminal is no place for an archive.
        code, seen = box.terminal("cp", "tiny:/tmp/big", "-").wait()
        equal(code, 125, seen)
        contains(seen, "terminal")


@test(home="empty", timeout=600)
def copies_of_a_normal_user(box):
    with as_user(box) as user:
        user.make("tiny", TINY)
        # The Boxfile is what the test wrote as root.
        os.chown(user.path("sandboxes/tiny/Boxfile"), user.user.pw_uid, user.user.pw_gid)
        user.run("build", "tiny", timeout=400).ok()
        user.run("up", "tiny").ok()
        home = user.user.pw_dir
        subprocess.run(["mkdir", "-m", "755", home + "/project"], check=True)
        write(home + "/project/file", b"mine\n", 0o600)
        for name in ("project", "project/file"):
            os.chown(f"{home}/{name}", user.user.pw_uid, user.user.pw_gid)
        cp(user, home + "/project", "tiny:/tmp").ok()
        equal(inside(user, "cat /tmp/project/file; stat -c '%u %a' /tmp/project/file").text,
              "mine\n0 600\n")
        inside(user, "chown 77 /tmp/project/file; chmod 4755 /tmp/project/file").ok()
        cp(user, "tiny:/tmp/project", home + "/back").ok()
        status = os.stat(home + "/back/file")
        equal((status.st_uid, status.st_mode & 0o7777), (user.user.pw_uid, 0o755))
        # What the user may not, box may not either.
        locked = box.temporary + "/locked"
        os.mkdir(locked, 0o755)
        write(locked + "/secret", b"root's\n", 0o600)
        cp(user, locked + "/secret", "tiny:/tmp").fails("Permission denied")
        cp(user, "tiny:/etc/passwd", locked).fails("Permission denied")
        equal(os.listdir(locked), ["secret"])
        shutil.rmtree(locked)
        user.run("down", "tiny").ok()
        user.clean()
