"""`box run` as people expect it."""

import base64
import hashlib
import os
import re
import signal
import termios
import time

from lib import MIB, add_peaks, check, contains, equal, test

EVERY_BYTE = bytes(range(256))


@test()
def stdout_and_stderr_are_apart(box):
    result = box.sh("echo out; echo err >&2").ok()
    equal(result.out, b"out\n", "stdout")
    contains(result.err, "err\n")
    check(b"out" not in result.err, "stdout is also in stderr")


@test()
def stdout_is_exact(box):
    # Every byte value, many times over, through cat.
    data = EVERY_BYTE * 512
    result = box.run("run", "-i", "tiny", "--", "cat", input=data).ok()
    check(result.out == data, f"{len(result.out)} bytes came of {len(data)}, or others")
    equal(result.err, b"", "stderr")


@test()
def stderr_is_exact(box):
    data = EVERY_BYTE * 64
    result = box.run("run", "-i", "tiny", "--", "sh", "-c", "cat >&2", input=data).ok()
    check(result.err == data, f"{len(result.err)} bytes came of {len(data)}, or others")
    equal(result.out, b"", "stdout")


@test()
def nothing_is_added_to_output(box):
    equal(box.sh("printf 'no newline'").ok().out, b"no newline", "stdout")
    result = box.sh("true").ok()
    equal((result.out, result.err), (b"", b""), "a quiet command")


@test()
def exit_codes_are_the_commands(box):
    for code in (0, 1, 2, 77, 123, 124, 125, 126, 127, 128, 130, 200, 255):
        box.sh(f"exit {code}").exits(code)


@test()
def commands_that_do_not_start(box):
    result = box.run("run", "tiny", "--", "no-such-command").exits(127)
    contains(result.err, "no-such-command")
    result = box.run("run", "tiny", "--", "/etc/passwd").exits(126)
    contains(result.err, "/etc/passwd")
    result = box.run("run", "-w", "/no/such/folder", "tiny", "--", "true")
    check(result.code in (125, 126, 127), result)
    contains(result.err, "/no/such/folder")


@test()
def killed_by_a_signal(box):
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        box.sh(f"kill -{int(number)} $$").exits(128 + number)


@test()
def timeout_ends_everything(box):
    before = time.monotonic()
    # Neither the shell nor its child wants to go.
    result = box.sh("trap '' TERM INT HUP; (trap '' TERM; sleep 100) & echo begun; sleep 100",
                    "--timeout", "2").exits(124)
    equal(result.out, b"begun\n", "what it said before")
    check(time.monotonic() - before < 30, f"took {result.seconds:.1f} s")
    box.clean(2)


@test()
def timeout_of_the_boxfile(box):
    with open(box.path("sandboxes/tiny/Boxfile"), encoding="utf-8") as file:
        before = file.read()
    try:
        box.write_boxfile("tiny", before + "timeout_seconds: 1\n")
        box.sh("sleep 100").exits(124)
        # The command line has the last word.
        box.sh("sleep 2", "--timeout", "60").ok()
    finally:
        box.write_boxfile("tiny", before)


@test()
def a_timeout_waits_for_a_slow_reader(box):
    running = box.start("run", "--timeout", "2", "tiny", "--", "sh", "-c",
                        "echo kept > /data/slow; exec yes")
    time.sleep(7)
    result = running.wait(60).exits(124)
    check(len(result.out) > 100000, f"only {len(result.out)} bytes came")
    check(b"did not end a command" not in result.err, result)
    # The machine went down in order.
    equal(box.sh("cat /data/slow; rm /data/slow").ok().text, "kept\n")
    running = box.start("run", "--timeout", "2", "tiny", "--", "sh", "-c",
                        "head -c 200000 /dev/zero; exit 3")
    time.sleep(4)
    # It was in time itself.
    equal(len(running.wait(60).exits(3).out), 200000, "bytes")


@test()
def a_quick_command_does_not_wait_for_its_timeout(box):
    result = box.sh("true", "--timeout", "60").ok()
    check(result.seconds < 30, f"took {result.seconds:.1f} s")


@test()
def stdin_is_empty_without_i(box):
    result = box.run("run", "tiny", "--", "sh", "-c", "wc -c; echo end", input=b"not for you\n")
    equal(result.ok().out.split(), [b"0", b"end"], "stdin")


@test()
def stdin_ends(box):
    result = box.run("run", "-i", "tiny", "--", "sh", "-c", "wc -c", input=b"a" * 300000).ok()
    equal(result.out.strip(), b"300000", "bytes of stdin")
    equal(box.run("run", "-i", "tiny", "--", "cat", input=b"").ok().out, b"", "an empty stdin")


@test()
def stdin_comes_as_it_is_written(box):
    running = box.start("run", "-i", "tiny", "--", "sh", "-c",
                        "while read -r line; do echo \"got $line\"; done; echo end", stdin=-1)
    for word in (b"one", b"two"):
        running.process.stdin.write(word + b"\n")
        running.process.stdin.flush()
        running.read_until(b"got " + word + b"\n")
    running.process.stdin.close()
    running.process.stdin = None
    contains(running.wait(60).ok().out, "end\n")


@test()
def stdin_that_nobody_reads(box):
    # The command is gone before its input is: no hang, no complaint.
    result = box.run("run", "-i", "tiny", "--", "true", input=b"a" * (4 * MIB), timeout=90).ok()
    equal(result.out, b"", "stdout")


@test()
def environment_directory_and_user(box):
    result = box.run("run", "-e", "WORD=two  words", "-e", "EMPTY=", "-w", "/usr", "tiny", "--",
                     "sh", "-c", 'printf "%s|%s|%s|" "$WORD" "${EMPTY-unset}" "$(pwd)"; id -u').ok()
    equal(result.text, "two  words||/usr|0\n")
    result = box.run("run", "-u", "1000", "tiny", "--", "id", "-u").ok()
    equal(result.text, "1000\n", "-u by number")
    result = box.run("run", "-u", "agent", "tiny", "--", "sh", "-c", "id -un; id -u").ok()
    equal(result.text, "agent\n1000\n", "-u by name")
    result = box.run("run", "-u", "nobody-at-all", "tiny", "--", "true")
    check(result.code != 0, result)
    contains(result.err, "nobody-at-all")


@test()
def nothing_of_the_host_is_in_the_environment(box):
    result = box.run("run", "tiny", "--", "env", env={"HOST_SECRET": "hunter2"}).ok()
    check(b"hunter2" not in result.out and b"BOX_HOME" not in result.out, result)
    contains(result.out, re.compile(r"^PATH=\S*/bin", re.M))
    contains(result.out, re.compile(r"^HOME=/", re.M))


@test()
def arguments_arrive_as_they_are(box):
    words = ["", " ", "a b", "*", "$HOME", "'", '"', "\\", "\n", "-x", "--", "é"]
    result = box.run("run", "tiny", "--", "sh", "-c", 'for a; do printf "<%s>" "$a"; done', "sh",
                     *words).ok()
    equal(result.text, "".join(f"<{word}>" for word in words))


@test()
def bad_environment_is_refused(box):
    for bad in ("1A=b", "A-B=c", "=b", "A=b\nc"):
        result = box.run("run", "-e", bad, "tiny", "--", "true")
        result.exits(125)
        check(result.err.startswith(b"box: "), result)


@test()
def json_is_one_object(box):
    result = box.sh("printf 'a\\n\\303\\251'; echo err >&2; exit 3", "--json").exits(3).json()
    equal((result["exit_code"], result["signal"], result["timed_out"]), (3, None, False))
    equal((result["stdout"], result["stderr"]), ("a\né", "err\n"))
    check(0 <= result["duration_ms"] < 60000, result)
    killed = box.sh("kill -9 $$", "--json").exits(137).json()
    equal((killed["exit_code"], killed["signal"]), (137, 9))
    late = box.sh("sleep 100", "--json", "--timeout", "1").exits(124).json()
    equal((late["exit_code"], late["timed_out"]), (124, True))
    raw = box.run("run", "-i", "--json", "tiny", "--", "cat", input=EVERY_BYTE).ok().json()
    equal(raw["stdout_encoding"], "base64")
    equal(base64.b64decode(raw["stdout"]), EVERY_BYTE)


@test()
def json_of_a_failure_has_a_code(box):
    result = box.run("run", "--json", "nothing-here", "--", "true").exits(125)
    contains(result.text + result.error, re.compile(r'"code":\s*"[a-z-]+"'))


@test()
def a_terminal_inside(box):
    terminal = box.terminal("run", "-it", "tiny", "--", "sh", "-c",
                            "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all",
                            rows=33, columns=101)
    code, seen = terminal.wait()
    equal(code, 0, seen)
    contains(seen, re.compile(r"/dev/(pts/|tty|console)\S*\r\n"))
    contains(seen, "33 101\r\n")
    contains(seen, "all\r\n")


@test()
def no_terminal_without_t(box):
    result = box.sh("test -t 0 || test -t 1 || test -t 2; echo $?").ok()
    equal(result.out, b"1\n")


@test()
def a_terminal_is_resized(box):
    terminal = box.terminal("run", "-it", "tiny", "--", "sh", "-c",
                            "trap 'stty size' WINCH; echo ready; while :; do sleep 0.2; done",
                            rows=24, columns=80)
    terminal.expect(b"ready\r\n")
    terminal.resize(40, 120)
    terminal.expect(b"40 120\r\n", 20)
    terminal.send(b"\x03")
    code, seen = terminal.wait()
    equal(code, 130, seen)


@test()
def control_c_on_a_terminal(box):
    terminal = box.terminal("run", "-it", "tiny", "--", "sh", "-c",
                            "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.1; done")
    terminal.expect(b"ready\r\n")
    terminal.send(b"\x03")
    code, seen = terminal.wait()
    equal(code, 7, seen)
    contains(seen, "caught")


@test()
def a_shell_on_a_terminal(box):
    terminal = box.terminal("run", "-it", "tiny", "--", "sh")
    terminal.expect(re.compile(rb"[#$] (\x1b\[6n)?$"))
    terminal.send(b"echo $((6*7))\r")
    terminal.expect(re.compile(rb"\r\n42\r\n.*[#$] (\x1b\[6n)?$", re.S), 20)
    # End of file, as typed.
    terminal.send(b"\x04")
    code, seen = terminal.wait()
    equal(code, 0, seen)


@test()
def the_terminal_is_given_back(box):
    terminal = box.terminal("run", "-it", "tiny", "--", "sh", "-c", "echo ready; read x")
    other = terminal.other_side()
    before = termios.tcgetattr(other)
    terminal.expect(b"ready")
    check(termios.tcgetattr(other)[3] & termios.ECHO == 0, "the terminal is not raw meanwhile")
    terminal.send(b"\r")
    os.waitpid(terminal.pid, 0)
    equal(termios.tcgetattr(other)[:4], before[:4], "the terminal's modes")


def catch(box, name, number, code):
    running = box.start_sh(f"trap 'echo caught; exit {code}' {name}; echo ready; "
                           "while :; do sleep 0.1; done")
    running.read_until(b"ready\n")
    running.signal(number)
    result = running.wait(60).exits(code)
    contains(result.out, "caught")


@test()
def signals_reach_the_command(box):
    catch(box, "INT", signal.SIGINT, 5)
    catch(box, "TERM", signal.SIGTERM, 6)


@test()
def signals_end_a_command_that_does_not_catch_them(box):
    for number in (signal.SIGINT, signal.SIGTERM):
        # exec: a shell that waits for its child would note the signal only afterwards.
        running = box.start_sh("echo ready; exec sleep 100")
        running.read_until(b"ready\n")
        running.signal(number)
        running.wait(60).exits(128 + number)


@test()
def a_terminal_that_takes_no_more_does_not_hold_signals(box):
    master, slave = os.openpty()
    running = box.start_sh("echo ready >&2; exec yes", stdout=slave)
    os.close(slave)
    running.read_until(b"ready\n", stream=2)
    time.sleep(2)
    running.signal(signal.SIGTERM)
    time.sleep(1)
    # Nothing is lost of what it had said before.
    check(running.process.poll() is None, "it did not wait for the terminal")
    got = b""
    while running.process.poll() is None or got[-1:] != b"\n":
        try:
            got += os.read(master, 65536)
        except OSError:
            break
    running.wait(10).exits(143)
    check(len(got) > 65536 and set(got.split(b"\r\n")) <= {b"y", b""}, f"{len(got)} bytes")
    master, slave = os.openpty()
    running = box.start_sh("echo ready >&2; exec yes", stdout=slave)
    running.read_until(b"ready\n", stream=2)
    time.sleep(2)
    for _ in range(2):
        running.signal(signal.SIGINT)
        time.sleep(0.3)
    running.wait(10).exits(130)
    os.close(slave)
    os.close(master)


@test()
def a_second_interrupt_ends_the_machine(box):
    running = box.start_sh("trap '' INT TERM; echo ready; while :; do sleep 1; done")
    running.read_until(b"ready\n")
    running.signal(signal.SIGINT)
    time.sleep(0.5)
    check(running.process.poll() is None, "the first was enough")
    running.signal(signal.SIGINT)
    result = running.wait(20)
    check(result.code in (130, -signal.SIGINT), result)
    box.clean(3)


@test(timeout=420)
def a_slow_reader_holds_up_the_command(box):
    # A period that no buffer's size is a multiple of, so that a lost or doubled piece shows.
    line = "".join(chr(48 + (i * 7) % 75) for i in range(1008)).replace("\\", "_").replace("`", "-")
    size = 40 * MIB
    running = box.start("run", "tiny", "--", "sh", "-c", 'yes "$0" | head -c $1', line, str(size))
    time.sleep(4)
    digest, got, peaks = hashlib.sha256(), 0, {}
    out = running.process.stdout.fileno()
    while True:
        data = os.read(out, 65536)
        if not data:
            break
        digest.update(data)
        got += len(data)
        if got % (4 * MIB) < len(data):
            time.sleep(0.25)
            add_peaks(peaks)
    running.wait(60).ok()
    wanted = ((line + "\n").encode() * (size // 1009 + 1))[:size]
    equal(got, size, "bytes")
    equal(digest.hexdigest(), hashlib.sha256(wanted).hexdigest(), "digest")
    check("box" in peaks and "box-keeper" in peaks, f"saw only {peaks}")
    for name, peak in peaks.items():
        check(peak < 32 * MIB, f"{name} grew to {peak / MIB:.1f} MiB")


@test()
def a_reader_that_goes_away(box):
    running = box.start("run", "tiny", "--", "yes")
    running.read_until(b"y\n")
    running.process.stdout.close()
    running.process.stdout = None
    result = running.wait(60)
    check(result.code != 0, result)
    box.clean(3)


def closing(*numbers):
    def close():
        for number in numbers:
            os.close(number)
    return close


@test()
def closed_descriptors(box):
    # Nothing of box may get the number of one that the caller has closed.
    result = box.run("run", "-i", "tiny", "--", "sh", "-c", "cat; echo hi", preexec_fn=closing(0))
    equal(result.ok().out, b"hi\n", "without stdin")
    result = box.sh("echo hi; echo err >&2; echo end", preexec_fn=closing(0, 2))
    equal(result.ok().out, b"hi\nend\n", "without stdin and stderr")
    result = box.sh("echo hi", preexec_fn=closing(1)).exits(125)
    contains(result.err, "Bad file descriptor")
    box.run("run", "-i", "tiny", "--", "cat", preexec_fn=closing(0, 1, 2)).exits(0)


@test()
def output_without_room_is_an_error(box):
    with open("/dev/full", "wb") as full:
        result = box.sh("echo kept > /data/full; echo hi", stdout=full).exits(125)
    contains(result.err, "No space left on device")
    equal(box.sh("cat /data/full; rm /data/full").ok().text, "kept\n")


@test()
def a_caller_that_does_not_wait_for_children(box):
    def ignore():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    equal(box.sh("echo hi", preexec_fn=ignore).ok().out, b"hi\n")


@test()
def ignored_signals_stay_ignored(box):
    # nohup ignores SIGHUP, a shell's background job SIGINT.
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    running = box.start_sh("echo ready; sleep 2; echo end", preexec_fn=ignore)
    running.read_until(b"ready\n")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGINT):
        running.signal(number)
        time.sleep(0.1)
    equal(running.wait(60).ok().out, b"ready\nend\n")


@test()
def a_child_that_keeps_stdout_does_not_hold_run(box):
    plain = box.sh("echo hi").ok().seconds
    result = box.sh("sleep 30 & echo hi").ok()
    equal(result.out, b"hi\n", "stdout")
    check(result.seconds < plain + 2, f"{result.seconds:.2f} s; without the child {plain:.2f} s")


@test()
def trace_says_where_the_time_went(box):
    result = box.sh("true", env={"BOX_TRACE": "1"}).ok()
    equal(result.out, b"", "stdout")
    check(len(re.findall(r"\d+(\.\d+)? ?ms", result.error)) >= 3, result)
    quiet = box.sh("true").ok()
    equal(quiet.err, b"", "without BOX_TRACE")


@test()
def the_second_run_waits_for_data(box):
    first = box.start_sh("echo one >> /data/order; echo ready; sleep 4; echo two >> /data/order")
    first.read_until(b"ready\n")
    second = box.start_sh("echo three >> /data/order; cat /data/order; rm /data/order")
    result = second.wait().ok()
    check(first.process.poll() is not None, "the second ended before the first")
    first.wait().ok()
    equal(result.text.split(), ["one", "two", "three"])
    contains(result.err, re.compile(r"/data"), result)
    contains(result.err, re.compile(r"wait", re.I), result)


@test()
def runs_beside_one_that_holds_data(box):
    box.sh("echo kept > /data/note; sync").ok()
    first = box.start_sh("echo ready; sleep 60")
    first.read_until(b"ready\n")
    none = box.sh("grep -c ' /data ' /proc/mounts; ls -A /data | wc -l", "--data", "none")
    clone = box.sh("cat /data/note; echo mine > /data/note; cat /data/note", "--data", "clone")
    check(first.process.poll() is None, "the first has ended meanwhile")
    equal(none.out.split(), [b"0", b"0"], none)
    equal(clone.ok().text, "kept\nmine\n", clone)
    first.signal(signal.SIGTERM)
    first.wait(60)
    equal(box.sh("cat /data/note; rm /data/note").ok().text, "kept\n", "what the clone left")


@test()
def a_wait_for_data_can_be_given_up(box):
    first = box.start_sh("echo ready; sleep 60")
    first.read_until(b"ready\n")
    second = box.start_sh("true")
    second.read_until(b"/data", stream=2)
    second.signal(signal.SIGINT)
    result = second.wait(20)
    check(result.code in (125, 130, -signal.SIGINT), result)
    check(first.process.poll() is None, "the first has gone with it")
    first.signal(signal.SIGTERM)
    first.wait(60)


@test()
def data_stays_and_the_root_does_not(box):
    box.sh("echo kept > /data/kept; echo lost > /lost; echo lost > /etc/lost; rm /bin/cat").ok()
    result = box.sh("ls /data/kept; ls /lost /etc/lost; cat /data/kept; rm /data/kept")
    equal(result.text, "/data/kept\nkept\n", result)


@test()
def a_clone_is_thrown_away(box):
    box.sh("echo mine > /data/clone-test", "--data", "clone").ok()
    equal(box.sh("ls -A /data | grep -c clone-test").out, b"0\n")


@test()
def data_has_exactly_its_size(box):
    result = box.sh("""
        device=$(awk '$2 == "/data" { print $1 }' /proc/mounts)
        cat /sys/class/block/${device##*/}/size
        dd if=/dev/zero of=/data/fill bs=64k 2>/tmp/said; echo $?
        grep -o 'No space left on device' /tmp/said
        sync; wc -c < /data/fill; rm /data/fill; sync""").ok()
    sectors, code, *said, written = result.text.strip().split("\n")
    equal(int(sectors) * 512, 64 * MIB, "size of the disk")
    equal(code, "1", result)
    equal(said, ["No space left on device"], result)
    check(40 * MIB < int(written) < 64 * MIB, f"{written} bytes fit")


@test()
def two_machines_differ(box):
    script = "head -c 32 /dev/urandom | sha256sum; cat /etc/machine-id; " \
        "cat /proc/sys/kernel/random/boot_id; cat /proc/sys/kernel/random/uuid; hostname; date +%s"
    first, second = (box.sh(script).ok().text.split("\n") for _ in range(2))
    for index, what in enumerate(("random bytes", "machine ID", "boot ID", "random uuid")):
        check(len(first[index]) >= 32, f"no {what}: {first}")
        check(first[index] != second[index], f"the same {what}: {first[index]}")
    equal((first[4], second[4]), ("tiny", "tiny"), "host name")
    check(abs(int(second[5]) - time.time()) < 30, f"the clock says {second[5]}")


@test()
def two_machines_at_once_differ(box):
    script = "head -c 32 /dev/urandom | sha256sum; cat /etc/machine-id"
    running = [box.start_sh(script, "--data", "none") for _ in range(2)]
    first, second = (each.wait().ok().text.split("\n") for each in running)
    check(first[0] != second[0] and first[1] != second[1], f"{first} {second}")


@test()
def a_kernel_of_its_own(box):
    inside = box.sh("uname -r; cat /proc/1/comm; ls -d /proc/[0-9]* | wc -l").ok().text.split("\n")
    check(inside[0] != os.uname().release, f"both have {inside[0]}")
    equal(inside[1], "box-guest", "process 1")


@test()
def no_network_inside(box):
    result = box.sh("ls /sys/class/net; ip route 2>/dev/null | wc -l").ok()
    equal(result.text.split(), ["lo", "0"], result)


@test()
def many_runs_one_after_another_leave_nothing(box):
    box.sh("true").ok()
    before = box.tree()
    for _ in range(3):
        box.sh("echo x > /tmp/x").ok()
        box.clean(1)
    equal(box.tree() - before, set(), "new files")
    equal(before - box.tree(), set(), "files gone")


@test()
def a_fork_bomb_ends_with_its_machine(box):
    before = time.monotonic()
    result = box.sh("f() { f | f & f; }; f", "--timeout", "5")
    check(result.code != 0, result)
    check(time.monotonic() - before < 90, f"took {result.seconds:.0f} s")
    box.clean(3)


@test()
def using_up_the_memory_ends_inside(box):
    result = box.sh("dd if=/dev/zero of=/dev/null bs=400M count=1; echo $?; echo alive")
    check(result.code in (0, 125, 137), result)
    box.clean(3)
