"""The commands of README.md, word for word.

Every block marked `sh` is run by bash, one after the other, in one BOX_HOME, in the folder of the
checkout, with the tested box first in PATH. When a block marked `text` follows at once, it is what
the commands must print; a line `…` in it stands for any number of lines. A block below a line

    <!-- not run: REASON -->

is left out. tests/lint holds README.md to these marks.
"""

import os
import re
import subprocess
import tempfile

from lib import PREFIX, TOP, Failed, check, contains, mirror_reason, skip, test


def blocks(text):
    """[(line, script, expected output or None, reason not to run or None)]"""
    found = []
    pattern = re.compile(r"(?:<!-- not run: (?P<reason>.*?) -->\n)?```(?P<kind>\w*)\n(?P<body>.*?)^```$",
                         re.S | re.M)
    previous_end = None
    for match in pattern.finditer(text):
        line = text.count("\n", 0, match.start("body"))
        between = text[previous_end:match.start()] if previous_end is not None else "x"
        if match["kind"] == "sh":
            found.append([line, match["body"], None, match["reason"]])
        elif match["kind"] == "text" and found and not between.strip():
            found[-1][2] = match["body"]
        previous_end = match.end()
    return found


def output_pattern(expected):
    parts = [r"(?:.*\n)*?" if line.strip() in ("…", "...") else re.escape(line) + "\n"
             for line in expected.splitlines()]
    return re.compile("".join(parts) + r"\Z")


@test(home="empty", timeout=1200, long=True)
def its_commands_work(box):
    path = os.path.join(TOP, "README.md")
    check(os.path.exists(path), "no README.md")
    with open(path, encoding="utf-8") as file:
        found = blocks(file.read())
    run = [each for each in found if each[3] is None]
    check(run, "README.md has no block of commands that is run")
    reason = mirror_reason()
    if reason and any("--from" in each[1] for each in run):
        skip(reason)
    environment = box.environ({"PATH": f"{PREFIX}/bin:{os.environ['PATH']}"})
    # An empty folder, as a new user may be in any; what they make there goes with it.
    with tempfile.TemporaryDirectory() as folder:
        for line, script, expected, _ in run:
            result = subprocess.run(["bash", "-euo", "pipefail", "-c", script], env=environment,
                                    cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                                    text=True, timeout=900)
            if result.returncode:
                raise Failed(f"README.md:{line}: exit code {result.returncode}\n{script}\n"
                             f"{result.stdout}\n{result.stderr}")
            if expected is not None:
                contains(result.stdout, output_pattern(expected), f"README.md:{line}:")
    box.clean()
