#!/usr/bin/env python3
"""box-net against the same client without it, over the loopback device of a namespace of its own.

usage: bench/net.py BOX-NET [--quick] [--json]

The guest is a script that speaks the port's protocol, so this is the host's part alone. Both sides
of each row are measured in one run, with one thread and the same writes. box-net runs without its
jail here: nothing of the tests is installed that could make one.
"""

import fcntl
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/component/net"))
import harness  # noqa: E402  pylint: disable=wrong-import-position
import peers  # noqa: E402  pylint: disable=wrong-import-position

CONNECTIONS = 1000
ROUND_TRIPS = 2000
ROUNDS = 5
MIB = 1 << 20
PIECE = 32000
SINK, SOURCE, ECHO, QUEUE = 5001, 5002, 5003, 5004
MEMORY_AIM_MIB = 32
# "bridge" without a rule, as policy_encode writes it.
BRIDGE = struct.pack("<IHBQQI", 0x6c706f62, 1, 1, 0, 0, 0)


class Net(peers.Net):
    """box-net as a child of this process."""

    def launch(self, fds):
        self.pid = os.fork()
        if self.pid == 0:
            staged = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in fds]
            for place, fd in enumerate(staged, 3):
                os.dup2(fd, place)
            os.closerange(3 + len(fds), 100)
            try:
                os.execv(peers.BOX_NET, ["box-net"])
            finally:
                os._exit(1)

    def gone(self):
        os.waitpid(self.pid, 0)


def sink(connection):
    """Takes all that comes and then ends."""
    while connection.recv(MIB):
        pass
    connection.close()


def source(size):
    """What sends size bytes."""
    def serve(connection):
        data = bytes(MIB)
        for _ in range(size // MIB):
            connection.sendall(data)
        connection.close()
    return serve


def start_server(serve, port):
    """A server in a process of its own, so that it does not share the client's interpreter."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        peers.Server(harness.PUBLIC, port, serve)
        os.write(told, b"x")
        time.sleep(3600)
    os.read(ready, 1)
    return pid


def seconds(function):
    """How long it takes."""
    start = time.monotonic()
    function()
    return time.monotonic() - start


def in_turn(*functions):
    """The median time of each, in rounds that take each once."""
    times = [[seconds(function) for function in functions] for _ in range(ROUNDS)]
    return [statistics.median(each) for each in zip(*times)]


def connections_direct():
    """All open at once, each after the one before has been asked for."""
    sockets = []
    for _ in range(CONNECTIONS):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex((harness.PUBLIC, QUEUE))
        sockets.append(client)
    for client in sockets:
        client.setblocking(True)
        client.send(b"")
    return sockets


def connections():
    """A thousand at once: [a second, directly and through], [KiB resident, before and with them]."""
    # The kernel answers for it: nobody has to be scheduled.
    queue = peers.Server(harness.PUBLIC, QUEUE, serve=False, backlog=2 * CONNECTIONS)
    with open("/proc/sys/net/core/somaxconn", encoding="ascii") as limit:
        assert int(limit.read()) >= 2 * CONNECTIONS, "raise net.core.somaxconn"
    with Net(BRIDGE) as net:
        idle = net.rss_kib()
        kept = []
        plain = seconds(lambda: kept.extend(connections_direct()))
        for client in kept:
            client.close()
        time.sleep(0.5)

        def open_all():
            net.open_many("@" + harness.PUBLIC, CONNECTIONS, QUEUE)
            net.until(lambda: net.opened >= CONNECTIONS, 60)
        through = seconds(open_all)
        found = [CONNECTIONS / plain, CONNECTIONS / through], [idle, net.rss_kib()]
    queue.close()
    return found


def round_trips():
    """Median seconds of one byte there and back, directly and through."""
    with Net(BRIDGE) as net:
        times = [], []
        client = socket.create_connection((harness.PUBLIC, ECHO))
        stream = net.connect("@" + harness.PUBLIC, ECHO)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for turn in range(ROUND_TRIPS):
            if turn % 2:
                times[0].append(seconds(lambda: (client.send(b"x"), client.recv(1))))
            else:
                length = len(stream.data)
                net.frame(peers.DATA, stream.number, b"x")
                times[1].append(seconds(lambda n=length: net.until(lambda: len(stream.data) > n)))
        return [statistics.median(each) for each in times]


def to_server(size):
    """Seconds for size bytes to a server, directly and through."""
    def direct():
        client = socket.create_connection((harness.PUBLIC, SINK))
        data = bytes(PIECE)
        for _ in range(size // PIECE):
            client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        client.recv(1)
    with Net(BRIDGE) as net:
        def through():
            stream = net.connect("@" + harness.PUBLIC, SINK)
            frame = struct.pack("<IBBHI", PIECE, peers.DATA, 0, 0, stream.number) + bytes(PIECE)
            for _ in range(size // PIECE):
                while stream.may_send < PIECE:
                    net.step()
                net.raw(frame)
                stream.may_send -= PIECE
            net.frame(peers.EOF, stream.number)
            net.until(lambda: stream.eof, 60)
        return in_turn(direct, through)


def from_server():
    """The same from a server, which decides how much."""
    def direct():
        client = socket.create_connection((harness.PUBLIC, SOURCE))
        while client.recv(MIB):
            pass
    with Net(BRIDGE) as net:
        def through():
            stream = net.connect("@" + harness.PUBLIC, SOURCE)
            stream.data = peers.Counter()
            net.until(lambda: stream.eof, 120)
        return in_turn(direct, through)


def run(box_net, quick):
    """All of it, in a namespace. Returns what measure does."""
    size = (32 if quick else 256) * MIB
    peers.BOX_NET = os.path.abspath(box_net)
    harness.prepare()
    servers = [start_server(sink, SINK), start_server(source(size), SOURCE),
               start_server(peers.echo, ECHO)]
    try:
        a_second, memory = connections()
        trips = round_trips()
        rates = [[size / 1e6 / each for each in pair]
                 for pair in (to_server(size), from_server())]
    finally:
        for pid in servers:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return {"connections": a_second, "memory_kib": memory, "round_trip_s": trips,
            "up_mb_s": rates[0], "down_mb_s": rates[1]}


def measure(box_net, quick):
    """Runs this program. Returns {what: [directly, through box-net]}; memory_kib is [idle, with
    1,000 connections]. A text when it cannot be done here."""
    command = [sys.executable, os.path.abspath(__file__), box_net, "--json"]
    result = subprocess.run(command + (["--quick"] if quick else []), stdin=subprocess.DEVNULL,
                            capture_output=True, text=True)
    try:
        return json.loads(result.stdout)
    except ValueError:
        return (result.stderr or result.stdout).strip().splitlines()[-1]


def report(found, table):
    """The section of bench/RESULTS.md."""
    rows = [("new connections a second", "{:,.0f}", found["connections"]),
            ("MB/s to a server", "{:,.0f}", found["up_mb_s"]),
            ("MB/s from a server", "{:,.0f}", found["down_mb_s"]),
            ("one byte there and back", "{:.0f} µs", [each * 1e6 for each in found["round_trip_s"]])]
    idle, busy = (each / 1024 for each in found["memory_kib"])
    added = (found["round_trip_s"][1] - found["round_trip_s"][0]) * 1e6
    lines = ["", "## The network", "",
             "The host's part of a connection, box-net without its jail, against the same client "
             "without it: one thread of a script that takes the guest's place, over the loopback "
             "device.", ""]
    lines += table(["what", "directly", "through box-net"],
                   [[what, *(form.format(each) for each in pair)] for what, form, pair in rows])
    return lines + ["", f"It adds {added:.0f} µs to a request. Its memory is {idle:.1f} MiB, and "
                    f"{busy:.1f} MiB with {CONNECTIONS:,} connections."]


def aims(found):
    """Rows of (what, value, aim, unit)."""
    yield (f"memory of box-net with {CONNECTIONS:,} connections", found["memory_kib"][1] / 1024,
           MEMORY_AIM_MIB, "MiB")


def main():
    harness.enter_namespace()
    found = run(sys.argv[1], "--quick" in sys.argv)
    print(json.dumps(found) if "--json" in sys.argv else json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
