"""`box exec`, `box ps`, `box kill` and `box logs` as people expect them."""

import base64
import json
import os
import random
import re
import signal
import stat
import time

from lib import (MIB, check, contains, equal, open_pipe, test, wait_until)

EVERY_BYTE = bytes(range(256))
NOT_UTF8 = b"\xff\xfe\x80 \xc3( \xed\xa0\x80 \x00 \xf4\x90\x80\x80 \xe2\x82"


def names(box):
    """The names and arguments of the guest's processes, without those of its kernel."""
    found = [line.split(None, 2)[-1] for line in box.exec("ps").ok().text.splitlines()[1:]]
    return [each for each in found if not each.startswith("[")]


def runs_inside(box, pattern):
    return [each for each in names(box) if re.search(pattern, each)]


@test()
def exit_codes_are_the_commands(box):
    with box.up():
        for code in (0, 1, 2, 123, 124, 125, 126, 127, 128, 130, 255):
            equal(box.exec(f"exit {code}").code, code)
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP):
            box.exec(f"kill -{int(number)} $$").exits(128 + number)
        contains(box.run("exec", "tiny", "--", "no-such-command").exits(127).err, "no-such-command")
        contains(box.run("exec", "tiny", "--", "/etc/passwd").exits(126).err, "/etc/passwd")
        box.run("exec", "-w", "/no/such/folder", "tiny", "--", "true").fails("/no/such/folder")
        box.run("exec", "-u", "nobody-at-all", "tiny", "--", "true").fails("nobody-at-all")
        # What failed to start is in nobody's way.
        equal(box.ps(), [])


@test()
def environment_directory_and_user(box):
    with box.up():
        result = box.exec('printf "%s|%s|%s|" "$WORD" "${EMPTY-unset}" "$(pwd)"; id -u',
                          "-e", "WORD=two  words", "-e", "EMPTY=", "-w", "/usr").ok()
        equal(result.text, "two  words||/usr|0\n")
        equal(box.exec("echo ${WORD-unset}").ok().text, "unset\n", "the next command")
        equal(box.exec("id -un; id -u", "-u", "agent").ok().text, "agent\n1000\n")
        equal(box.exec("id -u", "-u", "1000").ok().text, "1000\n")
        equal(box.exec("echo $FROM_HERE", "-e", "FROM_HERE", env={"FROM_HERE": "host"}).ok().text,
              "host\n")
        hidden = box.run("exec", "tiny", "--", "env", env={"HOST_SECRET": "hunter2"}).ok()
        check(b"hunter2" not in hidden.out and b"BOX_HOME" not in hidden.out, hidden)
        words = ["", " ", "a b", "*", "$HOME", "'", '"', "\\", "\n", "-x", "--", "é"]
        result = box.run("exec", "tiny", "--", "sh", "-c", 'for a; do printf "<%s>" "$a"; done',
                         "sh", *words).ok()
        equal(result.text, "".join(f"<{word}>" for word in words))
        # What is not of /data stays from command to command, for as long as the machine is up.
        box.exec("echo mine > /root/note; export X=1").ok()
        equal(box.exec("cat /root/note; echo ${X-unset}").ok().text, "mine\nunset\n")


@test()
def streams_are_exact_both_ways(box):
    noise = random.Random(3).randbytes(MIB)
    with box.up():
        result = box.run("exec", "-i", "tiny", "--", "cat", input=noise, timeout=60).ok()
        check(result.out == noise, f"{len(result.out)} bytes came of {len(noise)}, or others")
        equal(result.err, b"")
        for data in (NOT_UTF8, EVERY_BYTE * 32, b"\0" * 5000, b"no newline"):
            result = box.exec("cat >&2", "-i", input=data).ok()
            equal((result.out, result.err), (b"", data))
        result = box.exec("echo out; echo err >&2").ok()
        equal((result.out, result.err), (b"out\n", b"err\n"))
        equal(box.run("exec", "tiny", "--", "true").ok().out, b"")


@test()
def stdin_that_does_not_end_never_hangs_an_exec(box):
    with box.up(), open_pipe() as silent:
        for options in (("-i",), ()):
            result = box.run("exec", *options, "tiny", "--", "echo", "hi", stdin=silent, timeout=20)
            equal(result.ok().out, b"hi\n")
            check(result.seconds < 5, f"took {result.seconds:.1f} s {options}")
        for script in ("cat", "exec sleep 1000", "trap '' TERM; while :; do sleep 1; done"):
            result = box.exec(script, "-i", "--timeout", "1", stdin=silent, timeout=30).exits(124)
            check(result.seconds < 10, f"took {result.seconds:.1f} s: {script}")
        equal(box.exec("exit 3", "-i", stdin=silent, timeout=20).code, 3)
        equal(box.ps(), [])
        equal(runs_inside(box, "sleep"), [], "what ran out of time")


@test()
def stdin_ends_and_comes_as_it_is_written(box):
    with box.up():
        equal(box.exec("wc -c; echo end", input=b"not for you\n").ok().out.split(), [b"0", b"end"])
        equal(box.exec("wc -c", "-i", input=b"a" * 300000).ok().out.strip(), b"300000")
        equal(box.run("exec", "-i", "tiny", "--", "cat", input=b"").ok().out, b"")
        running = box.start_exec('while read -r line; do echo "got $line"; done; echo end', "-i",
                                 stdin=-1)
        for word in (b"one", b"two"):
            running.process.stdin.write(word + b"\n")
            running.process.stdin.flush()
            running.read_until(b"got " + word + b"\n")
        running.process.stdin.close()
        running.process.stdin = None
        contains(running.wait(60).ok().out, "end\n")
        equal(box.run("exec", "-i", "tiny", "--", "true", input=b"a" * (2 * MIB)).ok().out, b"")


@test()
def a_terminal_inside(box):
    with box.up():
        terminal = box.terminal("exec", "-it", "tiny", "--", "sh", "-c",
                                "tty; stty size; echo $TERM; test -t 2 && echo all; read x; exit 7",
                                rows=33, columns=101)
        terminal.expect(re.compile(rb"/dev/pts/\d+\r\n33 101\r\nxterm\r\nall\r\n"))
        terminal.send(b"\r")
        equal(terminal.wait()[0], 7)
        # A time limit ends it although the terminal waits for somebody to type.
        terminal = box.terminal("exec", "-it", "--timeout", "1", "tiny", "--", "cat")
        equal(terminal.wait(20)[0], 124)
        terminal = box.terminal("exec", "-it", "tiny", "--", "sh", "-c",
                                "trap 'echo caught; exit 5' INT; echo ready; "
                                "while :; do sleep 0.1; done")
        terminal.expect(b"ready\r\n")
        terminal.send(b"\x03")
        code, seen = terminal.wait(20)
        equal(code, 5, seen)
        terminal = box.terminal("exec", "-it", "tiny", "--", "sh", "-c", "echo ready; exec cat")
        terminal.expect(b"ready\r\n")
        terminal.hang_up()
        wait_until("it is killed", lambda: not box.ps(), 10)


@test()
def signals_reach_the_command(box):
    with box.up():
        for name, number, code in (("INT", signal.SIGINT, 5), ("TERM", signal.SIGTERM, 6),
                                   ("QUIT", signal.SIGQUIT, 7)):
            running = box.start_exec(f"trap 'echo caught; exit {code}' {name}; echo ready; "
                                     "while :; do sleep 0.1; done")
            running.read_until(b"ready\n")
            running.signal(number)
            equal(running.wait(20).exits(code).text, "ready\ncaught\n")
        # A second Ctrl-C gives a command up that does not want to go; the machine stays.
        running = box.start_exec("trap '' INT TERM; echo ready; while :; do sleep 1; done")
        running.read_until(b"ready\n")
        for _ in range(2):
            running.signal(signal.SIGINT)
            time.sleep(0.2)
        running.wait(10).exits(130)
        wait_until("it is killed", lambda: not box.ps(), 10)
        equal(box.exec("echo fine").ok().text, "fine\n")


@test()
def a_slow_reader_stops_its_own_command_only(box):
    with box.up():
        running = box.start_exec("i=0; while head -c 65536 /dev/zero; do i=$((i + 1)); "
                                 "echo $i > /run/written; done")
        wait_until("it writes", lambda: box.exec("cat /run/written").out, 10)

        def written():
            return int(box.exec("cat /run/written").ok().text)

        time.sleep(1.5)
        first = written()
        time.sleep(1)
        equal(written(), first, "pieces while nobody reads")
        check(first < 32, f"{first} pieces of 64 KiB are on the way")
        # Others do not mind, with input and output of their own.
        data = EVERY_BYTE * 2048
        check(box.run("exec", "-i", "tiny", "--", "cat", input=data, timeout=30).ok().out == data,
              "other bytes")
        for _ in range(40):
            os.read(running.process.stdout.fileno(), 65536)
        wait_until("it goes on", lambda: written() > first, 10)
        running.process.stdout.close()
        running.process.stdout = None
        check(running.wait(20).code != 0, "it did not learn that nobody reads")
        wait_until("it ends", lambda: not box.ps(), 10)


@test()
def a_killed_client_ends_its_whole_process_group(box):
    with box.up():
        running = box.start_exec("sleep 1001 & setsid sleep 1002 & (trap '' TERM HUP; sleep 1003) & "
                                 "echo so far; echo err >&2; wait")
        running.read_until(b"so far\n")
        identity = box.ps()[0]["id"]
        equal(len(runs_inside(box, r"^sleep 100[123]")), 3)
        other = box.start_exec("echo other; exec sleep 1004")
        other.read_until(b"other\n")
        running.signal(signal.SIGKILL)
        running.wait(10).exits(-signal.SIGKILL)
        wait_until("they are gone", lambda: not runs_inside(box, r"^sleep 100[123]"), 10)
        equal(len(runs_inside(box, "^sleep 1004")), 1, "another client's command")
        # Its output can be read again.
        wait_until("the log has its end", lambda: "SIGKILL" in box.run("logs", "tiny").text, 10)
        result = box.run("logs", "tiny", identity).ok()
        equal((result.out, result.err), (b"so far\n", b"err\n"))
        other.signal(signal.SIGTERM)
        other.wait(10).exits(143)


@test()
def clients_that_die_leave_nothing(box):
    with box.up():
        keeper = box.keeper().pid

        def descriptors():
            return len(os.listdir(f"/proc/{keeper}/fd"))

        box.exec("true").ok()
        time.sleep(0.3)
        before = descriptors()
        with open_pipe() as silent:
            for step in range(30):
                running = box.start_exec("echo begun; exec sleep 1006", "-i", stdin=silent)
                time.sleep(step * 0.002)
                running.signal((signal.SIGKILL, signal.SIGHUP)[step % 2])
                check(running.wait(10).code in (-signal.SIGKILL, -signal.SIGHUP, 125, 129), step)
        wait_until("all is given back", lambda: descriptors() <= before, 10)
        wait_until("they have ended", lambda: not box.ps(), 10)
        wait_until("all are gone", lambda: not runs_inside(box, "^sleep 1006"), 10)


@test()
def a_detached_command_goes_on(box):
    with box.up():
        result = box.exec("echo out; echo err >&2; sleep 1; echo later; exit 3", "--detach").ok()
        check(result.seconds < 0.9, f"took {result.seconds:.1f} s")
        identity = result.text.strip()
        check(re.fullmatch("[a-z0-9]{6}", identity), result)
        row, = box.ps()
        equal((row["id"], row["attached"], row["argv"][0]), (identity, False, "sh"))
        wait_until("its end", lambda: not box.ps(), 10)
        result = box.run("logs", "tiny", identity).ok()
        equal((result.out, result.err), (b"out\nlater\n", b"err\n"))
        contains(box.run("logs", "tiny", "-n", "1").ok().text, re.compile(f"\t{identity}\t3\t"))
        told = box.run("exec", "--detach", "--json", "--timeout", "1", "tiny", "--", "sleep",
                       "1000").ok().json()
        equal(told["detached"], True, told)
        wait_until("its time is over", lambda: not box.ps(), 10)
        contains(box.run("logs", "tiny", "-n", "1").ok().text, f"\t{told['id']}\ttimeout\t")
        box.run("exec", "--detach", "tiny", "--", "no-such-command").exits(127)


@test()
def odd_callers(box):
    def closing(*numbers):
        def close():
            for number in numbers:
                os.close(number)
        return close

    with box.up():
        result = box.exec("cat; echo hi", "-i", preexec_fn=closing(0))
        equal(result.ok().out, b"hi\n", "without stdin")
        result = box.exec("echo hi; echo err >&2; echo end", preexec_fn=closing(0, 2))
        equal(result.ok().out, b"hi\nend\n", "without stdin and stderr")
        contains(box.exec("echo hi", preexec_fn=closing(1)).exits(125).err, "Bad file descriptor")
        with open("/dev/full", "wb") as full:
            contains(box.exec("echo hi", stdout=full).exits(125).err, "No space left on device")
        running = box.start_exec("echo ready; sleep 1; echo end", preexec_fn=lambda: [
            signal.signal(each, signal.SIG_IGN) for each in (signal.SIGHUP, signal.SIGINT)])
        running.read_until(b"ready\n")
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGINT):
            running.signal(number)
        equal(running.wait(20).ok().out, b"ready\nend\n")
        # Stopped for a while, as by Ctrl-Z.
        running = box.start_exec("echo ready; sleep 0.3; echo later")
        running.read_until(b"ready\n")
        running.signal(signal.SIGSTOP)
        time.sleep(0.6)
        running.signal(signal.SIGCONT)
        contains(running.wait(20).ok().out, "later\n")


@test()
def many_at_once(box):
    with box.up():
        running = [box.start_exec(f"for i in $(seq 200); do echo {n} $i; done; sleep 1; exit {n}")
                   for n in range(16)]
        for number, each in enumerate(running):
            result = each.wait(60).exits(number)
            equal(result.text, "".join(f"{number} {i + 1}\n" for i in range(200)))


@test(timeout=200)
def two_hundred_streams_at_once(box):
    box.run("up", "tiny").ok()
    running = []
    for number in range(200):
        running.append(box.start("exec", "tiny", "--", "sleep", "1000"))
        if number % 20 == 19:
            wait_until("they run", lambda wanted=number + 1: len(box.ps()) == wanted, 60)
    data = EVERY_BYTE * 400
    check(box.run("exec", "-i", "tiny", "--", "cat", input=data, timeout=60).ok().out == data,
          "other bytes")
    # More than there is room for are refused, and nothing else suffers.
    more = [box.start("exec", "tiny", "--", "sleep", "1000") for _ in range(64)]
    time.sleep(2)
    refused = [each.wait(10) for each in more if each.process.poll() is not None]
    check(8 <= len(refused) < 64, f"{len(refused)} of 264 were refused")
    refused[0].fails("at once")
    for each in running[:20]:
        each.signal(signal.SIGTERM)
    for each in running[:20]:
        each.wait(60).exits(143)
    equal(box.exec("echo fine", timeout=60).ok().text, "fine\n")
    box.run("down", "tiny", timeout=60).ok()
    for each in running[20:] + [each for each in more if each.process.poll() is None]:
        check(each.wait(20).code in (143, 137), each.arguments)


def grow(box, count):
    """Runs count commands and says how much keeper and guest have grown meanwhile."""
    keeper = box.keeper()

    def look():
        # The one before may still be on its way out.
        time.sleep(0.3)
        return (len(os.listdir(f"/proc/{keeper.pid}/fd")), keeper.status("VmRSS"),
                len(names(box)),
                int(re.search(r"MemAvailable:\s+(\d+)", box.exec("cat /proc/meminfo").text)[1]))

    for _ in range(50):
        box.run("exec", "tiny", "--", "true").ok()
    before = look()
    for number in range(count):
        if number % 3:
            box.run("exec", "tiny", "--", "true").ok()
        else:
            equal(box.run("exec", "-i", "tiny", "--", "cat", input=b"x\n").ok().out, b"x\n")
    after = look()
    equal(after[0], before[0], "descriptors of the keeper")
    check(after[1] <= before[1] + MIB // 2, f"the keeper grew from {before[1]} to {after[1]} bytes")
    equal(after[2], before[2], "processes inside")
    check(after[3] > before[3] - 4096, f"the guest had {before[3]} kB and has {after[3]} kB")


@test()
def three_hundred_in_a_row_leave_nothing(box):
    with box.up():
        grow(box, 300)


@test(long=True)
def a_thousand_in_a_row_leave_nothing(box):
    with box.up():
        grow(box, 1000)


@test()
def a_name_that_would_drive_a_terminal(box):
    evil = "\x1b[31mevil\x1b]0;title\x07\nsecond line\u202etxt\x9b1m"
    with box.up():
        identity = box.run("exec", "--detach", "tiny", "--", "sh", "-c", "sleep 1000", evil).text.strip()
        for words in (("ps", "tiny"), ("logs", "tiny"), ("logs", "--json", "tiny")):
            lines = box.run(*words).ok().out.decode("utf-8").split("\n")
            # JSON needs no more than what JSON itself asks for.
            harmful = "[\x00-\x1f]" if "--json" in words else "[\x00-\x08\x0b-\x1f\x7f-\x9f]"
            for line in lines:
                check(not re.search(harmful, line), f"{words}: {line!r}")
            terminal = box.terminal(*words, columns=300)
            code, seen = terminal.wait(20)
            equal(code, 0, seen)
            # Bold headings are our own.
            text = re.sub(rb"\x1b\[[01]?m", b"", seen).decode("utf-8", "strict")
            check(not re.search("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", text), f"{words}: {text!r}")
        equal(box.ps()[0]["argv"][3], evil.encode().decode(), "in JSON it is whole")
        equal(len(box.run("ps", "tiny").ok().text.splitlines()), 1)
        box.run("kill", "-KILL", "tiny", identity).ok()
        wait_until("its end", lambda: not box.ps(), 10)
        contains(box.run("logs", "tiny", "-n", "1").ok().text, "evil")
        result = box.exec("true; exit 4 # \x1b[2J")
        equal((result.code, result.err), (4, b""))
        result = box.run("exec", "tiny", "--", "no\x1b[31msuch\ncommand").exits(127)
        check(b"\x1b" not in result.err, result)
        # So does what a guest has written, on a terminal; in a pipe it is exact.
        identity = box.exec("printf '\\033[31mred\\007\\n'; printf '\\033c' >&2", "--detach").text.strip()
        wait_until("its end", lambda: not box.ps(), 10)
        equal(box.run("logs", "tiny", identity).ok().out, b"\x1b[31mred\x07\n")
        code, seen = box.terminal("logs", "tiny", identity).wait(20)
        check(code == 0 and b"red" in seen and not re.search(rb"[\x1b\x07]", seen), seen)


@test()
def json_is_one_object(box):
    with box.up():
        result = box.exec("printf 'a\\n\\303\\251'; echo err >&2; exit 3", "--json").exits(3).json()
        equal((result["exit_code"], result["signal"], result["timed_out"]), (3, None, False))
        equal((result["stdout"], result["stderr"], result["error"]), ("a\né", "err\n", None))
        check(0 <= result["duration_ms"] < 10000 and len(result["id"]) == 6, result)
        raw = box.run("exec", "-i", "--json", "tiny", "--", "cat", input=NOT_UTF8).ok().json()
        equal(base64.b64decode(raw["stdout"]), NOT_UTF8)
        late = box.exec("sleep 100", "--json", "--timeout", "1").exits(124).json()
        equal((late["exit_code"], late["timed_out"]), (124, True))
        none = box.run("exec", "--json", "tiny", "--", "no-such-command").exits(127).json()
        equal(none["error"]["code"], "not-started", none)


@test()
def ps_and_kill(box):
    with box.up():
        equal(box.run("ps", "tiny").ok().out, b"")
        running = box.start_exec("trap 'echo usr; exit 9' USR1; trap 'echo hup' HUP; echo ready; "
                                 "while :; do sleep 0.1; done", "-u", "agent")
        running.read_until(b"ready\n")
        row, = box.ps()
        identity = row["id"]
        equal((row["user"], row["attached"], row["terminal"], row["stdout_bytes"]),
              ("agent", True, False, 6), row)
        cells = box.run("ps", "tiny").ok().text.rstrip("\n").split("\t")
        equal((cells[0], cells[1], cells[3]), (identity, "agent", "attached"), cells)
        contains(box.terminal("ps", "tiny").wait()[1], "COMMAND")
        for name in ("-HUP", "-sighup", "-1"):
            box.run("kill", name, "tiny", identity).ok()
            running.read_until(b"hup\n")
            running.seen[1] = b""
        box.run("kill", "--signal", "USR1", "tiny", identity).ok()
        equal(running.wait(10).exits(9).text, "usr\n")
        stubborn = box.start_exec("trap '' TERM; setsid sleep 1005 & echo ready; "
                                  "while :; do sleep 1; done")
        stubborn.read_until(b"ready\n")
        identity = box.ps()[0]["id"]
        box.run("kill", "tiny", identity).ok()
        time.sleep(0.3)
        check(stubborn.process.poll() is None, "it did not ignore the signal")
        box.run("kill", "-9", "tiny", identity).ok()
        stubborn.wait(10).exits(137)
        wait_until("what has left the group", lambda: not runs_inside(box, "^sleep 1005"), 5)
        for bad in (identity, "aaaaaa", "x", "no/such", identity + "1"):
            box.run("kill", "tiny", bad).fails("no command")
        box.run("kill", "-NOSUCH", "tiny", "aaaaaa").exits(125)
        box.run("kill", "-99", "tiny", "aaaaaa").exits(125)


@test(home="copy")
def logs_tell_what_ran(box):
    box.sh("echo from a run; exit 2").exits(2)
    with box.up():
        for number in range(5):
            box.exec(f"exit {number}", "-e", "SECRET=hunter2", "-u", "agent").exits(number)
        box.exec("kill -9 $$").exits(137)
        lines = box.run("logs", "tiny").ok().text.splitlines()
        equal([line.split("\t")[2] for line in lines], ["2", "0", "1", "2", "3", "4", "SIGKILL"])
        for line in lines:
            check(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\t[a-z0-9]{6}\t\w+\t"
                           r"\d+\.\d{3}\t\d+\tsh -c ", line), line)
        equal(len(box.run("logs", "tiny", "-n", "2").ok().text.splitlines()), 2)
        equal(box.run("logs", "tiny", "-n", "0").ok().out, b"")
        events = [json.loads(line) for line in box.run("logs", "--json", "tiny").ok().text.splitlines()]
        equal([each["event"] for each in events if "id" not in each], ["up"])
        starts = [each for each in events if each["event"] == "start"]
        equal((starts[0]["machine"], starts[1]["machine"], starts[1]["user"]), ("run", "up", "agent"))
        # Values of the environment are nobody's business, and neither is the log.
        for folder, folders, files in os.walk(box.path("log")):
            equal(stat.S_IMODE(os.stat(folder).st_mode), 0o700, folder)
            for name in files:
                path = os.path.join(folder, name)
                equal(stat.S_IMODE(os.stat(path).st_mode), 0o600, path)
                with open(path, "rb") as file:
                    check(b"hunter2" not in file.read(), f"{path} has a value of the environment")
        box.run("logs", "tiny", "aaaaaa").fails("no command")
        box.run("logs", "tiny", "../../x").fails("no command")


@test()
def logs_follow(box):
    with box.up():
        box.exec("exit 41").exits(41)
        following = box.start("logs", "-f", "-n", "1", "tiny")
        following.read_until(b"\t41\t", timeout=10)
        box.exec("exit 42").exits(42)
        following.read_until(b"\t42\t", timeout=10)
        check(following.process.poll() is None, "it ended")
        following.signal(signal.SIGINT)
        check(following.wait(10).code in (0, 130, -signal.SIGINT), "its end")
        following = box.start("logs", "--json", "-f", "-n", "0", "tiny")
        time.sleep(0.3)
        box.exec("exit 43").exits(43)
        following.read_until(b'"exit_code":43', timeout=10)
        following.process.stdout.close()
        following.process.stdout = None
        box.exec("exit 44").exits(44)
        following.wait(10)


def kept(box, script):
    """Runs a script, and returns what `box logs` has of it afterwards."""
    identity = box.exec(script, "--json", timeout=60).json()["id"]
    return box.run("logs", "tiny", identity)


@test(home="copy")
def logs_keep_output_as_far_as_they_should(box):
    boxfile = box.path("sandboxes/tiny/Boxfile")
    with open(boxfile, encoding="utf-8") as file:
        plain = file.read()
    numbers = "".join(f"{n}\n" for n in range(1, 30001)).encode()
    with box.up():
        result = kept(box, "printf '\\000\\377\\r\\n\\033[1m'; printf '\\376' >&2").ok()
        equal((result.out, result.err), (b"\0\xff\r\n\x1b[1m", b"\xfe"))
        result = kept(box, "seq 30000; echo short >&2").ok()
        equal(len(result.out), 65536, "what is kept of a stream")
        check(result.out == numbers[-65536:], "it is not the end of it")
        contains(result.error, f"the first {len(numbers) - 65536} bytes of standard output")
        contains(result.error, "short\n")
        result = kept(box, "head -c 65536 /dev/zero").ok()
        equal((len(result.out), result.err), (65536, b""), "exactly what is kept")
        equal(len(kept(box, "head -c 65537 /dev/zero | tr '\\0' x").ok().out), 65536)
    box.write_boxfile("tiny", plain + "log_output: full\n")
    with box.up():
        result = kept(box, "seq 30000").ok()
        check(result.out == numbers and result.err == b"", f"{len(result.out)} bytes are kept")
    box.write_boxfile("tiny", plain + "log_output: none\n")
    with box.up():
        before = set(os.listdir(box.path("log/tiny")))
        result = kept(box, "echo secret").ok()
        equal(result.out, b"")
        contains(result.error, "none of the 7 bytes")
        equal(set(os.listdir(box.path("log/tiny"))), before)


@test(home="copy")
def a_log_is_put_aside_when_it_is_large(box):
    box.sh("exit 41").exits(41)
    path = box.path("log/tiny.jsonl")
    line = b'{"event":"up","time":"2026-01-01T00:00:00.000Z","machine":"up","text":"%s"}\n' % (b"x" * 1000)
    with open(path, "ab") as file:
        file.write(line * (4 * MIB // len(line) + 2))
    with box.up("--data", "none"):
        # The machine's own first line has put it aside. Once more, while somebody follows.
        os.rename(path + ".1", path)
        following = box.start("logs", "-f", "-n", "0", "tiny")
        time.sleep(0.3)
        box.exec("exit 42").exits(42)
        following.read_until(b"\t42\t", timeout=10)
        following.signal(signal.SIGINT)
        following.wait(10)
        check(os.path.getsize(path + ".1") > 4 * MIB and os.path.getsize(path) < 10000, "sizes")
        equal(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        codes = [each.split("\t")[2] for each in box.run("logs", "tiny").ok().text.splitlines()]
        equal(codes, ["41", "42"])
