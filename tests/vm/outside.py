"""What real programs inside are tried against: servers for curl, git, pip, npm and apt.

One HTTP server with a certificate of the test's own authority, on an address that counts as public,
in the network namespace that Net has made.
"""

import gzip
import hashlib
import http.server
import io
import json
import os
import socket
import ssl
import struct
import subprocess
import tarfile
import threading
import zipfile

import test_net
from lib import wait_until
from test_net import Net, PUBLIC

ADDRESS = "45.0.0.3"
# A port whose queue is full: who connects waits.
FULL = 10
# A port where a server on all addresses of the host only notes who has come, and addresses that
# the host has for it.
TRAP = 8000
TRAPS = ("169.254.169.254", "192.168.0.1", "100.100.100.200", "fd00:ec2::254", "64:ff9b::7f00:1",
         "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "2002:7f00:1::", "198.18.0.77")
NAMES = [f"{name}.tools.test" for name in ("files", "git", "pypi", "npm", "deb", "api.svc")]
PIECE = 1 << 20
PATTERN = bytes(range(256)) * (PIECE // 256)


def run(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, **options).stdout


class Certificates:
    """An authority, and the certificate of the servers."""

    def __init__(self, folder):
        self.folder = folder
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        run("openssl", "req", "-x509", *key, "-keyout", self.path("ca.key"), "-out",
            self.path("ca.crt"), "-subj", "/CN=Authority of a test", "-days", "30")
        run("openssl", "req", "-x509", *key, "-keyout", self.path("key"), "-out", self.path("crt"),
            "-subj", "/CN=*.tools.test", "-days", "30", "-CA", self.path("ca.crt"), "-CAkey",
            self.path("ca.key"), "-addext", "basicConstraints=critical,CA:false", "-addext",
            "subjectAltName=" + ",".join(f"DNS:{name}" for name in NAMES))

    def path(self, name):
        return os.path.join(self.folder, name)

    def context(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path("crt"), self.path("key"))
        return context


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024

    def __init__(self, outside, port, context=None):
        self.outside, self.context = outside, context
        super().__init__((ADDRESS, port), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def get_request(self):
        sock, peer = super().get_request()
        self.outside.accepted.append(self.server_port)
        return sock, peer

    def finish_request(self, request, client_address):
        """In a thread of the connection: a handshake must not hold others up."""
        if not self.context:
            super().finish_request(request, client_address)
            return
        with self.context.wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)

    def handle_error(self, request, client_address):
        """A program may go in the middle; what that breaks is for the test to say."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, kind="application/octet-stream", status=200, headers=()):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def pour(self, size):
        """So many bytes, whatever is asked for."""
        while size > 0:
            self.wfile.write(PATTERN[:size])
            size -= PIECE

    def promise(self, promised, given):
        self.send_response(200)
        self.send_header("Content-Length", str(promised))
        self.end_headers()
        self.wfile.flush()
        self.pour(given)
        self.wfile.flush()

    def do_GET(self):
        outside = self.server.outside
        path, _, query = self.path.partition("?")
        first, _, rest = path[1:].partition("/")
        if first == "bytes":
            self.promise(int(rest), int(rest))
        elif first == "early":
            self.promise(1000000, 1000)
            self.close_connection = True
        elif first == "reset":
            self.promise(1000000, 1000)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                       struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
            self.close_connection = True
        elif first == "never":
            outside.released.wait(120)
            self.close_connection = True
        elif first == "hello":
            self.answer(f"hello to {self.headers['Host']}\n".encode(), "text/plain")
        elif path.startswith("/project.git/"):
            self.git(path, query, b"")
        elif path in outside.files:
            kind = "text/html" if path.endswith("/") else \
                "application/json" if "." not in path else "application/octet-stream"
            self.answer(outside.files[path], kind)
        else:
            self.answer(b"not here\n", "text/plain", 404)

    do_HEAD = do_GET

    def do_POST(self):
        path, _, query = self.path.partition("?")
        body = self.body()
        if path.startswith("/project.git/"):
            self.git(path, query, body)
        else:
            self.answer(f"{len(body)} {hashlib.sha256(body).hexdigest()}\n".encode(), "text/plain")

    do_PUT = do_POST

    def git(self, path, query, body):
        """git-http-backend(1), by CGI."""
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        environment = {
            **os.environ, "GIT_PROJECT_ROOT": self.server.outside.folder, "PATH_INFO": path,
            "GIT_HTTP_EXPORT_ALL": "1", "REQUEST_METHOD": self.command, "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)), "REMOTE_USER": "somebody",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", "")}
        out = run("git", "http-backend", input=body, env=environment)
        head, _, rest = out.partition(b"\r\n\r\n")
        lines = [line.partition(": ")[::2] for line in head.decode().split("\r\n")]
        status = next((int(value.split()[0]) for name, value in lines if name == "Status"), 200)
        kind = next((value for name, value in lines if name == "Content-Type"), "text/plain")
        self.answer(rest, kind, status)


class Outside(Net):
    """Net with these servers."""

    def __init__(self, box):
        super().__init__(box)
        run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
        test_net.NAMES.update({name: ADDRESS for name in NAMES}, **{"first.tools.test": PUBLIC})
        self.accepted, self.files = [], {}
        self.certificates = Certificates(self.folder)
        self._make_repository()
        self._make_wheel()
        self._make_npm_package()
        self._make_debian_package()
        self.kept = [Server(self, 80), Server(self, 443, self.certificates.context())]
        self._fill(FULL)
        self.trapped = []
        self._set_trap()

    def _set_trap(self):
        run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
        for name in ("eth0", "eth1"):
            run("ip", "link", "set", name, "up")
        run("ip", "address", "add", "fe80::1/64", "dev", "eth0", "nodad")
        for address in TRAPS:
            run("ip", "address", "add", address, "dev", "lo")
        test_net.NAMES.update({"inside.tools.test": "127.0.0.1",
                               "metadata.google.internal": "169.254.169.254"})
        server = socket.create_server(("::", TRAP), family=socket.AF_INET6, dualstack_ipv6=True,
                                      backlog=64)
        self.kept.append(server)

        def accept():
            while True:
                sock, _ = server.accept()
                self.trapped.append(sock.getsockname()[0])
                sock.close()
        threading.Thread(target=accept, daemon=True).start()

    def control(self):
        """From the host itself the trap is reached under all of its addresses."""
        found = ("127.0.0.1", "::1", "10.1.2.3", "fe80::1%eth0", *TRAPS)
        for address in found:
            socket.create_connection((address, TRAP), 5).close()
        wait_until("the trap", lambda: len(self.trapped) == len(found))
        self.trapped.clear()

    def _fill(self, port):
        """A server that never accepts, with as many connections as its queue takes."""
        server = socket.socket()
        server.bind((ADDRESS, port))
        server.listen(0)
        self.kept.append(server)
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex((ADDRESS, port))
            self.kept.append(sock)

    def _make_repository(self):
        """project.git with one commit."""
        work, bare = os.path.join(self.folder, "work"), os.path.join(self.folder, "project.git")
        author = ("-c", "user.name=A", "-c", "user.email=a@tools.test")
        run("git", "init", "-q", "-b", "main", work)
        with open(os.path.join(work, "readme"), "w", encoding="utf-8") as file:
            file.write("a project\n")
        with open(os.path.join(work, "large"), "wb") as file:
            file.write(os.urandom(PIECE))
        run("git", "-C", work, "add", ".")
        run("git", "-C", work, *author, "commit", "-qm", "first")
        run("git", "clone", "-q", "--bare", work, bare)
        run("git", "-C", bare, "config", "http.receivepack", "true")

    def _make_wheel(self):
        info = "boxwheel-1.0.dist-info/"
        content = {
            "boxwheel.py": "print('from the wheel')\n",
            info + "METADATA": "Metadata-Version: 2.1\nName: boxwheel\nVersion: 1.0\n",
            info + "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
                            "Tag: py3-none-any\n"}
        content[info + "RECORD"] = "".join(f"{name},,\n" for name in (*content, info + "RECORD"))
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as file:
            for name, text in content.items():
                file.writestr(name, text)
        name = "boxwheel-1.0-py3-none-any.whl"
        digest = hashlib.sha256(data.getvalue()).hexdigest()
        self.files[f"/wheels/{name}"] = data.getvalue()
        self.files["/simple/boxwheel/"] = \
            f'<!DOCTYPE html><a href="/wheels/{name}#sha256={digest}">{name}</a>'.encode()

    def _make_npm_package(self):
        package = {"name": "boxpackage", "version": "1.0.0", "main": "index.js"}
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as tar:
            for name, text in (("package/package.json", json.dumps(package)),
                               ("package/index.js", "console.log('from the package')\n")):
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text.encode()))
        tarball = f"https://{NAMES[3]}/npm/boxpackage-1.0.0.tgz"
        package["dist"] = {"tarball": tarball,
                           "shasum": hashlib.sha1(data.getvalue()).hexdigest()}
        self.files["/npm/boxpackage-1.0.0.tgz"] = data.getvalue()
        self.files["/boxpackage"] = json.dumps({
            "name": "boxpackage", "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": package}}).encode()

    def _make_debian_package(self):
        tree = os.path.join(self.folder, "tree")
        os.makedirs(os.path.join(tree, "DEBIAN"))
        os.makedirs(os.path.join(tree, "usr/share/boxdeb"))
        control = "Package: boxdeb\nVersion: 1.0\nArchitecture: all\n" \
            "Maintainer: A <a@tools.test>\nDescription: a package of a test\n"
        with open(os.path.join(tree, "DEBIAN/control"), "w", encoding="utf-8") as file:
            file.write(control)
        with open(os.path.join(tree, "usr/share/boxdeb/file"), "w", encoding="utf-8") as file:
            file.write("from the package\n")
        path = os.path.join(self.folder, "boxdeb.deb")
        run("dpkg-deb", "--build", "--root-owner-group", tree, path)
        with open(path, "rb") as file:
            data = file.read()
        packages = f"{control}Filename: ./boxdeb.deb\nSize: {len(data)}\n" \
            f"SHA256: {hashlib.sha256(data).hexdigest()}\n".encode()
        release = "Origin: test\nSuite: test\nDate: Sat, 01 Nov 2025 00:00:00 UTC\nSHA256:\n" \
            f" {hashlib.sha256(packages).hexdigest()} {len(packages)} Packages\n"
        self.files.update({"/debian/./Packages": packages, "/debian/Packages": packages,
                           "/debian/./Release": release.encode(),
                           "/debian/Release": release.encode(),
                           "/debian/./boxdeb.deb": data, "/debian/boxdeb.deb": data})
