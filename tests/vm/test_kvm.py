"""Real KVM, version 2 control groups and systemd, where this host has none: box inside a machine.

QEMU's own emulation offers AMD's virtualization, so a stock kernel inside it loads kvm-amd and has a
/dev/kvm that really runs code. The machine around is started here and not by box, because box gives
its machines no nested virtualization. Its root is an image that box has built, its second disk is a
tar of the installed box and of what is to be done.
"""

import io
import json
import os
import re
import subprocess
import tarfile

from calls import STRACE, read_policies, used_rules
from lib import MIB, PREFIX, check, contains, equal, mirror_reason, need_root, skip, test

BOXFILE = """base: debian/bookworm
packages: [qemu-system-x86, busybox-static, kmod, procps, libarchive13, libext2fs2, libjansson4,
           libsodium23, libyaml-0-2]
"""
WITH_SYSTEMD = BOXFILE.replace(
    "]", ", systemd-sysv, libpam-systemd, dbus, dbus-user-session, uidmap]")
# In the order in which they need one another.
DISK_MODULES = ["virtio/virtio_ring", "virtio/virtio", "virtio/virtio_pci_legacy_dev",
                "virtio/virtio_pci_modern_dev", "virtio/virtio_pci", "block/virtio_blk"]
KVM_MODULES = ["virt/lib/irqbypass", "arch/x86/kvm/kvm", "arch/x86/kvm/kvm-amd"]

INIT = """#!/busybox sh
B=/busybox
$B mount -t devtmpfs dev /dev
for m in /modules/*; do $B insmod $m; done
$B mount -t ext4 /dev/vda /root
$B tar -x -f /dev/vdb -C /root
"""
START_JOB = """for d in dev proc sys run tmp; do $B mkdir -p /root/$d; done
$B mount -t devtmpfs dev /root/dev
$B mount -t proc proc /root/proc
$B mount -t sysfs sys /root/sys
$B mount -t tmpfs run /root/run
$B mount -t cgroup2 cgroup /root/sys/fs/cgroup
exec $B switch_root -c /dev/ttyS0 /root /bin/sh /job/job
"""
START_SYSTEMD = """exec $B switch_root /root /sbin/init
"""

JOB = """export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin BOX_HOME=/home-of-box
say() { printf '@%s\\n' "$*"; }
for m in /job/*.ko; do insmod $m; done
echo "+memory +pids" > /sys/fs/cgroup/cgroup.subtree_control
chmod 600 /dev/kvm
say "root-only $(box doctor --json | tr -d '\\n')"
chgrp 105 /dev/kvm
chmod 660 /dev/kvm
say "doctor $(box doctor --json | tr -d '\\n')"
printf 'base: tiny\\ncpus: 1\\nram_mib: 256\\n' > /Boxfile
box new t --from /Boxfile
say "build $(box build t 2>&1 | tr '\\n' ' ')"
say "run $(box run --json t -- dmesg | tr -d '\\n')"
box run t -- sh -c 'echo kept > /data/note'
say "note $(box run t -- cat /data/note)"
box run t -- sleep 1000 &
for i in $(seq 100); do
	sleep 0.2
	group=$(sed -n 's/^0:://p' "/proc/$(pidof qemu-system-x86_64)/cgroup" 2>/dev/null)
	case $group in *box-*) break ;; esac
done
say "group $group $(cat "/sys/fs/cgroup$group/memory.max" "/sys/fs/cgroup$group/pids.max" | tr '\\n' ' ')"
kill %1 2>/dev/null || kill $!
wait
say "left $(ls -d /sys/fs/cgroup/box-* /sys/fs/cgroup/*/box-* 2>/dev/null | wc -l)"
say "end"
busybox poweroff -f
"""

# What systemd starts, alone with what that needs. When nobody is logged in any more, and nothing of
# a session is left, the user's systemd ends at once and not after ten seconds.
UNIT = """[Unit]
Wants=systemd-logind.service
After=systemd-logind.service
[Service]
Type=oneshot
ExecStart=/bin/sh /job/job
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
"""
LOGIND = """[Login]
UserStopDelaySec=0
"""
SAY = """say() { printf '@%s\\n' "$*"; }
# The group of the process with this name, and its limits.
say_group() {
	group=$(sed -n 's/^0:://p' "/proc/$(pidof "$2")/cgroup")
	say "$1 $group $(cat "/sys/fs/cgroup$group/memory.max" "/sys/fs/cgroup$group/pids.max" | tr '\\n' ' ')"
}
say_left() {
	for i in $(seq 50); do
		left=$(find /sys/fs/cgroup -name 'box-*')
		[ "$left" ] || break
		sleep 0.2
	done
	say "$1" $left
}
"""
SYSTEMD_JOB = """export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. /job/say
for m in /job/*.ko; do insmod $m; done
useradd -m -s /bin/sh -u 1000 -K SUB_UID_COUNT=0 ann
usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ann
chgrp ann /dev/kvm
chmod 660 /dev/kvm
su -l ann -c 'sh /job/first'
# Its systemd would have ended by now, and with it the machine.
sleep 3
su -l ann -c 'sh /job/second'
say_left left
setsid runuser -u ann -- sh -c '. /job/say; cd; say "without $(box doctor --json | tr -d "\\n")"'
say "end"
busybox poweroff -f
"""
FIRST = """. /job/say
say "session $(sed -n 's/^0:://p' /proc/self/cgroup)"
say "doctor $(box doctor --json | tr -d '\\n')"
printf 'base: tiny\\ncpus: 1\\nram_mib: 256\\nnetwork: {allow: [example.org]}\\n' > Boxfile
box new t --from ./Boxfile
say "build $(box build t 2>&1 | tr '\\n' ' ')"
say "up $(box up --json t | tr -d '\\n')"
say_group group qemu-system-x86_64
say_group net box-net
say "report $(box inspect --json t | tr -d '\\n')"
say "run $(box run --data none t -- echo ran 2>&1)"
"""
SECOND = """. /job/say
say "stayed $(box exec t -- echo alive 2>&1)"
box down t
say_left down
box run t -- sleep 1000 &
for i in $(seq 100); do
	sleep 0.2
	case $(cat "/proc/$(pidof qemu-system-x86_64)/cgroup" 2>/dev/null) in *box-*) break ;; esac
done
say_group running qemu-system-x86_64
kill -9 $(pidof box-keeper)
wait
say_left killed
systemd-run --user --pipe --wait --quiet sh /job/direct
"""
DIRECT = """. /job/say
say "direct-doctor $(box doctor --json | tr -d '\\n')"
say "direct-up $(box up --json t | tr -d '\\n')"
say_group direct-group qemu-system-x86_64
box down t
"""

# The next Debian, with a newer QEMU and C library. Without a vDSO every look at the clock is a call.
NEWER = BOXFILE.replace("bookworm", "trixie").replace("libarchive13", "libarchive13t64").replace(
    "libext2fs2", "libext2fs2t64").replace("]", ", libcom-err2, strace, uidmap]")
NEWER_ARGUMENTS = "vdso=0"
THIRD_DISK_BYTES = 1024 * MIB
TRACE = " ".join(STRACE)
NEWER_JOB = f"""export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin BOX_HOME=/home-of-box
say() {{ printf '@%s\\n' "$*"; }}
traced() {{ {TRACE} -o /traces/root box "$@"; }}
of_ann() {{ BOX_HOME=/ann/box {TRACE} -o /traces/ann -u ann box "$@"; }}
for m in /job/*.ko; do insmod $m; done
echo "+memory +pids" > /sys/fs/cgroup/cgroup.subtree_control
useradd -m -d /ann -s /bin/sh -u 1000 -K SUB_UID_COUNT=0 ann
usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ann
chgrp ann /dev/kvm
chmod 660 /dev/kvm
mkdir /traces /out
mount -t tmpfs -o mode=1777 traces /traces
say "doctor $(box doctor --json | tr -d '\\n')"
printf 'base: tiny\\ncpus: 1\\nram_mib: 256\\nnetwork: {{allow: [example.org]}}\\n' > /Boxfile
box new t --from /Boxfile
say "build $(traced build t 2>&1 | tr '\\n' ' ')"
say "run $(traced run --json t -- cat /proc/uptime | tr -d '\\n')"
traced up t
box exec t -- sh -c 'cd /data; echo kept > note; dd if=/dev/urandom of=big bs=64k count=64
	sync; rm big; fstrim /data; nslookup example.org'
date -s "@$(($(date +%s) + 30))"
traced cp t:/data/note /out/note > /dev/null 2>&1
say "note $(cat /out/note)"
box down t
echo 'warm: 1' >> $BOX_HOME/sandboxes/t/Boxfile
box run t -- true
n=0; while [ ! -S $BOX_HOME/run/t/warm-0 ] && [ $n -lt 300 ]; do sleep 0.2; n=$((n + 1)); done
say "pool $(BOX_TRACE=1 box run t -- cat /data/note 2>&1 | tr '\\n' ' ')"
box down --pool t
echo 'isolation: standard' >> /Boxfile
BOX_HOME=/ann/box su ann -c 'box new t --from /Boxfile'
say "user-build $(BOX_HOME=/ann/box su ann -c 'box build t' 2>&1 | tr '\\n' ' ')"
of_ann up t
say "report $(BOX_HOME=/ann/box su ann -c 'box inspect --json t' | tr -d '\\n')"
BOX_HOME=/ann/box su ann -c 'box down t'
while pidof strace; do sleep 0.2; done
tar -c -f /dev/vdc -C /traces .
say "end"
busybox poweroff -f
"""


def cpio(entries):
    """A "newc" archive of (name, mode, content)."""
    out = io.BytesIO()
    for number, (name, mode, content) in enumerate(entries + [("TRAILER!!!", 0, b"")], 1):
        data = name.encode() + b"\0"
        fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(data), 0]
        out.write(b"070701" + b"".join(b"%08X" % field for field in fields) + data)
        out.write(b"\0" * (-out.tell() % 4) + content)
        out.write(b"\0" * (-out.tell() % 4))
    return out.getvalue()


def read(*parts):
    with open(os.path.join(*parts), "rb") as file:
        return file.read()


def module(path):
    return read(PREFIX, "lib/box/kernel/modules/kernel", path + ".ko")


def write_initramfs(path, start):
    entries = [(name, 0o40755, b"") for name in ("dev", "root", "modules")]
    entries += [("init", 0o100755, (INIT + start).encode()),
                ("busybox", 0o100755, read("/bin/busybox"))]
    entries += [(f"modules/{number}.ko", 0o100644, module("drivers/" + name))
                for number, name in enumerate(DISK_MODULES)]
    with open(path, "wb") as file:
        file.write(cpio(entries))


def write_job(path, files):
    """files: {path: text} besides the modules."""
    with tarfile.open(path, "w") as tar:
        tar.add(PREFIX, "usr/local")
        contents = {f"job/{number}.ko": module(name) for number, name in enumerate(KVM_MODULES)}
        contents.update((name, text.encode()) for name, text in files.items())
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))


# A machine takes a minute or two. With two processors the whole machine was once seen to spin for ten
# minutes, past every time limit of box inside, so it has one and gets another try. When it hangs
# again the test is skipped, with the last that was said.
TRY_SECONDS = 240
TRIES = 2


def run_machine(box, boxfile, start, files, arguments="", third_disk=None, seconds=TRY_SECONDS):
    """Runs a machine of this Boxfile, with these files, arguments of its kernel and a third disk. What
    its job printed with an @ before it: {word: the rest of its line}.
    """
    need_root()
    if mirror_reason():
        skip(mirror_reason())
    box.make("outer", boxfile)
    box.run("build", "outer", timeout=850).ok()
    image = box.path("sandboxes/outer/image/image.ext4")
    initramfs, job = box.path("initramfs"), box.path("job.tar")
    write_initramfs(initramfs, start)
    write_job(job, files)
    if third_disk:
        with open(third_disk, "wb") as file:
            file.truncate(THIRD_DISK_BYTES)
    command = ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "1",
               "-m", "3000", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
               "-serial", "stdio", "-kernel", os.path.join(PREFIX, "lib/box/kernel/vmlinuz"),
               "-initrd", initramfs, "-append", "console=ttyS0 quiet panic=-1 "
               f"systemd.unit=job.service systemd.show_status=no {arguments}"]
    disks = [(image, ",snapshot=on"), (job, ",readonly=on")]
    for path, more in disks + [(third_disk, "")] * bool(third_disk):
        command += ["-drive", f"if=virtio,format=raw,file={path}{more}"]
    for _ in range(TRIES):
        try:
            result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                    timeout=seconds)
            break
        except subprocess.TimeoutExpired as hang:
            said = (hang.stdout or b"").decode("utf-8", "replace")
    else:
        skip("QEMU's emulation of nested virtualization hung after: " + repr(said[-300:]))
    text = result.stdout.decode("utf-8", "replace").replace("\r", "")
    found = dict(re.findall(r"^@([\w-]+) ?(.*)$", text, re.M))
    check("end" in found, "the job did not come to its end:", text[-4000:], result.stderr[-500:])
    return found


def named(checks, name):
    checks = checks.get("checks", checks) if isinstance(checks, dict) else checks
    return next(each for each in checks if name in (each.get("name"), each.get("check")))


@test(home="empty", timeout=1500, long=True)
def box_inside_a_machine(box):
    found = run_machine(box, BOXFILE, START_JOB, {"job/job": JOB})
    looked = json.dumps(named(json.loads(found["root-only"]), "kvm"))
    if "it interprets guest code" in looked:
        skip("the emulated processor is too slow just now to be told from an interpreter")
    contains(looked, "only root may open it")
    equal(named(json.loads(found["doctor"]), "kvm").get("state"), "ok", found["doctor"])
    contains(found["build"], "t: built in")
    run = json.loads(found["run"])
    check(run["restored"], "it was booted and not restored:", run)
    contains(run["stdout"], "Hypervisor detected: KVM")
    equal(found["note"], "kept")
    group, memory, pids = found["group"].split()
    contains(group, "box-")
    equal((int(memory) >> 20, pids), (256 + 256, "512"), "limits of the group")
    equal(found["left"], "0", "groups left behind")


def check_groups(found, prefix, state, below):
    """The monitor's group is below another one, has the limits, and the report misses nothing."""
    doctor = named(json.loads(found[prefix + "doctor"]), "cgroups")
    equal(doctor["state"], "ok", doctor)
    contains(doctor["text"], below)
    contains(doctor["text"], state)
    equal(json.loads(found[prefix + "up"])["missing_confinement"], "")
    group, memory, pids = found[prefix + "group"].split()
    contains(group, re.compile(rf"^{below}/.*\bbox-\d+-[0-9a-f]+(\.scope)?$"))
    equal((int(memory) >> 20, pids), (256 + 256, "512"), "limits of the group")
    return group


@test(home="empty", timeout=1500, long=True)
def a_users_session_under_systemd(box):
    found = run_machine(box, WITH_SYSTEMD, START_SYSTEMD, {
        "etc/systemd/system/job.service": UNIT, "etc/systemd/logind.conf": LOGIND,
        "job/job": SYSTEMD_JOB, "job/say": SAY, "job/first": FIRST, "job/second": SECOND,
        "job/direct": DIRECT})
    mine = "/user.slice/user-1000.slice"
    contains(found["session"], re.compile(rf"^{mine}/session-\w+\.scope$"))
    contains(found["build"], "t: built in")
    group = check_groups(found, "", "can be used, by scopes of your systemd",
                         f"{mine}/user@1000.service")
    check(group.endswith(".scope"), group)
    net, memory, pids = found["net"].split()
    check(net != group and net.startswith(f"{mine}/user@1000.service/"), net)
    equal(int(memory) >> 20, 256, "the memory of box-net")
    report = json.loads(found["report"])
    equal(report["differences"], 0, report)
    equal([each["missing"] for each in report["processes"] if each.get("missing")], [])
    equal(found["run"], "ran")
    equal(found["stayed"], "alive", "after the user had logged out")
    equal(found["down"], "", "groups left behind")
    contains(found["running"], ".scope")
    equal(found["killed"], "", "groups of a killed keeper")

    group = check_groups(found, "direct-", "can be used", f"{mine}/user@1000.service")
    check(not group.endswith(".scope"), group)
    equal(found["left"], "", "groups left behind")
    nothing = named(json.loads(found["without"]), "cgroups")
    equal(nothing["state"], "warning", nothing)
    contains(nothing["mend"], "log in as yourself")


@test(home="empty", timeout=1500, long=True)
def a_newer_debian_and_the_lists(box):
    """box with the QEMU and the C library of the next Debian, with KVM and without a vDSO: every line of
    policies/*.policy that says `elsewhere:` is met here, and no call is made that no line is for."""
    path, folder = box.path("traces.tar"), box.path("..", f"traces-{os.getpid()}")
    found = run_machine(box, NEWER, START_JOB, {"job/job": NEWER_JOB}, NEWER_ARGUMENTS, path,
                        2 * TRY_SECONDS)
    if "it interprets guest code" in found["doctor"]:
        skip("the emulated processor is too slow just now to be told from an interpreter")
    contains(found["build"], "t: built in")
    run = json.loads(found["run"])
    check(run["restored"] and run["hardware"] and run["exit_code"] == 0, run)
    equal(found["note"], "kept")
    # From the pool, whose disk this QEMU has exchanged: no monitor was started for it.
    contains(found["pool"], "kept")
    check(re.search(r" 0\.00 ms  monitor spawned", found["pool"]), found["pool"])
    contains(found["user-build"], "t: built in")
    equal(json.loads(found["report"])["differences"], 0, found["report"])
    with tarfile.open(path) as tar:
        tar.extractall(folder)
    policies = read_policies()
    used, strange = used_rules(folder, policies)
    check(not strange, "calls that no line is for:", sorted(set(strange))[:10])
    unmet = [rule.place for rules in policies.values() for rule in rules
             if rule.elsewhere and rule not in used]
    check(not unmet, "lines that are not met here either:\n", "\n".join(unmet))
