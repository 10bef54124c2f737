"""The escape suite; security/escape-test.sh says what it is given.

Steps start and end machines and find out; each has checks, which are one line of output each. There
are two sandboxes: `first` with a network, in which the hostile code runs, and `second` without one,
which must not notice.
"""

import argparse
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import inside
import naming
import outside
from host import TIMEOUT, Box, Unusable, adopt_orphans, data_of, descendants, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
RAM_MIB, DATA_MIB = 256, 64
BOXFILE = f"base: tiny\ncpus: 1\nram_mib: {RAM_MIB}\ndisk_size: 512M\ndata_size: {DATA_MIB}M\n"
# Of a command's output 64 KiB are kept, in a file that may have 1 MiB on the way, and here the lines of
# the log are few.
LOG_MAX = 4 * MIB
# What comes of the flood before the rest of it begins, as flood.sh has it.
FLOOD_BYTES = 8 * MIB
# Then the hostile code has so long until its machine is ended.
FLOOD_SECONDS = 4
# What goes through the other machine meanwhile.
BESIDE_BYTES = MIB
# Before each script that does harm: where box would run it on the host, which kernel.sh is there to see.
GUARD = 'read -r first </proc/1/comm; [ "$first" = box-guest ] || exit 1\n'


def script(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


class Suite:
    """The sandboxes, and what is known of them."""

    def __init__(self, options, folder):
        self.mode, self.engine = options.isolation, options.engine
        # Never the same twice: a word that lay about somewhere would be found for another reason.
        self.secret, self.control, self.other, self.mark = (
            f"{word}{secrets.token_hex(8)}" for word in ("secret", "control", "other", "mark"))
        self.box = Box(options.box, os.path.join(folder, "home"), {"ESCAPE_SECRET": self.secret})
        self.up = {}
        self.name, self.ram, self.data_size = "first", RAM_MIB * MIB, DATA_MIB * MIB
        self.hardware = False
        self.listener = self.port = None
        self.resolver = naming.given_resolver()
        # How long the log of the network was before.
        self.logged = 0
        self.targets, self.asked, self.ports = [], [], []
        with open(os.path.join(folder, self.mark), "w", encoding="ascii") as file:
            file.write(self.secret)
        self.folder = folder

    def lines(self, *more):
        return BOXFILE + f"isolation: {self.mode}\nengine: {self.engine}\n" + \
            "".join(f"{line}\n" for line in more)

    def prepare(self):
        """Makes and builds both, side by side; what an earlier call has built is taken as it is."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.boxfiles = {
            "first": self.lines("network: bridge"),
            "second": self.lines("readonly: true", f'network: {{ports: ["{self.port}:7"]}}'),
        }
        building = {}
        for name, text in self.boxfiles.items():
            new = not os.path.exists(self.box.path("sandboxes", name))
            if new:
                self.box.run("new", name).ok()
            self.box.boxfile(name, text)
            if new:
                building[name] = self.box.start("build", name, stdout=subprocess.PIPE,
                                                stderr=subprocess.STDOUT)
        for name, process in building.items():
            said, _ = process.communicate(timeout=600)
            if process.returncode:
                raise Unusable(f"`box build {name}` ended with {process.returncode}: "
                               f"{said.decode('utf-8', 'replace')[-600:]}")

    def start(self, name):
        """Has a machine up; it stays for the steps that follow."""
        if name not in self.up:
            self.box.run("up", name).ok()
            self.up[name] = self.box.keeper_of(name)
        return self.up[name]

    def stop(self, name):
        if self.up.pop(name, None):
            self.box.run("down", name).ok()

    def inside(self, name, text, environment=()):
        self.start(name)
        options = [word for each in environment for word in ("-e", each)]
        return self.box.run("exec", *options, name, "--", "sh", "-c", text).ok().out

    @contextlib.contextmanager
    def running(self, text):
        """A machine of `first` that runs a command for the length of a with block, and its keeper."""
        process = self.box.start("run", "first", "--", "sh", "-c",
                                 "echo ready; " + text, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        try:
            if process.stdout.readline() != b"ready\n":
                raise Unusable(f"`box run first`: {process.stderr.read().decode().strip()}")
            keeper, = [pid for pid, name in descendants(process.pid) if name == "box-keeper"]
            self.box.keepers.add(keeper)
            yield process, keeper
        finally:
            process.kill()
            process.communicate()

    def net_log(self):
        return [json.loads(line) for line in
                self.box.run("net", "first", "--json").ok().out.splitlines()]

    def log_size(self):
        return sum(os.path.getsize(os.path.join(folder, name))
                   for folder, _, names in os.walk(self.box.path("log")) for name in names)

    def digests(self):
        """Of every file that machines of `first` start from."""
        found = {}
        for folder in ("image", "snapshot"):
            for name in sorted(os.listdir(self.box.path("sandboxes/first", folder))):
                path = self.box.path("sandboxes/first", folder, name)
                fd = os.open(path, os.O_RDONLY)
                found[f"{folder}/{name}"] = hashlib.sha256(data_of(fd)).hexdigest()
                os.close(fd)
        return found

    def close(self):
        if self.listener:
            self.listener.close()
        self.box.end()


def look_at_the_kernel(suite):
    """Whose kernel it is that the script runs on, and whose files it sees."""
    found = inside.parts(suite.inside("first", script("kernel.sh"), [
        f"CONTROL={suite.control}", f"MARK={suite.mark}",
        f"PATHS={suite.folder} {suite.box.home} {HERE} {os.path.dirname(suite.box.program)}"]))
    if "end" not in found:
        raise Unusable(f"the script inside did not come to its end: {list(found)}")
    return {"own-kernel": list(inside.own_kernel(found)),
            "host-files": list(inside.host_files(found, suite))}


def look_inside(suite):
    """One script in `first` tries everything else that stays inside a machine."""
    suite.listener = inside.Listener()
    suite.start("second")
    suite.inside("second", f"echo {suite.other} > /tmp/other; sync")
    # What the host itself offers to its user is there, so that `first` could find it.
    # Nobody listens inside, so it may be reset as soon as it is there.
    with contextlib.suppress(ConnectionResetError):
        socket.create_connection(("127.0.0.1", suite.port), timeout=60).close()
    host = inside.addresses_of_the_host()
    # A link-local address of IPv6 is none without an interface, and the machine has no other.
    suite.asked = [each for each in host if not each.startswith(("127.", "::1", "fe80:"))] + \
        ["169.254.169.254", "10.0.0.1", "192.168.1.1", "172.17.0.1", "fd00::1"]
    suite.targets = list(dict.fromkeys(inside.LOOPBACK + inside.RESERVED + host +
                                       inside.names_of_the_host()))
    suite.ports = [str(suite.listener.port), str(suite.port)]
    before, suite.logged = suite.digests(), len(suite.net_log())
    found = inside.parts(suite.inside("first", GUARD + script("guest.sh"), [
        f"CONTROL={suite.control}", f"TARGETS={' '.join(suite.targets)}",
        f"PORTS={' '.join(suite.ports)}"]))
    results = {name: list(function(found, suite)) for name, function in inside.CHECKS.items()}
    results["image"] = [f"{name} has changed" for name, digest in suite.digests().items()
                        if before.get(name) != digest]
    if "end" not in found or len(before) < 4:
        raise Unusable(f"the script inside did not come to its end: {list(found)}")
    return results


def look_at_files(suite):
    """What the machine's files and its memory hold, byte for byte."""
    suite.start("second")
    suite.start("first")
    suite.inside("first", f"echo {suite.control} > /data/control; sync")
    suite.inside("second", f"echo {suite.other} > /data/other; sync")
    secret, other, seen = [], [], False
    for process in suite.box.processes(suite.start("first")):
        if process.role == "keeper":
            continue
        for each in process.descriptors():
            if each.kind == "directory":
                other.append(f"{process} holds {each}, from which more can be opened")
            if each.kind != "file":
                continue
            data = process.contents(each)
            seen = seen or suite.control.encode() in data
            if suite.secret.encode() in data:
                secret.append(f"the caller's environment is in {each}")
            if suite.other.encode() in data:
                other.append(f"what the other sandbox wrote is in {each}")
    blind = [] if seen else ["what it wrote to its own /data was not found: this look is blind"]
    return {"secret-files": secret + blind, "other-data": other + blind}


def look_at_root(suite):
    """`second` has a root that may only be read, no network, and tries to get round the first."""
    found = suite.inside("second", GUARD + script("readonly.sh")).splitlines()
    ports = suite.inside("second", "cat /sys/class/virtio-ports/*/name; ls /sys/class/net").split()
    return {
        "readonly-root": found[:-1] if found[-1:] == ["end"] else [f"the script said {found}"],
        "no-network": [] if ports == ["box.ctl", "lo"] else [f"it has {' '.join(ports)}"],
    }


def look_outside(suite):
    """What holds each process of `first`, and whether box's own report says the same."""
    keeper = suite.start("first")
    suite.start("second")
    report = suite.box.run("inspect", "first", "--security-report=json")
    differences = [f"{process['role']}: {line}" for process in report.json()["processes"]
                   for line in process.get("differences", [])]
    suite.hardware = report.json()["hardware"]
    # What the keeper said at the start that it could not have; of landlock /proc tells nothing.
    missing = {line for process in report.json()["processes"]
               for line in process.get("missing", []) if "lsm=" not in line}
    found = suite.box.processes(keeper)
    roles = sorted(each.role for each in found)
    if roles != ["box-net", "keeper", "monitor"]:
        raise Unusable(f"the machine has the processes {roles}")
    jailed = [each for each in found if each.role != "keeper"]
    results = {}
    for name, function in outside.CHECKS.items():
        try:
            results[name] = list(function(jailed, suite))
        except (Unusable, OSError) as error:
            results[name] = [str(error)]
    try:
        results["keeper"] = list(outside.keeper(*(each for each in found if each.role == "keeper")))
    except (Unusable, OSError) as error:
        results["keeper"] = [str(error)]
    if missing and results["cgroup"]:
        results["cgroup"] = f"this host gives no control group: {'; '.join(sorted(missing))}"
    if report.code != (1 if differences else 0):
        differences.append(f"`box inspect` ended with {report.code}")
    results["report"] = differences
    return results


def look_at_two(suite):
    """Two machines from one snapshot, and one of another sandbox."""
    suite.stop("first")
    # One process after the other: the same steps in both machines.
    text = "head -c 32 /dev/urandom >/tmp/random; sha256sum /tmp/random; cat /proc/sys/kernel/random/boot_id " \
        "/etc/machine-id; hostname"
    one, two = (suite.box.run("run", "--data", "none", "first", "--", "sh", "-c", text).ok()
                .out.split("\n") for _ in range(2))
    other = suite.inside("second", "hostname").strip()
    results = {}
    for number, name in ((0, "random"), (1, "boot-id"), (2, "machine-id")):
        same = one[number] == two[number] or len(one[number]) < 32
        results[name] = [f"both machines have {one[number]!r}"] if same else []
    results["host-name"] = [] if (one[3], other) == ("first", "second") else [
        f"the machines of first and second are called {one[3]!r} and {other!r}"]
    return results


def look_at_a_list(suite):
    """With a list that allows reserved addresses by name and number, they are refused all the same."""
    suite.stop("first")
    names = inside.names_of_the_host()
    listed = ["127.0.0.1", "169.254.169.254", "10.0.0.1"]
    allowed = ", ".join(f'"{each}"' for each in listed + names)
    suite.box.boxfile("first", suite.lines(f"network: {{allow: [{allowed}]}}"))
    before = len(suite.net_log())
    try:
        text = "; ".join(f"nc -w 3 {each} 80 </dev/null && echo {each}"
                         for each in [*listed[1:], *names, "45.0.0.1"])
        reached = suite.box.run("run", "--data", "none", "first", "--", "sh", "-c",
                                text + "; true").ok().out.split()
    finally:
        suite.box.boxfile("first", suite.boxfiles["first"])
    rows = [row for row in suite.net_log()[before:] if row.get("event") == "connected"]
    problems = [f"{each} was reached" for each in reached]
    problems += [f"box-net allowed {row['host']}" for row in rows if row["allowed"]]
    missing = {*listed[1:], "45.0.0.1"} - {row["host"] for row in rows}
    return {"list": problems + [f"box-net was not asked for {each}" for each in sorted(missing)]}


def look_at_a_flood(suite):
    """Hostile code ends and uses up all that it can; the host goes on, and what runs in the other machine."""
    suite.stop("first")
    keeper = suite.start("first")
    suite.start("second")
    others, bounds, got = [], [], 0
    beside = suite.box.start("exec", "-i", "second", "--", "cat", stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    flood = reader = None
    try:
        beside.stdin.write(b"ready\n")
        beside.stdin.flush()
        if beside.stdout.readline() != b"ready\n":
            raise Unusable(f"`box exec second`: {beside.stderr.read().decode().strip()}")
        flood = suite.box.start("exec", "first", "--", "sh", "-c", GUARD + script("flood.sh"),
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        while got < FLOOD_BYTES:
            data = flood.stdout.read1()
            if not data:
                raise Unusable(f"the flood ended after {got} bytes")
            got += len(data)
        log = suite.log_size()
        reader = subprocess.Popen(["cat"], stdin=flood.stdout, stdout=subprocess.DEVNULL)
        end = time.monotonic() + FLOOD_SECONDS
        while time.monotonic() < end and beside.poll() is None:
            try:
                suite.inside("second", "true")
            except Unusable as error:
                others.append(str(error))
                break
            for each in suite.box.processes(keeper):
                memory = int(each.status("VmRSS").split()[0]) << 10
                if memory > suite.ram + outside.MEMORY_EXTRA:
                    bounds.append(f"{each} uses {memory >> 20} MiB of memory")
                if int(each.status("Threads")) > outside.TASKS_MAX:
                    bounds.append(f"{each} has {each.status('Threads')} threads")
            log = max(log, suite.log_size())
            time.sleep(0.2)
        data = secrets.token_bytes(BESIDE_BYTES)
        out, _ = beside.communicate(data, timeout=TIMEOUT)
        if beside.returncode != 0 or out != data:
            others.append(f"what ran in the other machine ended with {beside.returncode}, "
                          f"after {len(out)} bytes of {len(data)}")
        # However the guest takes it: hostile code may spoil the end of its own machine.
        suite.up.pop("first")
        suite.box.run("down", "first")
        wait_until(lambda: flood.poll() is not None, 30)
    finally:
        for process in filter(None, (beside, flood, reader)):
            process.kill()
            process.wait()
    if log > LOG_MAX:
        bounds.append(f"the log has grown to {log >> 20} MiB")
    suite.stop("second")
    return {"flood-others": others, "flood-bounds": bounds, "flood-end": suite.box.still_left()}


def look_at_deaths(suite):
    """Whichever process of a machine is killed, all of it ends and nothing is left."""
    suite.stop("first")
    suite.stop("second")
    results = {}
    for role in ("monitor", "box-net", "keeper"):
        before = suite.box.left()
        with suite.running("sleep 1000") as (process, keeper):
            for each in suite.box.processes(keeper):
                # The others do nothing of their own accord: they have to be ended.
                if each.role not in (role, "keeper"):
                    os.kill(each.pid, signal.SIGSTOP)
            for each in suite.box.processes(keeper):
                if each.role == role:
                    os.kill(each.pid, signal.SIGKILL)
            ended = wait_until(lambda: process.poll() is not None, 30)
            results[f"kill-{role}"] = [] if ended else ["the command goes on"]
        results[f"kill-{role}"] += [f"left: {each}" for each in suite.box.still_left(before)]
        suite.box.end()
    return results


def look_at_slots(suite):
    """A sandbox that is destroyed has no IDs any more."""
    suite.stop("first")
    suite.box.run("new", "third").ok()
    suite.box.boxfile("third", suite.boxfiles["first"])
    had = suite.box.slot("third")
    suite.box.run("destroy", "-y", "--data", "third").ok()
    problems = [] if had or suite.mode == "standard" else ["a sandbox was given no IDs"]
    if had and had in [suite.box.slot(name) for name in suite.boxfiles]:
        problems.append("two sandboxes have one slot")
    if suite.box.slot("third"):
        problems.append("a sandbox that is gone has IDs")
    return {"slots": problems}


# Group, what it does, its checks in the order of the output.
STEPS = [
    ("kernel", look_at_the_kernel, ["own-kernel", "host-files"]),
    ("inside", look_inside, [*inside.CHECKS, "image"]),
    ("files", look_at_files, ["secret-files", "other-data"]),
    ("second", look_at_root, ["readonly-root", "no-network"]),
    ("outside", look_outside, [*outside.CHECKS, "keeper", "report"]),
    ("two", look_at_two, ["random", "boot-id", "machine-id", "host-name"]),
    ("lists", look_at_a_list, ["list"]),
    ("names", naming.look, [*naming.CHECKS]),
    ("flood", look_at_a_flood, ["flood-others", "flood-bounds", "flood-end"]),
    ("deaths", look_at_deaths, ["kill-monitor", "kill-box-net", "kill-keeper"]),
    ("ids-of-others", look_at_slots, ["slots"]),
]


def run_steps(suite, wanted):
    """Runs what is wanted and prints it. Returns how many checks passed and failed."""
    passed = failed = 0
    for group, function, names in STEPS:
        chosen = [name for name in names if not wanted or name in wanted or group in wanted]
        if not chosen:
            continue
        try:
            results = function(suite)
        except (Unusable, OSError, subprocess.SubprocessError) as error:
            results = {name: [f"could not be tried: {error}"] for name in names}
        for name in chosen:
            found = results[name]
            if isinstance(found, str):
                print(f"skipped {name}: {found}", flush=True)
            elif found:
                failed += 1
                text = " / ".join("; ".join(dict.fromkeys(found)).splitlines())
                print(f"FAILED {name}: {text}", flush=True)
            else:
                passed += 1
                print(f"ok {name}", flush=True)
    return passed, failed


def read_arguments():
    parser = argparse.ArgumentParser(prog="escape-test.sh", add_help=True)
    parser.add_argument("box", nargs="?")
    parser.add_argument("isolation", nargs="?", choices=("strict", "standard"), default="strict")
    parser.add_argument("engine", nargs="?", choices=("auto", "kvm", "qemu"), default="auto")
    parser.add_argument("--only", default="")
    parser.add_argument("--home")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    names = {name for group, _, checks in STEPS for name in [group, *checks]}
    options.only = [each for each in options.only.split(",") if each]
    for each in options.only:
        if each not in names:
            parser.error(f"there is no check {each}; --list names them")
    if not options.list and (not options.box or not os.access(options.box, os.X_OK)):
        parser.error(f"{options.box or 'BOX'} is no program; name an installed box")
    return options


def main():
    options = read_arguments()
    if options.list:
        print("\n".join(f"{name} {group}" for group, _, names in STEPS for name in names))
        return 0
    options.box = os.path.realpath(options.box)
    folder = options.home or tempfile.mkdtemp(prefix="escape-")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    adopt_orphans()
    suite = Suite(options, os.path.abspath(folder))
    try:
        suite.prepare()
        passed, failed = run_steps(suite, options.only)
        for name in list(suite.up):
            suite.stop(name)
    except (Unusable, OSError, subprocess.SubprocessError) as error:
        print(f"escape-test: it cannot be set up: {error}", file=sys.stderr)
        return 2
    finally:
        suite.close()
        if not options.home:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{passed} checks hold, {failed} do not", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
