"""What the tests of the guest's network share: a host that a test plays, a machine's life in a
network namespace, and a client of DNS.
"""

import ctypes
import errno
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time

NET_LIFE = sys.argv[1] if len(sys.argv) > 1 else ""
TESTS = []
CLONE_NEWNET = 0x40000000

HELLO, RESOLVE, RESOLVED, OPEN, OPENED, FAILED, DATA, EOF, CREDIT, RESET = range(1, 11)
MAGIC, VERSION, WINDOW, UP_WINDOW = 0x6E786F62, 2, 131072, 32768
OK, NXDOMAIN, DENIED, TEMPORARY = range(4)
A, PTR, MX, TXT, AAAA, SRV, SVCB, HTTPS, ANY = 1, 12, 15, 16, 28, 33, 64, 65, 255
SERVER = ("198.18.0.1", 53)
V4, V6 = socket.AF_INET, socket.AF_INET6


def test(function):
    """Marks a test."""
    TESTS.append(function)
    return function


def equal(found, wanted, what=""):
    """Fails unless both are the same."""
    assert found == wanted, f"{what}: {found!r} is not {wanted!r}"


def new_network():
    """Puts this process into a new network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def string(data):
    """A string of the protocol: length with the NUL, bytes, NUL."""
    return struct.pack("<I", len(data) + 1) + data.encode() + b"\0"


def frame(kind, stream=0, payload=b""):
    """A frame."""
    return struct.pack("<IBBHI", len(payload), kind, 0, 0, stream) + payload


class Stream:
    """A stream as the host sees it."""

    def __init__(self, number, kind, target, port):
        self.number, self.kind, self.target, self.port = number, kind, target, port
        self.data = bytearray()
        self.credit = UP_WINDOW
        self.eof = self.reset = False


class Host:
    """box-net's end of a port. Frames are taken by a thread; rules say what is answered."""

    def __init__(self):
        self.near, self.far = socket.socketpair()
        self.lock = threading.Condition()
        self.streams, self.asked, self.errors = {}, [], []
        self.names = {}
        # (target, port) or port: an errno, None to connect, or "silent". The rest is refused.
        self.rules = {}
        self.generous = True
        self.silent = False
        self.hellos = self.token = 0
        self.polite = True
        self.delay = 0
        self.on_open = None
        self.ended = False
        self.thread = threading.Thread(target=self.run, daemon=True)

    def begin(self, polite=True):
        """Serves; polite answers HELLO at once."""
        self.polite = polite
        self.thread.start()

    def hello(self, token=None, version=VERSION):
        """The answer to the agent's HELLO."""
        return frame(HELLO, 0, struct.pack("<IQH", MAGIC, self.token if token is None else token,
                                           version))

    def greet(self):
        """Answers HELLO."""
        self.send(self.hello())

    def send(self, data):
        """Sends bytes to the agent."""
        try:
            self.near.sendall(data)
        except OSError as error:
            self.errors.append(error)

    def run(self):
        """The thread."""
        buffer = b""
        while True:
            try:
                got = self.near.recv(1 << 16)
            except OSError:
                got = b""
            if not got:
                with self.lock:
                    self.ended = True
                    self.lock.notify_all()
                return
            buffer += got
            while len(buffer) >= 12:
                size, kind, channel, zero, number = struct.unpack_from("<IBBHI", buffer)
                if len(buffer) < 12 + size:
                    break
                if channel or zero or size > 32756:
                    self.errors.append(f"frame {kind} {channel} {zero} {size}")
                payload, buffer = buffer[12:12 + size], buffer[12 + size:]
                with self.lock:
                    self.take(kind, number, payload)
                    self.lock.notify_all()

    def take(self, kind, number, payload):
        """Takes one frame."""
        if kind == HELLO:
            magic, self.token, version = struct.unpack("<IQH", payload)
            equal((magic, version), (MAGIC, VERSION))
            self.hellos += 1
            self.streams = {}
            if self.polite:
                self.greet()
        elif kind == RESOLVE:
            token, length = struct.unpack_from("<II", payload)
            name = payload[8:8 + length - 1].decode()
            self.asked.append(name)
            if not self.silent:
                self.resolved(token, name)
        elif kind == OPEN:
            self.open(number, payload)
        elif number not in self.streams:
            pass
        elif kind == DATA:
            stream = self.streams[number]
            stream.data += payload
            stream.credit -= len(payload)
            if stream.credit < 0 or not payload or stream.eof:
                self.errors.append(f"DATA of {len(payload)} beyond the credit or the end")
            if self.generous:
                self.grant(stream, len(payload))
        elif kind == EOF:
            self.streams[number].eof = True
        elif kind == RESET:
            self.streams[number].reset = True
        elif kind != CREDIT:
            self.errors.append(f"frame of type {kind}")

    def resolved(self, token, name):
        """Answers a RESOLVE as names says."""
        status, has = self.names.get(name, (DENIED, 0))
        self.send(frame(RESOLVED, 0, struct.pack("<IBB", token, status, has)))

    def open(self, number, payload):
        """Answers an OPEN as rules says."""
        kind, port = struct.unpack_from("<BH", payload)
        if kind == 0:
            target = payload[7:-1].decode()
        else:
            target = socket.inet_ntop(V4 if kind == 4 else V6, payload[3:])
        stream = Stream(number, kind, target, port)
        self.streams[number] = stream
        rule = self.rules.get((target, port), self.rules.get(port, errno.ECONNREFUSED))
        if rule == "silent":
            return
        if self.delay:
            time.sleep(self.delay)
        if rule is None:
            self.send(frame(OPENED, number))
            if self.on_open:
                self.on_open(stream)
        else:
            self.send(frame(FAILED, number, struct.pack("<I", rule)))

    def grant(self, stream, count):
        """Gives credit."""
        stream.credit += count
        self.send(frame(CREDIT, stream.number, struct.pack("<I", count)))

    def wait(self, condition, what, seconds=10):
        """Waits until a condition on what was received holds."""
        with self.lock:
            assert self.lock.wait_for(condition, seconds), what

    def stream(self, index=-1):
        """The stream that was opened as the index says."""
        return list(self.streams.values())[index]


class Life:
    """A machine: a namespace in which net_life has booted."""

    def __init__(self):
        self.control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.program = subprocess.Popen([NET_LIFE], stdin=far, stdout=subprocess.PIPE, text=True)
        far.close()
        equal(self.program.stdout.readline(), "booted\n")
        self.host = None
        self.pid = 0

    def say(self, command):
        """One command without a descriptor."""
        self.control.send(command.encode())
        return self.program.stdout.readline().strip()

    def start(self, prepare=None, polite=True):
        """A new agent, with a host of its own."""
        self.host = Host()
        if prepare:
            prepare(self.host)
        self.start_agent()
        self.host.begin(polite)

    def start_agent(self):
        """A new agent on the port that there is."""
        socket.send_fds(self.control, [b"start"], [self.host.far.fileno()])
        answer = self.program.stdout.readline().strip()
        assert answer.startswith("pid "), answer
        self.pid = int(answer[4:])


def booted(prepare=None, polite=True):
    """A life whose agent runs."""
    life = Life()
    life.start(prepare, polite)
    return life


def attempt(address, port, family=V4, seconds=10):
    """connect(2): (errno or 0, seconds that it took, socket)."""
    sock = socket.socket(family)
    sock.settimeout(None)
    before = time.monotonic()
    sock.setblocking(False)
    code = sock.connect_ex((address, port))
    if code == errno.EINPROGRESS:
        if select.select([], [sock], [], seconds)[1]:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    took = time.monotonic() - before
    sock.setblocking(True)
    sock.settimeout(seconds)
    return code, took, sock


def connected(address, port, family=V4):
    """A connection."""
    code, _, sock = attempt(address, port, family)
    equal(code, 0, f"connect to {address}.{port}")
    return sock


def exactly(sock, size):
    """So many bytes, or fewer at the end."""
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            break
        data += piece
    return data


def question(name, kind, ident=0x1234, edns=False):
    """A DNS question."""
    wire = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    message = struct.pack(">HHHHHH", ident, 0x0100, 1, 0, 0, 1 if edns else 0) + wire
    message += struct.pack(">HH", kind, 1)
    if edns:
        message += b"\0" + struct.pack(">HHIH", 41, 1232, 0, 0)
    return message


def skip_name(message, offset):
    """The offset behind a name."""
    while message[offset]:
        if message[offset] >= 0xC0:
            return offset + 2
        offset += 1 + message[offset]
    return offset + 1


def answers(message):
    """(rcode, the data of all answers)."""
    _, flags, questions, count, _, _ = struct.unpack_from(">HHHHHH", message)
    assert flags & 0x8000
    offset = 12
    for _ in range(questions):
        offset = skip_name(message, offset) + 4
    found = []
    for _ in range(count):
        offset = skip_name(message, offset)
        kind, _, _, size = struct.unpack_from(">HHIH", message, offset)
        data = message[offset + 10:offset + 10 + size]
        if kind in (A, AAAA):
            data = socket.inet_ntop(V4 if kind == A else V6, data)
        found.append(data)
        offset += 10 + size
    return flags & 15, found


def dns(name, kind=A, server=SERVER, family=V4, **more):
    """Asks by a datagram. (rcode, answers)."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        # A connected socket takes an answer from the asked address only.
        sock.connect(server)
        sock.send(question(name, kind, **more))
        message = sock.recv(4096)
        equal(message[:2], b"\x12\x34")
        return answers(message)


def echo(host):
    """Makes the host send back what comes, for streams to port 7."""
    def run():
        done = {}
        while not host.ended:
            with host.lock:
                host.lock.wait(0.2)
                work = []
                for stream in host.streams.values():
                    at = done.get(stream.number, 0)
                    if len(stream.data) > at:
                        work.append((stream, bytes(stream.data[at:])))
                        done[stream.number] = len(stream.data)
                    elif stream.eof and at >= 0:
                        work.append((stream, None))
                        done[stream.number] = 1 << 60
            for stream, data in work:
                if data is None:
                    host.send(frame(EOF, stream.number))
                else:
                    for start in range(0, len(data), 16384):
                        host.send(frame(DATA, stream.number, data[start:start + 16384]))
    threading.Thread(target=run, daemon=True).start()


def example(host):
    """A name that may be used, and what it answers."""
    host.names.update({"example.com": (OK, 3), "four.example": (OK, 1), "six.example": (OK, 2),
                       "none.example": (OK, 0), "gone.example": (NXDOMAIN, 0),
                       "broken.example": (TEMPORARY, 0)})
    host.rules.update({443: None, 7: None})
