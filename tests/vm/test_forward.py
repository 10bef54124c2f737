"""TCP from the host into a machine: `network.ports` in the Boxfile, and `box forward`."""

import hashlib
import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request

from lib import MIB, TINY, check, contains, equal, skip, test, wait_until

# What listens inside. busybox starts the command for each connection, with its streams on it.
SERVERS = {
    7: "cat",
    8: "sha256sum",
    9: "cat /data/large",
    10: "sh -c 'sleep 1; exit'",
    11: "sh -c 'cat >/dev/null 2>&1; echo $? >> /tmp/codes'",
    12: "sh -c 'echo hello; cat'",
}
ECHO, DIGEST, LARGE, RESET, CODES, HELLO, NOBODY = 7, 8, 9, 10, 11, 12, 4444


def free_port(family=socket.AF_INET, address="127.0.0.1"):
    with socket.socket(family) as taken:
        taken.bind((address, 0))
        return taken.getsockname()[1]


def up(box, *servers):
    """The machine with these servers, each of which is reached when this returns."""
    box.run("up", "tiny").ok()
    for port in servers:
        box.run("exec", "--detach", "tiny", "--", "sh", "-c",
                f"exec nc -ll -p {port} -e {SERVERS[port]}").ok()
    for port in servers:
        box.run("exec", "tiny", "--", "sh", "-c",
                f"until netstat -ltn | grep -q ':{port} '; do usleep 50000; done").ok()


def down(box):
    box.run("down", "tiny").ok()
    box.clean()


def inside(box, script):
    return box.run("exec", "tiny", "--", "sh", "-c", script)


class Forward:
    """A `box forward` that runs: its port on the host is .port."""

    def __init__(self, box, target, host="0"):
        self.running = box.start("forward", "tiny", f"{host}:{target}")
        line = self.running.read_until(b"\n").decode()
        found = re.fullmatch(r"(\S+):(\d+) -> tiny:(\d+)\n", line)
        check(found, f"it says {line!r}")
        self.address, self.port = found.group(1).strip("[]"), int(found.group(2))
        equal(int(found.group(3)), target, "port inside")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.running.process.poll() is None:
            self.running.signal(signal.SIGINT)
        result = self.running.wait(20)
        if kind is None:
            check(result.code in (0, 130), result)

    def connect(self, timeout=60):
        return socket.create_connection((self.address, self.port), timeout=timeout)


def connect(port, timeout=60):
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def read_all(peer):
    pieces = []
    while data := peer.recv(1 << 18):
        pieces.append(data)
    return b"".join(pieces)


def read_some(peer, size):
    got = b""
    while len(got) < size:
        data = peer.recv(size - len(got))
        check(data, f"the connection ended after {len(got)} of {size} bytes")
        got += data
    return got


def page_of(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/page.html", timeout=60) as answer:
        return answer.status, answer.read()


def listeners(port):
    """The addresses of the host on which something listens on this port, as the kernel has them."""
    found = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}", encoding="utf-8") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
                    found.add(fields[1].split(":")[0])
    return found


@test(home="copy")
def a_page_is_fetched(box):
    page = os.urandom(300000)
    port = free_port()
    box.write_boxfile("tiny", TINY + f"network:\n  ports:\n    - {port}:80\n")
    up(box)
    contains(box.run("up", "tiny").ok().out, f"127.0.0.1:{port} -> tiny:80")
    box.run("exec", "-i", "tiny", "--", "sh", "-c",
            "mkdir /www; cat > /www/page.html; httpd -h /www -p 80", input=page).ok()
    equal(page_of(port) == (200, page), True, "the page by network.ports")
    with Forward(box, 80) as forward:
        equal(page_of(forward.port) == (200, page), True, "the page by forward")
        # Nobody else on the net reaches them.
        for each in (port, forward.port):
            equal(listeners(each), {"0100007F"}, "addresses that are listened on")
    equal(listeners(forward.port), set(), "after forward")
    equal(page_of(port) == (200, page), True, "the page once more")
    down(box)
    equal(listeners(port), set(), "after down")


@test(home="copy")
def every_byte_arrives_both_ways(box):
    up(box, ECHO, DIGEST, LARGE)
    data = os.urandom(20 * MIB)
    wanted = inside(box, "head -c 20971520 /dev/urandom > /data/large; sha256sum < /data/large")
    with Forward(box, DIGEST) as forward, forward.connect() as peer:
        peer.sendall(data)
        # The other half stays open: the answer comes after the end of what we say.
        peer.shutdown(socket.SHUT_WR)
        equal(read_all(peer).split()[0].decode(), hashlib.sha256(data).hexdigest(), "going in")
    with Forward(box, LARGE) as forward, forward.connect() as peer:
        got = read_all(peer)
        equal(len(got), 20 * MIB, "bytes that came out")
        equal(hashlib.sha256(got).hexdigest(), wanted.ok().text.split()[0], "coming out")
    with Forward(box, ECHO) as forward, forward.connect() as peer:
        sender = threading.Thread(target=lambda: (peer.sendall(data),
                                                  peer.shutdown(socket.SHUT_WR)))
        sender.start()
        got = read_all(peer)
        sender.join()
        check(got == data, f"{len(got)} bytes came back of {len(data)}, or others")
    down(box)


@test(home="copy")
def the_guest_may_end_its_half_first(box):
    up(box)
    box.run("exec", "--detach", "tiny", "--", "sh", "-c",
            "nc -l -p 20 < /etc/hostname > /tmp/got; echo done >> /tmp/got").ok()
    inside(box, "until netstat -ltn | grep -q ':20 '; do usleep 50000; done").ok()
    with Forward(box, 20) as forward, forward.connect() as peer:
        equal(read_some(peer, 5), b"tiny\n")
        peer.sendall(b"still here\n")
        peer.shutdown(socket.SHUT_WR)
        equal(read_all(peer), b"", "more than it had to say")
        wait_until("what was said at last", lambda: inside(box, "cat /tmp/got").text ==
                   "still here\ndone\n", 20)
    down(box)


def ended_within(peer, seconds):
    """How the other side ended it: "end" or "reset"."""
    peer.settimeout(seconds)
    try:
        data = peer.recv(1)
    except ConnectionResetError:
        return "reset"
    except TimeoutError:
        return None
    equal(data, b"", "from a server that is not there")
    return "end"


@test(home="copy")
def a_port_on_which_nobody_listens(box):
    port = free_port()
    box.write_boxfile("tiny", TINY + f"network:\n  ports: [\"{port}:{NOBODY}\"]\n")
    up(box, HELLO)
    with Forward(box, NOBODY) as forward:
        for number in (forward.port, port):
            for _ in range(3):
                try:
                    peer = connect(number)
                except ConnectionResetError:
                    # It was quicker than connect(2) could be told that it had worked.
                    continue
                with peer:
                    check(ended_within(peer, 5), "the connection stays open")
        check(forward.running.process.poll() is None, "forward has ended")
    # It may come to listen later.
    with Forward(box, HELLO) as forward, forward.connect() as peer:
        equal(read_some(peer, 6), b"hello\n")
    down(box)


@test(home="copy")
def a_reset_passes_both_ways(box):
    up(box, RESET, CODES)
    with Forward(box, RESET) as forward, forward.connect() as peer:
        # It ends without having read this, and its kernel says so.
        peer.sendall(b"unread")
        equal(ended_within(peer, 20), "reset", "how the guest's reset arrived")
    with Forward(box, CODES) as forward:
        with forward.connect() as peer:
            peer.sendall(b"one")
        wait_until("the end inside", lambda: inside(box, "cat /tmp/codes").text == "0\n", 20)
        peer = forward.connect()
        peer.sendall(b"two")
        time.sleep(0.5)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        wait_until("the reset inside", lambda: inside(box, "cat /tmp/codes").text == "0\n1\n", 20)
    down(box)


@test(home="copy")
def a_port_that_is_taken(box):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        wanted = f"port {port} of 127.0.0.1 is taken"
        box.write_boxfile("tiny", TINY + f"network:\n  ports: [\"{port}:80\"]\n")
        box.run("up", "tiny").fails(wanted)
        box.clean()
        box.run("exec", "tiny", "--", "true").fails("is not up")
        # A run has no ports, so it does not mind.
        box.sh("true").ok()
        box.write_boxfile("tiny", TINY)
        up(box, HELLO)
        box.run("forward", "tiny", f"{port}:{HELLO}").fails(wanted)
    with Forward(box, HELLO, str(port)) as forward, forward.connect() as peer:
        equal(forward.port, port)
        equal(read_some(peer, 6), b"hello\n")
        box.run("forward", "tiny", f"{port}:{HELLO}").fails(wanted)
    # What was used just now can be used again.
    with Forward(box, HELLO, str(port)) as forward, forward.connect() as peer:
        equal(read_some(peer, 6), b"hello\n")
    down(box)


@test(home="copy")
def a_hundred_connections_at_once(box):
    up(box, HELLO)
    with Forward(box, HELLO) as forward:
        peers = []
        for _ in range(100):
            # One after the other: no more than a few may wait to be accepted by this server.
            peers.append(forward.connect())
            equal(read_some(peers[-1], 6), b"hello\n")
        texts = [f"{number}:".encode() + os.urandom(3000) for number in range(100)]
        for peer, text in zip(peers, texts):
            peer.sendall(text)
        for number, (peer, text) in enumerate(zip(peers, texts)):
            check(read_some(peer, len(text)) == text, f"connection {number} has other bytes")
        # All are open still.
        for peer in reversed(peers):
            peer.sendall(b"x")
        for peer in peers:
            equal(read_some(peer, 1), b"x")
            peer.close()
        wait_until("the end of all inside", lambda: inside(
            box, "pidof cat | wc -w").text == "0\n", 30)
        with forward.connect() as peer:
            equal(read_some(peer, 6), b"hello\n")
    down(box)


@test(home="copy")
def a_connection_lives_beside_commands(box):
    port = free_port()
    box.write_boxfile("tiny", TINY + f"network:\n  ports: [\"{port}:{ECHO}\"]\n")
    up(box, ECHO)
    with Forward(box, ECHO) as forward, forward.connect() as first, connect(port) as second:
        for number in range(5):
            inside(box, f"exit {number}").exits(number)
            box.run("exec", "--timeout", "1", "tiny", "--", "sleep", "60").exits(124) \
                if number == 3 else None
            text = f"round {number}\n".encode()
            for peer in (first, second):
                peer.sendall(text)
                equal(read_some(peer, len(text)), text)
        # A command that floods its reader holds nobody up.
        flood = box.start("exec", "tiny", "--", "yes")
        flood.read_until(b"y\n")
        for peer in (first, second):
            peer.sendall(b"through")
            equal(read_some(peer, 7), b"through")
        flood.signal(signal.SIGKILL)
        flood.wait(20)
    down(box)


@test(home="copy")
def a_reader_that_does_not_read_holds_up_nobody(box):
    up(box, ECHO, LARGE)
    inside(box, "head -c 12000000 /dev/zero > /data/large").ok()
    with Forward(box, LARGE) as slow, Forward(box, ECHO) as quick:
        with slow.connect() as idle, quick.connect() as peer:
            time.sleep(2)
            peer.sendall(b"through")
            equal(read_some(peer, 7), b"through")
            check(box.keeper().status("VmHWM") < 64 * MIB, "the keeper holds it all")
            equal(len(read_all(idle)), 12000000, "bytes at last")
    down(box)


@test(home="copy")
def forward_ends(box):
    up(box, HELLO)
    for number in (signal.SIGINT, signal.SIGTERM):
        forward = Forward(box, HELLO)
        with forward.connect() as peer:
            equal(read_some(peer, 6), b"hello\n")
            forward.running.signal(number)
            result = forward.running.wait(10)
            check(result.code in (0, 128 + number), result)
            # Its connections end with it.
            check(ended_within(peer, 10), "the connection stays open")
        equal(listeners(forward.port), set(), "after its end")
    forward = Forward(box, HELLO)
    forward.running.signal(signal.SIGKILL)
    forward.running.wait(10)
    forward = Forward(box, HELLO)
    with forward.connect() as peer:
        equal(read_some(peer, 6), b"hello\n")
        box.run("down", "tiny").ok()
        forward.running.wait(10).fails()
        check(ended_within(peer, 10), "the connection stays open")
    box.clean()


@test(home="copy")
def a_machine_that_dies_ends_it(box):
    up(box, HELLO)
    for victim in ("monitor", "keeper"):
        forward = Forward(box, HELLO)
        with forward.connect() as peer:
            equal(read_some(peer, 6), b"hello\n")
            os.kill(box.monitor().pid if victim == "monitor" else box.keeper().pid, signal.SIGKILL)
            forward.running.wait(10).fails()
            check(ended_within(peer, 10), "the connection stays open")
        box.run("down", "tiny").ok()
        box.clean()
        if victim == "monitor":
            up(box, HELLO)


@test(home="copy")
def addresses_of_version_6(box):
    try:
        port = free_port(socket.AF_INET6, "::1")
    except OSError:
        skip("this host has no ::1")
    box.write_boxfile("tiny", TINY + f"network:\n  ports: [\"[::1]:{port}:{HELLO}\"]\n")
    up(box, HELLO)
    contains(box.run("up", "tiny").ok().out, f"[::1]:{port} -> tiny:{HELLO}")
    with socket.create_connection(("::1", port), timeout=60) as peer:
        equal(read_some(peer, 6), b"hello\n")
    with Forward(box, HELLO, "[::1]:0") as forward, forward.connect() as peer:
        equal(forward.address, "::1")
        equal(read_some(peer, 6), b"hello\n")
    # And a server that listens on nothing else inside.
    inside(box, "mkdir /www; echo six > /www/page.html; httpd -h /www -p '[::1]:81'").ok()
    with Forward(box, 81) as forward:
        equal(page_of(forward.port), (200, b"six\n"))
    down(box)


@test(home="copy")
def other_addresses_of_the_host(box):
    up(box, HELLO)
    with Forward(box, HELLO, "127.0.0.5:0") as forward, forward.connect() as peer:
        equal(forward.address, "127.0.0.5")
        equal(read_some(peer, 6), b"hello\n")
    # TEST-NET-1 is no address of this host.
    box.run("forward", "tiny", "192.0.2.1:0:80").fails("192.0.2.1")
    down(box)


@test(home="copy")
def what_cannot_be_read_is_refused(box):
    box.run("forward", "tiny", "8080:80").fails("is not up")
    box.run("forward", "nothing-here", "8080:80").fails("nothing-here")
    for bad in ("80", "", ":", "a:b", "8080:0", "8080:", ":80", "70000:80", "80:70000", "1:2:3:4",
                "::1:8080:80", "[::1:8080:80", "[127.0.0.1]:8080:80", "256.0.0.1:8080:80",
                "host.example:8080:80", "-1:80", " 8080:80", "8080:80x", "0x50:80", "8080:80\n",
                "127.0.0.1:8080", "8080:80\x1b[31m", "1" * 5000 + ":80"):
        result = box.run("forward", "tiny", bad).fails()
        check("\x1b" not in result.error and len(result.error) < 2000, result)
    box.run("forward", "tiny").exits(125)
    for bad in ("8080", "0:80", "8080:0", "a:b", "[::1]:80"):
        box.write_boxfile("tiny", TINY + f"network:\n  ports: [\"{bad}\"]\n")
        box.run("up", "tiny").fails("ports")
    box.write_boxfile("tiny", TINY)
    box.clean()


@test(home="copy")
def its_line_comes_at_once(box):
    up(box, HELLO)
    # A script that reads it from a pipe needs it while forward runs, and its reader may go.
    running = box.start("forward", "tiny", f"0:{HELLO}")
    ready, _, _ = select.select([running.process.stdout], [], [], 20)
    check(ready, "it says nothing")
    running.read_until(b"\n")
    running.process.stdout.close()
    running.process.stdout = None
    time.sleep(0.2)
    check(running.process.poll() is None, "it ended with its reader")
    running.signal(signal.SIGINT)
    running.wait(10)
    full = box.start("forward", "tiny", f"0:{HELLO}",
                     stdout=subprocess.DEVNULL if not os.path.exists("/dev/full")
                     else os.open("/dev/full", os.O_WRONLY))
    if os.path.exists("/dev/full"):
        contains(full.wait(10).exits(125).err, "No space left")
    else:
        full.signal(signal.SIGINT)
        full.wait(10)
    down(box)
