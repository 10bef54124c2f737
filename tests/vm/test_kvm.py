"""Real KVM, and version 2 control groups, where this host has neither: box inside a machine.

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

from lib import PREFIX, check, contains, equal, mirror_reason, need_root, skip, test

BOXFILE = """base: debian/bookworm
packages: [qemu-system-x86, busybox-static, kmod, procps, libarchive13, libext2fs2, libjansson4,
           libsodium23, libyaml-0-2]
"""
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
for d in dev proc sys run tmp; do $B mkdir -p /root/$d; done
$B mount -t devtmpfs dev /root/dev
$B mount -t proc proc /root/proc
$B mount -t sysfs sys /root/sys
$B mount -t tmpfs run /root/run
$B mount -t cgroup2 cgroup /root/sys/fs/cgroup
exec $B switch_root -c /dev/ttyS0 /root /bin/sh /job/job
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


def write_initramfs(path):
    entries = [(name, 0o40755, b"") for name in ("dev", "root", "modules")]
    entries += [("init", 0o100755, INIT.encode()), ("busybox", 0o100755, read("/bin/busybox"))]
    entries += [(f"modules/{number}.ko", 0o100644, module("drivers/" + name))
                for number, name in enumerate(DISK_MODULES)]
    with open(path, "wb") as file:
        file.write(cpio(entries))


def write_job(path):
    with tarfile.open(path, "w") as tar:
        tar.add(PREFIX, "usr/local")
        files = {f"job/{number}.ko": module(name) for number, name in enumerate(KVM_MODULES)}
        files["job/job"] = JOB.encode()
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))


# A machine takes a minute. With two processors the whole machine was once seen to spin for ten
# minutes, past every time limit of box inside, so it has one and gets another try. When it hangs
# again the test is skipped, with the last that was said.
TRY_SECONDS = 200
TRIES = 2


def run_machine(image, job, initramfs):
    """What the job printed with an @ before it: {word: the rest of its line}."""
    command = ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "1",
               "-m", "3000", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
               "-serial", "stdio", "-kernel", os.path.join(PREFIX, "lib/box/kernel/vmlinuz"),
               "-initrd", initramfs, "-append", "console=ttyS0 quiet panic=-1"]
    for path, more in ((image, ",snapshot=on"), (job, ",readonly=on")):
        command += ["-drive", f"if=virtio,format=raw,file={path}{more}"]
    for _ in range(TRIES):
        try:
            result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                    timeout=TRY_SECONDS)
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
    need_root()
    if mirror_reason():
        skip(mirror_reason())
    box.make("outer", BOXFILE)
    box.run("build", "outer", timeout=850).ok()
    initramfs, job = box.path("initramfs"), box.path("job.tar")
    write_initramfs(initramfs)
    write_job(job)
    found = run_machine(box.path("sandboxes/outer/image/image.ext4"), job, initramfs)

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
