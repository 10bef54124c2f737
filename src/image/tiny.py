#!/usr/bin/env python3
"""Makes the base "tiny": a root directory around one static busybox, as a tar archive.

usage: tiny.py BUSYBOX OUTPUT

The same busybox gives the same bytes: names are sorted, owners are root (but for the home of
"agent"), and every time is 0.
"""

import io
import subprocess
import sys
import tarfile

DIRECTORIES = {
    ".": 0o755, "bin": 0o755, "data": 0o755, "dev": 0o755, "etc": 0o755, "home": 0o755,
    "mnt": 0o755, "proc": 0o555, "root": 0o700, "run": 0o755, "sbin": 0o755, "sys": 0o555,
    "tmp": 0o1777, "usr": 0o755, "usr/bin": 0o755, "usr/lib": 0o755, "usr/sbin": 0o755,
    "var": 0o755, "var/log": 0o755, "var/tmp": 0o1777,
}
AGENT_ID = 1000
AGENT_HOME = "home/agent"

FILES = {
    "etc/passwd": (0o644, "root:x:0:0:root:/root:/bin/sh\n"
                          "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
                          "agent:x:1000:1000:agent:/home/agent:/bin/sh\n"),
    "etc/group": (0o644, "root:x:0:\nnogroup:x:65534:\nagent:x:1000:\n"),
    # "!" is no hash of any password: nobody can log in by one.
    "etc/shadow": (0o640, "root:!:::::::\nnobody:!:::::::\nagent:!:::::::\n"),
    "etc/shells": (0o644, "/bin/sh\n"),
    "etc/hostname": (0o644, "tiny\n"),
    "etc/hosts": (0o644, "127.0.0.1 localhost\n::1 localhost\n"),
    "etc/profile": (0o644, "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
                           ":/sbin:/bin\numask 022\n"),
    "etc/os-release": (0o644, 'ID=tiny\nNAME="tiny"\nPRETTY_NAME="tiny (busybox)"\n'),
}


def is_static(program):
    """A program that needs a loader would not start in a root that has none."""
    header = program[:64]
    if header[:5] != b"\x7fELF\x02":
        return False
    offset = int.from_bytes(header[32:40], "little")
    size = int.from_bytes(header[54:56], "little")
    count = int.from_bytes(header[56:58], "little")
    types = (program[offset + i * size:offset + i * size + 4] for i in range(count))
    # 3 is PT_INTERP.
    return all(int.from_bytes(kind, "little") != 3 for kind in types)


def entry(name, kind, mode, owner=0):
    """One entry with nothing in it that depends on when or where it is made."""
    info = tarfile.TarInfo("./" + name if name != "." else ".")
    info.type = kind
    info.mode = mode
    info.uid = info.gid = owner
    info.mtime = 0
    return info


def main():
    """Writes the archive."""
    busybox, output = sys.argv[1:]
    with open(busybox, "rb") as file:
        program = file.read()
    if not is_static(program):
        sys.exit(f"tiny.py: {busybox} is not static: install the package busybox-static")
    listing = subprocess.run([busybox, "--list-full"], check=True, capture_output=True, text=True)
    applets = sorted(set(listing.stdout.split()) - {"bin/busybox"})
    with tarfile.open(output, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(DIRECTORIES):
            tar.addfile(entry(name, tarfile.DIRTYPE, DIRECTORIES[name]))
        tar.addfile(entry(AGENT_HOME, tarfile.DIRTYPE, 0o755, AGENT_ID))
        contents = {name: (mode, text.encode()) for name, (mode, text) in FILES.items()}
        contents["bin/busybox"] = (0o755, program)
        for name in sorted(contents):
            mode, data = contents[name]
            info = entry(name, tarfile.REGTYPE, mode)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name in applets:
            info = entry(name, tarfile.SYMTYPE, 0o777)
            info.linkname = "/bin/busybox"
            tar.addfile(info)


main()
