"""Two releases of the same sources, built under circumstances that are as different as can be had,
must be equal to the last byte."""

import hashlib
import os
import stat
import subprocess
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TESTS = []

# Long before any of these files was written. A time to come is refused by meson.
OLD = 1_000_000_000
# On one slow processor the two builds take this long at the very worst.
TIMEOUT = 900

# Preloaded into every program of the second build: three years and some days later.
OTHER_CLOCK = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#define LATER 98765432

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, now);

	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
		now->tv_sec += LATER;
	}
	return rc;
}

time_t time(time_t *ret_now)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (ret_now) {
		*ret_now = now.tv_sec;
	}
	return now.tv_sec;
}

int gettimeofday(struct timeval *restrict ret_now, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	ret_now->tv_sec = now.tv_sec;
	ret_now->tv_usec = now.tv_nsec / 1000;
	return 0;
}
"""


def test(function):
    """Marks a test, which is given the pair of builds."""
    TESTS.append(function)
    return function


def check(condition, *what):
    """Fails with what when the condition does not hold."""
    if not condition:
        raise AssertionError(" ".join(str(each) for each in what))


def copy_sources(folder, modified, umask):
    """The tree without what was built, made with times and modes as another checkout would."""
    os.makedirs(folder)
    kept = [name for name in sorted(os.listdir(TOP)) if not name.startswith(("build", "."))]
    pack = subprocess.Popen(["tar", "-C", TOP, "--exclude=__pycache__", "-cf", "-", *kept],
                            stdout=subprocess.PIPE)
    subprocess.run(["tar", "-C", folder, "-xf", "-", "--no-same-permissions", "--no-same-owner",
                    "--touch"], stdin=pack.stdout, check=True, umask=umask)
    check(pack.wait() == 0, "cannot copy the sources")
    for parent, _, names in os.walk(folder):
        for name in names:
            os.utime(os.path.join(parent, name), (modified, modified), follow_symlinks=False)


def make_clock(folder):
    """The library that changes the clock. Fails when it does not."""
    library = os.path.join(folder, "clock.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-o", library, "-"],
                   input=OTHER_CLOCK, text=True, check=True)
    years = [subprocess.run(["date", "+%Y"], env={**os.environ, **more}, check=True, text=True,
                            capture_output=True).stdout for more in ({}, {"LD_PRELOAD": library})]
    check(int(years[1]) >= int(years[0]) + 3, "the other clock is not another one:", years)
    return library


class Pair:
    """The two builds. They are made when the first test asks for them."""

    def __init__(self, folder):
        self.folder = folder
        self._roots = None

    def roots(self):
        """The installed trees of both."""
        if self._roots is None:
            # A second question after a failure must not build once more.
            self._roots = []
            self._roots = self._build()
        check(self._roots, "the release could not be built")
        return self._roots

    @property
    def root(self):
        """The installed tree of the first, below its prefix."""
        return os.path.join(self.roots()[0], "root/usr/local")

    def _build(self):
        one = os.path.join(self.folder, "a")
        other = os.path.join(self.folder, "another-place/that-has/a-longer-name/than-the-first")
        copy_sources(one, time.time(), 0o022)
        copy_sources(other, OLD, 0o077)
        clean = {key: value for key, value in os.environ.items()
                 if not key.startswith(("BOX_", "MAKE", "MFLAGS", "MESON", "LD_"))}
        # What a caller may have in the environment must not change a release.
        spoiled = {**clean, "CC": "clang", "CFLAGS": "-O0 -DNDEBUG", "LDFLAGS": "-Wl,-z,lazy",
                   "CPPFLAGS": "-DOTHER", "SOURCE_DATE_EPOCH": "86400"}
        home = os.path.join(self.folder, "other-home")
        os.makedirs(home)
        different = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CC": "gcc", "HOME": home,
                     "LC_ALL": "POSIX", "LANG": "de_DE.UTF-8", "TZ": "Pacific/Kiritimati",
                     "USER": "somebody", "LOGNAME": "somebody", "SOURCE_DATE_EPOCH": "86400",
                     "HOSTNAME": "elsewhere", "LD_PRELOAD": make_clock(self.folder)}
        running = [
            subprocess.Popen(["scripts/release", *arguments], cwd=folder, env=environment,
                             umask=umask, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="backslashreplace")
            for folder, arguments, environment, umask in (
                (one, [], spoiled, 0o022), (other, ["--as-is"], different, 0o077))]
        said = [process.communicate(timeout=TIMEOUT)[0] for process in running]
        for process, text in zip(running, said):
            check(process.returncode == 0, process.args, text)
        return [os.path.join(each, "build-release") for each in (one, other)]


def describe(folder):
    """{path: (kind and mode, digest or target of a link)} of everything below a folder."""
    found = {}
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            content = ""
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            found[os.path.relpath(path, folder)] = (oct(mode), content)
    return found


def differences(one, other):
    """What two trees differ in, one line for each file."""
    left, right = describe(one), describe(other)
    return [f"{path}: {left.get(path, 'missing')} and {right.get(path, 'missing')}"
            for path in sorted(left.keys() | right.keys()) if left.get(path) != right.get(path)]


@test
def two_builds_are_equal(pair):
    """Every installed file, byte for byte, with its mode."""
    one, other = (os.path.join(each, "root") for each in pair.roots())
    for name in ("bin/box", "libexec/box/box-guest", "libexec/box/tiny.tar",
                 "share/man/man1/box.1", "share/box/box.cdx.json", "share/box/fetch-kernel"):
        check(os.path.getsize(os.path.join(one, "usr/local", name)) > 0, name, "is empty")
    found = differences(one, other)
    check(not found, "\n".join(found))


@test
def two_archives_are_equal(pair):
    """The archives and the list of digests, which must be true as well."""
    contents = []
    for folder in pair.roots():
        names = sorted(name for name in os.listdir(folder) if name.endswith(".tar.gz"))
        check(len(names) == 1, names)
        with open(os.path.join(folder, names[0]), "rb") as file:
            archive = file.read()
        with open(os.path.join(folder, "SHA256SUMS"), encoding="utf-8") as file:
            sums = file.read()
        check(f"{hashlib.sha256(archive).hexdigest()}  {names[0]}\n" in sums, "a wrong digest")
        contents.append((names, archive, sums))
        listed = {line.split("  ", 1)[1] for line in sums.splitlines()} - set(names)
        root = os.path.join(folder, "root/usr/local")
        check(listed == {path for path, (mode, _) in describe(root).items()
                         if stat.S_ISREG(int(mode, 8))}, "not every file is listed:", sums)
    check(contents[0] == contents[1], "the archives or their digests differ")


@test
def nothing_of_the_builder_is_in_it(pair):
    """No file holds the name of a folder that it was built in."""
    for folder in pair.roots():
        place = os.path.dirname(folder).encode()
        for parent, _, names in os.walk(os.path.join(folder, "root")):
            for name in names:
                with open(os.path.join(parent, name), "rb") as file:
                    check(place not in file.read(), f"{name} holds", place.decode())


@test
def a_difference_is_seen(pair):
    """The comparison itself: another byte, another mode, a file more."""
    one, other = (os.path.join(pair.folder, name) for name in ("left", "right"))
    for folder in (one, other):
        os.makedirs(folder)
        with open(os.path.join(folder, "file"), "w", encoding="utf-8") as file:
            file.write("same")
        os.chmod(os.path.join(folder, "file"), 0o644)
    check(differences(one, other) == [], differences(one, other))
    os.chmod(os.path.join(other, "file"), 0o755)
    check(len(differences(one, other)) == 1, "a mode")
    os.chmod(os.path.join(other, "file"), 0o644)
    with open(os.path.join(other, "file"), "w", encoding="utf-8") as file:
        file.write("sane")
    check(len(differences(one, other)) == 1, "a byte")
    with open(os.path.join(one, "more"), "w", encoding="utf-8"):
        pass
    check(len(differences(one, other)) == 2, "a file")
