"""How the tests of box-net run: in a network namespace of their own, one after the other, as TAP.

What they share is here too: addresses that look public, and what the numbers of events mean.
"""

import errno
import os
import re
import subprocess
import sys
import time
import traceback

import peers
from peers import encode_policy

TESTS = []
PUBLIC = "93.184.216.34"
OTHER = "151.101.1.1"
PUBLIC6 = "2606:2800:220:1::1"
PRIVATE = "10.1.2.3"
RESOLVER = "127.0.0.53"
SECOND = "127.0.0.54"
CONF = f"nameserver {RESOLVER}\noptions timeout:1 attempts:2\n"
REFUSED = errno.ECONNREFUSED
# enum policy_reason and ipc_net_reason.
BY_RULE, BY_BRIDGE, BY_ADDRESS, BY_REACH, NO_DENIED, NO_RULE, NO_SPECIAL, NO_NAME = range(8)
NO_POLICY, NO_CONNECTIONS, NO_BYTES = 64, 65, 66
END_BOTH, END_GUEST, END_SERVER, END_POLICY, END_LIMIT, END_PORT = range(1, 7)
LIMIT_CONNECTIONS, LIMIT_BYTES, LIMIT_PROTOCOL, LIMIT_CLOSED = range(1, 5)
OK, NXDOMAIN, DENIED, TEMPORARY = range(4)
ZONE = {"pypi.org": [PUBLIC, PUBLIC6], "four.example": [PUBLIC], "six.example": [PUBLIC6],
        "inside.example": [PRIVATE]}


def test(function):
    """Marks a test."""
    TESTS.append(function)
    return function


def equal(found, wanted, what=""):
    """Fails unless both are the same."""
    assert found == wanted, f"{what}: {found!r} is not {wanted!r}"


def allow(*rules, **further):
    """An encoded list."""
    return encode_policy("list", rules, **further)


def enter_namespace():
    """Goes on in a network namespace of its own, in which root or the user may do anything."""
    if os.environ.get("BOX_TEST_NAMESPACE") == "yes":
        return
    os.environ["BOX_TEST_NAMESPACE"] = "yes"
    way = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    if subprocess.run([*way, "true"], capture_output=True, check=False).returncode != 0:
        print("1..0 # SKIP no network namespace can be made")
        sys.exit(0)
    os.execvp(way[0], [*way, sys.executable, *sys.argv])


def prepare():
    """Addresses on the loopback device, public ones too: nothing leaves this namespace."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in (PUBLIC + "/32", OTHER + "/32", PRIVATE + "/32", "10.1.2.4/32",
                    "93.184.216.1/32", PUBLIC6 + "/128"):
        subprocess.run(["ip", "addr", "add", address, "dev", "lo"], check=True)
    with open("/proc/self/uid_map", encoding="ascii") as uid_map:
        if uid_map.read().split() != ["0", "0", "4294967295"]:
            peers.USER_ID = 0


def main():
    enter_namespace()
    peers.BOX_NET, peers.HOST = map(os.path.abspath, sys.argv[1:3])
    wanted = re.compile(sys.argv[3] if len(sys.argv) > 3 else ".")
    tests = [t for t in TESTS if wanted.search(t.__name__)]
    prepare()
    print(f"1..{len(tests)}")
    failed = 0
    for number, function in enumerate(tests, 1):
        name = function.__name__.replace("_", " ")
        try:
            start = time.monotonic()
            function()
            print(f"ok {number} - {name} # {time.monotonic() - start:.1f} s", flush=True)
        except Exception:  # pylint: disable=broad-except
            failed += 1
            for line in traceback.format_exc().splitlines():
                print("# " + line)
            print(f"not ok {number} - {name}", flush=True)
    # Threads of servers that hang are not waited for.
    sys.stdout.flush()
    os._exit(1 if failed else 0)
