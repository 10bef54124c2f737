"""The host's side: a box with a home of its own, the processes of its machines, and what /proc says
of them. Nothing here asks box what it has done; it looks."""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import time

# An emulated machine on a busy host is slow; whatever takes longer than this hangs.
TIMEOUT = 240
PIDFD_GETFD = 438
LIBC = ctypes.CDLL(None, use_errno=True)


class Unusable(Exception):
    """The suite could not do what a check needs; the check fails with this."""


def adopt_orphans():
    """Makes this process the parent of every orphan below it, so that nothing gets lost."""
    if LIBC.prctl(36, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def wait_until(function, seconds):
    """What function returns once that is true, or its last answer after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        found = function()
        if found or time.monotonic() > end:
            return found
        time.sleep(0.02)


def read(pid, name):
    """A file of /proc/PID as text; what may not be read is no answer but a failure of the check."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        raise Unusable(f"/proc/{pid}/{name} cannot be read: {error.strerror}") from None


def descendants(pid):
    """(process ID, name) of every process below pid that has not ended, nearest first."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                with open(f"/proc/{entry}/stat", "rb") as file:
                    data = file.read()
                name = data[data.index(b"(") + 1:data.rindex(b")")].decode("utf-8", "replace")
                state, parent = data[data.rindex(b")") + 2:].split()[:2]
                if state not in (b"Z", b"X"):
                    children.setdefault(int(parent), []).append((int(entry), name))
    found, level = [], [pid]
    while level:
        level = [each for parent in level for each in children.get(parent, [])]
        found += level
        level = [each for each, _ in level]
    return found


class Descriptor:
    """One open descriptor of another process, looked at through a copy of it."""

    def __init__(self, number, fd):
        self.number = number
        self.status = os.fstat(fd)
        self.path = os.readlink(f"/proc/self/fd/{fd}")
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            self.flags = int(re.search(r"^flags:\s*(\d+)", file.read(), re.M).group(1), 8)
        self.kind = self._kind(fd)

    def _kind(self, fd):
        mode = self.status.st_mode
        if self.path.startswith("anon_inode:"):
            return self.path
        if stat.S_ISSOCK(mode):
            with socket.socket(fileno=os.dup(fd)) as copy:
                return {socket.AF_UNIX: "unix socket", socket.AF_INET: "internet socket",
                        socket.AF_INET6: "internet socket"}.get(copy.family,
                                                                f"socket of family {copy.family}")
        if stat.S_ISCHR(mode):
            number = (os.major(self.status.st_rdev), os.minor(self.status.st_rdev))
            return {(1, 3): "/dev/null", (10, 232): "/dev/kvm"}.get(number, f"device {number}")
        return {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe",
                stat.S_IFBLK: "block device"}.get(stat.S_IFMT(mode), "something else")

    @property
    def writable(self):
        return self.flags & os.O_ACCMODE != os.O_RDONLY and not self.flags & os.O_PATH

    def __str__(self):
        return f"descriptor {self.number} ({self.kind}, {self.path})"


class Process:
    """One process of a machine."""

    def __init__(self, role, pid):
        self.role, self.pid = role, pid

    def __str__(self):
        return self.role

    def file(self, name):
        return read(self.pid, name)

    def status(self, field):
        match = re.search(rf"^{field}:[ \t]*(.*?)[ \t]*$", self.file("status"), re.M)
        if not match:
            raise Unusable(f"/proc/{self.pid}/status has no {field}")
        return match.group(1)

    def namespace(self, name):
        try:
            return os.readlink(f"/proc/{self.pid}/ns/{name}")
        except OSError as error:
            raise Unusable(f"the {name} namespace of {self}: {error.strerror}") from None

    def limits(self):
        """Name to (soft, hard), as text."""
        return {match[1]: (match[2], match[3]) for match in
                re.finditer(r"^(Max .*?) {2,}(\w+) +(\w+)", self.file("limits"), re.M)}

    def mounts(self):
        """(point, file system, options)"""
        found = []
        for line in self.file("mountinfo").splitlines():
            fields, _, tail = line.partition(" - ")
            point, options = fields.split()[4:6]
            found.append((point, tail.split()[0], set(options.split(","))))
        return found

    def descriptors(self):
        found = []
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            raise Unusable(f"{self}: {error.strerror}") from None
        try:
            for number in range(4096):
                fd = LIBC.syscall(PIDFD_GETFD, pidfd, number, 0)
                if fd >= 0:
                    found.append(Descriptor(number, fd))
                    os.close(fd)
                elif ctypes.get_errno() != 9:  # EBADF: it has none of this number.
                    raise Unusable(f"descriptors of {self}: {os.strerror(ctypes.get_errno())}")
        finally:
            os.close(pidfd)
        return found

    def contents(self, descriptor):
        """The bytes of a file that it holds open, without its holes."""
        pidfd = os.pidfd_open(self.pid)
        fd = LIBC.syscall(PIDFD_GETFD, pidfd, descriptor.number, 0)
        os.close(pidfd)
        if fd < 0:
            raise Unusable(f"{descriptor} is gone")
        try:
            return data_of(fd)
        finally:
            os.close(fd)


def data_of(fd):
    """What is written in a file, without its holes. The descriptor's own place is left alone."""
    pieces, offset, size = [], 0, os.fstat(fd).st_size
    copy = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    try:
        while offset < size:
            try:
                start = os.lseek(copy, offset, os.SEEK_DATA)
            except OSError:
                break
            offset = os.lseek(copy, start, os.SEEK_HOLE)
            pieces.append(os.pread(copy, offset - start, start))
    finally:
        os.close(copy)
    return b"".join(pieces)


class Result:
    def __init__(self, arguments, code, out, err):
        self.arguments, self.code, self.out = arguments, code, out.decode("utf-8", "replace")
        self.err = err.decode("utf-8", "replace")

    def ok(self):
        if self.code != 0:
            raise Unusable(f"`box {' '.join(self.arguments)}` ended with {self.code}: "
                           f"{self.err.strip() or self.out.strip()[-300:]}")
        return self

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError:
            raise Unusable(f"`box {' '.join(self.arguments)}` printed no JSON: "
                           f"{self.err.strip()}") from None


class Box:
    """box with a BOX_HOME of its own."""

    def __init__(self, program, home, environment):
        self.program, self.home = program, home
        self.keepers = set()
        self.environment = {**os.environ, "BOX_HOME": home, "TMPDIR": os.path.dirname(home),
                            "LC_ALL": "C.UTF-8", **environment}

    def path(self, *parts):
        return os.path.join(self.home, *parts)

    def start(self, *arguments, **options):
        return subprocess.Popen([self.program, *arguments], env=self.environment,
                                stdin=options.pop("stdin", subprocess.DEVNULL), **options)

    def run(self, *arguments, timeout=TIMEOUT):
        process = self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Unusable(f"`box {' '.join(arguments)}` did not end in {timeout} s") from None
        return Result(arguments, process.returncode, out, err)

    def boxfile(self, name, text):
        with open(self.path("sandboxes", name, "Boxfile"), "w", encoding="utf-8") as file:
            file.write(text)

    def slot(self, name):
        """The first user ID that ids.json gives the sandbox, or None."""
        try:
            with open(self.path("ids.json"), encoding="utf-8") as file:
                return json.load(file)["slots"].get(name)
        except FileNotFoundError:
            return None

    def keeper_of(self, name):
        """The process that listens on the socket of the machine that is up."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            try:
                peer.connect(self.path("run", name, "sock"))
            except OSError as error:
                raise Unusable(f"run/{name}/sock: {error.strerror}") from None
            return struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED,
                                                        12))[0]

    def processes(self, keeper):
        """All of one machine: its keeper, and what is below that."""
        self.keepers.add(keeper)
        roles = {"box-net": "box-net", "qemu-system-x86": "monitor", "box-vmm": "monitor"}
        return [Process("keeper", keeper)] + \
            [Process(roles.get(name, name), pid) for pid, name in descendants(keeper)]

    def left(self):
        """What is left of machines, one line each."""
        found = [f"process {pid} {name}" for pid, name in descendants(os.getpid())]
        for folder, _, names in os.walk(self.path("run")):
            # With its number: one that is made anew is another one.
            found += [f"file {path}, number {os.lstat(path).st_ino}"
                      for path in (os.path.join(folder, each) for each in names)]
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            found += [f"socket {line.split()[-1]}" for line in file if self.home + "/" in line]
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            found += [f"mount {line.split()[4]}" for line in file if self.home in line]
        found += [f"temporary file {each}" for each in os.listdir(os.path.dirname(self.home))
                  if each.startswith("box")]
        return found + self._control_groups()

    def _control_groups(self):
        """Those of the keepers that this suite has seen."""
        return [f"control group {os.path.join(folder, each)}"
                for folder, folders, _ in os.walk("/sys/fs/cgroup") for each in folders
                if (match := re.fullmatch(r"box-(\d+)-[0-9a-f]+(?:\.scope)?", each))
                and int(match.group(1)) in self.keepers]

    def still_left(self, before=(), seconds=20):
        """What is left of machines after so many seconds, and was not before."""
        wait_until(lambda: not set(self.left()) - set(before), seconds)
        return [each for each in self.left() if each not in before]

    def end(self):
        """Ends everything below this process, by process ID."""
        for _ in range(100):
            left = descendants(os.getpid())
            for pid, _ in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not left:
                return
            time.sleep(0.05)
