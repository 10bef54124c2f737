"""Machines that stay: `box up`, `box down`, and whatever dies meanwhile."""

import calendar
import os
import re
import signal
import socket
import subprocess
import time

from lib import (MIB, Terminal, cgroups_of, check, contains, descendants, equal, reap, test,
                 wait_until)
from test_user import as_user

NOT_UP = re.compile(r"^box: tiny is not up\nmend: .*box up tiny", re.M)


@test()
def up_says_how_long_it_took_and_how(box):
    with box.up() as result:
        contains(result.text, re.compile(r"^tiny is up: \d+\.\d\d s, restored, engine \w+ "
                                         r"(with KVM|in software emulation)\n$"))
        row = box.row()
        equal(row["state"], "up", row)
        check(row["memory_bytes"] > MIB and 0 <= row["up_seconds"] < 60, row)
    said = box.run("up", "--cold", "--json", "tiny").ok()
    told = said.json()
    equal((told["name"], told["already_up"], told["restored"]), ("tiny", False, False), said)
    check(told["engine"] and told["kernel"] and told["took_ms"] > 0, said)
    # What this host cannot give is told to people as well, and nothing when it gives all.
    equal("cannot give all confinement" in result.error, bool(told["missing_confinement"]), result)
    box.run("down", "tiny").ok()
    equal(box.row()["state"], "built")


@test()
def up_twice_and_down_twice(box):
    contains(box.run("down", "tiny").ok().text, "tiny is not up")
    with box.up():
        keeper = box.keeper().pid
        contains(box.run("up", "tiny").ok().text, "tiny is up already\n")
        equal(box.run("up", "--json", "tiny").ok().json()["already_up"], True)
        equal(box.keeper().pid, keeper, "the keeper")
        equal(box.exec("echo fine").ok().text, "fine\n")
    contains(box.run("down", "tiny").ok().text, "tiny is not up")
    box.run("down", "no-such-sandbox").fails("no-such-sandbox")
    box.clean()


@test()
def two_ups_at_one_instant_make_one_machine(box):
    for _ in range(3):
        both = [box.start("up", "tiny") for _ in range(3)]
        said = sorted(each.wait(60).ok().text.split(":")[0].strip() for each in both)
        equal(said, ["tiny is up", "tiny is up already", "tiny is up already"])
        monitors = [each for each in box.machines() if each.name.startswith("box-keeper")]
        equal(len({each.pid for each in monitors if each.parent == os.getpid()}), 1, monitors)
        box.run("down", "tiny").ok()
        box.clean()


@test()
def commands_need_a_machine_that_is_up(box):
    for words in (("exec", "tiny", "--", "true"), ("ps", "tiny"), ("kill", "tiny", "aaaaaa"),
                  ("forward", "tiny", "0:80")):
        box.run(*words, timeout=20).fails(NOT_UP)
    told = box.run("exec", "--json", "tiny", "--", "true").exits(125).json()
    equal(told["error"]["code"], "not-up", told)


@test()
def up_survives_its_terminal(box):
    # A shell on a terminal, which ends at once, and then the terminal itself goes.
    terminal = Terminal(["/bin/sh", "-c", f"'{box.binary}' up tiny; echo code $?; read x"],
                        box.environ(), 24, 80)
    terminal.expect(b"code 0\r\n")
    keeper = box.keeper()
    for number in range(3):
        equal(os.readlink(f"/proc/{keeper.pid}/fd/{number}"), "/dev/null", f"descriptor {number}")
    with open(f"/proc/{keeper.pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    equal(fields[4], "0", "the keeper's terminal")
    check(int(fields[3]) != terminal.pid, "the keeper is in the session of the terminal")
    terminal.hang_up()
    time.sleep(0.3)
    equal(box.exec("echo fine").ok().text, "fine\n")
    equal(box.keeper().pid, keeper.pid)
    # A signal for the whole group of who started it, as Ctrl-C or a closing window send it.
    box.run("down", "tiny").ok()
    running = box.start("up", "tiny", start_new_session=True)
    group = running.pid
    running.wait(60).ok()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            pass
    time.sleep(0.2)
    equal(box.exec("echo fine").ok().text, "fine\n")
    box.run("down", "tiny").ok()


@test()
def up_holds_no_descriptor_of_its_caller(box):
    script = f"echo x | '{box.binary}' up tiny 2>&1 | cat; echo end"
    ended = subprocess.run(["sh", "-c", script], env=box.environ(), capture_output=True, timeout=30)
    contains(ended.stdout, re.compile(r"tiny is up: .*\nend\n$"))
    box.run("down", "tiny").ok()

    def close():
        for number in range(3):
            os.close(number)

    equal(box.run("up", "tiny", preexec_fn=close).code in (0, 125), True, "without descriptors")
    box.run("up", "tiny").ok()
    # A file that the caller has open, as a lock of a script would be.
    box.run("down", "tiny").ok()
    with open(box.temporary + "/mine", "wb") as mine:
        box.run("up", "tiny", pass_fds=(mine.fileno(),)).ok()
        for each in box.machines():
            links = []
            for number in os.listdir(f"/proc/{each.pid}/fd"):
                try:
                    links.append(os.readlink(f"/proc/{each.pid}/fd/{number}"))
                except OSError:
                    pass
            check(mine.name not in links, f"{each} has it: {links}")
    os.unlink(box.temporary + "/mine")
    box.run("down", "tiny").ok()


@test()
def down_writes_data(box):
    with box.up():
        box.exec("echo kept > /data/up-note; echo lost > /root-note").ok()
    with box.up():
        result = box.exec("cat /data/up-note; ls /root-note; rm /data/up-note")
        contains(result.text, "kept\n")
        check(b"/root-note\n" not in result.out, result)
    # A signal, as from a host that shuts down, is as good as `down`.
    box.run("up", "tiny").ok()
    box.exec("echo again > /data/up-note").ok()
    keeper = box.keeper().pid
    os.kill(keeper, signal.SIGTERM)
    box.clean(20)
    equal(box.sh("cat /data/up-note; rm /data/up-note").ok().text, "again\n")


@test()
def down_ends_commands(box):
    box.run("up", "tiny").ok()
    soft = box.start_exec("echo begun; exec sleep 1000")
    caught = box.start_exec("trap 'echo going; exit 5' TERM; echo begun; while :; do sleep 0.1; done")
    for each in (soft, caught):
        each.read_until(b"begun\n")
    down = box.run("down", "tiny", timeout=30).ok()
    check(down.seconds < 3, f"took {down.seconds:.1f} s")
    equal(soft.wait(10).exits(143).text, "begun\n")
    equal(caught.wait(10).exits(5).text, "begun\ngoing\n")
    box.clean()
    box.run("up", "tiny").ok()
    hard = box.start_exec("trap '' TERM HUP INT; echo begun; while :; do sleep 1; done")
    hard.read_until(b"begun\n")
    box.run("exec", "--detach", "tiny", "--", "sleep", "1000").ok()
    box.exec("echo kept > /data/down-note").ok()
    down = box.run("down", "tiny", timeout=30).ok()
    check(2.5 < down.seconds < 8, f"took {down.seconds:.1f} s")
    equal(hard.wait(10).exits(137).text, "begun\n")
    box.clean()
    equal(box.sh("cat /data/down-note; rm /data/down-note").ok().text, "kept\n")


@test()
def an_interrupted_up_leaves_nothing(box):
    with box.up() as result:
        whole = result.seconds
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        for part in (0.05, 0.3, 0.6, 0.9):
            running = box.start("up", "tiny")
            time.sleep(whole * part)
            running.signal(number)
            result = running.wait(20)
            if result.code == 0:
                # It was there before the signal.
                box.run("down", "tiny").ok()
            elif number == signal.SIGKILL:
                equal(result.code, -number, result)
                # Either nobody waits for it any more, or it was up.
                wait_until("its end or an answer",
                           lambda: not box.leftovers() or box.run("down", "tiny").ok(), 15)
            else:
                check(result.code in (125, 128 + number, -number), result)
            box.clean()


@test()
def machines_that_die_while_they_come_up(box):
    for name in ("box-keeper", "qemu-system"):
        for pause in (0, 0.05, 0.15):
            running = box.start("up", "tiny")
            found = wait_until(name, lambda: [each for each in descendants(os.getpid())
                                              if each.name.startswith(name)], 20)
            time.sleep(pause)
            try:
                os.kill(found[-1].pid, signal.SIGKILL)
            except ProcessLookupError:
                # A process of the start that is gone already, such as one that only forks.
                pass
            result = running.wait(30)
            check(result.code in (0, 125), result)
            if result.code == 125:
                check(result.err.startswith(b"box: "), result)
            # Whether it is dying or lives: `down` makes an end of it. It says so when the monitor
            # died on its way down, for then nobody has written the disks.
            down = box.run("down", "tiny", timeout=30)
            if down.code != 0:
                down.fails("was killed by signal 9")
                box.run("down", "tiny").ok()
            box.clean()
    up_again(box)


@test()
def who_waits_for_up_is_not_fooled_by_a_machine_that_dies(box):
    # The second up waits for the first, whose keeper is killed: then it is its turn.
    first = box.start("up", "--cold", "tiny")
    keeper = wait_until("a keeper", lambda: [each for each in descendants(os.getpid())
                                             if each.name == "box-keeper"], 20)[0]
    second = box.start("up", "tiny")
    time.sleep(0.2)
    os.kill(keeper.pid, signal.SIGKILL)
    first.wait(20).exits(125)
    contains(second.wait(60).ok().text, "tiny is up: ")
    equal(box.exec("echo fine").ok().text, "fine\n")
    box.run("down", "tiny").ok()


@test()
def ups_downs_and_execs_at_cross_purposes(box):
    # Whatever the order, each ends with what it says, and in the end all is as it should be.
    wanted = {"up": (0, 125), "down": (0,), "exec": (0, 125, 137, 143), "ls": (0,), "ps": (0, 125)}
    end = time.monotonic() + 6
    pending = []
    while time.monotonic() < end:
        for words in (("up", "tiny"), ("exec", "tiny", "--", "echo", "fine"), ("down", "tiny"),
                      ("up", "tiny"), ("ls",), ("ps", "tiny"), ("down", "tiny")):
            pending.append(box.start(*words))
        while len(pending) > 7:
            running = pending.pop(0)
            result = running.wait(60)
            check(result.code in wanted[running.arguments[0]], result)
            if result.code == 125:
                contains(result.err, re.compile(
                    "^box: (tiny is not up|tiny was taken down|tiny goes up and down all the time|"
                    "the machine is (starting or )?going down)", re.M))
    for running in pending:
        running.wait(60)
    box.run("down", "tiny").ok()
    box.clean()
    up_again(box)


@test()
def up_without_data(box):
    with box.up("--data", "none"):
        equal(box.exec("grep -c ' /data ' /proc/mounts").out, b"0\n")
        # Nobody holds it.
        result = box.sh("echo mine > /data/x; cat /data/x; rm /data/x", timeout=30).ok()
        equal(result.text, "mine\n")
        equal(result.error, "")


@test()
def runs_beside_a_machine_that_is_up(box):
    box.run("up", "tiny").ok()
    box.exec("echo kept > /data/beside; sync").ok()
    clone = box.sh("cat /data/beside; echo mine > /data/beside", "--data", "clone").ok()
    equal(clone.text, "kept\n")
    waiting = box.start_sh("cat /data/beside; rm /data/beside")
    contains(waiting.read_until(b"--data clone", stream=2), "waiting for it")
    equal(box.exec("cat /data/beside; echo changed > /data/beside").ok().text, "kept\n")
    check(waiting.process.poll() is None, "it did not wait")
    box.run("down", "tiny").ok()
    equal(waiting.wait(60).ok().text, "changed\n")


@test()
def a_machine_that_is_up_is_not_destroyed(box):
    with box.up():
        contains(box.run("destroy", "--yes", "tiny", timeout=30).fails().error, "tiny")
        equal(box.exec("echo fine").ok().text, "fine\n")
    check(os.path.exists(box.path("sandboxes/tiny/Boxfile")), "it is gone")


def gone(box):
    """Waits for the end of killed machines, and collects them as process 1 of a host would."""
    wait_until("the machine's end", lambda: not box.machines(), 10)
    reap()


def recognised(box, what):
    """The next command sees that the machine is gone, and after it nothing is left."""
    box.exec("true", timeout=30).fails(NOT_UP)
    box.clean()
    equal(os.listdir(box.path("run")), [], f"run/ after {what}")


def up_again(box, wanted=None):
    with box.up():
        equal(box.exec("echo fine").ok().text, "fine\n")
        if wanted:
            equal(box.exec("cat /data/crash-note; rm /data/crash-note").ok().text, wanted)


@test()
def a_killed_keeper_is_recognised(box):
    box.run("up", "tiny").ok()
    box.exec("echo kept > /data/crash-note; sync").ok()
    running = box.start_exec("echo ready; exec sleep 1000")
    running.read_until(b"ready\n")
    keeper, pids = box.keeper().pid, {each.pid for each in box.machines()}
    os.kill(keeper, signal.SIGKILL)
    running.wait(20).fails("ended unexpectedly")
    gone(box)
    check(os.path.exists(box.path("run/tiny/sock")), "it was not killed")
    recognised(box, "a killed keeper")
    equal(cgroups_of(pids), [], "control groups")
    up_again(box, "kept\n")


@test()
def every_command_gets_along_with_what_a_killed_keeper_left(box):
    for words, code in ((("ps", "tiny"), 125), (("ls",), 0), (("down", "tiny"), 0),
                        (("up", "tiny"), 0), (("run", "tiny", "--", "true"), 0),
                        (("kill", "tiny", "aaaaaa"), 125)):
        box.run("up", "tiny").ok()
        os.kill(box.keeper().pid, signal.SIGKILL)
        # At once: its monitor may still be on its way out.
        box.run(*words, timeout=40).exits(code)
        if words[0] == "up":
            equal(box.exec("echo fine").ok().text, "fine\n")
        equal(box.row()["state"], "up" if words[0] == "up" else "built", words)
        box.run("down", "tiny").ok()
        box.clean()


@test()
def a_killed_monitor_is_recognised(box):
    for stop in (False, True):
        box.run("up", "tiny").ok()
        box.exec("echo kept > /data/crash-note; sync").ok()
        running = box.start_exec("echo ready; exec sleep 1000")
        running.read_until(b"ready\n")
        pids, monitor = {each.pid for each in box.machines()}, box.monitor().pid
        if stop:
            os.kill(monitor, signal.SIGSTOP)
            time.sleep(0.2)
        os.kill(monitor, signal.SIGKILL)
        running.wait(20).fails()
        gone(box)
        recognised(box, "a killed monitor")
        equal(cgroups_of(pids), [], "control groups")
        up_again(box, "kept\n")


@test()
def a_guest_that_ends_itself_is_told(box):
    for letter, said in (("c", "panic"), ("o", "switched"), ("b", "restarted")):
        box.run("up", "tiny").ok()
        running = box.start_exec("echo ready; echo 1 > /proc/sys/kernel/sysrq; "
                                 f"echo {letter} > /proc/sysrq-trigger; sleep 100")
        running.read_until(b"ready\n")
        running.wait(30).fails(said)
        recognised(box, said)
    up_again(box)


@test()
def a_host_that_was_restarted(box):
    # What run/ holds then is of nobody: sockets without a listener, files, an empty folder.
    for kind in ("socket", "file", "folder"):
        os.makedirs(box.path("run/tiny"), exist_ok=True)
        for name in ("sock", "data"):
            path = box.path("run/tiny", name)
            if kind == "socket":
                stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                os.chdir(box.path("run/tiny"))
                stale.bind(name)
                os.chdir("/")
                stale.close()
            elif kind == "file":
                with open(path, "wb"):
                    pass
        if kind != "folder":
            recognised(box, kind)
        os.makedirs(box.path("run/tiny"), exist_ok=True)
        with open(box.path("run/tiny/sock"), "wb"):
            pass
        up_again(box)
        box.clean()
        box.sh("echo kept > /data/x; rm /data/x").ok()


@test(long=True)
def a_stopped_keeper_does_not_hang_a_command(box):
    box.run("up", "tiny").ok()
    keeper = box.keeper().pid
    os.kill(keeper, signal.SIGSTOP)
    try:
        box.exec("true", timeout=30).fails("does not answer")
    finally:
        os.kill(keeper, signal.SIGCONT)
    equal(box.exec("echo fine").ok().text, "fine\n")
    box.run("down", "tiny").ok()


def seconds_of(text):
    """What `stat -c %y` prints, as seconds since 1970."""
    match = re.search(r"(\d+)-(\d+)-(\d+) (\d+):(\d+):(\d+)(\.\d+) \+0000", text)
    check(match, f"no time: {text}")
    whole = time.strptime(" ".join(match.groups()[:6]), "%Y %m %d %H %M %S")
    return calendar.timegm(whole) + float(match.group(7))


def clock_is_off(box):
    """By how many seconds at least the guest's clock differs from the host's; the best of five."""
    best = None
    for _ in range(5):
        before = time.time()
        result = box.exec("touch /run/now; stat -c %y /run/now").ok()
        after = time.time()
        guest = seconds_of(result.text)
        off = max(before - guest, guest - after, 0)
        if best is None or after - before < best[1]:
            best = off, after - before
    check(best[1] < 0.5, f"the way took {best[1]:.2f} s")
    return best[0]


def stop_for(box, seconds):
    with box.up():
        check(clock_is_off(box) < 0.05, "the clock is off from the start")
        monitor = box.monitor().pid
        os.kill(monitor, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(monitor, signal.SIGCONT)
        began = time.monotonic()
        wait_until("the clock is right again", lambda: clock_is_off(box) < 0.05, 2)
        check(time.monotonic() - began < 2.5, "that took too long")
        # And it stays so.
        time.sleep(0.3)
        check(clock_is_off(box) < 0.05, "the clock is off again")


@test()
def the_clock_is_right_after_a_short_stop(box):
    stop_for(box, 5)


@test(long=True)
def the_clock_is_right_after_a_minute(box):
    stop_for(box, 60)


@test(long=True)
def a_clock_that_is_set_wrong_inside_is_put_right(box):
    with box.up():
        for hours in (1, -1):
            box.exec(f"date -s @$(($(date +%s) + {hours * 3600}))").ok()
            check(clock_is_off(box) > 3000, "it could not be set")
            wait_until("the clock is right again", lambda: clock_is_off(box) < 0.05, 13)


@test()
def two_machines_of_one_snapshot_differ(box):
    script = "head -c 32 /dev/urandom | xxd -p -c 64; cat /etc/machine-id; " \
        "cat /proc/sys/kernel/random/boot_id; cat /proc/sys/kernel/random/uuid; hostname; " \
        "mktemp -u XXXXXXXXXXXX"
    told = []
    with box.up():
        told.append(box.exec(script).ok().text.split("\n"))
        # Within one machine some of it stays.
        again = box.exec(script).ok().text.split("\n")
        equal(again[1:3], told[0][1:3], "machine ID and boot ID")
        told.append(box.sh(script, "--data", "none").ok().text.split("\n"))
    with box.up():
        told.append(box.exec(script).ok().text.split("\n"))
    for index, what in enumerate(("random bytes", "machine ID", "boot ID", "uuid", "", "name")):
        values = [each[index] for each in told]
        if what:
            check(all(len(each) >= 12 for each in values), f"no {what}: {values}")
            equal(len(set(values)), 3, f"{what}: {values}")
        else:
            equal(values, ["tiny"] * 3, "host name")


@test()
def memory_that_the_guest_frees_returns_to_the_host(box):
    with box.up():
        before = box.row()["memory_bytes"]
        box.exec("dd if=/dev/zero of=/dev/shm/fill bs=1M count=100").ok()
        full = box.row()["memory_bytes"]
        check(full > before + 90 * MIB, f"{before / MIB:.1f} MiB, filled {full / MIB:.1f} MiB")
        box.exec("rm /dev/shm/fill").ok()
        wait_until("the memory is given back",
                   lambda: box.row()["memory_bytes"] < full - 70 * MIB, 15)


@test()
def programs_that_fill_the_memory(box):
    with box.up():
        keeper = box.keeper().pid
        result = box.exec("a() { dd if=/dev/zero of=/dev/null bs=130M count=3 2>/dev/null; }; "
                          "a & p=$!; a & q=$!; wait $p; echo $?; wait $q; echo $?", timeout=100)
        check(b"137" in result.ok().out.split(), result)
        equal(box.exec("echo alive").ok().text, "alive\n")
        equal(box.keeper().pid, keeper, "the keeper")


@test(long=True)
def files_that_fill_the_memory(box):
    # The out-of-memory killer cannot free these: whatever it ends, nothing hangs.
    box.run("up", "tiny").ok()
    box.exec("echo kept > /data/crash-note; sync").ok()
    result = box.exec("for each in /dev/shm/a /run/b; do dd if=/dev/zero of=$each bs=1M; done; "
                      "echo over", "--timeout", "60", timeout=100)
    check(result.code in (0, 124, 125, 137), result)
    if result.code == 125:
        result.fails("tiny: ")
    else:
        # The machine lives, or ends with a reason.
        result = box.exec("rm -f /dev/shm/a /run/b; echo alive", timeout=60)
        check(result.code == 125 or result.text == "alive\n", result)
    box.run("down", "tiny", timeout=90).ok()
    box.clean()
    up_again(box, "kept\n")


@test(home="empty", timeout=400)
def a_user_without_root_is_told_what_is_missing(box):
    with as_user(box) as user:
        user.run("new", "tiny", "--from", "tiny").ok()
        user.run("build", "tiny", timeout=300).ok()
        said = user.run("up", "tiny").ok()
        equal(user.exec("id -u; echo kept > /data/x").ok().text, "0\n")
        user.run("down", "tiny").ok()
        missing = user.run("up", "--json", "tiny").ok().json()["missing_confinement"]
        check(missing, "an ordinary user cannot make control groups here")
        contains(said.error, f"box: this host cannot give all confinement: {missing}\n")
        equal(user.exec("cat /data/x").ok().text, "kept\n")
        user.run("down", "tiny").ok()
        user.clean()
