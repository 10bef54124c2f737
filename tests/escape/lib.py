"""What the tests of the escape suite share: calls of it, in a network of their own."""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "security/escape"))

import naming  # noqa: E402  (the folder must be known first)

# Reserved addresses that lead to this host while it is tried, so that a box-net that would connect to
# them is seen, and no packet leaves.
ADDRESSES = ("169.254.169.254/32", "10.0.0.1/32", "172.17.0.1/32", "192.168.1.1/32", "fd00::1/128")


def own_network():
    """A network of this process and those that it starts from now on, without a way out. Returns the
    socket of its resolver."""
    resolver = naming.make_network()
    for address in ADDRESSES:
        subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)
    return resolver


class Place:
    """A folder with a copy of box and of the suite, which a normal user can read."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="box-escape-")
        os.chmod(self.folder, 0o755)
        prefix = os.path.dirname(os.path.dirname(os.path.realpath(program)))
        subprocess.run(["cp", "-a", prefix, os.path.join(self.folder, "prefix")], check=True)
        subprocess.run(["cp", "-a", os.path.join(TOP, "security"), self.folder], check=True)
        self.user = None

    def make_user(self):
        """A fresh user with subordinate IDs, as useradd makes it."""
        name = f"boxescape{os.getpid()}"
        home = os.path.join(self.folder, "user")
        subprocess.run(["useradd", "-m", "-d", home, name], check=True, capture_output=True)
        self.user = pwd.getpwnam(name)

    def start(self, arguments, user=None, environment=None):
        """The suite, with these arguments, in a network of its own; its stdout has what it prints."""
        resolver = own_network()
        command = [os.path.join(self.folder, "security/escape-test.sh"), *arguments]
        options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [],
                   "pass_fds": [resolver.fileno()]} if user else {}
        home = user.pw_dir if user else self.folder
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("BOX_")}
        for key in ("BOX_ENGINE", "BOX_KERNEL", "BOX_MODULES"):
            if key in os.environ:
                inherited[key] = os.environ[key]
        if user:
            # Root makes a network for names by itself.
            inherited["ESCAPE_RESOLVER"] = str(resolver.fileno())
        with resolver:
            return subprocess.Popen(
                command, env={**inherited, "HOME": home, "TMPDIR": home, **(environment or {})},
                cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="backslashreplace", **options)

    @property
    def box(self):
        return os.path.join(self.folder, "prefix/bin/box")

    def close(self):
        if self.user:
            subprocess.run(["userdel", "-r", self.user.pw_name], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def place(program):
    made = Place(program)
    try:
        yield made
    finally:
        made.close()


class Tap:
    """Lines of TAP; the plan comes at the end."""

    def __init__(self):
        self.count = self.failed = 0

    def add(self, name, problem="", skip="", note=""):
        self.count += 1
        self.failed += bool(problem)
        print(f"{'not ok' if problem else 'ok'} {self.count} - {name}"
              f"{' # SKIP ' + skip if skip else ' # ' + note if note else ''}")
        for line in problem.splitlines():
            print(f"# {line}")
        print(end="", flush=True)

    def end(self):
        print(f"1..{self.count}", flush=True)
        return 1 if self.failed else 0


def read_results(text):
    """Name of a check to (state, detail), from what the suite printed. state: ok, FAILED, skipped."""
    found = {}
    for line in text.splitlines():
        state, _, rest = line.partition(" ")
        if state in ("ok", "FAILED", "skipped") and rest:
            name, _, detail = rest.partition(": ")
            found[name] = (state, detail)
    return found
