"""`make install`, `make uninstall` and `make demo`, as a person types them."""

import os
import re
import shutil
import subprocess

from lib import BOX, TINY, TOP, Box, check, contains, equal, test

# The tests of other workers use build/ meanwhile: nothing here writes to it.


def make(folder, *arguments, timeout=120, umask=-1):
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("BOX_", "MAKE", "MFLAGS"))}
    return subprocess.run(["make", "-C", folder, *arguments], env=environment, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=timeout, umask=umask)


def paths_below(folder):
    found = set()
    for parent, folders, names in os.walk(folder):
        found |= {os.path.relpath(os.path.join(parent, name), folder) for name in folders + names}
    return found


def check_modes(folder, names):
    for name in names:
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        check(mode & 0o022 == 0 or os.path.islink(path), f"others may write to {name}:", oct(mode))
        check(mode & 0o444 == 0o444, f"not everyone may read {name}:", oct(mode))


@test(home="empty", timeout=400)
def install_and_uninstall(box):
    target = box.temporary + "/target"
    os.makedirs(target + "/usr/bin")
    for name in ("usr/bin/foreign", "usr/own"):
        with open(os.path.join(target, name), "w", encoding="utf-8") as file:
            file.write("not of box\n")
    before = paths_below(target)
    arguments = ("PREFIX=/usr", f"DESTDIR={target}")
    result = make(TOP, "install", *arguments)
    equal(result.returncode, 0, result.stdout)
    put = paths_below(target) - before
    check("usr/bin/box" in put, sorted(put)[:20])
    check({"usr/share/man/man1/box.1", "usr/lib/box/kernel/vmlinuz"} <= put, "not everything")
    check_modes(target, put)

    # It runs from there, and needs nothing of the checkout.
    installed = Box(box.home, target + "/usr/bin/box")
    installed.make("tiny", TINY)
    installed.run("build", "tiny", timeout=300).ok()
    equal(installed.sh("echo installed").ok().out, b"installed\n")

    # A second time changes nothing of what belongs to it, under any umask.
    for umask in (0o077, 0):
        equal(make(TOP, "install", *arguments, umask=umask).returncode, 0)
        equal(paths_below(target) - before, put, "after a second install")
        check_modes(target, put)

    # What others have put among it stays, and so does the folder that it is in.
    foreign = os.path.join(target, "usr/lib/box/foreign")
    with open(foreign, "w", encoding="utf-8") as file:
        file.write("not of box\n")
    result = make(TOP, "uninstall", *arguments)
    equal(result.returncode, 0, result.stdout)
    equal(paths_below(target), before | {"usr/lib", "usr/lib/box", "usr/lib/box/foreign"})
    result = make(TOP, "uninstall", *arguments)
    check(result.returncode != 0, "nothing was there to remove")
    contains(result.stdout, "nothing of box is installed")
    shutil.rmtree(target)


@test(home="empty", timeout=120)
def a_new_prefix_goes_away_again(box):
    target = box.temporary + "/target"
    os.makedirs(target)
    arguments = ("PREFIX=/opt/some/box", f"DESTDIR={target}")
    equal(make(TOP, "install", *arguments).returncode, 0)
    result = subprocess.run([target + "/opt/some/box/bin/box", "--version"], capture_output=True)
    equal(result.returncode, 0, result.stderr)
    equal(make(TOP, "uninstall", *arguments).returncode, 0)
    equal(paths_below(target), set())
    result = make(TOP, "install", "PREFIX=relative", f"DESTDIR={target}")
    check(result.returncode != 0, result.stdout)
    contains(result.stdout, "PREFIX must be absolute")
    shutil.rmtree(target)


@test(home="empty", timeout=300)
def demo_shows_real_work_and_its_times(box):
    copy = box.temporary + "/checkout"
    os.mkdir(copy)
    skipped = {".git", "demo-home"}
    skipped |= {name for name in os.listdir(TOP) if name.startswith("build-")}
    # With its build, so that only what is older than its sources is made again.
    subprocess.run(["tar", "-C", TOP, "-cf", copy + ".tar",
                    *[f"--exclude=./{name}" for name in skipped], "--exclude=./build/demo-home",
                    "."], check=True)
    subprocess.run(["tar", "-C", copy, "-xf", copy + ".tar"], check=True)
    os.unlink(copy + ".tar")
    result = make(copy, "demo", timeout=250)
    equal(result.returncode, 0, result.stdout)
    contains(result.stdout, re.compile(r"^hello from demo, kernel \d\S* ?, \d+ processors$", re.M))
    contains(result.stdout, re.compile(r"^\$ box run demo -- cat /data/note *\nkept for the next run$",
                                       re.M))
    times = re.findall(r"^ +\d+\.\d\d s   box (new|build|run) demo$", result.stdout, re.M)
    times += re.findall(r"^ +\d+\.\d\d s   box (new|build|run)$", result.stdout, re.M)
    equal(times, ["new", "build", "run", "run"], result.stdout)
    shutil.rmtree(copy)
    check(os.path.exists(BOX), "the tested box is still there")
