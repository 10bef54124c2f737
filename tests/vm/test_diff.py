"""box diff: what a fork has changed, in every form, with names that want to be something else."""

import base64
import json
import re
import subprocess

from lib import check, contains, equal, test

# What both sides begin with.
BASE = r"""
cd /data && mkdir -p src/deep gone moved && echo one >src/a && echo two >src/b && echo three >c &&
echo x >gone/x && echo y >moved/y && seq 100 >text && ln -s a src/link && chmod 600 c
"""
CHANGES = r"""
cd /data && echo more >>src/a && rm -r gone && mv moved away && chmod 755 c && chown 1000:1000 src/b &&
ln -sfn b src/link && mkdir new && echo z >new/z && rm text && mkdir text && echo t >text/t
""".strip()
LINES = [
    "M c (mode 600 -> 755)",
    "D gone (directory)",
    "D gone/x",
    "R moved -> away (directory)",
    "A new (directory)",
    "A new/z",
    "M src/a (content)",
    "M src/b (owner 0:0 -> 1000:1000)",
    "M src/link (link, target a -> b)",
    "M text (file -> directory)",
    "A text/t",
]
ODD_NAMES = [b"new\nline", b"esc\x1b[2J\x1b]0;x\x07", b"bad\xff\xfeutf", b"-rf", b" space ",
             b"quote\"'`$(x)", b"back\\slash", b"\xe2\x80\xaeturned", b"tab\t", b"x" * 255,
             b"A forged\nD c"]


def family(box, script=CHANGES, base=BASE):
    box.sh(base).ok()
    box.run("fork", "tiny", "f").ok()
    if script:
        box.sh(script, name="f").ok()


def lines(result):
    """The lines of the changes alone."""
    return result.ok().text.split("\n\n")[0].splitlines()


def make_odd(names):
    """A script that makes a file of each name."""
    made = ["cd /data"]
    for name in names:
        octal = "".join(f"\\\\{byte:03o}" for byte in name)
        made.append(f"printf '%b.' {octal!r} >/tmp/n; n=$(cat /tmp/n); n=${{n%.}}; "
                    "echo odd >\"./$n\"")
    return "\n".join(made).replace("\\\\\\\\", "\\\\").replace("\\\\", "\\0")


@test(home="copy", timeout=600)
def every_kind_of_change(box):
    family(box)
    equal(sorted(lines(box.run("diff", "f"))), sorted(LINES))
    # The same while the fork is up, of what is there at that moment.
    with box.up(name="f"):
        box.exec("echo late >/data/late", name="f").ok()
        equal(sorted(lines(box.run("diff", "f"))), sorted(LINES + ["A late"]))
    digest = box.run("diff", "f", "--digest").ok().text
    equal(len(digest.strip()), 64)
    shown = json.loads(box.run("diff", "f", "--json", "--digest").ok().text)
    equal(shown["digest"], digest.strip(), "the digest of the list that it comes with")
    check(shown["changes"], "the list comes with it")
    check("digest" not in json.loads(box.run("diff", "f", "--json").ok().text), "not asked for")
    equal(box.run("diff", "f", "--digest").ok().text, digest, "the digest of the same state")
    box.sh("cat /data/late", name="f").ok()
    equal(box.run("diff", "f", "--digest").ok().text, digest, "after a start")
    box.sh("echo later >/data/late", name="f").ok()
    check(box.run("diff", "f", "--digest").ok().text != digest, "another content, same digest")


@test(home="copy", timeout=600)
def other_forms(box):
    family(box)
    box.run("diff", "f", "--exit-code").exits(1)
    contains(box.run("diff", "f", "--stat").ok().text, re.compile(r"^ *3 added \(4 B\)$", re.M))
    found = box.run("diff", "f", "-0").ok().out.split(b"\0")
    equal(found.pop(), b"")
    pairs = []
    while found:
        kind = found.pop(0)
        pairs.append((kind, found.pop(0), found.pop(0)) if kind == b"R" else
                     (kind, found.pop(0)))
    check((b"R", b"moved", b"away") in pairs and (b"D", b"gone") in pairs, pairs)
    equal(len(pairs), len(LINES))
    box.run("diff", "f", "--stat", "--json").fails("more than one form")
    # What is shown and its digest come out of one run.
    digest = box.run("diff", "f", "--digest").ok().text
    listed = box.run("diff", "f", "--list", "--digest").ok().text
    equal(listed, box.run("diff", "f").ok().text + "digest: " + digest)
    contains(box.run("diff", "f", "--stat", "--digest").ok().text, "digest: " + digest)
    box.run("diff", "f", "--patch", "--digest").fails("--digest does not go with --patch")
    patch = box.run("diff", "f", "--patch").ok().out
    contains(patch, "diff --git a/src/a b/src/a\n--- a/src/a\n+++ b/src/a\n@@ -1 +1,2 @@\n one\n+more\n")
    contains(patch, "rename from moved\nrename to away\n")
    contains(patch, "deleted file mode 100644\n--- a/gone/x\n+++ /dev/null\n")
    contains(patch, "old mode 100600\nnew mode 100755\n")
    box.run("diff", "tiny").fails("is no fork")
    box.run("diff", "nobody").fails("nobody")


@test(home="copy", timeout=600)
def a_fork_without_changes(box):
    family(box, script=None)
    equal(box.run("diff", "f").ok().out, b"")
    equal(box.run("diff", "f", "--exit-code").ok().out, b"")
    equal(box.run("diff", "f", "--json").ok().json()["changes"], [])


@test(home="copy", timeout=600)
def names_forge_nothing(box):
    family(box, script=make_odd(ODD_NAMES))
    result = box.run("diff", "f").ok()
    equal(len(lines(result)), len(ODD_NAMES))
    for line in lines(result):
        check(line.startswith("A "), line)
    check(all(32 <= byte < 127 or byte == 10 for byte in result.out.replace(b"x" * 255, b"")),
          result)
    found = box.run("diff", "f", "-0").ok().out.split(b"\0")[1::2]
    equal(sorted(found), sorted(ODD_NAMES))
    names = []
    for each in box.run("diff", "f", "--json").ok().json()["changes"]:
        names.append(base64.b64decode(each["path_base64"]) if "path_base64" in each
                     else each["path"].encode())
    equal(sorted(names), sorted(ODD_NAMES))
    patch = box.run("diff", "f", "--patch").ok().out
    equal(len(re.findall(rb"^diff --git ", patch, re.M)), len(ODD_NAMES))
    contains(patch, r'+++ "b/new\nline"' + "\n")
    check(b"\x1b" not in patch, "an escape code of a name is in the patch")


@test(home="copy", timeout=600)
def content_does_not_drive_a_terminal(box):
    family(box, script=r"printf 'red\033[31m\n' >>/data/src/a; printf '\0' >/data/binary")
    piped = box.run("diff", "f", "--patch").ok().out
    contains(piped, "Binary files differ")
    check(b"+red\x1b[31m\n" in piped, "bytes in a pipe are as they are", piped)
    code, shown = box.terminal("diff", "f", "--patch").wait(120)
    equal(code, 0, shown)
    check(b"\x1b[31m" not in shown and b"red\\e[31m" in shown, shown)


@test(home="copy", timeout=600)
def a_patch_is_one_for_git(box):
    """What git makes of the patch is what the fork has."""
    family(box, script=r"cd /data && echo more >>src/a && rm -r gone && seq 200 >text && "
                       r"printf 'no newline' >'with space' && seq 3 >'q\"uote'")
    folder = box.home + ".files"
    box.run("data", "export", "tiny", folder).ok()
    patch = box.run("diff", "f", "--patch").ok().out
    # A directory is nothing to git.
    parts = [each for each in re.split(rb"(?m)^(?=diff --git )", patch) if b" directory mode" not in each]
    applied = subprocess.run(["git", "apply", "-"], input=b"".join(parts), cwd=folder,
                             capture_output=True)
    equal(applied.returncode, 0, applied.stderr)
    with open(folder + "/text", encoding="ascii") as file:
        equal(len(file.read().splitlines()), 200)
    with open(folder + "/with space", encoding="ascii") as file:
        equal(file.read(), "no newline")
    subprocess.run(["rm", "-r", folder], check=True)


@test(home="copy", timeout=600)
def what_deserves_a_look(box):
    family(box, script=r"""
cd /data && mkdir -p .git/hooks .github/workflows && echo x >.git/hooks/pre-commit &&
echo x >.git/config && echo x >.github/workflows/ci.yml && echo x >.bashrc && echo x >plain &&
echo x >run && chmod 755 run && echo x >su && chmod 4755 su && ln -s /etc/passwd absolute &&
ln -s ../etc/passwd out && ln -s ../data inside-by-name && ln -s src/a fine && mkfifo pipe
""")
    found = {each["path"]: each["risks"]
             for each in box.run("diff", "f", "--json").ok().json()["changes"] if each["risks"]}
    wanted = {
        ".git/hooks": ["git"], ".git/hooks/pre-commit": ["git"], ".git/config": ["git"],
        ".github/workflows": ["ci"], ".github/workflows/ci.yml": ["ci"], ".bashrc": ["start-up"],
        "run": ["executable"], "su": ["executable", "setid"], "absolute": ["link-absolute"],
        "out": ["link-out"], "inside-by-name": ["link-out"], "pipe": ["special"],
    }
    equal(found, wanted)
    text = box.run("diff", "f").ok().text
    contains(text, "! su: can be executed; runs with the rights of its owner")
    check(json.dumps(found).count("plain") == 0)
