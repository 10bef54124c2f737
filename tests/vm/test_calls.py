"""Every line of policies/*.policy is needed: machines are traced, and each line has to be met."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tarfile
import threading

from calls import STRACE, read_policies, used_rules
from lib import MIB, TINY, TOP, check, need_root, processes, skip, test, wait_until
from test_forward import RESET, SERVERS, Forward
from test_net import BOXFILE, COUNT, LARGE, NOBODY, RESOLVER, SILENT, Net, get

# Another address that counts as public.
PUBLIC_6 = "2a00:1450::1"


class Traced:
    """box, with all that it starts, below a strace of its own for each command."""

    def __init__(self, box):
        self.box, self.folder = box, box.path("..", f"traces-{os.getpid()}")
        self.real = box.binary
        os.makedirs(self.folder)
        self.script = box.path("..", f"traced-{os.getpid()}")
        with open(self.script, "w", encoding="utf-8") as file:
            words = " ".join(f"'{each}'" for each in [*STRACE, "-o", f"{self.folder}/t", self.real])
            file.write(f'#!/bin/sh\nexec {words} "$@"\n')
        os.chmod(self.script, 0o755)
        box.binary = self.script

    def run(self, *arguments, **options):
        # strace keeps the stream of errors open as long as the machine is up.
        with open(self.folder + ".err", "wb") as file:
            result = self.box.run(*arguments, stderr=file, **options)
        with open(self.folder + ".err", "rb") as file:
            result.err = file.read()
        return result

    def ended(self):
        return not any(each.name == "strace" and each.state not in "ZX"
                       for each in processes().values() if self.is_ours(each.pid))

    def is_ours(self, pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            return self.folder.encode() in file.read()
        return False


def serve_6(net):
    """What is reached by IPv6: a server, and a resolver that is asked first and never answers."""
    net.host_file("/etc/resolv.conf", f"nameserver ::1\nnameserver {RESOLVER}\n")
    net.host_file("/etc/hosts", f"{PUBLIC_6} six.test\n")
    subprocess.run(["ip", "address", "add", f"{PUBLIC_6}/128", "dev", "lo", "nodad"], check=True)
    server = socket.create_server((PUBLIC_6, COUNT), family=socket.AF_INET6)
    resolver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    resolver.bind(("::1", 53))
    net.servers += [server, resolver]

    def answer():
        while True:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):
                net.count(peer, PUBLIC_6)
    threading.Thread(target=answer, daemon=True).start()


def make_tree(folder):
    """What an archive may hold: links, a hole, attributes, a directory that nobody names first."""
    os.makedirs(f"{folder}/a/b")
    with open(f"{folder}/a/file", "wb") as file:
        file.write(os.urandom(300000))
        file.truncate(900000)
    os.setxattr(f"{folder}/a/file", "user.note", b"yes")
    os.link(f"{folder}/a/file", f"{folder}/a/b/again")
    os.symlink("../file", f"{folder}/a/b/link")


NETWORK = "; ".join((
    get("good.test"), get("good.test", LARGE), get("nobody.test"), get("good.test", NOBODY),
    f"echo hello | nc good.test {COUNT}", f"echo hello | nc six.test {COUNT}",
    f"head -c 4000000 /dev/zero | timeout 2 nc good.test {SILENT}"))
DATA = "cd /data && dd if=/dev/urandom of=big bs=64k count=128 2>/dev/null && sync && rm big && " \
    "fstrim /data; dd if=/dev/zero of=/tmp/z bs=1M count=100 2>/dev/null; rm /tmp/z; sleep 1"


def packed_base(traced, tree):
    """An image of some size and many files, from an archive that xz has made."""
    box = traced.box
    os.mkdir(f"{tree}/many")
    for number in range(1000):
        with open(f"{tree}/many/{number}", "wb") as file:
            file.write(os.urandom(100))
    path = f"{tree}.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.add(tree, ".")
        archive.add("/bin/busybox", "bin/sh")
    box.make("packed", TINY.replace("base: tiny", f"base: tar:{path}").replace("512M", "8G"))
    traced.run("build", "packed", timeout=240)
    os.unlink(path)
    shutil.rmtree(f"{tree}/many")


def live(traced, tree):
    """All that a machine that is up is asked for."""
    box = traced.box
    # So large that what comes next begins another.
    os.truncate(box.path("log/tiny.jsonl"), 5 * MIB)
    traced.run("up", "tiny").ok()
    # From here on only the machine is of interest, which is traced already.
    box.binary = traced.real
    box.run("exec", "tiny", "--", "sh", "-c", f"{NETWORK}; {DATA}")
    box.run("exec", "-i", "tiny", "--", "cat", input=b"x" * 300000).ok()
    box.run("exec", "--detach", "tiny", "--", "sleep", "600").ok()
    box.run("ps", "tiny").ok()
    box.run("net", "tiny", "--allow", "more.test").ok()
    box.run("inspect", "tiny").ok()
    box.run("exec", "--detach", "tiny", "--", "sh", "-c",
            f"exec nc -ll -p {RESET} -e {SERVERS[RESET]}").ok()
    box.run("exec", "tiny", "--", "sh", "-c",
            f"until netstat -ltn | grep -q ':{RESET} '; do usleep 50000; done").ok()
    forward(box)
    box.run("cp", tree, "tiny:/data/tree").ok()
    box.binary = traced.script
    traced.run("cp", "tiny:/data/tree", f"{tree}.back").ok()
    # Something that is no directory is in the way.
    os.mkdir(f"{tree}.full")
    os.mkdir(f"{tree}.full/tree")
    with open(f"{tree}.full/tree/a", "wb"):
        traced.run("cp", "tiny:/data/tree", f"{tree}.full/").exits(125)
    traced.run("run", "--data", "clone", "tiny", "--", "ls", "/data").ok()
    traced.run("fork", "--live", "tiny", "copy").ok()
    traced.run("exec", "tiny", "--", "sh", "-c", "echo more > /data/more").ok()
    box.binary = traced.real
    for name in ("copy", "tiny"):
        box.run("down", name).ok()
    box.binary = traced.script
    traced.run("destroy", "-y", "copy").ok()


def forward(box):
    with Forward(box, RESET) as way:
        with way.connect() as peer:
            peer.shutdown(socket.SHUT_WR)
            peer.recv(10)
        with way.connect() as peer:
            # What is not read when the other side ends makes it a reset.
            peer.sendall(b"x" * 100000)
            with contextlib.suppress(ConnectionResetError):
                peer.recv(10)


def at_rest(traced, tree):
    box = traced.box
    traced.run("snapshot", "tiny", "one").ok()
    traced.run("restore", "-y", "tiny", "one").ok()
    traced.run("data", "import", "tiny", tree).ok()
    traced.run("data", "export", "tiny", f"{tree}.out").ok()
    traced.run("verify", "tiny").ok()
    # A monitor that cannot load what it should ends by itself.
    box.run("down", "--pool", "tiny").ok()
    os.truncate(box.path("sandboxes/tiny/snapshot/devices"), 1000)
    traced.run("run", "--data", "none", "tiny", "--", "true").exits(125)


@test(home="empty", timeout=600)
def every_line_of_the_lists_is_met(box):
    need_root()
    if not shutil.which("strace"):
        skip("strace is not installed")
    net = Net(box)
    serve_6(net)
    traced = Traced(box)
    tree = box.path("..", f"tree-{os.getpid()}")
    make_tree(tree)
    box.make("tiny", BOXFILE.replace("allow: [", f"allow: ['six.test:{COUNT}', ") + "warm: 1\n")
    traced.run("build", "tiny", timeout=240).ok()
    for _ in range(2):
        traced.run("run", "tiny", "--", "sh", "-c", f"{NETWORK}; {DATA}")
        wait_until("a warm machine", lambda: os.path.exists(box.path("run/tiny/warm-0")), 120)
    packed_base(traced, tree)
    live(traced, tree)
    at_rest(traced, tree)
    box.binary = traced.real
    wait_until("the end of the traces", traced.ended, 120)
    policies = read_policies()
    used, strange = used_rules(traced.folder, policies)
    if os.environ.get("BOX_CALLS"):
        shutil.copytree(traced.folder, os.environ["BOX_CALLS"], dirs_exist_ok=True)
    check(not strange, "calls that no line is for:", sorted(set(strange))[:10])
    unmet = [rule.place for rules in policies.values() for rule in rules
             if rule not in used and rule.must_be_met]
    check(not unmet, "lines that no program needs:\n",
          "\n".join(unmet))


@test(home=None)
def lines_that_are_met_seldom_are_tried(_):
    """Each is in the table of tests/jail/test_lists.c for its list."""
    with open(os.path.join(TOP, "tests/jail/test_lists.c"), encoding="ascii") as file:
        table = file.read().split("seldom[] = {", 1)[1].split("\n};", 1)[0]
    tried = set()
    for row in table.split("}},"):
        tried |= {(policy, call) for policy in re.findall(r"jail_policy_(\w+)", row)
                  for call in re.findall(r'"(\w+)"', row)}
    wanted = {(policy, rule.call) for policy, rules in read_policies().items() for rule in rules
              if rule.seldom}
    check(wanted, "no line says `seldom:`")
    check(wanted <= tried, "not tried:", sorted(wanted - tried))
