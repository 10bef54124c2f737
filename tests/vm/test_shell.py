"""`box shell`: a login terminal, left and taken up again."""

import os
import re
import shutil
import signal
import subprocess
import termios
import time

from lib import Terminal, check, contains, equal, skip, test, wait_until

# What follows it asks the terminal where the cursor is, or clears what is behind it.
PROMPT = re.compile(rb"[#$] (\x1b\[(6n|J))*$")
DETACH = b"\x1c\x11"


def shell(box, *options, **rest):
    terminal = box.terminal("shell", *options, "tiny", **rest)
    terminal.expect(PROMPT, 20)
    return terminal


def type_in(terminal, line, wanted, timeout=20):
    """Types a line and waits for wanted, and then for the next prompt."""
    terminal.seen = b""
    terminal.send(line.encode() + b"\r")
    terminal.expect(wanted if hasattr(wanted, "search") else wanted.encode() + b"\r\n", timeout)
    return terminal.expect(PROMPT, timeout)


def leave(terminal, code=0):
    terminal.seen = b""
    terminal.send(f"exit {code}\r".encode())
    got, seen = terminal.wait(20)
    equal(got, code, seen)
    return seen


def detach(terminal):
    """Presses the detach key; returns the ID that it says."""
    terminal.seen = b""
    terminal.send(DETACH)
    code, seen = terminal.wait(10)
    equal(code, 0, seen)
    contains(seen, "detached")
    return re.search(rb"--attach ([a-z0-9]{6})", seen)[1].decode()


def attach(box, *identity):
    return box.terminal("shell", "--attach", "tiny", *identity)


@test()
def a_login_terminal(box):
    with box.up():
        terminal = box.terminal("shell", "tiny", rows=33, columns=101,
                                env={"TERM": "xterm-256color", "COLORTERM": "truecolor",
                                     "LANG": "C.UTF-8", "HOST_SECRET": "hunter2"})
        terminal.expect(PROMPT, 20)
        type_in(terminal, "stty size", "33 101")
        terminal.resize(40, 120)
        type_in(terminal, "stty size", "40 120")
        type_in(terminal, 'echo "$TERM|$COLORTERM|$LANG|${HOST_SECRET-unset}|$HOME"',
                "xterm-256color|truecolor|C.UTF-8|unset|/root")
        # A login shell has a dash before its name, or the flag; it is its own session's leader.
        type_in(terminal, 'cd; pwd; tty', re.compile(rb"\r\n/root\r\n/dev/pts/\d+\r\n"))
        type_in(terminal, "printf '\\033[31mred\\033[0m\\n'", re.compile(rb"\r\n\x1b\[31mred\x1b\[0m\r\n"))
        row, = box.ps()
        equal((row["terminal"], row["attached"], row["session"]), (True, True, True), row)
        leave(terminal, 7)
        equal(box.ps(), [])


@test()
def job_control(box):
    with box.up():
        terminal = shell(box)
        terminal.send(b"sleep 1001\r")
        wait_until("it runs", lambda: b"sleep 1001" in box.exec("ps").out, 10)
        terminal.seen = b""
        terminal.send(b"\x1a")
        terminal.expect(re.compile(rb"Stopped"), 10)
        terminal.expect(PROMPT)
        type_in(terminal, "jobs", re.compile(rb"Stopped.*sleep 1001"))
        terminal.seen = b""
        terminal.send(b"fg\r")
        terminal.expect(re.compile(rb"sleep 1001\r\n"), 10)
        time.sleep(0.3)
        terminal.seen = b""
        terminal.send(b"\x03")
        terminal.expect(PROMPT, 10)
        type_in(terminal, "echo $?", "130")
        # Ctrl-C clears a line, and the quit key is the shell's as long as no q follows it.
        terminal.send(b"echo never\x03")
        type_in(terminal, "echo $((6*7))", re.compile(rb"\r\n42\r\n"))
        terminal.send(b"sleep 1002\r")
        wait_until("it runs", lambda: b"sleep 1002" in box.exec("ps").out, 10)
        terminal.seen = b""
        terminal.send(b"\x1cx")
        terminal.expect(re.compile(rb"[#$] (\x1b\[6n)?x"), 10)
        terminal.send(b"\x15")
        terminal.seen = b""
        # End of file, as typed.
        terminal.send(b"\x04")
        code, seen = terminal.wait(20)
        check(code in (131, 0), f"{code} {seen}")


@test()
def a_shell_starts_the_machine(box):
    terminal = shell(box)
    contains(terminal.seen, re.compile(rb"tiny is up: .* s".decode()))
    equal(box.row()["state"], "up")
    leave(terminal)
    # It stays.
    equal(box.exec("echo fine").ok().text, "fine\n")
    box.run("down", "tiny").ok()
    box.run("shell", "tiny").fails("no terminal")
    attach(box).expect(b"not up")


@test()
def a_detached_shell_goes_on(box):
    with box.up():
        terminal = shell(box)
        type_in(terminal, "WORD=kept; echo mark-one", re.compile(rb"\r\nmark-one\r\n"))
        terminal.send(b"for i in 1 2 3; do sleep 0.5; echo late-$i; done\r")
        identity = detach(terminal)
        row, = box.ps()
        equal((row["id"], row["attached"], row["terminal"]), (identity, False, True), row)
        time.sleep(1.8)
        back = attach(box)
        # What was said before, and what was said meanwhile.
        back.expect(re.compile(rb"mark-one\r\n.*late-1\r\n.*late-3\r\n", re.S), 10)
        back.send(b"\r")
        back.expect(PROMPT)
        type_in(back, 'echo "=$WORD="', "=kept=")
        # Nobody else may have it meanwhile.
        code, seen = attach(box, identity).wait(10)
        equal(code, 125, seen)
        contains(seen, "attached")
        equal(detach(back), identity)
        # By its ID, with another size.
        back = box.terminal("shell", "--attach", "tiny", identity, rows=50, columns=132)
        back.expect(b"late-3", 10)
        time.sleep(0.2)
        type_in(back, "stty size", "50 132")
        leave(back, 5)
        for words in ((), (identity,), ("aaaaaa",)):
            code, seen = attach(box, *words).wait(10)
            equal(code, 125, seen)
            contains(seen, re.compile(r"box:.*(attached|no detached shell|no command)"))


@test()
def two_shells(box):
    with box.up():
        one, two = shell(box), shell(box)
        type_in(one, "WORD=first", PROMPT)
        type_in(two, "WORD=second", PROMPT)
        first = detach(one)
        type_in(two, 'echo "=$WORD="', "=second=")
        second = detach(two)
        check(first != second, first)
        # A new one says that there are others.
        three = shell(box)
        contains(three.seen, "2 detached shells in tiny")
        leave(three)
        back = attach(box, first)
        back.expect(PROMPT)
        type_in(back, 'echo "=$WORD="', "=first=")
        # Without an ID it is the newest that nobody is attached to.
        newest = attach(box)
        newest.expect(PROMPT)
        type_in(newest, 'echo "=$WORD="', "=second=")
        leave(newest, 3)
        leave(back, 2)


@test()
def a_lost_shell_can_be_taken_up_again(box):
    with box.up():
        terminal = shell(box)
        type_in(terminal, "WORD=kept", PROMPT)
        terminal.kill()
        os.close(terminal.fd)
        wait_until("it is detached", lambda: not box.ps()[0]["attached"], 10)
        back = attach(box)
        back.expect(PROMPT)
        type_in(back, 'echo "=$WORD="', "=kept=")
        # A terminal that is closed, as by a lost connection.
        back.hang_up()
        wait_until("it is detached", lambda: not box.ps()[0]["attached"], 10)
        back = attach(box)
        back.expect(PROMPT)
        type_in(back, 'echo "=$WORD="', "=kept=")
        back.seen = b""
        box.run("down", "tiny", timeout=30).ok()
        code, seen = back.wait(10)
        check(code in (125, 129, 143), f"{code}: {seen}")
        box.run("up", "tiny").ok()
        equal(box.ps(), [])


@test()
def the_terminal_is_as_it_was(box):
    with box.up():
        terminal = box.terminal("shell", "tiny")
        other = terminal.other_side()
        before = termios.tcgetattr(other)
        terminal.expect(PROMPT, 20)
        check(termios.tcgetattr(other)[3] & termios.ECHO == 0, "it is not raw meanwhile")
        terminal.send(DETACH)
        terminal.expect(b"--attach", 10)
        os.waitpid(terminal.pid, 0)
        equal(termios.tcgetattr(other)[:4], before[:4], "modes after detaching")
        os.close(other)
        os.close(terminal.fd)


@test()
def a_large_output_comes_whole(box):
    with box.up():
        terminal = shell(box)
        terminal.seen = b""
        terminal.send(b"seq 40000 > n; cat n; echo en''d\r")
        terminal.expect(b"\r\nend\r\n", 60)
        numbers = "".join(f"{n}\r\n" for n in range(1, 40001)).encode()
        check(numbers in terminal.seen, "numbers are missing")
        leave(terminal)


@test()
def inside_script(box):
    if not shutil.which("script"):
        skip("no script(1)")
    with box.up():
        terminal = Terminal(["/usr/bin/env", "script", "-qec", f"'{box.binary}' shell tiny",
                             "/dev/null"], box.environ({"TERM": "xterm", "SHELL": "/bin/sh"}),
                            31, 91)
        terminal.expect(PROMPT, 20)
        type_in(terminal, "stty size", "31 91")
        leave(terminal, 6)


@test()
def inside_tmux(box):
    if not shutil.which("tmux"):
        skip("no tmux")
    socket = box.temporary + "/tmux"
    environment = box.environ({"TERM": "xterm", "TMUX": None, "SHELL": "/bin/sh"})

    def tmux(*words):
        return subprocess.run(["tmux", "-S", socket, "-f", "/dev/null", *words], env=environment,
                              capture_output=True, timeout=20)

    def screen():
        return tmux("capture-pane", "-p", "-t", "t").stdout.decode("utf-8", "replace")

    with box.up():
        equal(tmux("new-session", "-d", "-s", "t", "-x", "90", "-y", "30",
                   f"'{box.binary}' shell tiny; echo code $?; sleep 100").returncode, 0)
        try:
            wait_until("a prompt", lambda: re.search(r"[#$] *$", screen().rstrip("\n")), 20)
            tmux("send-keys", "-t", "t", "stty size; echo $TERM", "Enter")
            wait_until("its size", lambda: re.search(r"^\d\d 90\n(screen|tmux)", screen(), re.M), 10)
            tmux("resize-window", "-t", "t", "-x", "70", "-y", "20")
            time.sleep(0.3)
            tmux("send-keys", "-t", "t", "clear; stty size", "Enter")
            wait_until("its new size", lambda: re.search(r"^(19|20) 70$", screen(), re.M), 10)
            tmux("send-keys", "-t", "t", "C-\\", "C-q")
            wait_until("detached", lambda: "code 0" in screen(), 10)
            contains(screen(), "detached")
            equal(box.ps()[0]["attached"], False)
        finally:
            tmux("kill-server")
            if os.path.exists(socket):
                os.unlink(socket)
