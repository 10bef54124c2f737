"""Errors name the thing and the mend."""

import json
import os
import re
import shutil
import subprocess

from lib import PREFIX, TINY, check, contains, equal, mirror_reason, need_root, skip, test


@test()
def an_unknown_sandbox(box):
    box.run("run", "tny", "--", "true").fails("tny", "tiny")
    for command in (("build",), ("verify",), ("env",), ("destroy", "-y")):
        box.run(*command, "nothing-here").fails("nothing-here")


@test()
def bad_names(box):
    for name in ("", ".x", "-x", "a/b", "a b", "a" * 65, "é", "..", "a\nb"):
        result = box.run("new", "--", name) if name.startswith("-") else box.run("new", name)
        result.exits(125)
        check(result.err.startswith(b"box: "), result)
    equal(box.run("ls").ok().text.count("\n"), 1, "sandboxes")


@test()
def a_typo_in_the_boxfile(box):
    with open(box.path("sandboxes/tiny/Boxfile"), encoding="utf-8") as file:
        before = file.read()
    cases = [
        ("base: tiny\nram_mb: 256\n", 2, ("ram_mb", "ram_mib")),
        ("base: tiny\ncpus: many\n", 2, ("cpus",)),
        ("base: tiny\ncpus: 17\n", 2, ("16",)),
        ("base: tiny\nram_mib: 12\n", 2, ("128",)),
        ("base: tiny\nbase: tiny\n", 2, ("base",)),
        ("base: &x tiny\n", 1, ()),
        ("base: !x tiny\n", 1, ()),
        ("base: tiny\nrun: [a\n", None, ()),
        ("base: tiny\nenv:\n  1A: b\n", 3, ("1A",)),
        ("base: tiny\nnetwork: brige\n", 2, ("bridge",)),
        ("- a\n- b\n", 1, ()),
    ]
    try:
        for text, line, wanted in cases:
            box.write_boxfile("tiny", text)
            result = box.run("run", "tiny", "--", "true")
            place = re.compile(rf"Boxfile:{line or '[0-9]+'}:[0-9]+: ")
            result.exits(125)
            contains(result.err, place, repr(text))
            for each in wanted:
                contains(result.err, each, repr(text))
    finally:
        box.write_boxfile("tiny", before)


@test()
def what_is_not_available_yet(box):
    with open(box.path("sandboxes/tiny/Boxfile"), encoding="utf-8") as file:
        before = file.read()
    cases = [
        ("secrets:\n  - name: X\n", "secrets"),
        ("mounts:\n  - {host: /srv, guest: /mnt, mode: ro}\n", "mounts"),
    ]
    try:
        for text, key in cases:
            box.write_boxfile("tiny", TINY + text)
            result = box.run("run", "tiny", "--", "true")
            result.exits(125)
            contains(result.err, "not available yet", repr(text))
            contains(result.err, key, repr(text))
    finally:
        box.write_boxfile("tiny", before)


@test()
def older_boxfiles_load(box):
    with open(box.path("sandboxes/tiny/Boxfile"), encoding="utf-8") as file:
        before = file.read()
    try:
        box.write_boxfile("tiny", TINY + "backend: podman\npasst: true\n")
        result = box.sh("echo ran").ok()
        equal(result.out, b"ran\n")
        contains(result.err, "backend")
        contains(result.err, "passt")
    finally:
        box.write_boxfile("tiny", before)


@test(home="empty")
def not_built_yet(box):
    box.make("fresh")
    box.run("run", "fresh", "--", "true").fails("fresh", "box build fresh")


def without_qemu(box):
    """A PATH that has everything but QEMU."""
    folder = box.temporary + "/bin"
    os.makedirs(folder, exist_ok=True)
    for place in ("/usr/sbin", "/usr/bin"):
        for name in os.listdir(place):
            target = os.path.join(folder, name)
            if not name.startswith("qemu") and not os.path.lexists(target):
                os.symlink(os.path.join(place, name), target)
    return folder


@test()
def no_qemu(box):
    need_root()
    # A mount namespace in which the program is covered by an empty file.
    covered = "/usr/bin/qemu-system-x86_64"
    if not shutil.which("unshare") or not os.path.exists(covered):
        skip("no unshare, or QEMU is somewhere else")
    folder = without_qemu(box)
    empty = box.temporary + "/empty"
    with open(empty, "w", encoding="utf-8"):
        pass
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'mount --bind {empty} {covered} && exec "$@"', "sh",
         box.binary, "run", "tiny", "--", "true"],
        env=box.environ({"PATH": folder}), capture_output=True, timeout=60)
    shutil.rmtree(folder)
    os.unlink(empty)
    equal(result.returncode, 125, result.stderr)
    contains(result.stderr, re.compile(r"^box: .*qemu", re.M | re.I))
    contains(result.stderr, "qemu-system-x86")


@test()
def no_kernel(box):
    result = box.run("run", "tiny", "--", "true", env={"BOX_KERNEL": "/no/such/vmlinuz"})
    result.fails("/no/such/vmlinuz")


@test(home="copy")
def a_kernel_that_is_none(box):
    kernel = box.temporary + "/vmlinuz"
    with open(kernel, "wb") as file:
        file.write(b"this is not a kernel\n" * 1000)
    result = box.run("run", "tiny", "--", "true", env={"BOX_KERNEL": kernel}, timeout=120)
    os.unlink(kernel)
    result.exits(125)
    check(result.err.startswith(b"box: "), result)
    box.clean(5)


@test(home="empty")
def more_memory_than_there_is(box):
    box.make("huge", TINY.replace("ram_mib: 256", "ram_mib: 99999999"))
    box.run("build", "huge", timeout=60).fails("ram_mib")


@test(home="empty", timeout=400)
def a_disk_that_is_full(box):
    need_root()
    # A file system of its own with too little room, seen by this build alone.
    os.makedirs(box.home, mode=0o700, exist_ok=True)
    for size in ("2m", "24m"):
        script = f'mount -t tmpfs -o size={size},mode=700 none "$BOX_HOME" && shift && ' \
            '"$0" new full && printf %s "$1" > "$BOX_HOME/sandboxes/full/Boxfile" && ' \
            '"$0" build full; code=$?; find "$BOX_HOME/sandboxes/full" -type f; exit $code'
        result = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, box.binary, "-", TINY],
            env=box.environ(), capture_output=True, timeout=300)
        equal(result.returncode, 125, size, result.stderr)
        contains(result.stderr, re.compile(r"space|full|room", re.I), size)
        contains(result.stderr, re.compile(r"^box: ", re.M), size)
        check(b"image.ext4" not in result.stdout, size, result.stdout)
    box.clean(5)


@test()
def a_home_that_cannot_be_written(box):
    need_root()
    script = 'mount --bind "$BOX_HOME" "$BOX_HOME" && mount -o remount,bind,ro "$BOX_HOME" && exec "$@"'
    for arguments in (("build", "--no-cache", "tiny"), ("new", "other")):
        result = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", box.binary, *arguments],
                                env=box.environ(), capture_output=True, timeout=120)
        equal(result.returncode, 125, arguments, result.stderr)
        contains(result.stderr, box.home, arguments)
        contains(result.stderr, re.compile("read-only", re.I), arguments)
    # What only looks still works.
    result = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", box.binary, "ls"],
                            env=box.environ(), capture_output=True, timeout=60)
    equal(result.returncode, 0, result.stderr)
    box.clean(5)


@test(home="empty")
def a_home_that_is_none(box):
    with open(box.home, "w", encoding="utf-8"):
        pass
    box.run("ls").fails(box.home)
    box.run("new", "x").fails(box.home)
    os.unlink(box.home)


@test(home="empty")
def a_home_that_others_may_write(box):
    os.makedirs(box.home)
    os.chmod(box.home, 0o777)
    box.run("new", "x").fails(box.home, "chmod")


@test(home="empty", timeout=400)
def a_home_on_another_file_system(box):
    need_root()
    os.makedirs(box.home, mode=0o700, exist_ok=True)
    script = 'mount -t tmpfs -o size=2g,mode=700 none "$BOX_HOME" && "$0" new other && ' \
        'printf %s "$1" > "$BOX_HOME/sandboxes/other/Boxfile" && "$0" build other >&2 && ' \
        '"$0" run other -- echo fine'
    result = subprocess.run(["unshare", "-m", "sh", "-c", script, box.binary, TINY],
                            env=box.environ(), capture_output=True, timeout=300)
    equal(result.returncode, 0, result.stderr)
    check(result.stdout.endswith(b"fine\n"), result.stdout)
    box.clean(5)


@test()
def a_kvm_that_is_not_permitted_is_named(box):
    result = box.run("doctor", "--json")
    found = json.dumps(result.json())
    if not os.path.exists("/dev/kvm"):
        contains(found, "/dev/kvm")
        return
    contains(found, re.compile("kvm", re.I))


@test()
def unusable_command_lines(box):
    cases = [
        (), ("no-such-command",), ("run",), ("run", "tiny"), ("run", "tiny", "--"), ("new",),
        ("run", "--no-such-option", "tiny", "--", "true"), ("ls", "extra"), ("build",),
        ("run", "--timeout", "soon", "tiny", "--", "true"),
        ("run", "--timeout", "-1", "tiny", "--", "true"),
        ("run", "--data", "mine", "tiny", "--", "true"), ("run", "-w", "relative", "tiny", "--", "true"),
    ]
    for arguments in cases:
        result = box.run(*arguments, timeout=30)
        check(result.code == 125, result)
        check(result.err, result)
        equal(result.out, b"", arguments)


@test()
def mistyped_commands_are_guessed(box):
    result = box.run("biuld", "tiny").exits(125)
    contains(result.err, "build")


@test(home="empty")
def a_missing_base(box):
    for base in ("tar:/no/such/base.tar", "dir:/no/such/folder"):
        name = base[:3]
        box.make(name, TINY.replace("base: tiny", f"base: {base}"))
        box.run("build", name, timeout=60).fails(base.split(":")[1])
    box.make("oci", TINY.replace("base: tiny", "base: oci:/srv/image"))
    result = box.run("build", "oci", timeout=60).exits(125)
    contains(result.err, "not available yet")


@test(home="empty", timeout=200)
def a_mirror_that_is_not_there(box):
    box.make("deb", "base: debian/bookworm\n")
    result = box.run("build", "deb", env={"BOX_MIRROR": "http://127.0.0.1:9/debian"}, timeout=150)
    result.fails("127.0.0.1:9")
    contains(result.err, re.compile("Failed to fetch.*(onnect|timed out)"), "says why:")
    contains(result.err, "BOX_MIRROR", "says what to do:")
    box.clean(10)


@test(home="empty", timeout=200)
def a_suite_that_is_not_there(box):
    reason = mirror_reason()
    if reason:
        skip(reason)
    box.make("deb", "base: debian/nosuchsuite\n")
    result = box.run("build", "deb", timeout=150)
    result.fails("nosuchsuite", "Release file", "suite in the Boxfile")
    box.clean(10)


@test()
def the_kernel_is_where_it_should_be(box):
    for name in ("vmlinuz", "modules/kernel", "version"):
        check(os.path.exists(os.path.join(PREFIX, "lib/box/kernel", name)), f"no {name}")


@test()
def failures_as_json_have_code_words(box):
    words = set()
    for arguments in (("run", "--json", "nothing-here", "--", "true"), ("ls", "--json", "x"),
                      ("run", "--json", "tiny", "--", "true")):
        env = {"BOX_KERNEL": "/no/such"} if "tiny" in arguments else None
        result = box.run(*arguments, env=env).exits(125)
        match = re.search(r'"code":\s*"([a-z0-9-]+)"', result.text + result.error)
        if arguments[0] == "run":
            check(match, result)
            words.add(match.group(1))
    equal(len(words), 2, f"two failures, {words}")
