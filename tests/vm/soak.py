#!/usr/bin/env python3
"""An agent at work: hours of edits, tests, searches and copies through one machine that stays up.

    tests/vm/soak.py [MINUTES]          60 by default; BOX names the program

It plays what a coding agent does: it writes files through stdin, copies trees in and out, runs
programs that pass, fail, hang and flood, starts servers that stay, reads outputs again from the
log, and opens many commands at once. Every answer is checked against what it must be. At the end,
and every few minutes, it looks for growth: the keeper's memory and descriptors, processes and
memory inside, and for anything that took too long. Exits with 1 at the first thing that is wrong.
"""

import concurrent.futures
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import lib  # noqa: E402  (the folder must be known first)

# Nothing here takes longer than this on a machine that is not stuck.
HANG_SECONDS = 120
LOOK_EVERY_SECONDS = 120
# What caches of the allocator may grow by.
KEEPER_GROWTH = 4 * lib.MIB
GUEST_GROWTH = 24 * lib.MIB


class Agent:
    def __init__(self, home, name):
        self.environment = dict(os.environ, BOX_HOME=home)
        self.home, self.name = home, name
        self.random = random.Random(4711)
        self.folder = tempfile.mkdtemp(prefix="soak-", dir=home)
        self.count = 0
        self.slowest = (0.0, "")

    def box(self, *words, given=None, wanted=0):
        began = time.monotonic()
        self.count += 1
        result = subprocess.run([lib.BOX, *words], input=given, capture_output=True,
                                env=self.environment, timeout=HANG_SECONDS)
        took = time.monotonic() - began
        self.slowest = max(self.slowest, (took, " ".join(words[:6])))
        if wanted is not None and result.returncode != wanted:
            raise lib.Failed(f"{words}: exit code {result.returncode}, wanted {wanted}: "
                             f"{lib.short(result.stderr)}")
        return result

    def run(self, *command, options=(), given=None, wanted=0):
        if given is not None:
            options = (*options, "-i")
        return self.box("exec", *options, self.name, "--", *command, given=given, wanted=wanted)

    # What an agent does, one function each.

    def edit(self):
        text = "".join(f"line {self.random.random()}\n" for _ in range(200)).encode()
        self.run("sh", "-c", "mkdir -p /tmp/work && cat > /tmp/work/file.txt", given=text)
        self.run("sed", "-i", "s/line/LINE/", "/tmp/work/file.txt")
        lib.equal(self.run("cat", "/tmp/work/file.txt").stdout, text.replace(b"line", b"LINE"))

    def search(self):
        out = self.run("sh", "-c", "find / -xdev -type f 2>/dev/null | head -500 | wc -l").stdout
        lib.check(int(out) > 0, "nothing found")

    def test_fails(self):
        code = self.random.choice([1, 2, 42, 255])
        result = self.run("sh", "-c", f"echo testing; echo wrong >&2; exit {code}", wanted=code)
        lib.equal((result.stdout, result.stderr), (b"testing\n", b"wrong\n"))

    def test_hangs(self):
        self.run("sleep", "1000", options=("--timeout", "1"), wanted=124)

    def floods(self):
        size = self.random.choice([100_000, 1_000_000])
        out = self.run("head", "-c", str(size), "/dev/zero").stdout
        lib.equal(len(out), size)

    def binary(self):
        data = self.random.randbytes(300_000)
        lib.equal(hashlib.sha256(self.run("cat", given=data).stdout).digest(),
                  hashlib.sha256(data).digest())

    def copies(self):
        tree = os.path.join(self.folder, "tree")
        shutil.rmtree(tree, ignore_errors=True)
        os.makedirs(os.path.join(tree, "sub"))
        for number in range(20):
            with open(os.path.join(tree, "sub", f"f{number}"), "wb") as file:
                file.write(self.random.randbytes(self.random.randrange(20_000)))
        back = os.path.join(self.folder, "back")
        shutil.rmtree(back, ignore_errors=True)
        self.run("rm", "-rf", "/tmp/tree")
        self.box("cp", tree, f"{self.name}:/tmp/tree")
        self.box("cp", f"{self.name}:/tmp/tree", back)
        lib.equal(subprocess.run(["diff", "-r", tree, back]).returncode, 0, "copies")

    def server(self):
        known = self.box("exec", "--detach", self.name, "--", "sh", "-c",
                         "echo serving; sleep 600").stdout.decode().strip()
        lib.check(known in self.box("ps", self.name).stdout.decode(), "ps does not list it")
        lib.wait_until("its first output", lambda: self.box(
            "logs", self.name, known, wanted=None).stdout == b"serving\n", 20)
        self.box("kill", self.name, known)
        lib.wait_until("the server to end", lambda: known not in
                       self.box("ps", self.name).stdout.decode(), 20)
        lib.equal(self.box("logs", self.name, known).stdout, b"serving\n")

    def many(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(self.run, "sh", "-c", f"echo {number}; exit {number % 7}",
                                wanted=number % 7) for number in range(24)]
            for number, job in enumerate(jobs):
                lib.equal(job.result().stdout, f"{number}\n".encode())

    def lost(self):
        process = subprocess.Popen([lib.BOX, "exec", self.name, "--", "sleep", "999"],
                                   env=self.environment, stdout=subprocess.DEVNULL)
        time.sleep(0.3)
        process.kill()
        process.wait()

    def keeps(self):
        self.run("sh", "-c", "echo x >> /data/count; sync")

    # What must not grow.

    def look(self):
        self.box("ps", "--json", self.name)
        row, = lib.json.loads(self.box("ls", "--json").stdout)
        pid = self.keeper()
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            keeper = int(file.read().split()[1]) * 4096
        inside = self.run("sh", "-c", "grep -E '^(MemAvailable|MemTotal)' /proc/meminfo; "
                          "ls -d /proc/[0-9]* | wc -l").stdout.split()
        return {"keeper": keeper, "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "guest": (int(inside[1]) - int(inside[4])) * 1024,
                "processes": int(inside[-1]), "monitor": row["memory_bytes"]}

    def keeper(self):
        """The keeper's process, known by its environment."""
        wanted = b"BOX_HOME=" + self.home.encode()
        for each in lib.processes().values():
            try:
                with open(f"/proc/{each.pid}/environ", "rb") as file:
                    if each.name == "box-keeper" and wanted in file.read().split(b"\0"):
                        return each.pid
            except OSError:
                continue
        raise lib.Failed("there is no keeper")


def compare(first, now):
    lib.check(now["keeper"] <= first["keeper"] + KEEPER_GROWTH, f"keeper grew: {first} {now}")
    lib.check(now["descriptors"] <= first["descriptors"] + 3, f"descriptors: {first} {now}")
    lib.check(now["processes"] <= first["processes"] + 3, f"processes inside: {first} {now}")
    lib.check(now["guest"] <= first["guest"] + GUEST_GROWTH, f"guest grew: {first} {now}")


def work(agent, minutes):
    tasks = [agent.edit, agent.search, agent.test_fails, agent.floods, agent.binary, agent.copies,
             agent.server, agent.many, agent.lost, agent.keeps, agent.test_hangs]
    end = time.monotonic() + minutes * 60
    for task in tasks * 2:
        task()
    time.sleep(2)
    first = agent.look()
    next_look = time.monotonic() + LOOK_EVERY_SECONDS
    while time.monotonic() < end:
        agent.random.choice(tasks)()
        if time.monotonic() >= next_look:
            time.sleep(2)
            now = agent.look()
            print(f"{agent.count} commands, slowest {agent.slowest[0]:.1f} s "
                  f"({agent.slowest[1]}): {now}", flush=True)
            compare(first, now)
            next_look = time.monotonic() + LOOK_EVERY_SECONDS
    time.sleep(2)
    now = agent.look()
    compare(first, now)
    print(f"done: {agent.count} commands; at first {first}; at last {now}; "
          f"slowest {agent.slowest[0]:.1f} s ({agent.slowest[1]})", flush=True)


def main():
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    home = tempfile.mkdtemp(prefix="box-soak-")
    name = "agent"
    agent = None
    try:
        environment = dict(os.environ, BOX_HOME=home)
        subprocess.run([lib.BOX, "new", name], env=environment, check=True,
                       stdout=subprocess.DEVNULL)
        with open(os.path.join(home, "sandboxes", name, "Boxfile"), "w", encoding="ascii") as file:
            file.write("base: tiny\nram_mib: 256\ndata_size: 64M\n")
        subprocess.run([lib.BOX, "build", name], env=environment, check=True,
                       stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        agent = Agent(home, name)
        agent.box("up", name)
        work(agent, minutes)
        agent.box("down", name)
    finally:
        subprocess.run([lib.BOX, "down", name], env=dict(os.environ, BOX_HOME=home),
                       capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    try:
        main()
    except lib.Failed as error:
        sys.exit(f"soak: {error}")
