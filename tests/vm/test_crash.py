"""Whatever dies, and whenever: the command ends, and nothing is left."""

import os
import re
import signal
import subprocess
import time

from lib import (MIB, Box, Failed, check, contains, descendants, equal, need_root, skip, test,
                 wait_until)

FOREVER = "echo ready; while :; do sleep 1; done"


def start(box, script=FOREVER, *options):
    running = box.start_sh(script, *options)
    running.read_until(b"ready\n")
    return running


def after(box, running, codes, seconds=20):
    """It ended with one of these codes, everything is gone, and a next run works."""
    result = running.wait(seconds)
    check(result.code in codes, f"wanted {codes}\n{result}")
    box.clean(5)
    equal(box.sh("echo fine").ok().out, b"fine\n")
    return result


@test()
def the_keeper_is_killed(box):
    running = start(box)
    os.kill(box.keeper().pid, signal.SIGKILL)
    result = after(box, running, (125,))
    check(result.err.startswith(b"box: "), result)


@test()
def the_monitor_is_killed(box):
    running = start(box)
    os.kill(box.monitor().pid, signal.SIGKILL)
    result = after(box, running, (125,))
    check(result.err.startswith(b"box: "), result)


@test()
def the_monitor_is_stopped_and_killed(box):
    running = start(box)
    pid = box.monitor().pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    after(box, running, (125,))


@test()
def a_monitor_that_hangs_is_ended(box):
    # It answers nothing any more; the second interrupt must work all the same.
    running = start(box)
    os.kill(box.monitor().pid, signal.SIGSTOP)
    running.signal(signal.SIGINT)
    time.sleep(0.5)
    running.signal(signal.SIGINT)
    after(box, running, (130, 125, -signal.SIGINT))


@test()
def a_keeper_that_is_stopped_is_not_waited_for(box):
    with box.up("--data", "none"):
        kept = box.keeper().pid
        running = start(box)
        ours = next(each.pid for each in descendants(running.pid) if each.name == "box-keeper")
        waiting = box.start_exec("sleep 1000")
        wait_until("the command", lambda: box.ps(), 20)
        os.kill(ours, signal.SIGSTOP)
        os.kill(kept, signal.SIGSTOP)
        try:
            down = box.start("down", "tiny")
            running.wait(60).fails(f"stopped its keeper, process {ours}", "its machine was ended")
            waiting.wait(60).fails(f"stopped its keeper, process {kept}", f"kill -CONT {kept}")
            down.wait(60).fails("does not answer", "kill -CONT")
        finally:
            os.kill(kept, signal.SIGCONT)
        # It goes on as if nothing had been, but for the command whose client is gone.
        box.exec("true").ok()
        wait_until("the end of the command", lambda: not box.ps(), 60)
    box.clean(5)


@test()
def a_timeout_beats_a_monitor_that_hangs(box):
    running = start(box, FOREVER, "--timeout", "3")
    os.kill(box.monitor().pid, signal.SIGSTOP)
    after(box, running, (124, 125), 40)


@test()
def a_clone_of_a_machine_that_hangs_can_be_given_up(box):
    first = start(box)
    monitor = box.monitor().pid
    os.kill(monitor, signal.SIGSTOP)
    # Each one that goes leaves a question behind that the monitor has not answered.
    for _ in range(12):
        second = box.start_sh("true", "--data", "clone")
        time.sleep(0.5)
        check(second.process.poll() is None, "it did not wait")
        second.signal(signal.SIGINT)
        second.wait(10).exits(130)
    os.kill(monitor, signal.SIGCONT)
    equal(box.sh("echo cloned", "--data", "clone").ok().out, b"cloned\n")
    first.signal(signal.SIGTERM)
    after(box, first, (143,))


@test()
def box_is_killed(box):
    running = start(box)
    running.signal(signal.SIGKILL)
    after(box, running, (-signal.SIGKILL,))


@test()
def box_is_killed_at_every_stage(box):
    whole = box.sh("true").ok().seconds
    for part in (0.02, 0.1, 0.25, 0.4, 0.6, 0.8, 0.95):
        running = box.start_sh("true")
        time.sleep(whole * part)
        running.signal(signal.SIGKILL)
        running.wait(20)
        box.clean(5)
    box.sh("true").ok()


@test()
def box_is_terminated_at_every_stage(box):
    whole = box.sh("true").ok().seconds
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        for part in (0.05, 0.3, 0.6):
            running = box.start_sh("sleep 100")
            time.sleep(whole * part)
            running.signal(number)
            result = running.wait(20)
            check(result.code in (125, 128 + number, -number), result)
            box.clean(5)


@test()
def machines_die_at_every_stage(box):
    for name in ("box-keeper", "qemu-system"):
        for pause in (0, 0.05, 0.2):
            running = box.start_sh("sleep 100")
            found = wait_until(name, lambda: [each for each in descendants(os.getpid())
                                              if each.name.startswith(name)])
            time.sleep(pause)
            try:
                os.kill(found[-1].pid, signal.SIGKILL)
            except ProcessLookupError:
                # A process of the start that is gone already, such as one that only forks.
                running.signal(signal.SIGTERM)
            result = running.wait(30)
            check(result.code in (125, 143, -signal.SIGTERM), result)
            box.clean(5)


@test()
def the_terminal_is_closed(box):
    terminal = box.terminal("run", "-it", "tiny", "--", "sh", "-c", FOREVER)
    terminal.expect(b"ready\r\n")
    code = terminal.hang_up()
    check(code in (125, 129, -signal.SIGHUP), f"exit code {code}")
    box.clean(5)


@test()
def a_hangup_reaches_box_alone(box):
    running = start(box)
    running.signal(signal.SIGHUP)
    after(box, running, (125, 129, -signal.SIGHUP))


@test(home="empty", alone=True)
def the_disk_of_the_host_is_full(box):
    # The guest learns of it; its machine is not paused for ever.
    need_root()
    disk, folder = box.temporary + "/disk", box.temporary + "/small"
    os.mkdir(folder, 0o700)
    with open(disk, "wb") as file:
        file.truncate(420 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)
    if subprocess.run(["mount", "-o", "loop", disk, folder], check=False).returncode:
        os.rmdir(folder)
        os.unlink(disk)
        skip("no file system can be mounted here")
    try:
        small = Box(os.path.join(folder, "home"))
        small.make("tiny")
        small.run("build", "tiny", timeout=300).ok()
        result = small.sh("dd if=/dev/zero of=/fill bs=64k 2>/tmp/said; echo $?; echo end",
                          "--timeout", "30")
        # How long its kernel tries again is its own matter. But one that was paused does not end
        # the command when told to, and box gives it three seconds for that.
        check(result.code in (0, 125) or result.code == 124 and result.seconds < 32.5, result)
        small.clean(5)
    finally:
        subprocess.run(["umount", folder], check=True)
        os.rmdir(folder)
        os.unlink(disk)


@test()
def the_guest_panics(box):
    running = start(box, "echo ready; echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger; "
                    "sleep 100")
    result = after(box, running, (125,), 60)
    contains(result.err, re.compile(r"^box: .*(panic|crash|kernel|machine|ended)", re.M | re.I))


@test()
def the_guest_powers_off(box):
    running = start(box, "echo ready; echo 1 > /proc/sys/kernel/sysrq; echo o > /proc/sysrq-trigger; "
                    "sleep 100")
    after(box, running, (125,), 60)


@test()
def the_guest_reboots(box):
    running = start(box, "echo ready; echo 1 > /proc/sys/kernel/sysrq; echo b > /proc/sysrq-trigger; "
                    "sleep 100")
    after(box, running, (125,), 60)


@test()
def process_one_cannot_be_killed_from_inside(box):
    equal(box.sh("kill -9 1; sleep 0.2; echo alive").ok().out, b"alive\n")


@test()
def what_was_synced_to_data_outlives_a_crash(box):
    running = start(box, "echo kept > /data/crash; sync; echo ready; sleep 100")
    os.kill(box.monitor().pid, signal.SIGKILL)
    running.wait(20)
    equal(box.sh("cat /data/crash; rm /data/crash; sync").ok().text, "kept\n")


@test()
def crashes_leave_no_files(box):
    box.sh("true").ok()
    before = box.tree()
    for victim in (box.keeper, box.monitor):
        running = start(box)
        os.kill(victim().pid, signal.SIGKILL)
        running.wait(20)
        box.clean(5)
    box.sh("true").ok()
    equal(box.tree() - before, set(), "new files")


@test()
def a_stopped_box_goes_on(box):
    running = box.start_sh("echo ready; sleep 1; echo later")
    running.read_until(b"ready\n")
    running.signal(signal.SIGSTOP)
    time.sleep(2)
    running.signal(signal.SIGCONT)
    contains(running.wait(60).ok().out, "later\n")


@test()
def the_waiting_one_gets_data_when_the_holder_is_killed(box):
    first = start(box)
    second = box.start_sh("echo mine")
    second.read_until(b"/data", stream=2)
    first.signal(signal.SIGKILL)
    first.wait(20)
    try:
        equal(second.wait(60).ok().out, b"mine\n")
    except Failed:
        second.process.kill()
        raise
