"""The network: programs inside against servers of the test.

box-net lives in the network namespace of whoever started the machine, so a test makes one of its
own and starts box there. Addresses that count as public are on its loopback device, its resolver is
a thread of the test, and nothing leaves it.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading

from lib import TINY, check, contains, descendants, equal, need_root, test, wait_until
from test_user import as_user

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
# Of space that is given out to networks far away, which nobody has here.
PUBLIC, OTHER, PRIVATE = "45.0.0.1", "45.0.0.2", "10.1.2.3"
RESOLVER, MOVED = "127.0.0.53", "127.0.0.54"
PROXY, PROXY_PORT = "127.0.0.9", 3128
HELLO, COUNT, LARGE, SILENT, NOBODY = 80, 7, 8, 9, 4444
LARGE_BYTES = 4 << 20

BOXFILE = TINY + f"""\
network:
  allow: [{", ".join(f"'{name}:{port}'" for name in ("good.test", "inside.test", "gone.test")
                     for port in (HELLO, COUNT, LARGE, SILENT, NOBODY))},
          "*.below.test", "{OTHER}", "{PRIVATE}", "in-hosts.test"]
  deny: ["no.below.test"]
  reach: ["{PRIVATE}"]
"""
NAMES = {"good.test": PUBLIC, "a.below.test": PUBLIC, "no.below.test": PUBLIC,
         "below.test": PUBLIC, "example.org": PUBLIC, "example.com": PUBLIC, "inside.test": "127.0.0.1", "evil.test": PUBLIC}


class Net:
    """A network namespace of this process with servers and a resolver in it."""

    def __init__(self, box):
        need_root()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNS | CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for address in (PUBLIC, OTHER, PRIVATE):
            subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
        self.folder = os.path.join(os.path.dirname(box.home), f"net-{os.getpid()}")
        os.makedirs(self.folder)
        self.host_file("/etc/resolv.conf", f"nameserver {RESOLVER}\n")
        self.host_file("/etc/hosts", f"127.0.0.1 localhost\n{PUBLIC} in-hosts.test evil.test\n")
        self.asked, self.connected, self.proxied = [], [], []
        self.released = threading.Event()
        self.servers = []
        self._resolver(RESOLVER, NAMES.get)
        self._serve(PROXY, PROXY_PORT, self.proxy)
        for address in (PUBLIC, OTHER, PRIVATE, "127.0.0.1"):
            for port, answer in ((HELLO, self.hello), (COUNT, self.count), (LARGE, self.large),
                                 (SILENT, self.silent)):
                self._serve(address, port, answer)

    def host_file(self, path, text):
        name = os.path.join(self.folder, os.path.basename(path))
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
        subprocess.run(["mount", "--bind", name, path], check=True)

    def close(self):
        """Takes away what is on disks; the rest ends with this process."""
        for path in ("/etc/resolv.conf", "/etc/hosts"):
            subprocess.run(["umount", path], check=True)
        shutil.rmtree(self.folder)

    def move(self):
        """The host comes to another network, whose names are others."""
        self._resolver(MOVED, lambda name: PUBLIC if name.endswith(".moved.below.test") else None)
        self.resolver_is(MOVED)

    def resolver_is(self, place):
        with open(os.path.join(self.folder, "resolv.conf"), "w", encoding="utf-8") as file:
            file.write(f"nameserver {place}\n")

    def _resolver(self, place, find):
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind((place, 53))

        def answer():
            while True:
                question, peer = server.recvfrom(4096)
                name, at = [], 12
                while question[at]:
                    name.append(question[at + 1:at + 1 + question[at]].decode("latin-1"))
                    at += 1 + question[at]
                kind, = struct.unpack(">H", question[at + 1:at + 3])
                name = ".".join(name).lower()
                self.asked.append(name)
                address = find(name)
                found = address if kind == 1 else None
                head = struct.pack(">HHHHHH", *struct.unpack(">H", question[:2]),
                                   0x8180 if address else 0x8183, 1, 1 if found else 0, 0, 0)
                record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + \
                    socket.inet_aton(found) if found else b""
                server.sendto(head + question[12:at + 5] + record, peer)
        threading.Thread(target=answer, daemon=True).start()

    def _serve(self, address, port, answer):
        server = socket.create_server((address, port), backlog=1024)
        self.servers.append(server)

        def one(peer):
            with peer, contextlib.suppress(OSError):
                answer(peer, address)

        def accept():
            while True:
                peer, _ = server.accept()
                self.connected.append((address, port))
                threading.Thread(target=one, args=(peer,), daemon=True).start()
        threading.Thread(target=accept, daemon=True).start()

    @staticmethod
    def hello(peer, address):
        while b"\r\n\r\n" not in peer.recv(4096):
            pass
        text = f"hello from {address}\n".encode()
        peer.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)

    @staticmethod
    def count(peer, _):
        """Answers when the other side has said that it has no more."""
        size = 0
        while data := peer.recv(65536):
            size += len(data)
        peer.sendall(f"{size}\n".encode())

    @staticmethod
    def large(peer, _):
        peer.sendall(LARGE_BYTES // 16 * b"0123456789abcde\n")

    def proxy(self, peer, _):
        """An HTTP proxy that knows every name, and is the server itself."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += peer.recv(1)
        self.proxied.append(head.decode())
        peer.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.hello(peer, "the proxy")

    def silent(self, _peer, _):
        self.released.wait(60)


def get(host, port=HELLO, options="-q"):
    return f"wget {options} -O - http://{host}:{port}/"


def lines(box, name="net"):
    return [json.loads(line) for line in
            box.run("net", name, "--json").ok().out.decode().splitlines()]


def ended(box, what, **wanted):
    """The line of the log that has these values; box-net writes it when the connection has ended."""
    def find():
        return next((each for each in lines(box)
                     if all(each.get(key) == value for key, value in wanted.items())), None)
    return wait_until(f"{what} in the log: {wanted}", find, 10)


def build(box):
    box.make("net", BOXFILE)
    box.run("build", "net", timeout=240).ok()


def at_once(result, seconds=8):
    """A refusal is no hang: a machine on a busy host answers within this."""
    check(result.seconds < seconds, f"took {result.seconds:.1f} s", result)
    return result


def names_and_addresses(box, net):
    def run(script):
        return box.exec(script, name="net")

    equal(run(get("good.test")).ok().text, f"hello from {PUBLIC}\n", "a name")
    equal(run(get("GOOD.test.")).ok().text, f"hello from {PUBLIC}\n", "another spelling of it")
    equal(run(get("a.below.test")).ok().text, f"hello from {PUBLIC}\n", "below a wildcard")
    equal(run(get("in-hosts.test")).ok().text, f"hello from {PUBLIC}\n", "a name of /etc/hosts")
    equal(run(get(OTHER)).ok().text, f"hello from {OTHER}\n", "an address")
    equal(run(get(PRIVATE)).ok().text, f"hello from {PRIVATE}\n", "an address to be reached")
    row = ended(box, "a name", event="ended", host="good.test", port=HELLO)
    equal((row["address"], row["rule"], row["end"]), (PUBLIC, f"allow good.test:{HELLO}", "both"))
    check(row["bytes_up"] > 30 and row["bytes_down"] > 40, row)

    before = len(net.connected)
    for host in ("evil.test", "below.test", "no.below.test", "deeper.good.test"):
        contains(at_once(run(get(host))).exits(1).error, "bad address", host)
        row = ended(box, host, event="asked", host=host)
        equal((row["allowed"], row["status"]), (False, "refused"), host)
        check(host not in net.asked, f"{host} was asked of the resolver")
    equal(ended(box, "deny", host="no.below.test")["rule"], "deny no.below.test")
    contains(at_once(run(get("gone.test"))).exits(1).error, "bad address")
    equal(ended(box, "gone", event="asked", host="gone.test")["status"], "no-such-name")
    check("gone.test" in net.asked, net.asked)
    for host in (PUBLIC, "169.254.169.254", "127.0.0.1", "10.0.0.1", "192.168.0.1"):
        contains(at_once(run(get(host))).exits(1).error, "refused", host)
    # The host's own loopback, by a name that is allowed.
    contains(at_once(run(get("inside.test"))).exits(1).error, "refused")
    row = ended(box, "rebinding", event="connected", host="inside.test")
    equal((row["allowed"], row["reason"], row["special"]), (False, "special", "loopback"))
    contains(at_once(run(get("good.test", NOBODY))).exits(1).error, "Connection refused")
    row = ended(box, "refused", event="connected", host="good.test", port=NOBODY)
    equal((row["allowed"], row["error"]), (True, "ECONNREFUSED"))
    contains(at_once(run(get("good.test", 81))).exits(1).error, "refused")
    equal(net.connected[before:], [], "connections to servers that nothing may reach")


def streams(box, net):
    def run(script):
        return box.exec(script, name="net")

    equal(run(f"head -c 300000 /dev/zero | nc good.test {COUNT}").ok().text, "300000\n",
          "half-close")
    digest = hashlib.sha256(LARGE_BYTES // 16 * b"0123456789abcde\n").hexdigest()
    contains(run(f"nc good.test {LARGE} </dev/null | sha256sum").ok().text, digest)
    row = ended(box, "the large one", event="ended", port=LARGE)
    equal(row["bytes_down"], LARGE_BYTES)
    equal(run(f"for i in 1 2 3 4 5 6 7 8 9 10; do {get('good.test')} & done; wait").ok().text,
          10 * f"hello from {PUBLIC}\n", "ten at once")


def live_policy(box, net):
    box.run("net", "net", "--allow", f"{PUBLIC}:{HELLO}").ok()
    equal(box.exec(get(PUBLIC), name="net").ok().text, f"hello from {PUBLIC}\n", "allowed now")
    # A connection that is open when its rule goes.
    waiting = box.start_exec(f"nc good.test {SILENT} < /dev/zero; echo over", name="net")
    wait_until("a connection", lambda: (PUBLIC, SILENT) in net.connected, 20)
    report = box.run("inspect", "net", "--json").ok().json()
    equal([each["role"] for each in report["processes"]], ["monitor", "net", "keeper"])
    equal(report["network"]["outgoing"], "list")
    check(f"allow {PUBLIC}:{HELLO}" in report["network"]["rules"], report["network"])
    monitor, jailed = (each["description"] for each in report["processes"][:2])
    check(jailed["host_uid"] != monitor["host_uid"] and jailed["host_uid"] != 0, jailed)
    box.run("net", "net", "--deny", "good.test").ok()
    contains(waiting.wait(20).text, "over")
    equal(ended(box, "cut", event="ended", port=SILENT)["end"], "policy")
    # The machine may remember that there is such a name; it is refused all the same.
    box.exec(get("good.test"), name="net").exits(1)
    ended(box, "denied", host="good.test", allowed=False, rule="deny good.test")
    net.released.set()
    box.run("net", "net", "--allow", "not a rule").fails("not a rule")


def another_network(box, net):
    """A laptop that is carried away while its machine is up."""
    box.exec(get("1.moved.below.test"), name="net").exits(1)
    net.move()
    # It is looked for once a second.
    numbers = iter(range(2, 100))
    wait_until("a name of the new network", lambda: box.exec(
        get(f"{next(numbers)}.moved.below.test"), name="net").code == 0, 20)
    net.resolver_is(RESOLVER)


def what_is_shown(box):
    rows = [line.split("\t") for line in
            box.run("net", "net", "-n", "1000").ok().text.splitlines()]
    check(all(len(row) == 9 for row in rows), rows)
    check(["good.test", str(HELLO), f"allow good.test:{HELLO}", "ok", PUBLIC] in
          [row[1:6] for row in rows], rows)
    check(["evil.test", "name", "refused: no rule", "refused", "-"] in
          [row[1:6] for row in rows], rows)
    equal(len(box.run("net", "net", "-n", "3").ok().text.splitlines()), 3)
    code, shown = box.terminal("net", "net").wait()
    equal(code, 0)
    contains(shown, "DECISION")
    learned = box.run("net", "net", "--learn").ok().text
    contains(learned, f'  allow:\n    - "{PRIVATE}:80"\n')
    contains(learned, f'    - "good.test:{COUNT}"\n')
    check("evil.test" not in learned, learned)
    for host, code in ((f"good.test:{HELLO}", 0), ("good.test:22", 1), ("evil.test", 1),
                       ("x.below.test", 0), ("no.below.test", 1), (f"{OTHER}:80", 0)):
        result = box.run("net", "net", "--check", host).exits(code)
        contains(result.text, "allowed" if code == 0 else "denied", host)


@test(home="copy", timeout=420)
def a_machine_reaches_what_the_policy_says(box):
    net = Net(box)
    build(box)
    with box.up(name="net"):
        names_and_addresses(box, net)
        streams(box, net)
        live_policy(box, net)
        another_network(box, net)
    what_is_shown(box)
    # Nothing of it is kept, and a limit is told.
    box.write_boxfile("net", BOXFILE + "  limits: {bytes: 1M}\n")
    result = box.run("run", "--json", "net", "--", "sh", "-c",
                     f"nc good.test {LARGE} </dev/null | wc -c").ok().json()
    check(int(result["stdout"]) <= 1 << 20, result)
    contains(result["network_limit"], "network: ")
    equal(ended(box, "the limit", event="limit")["kind"], "bytes")
    equal(box.row("net")["state"], "built")
    through_a_proxy(box, net)
    box_net_ends(box)
    box.clean()


def through_a_proxy(box, net):
    """The host has one; the list still decides, and nothing inside knows of it."""
    environment = {"BOX_PROXY": f"http://user:hush@{PROXY}:{PROXY_PORT}",
                   "no_proxy": "a.below.test"}
    before = len(net.asked)
    box.write_boxfile("net", BOXFILE)
    result = box.sh(f"env; {get('gone.test')}; {get('a.below.test')}; {get('evil.test')}", name="net",
                    env=environment).exits(1)
    contains(result.text, "hello from the proxy\n" + f"hello from {PUBLIC}\n")
    check("hush" not in result.text and "PROXY" not in result.text.upper().replace("THE PROXY", ""),
          result)
    equal([head.split("\r\n")[0] for head in net.proxied], [f"CONNECT gone.test:{HELLO} HTTP/1.1"])
    contains(net.proxied[0], "\r\nProxy-Authorization: Basic dXNlcjpodXNo\r\n")
    equal(set(net.asked[before:]), {"a.below.test"}, "questions of a resolver")
    row = ended(box, "by proxy", event="ended", host="gone.test")
    equal((row["proxy"], row.get("address")), (200, None))
    contains(box.run("net", "net").ok().text, "\tok\tby proxy\t")
    contains(box.run("net", "net", "--check", "gone.test:80", env=environment).ok().text, "by proxy")
    box.run("run", "net", "--", "true", env={"BOX_PROXY": "socks5://user:hush@h:1"}).fails(
        "BOX_PROXY", "only http://")


def box_net_ends(box):
    """Whatever ends box-net ends the machine: no command goes on in the belief of a network."""
    running = box.start_sh("echo up; sleep 60", name="net")
    running.read_until(b"up\n")
    found = [each for each in descendants(os.getpid()) if each.name == "box-net"]
    equal(len(found), 1, "processes box-net")
    os.kill(found[0].pid, signal.SIGKILL)
    running.wait(20).fails("box-net", "has ended")
    box.clean()


@test()
def without_a_network_there_is_none(box):
    before = box.run("env", "tiny", "--json").ok().json()
    equal(before.get("network", "none"), "none")
    script = "ls /sys/class/virtio-ports; cat /sys/class/virtio-ports/*/name; " \
        f"{get('good.test')}; {get(PUBLIC)}; echo"
    with box.up():
        result = at_once(box.exec(script))
        check("box.net" not in result.text and "box.ctl" in result.text, result)
        contains(result.error, "bad address")
        found = [each.name for each in descendants(os.getpid())]
        check("box-net" not in found, found)
        box.run("net", "tiny", "--allow", "good.test").fails("has no network")
        report = box.run("inspect", "tiny", "--json").ok().json()
        equal([each["role"] for each in report["processes"]], ["monitor", "keeper"])
        equal(report["network"]["outgoing"], "none")
    equal(box.run("net", "tiny").ok().text, "")
    box.run("net", "tiny", "--check", "good.test").exits(1)
    box.run("net", "tiny", "--check", "a:b:c").fails("is not HOST")
    box.run("net", "tiny", "--learn", "--follow").fails("goes not with")
    equal(box.run("net", "tiny", "--learn").ok().text, "network:\n  allow: []\n")


@test(home="empty", timeout=420)
def a_build_reaches_what_build_network_says(box):
    net = Net(box)
    fetch = f"{get('good.test')} > /got"
    lines_of = f"run: {json.dumps([fetch, '! ' + get('evil.test'), '! ' + get(PUBLIC)])}\n"
    box.make("net", TINY + f"build_network:\n  allow: ['good.test:{HELLO}']\n" + lines_of +
             f"warmup: {json.dumps(['! ' + get('good.test')])}\n")
    box.run("build", "net", timeout=400).ok()
    equal(box.sh("cat /got", name="net").ok().text, f"hello from {PUBLIC}\n")
    equal(net.connected, [(PUBLIC, HELLO)], "connections")
    check("evil.test" not in net.asked, net.asked)
    # Its machine is in the log, and learned from under its own key.
    equal({row["machine"] for row in lines(box)}, {"build"})
    learned = box.run("net", "net", "--learn").ok().text
    contains(learned, 'network:\n  allow: []\n')
    contains(learned, f'build_network:\n  allow:\n    - "good.test:{HELLO}"\n')
    # The finished sandbox has no network, and what it was built with is a part of its image.
    check("box-net" not in [each.name for each in descendants(os.getpid())], "box-net lives")
    box.write_boxfile("net", TINY + "build_network: none\n" + lines_of)
    box.run("build", "net", timeout=400).fails("run line 1")
    equal(net.connected, [(PUBLIC, HELLO)], "connections")
    box.clean()


@test(home="empty", timeout=420)
def a_user_without_root_has_the_same_network(box):
    with as_user(box) as user:
        net = Net(user)
        user.make("net", BOXFILE)
        user.run("build", "net", timeout=400).ok()
        with user.up(name="net"):
            equal(user.exec(get("good.test"), name="net").ok().text, f"hello from {PUBLIC}\n")
            equal(user.exec(get(PRIVATE), name="net").ok().text, f"hello from {PRIVATE}\n")
            contains(at_once(user.exec(get("evil.test"), name="net")).exits(1).error, "bad address")
            contains(at_once(user.exec(get(PUBLIC), name="net")).exits(1).error, "refused")
            equal(sorted(set(net.connected)), [(PRIVATE, HELLO), (PUBLIC, HELLO)])
            found = [each for each in descendants(os.getpid()) if each.name == "box-net"]
            equal(len(found), 1, "processes box-net")
            uids = {int(each) for each in found[0].status("Uid").split()}
            check(0 not in uids and user.user.pw_uid not in uids, uids)
        user.clean()
        net.close()
