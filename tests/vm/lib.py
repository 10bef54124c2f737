"""What the tests with real machines stand on.

A test is a function with @test. It runs in a process of its own, which is made the parent of every
orphan below it, so that whatever a test starts stays findable: when the test has ended, nothing may
be left below that process, and nothing of BOX_HOME/run, no socket, lock, mount or temporary file.

A test gets a Box: a BOX_HOME and ways to run box in it. Which home it gets is in its mark:

    shared   a home that holds the sandbox "tiny", built once; other tests of the same worker use it
             before and after, so leave it as it was
    copy     a copy of that home, thrown away afterwards
    empty    an empty home
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BOX = os.environ.get("BOX", os.path.join(TOP, "build/root/usr/local/bin/box"))
PREFIX = os.path.dirname(os.path.dirname(os.path.realpath(BOX)))

# A first boot in software emulation on a busy machine takes this long at the very worst.
TIMEOUT = 180
MIB = 1 << 20

TINY = """\
base: tiny
cpus: 1
ram_mib: 256
disk_size: 512M
data_size: 64M
"""


class Failed(AssertionError):
    pass


class Skipped(Exception):
    pass


TESTS = []


def test(home="shared", timeout=300, alone=False, long=False):
    """Marks a test. alone: nothing else runs meanwhile. long: takes minutes."""
    def mark(function):
        module = os.path.basename(function.__code__.co_filename)[:-3]
        function.name = f"{module}.{function.__name__}"
        function.home, function.timeout = home, timeout
        function.alone, function.long = alone, long
        TESTS.append(function)
        return function
    return mark


def skip(reason):
    raise Skipped(reason)


def need_root():
    if os.getuid() != 0:
        skip("needs root")


def short(data, limit=1500):
    if isinstance(data, bytes):
        data = data.decode("utf-8", "backslashreplace")
    data = str(data)
    return data if len(data) <= limit else data[:limit // 2] + "\n[…]\n" + data[-limit // 2:]


def check(condition, *said):
    if not condition:
        raise Failed(" ".join(short(each) for each in said) or "condition does not hold")


def equal(got, wanted, *said):
    if got != wanted:
        about = " ".join(short(each) for each in said)
        raise Failed(f"{about}: got {short(repr(got))}, wanted {short(repr(wanted))}")


def contains(text, wanted, *said):
    """wanted: a string, or a compiled pattern."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    found = wanted.search(text) if hasattr(wanted, "search") else wanted in text
    if not found:
        raise Failed(f"{' '.join(map(short, said))}: {wanted!r} is not in:\n{short(text)}")


def wait_until(what, function, timeout=10.0):
    """Calls function until it returns something true, and returns that."""
    end = time.monotonic() + timeout
    while True:
        found = function()
        if found:
            return found
        if time.monotonic() > end:
            raise Failed(f"waited {timeout} s in vain: {what}")
        time.sleep(0.02)


@contextlib.contextmanager
def meanwhile(function, pause):
    """Calls function over and over, with a pause of so many seconds."""
    over = threading.Event()

    def work():
        while not over.wait(pause):
            function()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def add_peaks(peaks):
    """Notes the most memory, in bytes, that each of box's programs has had, by the program's name."""
    for each in descendants(os.getpid()):
        if each.name == "box" or each.name.startswith("box-"):
            # It may just be ending.
            with contextlib.suppress(OSError):
                peaks[each.name] = max(peaks.get(each.name, 0), each.status("VmHWM") or 0)


class Result:
    def __init__(self, arguments, code, out, err, seconds):
        self.arguments, self.code, self.out, self.err = arguments, code, out, err
        self.seconds = seconds

    def __str__(self):
        return f"box {' '.join(map(str, self.arguments))}\n  code {self.code}, " \
            f"{self.seconds:.2f} s\n  stdout: {short(self.out)!r}\n  stderr: {short(self.err)}"

    def ok(self):
        return self.exits(0)

    def exits(self, code):
        if self.code != code:
            raise Failed(f"exit code {self.code}, wanted {code}:\n{self}")
        return self

    def fails(self, *wanted):
        """box itself failed: 125, a line `box: what: why`, and below it what to do."""
        self.exits(125)
        text = self.err.decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.strip()]
        errors = [index for index, line in enumerate(lines) if line.startswith("box: ")]
        check(errors, f"no line begins with 'box: ':\n{self}")
        check(len(lines) > errors[-1] + 1, f"no line says what to do:\n{self}")
        for each in wanted:
            contains(text, each, f"{self}\n")
        return self

    @property
    def text(self):
        return self.out.decode("utf-8", "backslashreplace")

    @property
    def error(self):
        return self.err.decode("utf-8", "backslashreplace")

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise Failed(f"stdout is not JSON ({error}):\n{self}") from None


class Running:
    """A box that was started and not yet waited for."""

    def __init__(self, arguments, process):
        self.arguments, self.process = arguments, process
        self.began = time.monotonic()
        self.seen = {1: b"", 2: b""}

    @property
    def pid(self):
        return self.process.pid

    def read_until(self, wanted, stream=1, timeout=60):
        """Reads one stream until wanted is in it; returns all that was read from it so far."""
        file = self.process.stdout if stream == 1 else self.process.stderr
        end = time.monotonic() + timeout
        while wanted not in self.seen[stream]:
            ready, _, _ = select.select([file], [], [], max(0, end - time.monotonic()))
            data = os.read(file.fileno(), 65536) if ready else b""
            if not data:
                raise Failed(f"{wanted!r} did not come on stream {stream} of "
                             f"{self.arguments}: {short(self.seen)}")
            self.seen[stream] += data
        return self.seen[stream]

    def signal(self, number):
        self.process.send_signal(number)

    def overdue(self, timeout):
        """Ends it and says what it had said so far."""
        tree = "\n".join(map(str, descendants(os.getpid())))
        self.process.kill()
        try:
            out, err = self.process.communicate(timeout=3)
        except subprocess.TimeoutExpired as late:
            # Something below it keeps the streams open.
            out, err = late.output, late.stderr
        return Failed(f"box {self.arguments} did not end in {timeout} s\n{tree}\n"
                      f"stdout: {short(out)}\nstderr: {short(err)}")

    def wait(self, timeout=TIMEOUT):
        """Reads what is left and waits. A box killed by signal n has the code -n."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise self.overdue(timeout) from None
        return Result(self.arguments, self.process.returncode, self.seen[1] + (out or b""),
                      self.seen[2] + (err or b""), time.monotonic() - self.began)


class Terminal:
    """A box that runs on a terminal of its own."""

    def __init__(self, arguments, environment, rows, columns, cwd=None):
        self.arguments = arguments
        self.seen = b""
        self.began = time.monotonic()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                # Python ignores it, and what is ignored stays so in what is executed.
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                if cwd:
                    os.chdir(cwd)
                os.execve(arguments[0], arguments, environment)
            finally:
                os._exit(99)

    def other_side(self):
        """A descriptor of the side that box has; it keeps the pair alive."""
        number, = struct.unpack("I", fcntl.ioctl(self.fd, 0x80045430, b"\0" * 4))  # TIOCGPTN
        return os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, data):
        os.write(self.fd, data)

    def _read(self, timeout):
        ready, _, _ = select.select([self.fd], [], [], timeout)
        if not ready:
            return None
        try:
            return os.read(self.fd, 65536)
        except OSError as error:
            if error.errno == errno.EIO:
                return b""
            raise

    def expect(self, wanted, timeout=60):
        """Reads until wanted (bytes, or a compiled pattern) has come; returns all so far."""
        end = time.monotonic() + timeout
        found = wanted.search if hasattr(wanted, "search") else lambda seen: wanted in seen
        while not found(self.seen):
            data = self._read(max(0, end - time.monotonic()))
            if not data:
                raise Failed(f"{wanted!r} did not come on the terminal of {self.arguments[1:]}: "
                             f"{short(self.seen)}")
            self.seen += data
        return self.seen

    def wait(self, timeout=60):
        """Returns (exit code, everything that came)."""
        end = time.monotonic() + timeout
        while True:
            data = self._read(max(0, end - time.monotonic()))
            if data is None:
                self.kill()
                raise Failed(f"{self.arguments[1:]} did not end in {timeout} s: {short(self.seen)}")
            if not data:
                break
            self.seen += data
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status), self.seen

    def hang_up(self):
        """Closes the terminal, as a window does, and waits. Returns the exit code."""
        os.close(self.fd)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        self.kill()
        raise Failed(f"{self.arguments[1:]} lives on after its terminal is gone")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Process:
    def __init__(self, pid, parent, state, name):
        self.pid, self.parent, self.state, self.name = pid, parent, state, name

    def __str__(self):
        try:
            with open(f"/proc/{self.pid}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            line = ""
        return f"{self.pid} (child of {self.parent}) {self.state} {self.name}: {short(line, 200)}"

    def status(self, field):
        """A field of /proc/PID/status in bytes when it is one in kB."""
        with open(f"/proc/{self.pid}/status", encoding="utf-8") as file:
            for line in file:
                if line.startswith(field + ":"):
                    value = line.split(":", 1)[1].strip()
                    return int(value[:-3]) * 1024 if value.endswith(" kB") else value
        return None


def processes():
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                data = file.read()
        except OSError:
            continue
        opening, closing = data.index(b"("), data.rindex(b")")
        rest = data[closing + 2:].split()
        found[int(name)] = Process(int(name), int(rest[1]), rest[0].decode(),
                                   data[opening + 1:closing].decode("utf-8", "replace"))
    return found


def descendants(pid):
    """Every live process below pid, nearest first."""
    everything = processes()
    found, level = [], [pid]
    while level:
        level = [each.pid for each in everything.values() if each.parent in level]
        found += [everything[each] for each in level]
    return [each for each in found if each.state not in "ZX"]


def cgroups_of(pids):
    """The control groups that box made for machines of these keepers or monitors."""
    pattern = re.compile(r"box-(\d+)-[0-9a-f]+(\.scope)?$")
    return [os.path.join(folder, name) for folder, folders, _ in os.walk("/sys/fs/cgroup")
            for name in folders
            if pattern.match(name) and int(pattern.match(name).group(1)) in pids]


@contextlib.contextmanager
def open_pipe():
    """A pipe for standard input that nobody writes to and that does not end."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)


def adopt_orphans():
    """Makes this process the parent of every orphan below it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(36, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class Box:
    """A BOX_HOME, and box in it."""

    def __init__(self, home, binary=BOX):
        self.home = home
        self.binary = binary
        self.temporary = home + ".tmp"
        os.makedirs(self.temporary, exist_ok=True)
        self.environment = {
            key: value for key, value in os.environ.items()
            if not key.startswith("BOX_") and key not in ("NO_COLOR", "VISUAL", "EDITOR", "BOX")}
        for key in ("BOX_ENGINE", "BOX_MIRROR", "BOX_KERNEL", "BOX_MODULES"):
            if key in os.environ:
                self.environment[key] = os.environ[key]
        self.environment.update(BOX_HOME=home, TMPDIR=self.temporary, LC_ALL="C.UTF-8")
        self.user = None

    def environ(self, extra=None):
        environment = dict(self.environment)
        for key, value in (extra or {}).items():
            if value is None:
                environment.pop(key, None)
            else:
                environment[key] = value
        return environment

    def start(self, *arguments, stdin=subprocess.DEVNULL, env=None, cwd=None, **options):
        arguments = [str(each) if not isinstance(each, bytes) else each for each in arguments]
        if self.user:
            options.update(user=self.user.pw_uid, group=self.user.pw_gid, extra_groups=[])
        process = subprocess.Popen(
            [self.binary, *arguments], stdin=stdin,
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE), env=self.environ(env), cwd=cwd,
            **options)
        return Running(arguments, process)

    def run(self, *arguments, input=None, timeout=TIMEOUT, **options):
        """Runs box to its end. input: bytes for stdin; without it stdin is empty."""
        if input is None:
            return self.start(*arguments, **options).wait(timeout)
        running = self.start(*arguments, stdin=subprocess.PIPE, **options)
        try:
            out, err = running.process.communicate(input, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise running.overdue(timeout) from None
        return Result(arguments, running.process.returncode, out, err,
                      time.monotonic() - running.began)

    def terminal(self, *arguments, rows=24, columns=80, env=None, cwd=None):
        environment = self.environ({"TERM": "xterm", **(env or {})})
        return Terminal([self.binary, *arguments], environment, rows, columns, cwd)

    def sh(self, script, *options, name="tiny", **rest):
        """box run OPTIONS NAME -- sh -c SCRIPT"""
        return self.run("run", *options, name, "--", "sh", "-c", script, **rest)

    def start_sh(self, script, *options, name="tiny", **rest):
        return self.start("run", *options, name, "--", "sh", "-c", script, **rest)

    @contextlib.contextmanager
    def up(self, *options, name="tiny", **rest):
        """A machine that is up for the length of a with block, and gone after it in any case."""
        result = self.run("up", *options, name, **rest).ok()
        try:
            yield result
        except BaseException:
            # What the test has found is told, not that the machine did not end well either.
            with contextlib.suppress(Failed):
                self.run("down", name, timeout=40)
            raise
        self.run("down", name, timeout=60).ok()

    def exec(self, script, *options, name="tiny", **rest):
        """box exec OPTIONS NAME -- sh -c SCRIPT"""
        return self.run("exec", *options, name, "--", "sh", "-c", script, **rest)

    def start_exec(self, script, *options, name="tiny", **rest):
        return self.start("exec", *options, name, "--", "sh", "-c", script, **rest)

    def ps(self, name="tiny"):
        """What runs in the machine that is up, as `box ps --json` has it."""
        return self.run("ps", "--json", name, timeout=20).ok().json()

    def row(self, name="tiny"):
        """The sandbox as `box ls --json` has it."""
        return next(each for each in self.run("ls", "--json", timeout=20).ok().json()
                    if each["name"] == name)

    def path(self, *parts):
        return os.path.join(self.home, *parts)

    def make(self, name, boxfile=TINY):
        """A sandbox with this Boxfile, not yet built."""
        self.run("new", name, timeout=30).ok()
        self.write_boxfile(name, boxfile)

    def write_boxfile(self, name, boxfile):
        path = self.path("sandboxes", name, "Boxfile")
        with open(path, "w", encoding="utf-8") as file:
            file.write(boxfile)

    def machines(self):
        """The keepers and monitors below this test."""
        found = descendants(os.getpid())
        return [each for each in found if each.name.startswith(("box-keeper", "qemu-system"))]

    def keeper(self):
        return self._one("box-keeper")

    def monitor(self):
        """The monitor itself: of QEMU processes the one that no other QEMU process is below."""
        return self._one("qemu-system")

    def _one(self, name):
        def find():
            found = [each for each in descendants(os.getpid()) if each.name.startswith(name)]
            return found[-1] if found else None
        return wait_until(f"a process {name}", find, 30)

    def tree(self):
        """Every path in the home that a run must leave as it was."""
        found = set()
        for folder, folders, names in os.walk(self.home):
            relative = os.path.relpath(folder, self.home)
            if relative == ".":
                folders[:] = [each for each in folders if each not in ("log", "cache")]
            for name in folders + names:
                found.add(os.path.normpath(os.path.join(relative, name)))
        return found

    def leftovers(self):
        """What is left of machines, one line each; empty when all is gone."""
        found = [f"process {each}" for each in descendants(os.getpid())]
        run = self.path("run")
        for folder, _, names in os.walk(run):
            found += [f"file {os.path.join(folder, name)}" for name in names]
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            found += [f"socket {line.split()[-1]}" for line in file if self.home + "/" in line]
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            found += [f"mount {line.split()[4]}" for line in file if self.home in line]
        found += [f"temporary file {name}" for name in os.listdir(self.temporary)]
        files = {}
        for folder, _, names in os.walk(self.home):
            for name in names:
                with contextlib.suppress(OSError):
                    status = os.stat(os.path.join(folder, name))
                    files.setdefault(status.st_ino, (status.st_dev, os.path.join(folder, name)))
        with open("/proc/locks", encoding="utf-8") as file:
            for line in file:
                match = re.search(r" ([0-9a-f]+):([0-9a-f]+):(\d+) ", line)
                if not match or int(match.group(3)) not in files:
                    continue
                device, path = files[int(match.group(3))]
                # Some file systems tell another device of theirs here, and all of those have major
                # number 0. Other file systems on this host have files of the same numbers.
                if int(match.group(1), 16) == 0 or \
                        device == os.makedev(int(match.group(1), 16), int(match.group(2), 16)):
                    found.append(f"lock {path}")
        return found

    def clean(self, timeout=5.0):
        """Nothing is left; what is on its way out has timeout seconds for it."""
        end = time.monotonic() + timeout
        while True:
            found = self.leftovers()
            if not found:
                return
            if time.monotonic() > end:
                raise Failed("left behind:\n  " + "\n  ".join(found))
            reap()
            time.sleep(0.05)


def reap():
    """Collects orphans that have ended, but none that a test itself waits for."""
    for each in processes().values():
        if each.parent == os.getpid() and each.state == "Z" and \
                each.name.startswith(("box-keeper", "box-refill", "qemu-system")):
            try:
                os.waitpid(each.pid, os.WNOHANG)
            except ChildProcessError:
                pass


def copy_home(source, target):
    """A copy that keeps holes; the files are mostly holes."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", "--reflink=auto", source, target], check=True)


def temporary_folder(prefix):
    return tempfile.mkdtemp(prefix=prefix)


def mirror_reason():
    """Why no Debian base can be made here, or None. Asked once, through apt's own settings."""
    global MIRROR_REASON
    if MIRROR_REASON is not False:
        return MIRROR_REASON
    address = os.environ.get("BOX_MIRROR") or apt_mirror()
    MIRROR_REASON = None
    if not address:
        MIRROR_REASON = "no Debian mirror in the apt sources of this machine"
        return MIRROR_REASON
    helper = "/usr/lib/apt/apt-helper"
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [helper, "-o", "Acquire::http::Timeout=10", "-o", "Acquire::Retries=1",
             "-o", "APT::Sandbox::User=", "download-file",
             f"{address.rstrip('/')}/dists/bookworm/Release", os.path.join(folder, "Release")],
            capture_output=True)
    if result.returncode:
        MIRROR_REASON = f"the Debian mirror {address} cannot be reached"
    return MIRROR_REASON


MIRROR_REASON = False


def apt_mirror():
    """The first address in apt's sources that has the main archive."""
    folder = "/etc/apt/sources.list.d"
    paths = ["/etc/apt/sources.list"]
    if os.path.isdir(folder):
        paths += [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    for path in paths:
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        for match in re.finditer(r"^(?:URIs:|deb(?:\s+\[[^]]*\])?)\s+(\S+)", text, re.M):
            if "security" not in match.group(1) and not match.group(1).startswith("cdrom"):
                return match.group(1)
    return None
