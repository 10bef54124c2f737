"""Never torn: whatever ends a machine or its host, and whenever, what the guest had synced is there.

A witness (torn.c) writes to /data, syncs, and tells each step that it has synced. Later it says from
the number of the last step that was told what must be there, to the last byte.

A power cut of the host is made with three file systems in one another:

    a folder of this host > outer: XFS in a file > disk: one file in it > ext4 on that, with BOX_HOME

Cloning the file "disk" (FICLONE, one instant) keeps what had reached that disk and loses what was
only in the host's page cache, as a power cut does. Each clone is mounted afterwards: its ext4 goes
through its journal as after a cut, and box starts on the BOX_HOME in it.
"""

import concurrent.futures
import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import time

from lib import (MIB, TINY, Box, Failed, check, contains, copy_home, equal, need_root, skip, test,
                 wait_until)

# What the aim asks for; each is one clone at a random instant, and one start on it.
POWER_CUTS = 208
CUTS_OF_A_RUN = 16
# kill -9 of each of these in turn, with a machine each.
VICTIMS = ("monitor", "keeper", "box")
KILLS = 24
FULL_DISKS = 6
# One start in so many checks the file system with e2fsck as well, which takes as long as the rest.
FSCK_EVERY = 8
CUTS_OF_A_COMMAND = 6

FICLONE = 0x40049409
HERE = os.path.dirname(os.path.abspath(__file__))

# The file system of /data is looked at before anything else could mend it, and after its journal
# was gone through. e2fsck comes with its libraries: it works on the guest's kernel, and so does not
# ask how the host keeps the disk.
#
# A guest whose disk gave errors has noted in its file system that it wants to be checked, and says
# so with every mount. With "noted" nothing but that note may be wrong, and it is taken away.
CHECK = r"""
/data/torn check /data/witness "$1" || exit 1
noted='error recorded from previous mount|in need of filesystem check|mounting fs with errors'
[ "$2" = noted ] || noted='^$'
dmesg | grep -E 'EXT4-fs (error|warning)|EXT4-fs.*(corrupt|abort)|JBD2: .*(rror|abort)|I/O error' |
	grep -vE "$noted" && exit 2
[ "$2" ] || exit 0
disk=$(awk '$2 == "/data" { print $1 }' /proc/mounts)
e2fsck='/tmp/fsck/loader --library-path /tmp/fsck /tmp/fsck/e2fsck'
cp -r /data/fsck /tmp/fsck && cd /tmp && umount /data || exit 3
# Where an error was recorded the kernel forgets which files were being truncated, and their blocks stay
# behind. That is for e2fsck, which must need nobody for it.
if [ "$2" = noted ] && dmesg | grep -q 'clearing orphan list'; then
	$e2fsck -fp "$disk" >/tmp/said 2>&1
	[ $? -le 1 ] || { cat /tmp/said; exit 5; }
fi
$e2fsck -fn "$disk" >/tmp/said 2>&1
code=$?
grep -E 'Fix\?|Clear\?|orphan|WARNING|\? no' /tmp/said && code=4
[ $code = 0 ] || cat /tmp/said
[ $code = 0 ] && [ "$2" = noted ] && $e2fsck -fp "$disk" >/tmp/said 2>&1
mount "$disk" /data
exit $code
"""


def run_tool(*command, **options):
    return subprocess.run(command, capture_output=True, check=True, text=True, **options)


def mount(*arguments):
    """Mounts, or skips the test where that cannot be."""
    result = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        skip(f"no file system can be mounted here: {result.stderr.strip()}")


def unmount(folder):
    """A test that fails may have left something in it; that is told, not that it is in use."""
    for _ in range(50):
        if subprocess.run(["umount", folder], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    run_tool("umount", "--lazy", folder)


class Disk:
    """The disk of a host, and its clones."""

    def __init__(self, folder):
        self.folder = folder
        self.outer, self.inner = os.path.join(folder, "outer"), os.path.join(folder, "inner")
        self.file = os.path.join(self.outer, "disk")
        self.count = 0

    @contextlib.contextmanager
    def mounted(self, size):
        """With a new ext4 of size bytes at self.inner."""
        need_root()
        if not shutil.which("mkfs.xfs"):
            skip("mkfs.xfs is missing (package xfsprogs)")
        os.makedirs(self.outer)
        os.makedirs(self.inner)
        image = os.path.join(self.folder, "image")
        with open(image, "wb") as file:
            file.truncate(16 << 30)
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            run_tool("mkfs.xfs", "-q", image)
            # What clones no longer need leaves the file, so that it stays small.
            mount("-o", "loop,discard", image, self.outer)
            stack.callback(unmount, self.outer)
            with open(self.file, "wb") as file:
                file.truncate(size)
            run_tool("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", self.file)
            mount("-o", "loop", self.file, self.inner)
            stack.callback(unmount, self.inner)
            yield self

    def cut(self):
        """The disk as it is at this instant. Returns the number of the clone."""
        self.count += 1
        with open(self.file, "rb") as source, \
                open(os.path.join(self.outer, f"cut-{self.count}"), "wb") as target:
            fcntl.ioctl(target, FICLONE, source.fileno())
        return self.count

    @contextlib.contextmanager
    def after(self, number):
        """A Box on the home in a clone, after the host has started again. The clone is gone then."""
        path, folder = os.path.join(self.outer, f"cut-{number}"), f"{self.folder}/at-{number}"
        os.mkdir(folder)
        mount("-o", "loop", path, folder)
        try:
            yield Box(os.path.join(folder, "home"))
        finally:
            unmount(folder)
            os.rmdir(folder)
            os.unlink(path)

    def look_all(self, cuts, look_at):
        """Calls look_at(box, *rest) for every cut (number, *rest), two at once."""
        def look_after(cut):
            with self.after(cut[0]) as box:
                look_at(box, *cut[1:])
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for ended in [pool.submit(look_after, cut) for cut in cuts]:
                ended.result()


# ---- the witness ----

def make_witness(folder):
    """Compiles torn.c; e2fsck with its loader and libraries goes along. Returns a tar archive."""
    os.makedirs(os.path.join(folder, "fsck"))
    run_tool("cc", "-static", "-O2", "-o", os.path.join(folder, "torn"), os.path.join(HERE, "torn.c"))
    program = shutil.which("e2fsck", path=os.environ["PATH"] + ":/sbin:/usr/sbin")
    shutil.copy(program, os.path.join(folder, "fsck"))
    for library in re.findall(r"(/\S+) \(0x", run_tool("ldd", program).stdout):
        name = "loader" if "ld-linux" in library else os.path.basename(library)
        shutil.copy(os.path.realpath(library), os.path.join(folder, "fsck", name))
    return subprocess.run(["tar", "-C", folder, "-cf", "-", "torn", "fsck"], check=True,
                          capture_output=True).stdout


def give_witness(box):
    archive = make_witness(box.home + ".witness")
    box.run("run", "-i", "tiny", "--", "tar", "-C", "/data", "-xf", "-", input=archive).ok()
    shutil.rmtree(box.home + ".witness")


class Writer:
    """The witness writing in a machine, and the last step that it has told."""

    def __init__(self, box, told):
        self.told = told
        self.running = box.start("run", "tiny", "--", "/data/torn", "write", "/data/witness", told)
        self.part, self.failure = b"", ""
        os.set_blocking(self.running.process.stdout.fileno(), False)

    def take(self, data):
        *lines, self.part = (self.part + data).split(b"\n")
        for line in lines:
            if line.startswith(b"torn: "):
                self.failure = line.decode()
                continue
            word = line.removeprefix(b"checked ")
            check(word.isdigit(), line)
            self.told = max(self.told, int(word))

    def read(self):
        """Takes what has been told up to now; returns the last step."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.running.process.stdout.fileno(), 65536):
                self.take(data)
        return self.told

    def begins(self):
        """Waits until it has looked and goes on."""
        before = self.told
        wait_until("a step", lambda: self.read() > before or self.ended(), 60)
        if self.told <= before:
            raise Failed(f"the writer ended before its first step: {self.running.wait()}")

    def ended(self):
        return self.running.process.poll() is not None

    def end(self):
        """Waits for box to end. Returns its result; all that was told is taken."""
        os.set_blocking(self.running.process.stdout.fileno(), True)
        result = self.running.wait(60)
        self.take(result.out)
        return result


def look(box, told, how=""):
    """Starts on a home after a crash: everything up to step told is there, and it is clean. how:
    "fsck" asks e2fsck as well, "noted" is for a disk that gave errors."""
    result = box.run("run", "tiny", "--", "sh", "-c", CHECK, "check", told, how)
    check(result.code == 0, f"after step {told}:", result)
    contains(result.text, re.compile(r"^checked \d+$", re.M))


def kill(box, victim, writer):
    pid = writer.running.pid if victim == "box" else getattr(box, victim)().pid
    os.kill(pid, signal.SIGKILL)


def end_run(box, writer, how):
    if how == "box down":
        writer.running.signal(signal.SIGTERM)
    elif not writer.ended():
        kill(box, how, writer)


# ---- the tests ----

def cuts_of_a_run(disk, box, told, how):
    """One machine that writes, with cuts from its start until after its end."""
    life = random.uniform(2.5, 4.5)
    instants = sorted(random.uniform(0, life + 0.7) for _ in range(CUTS_OF_A_RUN))
    began, cuts, ending = time.monotonic(), [], False
    writer = Writer(box, told)
    for instant in instants:
        if instant > life and not ending:
            end_run(box, writer, how)
            ending = True
        time.sleep(max(0, began + instant - time.monotonic()))
        told = writer.read()
        cuts.append((disk.cut(), told))
    if not ending:
        end_run(box, writer, how)
    writer.end()
    return writer.told, cuts


@test(home="copy", timeout=1800)
def power_is_cut_at_any_instant(box):
    disk = Disk(os.path.join(box.temporary, "disk"))
    with disk.mounted(2 << 30):
        copy_home(box.home, os.path.join(disk.inner, "home"))
        inside = Box(os.path.join(disk.inner, "home"))
        give_witness(inside)
        # The witness itself, and all that was there before it.
        os.sync()
        told, ways = 0, ("box down", *VICTIMS)
        for turn in range(POWER_CUTS // CUTS_OF_A_RUN):
            told, cuts = cuts_of_a_run(disk, inside, told, ways[turn % len(ways)])
            disk.look_all([(number, at, "" if number % FSCK_EVERY else "fsck") for number, at in cuts], look)
            inside.clean(10)
        check(disk.count >= 200 and told > disk.count, disk.count, told)


@test(home="copy", timeout=600)
def any_process_is_killed_at_any_instant(box):
    give_witness(box)
    told = 0
    for turn in range(KILLS):
        victim = VICTIMS[turn % len(VICTIMS)]
        writer = Writer(box, told)
        # Every third one before it has begun: while it is restored or mounts.
        if turn % 9 < 6:
            writer.begins()
        else:
            wait_until("the machine", box.machines)
        time.sleep(random.uniform(0, 0.7))
        kill(box, victim, writer)
        result = writer.end()
        check(result.code == (-signal.SIGKILL if victim == "box" else 125), victim, result)
        told = writer.told
        box.clean(10)
        if turn % FSCK_EVERY == 0:
            look(box, told, "fsck")
    look(box, told, "fsck")
    check(told > KILLS, told)


def fill(path, leave):
    """Takes all room of a file system but leave bytes."""
    with open(path, "wb") as file:
        size = 0
        for step in (MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
        file.truncate(max(0, size - leave))


@test(home="copy", timeout=600)
def the_disk_of_the_host_is_full_at_any_instant(box):
    disk = Disk(os.path.join(box.temporary, "disk"))
    with disk.mounted(1 << 30):
        copy_home(box.home, os.path.join(disk.inner, "home"))
        inside = Box(os.path.join(disk.inner, "home"))
        give_witness(inside)
        told, filler = 0, os.path.join(disk.inner, "filler")
        for turn in range(FULL_DISKS):
            writer = Writer(inside, told)
            writer.begins()
            fill(filler, random.randrange(0, 3 * MIB))
            wait_until("the end of a writer whose host is full", writer.ended, 60)
            result = writer.end()
            told = writer.told
            check(result.code in (1, 125), result)
            # Without a journal that can be written, the kernel makes the file system read-only.
            contains(writer.failure, re.compile("Input/output error|Read-only file system"), result)
            os.unlink(filler)
            inside.clean(10)
            look(inside, told, "noted")
        look(inside, told, "fsck")


# ---- the commands that change all of /data ----

# What is in /data, in one line.
STATE = "cd /data && find . -path ./lost+found -prune -o -type f -print0 | sort -z | xargs -0 -r md5sum"


def state(box):
    return box.sh(STATE).ok().text


def make_source(folder):
    os.mkdir(folder)
    for number in range(20):
        with open(os.path.join(folder, f"file-{number}"), "wb") as file:
            file.write(os.urandom(number * 9000))
    return folder


def archives(box):
    return {each["label"]: each for each in box.run("snapshot", "-l", "--json", "tiny").ok().json()}


def cuts_during(disk, box, *arguments):
    """Cuts power at random instants of a command, and once when it has just returned. Returns
    [(number of the clone, whether the command had returned)]."""
    cuts = []
    running = box.start(*arguments)
    # About as long as the commands take, so that some cuts come after.
    for instant in sorted(random.uniform(0.1, 2.0) for _ in range(CUTS_OF_A_COMMAND)):
        time.sleep(max(0, running.began + instant - time.monotonic()))
        done = running.process.poll() is not None
        cuts.append((disk.cut(), done))
    running.wait().ok()
    return cuts + [(disk.cut(), True)]


def look_at_change(box, done, before, after, undo=False):
    """/data is what it was or what it was to become; the latter once the command had returned, and
    then the newest automatic archive is what it was."""
    found = state(box)
    check(found == after or (found == before and not done), f"done: {done}; found:", found,
          "before:", before, "after:", after)
    if done and undo:
        automatic = [label for label, each in archives(box).items() if each["automatic"]]
        box.run("restore", "-y", "tiny", automatic[-1]).ok()
        equal(state(box), before, automatic)
    left = [name for name in os.listdir(box.path("sandboxes/tiny/data")) if name[0] == "."]
    check(not left or not done, "drafts are left", left)


def look_at_archive(box, done, label):
    """The archive is there and whole, or it is not there."""
    found = archives(box)
    check(label in found or not done, f"done: {done}", found)
    if label in found:
        path = box.path("sandboxes/tiny/archive", label + ".tar.zst")
        run_tool("tar", "--zstd", "-tf", path)


@test(home="copy", timeout=900)
def power_is_cut_while_data_is_replaced(box):
    disk = Disk(os.path.join(box.temporary, "disk"))
    source = make_source(box.home + ".source")
    with disk.mounted(2 << 30):
        copy_home(box.home, os.path.join(disk.inner, "home"))
        inside = Box(os.path.join(disk.inner, "home"))
        os.sync()
        # What a command has written, and nobody has synced, is there once box has returned.
        inside.sh("echo kept >/data/kept").ok()
        kept = state(inside)
        cuts = [(disk.cut(), True, "", kept)]
        inside.run("data", "import", "tiny", source).ok()
        full = state(inside)
        check(len(full.splitlines()) == 21, full)
        cuts.append((disk.cut(), True, kept, full))
        disk.look_all([(*each, "one") for each in cuts_during(disk, inside, "snapshot", "tiny", "one")],
                      look_at_archive)
        made = cuts_during(disk, inside, "reset", "-y", "tiny")
        cuts += [(*each, full, "", True) for each in made]
        made = cuts_during(disk, inside, "restore", "-y", "tiny", "one")
        cuts += [(*each, "", full, True) for each in made]
        inside.sh("rm -r /data/file*").ok()
        undo = [label for label, each in archives(inside).items() if each["automatic"]]
        made = cuts_during(disk, inside, "restore", "-y", "tiny", undo[-1])
        cuts += [(*each, kept, "", True) for each in made]
        inside.write_boxfile("tiny", TINY.replace("data_size: 64M", "data_size: 256M"))
        # As an editor does. Else the disk may be larger after a cut than its Boxfile says.
        os.sync()
        made = cuts_during(disk, inside, "run", "tiny", "--", "sh", "-c", "echo kept >/data/kept")
        cuts += [(*each, "", kept) for each in made]
        disk.look_all(cuts, look_at_change)
        inside.clean(10)
    shutil.rmtree(source)


@test(home="copy", timeout=900)
def a_full_host_stops_each_command_and_loses_nothing(box):
    disk = Disk(os.path.join(box.temporary, "disk"))
    with disk.mounted(1 << 30):
        copy_home(box.home, os.path.join(disk.inner, "home"))
        inside = Box(os.path.join(disk.inner, "home"))
        source, filler = os.path.join(disk.inner, "source"), os.path.join(disk.inner, "filler")
        os.mkdir(source)
        with open(os.path.join(source, "large"), "wb") as file:
            file.write(os.urandom(20 * MIB))
        inside.run("data", "import", "tiny", source).ok()
        inside.run("snapshot", "tiny", "one").ok()
        before, left = state(inside), sorted(inside.tree())
        full = "No space left|cannot be written to the disk|Input/output error"
        for words in (("snapshot", "tiny", "two"), ("restore", "-y", "tiny", "one"),
                      ("data", "export", "tiny", os.path.join(disk.inner, "out"))):
            fill(filler, 6 * MIB)
            result = inside.run(*words)
            os.unlink(filler)
            result.fails(re.compile(full))
            shutil.rmtree(os.path.join(disk.inner, "out"), ignore_errors=True)
            equal(state(inside), before, words)
            # What had begun is swept by the next one at the latest.
            inside.run("snapshot", "-l", "tiny").ok()
            equal(sorted(inside.tree()), left, words)
        # What was there is not lost by what did not fit beside it.
        with open(os.path.join(source, "another"), "wb") as file:
            file.write(os.urandom(30 * MIB))
        fill(filler, 6 * MIB)
        result = inside.run("data", "import", "tiny", source)
        os.unlink(filler)
        result.fails(re.compile(full))
        check(before.splitlines()[0] in state(inside), "what was imported before is lost")
        inside.run("restore", "-y", "tiny", "one").ok()
        equal(state(inside), before)
        inside.clean(10)
