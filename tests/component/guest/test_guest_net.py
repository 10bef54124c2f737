#!/usr/bin/env python3
"""The guest's side of box's network, in network namespaces, against a host that the test plays.

usage: test_guest_net.py NET-LIFE

Each test is a process in a namespace of its own. Needs root. Prints TAP.
"""

import errno
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

from net_host import (  # noqa: E402  (the folder must be known first)
    A, AAAA, ANY, DATA, EOF, FAILED, HELLO, HTTPS, MAGIC, MX, OPEN, OPENED, PTR, RESET, RESOLVED,
    CREDIT, SERVER, SRV, SVCB, TESTS, TXT, UP_WINDOW, V4, V6, VERSION, WINDOW, answers, attempt,
    booted, connected, dns, echo, equal, exactly, example, frame, new_network, question, test)

# What takes less has not waited for a SYN to be repeated, which is after a second.
AT_ONCE = 0.95


@test
def test_names():
    """A and AAAA of names that may be used; the same address each time; both kinds always."""
    life = booted(example)
    code, first = dns("example.com")
    equal((code, first), (0, ["198.18.0.16"]))
    equal(dns("EXAMPLE.com", AAAA), (0, ["fd62:6f78:6e65:7400::10"]))
    equal(dns("example.com")[1], first)
    equal(dns("four.example", AAAA), (0, ["fd62:6f78:6e65:7400::11"]))
    equal(dns("six.example", A), (0, ["198.18.0.18"]))
    equal(dns("none.example"), (0, []))
    equal(life.host.asked, ["example.com", "four.example", "six.example", "none.example"])
    for kind in (HTTPS, SVCB, MX, TXT, SRV):
        equal(dns("example.com", kind), (0, []), f"type {kind}")
    equal(dns("example.com", ANY), (5, []), "ANY")


@test
def test_names_that_are_not():
    """What is denied does not exist; trouble is a temporary failure; other servers, EDNS, IPv6."""
    life = booted(example)
    equal(dns("denied.example"), (3, []))
    equal(dns("gone.example", AAAA), (3, []))
    equal(dns("broken.example"), (2, []))
    equal(dns("denied.example", MX), (3, []))
    equal(dns("example.com", server=("8.8.8.8", 53), edns=True), (0, ["198.18.0.16"]))
    equal(dns("example.com", server=("fd62:6f78:6e65:7400::1", 53), family=V6)[0], 0)
    equal(dns("example.com", AAAA, server=("2001:4860:4860::8888", 53), family=V6)[0], 0)
    equal(dns("localhost"), (0, ["127.0.0.1"]))
    equal(dns("a.localhost", AAAA), (0, ["::1"]))
    equal(dns(socket.gethostname().lower(), A), (0, ["198.18.0.2"]))
    assert "localhost" not in life.host.asked


@test
def test_reverse():
    """Addresses of the pool have names; all others have none, and the host is not asked."""
    life = booted(example)
    dns("example.com")
    equal(dns("16.0.18.198.in-addr.arpa", PTR), (0, [b"\7example\3com\0"]))
    nibbles = ".".join("fd626f786e657400" "0000000000000010"[::1])[::-1]
    equal(dns(nibbles + ".ip6.arpa", PTR), (0, [b"\7example\3com\0"]))
    for name in ("17.0.18.198.in-addr.arpa", "8.8.8.8.in-addr.arpa", "1.168.192.in-addr.arpa"):
        equal(dns(name, PTR), (3, []), name)
    equal(dns("16.0.18.198.in-addr.arpa", TXT)[1], [])
    equal(life.host.asked, ["example.com"])


@test
def test_dns_over_tcp():
    """Questions over TCP, two in one piece, and one that the host answers late."""
    life = booted(example)
    with socket.create_connection(SERVER, 5) as sock:
        both = b""
        for name in ("example.com", "denied.example"):
            message = question(name, A)
            both += struct.pack(">H", len(message)) + message
        sock.sendall(both)
        got = []
        for _ in range(2):
            size = struct.unpack(">H", exactly(sock, 2))[0]
            got.append(answers(exactly(sock, size)))
        equal(got, [(0, ["198.18.0.16"]), (3, [])])
        sock.sendall(b"\xff\xff")
        equal(sock.recv(1), b"", "a question that is too large")
    equal(len(life.host.streams), 0)


@test
def test_garbage_questions():
    """What is no question gets no answer or an error, and others are answered."""
    life = booted(example)
    with socket.socket(V4, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1)
        sock.connect(SERVER)
        for data in (b"", b"\0", b"x" * 11, os.urandom(500), question("example.com", A)[:-3],
                     b"\x12\x34\x80\0" + question("example.com", A)[4:]):
            sock.send(data)
        sock.send(question("example.com", A))
        for _ in range(6):
            message = sock.recv(512)
            if answers(message) == (0, ["198.18.0.16"]):
                break
        else:
            raise AssertionError("no answer")
    equal(life.host.asked, ["example.com"])


@test
def test_connect():
    """By name, by address of either kind; bytes and ends both ways."""
    life = booted(example)
    host = life.host
    echo(host)
    dns("example.com")
    for address, family, target in (("198.18.0.16", V4, "example.com"),
                                    ("fd62:6f78:6e65:7400::10", V6, "example.com"),
                                    ("93.184.216.34", V4, "93.184.216.34"),
                                    ("10.0.0.1", V4, "10.0.0.1"),
                                    ("169.254.169.254", V4, "169.254.169.254"),
                                    ("2606:2800::1", V6, "2606:2800::1")):
        sock = connected(address, 7, family)
        equal(sock.getpeername()[:2], (address, 7))
        equal(sock.getsockname()[0], "198.18.0.2" if family == V4 else "fd62:6f78:6e65:7400::2")
        equal((host.stream().target, host.stream().port), (target, 7))
        sock.sendall(b"hello")
        equal(exactly(sock, 5), b"hello")
        sock.shutdown(socket.SHUT_WR)
        equal(sock.recv(1), b"", "the end")
        sock.close()
    equal(host.errors, [])


@test
def test_errors_of_connect():
    """connect fails with what the host saw, at once."""
    life = booted(lambda host: host.rules.update({
        1: errno.ECONNREFUSED, 2: errno.EHOSTUNREACH, 3: errno.ENETUNREACH,
        4: errno.ECONNRESET}))
    for address, family in (("93.184.216.34", V4), ("2606:2800::1", V6)):
        for port, wanted in ((1, errno.ECONNREFUSED), (2, errno.EHOSTUNREACH),
                             (3, errno.ENETUNREACH), (4, errno.ECONNREFUSED),
                             (5, errno.ECONNREFUSED)):
            code, took, _ = attempt(address, port, family)
            equal(code, wanted, f"{address} {port}")
            assert took < AT_ONCE, took
    # An address of the pool that no name has.
    count = len(life.host.streams)
    code, took, _ = attempt("198.18.9.9", 443)
    equal(code, errno.ECONNREFUSED)
    equal(len(life.host.streams), count)


@test
def test_held_until_the_host_has_connected():
    """connect takes as long as the host needs, also longer than a SYN waits to be repeated."""
    life = booted(lambda host: host.rules.update({443: None}))
    life.host.delay = 0.3
    code, took, sock = attempt("93.184.216.34", 443)
    equal(code, 0)
    assert 0.3 <= took < AT_ONCE, took
    sock.close()
    life.host.delay = 2.5
    code, took, sock = attempt("2606:2800::1", 443, V6)
    equal(code, 0)
    assert 2.5 <= took < 3, took
    equal(len(life.host.streams), 2, "one OPEN for one connection")


@test
def test_time_out():
    """The host's ETIMEDOUT lets the program time out, and is asked no second time."""
    life = booted(lambda host: host.rules.update({443: errno.ETIMEDOUT}))
    sock = socket.socket()
    # TCP_SYNCNT: two repetitions, 7 seconds.
    sock.setsockopt(socket.IPPROTO_TCP, 7, 2)
    before = time.monotonic()
    equal(sock.connect_ex(("93.184.216.34", 443)), errno.ETIMEDOUT)
    assert time.monotonic() - before > 2
    equal(len(life.host.streams), 1)
    with open("/proc/sys/net/ipv4/tcp_syn_retries", encoding="ascii") as file:
        equal(file.read(), "4\n")


@test
def test_host_that_never_answers():
    """The program gives up; what it asked for is taken back where that can be seen."""
    life = booted(lambda host: host.rules.update({443: "silent", 444: None}))
    code, _, sock = attempt("93.184.216.34", 443, seconds=1.5)
    equal(code, errno.EINPROGRESS)
    sock.close()
    # Meanwhile others are served.
    connected("93.184.216.34", 444).close()
    # The host connects after all: the kernel knows nothing of it any more.
    late = life.host.stream(0)
    life.host.send(frame(OPENED, late.number))
    life.host.wait(lambda: late.reset, "no RESET for a program that has gone", 15)


@test
def test_half_close():
    """The host ends first, the program goes on; and the other way round."""
    life = booted(lambda host: host.rules.update({443: None}))
    host = life.host
    sock = connected("93.184.216.34", 443)
    stream = host.stream()
    host.send(frame(DATA, stream.number, b"last words") + frame(EOF, stream.number))
    equal(exactly(sock, 100), b"last words")
    sock.sendall(b"still here")
    host.wait(lambda: bytes(stream.data) == b"still here", "bytes after the host's end")
    assert not stream.eof
    sock.close()
    host.wait(lambda: stream.eof, "no EOF")
    sock = connected("93.184.216.34", 443)
    stream = host.stream()
    sock.shutdown(socket.SHUT_WR)
    host.wait(lambda: stream.eof, "no EOF")
    for _ in range(5):
        host.send(frame(DATA, stream.number, b"x" * 20000))
    equal(len(exactly(sock, 100000)), 100000)
    host.send(frame(EOF, stream.number))
    equal(sock.recv(1), b"")
    assert not stream.reset


@test
def test_resets():
    """A reset of either side reaches the other one."""
    life = booted(lambda host: host.rules.update({443: None}))
    host = life.host
    sock = connected("93.184.216.34", 443)
    host.send(frame(RESET, host.stream().number))
    try:
        sock.recv(1)
        raise AssertionError("no reset")
    except ConnectionResetError:
        pass
    # By the program.
    sock = connected("93.184.216.34", 443)
    stream = host.stream()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    host.wait(lambda: stream.reset, "no RESET")
    # By the program, while the host gives no credit.
    host.generous = False
    sock = connected("93.184.216.34", 443)
    stream = host.stream()
    sock.sendall(b"x" * UP_WINDOW)
    host.wait(lambda: stream.credit == 0, "the window was not used")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    host.wait(lambda: stream.reset, "no RESET without credit")
    # By the program's end, when the host still sends.
    host.generous = True
    sock = connected("93.184.216.34", 443)
    stream = host.stream()
    sock.close()
    host.wait(lambda: stream.eof, "no EOF")
    host.send(frame(DATA, stream.number, b"too late"))
    host.wait(lambda: stream.reset, "no RESET for bytes that nobody takes")
    # Between OPENED and the program's connection.
    host.on_open = lambda stream: host.send(frame(RESET, stream.number))
    code, _, sock = attempt("93.184.216.34", 443)
    if code == 0:
        try:
            sock.recv(1)
            raise AssertionError("no reset")
        except ConnectionResetError:
            pass
    else:
        equal(code, errno.ECONNRESET)


@test
def test_a_reset_before_the_agent_has_looked():
    """A program that connects and resets at once is told to the host, and its place is free."""
    life = booted(lambda host: host.rules.update({443: None}))
    # On one processor, and before the agent: this test goes on as soon as it is connected.
    processors = {min(os.sched_getaffinity(0))}
    os.sched_setaffinity(0, processors)
    os.sched_setaffinity(life.pid, processors)
    os.sched_setscheduler(life.pid, os.SCHED_IDLE, os.sched_param(0))
    for address, family in (("93.184.216.34", V4), ("2606:2800::1", V6)) * 2:
        sock = connected(address, 443, family)
        stream = life.host.stream()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        life.host.wait(lambda s=stream: s.reset, "no RESET", 8)


@test
def test_slow_reader():
    """A program that does not read stops its own stream; nothing is lost."""
    life = booted(lambda host: host.rules.update({443: None, 7: None}))
    host = life.host
    echo_host = host
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("93.184.216.34", 443))
    stream = host.stream()
    sent, window = 0, WINDOW
    granted = [0]

    original = host.take

    def take(kind, number, payload):
        if kind == CREDIT and number == stream.number:
            granted[0] += struct.unpack("<I", payload)[0]
        original(kind, number, payload)
    host.take = take
    pattern = os.urandom(1 << 16) * 64
    while True:
        piece = min(16384, WINDOW + granted[0] - sent)
        if piece == 0:
            with host.lock:
                if not host.lock.wait_for(lambda: granted[0] + WINDOW > sent, 1):
                    break
            continue
        host.send(frame(DATA, stream.number, pattern[sent:sent + piece]))
        sent += piece
        assert sent < len(pattern), "nothing stops the host"
    assert window <= sent
    # Another stream goes on meanwhile.
    echo(echo_host)
    other = connected("93.184.216.34", 7)
    other.sendall(b"alive")
    equal(exactly(other, 5), b"alive")
    host.send(frame(EOF, stream.number))
    got = b""
    while True:
        piece = sock.recv(1 << 16)
        if not piece:
            break
        got += piece
    equal(len(got), sent)
    equal(got, pattern[:sent])


@test
def test_slow_host():
    """A host that gives no credit stops the program; nothing is lost."""
    life = booted(lambda host: host.rules.update({443: None}))
    host = life.host
    host.generous = False
    sock = connected("93.184.216.34", 443)
    stream = host.stream()
    pattern = os.urandom(1 << 16) * 256
    sock.setblocking(False)
    sent = 0
    last = time.monotonic()
    while time.monotonic() - last < 1:
        try:
            sent += sock.send(pattern[sent:])
            last = time.monotonic()
        except BlockingIOError:
            time.sleep(0.05)
    equal(len(stream.data), UP_WINDOW)
    assert sent < len(pattern)
    host.generous = True
    host.grant(stream, UP_WINDOW)
    sock.setblocking(True)
    sock.sendall(pattern[sent:])
    sock.close()
    host.wait(lambda: stream.eof, "no EOF", 30)
    equal(len(stream.data), len(pattern))
    assert stream.data == pattern
    equal(host.errors, [])


@test
def test_five_hundred_at_once():
    """500 connections at once, each with bytes of its own."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    life = booted(example)
    host = life.host
    echo(host)
    dns("example.com")
    socks = []
    for i in range(500):
        sock = socket.socket()
        sock.setblocking(False)
        code = sock.connect_ex(("198.18.0.16", 7))
        assert code in (0, errno.EINPROGRESS), code
        socks.append(sock)
    before = time.monotonic()
    for i, sock in enumerate(socks):
        sock.setblocking(True)
        sock.settimeout(20)
        sock.sendall(b"number %d\n" % i)
    for i, sock in enumerate(socks):
        wanted = b"number %d\n" % i
        equal(exactly(sock, len(wanted)), wanted)
        sock.close()
    assert time.monotonic() - before < 20
    equal(len(host.streams), 500)
    host.wait(lambda: all(stream.eof for stream in host.streams.values()), "not all ended", 20)
    equal(host.errors, [])


@test
def test_more_than_the_most():
    """1,024 streams are the most; the next one waits until one has ended."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    life = booted(lambda host: host.rules.update({443: None}))
    socks = []
    for _ in range(1024):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("93.184.216.34", 443))
        socks.append(sock)
    life.host.wait(lambda: len(life.host.streams) == 1024, "not all were asked for", 30)
    extra = socket.socket()
    extra.setblocking(False)
    extra.connect_ex(("93.184.216.34", 443))
    time.sleep(0.5)
    equal(len(life.host.streams), 1024)
    for sock in socks[:10]:
        sock.setblocking(True)
        sock.sendall(b"x")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    poll = select.poll()
    poll.register(extra, select.POLLOUT)
    assert poll.poll(10000), "no place was found for the next one"
    equal(extra.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)


@test
def test_other_traffic():
    """UDP other than DNS is refused at once; ping says that there is no way; own addresses work."""
    life = booted(example)
    for family, address in ((V4, "8.8.8.8"), (V6, "2606:2800::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.settimeout(2)
            sock.connect((address, 443))
            sock.send(b"quic")
            try:
                sock.recv(1)
                raise AssertionError("an answer")
            except ConnectionRefusedError:
                pass
    for family, proto, address in ((V4, 1, "8.8.8.8"), (V6, 58, "2606:2800::1")):
        with socket.socket(family, socket.SOCK_RAW, proto) as sock:
            try:
                sock.sendto(b"\x08\0\0\0\0\0\0\0" if family == V4 else b"\x80" + b"\0" * 7,
                            (address, 0))
                raise AssertionError("a ping went out")
            except OSError as error:
                equal(error.errno, errno.ENETUNREACH)
    # A server on all addresses gets what is for this machine, and nothing else.
    server = socket.create_server(("0.0.0.0", 443))
    connected("127.0.0.1", 443).close()
    equal(server.accept()[1][0], "127.0.0.1")
    connected("198.18.0.2", 443).close()
    equal(server.accept()[1][0], "198.18.0.2")
    count = len(life.host.streams)
    connected("93.184.216.34", 443)
    equal(len(life.host.streams), count + 1)
    equal(attempt("127.0.0.1", 444)[0], errno.ECONNREFUSED)
    equal(attempt("198.18.0.2", 444)[0], errno.ECONNREFUSED)
    equal(len(life.host.streams), count + 1)


@test
def test_a_server_on_a_port_in_use_outside():
    """A server inside may have the port that connections to the world have."""
    life = booted(lambda host: host.rules.update({443: None}))
    sock = connected("93.184.216.34", 443)
    server = socket.create_server(("0.0.0.0", 443))
    connected("127.0.0.1", 443).close()
    sock.close()
    server.close()
    life.host.wait(lambda: life.host.stream().eof, "no EOF")


@test
def test_an_agent_that_is_killed():
    """Connections break, new ones are refused at once, DNS fails; the next life has all again."""
    life = booted(example)
    dns("example.com")
    sock = connected("198.18.0.16", 443)
    equal(life.say("stop"), "stopped")
    try:
        equal(sock.recv(1), b"")
    except ConnectionResetError:
        pass
    for address, family in (("93.184.216.34", V4), ("2606:2800::1", V6)):
        code, took, _ = attempt(address, 443, family)
        equal(code, errno.ECONNREFUSED)
        assert took < AT_ONCE
    try:
        dns("example.com")
        raise AssertionError("an answer")
    except ConnectionRefusedError:
        pass
    equal(life.say("forget"), "forgotten")
    life.start(example)
    equal(dns("four.example"), (0, ["198.18.0.16"]))
    connected("198.18.0.16", 443)
    equal(life.host.stream().target, "four.example")


@test
def test_a_copy_of_a_paused_machine():
    """Its programs go on: the agent is replaced, connections break, addresses keep their names."""
    life = booted(example)
    equal(dns("example.com"), (0, ["198.18.0.16"]))
    sock = connected("198.18.0.16", 443)
    life.start(example)
    try:
        equal(sock.recv(1), b"")
    except ConnectionResetError:
        pass
    connected("198.18.0.16", 443)
    equal(life.host.stream().target, "example.com")
    equal(dns("six.example"), (0, ["198.18.0.17"]))


@test
def test_a_new_agent_on_the_same_port():
    """A machine of the pool: the host stays, also with half a frame under way to the one before."""
    life = booted(example)
    host = life.host
    sock = connected("93.184.216.34", 443)
    number = host.stream().number
    equal(life.say("stop"), "stopped")
    half = frame(DATA, number, b"x" * 1000)
    host.send(half[:500])
    life.start_agent()
    host.wait(lambda: host.hellos == 2, "no HELLO of the new agent")
    equal(dns("example.com"), (0, ["198.18.0.16"]))
    again = connected("198.18.0.16", 443)
    host.send(frame(DATA, host.stream().number, b"hello"))
    equal(exactly(again, 5), b"hello")
    sock.close()
    equal(host.errors, [])


@test
def test_a_port_that_is_lost():
    """The agent ends; nothing hangs."""
    life = booted(example)
    connected("93.184.216.34", 443)
    life.host.near.shutdown(socket.SHUT_RDWR)
    life.host.near.close()
    equal(life.say("reap"), "ended")
    equal(attempt("93.184.216.34", 443)[0], errno.ECONNREFUSED)


@test
def test_a_program_that_is_unloaded():
    """Without the BPF program there is no network and nothing hangs."""
    life = booted(example)
    sock = connected("93.184.216.34", 443)
    equal(life.say("detach"), "detached")
    code, took, _ = attempt("93.184.216.34", 443)
    equal(code, errno.ECONNREFUSED)
    assert took < AT_ONCE
    sock.sendall(b"what there is goes on")
    life.host.wait(lambda: len(life.host.stream().data) == 21, "the connection is broken")


def frames_that_break():
    """What no host may send."""
    return [frame(99), frame(RESOLVED, 0, b"\0" * 6), frame(RESOLVED, 0, b"\xff" * 6),
            frame(HELLO, 1, b"\0" * 14), b"\xff" * 64,
            frame(HELLO, 0, struct.pack("<IQH", MAGIC, 0, VERSION)),
            frame(OPENED, 0), frame(DATA, 5), frame(OPEN, 1, b"x" * 20)]


@test
def test_a_host_that_breaks_the_protocol():
    """The agent ends, and says why."""
    for bad in frames_that_break():
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                new_network()
                life = booted(example)
                connected("93.184.216.34", 443)
                life.host.send(bad)
                equal(life.say("reap"), "ended")
                code = 0
            except AssertionError:
                traceback.print_exc()
            finally:
                os._exit(code)
        equal(os.waitpid(pid, 0)[1], 0, repr(bad[:20]))


@test
def test_rest_of_an_earlier_frame():
    """What was for an agent before is dropped, its HELLO too, up to the answer to this one's."""
    life = booted(example, polite=False)
    host = life.host
    host.wait(lambda: host.hellos == 1, "no HELLO")
    hello = host.hello()
    host.send(os.urandom(9999) + host.hello(token=host.token ^ 1) + hello[:10] + hello[:23])
    time.sleep(0.2)
    host.send(hello[:5])
    time.sleep(0.1)
    host.send(hello[5:])
    equal(dns("example.com")[0], 0)
    connected("93.184.216.34", 443)


@test
def test_a_host_of_another_version():
    """The agent ends, and says why."""
    life = booted(example, polite=False)
    life.host.wait(lambda: life.host.hellos == 1, "no HELLO")
    life.host.send(life.host.hello(version=VERSION + 1))
    equal(life.say("reap"), "ended")
    equal(attempt("93.184.216.34", 443)[0], errno.ECONNREFUSED)


@test
def test_before_the_host_is_there():
    """What programs ask before the host says HELLO waits for it."""
    life = booted(example, polite=False)
    results = []
    thread = threading.Thread(target=lambda: results.append(attempt("93.184.216.34", 443)[0]))
    thread.start()
    time.sleep(0.4)
    equal(results, [])
    life.host.greet()
    thread.join()
    equal(results, [0])


def ip(*words):
    """ip(8)."""
    subprocess.run(("ip",) + words, check=True)


def in_namespace(script):
    """Runs a piece of Python in the namespace "inner" below; its output."""
    return subprocess.run(["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", script],
                          check=True, capture_output=True, text=True, timeout=60).stdout


NAMESPACE = f"box-test-net-{os.getpid()}"


@test
def test_networks_made_inside():
    """A namespace with veth reaches the machine, and the world by the same way."""
    life = booted(example)
    host = life.host
    echo(host)
    ip("netns", "add", NAMESPACE)
    try:
        ip("link", "add", "near", "type", "veth", "peer", "name", "far", "netns", NAMESPACE)
        ip("addr", "add", "10.88.0.1/24", "dev", "near")
        ip("addr", "add", "fd00:88::1/64", "dev", "near", "nodad")
        ip("link", "set", "near", "up")
        for words in (("link", "set", "lo", "up"), ("link", "set", "far", "up"),
                      ("addr", "add", "10.88.0.2/24", "dev", "far"),
                      ("addr", "add", "fd00:88::2/64", "dev", "far", "nodad"),
                      ("route", "add", "default", "via", "10.88.0.1"),
                      ("route", "add", "default", "via", "fd00:88::1")):
            ip("-n", NAMESPACE, *words)
        server = socket.create_server(("0.0.0.0", 8080))
        time.sleep(0.3)
        # To the machine itself, on an address that was added after the agent began.
        in_namespace("import socket; socket.create_connection(('10.88.0.1', 8080), 5)")
        equal(server.accept()[1][0], "10.88.0.2")
        # From the machine to it: not taken for the world.
        equal(attempt("10.88.0.2", 8080)[0], errno.ECONNREFUSED)
        equal(attempt("fd00:88::2", 8080, V6)[0], errno.ECONNREFUSED)
        equal(len(host.streams), 0)
        # Out, by both kinds of address, with the host's errors.
        for address in ("93.184.216.34", "2606:2800::1"):
            equal(in_namespace(f"""
import socket
s = socket.create_connection(('{address}', 7), 5)
s.sendall(b'hello')
print(s.recv(5))
print(socket.socket(s.family).connect_ex(('{address}', 9)))
"""), f"b'hello'\n{errno.ECONNREFUSED}\n")
        host.rules[9] = errno.EHOSTUNREACH
        equal(in_namespace("import socket; "
                           "print(socket.socket().connect_ex(('93.184.216.34', 9)))"),
              f"{errno.EHOSTUNREACH}\n")
        # Names, asked of any server.
        message = question("example.com", A)
        equal(in_namespace(f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
s.connect(('8.8.8.8', 53)); s.send({message!r}); print(s.recv(512)[-4:])
"""), "b'\\xc6\\x12\\x00\\x10'\n")
        equal(attempt("10.88.0.1", 8081)[0], errno.ECONNREFUSED)
        ip("addr", "del", "10.88.0.1/24", "dev", "near")
        time.sleep(0.2)
        host.rules[8081] = None
        equal(attempt("10.88.0.1", 8081)[0], 0)
    finally:
        ip("netns", "del", NAMESPACE)


@test
def test_a_flood_of_questions():
    """Many askers of one name are one question for the host; too many names do not hang others."""
    life = booted(example)
    host = life.host
    host.silent = True
    socks = []
    for i in range(100):
        sock = socket.socket(V4, socket.SOCK_DGRAM)
        sock.settimeout(5)
        sock.connect(SERVER)
        sock.send(question("example.com", A))
        socks.append(sock)
    time.sleep(0.3)
    equal(host.asked, ["example.com"])
    host.silent = False
    host.resolved(0, "example.com")
    for sock in socks:
        equal(answers(sock.recv(512)), (0, ["198.18.0.16"]))
    host.silent = True
    for i in range(600):
        socks[i % 100].send(question(f"n{i}.example", A))
    time.sleep(0.5)
    equal(len(host.asked), 1 + 256)
    equal(dns("example.com"), (0, ["198.18.0.16"]))


def run_test(function):
    """Runs one test in a process and a namespace of its own. Returns its failure, or None."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        message = ""
        try:
            signal.alarm(90)
            new_network()
            function()
        except BaseException:  # noqa: B902  (also an exit is a failure)
            message = traceback.format_exc()
        os.write(writer, message.encode()[:60000])
        os._exit(1 if message else 0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as file:
        message = file.read()
    status = os.waitpid(pid, 0)[1]
    return None if status == 0 else message or f"status {status}"


def main():
    """Runs all tests, or those that are named in ONLY."""
    only = os.environ.get("ONLY", "").split()
    tests = [function for function in TESTS if not only or function.__name__ in only]
    if os.geteuid() != 0:
        print("1..0 # SKIP needs root to make network namespaces")
        return 0
    failed = 0
    print(f"1..{len(tests)}")
    for number, function in enumerate(tests, 1):
        message = run_test(function)
        print(f"{'not ok' if message else 'ok'} {number} - {function.__name__}", flush=True)
        for line in (message or "").split("\n") if message else []:
            failed += not line
            print(f"# {line}", flush=True)
        failed += bool(message)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
