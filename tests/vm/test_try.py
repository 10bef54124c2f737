"""box try: one command in several forks side by side."""

import os
import signal
import time

from lib import check, contains, equal, test, wait_until


def forks(box):
    return sorted(each["name"] for each in box.run("ls", "--json").ok().json()
                  if each["name"].startswith("tiny-try"))


@test(home="copy", timeout=900)
def all_stay(box):
    box.sh("echo base >/data/base").ok()
    result = box.run("try", "tiny", "-n", "3", "--", "sh", "-c",
                     "cat /data/base; hostname >/data/who; hostname | grep -q 2 && "
                     "{ echo '\x1b[31mwhy'; exit 7; }; true").exits(1)
    rows = [line.split("\t") for line in result.text.splitlines()]
    equal([(row[0], row[1], row[3]) for row in rows],
          [("tiny-try-1", "0", "1"), ("tiny-try-2", "7", "1"), ("tiny-try-3", "0", "1")])
    contains(result.error, r"tiny-try-2| \e[31mwhy")
    contains(result.error, "box apply tiny-try-1")
    equal(forks(box), ["tiny-try-1", "tiny-try-2", "tiny-try-3"])
    equal(box.sh("cat /data/who", name="tiny-try-3").ok().out, b"tiny-try-3\n")
    with open(box.path("sandboxes", "tiny-try-1", "output"), "rb") as file:
        equal(file.read(), b"base\n")
    box.run("try", "tiny", "-n", "1", "--", "true").fails("tiny-try-1", "already")
    box.run("apply", "tiny-try-3").ok()
    equal(box.sh("cat /data/who").ok().out, b"tiny-try-3\n")


@test(home="copy", timeout=900)
def the_best_is_kept(box):
    result = box.run("try", "tiny", "-n", "3", "--keep", "best", "--json", "--", "sh", "-c",
                     "case $(hostname) in *1) exit 1;; *2) sleep 2;; *) sleep 12;; esac").ok().json()
    equal(result["kept"], "tiny-try-2")
    equal([each["exit_code"] for each in result["forks"]], [1, 0, 0])
    equal([each["kept"] for each in result["forks"]], [False, True, False])
    equal(forks(box), ["tiny-try-2"])


@test(home="copy", timeout=900)
def none_is_kept(box):
    result = box.run("try", "tiny", "-n", "2", "--keep", "best", "--", "false").exits(1)
    contains(result.error, "none of them ended with 0")
    equal(forks(box), [])


@test(home="copy", timeout=900)
def one_is_named(box):
    box.run("try", "tiny", "-n", "2", "--keep", "2", "-e", "X=5", "--timeout", "60", "--", "sh", "-c",
            "exit $X").ok()
    equal(forks(box), ["tiny-try-2"])
    box.run("try", "tiny", "-n", "2", "--keep", "3", "--", "true").fails("--keep")
    box.run("try", "tiny", "-n", "0", "--", "true").fails("--number")
    box.run("try", "nobody", "--", "true").fails("nobody")


@test(home="copy", timeout=900)
def an_interrupt_ends_and_discards_all(box):
    for number in (signal.SIGINT, signal.SIGTERM):
        running = box.start("try", "tiny", "-n", "2", "--", "sleep", "1000")
        wait_until("a machine", lambda: len(box.machines()) >= 4, 60)
        time.sleep(1)
        running.signal(number)
        result = running.wait(60)
        equal(result.code, 128 + number, result)
        equal(forks(box), [], result)
        wait_until("no machine is left", lambda: not box.machines(), 20)


@test(home="copy", timeout=900)
def a_kill_leaves_forks_but_no_machine(box):
    running = box.start("try", "tiny", "-n", "2", "--", "sleep", "1000")
    wait_until("a machine", lambda: len(box.machines()) >= 4, 60)
    running.signal(signal.SIGKILL)
    running.wait(60)
    wait_until("no machine is left", lambda: not box.machines(), 30)
    equal(forks(box), ["tiny-try-1", "tiny-try-2"])
    for name in forks(box):
        box.run("discard", "--yes", name).ok()
    check(not os.path.exists(box.path("sandboxes", "tiny-try-1")))
