"""What holds each process of a machine, read from /proc: the jails of the monitor and of box-net, and
what the keeper, which is the user's own process, has taken from itself."""

import os
import re

from host import Unusable

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
# Each with the largest value that is enough for what the program does.
LIMITS = {"Max core file size": 0, "Max open files": 4095, "Max processes": 256,
          "Max address space": 64 << 30}
MONITOR_LIMITS = {**LIMITS, "Max open files": 128, "Max file size": 64 << 30}
# Beside the memory of the guest; security.md of the design says as much.
MEMORY_EXTRA = 256 << 20
TASKS_MAX = 512
ROOT_OPTIONS = {"ro", "nosuid", "nodev", "noexec"}
FILE_OPTIONS = {"ro", "nosuid"}
# Nobody's root may hold these directories of a host, but for the libraries that a program loads.
HOST_DIRECTORIES = ("boot", "dev/shm", "etc", "home", "mnt", "opt", "proc", "root", "run", "srv",
                    "sys", "tmp", "var")
CAP_DAC_OVERRIDE = 1
NET_KINDS = {"/dev/null", "pipe", "unix socket", "internet socket", "file"}
MONITOR_KINDS = {"/dev/null", "pipe", "unix socket", "file", "/dev/kvm"}


def ids(processes, machine):
    """An ID that nobody else has: not root's, the caller's only under `standard`."""
    for process in processes:
        uids, gids = ({int(each) for each in process.status(field).split()}
                      for field in ("Uid", "Gid"))
        groups = process.status("Groups")
        number = {"monitor": 0, "box-net": 1}[process.role]
        if machine.mode == "strict":
            slot = machine.box.slot(machine.name)
            wanted = ({slot["uid"] + number}, {slot["gid"] + number}) if slot else None
            if (uids, gids) != wanted:
                yield f"{process} has the IDs {uids} and {gids}, not {wanted} of its slot"
            if groups and not machine.hardware:
                yield f"{process} has the groups {groups}"
        if 0 in uids or 0 in gids:
            yield f"{process} is root"
        if machine.mode == "strict" and (os.getuid() in uids or os.getgid() in gids):
            yield f"{process} has the caller's own IDs"
        if len(uids) != 1 or len(gids) != 1:
            yield f"{process} has more than one ID: {uids}, {gids}"
        for name, own in (("uid_map", uids), ("gid_map", gids)):
            lines = [line.split() for line in process.file(name).splitlines()]
            if [line[2] for line in lines] != ["1"] * len(lines) or len(lines) > 2 or \
                    int(lines[0][1]) not in own:
                yield f"{process} may take IDs by its {name}: {lines}"


def capabilities(processes, _):
    """None in any set."""
    for process in processes:
        for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            if int(process.status(field), 16):
                yield f"{process} has {field} {process.status(field)}"


def no_new_privs(processes, _):
    """No program can give it more than it has."""
    for process in processes:
        if process.status("NoNewPrivs") != "1":
            yield f"{process} has not set no_new_privs"


def seccomp(processes, _):
    """A list of system calls is on."""
    for process in processes:
        if process.status("Seccomp") != "2":
            yield f"{process} has no list of system calls: mode {process.status('Seccomp')}"


def namespaces(processes, _):
    """Each of its own; box-net alone has the network of the host, as it is there to connect."""
    seen = {}
    for process in processes:
        for name in NAMESPACES:
            its = process.namespace(name)
            shared = its == os.readlink(f"/proc/self/ns/{name}")
            if shared and not (name == "net" and process.role == "box-net"):
                yield f"{process} shares the host's {name} namespace"
            elif its in seen:
                yield f"{process} shares its {name} namespace with {seen[its]}"
            seen.setdefault(its, process)
        first = process.status("NSpid").split()
        if len(first) != 2 or first[1] != "1":
            yield f"{process} is not the first of its own pid namespace: NSpid {first}"


def root(processes, _):
    """An empty read-only root that holds files and nothing of the host beside these."""
    for process in processes:
        points = process.mounts()
        if [kind for point, kind, _ in points if point == "/"] != ["tmpfs"]:
            yield f"{process} has another root than one tmpfs"
        for point, _, options in points:
            wanted = ROOT_OPTIONS if point == "/" else FILE_OPTIONS
            if not wanted <= options:
                yield f"{process} has {point} mounted {','.join(sorted(options))}"
        top = f"/proc/{process.pid}/root"
        try:
            names = os.listdir(top)
        except OSError as error:
            raise Unusable(f"{top}: {error.strerror}") from None
        if not names:
            yield f"{process} has a root with nothing in it, so this look is blind"
        for name in HOST_DIRECTORIES:
            if os.path.lexists(os.path.join(top, name)) and not any(
                    point.startswith(f"/{name}/") for point, _, _ in points):
                yield f"{process} sees /{name}"
        for folder, _, files in os.walk(top):
            for name in files:
                path = os.path.join(folder, name)[len(top):]
                if path not in {point for point, _, _ in points}:
                    yield f"{process} sees {path}, which is not mounted for it"


def descriptors(processes, machine):
    """Channels and the files of its own sandbox; what other machines start from only for reading."""
    own = machine.box.path("sandboxes", machine.name) + "/"
    nameless = re.compile(re.escape(machine.box.home) + r"/(sandboxes/\S+/)?#\d+ \(deleted\)")
    for process in processes:
        kinds = MONITOR_KINDS if process.role == "monitor" else NET_KINDS
        found = process.descriptors()
        if not found:
            yield f"{process} has no descriptors, so this look is blind"
        for each in found:
            if each.kind not in kinds and not each.kind.startswith("anon_inode:"):
                yield f"{process} holds {each}"
            if each.kind == "/dev/kvm" and not machine.hardware:
                yield f"{process} holds {each}"
            if each.kind != "file":
                continue
            if process.role == "box-net":
                if not re.fullmatch(r"/memfd:box-\w+ \(deleted\)", each.path):
                    yield f"{process} holds {each}"
            elif not each.path.startswith(own) and not nameless.fullmatch(each.path):
                yield f"{process} holds {each}"
            elif each.path.startswith((own + "image/", own + "snapshot/")) and each.writable:
                yield f"{process} may write {each}"


def limits(processes, _):
    """None of them without an end."""
    for process in processes:
        found = process.limits()
        wanted = MONITOR_LIMITS if process.role == "monitor" else LIMITS
        for name, most in wanted.items():
            for value in found.get(name, ("missing", "missing")):
                if not value.isdigit() or int(value) > most:
                    yield f"{process} has {name} {value}, more than {most}"


def _group_limit(path, names):
    for name in names:
        if os.path.exists(os.path.join(path, name)):
            with open(os.path.join(path, name), encoding="ascii") as file:
                return file.read().strip()
    return None


def cgroup(processes, machine):
    """A group of its own limits memory and tasks."""
    for process in processes:
        lines = [line.split(":", 2) for line in process.file("cgroup").splitlines()]
        found = {}
        for folder, folders, _ in os.walk("/sys/fs/cgroup"):
            for name in folders:
                if any(path.endswith("/" + name) for _, _, path in lines) and \
                        name.startswith("box-"):
                    path = os.path.join(folder, name)
                    for kind, names in (("memory", ("memory.max", "memory.limit_in_bytes")),
                                        ("tasks", ("pids.max",))):
                        found[kind] = _group_limit(path, names) or found.get(kind)
        for kind, most in (("memory", machine.ram + MEMORY_EXTRA), ("tasks", TASKS_MAX)):
            value = found.get(kind)
            if not value or not value.isdigit() or int(value) > most:
                yield f"{process} is in no control group that limits its {kind} to {most}: {value}"


def environment(processes, _):
    """Nothing of the caller's environment."""
    for process in processes:
        # proc(5): where the environment begins and ends, 0 for who may not know.
        start, end = (int(each) for each in process.file("stat").rpartition(")")[2].split()[47:49])
        if start == 0:
            yield f"where the environment of {process} lies cannot be read"
        if end > start:
            yield f"{process} has an environment of {end - start} bytes"


def keeper(process):
    """It has no capability but root's for control groups, no way to more, and a list of system calls."""
    mine = 1 << CAP_DAC_OVERRIDE if os.getuid() == 0 else 0
    for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        # A normal user's bounding set is of no use: no_new_privs.
        if int(process.status(field), 16) & ~mine and (mine or field != "CapBnd"):
            yield f"{process} has {field} {process.status(field)}"
    yield from no_new_privs([process], None)
    yield from seccomp([process], None)
    soft, hard = process.limits()["Max core file size"]
    if (soft, hard) != ("0", "0"):
        yield f"{process} may leave its memory in a core file: {soft}, {hard}"


CHECKS = {
    "ids": ids, "capabilities": capabilities, "no-new-privs": no_new_privs, "seccomp": seccomp,
    "namespaces": namespaces, "root": root, "descriptors": descriptors, "limits": limits,
    "cgroup": cgroup, "environment": environment,
}
