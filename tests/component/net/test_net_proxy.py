#!/usr/bin/env python3
"""box-net in its jail, on a host whose connections go through an HTTP proxy.

usage: test_net_proxy.py BOX-NET NET-HOST [PATTERN]
"""

import base64
import errno
import sys
import threading
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from harness import (PUBLIC, OTHER, PRIVATE, RESOLVER, CONF, REFUSED, NO_SPECIAL, END_BOTH,
                     END_POLICY, OK, DENIED, ZONE, test, equal, allow, main)  # noqa: E402
from peers import (ASKED, CONNECTED, ENDED, EOF, RESET, Net, Resolver, Server,
                   Waiting, encode_policy)  # noqa: E402

PLACE, PORT = "127.0.0.9", 3128
PROXY = (PLACE, PORT)
SECRET = base64.b64encode(b"user:hush").decode()
MEANT = "HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n"


class Proxy(Server):
    """Takes a request down, answers with answer, and is then the server itself."""

    def __init__(self, answer=MEANT, address=PLACE, after=b"", pause=0.0):
        self.requests, self.answer, self.after, self.pause = [], answer.encode(), after, pause
        super().__init__(address, PORT, self.one)

    def one(self, connection):
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            got = connection.recv(1)
            if not got:
                return
            request += got
        self.requests.append(request.decode())
        if self.pause:
            for byte in self.answer:
                connection.sendall(bytes([byte]))
                time.sleep(self.pause)
        else:
            # In one piece: what the server says first comes with the end of the head.
            connection.sendall(self.answer + self.after)
        while True:
            data = connection.recv(65536)
            if not data:
                break
            connection.sendall(data)
        connection.close()


def opens(host, port):
    """The request for a connection."""
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"


@test
def a_connection_by_name():
    with Resolver(RESOLVER, ZONE) as resolver, Proxy(after=b"server first\n") as proxy:
        with Net(allow("allow pypi.org", "allow nowhere.example:8080"), CONF, proxy=PROXY) as net:
            equal(net.resolve("pypi.org"), (OK, 3))
            # The proxy may know a name that nobody here does.
            equal(net.resolve("nowhere.example"), (OK, 3))
            equal(net.until_event(ASKED).proxy, 1)
            stream = net.connect("pypi.org")
            event = net.until_event(CONNECTED)
            equal((event.host, event.port, event.address, event.rule, event.proxy, event.error),
                  ("pypi.org", 443, "", "allow pypi.org", 200, 0))
            net.until(lambda: stream.data == b"server first\n")
            net.send(stream, b"hello")
            net.until(lambda: stream.data == b"server first\nhello")
            net.frame(EOF, stream.number)
            net.until(lambda: stream.eof)
            end = net.until_event(ENDED)
            equal((end.bytes_up, end.bytes_down, end.end, end.proxy), (5, 18, END_BOTH, 200))
            net.connect("nowhere.example", 8080)
        equal(proxy.requests, [opens("pypi.org", 443), opens("nowhere.example", 8080)])
        equal(resolver.asked, [], "questions for what the proxy resolves")


@test
def the_policy_comes_first():
    rules = ("allow pypi.org", "deny bad.pypi.org", "allow *.pypi.org", "allow 10.1.2.4")
    with Resolver(RESOLVER, ZONE) as resolver, Proxy() as proxy, Server(PUBLIC, 443) as server:
        with Net(allow(*rules), CONF, proxy=PROXY) as net:
            for host in ("evil.example", "bad.pypi.org", "localhost"):
                equal(net.resolve(host), (DENIED, 0), host)
            for host, port in (("evil.example", 443), ("bad.pypi.org", 443), ("pypi.org", 22),
                               ("@" + PUBLIC, 443), ("@10.1.2.4", 443), ("@" + PLACE, PORT),
                               ("@127.0.0.1", 443), ("localhost", 80), ("127.1", 80)):
                equal(net.open(host, port).error, REFUSED, host)
            net.until_event(CONNECTED, "10.1.2.4")
            # An address that is written is judged as without a proxy.
            equal(net.event(CONNECTED, "10.1.2.4").reason, NO_SPECIAL)
            net.settle()
            equal({event.allowed for event in net.events}, {0})
        equal((proxy.count, server.count, resolver.asked), (0, 0, []))


@test
def addresses_go_through_it_too():
    with Proxy() as proxy, Net(encode_policy("bridge"), CONF, proxy=PROXY) as net:
        net.connect("@" + OTHER, 80)
        net.connect("@2606:4700::1", 8443)
        equal(proxy.requests, [opens(OTHER, 80), opens("[2606:4700::1]", 8443)])


@test
def what_is_reached_without_it():
    zone = dict(ZONE, **{"a.corp.example": [PUBLIC], "corp.example": ["127.0.0.1"]})
    direct = ("corp.example", "*.corp.example", OTHER, "four.example:8080")
    with Resolver(RESOLVER, zone) as resolver, Proxy() as proxy, Server(PUBLIC, 443) as server, \
            Server(PUBLIC, 8080) as second, Server(OTHER, 443) as third:
        with Net(encode_policy("bridge"), CONF, proxy=(PLACE, PORT, direct)) as net:
            equal(net.resolve("a.corp.example"), (OK, 1))
            net.connect("a.corp.example")
            event = net.until_event(CONNECTED, "a.corp.example")
            equal((event.address, event.proxy), (PUBLIC, 0))
            # Judged by its address, as without a proxy.
            equal(net.open("corp.example").error, REFUSED)
            net.connect("@" + OTHER)
            net.connect("four.example", 8080)
            equal(proxy.requests, [])
            net.connect("four.example")
            equal(proxy.requests, [opens("four.example", 443)])
        equal((server.count, second.count, third.count), (1, 1, 1))
        equal(resolver.names(), ["a.corp.example", "corp.example", "four.example"])


@test
def the_proxy_by_name_needs_no_rule():
    zone = {"proxy.corp": [PRIVATE], "pypi.org": [PUBLIC]}
    with Resolver(RESOLVER, zone) as resolver, Proxy(address=PRIVATE) as proxy:
        with Net(allow("allow pypi.org"), CONF, proxy=("proxy.corp", PORT)) as net:
            net.connect("pypi.org")
            net.connect("pypi.org")
            # It is no host of the guest's for that.
            equal(net.open("proxy.corp", PORT).error, REFUSED)
            equal(net.resolve("proxy.corp"), (DENIED, 0))
        equal(proxy.requests, [opens("pypi.org", 443)] * 2)
        equal(resolver.names(), ["proxy.corp"])
        # One that is not known.
        with Net(allow("allow pypi.org"), CONF, proxy=("gone.corp", PORT)) as net:
            equal(net.open("pypi.org").error, errno.EHOSTUNREACH)
            equal(net.until_event(CONNECTED).proxy, 1)
    # Nobody is there.
    with Net(allow("allow pypi.org"), CONF, proxy=PROXY) as net:
        equal(net.open("pypi.org").error, REFUSED)
        event = net.until_event(CONNECTED)
        equal((event.allowed, event.error, event.proxy), (1, REFUSED, 1))


@test
def its_secret_is_for_the_proxy_alone():
    with Proxy() as proxy, Net(encode_policy("bridge"), CONF,
                               proxy=(PLACE, PORT, (), SECRET)) as net:
        stream = net.connect("pypi.org", 80)
        net.send(stream, b"GET / HTTP/1.1\r\n\r\n")
        net.until(lambda: b"GET" in stream.data)
        contains = f"\r\nProxy-Authorization: Basic {SECRET}\r\n\r\n"
        assert proxy.requests[0].endswith(contains), proxy.requests
        net.settle()
        assert SECRET.encode() not in net.seen and b"hush" not in net.seen


@test
def what_it_refuses():
    answers = (
        ("HTTP/1.1 403 Forbidden\r\n\r\n", REFUSED, errno.EACCES, 403),
        ("HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n"
         "Content-Length: 9000\r\n\r\n" + "x" * 9000, REFUSED, errno.EACCES, 407),
        ("HTTP/1.0 502\r\n", errno.EHOSTUNREACH, errno.EHOSTUNREACH, 502),
        ("HTTP/1.1 503 Busy\n\n", errno.EHOSTUNREACH, errno.EHOSTUNREACH, 503),
        ("HTTP/1.1 504 Late\r\n\r\n", errno.ETIMEDOUT, errno.ETIMEDOUT, 504),
        ("HTTP/1.1 500 Broken\r\n\r\n", errno.EHOSTUNREACH, errno.EPROTO, 500),
        ("HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", errno.EHOSTUNREACH, errno.EPROTO, 302),
        ("HTTP/1.1 999 What\r\n\r\n", errno.EHOSTUNREACH, errno.EPROTO, 1),
        ("SSH-2.0-OpenSSH\r\n", errno.EHOSTUNREACH, errno.EPROTO, 1),
        ("\0\1\2\3", errno.EHOSTUNREACH, errno.EPROTO, 1),
        ("\r\n", errno.EHOSTUNREACH, errno.EPROTO, 1),
        # A head that does not end.
        ("HTTP/1.1 200 OK\r\n" + "A: b\r\n" * 20000, errno.EHOSTUNREACH, errno.EPROTO, 200),
        ("HTTP/1.1 200 " + "x" * 100000, errno.EHOSTUNREACH, errno.EPROTO, 200),
    )
    for answer, told, error, status in answers:
        with Proxy(answer) as proxy, Net(allow("allow pypi.org"), CONF, proxy=PROXY) as net:
            net.settle(0.05)
            before = net.descriptors()
            stream = net.open("pypi.org")
            event = net.until_event(CONNECTED)
            equal((stream.error, event.error, event.proxy, event.allowed), (told, error, status, 1),
                  answer[:40])
            net.until(lambda n=before: net.descriptors() == n)
            equal(proxy.count, 1, answer[:40])
            equal(bytes(stream.data), b"", answer[:40])


@test
def one_that_closes_early():
    for answer in (b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nVia"):
        def close(connection, said=answer):
            connection.recv(65536)
            connection.sendall(said)
            connection.close()
        with Server(PLACE, PORT, close), Net(encode_policy("bridge"), CONF, proxy=PROXY) as net:
            stream = net.open("pypi.org")
            equal(net.until_event(CONNECTED).error, errno.ECONNRESET, answer)
            assert stream.error, answer


@test
def one_that_is_slow():
    with Proxy(pause=0.005) as proxy, Net(encode_policy("bridge"), CONF, proxy=PROXY) as net:
        streams = [net.open("pypi.org", wait=False) for _ in range(20)]
        net.until(lambda: all(stream.opened for stream in streams), 30)
        for stream in streams:
            net.send(stream, b"x")
        net.until(lambda: all(stream.data == b"x" for stream in streams))
        equal(proxy.count, 20)


@test
def one_that_says_nothing_is_given_up():
    asked = threading.Event()

    def wait(connection):
        connection.recv(65536)
        asked.set()
        time.sleep(3600)
    with Server(PLACE, PORT, wait), Net(allow("allow pypi.org"), CONF, proxy=PROXY) as net:
        net.settle()
        before = net.descriptors()
        stream = net.open("pypi.org", wait=False)
        net.until(asked.is_set)
        net.frame(RESET, stream.number)
        net.until(lambda: net.events and net.events[-1].error == errno.ECANCELED)
        net.until(lambda: net.descriptors() == before)
        # A policy that does not allow it any more.
        asked.clear()
        stream = net.open("pypi.org", wait=False)
        net.until(asked.is_set)
        net.give(allow("allow other.example"))
        net.until(lambda: stream.error is not None)
        equal((stream.error, net.events[-1].allowed), (REFUSED, 0))
        net.until(lambda: net.descriptors() == before)


@test
def a_connection_is_cut_by_a_policy_that_denies_its_name():
    with Proxy(), Net(allow("allow pypi.org", "allow four.example"), CONF, proxy=PROXY) as net:
        stream, other = net.connect("pypi.org"), net.connect("four.example")
        net.give(allow("allow pypi.org", "allow four.example", "deny four.example"))
        net.until(lambda: other.was_reset)
        equal(net.until_event(ENDED).end, END_POLICY)
        net.send(stream, b"still")
        net.until(lambda: stream.data == b"still")


@test
def it_is_told_once_and_before_the_policy():
    for late in (True, False):
        with Net(encode_policy("bridge") if late else None, CONF,
                 proxy=None if late else PROXY) as net:
            net.give_proxy(*PROXY)
            try:
                net.until(lambda: False, 5)
                assert False, "box-net goes on"
            except (Waiting, ConnectionResetError):
                pass
            equal(net.end()[0], "exit 1")


main()
