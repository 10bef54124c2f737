"""Every example under examples/ builds and runs."""

import os

from lib import TOP, check, contains, equal, mirror_reason, skip, test
from test_net import PUBLIC, Net

# name: (whether it needs a Debian mirror, shell script, its output)
EXAMPLES = {
    "tiny": (False, "echo $((6 * 7))", "42\n"),
    "python": (True, "python3 -c 'print(6*7)'", "42\n"),
    "node": (True, "node -e 'console.log(6*7)'", "42\n"),
    "git": (True, "cd /data && git init -q r && cd r && git config user.email a@example.org && "
            "git config user.name a && echo x > f && git add f && git commit -qm one && "
            "git log --format=%s && rm -rf /data/r", "one\n"),
    "network": (False, "wget -q -O - http://example.org/; wget -q -O - http://example.com/ || echo no",
                f"hello from {PUBLIC}\nno\n"),
}


def run_example(box, name):
    with_mirror, script, output = EXAMPLES[name]
    reason = mirror_reason() if with_mirror else None
    if reason:
        skip(reason)
    box.run("new", name, "--from", name).ok()
    box.run("build", name, timeout=850).ok()
    equal(box.sh(script, name=name).ok().text, output)
    box.clean()
    check(box.run("build", name).ok().seconds < 2, "a second build does not see that all is there")


@test(home="empty", timeout=300)
def tiny(box):
    run_example(box, "tiny")


@test(home="empty", timeout=900, long=True)
def python(box):
    run_example(box, "python")


@test(home="empty", timeout=900, long=True)
def node(box):
    run_example(box, "node")


@test(home="empty", timeout=900, long=True)
def git(box):
    run_example(box, "git")


@test(home="empty", timeout=300)
def network(box):
    Net(box)
    run_example(box, "network")
    contains(box.run("net", "network", "--learn").ok().text,
             'network:\n  allow:\n    - "example.org:80"\n')


@test(home="empty")
def every_example_is_tested(box):
    found = {os.path.splitext(name)[0] for name in os.listdir(os.path.join(TOP, "examples"))
             if name not in ("README.md", "meson.build")}
    equal(found, set(EXAMPLES), "examples")
