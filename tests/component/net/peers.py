"""What stands around box-net in its tests: the guest's agent, the keeper, resolvers and servers.

All of it lives in a network namespace that the test has made, whose loopback device has addresses
that look public. Nothing leaves it.
"""

import array
import errno
import os
import select
import socket
import struct
import subprocess
import threading
import time

BOX_NET, HOST = "", ""
# Without its jail: a sanitizer watches it.
BARE = os.environ.get("BOX_NET_BARE") == "yes"
USER_ID = 1876544

HELLO, RESOLVE, RESOLVED, OPEN, OPENED, FAILED, DATA, EOF, CREDIT, RESET = range(1, 11)
WINDOW = 131072
# Of what the guest sends.
UP_WINDOW = 32768
PAYLOAD_MAX = 32768 - 12
POLICY, PROXY, CONF_FILE, HOSTS_FILE, EVENT, LIMIT, READY, LOOK = 1, 2, 3, 4, 32, 33, 34, 35
ASKED, CONNECTED, ENDED = 1, 2, 3
# From struct ipc_net_message; EVENT_FORMAT is the part before the texts.
MESSAGE_SIZE = 968
EVENT_FORMAT = "<6BHIH2x5Q"
TEXTS = (("host", 256), ("address", 48), ("rule", 280), ("special", 64), ("sni", 256))


def hello_payload(token, version=2):
    return struct.pack("<IQH", 0x6e786f62, token, version)


class Waiting(Exception):
    """Something did not come in time."""


def memory_file(data):
    """A sealed file, as the keeper hands them over."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def encode_policy(kind="list", rules=(), connections=0, size=0):
    """rules: "allow NAME", "deny NAME", "reach RANGE"."""
    words = [word for rule in rules for word in rule.split(" ", 1)]
    done = subprocess.run([HOST, "policy", kind, str(connections), str(size), *words],
                          capture_output=True, check=True)
    return done.stdout


class Event:
    """One event, by its names."""

    def __init__(self, packet):
        names = ("kind", "reason", "end", "note", "allowed", "status", "port", "error", "proxy", "id",
                 "time_ns", "duration_ns", "bytes_up", "bytes_down")
        for name, value in zip(names, struct.unpack_from(EVENT_FORMAT, packet, 8)):
            setattr(self, name, value)
        offset = 8 + struct.calcsize(EVENT_FORMAT)
        for name, size in TEXTS:
            text = packet[offset:offset + size].split(b"\0")[0].decode()
            setattr(self, name, text)
            offset += size

    def __repr__(self):
        return repr(vars(self))


class Stream:
    """What the guest knows of one of its streams."""

    def __init__(self, number):
        self.number = number
        self.opened = False
        self.error = None
        self.data = bytearray()
        self.eof = False
        self.was_reset = False
        self.may_send = 0
        self.unread = 0


class Counter:
    """Stands in for received bytes where only their number matters."""

    def __init__(self):
        self.count = 0

    def __iadd__(self, data):
        self.count += len(data)
        return self

    def __len__(self):
        return self.count


class Net:
    """A running box-net, with a scripted guest and a scripted keeper."""

    def __init__(self, policy=None, resolv="", hosts="", hello=True, small=False, proxy=None):
        self.port, port_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.control, control_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if small:
            self.control.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            control_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        fds = [port_end.fileno(), control_end.fileno(), memory_file(resolv.encode()),
               memory_file(hosts.encode())]
        self.launch(fds)
        port_end.close()
        control_end.close()
        os.close(fds[2])
        os.close(fds[3])
        self.incoming = bytearray()
        self.seen = bytearray()
        self.closed = False
        self.hellos = 0
        self.hello_token = None
        self.streams = {}
        self.answers = {}
        self.events = []
        self.limits = []
        self.ready = []
        self.looks = 0
        self.opened = 0
        self.last = 0
        self.token = 0
        self.keeper_reads = True
        self.agent_reads = True
        self.grants = True
        if proxy is not None:
            self.give_proxy(*proxy)
        if policy is not None:
            self.give(policy)
        if hello:
            self.frame(HELLO, 0, hello_payload(1))

    def launch(self, fds):
        """Starts box-net with its descriptors."""
        self.host = subprocess.Popen([HOST, "bare" if BARE else "run", BOX_NET, str(USER_ID), *map(str, fds)],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     pass_fds=fds)
        first = self.host.stdout.readline().decode()
        assert first.startswith("pid "), first
        self.pid = int(first[4:])
        self.differences = self.host.stdout.readline().decode().strip()

    def gone(self):
        """Waits for its end."""
        self.host.wait(20)
        self.host.stdout.close()
        self.host.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self.port.close()
        self.control.close()
        self.gone()

    def tell(self, packet, data):
        """The keeper sends a message with a memory file."""
        fd = memory_file(data)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        self.control.sendmsg([packet.ljust(MESSAGE_SIZE, b"\0")], [rights])
        os.close(fd)

    def give(self, policy, wait=True):
        """The keeper hands over a policy."""
        serial = len(self.ready) + 1
        self.tell(struct.pack("<I4xI", POLICY, serial), policy)
        if wait:
            self.until(lambda: serial in self.ready)

    def give_file(self, kind, text):
        """The keeper hands over the host's resolv.conf or hosts as it is now."""
        self.tell(struct.pack("<I", kind), text.encode())

    def give_proxy(self, host, port, direct=(), authorization=""):
        """The keeper says which proxy there is, and what is reached without."""
        self.tell(struct.pack("<I4x256s512sH", PROXY, host.encode(), authorization.encode(), port),
                  encode_policy("bridge", [f"deny {each}" for each in direct]))

    def frame(self, kind, number, payload=b"", channel=0):
        """The guest sends a frame."""
        self.raw(struct.pack("<IBBHI", len(payload), kind, channel, 0, number) + payload)

    def raw(self, data):
        """The guest sends bytes, and the keeper listens meanwhile; box-net may close the port."""
        view = memoryview(data)
        while view and not self.closed:
            try:
                view = view[self.port.send(view, socket.MSG_DONTWAIT):]
            except BlockingIOError:
                agent_reads, self.agent_reads = self.agent_reads, False
                if not self.step():
                    select.select([], [self.port], [], 0.05)
                self.agent_reads = agent_reads
            except BrokenPipeError:
                self.closed = True

    def take_frame(self, kind, number, payload):
        if kind == HELLO:
            self.hellos += 1
            self.hello_token = struct.unpack("<IQH", payload)[1]
        elif kind == RESOLVED:
            token, status, v4_v6 = struct.unpack("<IBB", payload)
            self.answers[token] = (status, v4_v6)
        elif number in self.streams:
            self.take_stream_frame(self.streams[number], kind, payload)

    def take_stream_frame(self, stream, kind, payload):
        assert not stream.was_reset and stream.error is None, "a frame after the end"
        if kind == OPENED:
            assert not stream.opened
            stream.opened = True
            self.opened += 1
            stream.may_send = UP_WINDOW
            return
        if kind == FAILED:
            assert not stream.opened
            stream.error = struct.unpack("<I", payload)[0]
            return
        assert stream.opened, "a frame before OPENED"
        if kind == DATA:
            assert not stream.eof
            stream.data += payload
            stream.unread += len(payload)
            assert stream.unread <= WINDOW, "more than was granted"
            if self.grants and stream.unread >= WINDOW // 4:
                self.grant(stream)
        elif kind == EOF:
            stream.eof = True
        elif kind == CREDIT:
            stream.may_send += struct.unpack("<I", payload)[0]
            assert stream.may_send <= UP_WINDOW
        elif kind == RESET:
            stream.was_reset = True

    def grant(self, stream):
        """Gives credit for what was read."""
        if stream.unread > 0:
            self.frame(CREDIT, stream.number, struct.pack("<I", stream.unread))
            stream.unread = 0

    def read_port(self):
        try:
            got = self.port.recv(1 << 20)
        except ConnectionResetError:
            got = b""
        self.closed = self.closed or not got
        self.incoming += got
        if len(self.seen) < 1 << 20:
            self.seen += got
        offset = 0
        while len(self.incoming) - offset >= 12:
            length, kind, channel, zero, number = struct.unpack_from("<IBBHI", self.incoming,
                                                                     offset)
            assert channel == 0 and zero == 0 and length <= PAYLOAD_MAX
            if len(self.incoming) - offset < 12 + length:
                break
            payload = bytes(self.incoming[offset + 12:offset + 12 + length])
            offset += 12 + length
            self.take_frame(kind, number, payload)
        del self.incoming[:offset]

    def read_control(self):
        packet = self.control.recv(MESSAGE_SIZE + 1)
        if not packet:
            raise Waiting("box-net has ended")
        assert len(packet) == MESSAGE_SIZE
        kind = struct.unpack_from("<I", packet)[0]
        if kind == EVENT:
            self.events.append(Event(packet))
        elif kind == READY:
            self.ready.append(struct.unpack_from("<I", packet, 8)[0])
        elif kind == LOOK:
            self.looks += 1
        else:
            assert kind == LIMIT
            number, value = struct.unpack_from("<I4xQ", packet, 8)
            self.limits.append((number, value, packet[24:280].split(b"\0")[0].decode()))

    def step(self, timeout=0.05):
        """Reads what there is."""
        sockets = []
        if self.agent_reads and not self.closed:
            sockets.append(self.port)
        if self.keeper_reads:
            sockets.append(self.control)
        ready = select.select(sockets, [], [], timeout)[0]
        if self.control in ready:
            self.read_control()
        if self.port in ready:
            self.read_port()
        return bool(ready)

    def until(self, condition, timeout=10.0):
        """Reads until something is so."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise Waiting(f"events {self.events[-3:]}, limits {self.limits}")
            self.step()

    def settle(self, seconds=0.2):
        """Reads until nothing has come for a while."""
        while self.step(seconds):
            pass

    def resolve(self, name, wait=True):
        """Asks for a name: (status, kinds)."""
        self.token += 1
        token = self.token
        self.frame(RESOLVE, 0, struct.pack("<I", token) + wire_string(name))
        if not wait:
            return token
        self.until(lambda: token in self.answers, 15)
        return self.answers[token]

    def open(self, host, port=443, wait=True, timeout=10.0):
        """Opens a stream to a name, or to an address that begins with "@"."""
        self.last += 1
        stream = self.streams[self.last] = Stream(self.last)
        self.frame(OPEN, self.last, open_payload(host, port))
        if wait:
            self.until(lambda: stream.opened or stream.error is not None, timeout)
        return stream

    def open_many(self, host, count, port=443):
        """Opens that many streams in one write, and waits for none."""
        frames = b""
        streams = []
        for _ in range(count):
            self.last += 1
            stream = self.streams[self.last] = Stream(self.last)
            payload = open_payload(host, port)
            frames += struct.pack("<IBBHI", len(payload), OPEN, 0, 0, self.last) + payload
            streams.append(stream)
        self.raw(frames)
        return streams

    def send(self, stream, data, timeout=10.0):
        """Sends within the credit."""
        view = memoryview(data)
        while view:
            if stream.may_send == 0:
                self.until(lambda: stream.may_send > 0 or stream.was_reset, timeout)
                if stream.was_reset:
                    return
            part = view[:min(stream.may_send, PAYLOAD_MAX)]
            self.frame(DATA, stream.number, bytes(part))
            stream.may_send -= len(part)
            view = view[len(part):]
            self.step(0)

    def connect(self, host, port=443):
        """A stream that must open."""
        stream = self.open(host, port)
        assert stream.opened, f"{host}: {errno.errorcode.get(stream.error)}; {self.events[-1:]}"
        return stream

    def event(self, kind, host=None):
        """The last event of a kind, and about a host."""
        fitting = [e for e in self.events if e.kind == kind and host in (None, e.host)]
        return fitting[-1] if fitting else None

    def until_event(self, kind, host=None, timeout=10.0):
        self.until(lambda: self.event(kind, host), timeout)
        return self.event(kind, host)

    def descriptors(self):
        """How many descriptors box-net has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _kib(self, field):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(field + ":"))

    def rss_kib(self):
        """Resident memory."""
        return self._kib("VmRSS")

    def peak_kib(self):
        """The most that it ever was."""
        return self._kib("VmHWM")

    def end(self):
        """How the process ended, and its last words."""
        self.host.wait(20)
        return self.host.stdout.read().decode().strip(), self.host.stderr.read().decode().strip()


def wire_string(text):
    """A string as src/wire/bytes.h has it."""
    data = text.encode("latin-1") + b"\0"
    return struct.pack("<I", len(data)) + data


def open_payload(host, port):
    """The payload of OPEN."""
    if not host.startswith("@"):
        return struct.pack("<BH", 0, port) + wire_string(host)
    address = host[1:]
    if ":" in address:
        return struct.pack("<BH", 6, port) + socket.inet_pton(socket.AF_INET6, address)
    return struct.pack("<BH", 4, port) + socket.inet_pton(socket.AF_INET, address)


class Server:
    """A TCP server; serve(connection) runs in a thread for each connection."""

    def __init__(self, address, port, serve=None, backlog=1024):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self.socket.bind((address, port))
        self.socket.listen(backlog)
        self.serve = serve or echo
        self.count = 0
        self.connections = []
        if serve is not False:
            threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                connection = self.socket.accept()[0]
            except OSError:
                return
            self.count += 1
            self.connections.append(connection)
            threading.Thread(target=self.guard, args=(connection,), daemon=True).start()

    def guard(self, connection):
        try:
            self.serve(connection)
        except OSError:
            pass

    def close(self):
        # Wakes accept(2) up; close(2) alone would not.
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()
        for connection in self.connections:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self.close()


def echo(connection):
    """Sends back what comes, and the end after it."""
    while True:
        data = connection.recv(65536)
        if not data:
            break
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    connection.close()


def hang(connection):
    """Neither reads nor ends."""
    del connection
    time.sleep(3600)


def dns_name(text):
    """A name on the wire."""
    return b"".join(bytes([len(part)]) + part.encode() for part in text.split(".")) + b"\0"


class Resolver:
    """A DNS server on port 53. zone: name to a list of addresses, or of answers (see answer)."""

    def __init__(self, address, zone):
        self.zone = zone
        self.asked = []
        self.over_tcp = 0
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind((address, 53))
        self.tcp = Server(address, 53, self.serve_tcp)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while True:
            query, peer = self.udp.recvfrom(4096)
            if not query:
                return
            for reply in self.answer(query, False):
                self.udp.sendto(reply, peer)

    def serve_tcp(self, connection):
        head = connection.recv(2, socket.MSG_WAITALL)
        query = connection.recv(struct.unpack(">H", head)[0], socket.MSG_WAITALL)
        self.over_tcp += 1
        for reply in self.answer(query, True):
            # In two pieces, as a slow network might.
            connection.sendall(struct.pack(">H", len(reply))[:1])
            time.sleep(0.02)
            connection.sendall(struct.pack(">H", len(reply))[1:] + reply)
        connection.close()

    def answer(self, query, over_tcp):
        """The replies to a query. What the zone has for a name is a list of addresses, or a
        function of (kind, over_tcp) that returns (rcode, records, flags) or raw replies."""
        number, labels, offset = query[:2], [], 12
        while query[offset]:
            labels.append(query[offset + 1:offset + 1 + query[offset]].decode())
            offset += 1 + query[offset]
        kind = struct.unpack(">H", query[offset + 1:offset + 3])[0]
        question = query[12:offset + 5]
        name = ".".join(labels)
        self.asked.append((name, kind))
        found = self.zone.get(name)
        if callable(found):
            found = found(kind, over_tcp)
            if found is None:
                return []
            if isinstance(found, list):
                return [reply.replace(b"ID", number, 1) for reply in found]
            rcode, records, flags = found
        elif found is None:
            rcode, records, flags = 3, [], 0
        else:
            rcode, flags = 0, 0
            records = [address_record(name, a, 60) for a in found
                       if (":" in a) == (kind == 28)]
        head = number + struct.pack(">HHHHH", 0x8180 | flags | rcode, 1, len(records), 0, 0)
        return [head + question + b"".join(records)]

    def names(self):
        """The names that were asked for, each once."""
        return sorted({name for name, kind in self.asked})

    def close(self):
        # An empty question ends the thread: close(2) would not wake it up.
        self.udp.sendto(b"", self.udp.getsockname())
        self.thread.join()
        self.udp.close()
        self.tcp.close()

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self.close()


def address_record(name, address, ttl):
    """An A or AAAA record."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    data = socket.inet_pton(family, address)
    kind = 28 if ":" in address else 1
    return dns_name(name) + struct.pack(">HHIH", kind, 1, ttl, len(data)) + data


def alias_record(name, target, ttl=60):
    """A CNAME record."""
    data = dns_name(target)
    return dns_name(name) + struct.pack(">HHIH", 5, 1, ttl, len(data)) + data


def client_hello(name, records=1):
    """The first flight of a TLS client that asks for a server name, in so many records."""
    host = name.encode()
    extension = struct.pack(">HBH", len(host) + 3, 0, len(host)) + host
    extensions = struct.pack(">HH", 0, len(extension)) + extension
    body = (b"\3\3" + bytes(32) + b"\0" + struct.pack(">HH", 2, 0x1301) + b"\1\0" +
            struct.pack(">H", len(extensions)) + extensions)
    message = b"\1" + struct.pack(">I", len(body))[1:] + body
    step = -(-len(message) // records)
    parts = [message[i:i + step] for i in range(0, len(message), step)]
    return b"".join(b"\x16\3\1" + struct.pack(">H", len(part)) + part for part in parts)
