"""What the guest's scripts have found inside a machine, judged."""

import ipaddress
import os
import re
import socket
import threading

# Some hosts have hundreds of addresses, and lists of names to block; these are enough.
HOST_MAX = 24
# What a machine is made of: QEMU's chipset, and virtio's disk, console, random generator, balloon.
PCI = {"0x8086 0x29c0", "0x8086 0x2918", "0x1af4 0x1001", "0x1af4 0x1042", "0x1af4 0x1003",
       "0x1af4 0x1043", "0x1af4 0x1005", "0x1af4 0x1044", "0x1af4 0x1002", "0x1af4 0x1045"}
DISKS = {"/dev/vda", "/dev/vdb", "/dev/vdc"}
# Ways to the host or to hardware that no machine of box has.
DEVICES = re.compile(r"/dev/(kvm|vsock|vhost.*|vfio.*|net/.*|fuse|dri/.*|sd.*|nvme.*|nbd.*|sr.*|loop.*"
                     r"|dm-.*|mapper/.*|9p.*|video.*|snd/.*|bus/.*|tpm.*|ipmi.*|uio.*)$")
PORTS = ["box.ctl"]
SHARED = {"9p", "virtiofs", "fuse", "nfs", "nfs4", "cifs", "vboxsf", "overlay"}
# Reserved and special, in the spellings that a program may use. A machine's own loopback comes first:
# its kernel answers there, not the host.
LOOPBACK = ["127.0.0.1", "127.1", "127.0.0.53", "127.255.255.254", "0177.0.0.1", "0x7f.1",
            "2130706433", "0.0.0.0", "0", "localhost", "::1", "::", "::ffff:127.0.0.1",
            "::ffff:7f00:1", "0:0:0:0:0:0:0:1"]
RESERVED = ["::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::127.0.0.1", "2002:7f00:1::",
            "169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376",
            "169.254.43518", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "64:ff9b::a9fe:a9fe",
            "fd00:ec2::254", "169.254.0.1", "fe80::1", "100.100.100.200", "192.0.0.192",
            "10.0.0.1", "10.0.2.2", "10.0.2.3", "172.16.0.1", "172.17.0.1", "192.168.0.1",
            "192.168.1.1", "192.168.122.1", "100.64.0.1", "fc00::1", "fd00::1", "224.0.0.1",
            "ff02::1", "255.255.255.255", "240.0.0.1"]


def parts(text):
    """Name of a part to its lines."""
    found, lines = {}, []
    for line in text.splitlines():
        if line.startswith("@"):
            lines = found.setdefault(line[1:], [])
        else:
            lines.append(line)
    return found


def addresses_of_the_host():
    """
    Its own and its gateways, as the kernel lists them, that are reserved. A public address of the host
    is reached as from everywhere else.
    """
    found = set()
    with open("/proc/net/fib_trie", encoding="ascii") as file:
        found |= set(re.findall(r"\|-- (\S+)\n +/32 host LOCAL", file.read()))
    with open("/proc/net/route", encoding="ascii") as file:
        for line in file.read().splitlines()[1:]:
            gateway = bytes.fromhex(line.split()[2])
            found.add(socket.inet_ntop(socket.AF_INET, gateway[::-1]))
    for path, field in (("/proc/net/if_inet6", 0), ("/proc/net/ipv6_route", 4)):
        if os.path.exists(path):
            with open(path, encoding="ascii") as file:
                found |= {socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[field]))
                          for line in file}
    found = {each for each in found - {"0.0.0.0", "::"} if not ipaddress.ip_address(each).is_global}
    return sorted(found)[:HOST_MAX]


def names_of_the_host():
    found = {socket.gethostname()}
    with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
        for line in file:
            found |= set(line.partition("#")[0].split()[1:])
    return sorted(each for each in found if re.fullmatch(r"[A-Za-z0-9.-]+", each))[:HOST_MAX]


class Listener:
    """Listens on all addresses of the host and notes what came."""

    def __init__(self):
        self.came = []
        both = socket.has_dualstack_ipv6()
        self.server = socket.create_server(
            ("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        # It sees what comes, or else its silence would say nothing.
        self.sees = self._try()

    def _accept(self):
        while True:
            try:
                peer, _ = self.server.accept()
            except OSError:
                return
            self.came.append(peer.getsockname()[0])
            peer.close()

    def _try(self):
        with socket.create_connection(("127.0.0.1", self.port)) as peer:
            peer.settimeout(60)
            peer.recv(1)
        return bool(self.came and self.came.clear() is None)

    def close(self):
        self.server.close()


def own_kernel(found):
    """Another boot of a kernel, with our program as its first process."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        host = file.read().strip()
    boot_id, first = found["kernel"]
    if not re.fullmatch(r"[0-9a-f-]{36}", boot_id) or boot_id == host:
        yield f"the boot ID inside is {boot_id}, that of the host {host}"
    if first != "box-guest":
        yield f"process 1 is {first}"


def words(found, suite):
    """No word of the caller's environment in a process, on a command line or in the kernel's log."""
    text = "\n".join(found["words"])
    if suite.control not in text:
        yield "the word that was handed in on purpose was not found, so this look is blind"
    if suite.secret in text:
        yield "the caller's environment is inside"


def host_files(found, suite):
    """No directory of the host, and no file that lies beside BOX_HOME."""
    if f"/tmp/{suite.control}" not in found["files"]:
        yield "a file made on purpose was not found, so this look is blind"
    for path in found["files"]:
        if suite.control not in path:
            yield f"{path} is inside"
    for line in found["mounts"]:
        if line.split()[2] in SHARED:
            yield f"a file system that may be the host's: {line}"


def devices(found, _):
    """Those that a machine is made of, and no other."""
    if not DISKS & set(found["devices"]):
        yield "no disk was found, so this look is blind"
    disks = {each for each in found["devices"] if re.match("/dev/vd", each)}
    for path in sorted(disks - DISKS) + [each for each in found["devices"] if DEVICES.match(each)]:
        yield f"there is {path}"
    for each in sorted(set(found["pci"]) - PCI):
        yield f"there is the PCI device {each}"
    if found["ports"] != PORTS + ["box.net"]:
        yield f"its ports are {found['ports']}"
    if found["interfaces"] != ["lo"]:
        yield f"its network interfaces are {found['interfaces']}"


def reach(found, suite):
    """Under no spelling anything that is reserved; box-net itself has refused, and nobody else."""
    lines = [line.split() for line in found["reach"]]
    if len(lines) != len(suite.targets) * len(suite.ports):
        yield f"{len(lines)} answers to {len(suite.targets)} targets"
    for target, port, code in lines:
        if code == "0":
            yield f"{target} port {port} was reached"
    if not suite.listener.sees:
        yield "the listener does not see its own connection, so this look is blind"
    for address in sorted(set(suite.listener.came)):
        yield f"the host's listener got a connection at {address}"
    yield from decisions(suite, set(suite.asked))


def decisions(suite, wanted):
    """box-net was asked for each of these and refused it, by its own log."""
    rows = [row for row in suite.net_log()[suite.logged:] if row.get("event") == "connected"]
    for row in rows:
        if row["allowed"]:
            yield f"box-net allowed {row['host']} port {row['port']}"
    missing = wanted - {row["host"] for row in rows}
    if missing:
        yield f"box-net was not asked for {' '.join(sorted(missing))}, so this look is blind"


def data_size(found, suite):
    """The disk ends where the Boxfile says, and a write that goes on is told so."""
    sectors, *said, written = found["data"]
    if int(sectors) * 512 != suite.data_size:
        yield f"/data is a disk of {int(sectors) * 512} bytes, not {suite.data_size}"
    if not suite.data_size // 2 < int(written.split()[0]) <= suite.data_size:
        yield f"{written.split()[0]} bytes fit into /data of {suite.data_size}"
    if "No space left on device" not in " ".join(said):
        yield f"a write to a full /data was answered with {said}"


CHECKS = {"secret-words": words, "devices": devices, "reach": reach, "data-size": data_size}
