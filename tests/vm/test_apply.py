"""box apply: a fork's changes come to its parent whole or not at all, and can be taken back."""

import json
import os
import random
import re
import signal
import time

from lib import check, contains, equal, test, wait_until
from test_data import listing
from test_diff import BASE, CHANGES, ODD_NAMES, family, make_odd

# How often an apply is killed.
KILLS = 20
# And how often at the very step that puts it in place.
STEP_KILLS = 5


def state(box, name="tiny"):
    """/data without the times, which an apply does not keep for directories."""
    return re.sub(r"^(.* \w+ \d+ \d+) \d+ (\d+) ", r"\1 \2 ", listing(box, name), flags=re.M)


def no_links(text):
    """Without the number of entries of directories."""
    return re.sub(r"^(.* 4\w+ \d+ \d+) \d+ ", r"\1 ", text, flags=re.M)


def applied(box, name="tiny"):
    with open(box.path("sandboxes", name, "applied.json"), encoding="utf-8") as file:
        return json.load(file)


def conflicts(result):
    return sorted(each["fork"]["path"] for each in result.exits(1).json()["conflicts"])


@test(home="copy", timeout=900)
def everything_arrives(box):
    family(box)
    # The fork may be up: what it has at that moment is taken.
    with box.up(name="f"):
        contains(box.run("apply", "f").ok().error, "11 changes applied to tiny")
    equal(state(box), state(box, "f"))
    equal(applied(box)["fork"], "f")
    result = box.run("apply", "f", "--json").ok().json()
    equal((result["applied"], result["same"], result["undo"]), (0, 11, None))
    # Back, and nothing is left of it.
    contains(box.run("apply", "--undo", "f").ok().error, "as it was before")
    equal(box.sh("cat /data/src/a /data/text | head -2; ls -d /data/gone").ok().out,
          b"one\n1\n/data/gone\n")
    box.run("apply", "--undo", "tiny").fails("nothing was applied")


@test(home="copy", timeout=900)
def odd_names_arrive(box):
    family(box, script=make_odd(ODD_NAMES))
    box.run("apply", "f").ok()
    equal(state(box), state(box, "f"))


@test(home="copy", timeout=900)
def what_the_parent_did_stays(box):
    family(box)
    box.sh("cd /data && echo mine >mine && seq 5 >src/own && rm -r gone").ok()
    result = box.run("apply", "f", "--json").ok().json()
    equal((result["same"], result["conflicts"]), (2, []))
    equal(box.sh("cat /data/mine /data/src/a; ls /data").ok().out,
          b"mine\none\nmore\naway\nc\nlost+found\nmine\nnew\nsrc\ntext\n")


@test(home="copy", timeout=900)
def the_same_on_both_sides_is_no_conflict(box):
    family(box, script="cd /data && echo same >new && mkdir d && echo s >d/s && echo other >c")
    box.sh("cd /data && echo same >new && mkdir d && echo s >d/s && echo OTHER >c").ok()
    equal(conflicts(box.run("apply", "f", "--json")), ["c"])
    box.sh("echo other >/data/c").ok()
    equal(box.run("apply", "f", "--json").ok().json()["same"], 4)


CONFLICTS = r"""
cd /data && echo fork >src/a && rm -r gone && echo n >moved/new && mv src/deep src/deeper &&
echo fork >added && rm c
""".strip()
PARENT = r"""
cd /data && echo parent >src/a && echo y >gone/y && rm -r moved && echo p >src/deep/p &&
echo parent >added && rm c && mkdir c
"""


@test(home="copy", timeout=900)
def conflicts_are_listed_and_decided(box):
    family(box, script=CONFLICTS + " && echo free >free")
    box.sh(PARENT).ok()
    before = listing(box)
    wanted = ["added", "c", "gone", "moved/new", "src/a", "src/deeper"]
    equal(conflicts(box.run("apply", "f", "--json")), wanted)
    result = box.run("apply", "f").exits(1)
    contains(result.error, "nothing was applied, there are 6 conflicts (conflicts)")
    contains(result.text, "conflict: M src/a (content)")
    equal(listing(box), before, "a conflict has changed something")
    check(not os.path.exists(box.path("sandboxes", "tiny", "applied.json")))
    # The parent's side: what is no conflict comes all the same.
    box.run("apply", "f", "--ours").ok()
    equal(box.sh("cd /data && cat src/a added free gone/y src/deep/p; ls -d c gone/x").exits(1).out,
          b"parent\nparent\nfree\ny\np\nc\n")
    box.run("apply", "--undo", "tiny").ok()
    equal(no_links(state(box)), no_links(re.sub(r"^(.* \w+ \d+ \d+) \d+ (\d+) ", r"\1 \2 ", before,
                                                flags=re.M)))
    # The fork's.
    contains(box.run("apply", "f", "--theirs").ok().error, "changes of tiny were replaced")
    equal(box.sh("cd /data && cat src/a added free moved/new; ls -d gone c src/deep src/deeper").out,
          b"fork\nfork\nfree\nn\nsrc/deeper\n")


@test(home="copy", timeout=900)
def paths_choose(box):
    family(box, script=CHANGES + " && mkfifo pipe && echo fork >'od d'")
    box.sh("cd /data && echo parent >src/a").ok()
    box.run("apply", "f", "--ours").fails("pipe", "a device, a fifo or a socket")
    box.run("apply", "f", "nothing-there").fails("has changed nothing at")
    box.run("apply", "f", "../etc").fails("no path below /data")
    equal(conflicts(box.run("apply", "f", "src", "--json")), ["src/a"])
    # A path below takes the directory that it is in, a named conflict is the fork's.
    box.run("apply", "f", "new/z", "/data/src/a", "od d", "moved").ok()
    found = box.sh("cd /data && cat new/z src/a 'od d' away/y; stat -c '%a %u' c src/b; ls -d gone")
    equal(found.ok().out, b"z\none\nmore\nfork\ny\n600 0\n644 0\ngone\n")


@test(home="copy", timeout=900)
def expect_binds_what_was_shown(box):
    family(box)
    digest = box.run("diff", "f", "--digest").ok().text.strip()
    box.sh("echo later >>/data/src/a", name="f").ok()
    box.run("apply", "f", "--expect", digest).fails("f has changed since")
    equal(box.sh("cat /data/src/a").ok().out, b"one\n")
    box.run("apply", "f", "--expect", "xyz").fails("takes a digest")
    digest = box.run("diff", "f", "--digest").ok().text.strip()
    box.run("apply", "f", "--expect", digest.upper()).ok()


@test(home="copy", timeout=900)
def refused_while_the_parent_is_busy(box):
    family(box)
    with box.up():
        box.run("apply", "f").fails("tiny is up")
    holder = box.start_sh("echo held; sleep 60")
    holder.read_until(b"held")
    box.run("apply", "f").fails("holds /data")
    holder.signal(signal.SIGTERM)
    holder.wait()
    box.run("apply", "tiny").fails("is no fork")


@test(home="copy", timeout=900)
def two_applies_at_once(box):
    family(box)
    first, second = box.start("apply", "f"), box.start("apply", "f")
    results = [first.wait(), second.wait()]
    codes = sorted(each.code for each in results)
    check(codes in ([0, 0], [0, 125]), *results)
    if codes == [0, 125]:
        next(each for each in results if each.code).fails("holds /data")
    equal(state(box), state(box, "f"))


@test(home="copy", timeout=900)
def undo_is_refused_when_something_has_changed(box):
    family(box)
    box.run("apply", "f").ok()
    box.sh("true").ok()
    box.sh("echo since >/data/since").ok()
    box.run("apply", "--undo", "tiny").fails("has changed since f was applied")
    box.sh("rm /data/since").ok()
    with box.up():
        box.run("apply", "--undo", "tiny").fails("tiny is up")
    # The very same state is the same, however often a machine was started.
    box.run("apply", "--undo", "tiny").ok()
    equal(box.sh("ls -d /data/gone").ok().out, b"/data/gone\n")
    # What was undone is an archive, and the fork can be discarded and all goes on.
    archives = json.loads(box.run("snapshot", "tiny", "-l", "--json").ok().out)
    check(any(each["automatic"] for each in archives), archives)
    box.run("discard", "--yes", "f").ok()
    newest = [each["label"] for each in archives if each["automatic"]][-1]
    box.run("restore", "--yes", "tiny", newest).ok()
    equal(box.sh("cat /data/new/z").ok().out, b"z\n")


@test(home="copy", timeout=900)
def undo_after_the_fork_is_gone(box):
    family(box)
    before = state(box)
    box.run("apply", "f").ok()
    box.run("discard", "--yes", "f").ok()
    box.run("apply", "--undo", "tiny").ok()
    equal(state(box), before)


@test(home="copy", timeout=900)
def upwards_twice(box):
    family(box, script="echo f >/data/f")
    box.run("fork", "f", "g").ok()
    box.sh("echo g >/data/g; rm -r /data/gone", name="g").ok()
    box.run("apply", "g").ok()
    equal(box.sh("cat /data/f /data/g", name="f").ok().out, b"f\ng\n")
    box.run("apply", "f").ok()
    equal(state(box), state(box, "g"))
    # The fork between is still a fork, also after an undo.
    box.run("apply", "--undo", "g").ok()
    equal(box.run("diff", "f").ok().out, b"A f\n")


@test(home="copy", timeout=1500)
def many_applies_fit_into_a_chain(box):
    box.sh(BASE).ok()
    for number in range(8):
        box.run("fork", "tiny", "f").ok()
        box.sh(f"echo {number} >/data/n{number}", name="f").ok()
        box.run("apply", "f").ok()
        box.run("discard", "--yes", "f").ok()
    equal(box.sh("cat /data/n*").ok().out, b"0\n1\n2\n3\n4\n5\n6\n7\n")
    check(len(os.listdir(box.path("sandboxes", "tiny", "data"))) < 9)


@test(home="copy", timeout=2400, long=True)
def killed_at_any_instant(box):
    """The parent is as before or as after, never in between, and nothing is left behind."""
    family(box)
    before, dice = state(box), random.Random(7)
    began = time.monotonic()
    box.run("apply", "f").ok()
    took, after = time.monotonic() - began, state(box)
    box.run("apply", "--undo", "tiny").ok()
    seen = set()
    for number in range(KILLS):
        running = box.start("apply", "f")
        # The end is where it matters most.
        time.sleep(took * dice.uniform(0.0, 1.1) if number % 2 else took * dice.uniform(0.7, 1.1))
        running.signal(signal.SIGKILL)
        running.wait()
        wait_until("the machines are gone", lambda: not box.machines(), 30)
        now = state(box)
        check(now in (before, after), f"kill {number}: neither before nor after:\n{now}")
        seen.add(now == after)
        if now == after:
            box.run("apply", "--undo", "tiny").ok()
            equal(state(box), before)
    # The step itself: the state before has just become an archive.
    folder = box.path("sandboxes", "tiny", "archive")
    for number in range(STEP_KILLS):
        known = set(os.listdir(folder))
        running = box.start("apply", "f")
        end = time.monotonic() + 120
        while not any(each.startswith("undo-") for each in set(os.listdir(folder)) - known):
            check(time.monotonic() < end, "no apply comes to its step")
        time.sleep(number * 0.0005)
        running.signal(signal.SIGKILL)
        running.wait()
        now = state(box)
        check(now in (before, after), f"kill at the step: neither before nor after:\n{now}")
        if now == after:
            box.run("apply", "--undo", "tiny").ok()
        else:
            # A note of what did not happen undoes nothing.
            box.run("apply", "--undo", "tiny").fails()
            equal(state(box), before)
    # A new apply finds its way, and a sweep has removed what was begun.
    box.run("apply", "f").ok()
    equal(state(box), after)
    left = [each for each in os.listdir(box.path("sandboxes", "tiny")) if "new-" in each]
    equal(left, [])
