"""`box build`: images, what goes into them, and what a failed build leaves."""

import glob
import io
import json
import os
import re
import shutil
import signal
import tarfile
import time

from lib import BOX, PREFIX, TINY, check, contains, equal, test, wait_until

BUSYBOX = "/bin/busybox"


@test()
def nothing_changed_takes_no_time(box):
    result = box.run("build", "tiny").ok()
    check(result.seconds < 1, f"took {result.seconds:.2f} s")
    box.sh("true").ok()


@test(home="copy", timeout=400)
def no_cache_makes_everything_anew(box):
    image = box.path("sandboxes/tiny/image/image.ext4")
    before = os.stat(image)
    quick = box.run("build", "tiny").ok().seconds
    slow = box.run("build", "--no-cache", "tiny").ok().seconds
    after = os.stat(image)
    check((before.st_ino, before.st_mtime_ns) != (after.st_ino, after.st_mtime_ns), "same image")
    check(slow > 3 * quick, f"{slow:.2f} s against {quick:.2f} s")
    box.sh("true").ok()


@test(home="empty", timeout=600)
def what_a_boxfile_puts_into_the_image(box):
    box.make("full", TINY + """\
user: agent
env:
  WORD: "two  words"
  DOLLAR: "$HOME 'quoted' \\"too\\""
run:
  - echo one > /one
  - test -f /one && echo two >> /one && id -u > /who
blueprint:
  users:
    - name: dev
      uid: 1234
      shell: /bin/sh
  write_files:
    - path: /etc/greeting
      content: |
        hello
        $world
      mode: "0640"
      owner: dev:dev
  runcmd:
    - echo three >> /one
""")
    result = box.run("build", "full", timeout=400).ok()
    contains(result.err, re.compile(r"\S"), "progress goes to stderr:")
    found = box.sh('cat /one /who; id -un; printf "%s|%s\\n" "$WORD" "$DOLLAR"; stat -c "%a %U %G" '
                   "/etc/greeting; id -u dev", name="full").ok().text.split("\n")
    equal(found[:4], ["one", "two", "three", "0"], "run and runcmd, in order, as root")
    equal(found[4], "agent", "user")
    equal(found[5], "two  words|$HOME 'quoted' \"too\"", "env")
    equal(found[6], "640 dev dev", "write_files")
    equal(found[7], "1234", "users")
    equal(box.sh("echo mine > /data/kept && cat /data/kept", name="full").ok().text, "mine\n",
          "/data is for whoever commands run as")
    greeting = box.run("run", "-u", "root", "full", "--", "cat", "/etc/greeting").ok()
    equal(greeting.text, "hello\n$world\n", "content")

    # A changed line makes a new image, with only what the new Boxfile says.
    box.write_boxfile("full", TINY + "run:\n  - echo changed > /one\n")
    box.run("build", "full", timeout=400).ok()
    equal(box.sh("cat /one; ls /etc/greeting 2>&1 | wc -l; id -un", name="full").ok().text,
          "changed\n1\nroot\n")


@test(home="copy", timeout=600)
def a_failed_build_leaves_the_earlier_image(box):
    box.write_boxfile("tiny", TINY + "run:\n  - echo half > /half\n  - echo why-not >&2; exit 3\n")
    before = box.tree()
    result = box.run("build", "tiny", timeout=400)
    result.fails("exit 3")
    log = re.search(r"(/\S*\.log)\b", result.error)
    check(log, f"names no log:\n{result}")
    with open(log.group(1), encoding="utf-8", errors="replace") as file:
        text = file.read()
    contains(text, "why-not", "the log has what the line said")
    box.clean(5)
    extra = {path for path in box.tree() - before if not path.endswith(".log")}
    equal(extra, set(), "left by the failed build")
    # As before the change: an image, a snapshot, and no /half.
    box.write_boxfile("tiny", TINY)
    equal(box.sh("ls /half 2>&1 | grep -c 'No such'").out, b"1\n")


@test(home="copy", timeout=600)
def an_interrupted_build_leaves_the_earlier_image(box):
    before = box.tree()
    box.write_boxfile("tiny", TINY + "run:\n  - echo marker-line; sleep 300\n")
    for number, pause in ((signal.SIGINT, 0.3), (signal.SIGTERM, 3), (signal.SIGKILL, 8)):
        running = box.start("build", "tiny")
        time.sleep(pause)
        running.signal(number)
        result = running.wait(30)
        check(result.code in (125, 128 + number, -number), result)
        box.clean(10)
    box.write_boxfile("tiny", TINY)
    box.sh("true").ok()
    # The next build clears away what a killed one could not.
    box.run("build", "--no-cache", "tiny", timeout=400).ok()
    extra = {path for path in box.tree() - before if not path.endswith(".log")}
    equal(extra, set(), "left by the builds")


@test(home="copy", timeout=300)
def a_build_that_nothing_hangs_up(box):
    # nohup(1) switches the signal off; so do shells for what they start in the background.
    root = box.temporary + "/base"
    os.makedirs(root + "/bin")
    shutil.copy(BUSYBOX, root + "/bin/busybox")
    with open(root + "/large", "wb") as file:
        file.write(os.urandom(1 << 20) * 150)
    box.write_boxfile("tiny", TINY.replace("base: tiny", f"base: dir:{root}"))
    running = box.start("build", "tiny",
                        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    running.read_until(b"opening the base", stream=2)
    time.sleep(0.1)
    running.signal(signal.SIGHUP)
    running.wait(250).ok()
    shutil.rmtree(root)


@test(home="empty", timeout=400)
def fifos_in_the_place_of_files(box):
    # Process 1 reads these itself and must wait for nobody's writing.
    box.make("f", TINY + "run:\n  - umount /etc/machine-id; rm -f /etc/machine-id; mkfifo /etc/machine-id\n"
                         "  - rm -f /etc/group; mkfifo /etc/group\n"
                         "  - rm -f /etc/passwd; mkfifo /etc/passwd\n  - true\n")
    box.run("build", "f", timeout=200).ok()
    equal(box.sh("echo here", name="f", timeout=60).ok().out, b"here\n")
    box.sh("true", "-u", "nobody", name="f", timeout=60).fails("nobody")


@test(home="copy", timeout=600)
def two_builds_at_once(box):
    box.write_boxfile("tiny", TINY + "run:\n  - echo x > /x\n")
    running = [box.start("build", "tiny") for _ in range(2)]
    for each in running:
        each.wait(400).ok()
    equal(box.sh("cat /x").ok().out, b"x\n")


@test(home="copy", timeout=600)
def runs_go_on_during_a_build(box):
    box.write_boxfile("tiny", TINY + "run:\n  - sleep 3\n")
    building = box.start("build", "tiny")
    time.sleep(2)
    box.sh("echo meanwhile", timeout=120)
    building.wait(400).ok()
    box.sh("true").ok()


@test(home="copy")
def a_run_without_a_fresh_build(box):
    # The image no longer matches the Boxfile: either it is said, or the old one runs; never a hang.
    box.write_boxfile("tiny", TINY + "run:\n  - echo x > /x\n")
    result = box.sh("true")
    check(result.code in (0, 125), result)
    if result.code == 125:
        result.fails("build")


@test(home="empty", timeout=400)
def readonly_root(box):
    box.make("ro", TINY + "readonly: true\n")
    box.run("build", "ro", timeout=300).ok()
    result = box.sh("touch /x 2>&1; touch /etc/x 2>&1; touch /usr/x 2>&1; mount -o remount,rw / "
                    "2>/dev/null; touch /y 2>/dev/null; ls /x /y 2>/dev/null; "
                    "touch /tmp/x /run/x /data/x && echo writable", name="ro").ok()
    equal(result.text.count("Read-only file system"), 3, result)
    contains(result.text, "writable")
    check("/y\n" not in result.text, result)


@test(home="empty", timeout=400)
def cpus_and_memory(box):
    box.make("big", "base: tiny\ncpus: 2\nram_mib: 384\ndisk_size: 300M\ndata_size: 32M\n")
    box.run("build", "big", timeout=300).ok()
    result = box.sh("nproc; awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo; "
                    "df -k / | awk 'NR == 2 { print int($2 / 1024) }'", name="big").ok()
    cpus, memory, disk = map(int, result.text.split())
    equal(cpus, 2, "cpus")
    # Where they are emulated process 1 keeps to the first; commands do not.
    script = "awk '/Cpus_allowed_list/ { print $2 }' /proc/1/status /proc/self/status; " \
             "grep -c TCG /proc/cpuinfo; true"
    first, command, emulated = box.sh(script, name="big").ok().text.split()
    equal([first, command], ["0" if int(emulated) else "0-1", "0-1"])
    # With the HPET instead, a device, every look at the clock would leave the guest.
    clock = box.sh("cat /sys/devices/system/clocksource/clocksource0/current_clocksource",
                   name="big").ok().text
    check(clock in ("tsc\n", "kvm-clock\n"), clock)
    check(320 <= memory <= 384, f"{memory} MiB of memory")
    check(200 <= disk <= 300, f"root of {disk} MiB")
    # Smaller and larger: the image is made anew.
    for mib in (100, 600):
        box.write_boxfile("big", f"base: tiny\nram_mib: 384\ndisk_size: {mib}M\ndata_size: 32M\n")
        box.run("build", "big", timeout=300).ok()
        disk = int(box.sh("df -k / | awk 'NR == 2 { print int($2 / 1024) }'", name="big").ok().text)
        check(mib * 2 // 3 <= disk <= mib, f"root of {disk} MiB instead of {mib}")


def small_root(add):
    """What a base from outside holds: busybox and a few files."""
    add("bin/busybox", BUSYBOX, 0o755)
    add("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644)
    add("etc/group", b"root:x:0:\n", 0o644)
    add("etc/from", b"outside\n", 0o644)


def finish(box, name):
    box.run("build", name, timeout=300).ok()
    result = box.sh("cat /etc/from; readlink /bin/sh; cat /etc/link; stat -c %a /bin/tool", name=name)
    equal(result.ok().text, "outside\nbusybox\noutside\n4755\n")


def links(folder_add, link):
    for each in ("sh", "cat", "readlink", "stat", "mount", "umount", "ls", "id", "true"):
        link(f"bin/{each}", "busybox")
    link("etc/link", "from")
    folder_add()


@test(home="empty", timeout=400)
def a_base_from_a_tar(box):
    path = box.temporary + "/base.tar"
    with tarfile.open(path, "w") as archive:
        def add(name, content, mode):
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                with open(content, "rb") as file:
                    content = file.read()
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))

        def link(name, target):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)

        small_root(add)
        links(lambda: add("bin/tool", b"#!/bin/sh\n", 0o4755), link)
    box.make("tarred", TINY.replace("base: tiny", f"base: tar:{path}"))
    finish(box, "tarred")
    os.unlink(path)


@test(home="empty", timeout=400)
def a_base_from_a_folder(box):
    root = box.temporary + "/base"

    def add(name, content, mode):
        target = os.path.join(root, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if isinstance(content, str):
            shutil.copy(content, target)
        else:
            with open(target, "wb") as file:
                file.write(content)
        os.chmod(target, mode)

    small_root(add)
    links(lambda: add("bin/tool", b"#!/bin/sh\n", 0o4755),
          lambda name, target: os.symlink(target, os.path.join(root, name)))
    box.make("folder", TINY.replace("base: tiny", f"base: dir:{root}"))
    finish(box, "folder")
    # A change in the folder is a change.
    add("etc/from", b"changed\n", 0o644)
    box.run("build", "folder", timeout=300).ok()
    equal(box.sh("cat /etc/from", name="folder").ok().text, "changed\n")
    shutil.rmtree(root)


@test(home="empty", timeout=300)
def a_hostile_tar_is_refused(box):
    def escape(archive):
        info = tarfile.TarInfo("../outside")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))

    def through_a_link(archive):
        info = tarfile.TarInfo("door")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(info)
        info = tarfile.TarInfo("door/passwd")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))

    for number, make in enumerate((escape, through_a_link)):
        path = f"{box.temporary}/bad{number}.tar"
        with tarfile.open(path, "w") as archive:
            make(archive)
        name = f"bad{number}"
        box.make(name, TINY.replace("base: tiny", f"base: tar:{path}"))
        result = box.run("build", name).exits(125)
        contains(result.err, re.compile(r"outside|door"), result)
        check(not os.path.exists(os.path.dirname(box.temporary) + "/outside"), "it got out")
        os.unlink(path)
        box.clean(5)


def trace(box, **options):
    result = box.sh("echo here", **options).ok()
    equal(result.out, b"here\n")
    return result


@test(home="copy", timeout=300)
def a_stale_snapshot_means_a_boot(box):
    restored = box.sh("true", env={"BOX_TRACE": "1"}).ok()
    contains(restored.err, re.compile("restor", re.I), "with a snapshot:")
    # A kernel with other times is another kernel.
    kernel = box.temporary + "/vmlinuz"
    shutil.copy(os.path.join(PREFIX, "lib/box/kernel/vmlinuz"), kernel)
    os.utime(kernel, (1, 1))
    booted = box.sh("echo here", env={"BOX_TRACE": "1", "BOX_KERNEL": kernel}).ok()
    equal(booted.out, b"here\n")
    contains(booted.err, re.compile("boot", re.I))
    box.sh("true").ok()
    os.unlink(kernel)


@test(home="copy", timeout=300)
def a_damaged_snapshot_does_no_harm(box):
    folder = box.path("sandboxes/tiny/snapshot")
    devices = [name for name in os.listdir(folder) if "device" in name]
    check(devices, f"no device state in {os.listdir(folder)}")
    path = os.path.join(folder, devices[0])
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)
    result = box.sh("echo here", timeout=120)
    check(result.code in (0, 125), result)
    if result.code == 125:
        result.fails("tiny")
    box.clean(5)


@test(home="copy", timeout=300)
def a_missing_snapshot_means_a_boot(box):
    shutil.rmtree(box.path("sandboxes/tiny/snapshot"))
    result = box.sh("echo here", timeout=120)
    check(result.code in (0, 125), result)
    if result.code == 125:
        result.fails("build")


@test(home="copy", timeout=300)
def other_memory_means_a_boot(box):
    box.write_boxfile("tiny", TINY.replace("ram_mib: 256", "ram_mib: 320"))
    result = box.sh("awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo", timeout=120).ok()
    check(260 < int(result.text) <= 320, result)


@test(home="copy")
def other_env_needs_no_new_snapshot_to_be_right(box):
    box.write_boxfile("tiny", TINY + "env: {COLOUR: green}\n")
    box.run("build", "tiny", timeout=300).ok()
    equal(box.sh("echo $COLOUR").ok().text, "green\n")


@test(home="empty", timeout=300)
def progress_on_a_terminal_and_in_a_pipe(box):
    box.make("p")
    terminal = box.terminal("build", "p")
    code, seen = terminal.wait(250)
    equal(code, 0, seen)
    check(seen.strip(), "no word on the terminal")
    plain = box.run("build", "--no-cache", "p", timeout=250).ok()
    check(b"\x1b" not in plain.err + plain.out and b"\r" not in plain.err, plain)
    box.clean()


@test()
def the_image_is_a_sound_file_system(box):
    import subprocess
    checker = shutil.which("e2fsck", path="/usr/sbin:/sbin:/usr/bin:/bin")
    image = box.path("sandboxes/tiny/image/image.ext4")
    result = subprocess.run([checker, "-fn", image], capture_output=True, text=True)
    equal(result.returncode, 0, result.stdout + result.stderr)


@test()
def the_proof_of_the_kernel_is_kept(box):
    path, = glob.glob(box.path("sandboxes/tiny/snapshot/proof-*.json"))
    with open(path, encoding="utf-8") as file:
        proof = json.load(file)
    text = json.dumps(proof)
    check(os.uname().release in text, f"not this host's kernel: {proof}")
    inside = box.sh("uname -r").ok().text.strip()
    check(inside in text, f"not the guest's kernel {inside}: {proof}")
    equal(box.run("verify", "tiny").code, 0)
