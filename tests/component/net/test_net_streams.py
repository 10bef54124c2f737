#!/usr/bin/env python3
"""box-net in its jail: bytes, ends, limits, policies that change, and guests that break the rules.

usage: test_net_streams.py BOX-NET NET-HOST [PATTERN]
"""

import errno
import random
import socket
import struct
import threading
import time
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from harness import (PUBLIC, PUBLIC6, RESOLVER, CONF, REFUSED, NO_RULE, NO_CONNECTIONS,
                     NO_BYTES, END_BOTH, END_GUEST, END_SERVER, END_POLICY, END_PORT,
                     LIMIT_CONNECTIONS, LIMIT_BYTES, LIMIT_PROTOCOL, LIMIT_CLOSED, DENIED,
                     ZONE, test, equal, allow, main)  # noqa: E402
import peers  # noqa: E402
from peers import (CONNECTED, CREDIT, DATA, ENDED, EOF, HELLO, OPEN, RESET, RESOLVE, UP_WINDOW,
                   WINDOW, Net, Resolver, Server, Waiting, address_record, client_hello, encode_policy,
                   hang, hello_payload, open_payload, wire_string)  # noqa: E402


def pattern(size, seed):
    """Bytes that cannot be mistaken for others."""
    return random.Random(seed).randbytes(size)


@test
def a_lot_of_bytes_both_ways():
    up, down = pattern(24 << 20, 1), pattern(24 << 20, 2)
    got = bytearray()

    def serve(connection):
        writer = threading.Thread(target=connection.sendall, args=(down,))
        writer.start()
        while len(got) < len(up):
            got.extend(connection.recv(1 << 20))
        writer.join()
        connection.close()
    with Server(PUBLIC, 443, serve), Net(encode_policy("bridge"), CONF) as net:
        stream = net.connect("@" + PUBLIC)
        net.send(stream, up)
        net.frame(EOF, stream.number)
        net.until(lambda: stream.eof, 60)
        assert stream.data == down
        assert got == up
        equal(net.until_event(ENDED).bytes_up, len(up))


@test
def half_close_both_ways():
    def serve(connection):
        # The server ends first, and still takes what comes.
        connection.sendall(b"bye")
        connection.shutdown(socket.SHUT_WR)
        rest = b""
        while True:
            data = connection.recv(65536)
            if not data:
                break
            rest += data
        taken.append(rest)
        connection.close()
    taken = []
    with Server(PUBLIC, 443, serve), Net(encode_policy("bridge"), CONF) as net:
        stream = net.connect("@" + PUBLIC)
        net.until(lambda: stream.eof)
        equal(bytes(stream.data), b"bye")
        net.settle(0.1)
        equal(net.event(ENDED), None)
        net.send(stream, b"late")
        net.frame(EOF, stream.number)
        equal(net.until_event(ENDED).end, END_BOTH)
        net.until(lambda: taken)
        equal(taken, [b"late"])
        assert not stream.was_reset


@test
def resets_go_on_both_ways():
    def reset(connection):
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def wait_for_reset(connection):
        try:
            connection.sendall(b"x")
            while connection.recv(100):
                pass
            seen.append("end")
        except ConnectionResetError:
            seen.append("reset")
    seen = []
    with Server(PUBLIC, 443, reset), Server(PUBLIC, 444, wait_for_reset), \
            Net(encode_policy("bridge"), CONF) as net:
        stream = net.connect("@" + PUBLIC)
        net.send(stream, b"x")
        net.until(lambda: stream.was_reset)
        event = net.until_event(ENDED)
        equal((event.end, event.error), (END_SERVER, errno.ECONNRESET))
        stream = net.connect("@" + PUBLIC, 444)
        net.until(lambda: stream.data)
        net.frame(RESET, stream.number)
        net.until(lambda: seen)
        equal(seen, ["reset"])
        net.until(lambda: net.events[-1].end == END_GUEST)
        # What still comes for it is no fault.
        net.frame(DATA, stream.number, b"late")
        net.frame(CREDIT, stream.number, struct.pack("<I", 1))
        net.frame(RESET, stream.number)
        net.connect("@" + PUBLIC, 444)


@test
def a_server_that_refuses_an_upload_is_still_heard():
    answer = pattern(WINDOW + 20000, 5)

    def refuse(connection):
        connection.recv(10)
        connection.sendall(answer)
        # Bytes that it has not taken make its end a reset; but its answer has arrived.
        time.sleep(0.3)
        connection.close()
    with Server(PUBLIC, 443, refuse), Net(encode_policy("bridge"), CONF) as net:
        net.grants = False
        stream = net.connect("@" + PUBLIC)
        # The guest has not read all; what it sends meanwhile meets a connection that is closed.
        for _ in range(5):
            net.frame(DATA, stream.number, bytes(20000))
            stream.may_send -= 20000
            net.settle(0.1)
        equal(len(stream.data), WINDOW)
        assert not stream.was_reset
        net.grants = True
        net.grant(stream)
        net.until(lambda: stream.was_reset)
        equal(bytes(stream.data), answer)
        equal(net.until_event(ENDED).end, END_SERVER)


def take_late(connection, go, got, end_first=False):
    """A server that reads nothing until go, and then everything."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    if end_first:
        connection.shutdown(socket.SHUT_WR)
    go.wait(60)
    while data := connection.recv(65536):
        got.extend(data)


@test
def a_slow_server_stops_its_own_stream_only():
    go = threading.Event()
    got = bytearray()

    def slow(connection):
        take_late(connection, go, got)
        connection.close()
    data = pattern(8 << 20, 3)
    with Server(PUBLIC, 443, slow), Server(PUBLIC, 444), \
            Net(encode_policy("bridge"), CONF) as net:
        stuck = net.connect("@" + PUBLIC)
        sent = 0
        try:
            while sent < len(data):
                part = data[sent:sent + 32000]
                net.send(stuck, part, timeout=1.0)
                sent += len(part)
        except Waiting:
            pass
        assert sent < len(data), "nothing held the guest back"
        other = net.connect("@" + PUBLIC, 444)
        net.send(other, b"quick")
        net.until(lambda: other.data == b"quick", 2)
        equal(stuck.may_send, 0)
        go.set()
        net.until(lambda: stuck.may_send > 0)
    # How much of the last part went out is not known here; but nothing is out of order.
        net.frame(EOF, stuck.number)
        net.until(lambda: net.event(ENDED))
        assert len(got) >= sent and bytes(got) == data[:len(got)]


@test
def bytes_behind_an_end_still_arrive():
    go = threading.Event()
    got = bytearray()

    def end_first(connection):
        take_late(connection, go, got, end_first=True)
        done.set()
        connection.close()
    done = threading.Event()
    with Server(PUBLIC, 443, end_first), Net(encode_policy("bridge"), CONF) as net:
        stream = net.connect("@" + PUBLIC)
        net.until(lambda: stream.eof)
        total = 0
        while total < 4 << 20:
            if stream.may_send == 0:
                net.settle(0.3)
            if stream.may_send == 0:
                break
            part = min(stream.may_send, 30000)
            net.frame(DATA, stream.number, pattern(part, total))
            stream.may_send -= part
            total += part
            net.step(0)
        assert total < 4 << 20
        # The guest has done: its number is its own again, and the bytes are box-net's.
        net.frame(EOF, stream.number)
        net.settle()
        equal(net.event(ENDED), None)
        net.frame(DATA, stream.number, b"of nobody")
        go.set()
        event = net.until_event(ENDED)
        equal((event.end, event.bytes_up), (END_BOTH, total))
        done.wait(10)
        equal(len(got), total)


@test
def a_guest_that_does_not_read_stops_its_own_stream_only():
    def pour(connection):
        connection.sendall(bytes(4 << 20))
        connection.close()
    with Server(PUBLIC, 443, pour), Server(PUBLIC, 444), \
            Net(encode_policy("bridge"), CONF) as net:
        net.grants = False
        stuck = net.connect("@" + PUBLIC)
        net.settle()
        equal(len(stuck.data), WINDOW)
        other = net.connect("@" + PUBLIC, 444)
        net.send(other, b"quick")
        net.until(lambda: other.data == b"quick", 2)
        before = cpu_ticks(net)
        time.sleep(0.5)
        assert cpu_ticks(net) - before < 10, "it turns in circles"
        net.grants = True
        net.grant(stuck)
        net.until(lambda: stuck.eof)
        equal(len(stuck.data), 4 << 20)


@test
def a_server_that_is_gone_before_its_bytes_were_read_costs_nothing():
    def pour_and_reset(connection):
        connection.sendall(bytes(150000))
        time.sleep(0.2)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    with Server(PUBLIC, 443, pour_and_reset), Net(encode_policy("bridge"), CONF) as net:
        net.grants = False
        stream = net.connect("@" + PUBLIC)
        net.settle(0.5)
        equal(len(stream.data), WINDOW)
        before = cpu_ticks(net)
        time.sleep(0.5)
        assert cpu_ticks(net) - before < 10, "it turns in circles"
        net.grants = True
        net.grant(stream)
        net.until(lambda: stream.was_reset)


def cpu_ticks(net):
    """Hundredths of a second."""
    with open(f"/proc/{net.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@test
def an_agent_that_does_not_read_is_still_read():
    with Server(PUBLIC, 443), Net(encode_policy("bridge"), CONF) as net:
        stream = net.connect("@" + PUBLIC)
        net.agent_reads = False
        # More answers than any buffer would hold, if they waited in one.
        for _ in range(20000):
            net.frame(RESOLVE, 0, struct.pack("<I", net.token) + wire_string("127.1"))
            net.token += 1
            if net.token % 200 == 0:
                net.agent_reads = True
                net.until(lambda: len(net.answers) == net.token, 60)
                net.agent_reads = False
                break
        net.agent_reads = True
        net.send(stream, b"x")
        net.until(lambda: stream.data == b"x")


@test
def a_thousand_connections():
    with Resolver(RESOLVER, ZONE), Server(PUBLIC, 443) as server, \
            Net(allow("allow four.example"), CONF) as net:
        streams = [net.open("four.example", wait=False) for _ in range(1024)]
        net.until(lambda: all(s.opened for s in streams), 30)
        for i, stream in enumerate(streams):
            net.frame(DATA, stream.number, b"%d" % i)
        net.until(lambda: all(s.data for s in streams), 30)
        for i, stream in enumerate(streams):
            equal(bytes(stream.data), b"%d" % i)
        for stream in streams:
            net.frame(DATA, stream.number, bytes(8000))
        net.until(lambda: all(len(s.data) > 8000 for s in streams), 30)
        memory = net.rss_kib()
        assert memory < 32 << 10 or peers.BARE, memory
        print(f"# {memory} KiB with 1,024 connections")
        # One more is a fault of the agent's.
        net.open("four.example", wait=False)
        net.until(lambda: net.closed)
        equal(net.until(lambda: net.limits) or net.limits[0][2],
              "it opened more streams than there may be")
        net.until(lambda: sum(e.kind == ENDED for e in net.events) == 1024)
        equal({e.end for e in net.events if e.kind == ENDED}, {END_PORT})
        equal(server.count, 1024)


@test
def servers_that_read_nothing():
    tried, at_most = 128, 1024 + 256
    # Nobody accepts them either; the kernel answers in the place of the server.
    with socket.socket() as server, Net(encode_policy("bridge"), CONF) as net:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        server.bind((PUBLIC, 450))
        server.listen(tried)
        streams = net.open_many("@" + PUBLIC, tried, 450)
        net.until(lambda: all(s.opened for s in streams), 30)
        before = net.peak_kib()
        for stream in streams:
            # The beginning of a TLS hello is kept until more is there.
            net.send(stream, b"\x16\x03\x01\x3f\xff\x01" + bytes(3990))
            # The kernel takes some hundred KiB; then credit comes a few bytes at a time, or never.
            while stream.may_send >= UP_WINDOW // 4:
                net.send(stream, bytes(stream.may_send))
                net.settle(0.02)
        memory = net.peak_kib() - before
        print(f"# {memory} KiB more for {tried} servers that read nothing")
        assert memory > tried * UP_WINDOW // 1024 // 2, "the servers have read"
        assert before + memory * at_most // tried < 64 << 10 or peers.BARE, memory


@test
def numbers_are_used_again():
    with Server(PUBLIC, 443), Net(encode_policy("bridge"), CONF) as net:
        for _ in range(6):
            streams = [net.open("@" + PUBLIC, wait=False) for _ in range(150)]
            net.until(lambda s=streams: all(x.opened for x in s))
            for stream in streams:
                net.frame(EOF, stream.number)
            net.until(lambda s=streams: all(x.eof for x in s))
        net.until(lambda: sum(e.kind == ENDED for e in net.events) == 900)
        ids = [e.id for e in net.events if e.kind == CONNECTED]
        equal(len(set(ids)), 900)
        net.until(lambda: net.descriptors() == 8)


@test
def connections_are_limited():
    with Server(PUBLIC, 443), Net(encode_policy("bridge", connections=2), CONF) as net:
        first, second = net.connect("@" + PUBLIC), net.connect("@" + PUBLIC)
        for _ in range(3):
            equal(net.open("@" + PUBLIC).error, REFUSED)
        net.settle()
        equal([e.reason for e in net.events if not e.allowed], [NO_CONNECTIONS] * 3)
        equal([limit[:2] for limit in net.limits], [(LIMIT_CONNECTIONS, 2)])
        net.frame(RESET, first.number)
        third = net.connect("@" + PUBLIC)
        for stream in (second, third):
            net.send(stream, b"x")
            net.until(lambda s=stream: s.data == b"x")


@test
def bytes_are_limited():
    both_are_there = threading.Event()

    def pour(connection):
        both_are_there.wait(30)
        connection.sendall(bytes(300000))
        time.sleep(30)
    with Server(PUBLIC, 443, pour), Server(PUBLIC, 444), \
            Net(encode_policy("bridge", size=200000), CONF) as net:
        stream = net.connect("@" + PUBLIC)
        other = net.connect("@" + PUBLIC, 444)
        both_are_there.set()
        net.until(lambda: stream.was_reset and other.was_reset)
        equal(len(stream.data), 200000)
        net.settle()
        equal([limit[:2] for limit in net.limits], [(LIMIT_BYTES, 200000)])
        equal(net.open("@" + PUBLIC, 444).error, REFUSED)
        equal(net.resolve("four.example"), (DENIED, 0))
        equal(net.events[-1].reason, NO_BYTES)
        # The owner can give more.
        net.give(encode_policy("bridge", size=200010))
        other = net.connect("@" + PUBLIC, 444)
        net.send(other, b"12345")
        net.until(lambda: other.data == b"12345")
        net.frame(DATA, other.number, b"6")
        net.until(lambda: other.was_reset)
        equal(len(net.limits), 2)


@test
def a_download_of_just_the_limit_is_whole():
    def serve(connection):
        connection.sendall(bytes(100000))
        connection.close()
    with Server(PUBLIC, 443, serve), \
            Net(encode_policy("bridge", size=100000), CONF) as net:
        stream = net.connect("@" + PUBLIC)
        net.until(lambda: stream.eof)
        equal(len(stream.data), 100000)
        equal(net.limits, [])


@test
def connections_have_a_pace():
    with Net(encode_policy("none"), CONF) as net:
        start = time.monotonic()
        streams = []
        for _ in range(1400):
            streams.append(net.open("@" + PUBLIC, wait=False))
            if len(streams) % 100 == 0:
                net.until(lambda: sum(s.error is None for s in streams) < 900, 20)
        net.until(lambda: all(s.error == REFUSED for s in streams), 20)
        took = time.monotonic() - start
        # 1,024 at once, the rest at 256 a second.
        assert 1.2 < took < 20, took
        net.until(lambda: len(net.events) == 1400)


@test
def a_new_policy_cuts_what_it_does_not_allow():
    with Resolver(RESOLVER, ZONE), Server(PUBLIC, 443), Server(PUBLIC6, 443), \
            Net(allow("allow four.example", "allow six.example"), CONF) as net:
        four, six = net.connect("four.example"), net.connect("six.example")
        net.give(allow("allow six.example"))
        net.until(lambda: four.was_reset)
        event = net.until_event(ENDED)
        equal((event.host, event.end, event.allowed), ("four.example", END_POLICY, 1))
        net.send(six, b"x")
        net.until(lambda: six.data == b"x")
        equal(net.open("four.example").error, REFUSED)
        net.give(allow("allow six.example", f"deny [{PUBLIC6}]"))
        net.until(lambda: six.was_reset)
        net.give(allow("allow four.example"))
        net.connect("four.example")
        equal(net.ready, [1, 2, 3, 4])


@test
def a_policy_that_comes_while_asking_counts():
    go = threading.Event()

    def late(kind, over_tcp):
        del over_tcp
        go.wait(5)
        return (0, [address_record("four.example", PUBLIC, 60)] if kind == 1 else [], 0)
    with Resolver(RESOLVER, {"four.example": late}) as resolver, Server(PUBLIC, 443) as server, \
            Net(allow("allow four.example"), CONF + "options timeout:5\n") as net:
        stream = net.open("four.example", wait=False)
        net.until(lambda: resolver.asked)
        net.give(allow("allow six.example"))
        go.set()
        net.until(lambda: stream.error is not None)
        equal(stream.error, REFUSED)
        equal(net.until_event(CONNECTED).reason, NO_RULE)
        equal(server.count, 0)


@test
def a_new_agent_finds_nothing_of_the_old_one():
    with Server(PUBLIC, 443), Net(encode_policy("bridge"), CONF) as net:
        net.until(lambda: net.hellos == 1)
        old = net.connect("@" + PUBLIC)
        net.send(old, b"x")
        net.until(lambda: old.data)
        net.frame(HELLO, 0, hello_payload(1 << 63))
        net.until(lambda: net.hellos == 2)
        equal(net.hello_token, 1 << 63)
        equal(net.until_event(ENDED).end, END_PORT)
        net.last, net.streams = 0, {}
        fresh = net.connect("@" + PUBLIC)
        equal(fresh.number, 1)
        net.send(fresh, b"y")
        net.until(lambda: fresh.data == b"y")
        equal(net.hellos, 2)


@test
def hostile_frames_end_the_port_and_nothing_else():
    def frame(kind, number, payload=b"", channel=0, zero=0):
        return struct.pack("<IBBHI", len(payload), kind, channel, zero, number) + payload
    hello = frame(HELLO, 0, hello_payload(7))
    question = struct.pack("<I", 7) + wire_string("a.example")
    target = open_payload("@" + PUBLIC, 443)
    cases = [
        (b"\xff" * 64, "what it sent is no frame"),
        (struct.pack("<IBBHI", 40000, DATA, 0, 0, 1), "what it sent is no frame"),
        (frame(DATA, 1, b"x", zero=1), "what it sent is no frame"),
        (frame(99, 1), "it sent a frame that the port does not have"),
        (frame(0, 0), "it sent a frame that the port does not have"),
        (frame(DATA, 1, b"x", channel=1), "it sent a frame that the port does not have"),
        (frame(DATA, 0, b"x"), "it sent a frame that the port does not have"),
        (frame(DATA, 1), "it sent a frame that the port does not have"),
        (frame(3, 0, b"\0" * 6), "it sent a frame that the port does not have"),
        (frame(5, 1), "it sent a frame that the port does not have"),
        (frame(RESOLVE, 0, question), "it did not begin with HELLO"),
        (frame(HELLO, 0, b"\0" * 6), "its HELLO is none"),
        (frame(HELLO, 0, hello_payload(7, version=3)), "its HELLO has another version"),
        (hello + frame(RESOLVE, 0, question[:-1]), "its question is none"),
        (hello + frame(RESOLVE, 0, struct.pack("<I", 1) + wire_string("a b")),
         "its question is none"),
        (hello + frame(OPEN, 1, b"\3" + target[1:]), "its OPEN is none"),
        (hello + frame(OPEN, 1, open_payload("@" + PUBLIC, 0)), "its OPEN is none"),
        (hello + frame(OPEN, 1, target + b"x"), "its OPEN is none"),
        (hello + frame(OPEN, 1, target) * 2, "it opened a stream that there is"),
        (hello + frame(OPEN, 5000, target), "it opened a stream out of turn"),
        (hello + frame(OPEN, 0xffffffff, target), "it opened a stream out of turn"),
        (hello + frame(OPEN, 1, target) + frame(RESET, 1) + frame(OPEN, 1, target),
         "it opened a stream out of turn"),
        (hello + frame(OPEN, 1, open_payload("slow.example", 443)) + frame(DATA, 1, b"x"),
         "it used a stream that is not connected"),
        (hello + b"".join(frame(RESOLVE, 0, struct.pack("<I", i) + wire_string("slow.example"))
                          for i in range(257)), "more questions than there may be"),
        (hello + frame(RESOLVE, 0, struct.pack("<I", 1) + wire_string("slow.example")) * 2,
         "a question with the token of another"),
    ]
    with Resolver(RESOLVER, {"slow.example": lambda k, t: None}):
        for data, text in cases:
            with Net(encode_policy("bridge"), CONF, hello=False) as net:
                net.raw(data)
                net.until(lambda n=net: n.closed)
                net.until(lambda n=net: n.limits)
                equal(net.limits, [(LIMIT_PROTOCOL, 0, text)])
                # The process lives on, for the keeper.
                net.give(encode_policy("none"))


@test
def hostile_frames_of_a_stream():
    def pay(net, stream):
        net.frame(DATA, stream.number, bytes(PAYLOAD))
    cases = [
        (lambda n, s: [pay(n, s) for _ in range(40)],
         "it sent more bytes than it may", hang),
        (lambda n, s: (n.frame(EOF, s.number), n.frame(DATA, s.number, b"x")),
         "it sent bytes after their end", hang),
        (lambda n, s: (n.frame(EOF, s.number), n.frame(EOF, s.number)),
         "it ended a stream's bytes twice", hang),
        (lambda n, s: n.frame(CREDIT, s.number, struct.pack("<I", 1)),
         "it granted more than a window", hang),
        (lambda n, s: n.frame(CREDIT, s.number, struct.pack("<I", 0)),
         "it granted more than a window", hang),
        (lambda n, s: n.frame(CREDIT, s.number, b"x"), "it granted more than a window", hang),
    ]
    for port, (act, text, serve) in enumerate(cases, 5000):
        with Server(PUBLIC, port, stuck if "more bytes" in text else serve), \
                Net(encode_policy("bridge"), CONF) as net:
            stream = net.connect("@" + PUBLIC, port)
            net.agent_reads = False
            act(net, stream)
            net.until(lambda n=net: n.limits)
            net.agent_reads = True
            net.until(lambda n=net: n.closed)
            equal(net.limits, [(LIMIT_PROTOCOL, 0, text)])
            equal(net.until_event(ENDED).end, END_PORT)


PAYLOAD = 32000


def stuck(connection):
    """Takes next to nothing, so that credit does not come back."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    time.sleep(30)


@test
def random_frames_never_end_the_process():
    generator = random.Random(6)
    kinds = [HELLO, RESOLVE, OPEN, DATA, EOF, CREDIT, RESET]
    payloads = [b"", b"x", struct.pack("<I", 1), hello_payload(1),
                open_payload("@" + PUBLIC, 443), open_payload("four.example", 80),
                struct.pack("<I", 9) + wire_string("a.example")]
    with Resolver(RESOLVER, ZONE), Server(PUBLIC, 443):
        for _ in range(40):
            with Net(encode_policy("bridge"), CONF) as net:
                for number in range(1, 4):
                    net.frame(OPEN, number, open_payload("@" + PUBLIC, 443))
                for _ in range(60):
                    kind = generator.choice(kinds)
                    number = 0 if kind in (HELLO, RESOLVE) else generator.randrange(1, 9)
                    net.frame(kind, number, generator.choice(payloads))
                net.settle(0.02)
                net.give(encode_policy("none"))


@test
def a_keeper_that_does_not_read_loses_no_event():
    with Net(encode_policy("none"), CONF, small=True) as net:
        net.keeper_reads = False
        streams = net.open_many("@" + PUBLIC, 600)
        net.settle(0.5)
        refused = sum(s.error == REFUSED for s in streams)
        assert 0 < refused < 200, refused
        net.keeper_reads = True
        net.until(lambda: all(s.error == REFUSED for s in streams))
        net.until(lambda: len(net.events) == 600)
        equal(len({e.id for e in net.events}), 600)


@test
def the_keeper_ends_it():
    with Net(encode_policy("none"), CONF) as net:
        net.control.close()
        equal(net.end(), ("exit 0", ""))


@test
def a_policy_that_is_none_ends_it():
    for policy in (b"x", b"", encode_policy("bridge")[:-1], encode_policy("bridge") + b"x"):
        with Net(resolv=CONF) as net:
            net.give(policy, wait=False)
            how, words = net.end()
            equal(how, "exit 1")
            assert words.startswith("box-net: what the keeper sent"), words


@test
def the_machines_end_is_told():
    with Server(PUBLIC, 443), Net(encode_policy("bridge"), CONF) as net:
        net.connect("@" + PUBLIC)
        net.port.close()
        net.agent_reads = False
        net.until(lambda: net.limits)
        equal(net.limits[0][0], LIMIT_CLOSED)
        equal(net.until_event(ENDED).end, END_PORT)


@test
def another_server_name_is_noted():
    with Resolver(RESOLVER, ZONE), Server(PUBLIC, 443), \
            Net(allow("allow four.example", f"allow {PUBLIC}"), CONF) as net:
        def note(host, *frames):
            before = len(net.events)
            stream = net.connect(host)
            for data in frames:
                net.frame(DATA, stream.number, data)
                net.settle(0.05)
            net.frame(EOF, stream.number)
            net.until(lambda: any(e.kind == ENDED for e in net.events[before:]))
            return net.event(ENDED).note, net.event(ENDED).sni
        other = client_hello("Other.Example")
        equal(note("four.example", other), (1, "other.example"))
        equal(note("four.example", client_hello("four.example")), (0, ""))
        equal(note("four.example", other[:3], other[3:60], other[60:]), (1, "other.example"))
        equal(note("four.example", client_hello("other.example", 7)), (1, "other.example"))
        equal(note("@" + PUBLIC, client_hello("four.example")), (1, "four.example"))
        equal(note("four.example", b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"), (0, ""))
        equal(note("four.example", client_hello("a b\n")), (0, ""))


main()
