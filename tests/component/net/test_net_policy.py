#!/usr/bin/env python3
"""box-net in its jail: what it connects to and what not, and how it finds addresses.

usage: test_net_policy.py BOX-NET NET-HOST [PATTERN]
"""

import errno
import os
import socket
import struct
import subprocess
import time
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from harness import (PUBLIC, OTHER, PUBLIC6, PRIVATE, RESOLVER, SECOND, CONF, REFUSED, BY_RULE,
                     BY_BRIDGE, NO_DENIED, NO_RULE, NO_SPECIAL, NO_NAME, NO_POLICY, END_BOTH,
                     LIMIT_PROTOCOL, OK, NXDOMAIN, DENIED, TEMPORARY, ZONE, test, equal, allow,
                     main)  # noqa: E402
import peers  # noqa: E402
from peers import (ASKED, CONF_FILE, CONNECTED, ENDED, EOF, HOSTS_FILE, OPEN, RESET, Net, Resolver, Server,
                   address_record, alias_record, dns_name, encode_policy)  # noqa: E402


@test
def the_jail_is_as_described():
    with Net() as net:
        if peers.BARE:
            return
        equal(net.differences, "differs")
        equal(os.readlink(f"/proc/{net.pid}/ns/net"), os.readlink("/proc/self/ns/net"))
        for name in ("user", "mnt", "pid", "ipc", "uts"):
            assert os.readlink(f"/proc/{net.pid}/ns/{name}") != \
                os.readlink(f"/proc/self/ns/{name}"), name


@test
def without_a_policy_everything_is_refused():
    with Resolver(RESOLVER, ZONE) as resolver, Server(PUBLIC, 443) as server:
        with Net(resolv=CONF) as net:
            equal(net.resolve("pypi.org"), (DENIED, 0))
            for host in ("pypi.org", "@" + PUBLIC, "@" + PUBLIC6):
                equal(net.open(host).error, REFUSED)
            net.settle()
            equal([e.reason for e in net.events], [NO_POLICY] * 4)
            equal([e.allowed for e in net.events], [0] * 4)
        equal(resolver.asked, [])
        equal(server.count, 0)


@test
def none_refuses_everything():
    with Resolver(RESOLVER, ZONE) as resolver:
        with Net(encode_policy("none"), CONF) as net:
            equal(net.resolve("pypi.org"), (DENIED, 0))
            equal(net.open("pypi.org").error, REFUSED)
            equal(net.open("@" + PUBLIC).error, REFUSED)
        equal(resolver.asked, [])


@test
def a_connection_by_name():
    with Resolver(RESOLVER, ZONE), Server(PUBLIC, 443), Server(PUBLIC6, 443):
        with Net(allow("allow pypi.org"), CONF) as net:
            equal(net.resolve("pypi.org"), (OK, 3))
            equal(net.resolve("pypi.org"), (OK, 3))
            stream = net.connect("pypi.org")
            event = net.until_event(CONNECTED)
            equal((event.host, event.port, event.address, event.rule, event.reason, event.error),
                  ("pypi.org", 443, PUBLIC6, "allow pypi.org", BY_RULE, 0))
            net.send(stream, b"hello")
            net.until(lambda: stream.data == b"hello")
            assert not stream.eof
            net.frame(EOF, stream.number)
            net.until(lambda: stream.eof)
            end = net.until_event(ENDED)
            equal((end.id, end.bytes_up, end.bytes_down, end.end, end.host, end.allowed),
                  (event.id, 5, 5, END_BOTH, "pypi.org", 1))
            assert abs(end.time_ns - time.time_ns()) < 60e9
            assert 0 < end.duration_ns < 60e9
            equal([e.kind for e in net.events], [ASKED, ASKED, CONNECTED, ENDED])


@test
def ports_wildcards_and_deny():
    rules = ("allow pypi.org", "allow four.example:8080", "allow *.six.example",
             "deny bad.six.example", "deny pypi.org:80")
    zone = dict(ZONE, **{"a.six.example": [PUBLIC], "b.a.six.example": [PUBLIC],
                         "bad.six.example": [PUBLIC]})
    with Resolver(RESOLVER, zone) as resolver, Net(allow(*rules), CONF) as net:
        # Nobody listens: who is allowed is refused by the server, and the event says which.
        def is_allowed(host, port):
            before = len(net.events)
            equal(net.open(host, port).error, REFUSED)
            net.until(lambda: len(net.events) > before)
            return net.events[-1].allowed == 1
        assert is_allowed("pypi.org", 443)
        assert not is_allowed("pypi.org", 80)
        equal(net.events[-1].rule, "deny pypi.org:80")
        assert not is_allowed("pypi.org", 8080)
        assert is_allowed("four.example", 8080)
        assert not is_allowed("four.example", 443)
        assert is_allowed("a.six.example", 80)
        assert is_allowed("b.a.six.example", 443)
        assert not is_allowed("six.example", 443)
        equal(net.events[-1].reason, NO_RULE)
        assert not is_allowed("bad.six.example", 443)
        equal((net.events[-1].rule, net.events[-1].reason), ("deny bad.six.example", NO_DENIED))
        assert not is_allowed("xsix.example", 443)
        equal(resolver.names(), ["a.six.example", "b.a.six.example", "four.example", "pypi.org"])


@test
def names_outside_the_policy_reach_no_resolver():
    rules = ("allow *.good.example", "deny *.bad.good.example", "allow four.example:8080")
    with Resolver(RESOLVER, {}) as resolver, Net(allow(*rules), CONF) as net:
        secret = "c2VjcmV0".lower()
        for name in (f"{secret}.evil.example", "good.example", f"{secret}.bad.good.example",
                     "evil.example", "xgood.example", "localhost", "169.254.169.254"):
            equal(net.resolve(name), (DENIED, 0), name)
            equal(net.open(name).error, REFUSED, name)
        # The name may be asked for, because there is a port; but not to connect to another.
        equal(net.open("four.example", 443).error, REFUSED)
        equal(resolver.asked, [])
        equal(net.resolve("some.good.example"), (NXDOMAIN, 0))
        equal(net.open("some.good.example").error, errno.EHOSTUNREACH)
        equal(resolver.names(), ["some.good.example"])


@test
def bridge_reaches_public_names_and_addresses():
    with Resolver(RESOLVER, ZONE), Server(PUBLIC, 8080), Server(PUBLIC6, 8080):
        with Net(encode_policy("bridge", ["deny six.example"]), CONF) as net:
            net.connect("four.example", 8080)
            net.connect("@" + PUBLIC, 8080)
            net.connect("@" + PUBLIC6, 8080)
            equal(net.until_event(CONNECTED, "93.184.216.34").reason, BY_BRIDGE)
            equal(net.open("six.example", 8080).error, REFUSED)


FORBIDDEN = (
    "0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.1.2.3", "169.254.169.254",
    "172.16.0.1", "192.0.0.1", "192.0.2.1", "192.168.1.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:93.184.216.34", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a01:203", "64:ff9b:1::7f00:1", "100::1", "2001::7f00:1", "2001:db8::1",
    "2002:7f00:1::1", "2002:a01:203::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1",
    "ff02::1", "fe80::5efe:7f00:1",
)


@test
def forbidden_addresses_under_every_spelling():
    servers = [Server("127.0.0.1", 80), Server("::1", 80), Server(PRIVATE, 80),
               Server("0.0.0.0", 81)]
    zone = {f"n{i}.example": [a] for i, a in enumerate(FORBIDDEN)}
    with Resolver(RESOLVER, zone), Net(encode_policy("bridge"), CONF) as net:
        for i, address in enumerate(FORBIDDEN):
            for host in ("@" + address, f"n{i}.example"):
                before = len(net.events)
                for port in (80, 81):
                    equal(net.open(host, port).error, REFUSED, host)
                net.until(lambda: len(net.events) >= before + 2)
                equal([e.allowed for e in net.events[before:]], [0, 0], address)
                equal([e.reason for e in net.events[before:]], [NO_SPECIAL] * 2, address)
                assert net.events[-1].special, address
        for name in ("127.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.1", "0x7f.1",
                     "017700000001", "127.0.0.0x1", "0", "00000177.1"):
            equal(net.open(name, 80).error, REFUSED, name)
            net.until_event(CONNECTED, name)
            equal(net.event(CONNECTED, name).reason, NO_NAME, name)
            equal(net.resolve(name), (DENIED, 0), name)
    for server in servers:
        equal(server.count, 0)
        server.close()


@test
def the_other_spellings_are_no_frames():
    for name in ("::1", "fe80::1%1", "127.0.0.1 ", "a..b", ".", "", "A.example.", "\xe4.example",
                 "x" * 64, "a.example\n", "[::1]", "pypi.org."):
        with Net(encode_policy("bridge"), CONF) as net:
            net.open(name, wait=False)
            net.until(lambda: net.closed)
            net.until(lambda: net.limits)
            equal(net.limits, [(LIMIT_PROTOCOL, 0, "its OPEN is none")], name)


@test
def reach_opens_its_range_and_allows_nothing():
    rules = ("allow inside.example", "allow 10.1.2.4", "reach 10.0.0.0/8", "deny 10.1.2.5")
    zone = dict(ZONE, **{"inside.example": lambda kind, tcp: (0, [
        address_record("inside.example", "10.1.2.5", 0),
        address_record("inside.example", "192.168.1.1", 0),
        address_record("inside.example", PRIVATE, 0)] if kind == 1 else [], 0)})
    with Resolver(RESOLVER, zone), Server(PRIVATE, 443) as server:
        with Net(allow(*rules), CONF) as net:
            net.connect("inside.example")
            equal(net.until_event(CONNECTED).address, PRIVATE)
            equal(net.open("@" + PRIVATE).error, REFUSED)
            net.until_event(CONNECTED, PRIVATE)
            equal(net.events[-1].reason, NO_RULE)
            # Allowed, reachable, and nobody there.
            equal(net.open("@10.1.2.4").error, REFUSED)
            net.until_event(CONNECTED, "10.1.2.4")
            equal(net.events[-1].allowed, 1)
        equal(server.count, 1)


@test
def rebinding_is_seen_at_the_connection():
    answers = [PUBLIC, "127.0.0.1", "::1"]

    def change(kind, over_tcp):
        del over_tcp
        address = answers[0]
        if (":" in address) != (kind == 28):
            return (0, [], 0)
        return (0, [address_record("moves.example", address, 0)], 0)
    with Resolver(RESOLVER, {"moves.example": change}), Server("127.0.0.1", 443) as inside, \
            Server("::1", 443) as inside6, Server(PUBLIC, 443) as outside:
        with Net(allow("allow moves.example"), CONF) as net:
            equal(net.resolve("moves.example"), (OK, 1))
            stream = net.connect("moves.example")
            equal(net.until_event(CONNECTED).address, PUBLIC)
            for address in answers[1:]:
                answers[0] = address
                equal(net.open("moves.example").error, REFUSED)
                net.settle()
                equal((net.events[-1].reason, net.events[-1].special, net.events[-1].address),
                      (NO_SPECIAL, net.events[-1].special, address))
                assert "oopback" in net.events[-1].special, net.events[-1]
            # What was connected stays with the address that it was decided for.
            net.send(stream, b"still")
            net.until(lambda: stream.data == b"still")
        equal((inside.count, inside6.count, outside.count), (0, 0, 1))


@test
def a_name_that_moves_is_followed_after_its_time():
    current = [PUBLIC, 0]

    def answer(kind, over_tcp):
        del over_tcp
        records = [address_record("moves.example", *current)] if kind == 1 else []
        return (0, records, 0)
    with Resolver(RESOLVER, {"moves.example": answer}) as resolver, Server(PUBLIC, 443) as first, \
            Server(OTHER, 443) as second, Net(allow("allow moves.example"), CONF) as net:
        net.connect("moves.example")
        current[:] = [OTHER, 60]
        net.connect("moves.example")
        asked = len(resolver.asked)
        current[:] = [PUBLIC, 60]
        net.connect("moves.example")
        equal(len(resolver.asked), asked, "an answer that is still good is not asked for")
        net.until(lambda: (first.count, second.count) == (1, 2))


@test
def aliases_widen_nothing():
    def alias(target, *addresses):
        def answer(kind, over_tcp):
            del over_tcp
            records = [alias_record("www.example", target)]
            records += [address_record(target, a, 60) for a in addresses
                        if (":" in a) == (kind == 28)]
            return (0, records, 0)
        return answer
    zone = {"www.example": alias("cdn.example", PUBLIC), "cdn.example": [PUBLIC]}
    with Resolver(RESOLVER, zone), Server(PUBLIC, 443), Server("127.0.0.1", 443) as inside:
        with Net(allow("allow www.example"), CONF) as net:
            net.connect("www.example")
            equal(net.open("cdn.example").error, REFUSED)
            equal(net.resolve("cdn.example"), (DENIED, 0))
        zone["www.example"] = alias("localhost", "127.0.0.1", "::1")
        with Net(allow("allow www.example"), CONF) as net:
            equal(net.open("www.example").error, REFUSED)
            equal(net.until_event(CONNECTED).reason, NO_SPECIAL)
        equal(inside.count, 0)


@test
def only_the_public_ones_of_several_addresses():
    zone = {"mixed.example": ["127.0.0.1", "::1", PRIVATE, PUBLIC, "fe80::1"]}
    with Resolver(RESOLVER, zone), Server("127.0.0.1", 443) as inside, \
            Server(PRIVATE, 443) as private, Server(PUBLIC, 443) as outside:
        with Net(allow("allow mixed.example"), CONF) as net:
            net.connect("mixed.example")
            event = net.until_event(CONNECTED)
            equal((event.address, event.rule), (PUBLIC, "allow mixed.example"))
        equal((inside.count, private.count, outside.count), (0, 0, 1))


@test
def an_address_that_is_denied_is_so_by_name_too():
    with Resolver(RESOLVER, ZONE), Server(PUBLIC, 443) as server:
        with Net(allow("allow four.example", "deny 93.184.0.0/16"), CONF) as net:
            equal(net.open("four.example").error, REFUSED)
            event = net.until_event(CONNECTED)
            equal((event.rule, event.address), ("deny 93.184.0.0/16", PUBLIC))
        equal(server.count, 0)


@test
def errors_are_those_of_the_host():
    zone = {"six.away": ["2606:4700::1", PUBLIC], "four.away": [PUBLIC6, "8.8.8.8"],
            "all.away": ["2606:4700::1", "8.8.8.8"]}
    with Resolver(RESOLVER, zone), Net(encode_policy("bridge"), CONF) as net:
        equal(net.open("@" + PUBLIC).error, REFUSED)
        net.until_event(CONNECTED)
        equal((net.events[-1].allowed, net.events[-1].error), (1, REFUSED))
        # The namespace has no way there.
        equal(net.open("@8.8.8.8").error, errno.ENETUNREACH)
        equal(net.open("@2606:4700::1").error, errno.ENETUNREACH)
        subprocess.run(["ip", "route", "add", "unreachable", "9.9.9.9"], check=True)
        equal(net.open("@9.9.9.9").error, errno.EHOSTUNREACH)
        # A way that ends tells less than a server that refuses.
        equal(net.open("six.away").error, REFUSED)
        equal(net.open("four.away").error, REFUSED)
        equal(net.open("all.away").error, errno.ENETUNREACH)


def fill_backlog(address, port):
    """A server that takes in nobody: its SYNs are dropped."""
    server = Server(address, port, serve=False, backlog=0)
    waiting = []
    for _ in range(3):
        client = socket.socket(server.socket.family, socket.SOCK_STREAM)
        client.setblocking(False)
        client.connect_ex((address, port))
        waiting.append(client)
    time.sleep(0.1)
    return server, waiting


@test
def the_other_kind_of_address_is_tried_after_a_moment():
    server, waiting = fill_backlog(PUBLIC6, 443)
    with Resolver(RESOLVER, ZONE), Server(PUBLIC, 443), \
            Net(allow("allow pypi.org"), CONF) as net:
        start = time.monotonic()
        net.connect("pypi.org")
        took = time.monotonic() - start
        assert 0.2 < took < 10, took
        equal(net.until_event(CONNECTED).address, PUBLIC)
        # The attempt that lost is closed: this one's socket is there, and those it began with.
        net.until(lambda: net.descriptors() == 9)
    server.close()
    del waiting


@test
def a_server_that_never_answers_times_out():
    server, waiting = fill_backlog(PUBLIC, 443)
    with Net(encode_policy("bridge"), CONF) as net:
        before = 8
        # The policy's file is closed just after the policy is said to be in force.
        net.until(lambda: net.descriptors() == before)
        start = time.monotonic()
        stream = net.open("@" + PUBLIC, timeout=40)
        took = time.monotonic() - start
        equal(stream.error, errno.ETIMEDOUT)
        assert 29 < took < 39.5, took
        net.until(lambda: net.descriptors() == before)
        # One that the guest gives up is closed at once.
        stream = net.open("@" + PUBLIC, wait=False)
        net.until(lambda: net.descriptors() == before + 1)
        net.frame(RESET, stream.number)
        net.until(lambda: net.events[-1].error == errno.ECANCELED)
        net.until(lambda: net.descriptors() == before)
    server.close()
    del waiting


@test
def resolvers_take_turns():
    calls = []

    def fail(kind, over_tcp):
        calls.append(kind)
        return (2, [], 0) if not over_tcp else None
    conf = f"nameserver {SECOND}\nnameserver {RESOLVER}\noptions timeout:1 attempts:1\n"
    # The first one is not there, fails, is silent.
    with Resolver(RESOLVER, ZONE), Net(encode_policy("bridge"), conf) as net:
        equal(net.resolve("four.example"), (OK, 1))
    with Resolver(RESOLVER, ZONE), Resolver(SECOND, {"four.example": fail}):
        with Net(encode_policy("bridge"), conf) as net:
            equal(net.resolve("four.example"), (OK, 1))
            equal(sorted(calls), [1, 28])
    with Resolver(RESOLVER, ZONE), Resolver(SECOND, {"four.example": lambda k, t: None}):
        with Net(encode_policy("bridge"), conf) as net:
            start = time.monotonic()
            equal(net.resolve("four.example"), (OK, 1))
            assert 0.9 < time.monotonic() - start < 4
    with Resolver(SECOND, {"four.example": fail}):
        with Net(encode_policy("bridge"), conf) as net:
            equal(net.resolve("four.example"), (TEMPORARY, 0))
            equal(net.open("four.example").error, errno.EHOSTUNREACH)


@test
def forged_answers_are_passed_over():
    good = dns_name("four.example") + struct.pack(">HH", 1, 1)
    other = dns_name("evil.example") + struct.pack(">HH", 1, 1)

    def message(number, question, address):
        name = "four.example" if question == good else "evil.example"
        return (number + struct.pack(">HHHHH", 0x8180, 1, 1, 0, 0) + question +
                address_record(name, address, 60))

    def forge(kind, over_tcp):
        del over_tcp
        if kind == 28:
            return (0, [], 0)
        return [message(b"\0\0", good, PRIVATE), message(b"ID", other, PRIVATE), b"ID",
                message(b"ID", good, PUBLIC)]
    with Resolver(RESOLVER, {"four.example": forge}), Server(PUBLIC, 443):
        with Net(allow("allow four.example"), CONF) as net:
            net.connect("four.example")
            equal(net.until_event(CONNECTED).address, PUBLIC)


@test
def an_answer_of_nobody_is_not_taken():
    # From another port than was asked: the socket is connected, so the kernel drops it.
    def late(kind, over_tcp):
        del over_tcp
        time.sleep(0.3)
        return (0, [address_record("four.example", PUBLIC, 60)] if kind == 1 else [], 0)
    with Resolver(RESOLVER, {"four.example": late}) as resolver, Net(
            allow("allow four.example"), CONF) as net:
        net.open("four.example", wait=False)
        net.until(lambda: resolver.asked, 5)
        with open("/proc/net/udp", encoding="ascii") as table:
            ports = [int(line.split()[1].split(":")[1], 16) for line in table
                     if line.split()[2].endswith(":0035")]
        assert ports, "no question is under way"
        forger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        question = dns_name("four.example") + struct.pack(">HH", 1, 1)
        for port in ports:
            for number in range(0, 65536, 257):
                forger.sendto(struct.pack(">HHHHHH", number, 0x8180, 1, 1, 0, 0) + question +
                              address_record("four.example", OTHER, 60), ("127.0.0.1", port))
        forger.close()
        equal(net.until_event(CONNECTED).address, "")
        equal(net.event(CONNECTED).error, REFUSED)


@test
def each_question_has_a_number_and_a_port_of_its_own():
    seen = []

    class Noting(Resolver):
        def answer(self, query, over_tcp):
            seen.append(query[:2])
            return super().answer(query, over_tcp)
    with Noting(RESOLVER, {}), Net(encode_policy("bridge"), CONF) as net:
        for i in range(20):
            net.resolve(f"n{i}.example")
    equal(len(seen), 40)
    assert len(set(seen)) > 35, seen


@test
def a_long_answer_comes_over_tcp():
    many = [f"93.184.216.{i}" for i in range(1, 250)]

    def answer(kind, over_tcp):
        if kind == 28:
            return (0, [], 0)
        if not over_tcp:
            return (0, [], 0x200)
        return (0, [address_record("long.example", a, 60) for a in many], 0)
    with Resolver(RESOLVER, {"long.example": answer}) as resolver, Server("93.184.216.1", 443), \
            Net(allow("allow long.example"), CONF) as net:
        net.connect("long.example")
        equal(resolver.over_tcp, 1)
    with Resolver(RESOLVER, ZONE) as resolver, \
            Net(encode_policy("bridge"), CONF + "options use-vc\n") as net:
        equal(net.resolve("pypi.org"), (OK, 3))
        equal(resolver.over_tcp, 2)


@test
def broken_answers_are_no_answers():
    replies = [[b"ID\x81\x80" + b"\xff" * 40], [b"ID\x81\x80\0\1\0\1\0\0\0\0" + b"\xc0\x0c" * 9],
               [b"ID" + bytes(1500)], [b""], [b"ID\x81\x80"]]
    for reply in replies:
        zone = {"four.example": lambda k, t, r=reply: r}
        conf = f"nameserver {RESOLVER}\noptions timeout:1 attempts:1\n"
        with Resolver(RESOLVER, zone), Net(encode_policy("bridge"), conf) as net:
            equal(net.resolve("four.example"), (TEMPORARY, 0), str(reply))


@test
def one_kind_of_address_does_not_wait_for_ever():
    def only_four(kind, over_tcp):
        del over_tcp
        return (0, [address_record("half.example", PUBLIC, 60)], 0) if kind == 1 else None
    with Resolver(RESOLVER, {"half.example": only_four}), Server(PUBLIC, 443), \
            Net(encode_policy("bridge"), CONF) as net:
        start = time.monotonic()
        net.connect("half.example")
        assert time.monotonic() - start < 0.9


@test
def many_questions_at_once():
    zone = {f"n{i}.example": [PUBLIC] for i in range(256)}
    with Resolver(RESOLVER, zone), Net(encode_policy("bridge"), CONF) as net:
        tokens = [net.resolve(f"n{i}.example", wait=False) for i in range(256)]
        net.until(lambda: len(net.answers) == 256)
        equal({net.answers[t] for t in tokens}, {(OK, 1)})


@test
def hosts_are_for_names_that_the_policy_lists():
    hosts = f"127.0.0.1 localhost\n{PUBLIC} Local.Example other # {PRIVATE} local.example\n" \
            f"{PRIVATE}\tsecret.example\n::1 six.local\n"
    with Resolver(RESOLVER, ZONE) as resolver, Server(PUBLIC, 443), \
            Server("127.0.0.1", 443) as inside:
        with Net(allow("allow local.example", "allow localhost", "allow six.local"), CONF,
                 hosts) as net:
            equal(net.resolve("local.example"), (OK, 1))
            net.connect("local.example")
            equal(net.resolve("secret.example"), (DENIED, 0))
            equal(net.open("localhost").error, REFUSED)
            equal(net.until_event(CONNECTED, "localhost").reason, NO_SPECIAL)
            equal(net.resolve("six.local"), (OK, 2))
            equal(net.open("six.local").error, REFUSED)
        with Net(allow("allow localhost", "reach 127.0.0.0/8"), CONF, hosts) as net:
            net.connect("localhost")
        equal(resolver.asked, [])
        equal(inside.count, 1)


@test
def a_host_that_comes_to_another_network():
    old, new = f"nameserver {SECOND}\noptions timeout:5\n", f"nameserver {RESOLVER}\n"
    silent = {"four.example": lambda k, t: None}
    # What is under way is asked of the new resolver, long before the old one is given up.
    with Resolver(SECOND, silent) as gone, Resolver(RESOLVER, ZONE), \
            Net(encode_policy("bridge"), old) as net:
        start = time.monotonic()
        token = net.resolve("four.example", wait=False)
        net.until(lambda: net.looks == 1 and gone.asked)
        net.give_file(CONF_FILE, new)
        net.until(lambda: token in net.answers)
        equal(net.answers[token], (OK, 1))
        assert time.monotonic() - start < 5
        asked = len(gone.asked)
        equal(net.resolve("pypi.org"), (OK, 3))
        equal(len(gone.asked), asked)
    # What was found on the old one is not what it is on the new one.
    with Resolver(SECOND, {"four.example": [OTHER]}), Resolver(RESOLVER, ZONE), \
            Server(PUBLIC, 443), Server(OTHER, 443), Net(encode_policy("bridge"), old) as net:
        net.connect("four.example")
        equal(net.until_event(CONNECTED).address, OTHER)
        net.give_file(CONF_FILE, new)
        net.connect("four.example")
        equal(net.event(CONNECTED).address, PUBLIC)
        net.give_file(HOSTS_FILE, f"{OTHER} four.example\n")
        net.connect("four.example")
        equal(net.event(CONNECTED).address, OTHER)
        # An empty file lists nothing, and is no mistake.
        net.give_file(HOSTS_FILE, "")
        net.connect("four.example")
        equal(net.event(CONNECTED).address, PUBLIC)


@test
def the_keeper_is_asked_to_look_once_a_second():
    with Resolver(RESOLVER, ZONE), Net(allow("allow pypi.org"), CONF) as net:
        start = time.monotonic()
        equal(net.resolve("evil.example"), (DENIED, 0))
        equal(net.looks, 0, "looks for a name that is not looked for")
        for _ in range(300):
            net.resolve("pypi.org")
        took = time.monotonic() - start
        assert 1 <= net.looks <= 1 + took, (net.looks, took)
        looks = net.looks
        time.sleep(1)
        net.resolve("pypi.org")
        equal(net.looks, looks + 1)


@test
def search_is_not_applied():
    with Resolver(RESOLVER, {"host.corp.example": [PUBLIC]}) as resolver, \
            Net(encode_policy("bridge"), CONF + "search corp.example\noptions ndots:5\n") as net:
        equal(net.resolve("host"), (NXDOMAIN, 0))
        equal(resolver.names(), ["host"])


main()
