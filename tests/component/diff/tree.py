"""Two states of one ext4, what differs between them found the slow way, and random edits.

The comparison here shares nothing with the one that is tested: it reads both trees in full and
pairs them path by path.
"""

import ctypes
import ctypes.util
import hashlib
import os
import random
import shutil
import stat
import struct
import subprocess

ADDED, DELETED, MODIFIED, RENAMED = 1, 2, 3, 4
CONTENT, TYPE, MODE, OWNER, TARGET, XATTRS = 1, 2, 4, 8, 16, 32
KINDS = {ADDED: "A", DELETED: "D", MODIFIED: "M", RENAMED: "R"}
# What box-image makes /data with.
FEATURES = "^resize_inode,^uninit_bg,metadata_csum,64bit,flex_bg,extents,dir_index"
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
LIBC = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)


class Handle(ctypes.Structure):
    """struct file_handle with room for ext4's."""
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


def identity(path):
    """(inode, generation) of what is at path itself."""
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if LIBC.name_to_handle_at(-100, path, ctypes.byref(handle), ctypes.byref(mount), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at", path)
    return struct.unpack("<II", bytes(handle.data[:8]))


class Node:
    """What a path is."""

    def __init__(self, path):
        status = os.lstat(path)
        self.id = identity(path)
        self.type = {stat.S_IFREG: 1, stat.S_IFDIR: 2, stat.S_IFLNK: 3, stat.S_IFIFO: 5,
                     stat.S_IFSOCK: 6}.get(stat.S_IFMT(status.st_mode), 4)
        self.mode = stat.S_IMODE(status.st_mode)
        self.owner = (status.st_uid, status.st_gid)
        self.size = status.st_size if self.type == 1 else 0
        self.content = self.target = None
        self.xattrs = {}
        if self.type == 1:
            with open(path, "rb") as file:
                self.content = hashlib.sha256(file.read()).digest()
        if self.type == 3:
            self.target = os.readlink(path)
        if self.type in (1, 2):
            self.xattrs = {name: os.getxattr(path, name) for name in os.listxattr(path)
                           if name.startswith("user.") or name == "security.capability"}

    def state(self):
        """What a copy of it has as well."""
        return (self.type, self.mode, self.owner, self.size, self.content, self.target,
                tuple(sorted(self.xattrs.items())))


def snapshot(top):
    """Every path below top (bytes) and the root as b"."."""
    nodes = {b".": Node(top)}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            nodes[os.path.relpath(path, top)] = Node(path)
    if b"lost+found" in nodes and not os.listdir(top + b"/lost+found"):
        del nodes[b"lost+found"]
    return nodes


def parent(path):
    """The directory that a path is in; the root is in none."""
    if path == b".":
        return None
    return os.path.dirname(path) or b"."


def join(folder, name):
    return name if folder == b"." else folder + b"/" + name


def children(nodes):
    """Names in each directory."""
    result = {path: set() for path, node in nodes.items() if node.type == 2}
    for path in nodes:
        if path != b".":
            result[parent(path)].add(os.path.basename(path))
    return result


def pair(old, new, old_path, new_path, partner):
    """Pairs two directories' names, and what is in those that are directories on both sides."""
    names, old_names = children(new), children(old)
    taken = set(partner.values())
    waiting = [(old_path, new_path)]
    while waiting:
        before, now = waiting.pop()
        for name in names[now] & old_names[before]:
            a, b = join(before, name), join(now, name)
            if a in taken or b in partner:
                continue
            partner[b] = a
            if old[a].type == new[b].type == 2:
                waiting.append((a, b))


def differences(before, after):
    """Flags of two nodes."""
    if before.type != after.type:
        return TYPE
    flags = MODE if before.mode != after.mode else 0
    flags |= OWNER if before.owner != after.owner else 0
    flags |= CONTENT if before.content != after.content else 0
    flags |= TARGET if before.target != after.target else 0
    return flags | (XATTRS if before.xattrs != after.xattrs else 0)


def expected(old, new):
    """{path: (kind, flags, from)}: what change.h says there is to tell."""
    partner = {b".": b"."}
    pair(old, new, b".", b".", partner)
    renames = set()
    by_id = {node.id: path for path, node in old.items() if node.type == 2}
    for path in sorted(new):
        before = by_id.get(new[path].id) if new[path].type == 2 else None
        if before and path not in partner and before not in partner.values():
            partner[path] = before
            renames.add(path)
            pair(old, new, before, path, partner)
    taken = set(partner.values())
    loose = {}
    for path in sorted(set(old) - taken):
        if old[path].type != 2:
            loose.setdefault((old[path].id, old[path].type), path)
    for path in sorted(set(new) - set(partner)):
        before = loose.pop((new[path].id, new[path].type), None)
        if new[path].type != 2 and before is not None:
            partner[path] = before
            renames.add(path)
    records = {}
    for path, node in new.items():
        before = partner.get(path)
        if before is None:
            records[path] = (ADDED, 0, b"")
            continue
        flags = differences(old[before], node)
        if path in renames:
            records[path] = (RENAMED, flags, before)
        elif flags:
            records[path] = (MODIFIED, flags, b"")
    now = {before: path for path, before in partner.items()}

    def place(path):
        return now[path] if path in now else join(place(parent(path)), os.path.basename(path))

    for path in set(old) - set(now):
        assert place(path) not in records, (path, place(path))
        records[place(path)] = (DELETED, 0, b"")
    return records


# ---- Images ----

def run(*command, **options):
    return subprocess.run(command, check=True, **options)


class Disk:
    """An image with an ext4, on a loop device, mounted where and while it is wanted."""

    def __init__(self, image, mount):
        self.image = image
        self.mount = mount
        self.device = None
        os.makedirs(mount, exist_ok=True)

    def make(self, size="24M", *options):
        if os.path.exists(self.image):
            os.remove(self.image)
        run("truncate", "-s", size, self.image)
        run("mke2fs", "-q", "-F", "-t", "ext4", "-O", FEATURES, *options, self.image,
            capture_output=True)
        return self

    def copy_of(self, other):
        run("cp", "--sparse=always", other.image, self.image)
        return self

    def attach(self):
        done = run("losetup", "-f", "--show", self.image, stdout=subprocess.PIPE)
        self.device = done.stdout.decode().strip()
        return self.device

    def detach(self):
        # The device goes by itself with its last user, should another have detached it.
        subprocess.run(("losetup", "-d", self.device), check=False, capture_output=True)
        self.device = None

    def __enter__(self):
        self.attach()
        run("mount", "-t", "ext4", "-o", "noatime,nosuid,nodev", self.device, self.mount)
        return os.fsencode(self.mount)

    def __exit__(self, *_):
        run("umount", self.mount)
        self.detach()


# ---- Random trees ----

NAMES = [b"a", b"b", b"c", b"a-b", b"a b", b"-rf", b"--", b"...", b".x", b"\xff\xfe", b"new\nline",
         b"\x1b[31mred", b"\xc3\xa9", b"x" * 255, b"\"q\\", b"%s%n", b"z"]


class Editor:
    """Makes and changes a tree below top."""

    def __init__(self, top, seed, special=False):
        self.top = top
        self.random = random.Random(seed)
        self.special = special

    def paths(self, *types):
        found = []
        for folder, folders, files in os.walk(self.top):
            for name in folders + files:
                path = os.path.join(folder, name)
                kind = stat.S_IFMT(os.lstat(path).st_mode)
                if kind in types and not path.startswith(self.top + b"/lost+found"):
                    found.append(path)
        return sorted(found)

    def pick(self, *types):
        paths = self.paths(*types)
        return self.random.choice(paths) if paths else None

    def any(self):
        return self.pick(stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO)

    def place(self):
        """A path in some directory, perhaps taken."""
        folder = self.random.choice([self.top] + self.paths(stat.S_IFDIR))
        return folder + b"/" + self.random.choice(NAMES)

    def data(self):
        size = self.random.choice([0, 1, 5, 100, 5000, 40000])
        return bytes(self.random.choice(b"abc\n") for _ in range(min(size, 200))) * (size // 200 + 1)

    def create(self):
        path = self.place()
        if not os.path.lexists(path):
            with open(path, "wb") as file:
                file.write(self.data())
                if self.random.random() < 0.2:
                    file.truncate(self.random.randrange(100000))

    def directory(self):
        path = self.place()
        if not os.path.lexists(path):
            os.mkdir(path)

    def symlink(self):
        path = self.place()
        if not os.path.lexists(path):
            os.symlink(self.random.choice([b"a", b"../..", b"/etc/passwd", b"\xff" * 200]), path)

    def fifo(self):
        path = self.place()
        if self.special and not os.path.lexists(path):
            os.mkfifo(path)

    def write(self):
        path = self.pick(stat.S_IFREG)
        if path:
            status = os.lstat(path)
            with open(path, "r+b") as file:
                file.seek(self.random.randrange(status.st_size + 1))
                file.write(self.data()[:self.random.randrange(1, 2000)])
            if self.random.random() < 0.3:
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def chmod(self):
        path = self.pick(stat.S_IFREG, stat.S_IFDIR)
        if path:
            os.chmod(path, self.random.choice([0o644, 0o755, 0o700, 0o4755, 0o2711, 0o1777, 0o444]))

    def chown(self):
        path = self.any()
        if path:
            os.lchown(path, self.random.choice([0, 1000, 70000]), self.random.choice([0, 1000]))

    def remove(self):
        path = self.any()
        if path and os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif path:
            os.remove(path)

    def rename(self):
        path, to = self.any(), self.place()
        if path and not to.startswith(path + b"/") and to != path and not os.path.lexists(to):
            os.rename(path, to)

    def replace(self):
        """A rename over a file."""
        path, to = self.pick(stat.S_IFREG), self.pick(stat.S_IFREG)
        if path and path != to:
            os.rename(path, to)

    def swap(self):
        a, b = self.any(), self.any()
        if a and a != b and not (a + b"/").startswith(b + b"/") and \
                not (b + b"/").startswith(a + b"/"):
            os.rename(a, self.top + b"/.swap")
            os.rename(b, a)
            os.rename(self.top + b"/.swap", b)

    def invert(self):
        """A directory moves into what was its own."""
        path = self.pick(stat.S_IFDIR)
        if path and os.path.dirname(path) != self.top:
            above = os.path.dirname(path)
            os.rename(path, self.top + b"/.inner")
            os.rename(above, self.top + b"/.inner/outer")
            os.rename(self.top + b"/.inner", above)

    def link(self):
        path, to = self.pick(stat.S_IFREG, stat.S_IFLNK), self.place()
        if path and not os.path.lexists(to):
            os.link(path, to, follow_symlinks=False)

    def retype(self):
        path = self.any()
        if path:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.remove(path)
            choice = self.random.randrange(3)
            if choice == 0:
                os.mkdir(path)
                with open(path + b"/in", "wb") as file:
                    file.write(b"in\n")
            elif choice == 1:
                os.symlink(b"t", path)
            else:
                with open(path, "wb") as file:
                    file.write(b"file\n")

    def remake(self):
        """The same again, as another inode."""
        path = self.pick(stat.S_IFREG)
        if path:
            shutil.copy2(path, self.top + b"/.remake")
            status = os.lstat(path)
            os.chown(self.top + b"/.remake", status.st_uid, status.st_gid)
            os.chmod(self.top + b"/.remake", stat.S_IMODE(status.st_mode))
            os.rename(self.top + b"/.remake", path)

    def xattr(self):
        path = self.pick(stat.S_IFREG, stat.S_IFDIR)
        if path:
            name = "user." + self.random.choice("abc")
            if self.random.random() < 0.3 and name in os.listxattr(path):
                os.removexattr(path, name)
            else:
                os.setxattr(path, name, self.data()[:self.random.choice([0, 3, 900])])

    def capability(self):
        path = self.pick(stat.S_IFREG)
        if path:
            os.setxattr(path, "security.capability", CAPABILITY)

    def top_mode(self):
        os.chmod(self.top, self.random.choice([0o755, 0o1777]))

    def edit(self, count):
        steps = [self.create] * 4 + [self.directory] * 3 + [self.write] * 3 + [self.rename] * 4 + [
            self.symlink, self.fifo, self.chmod, self.chown, self.remove, self.remove, self.replace,
            self.swap, self.invert, self.link, self.link, self.retype, self.remake, self.xattr,
            self.capability, self.top_mode]
        for _ in range(count):
            try:
                self.random.choice(steps)()
            except OSError as error:
                # Such as a path that became too long, or a move into itself.
                if error.errno not in (22, 36, 17, 39, 28, 26):
                    raise
