"""Finds credentials in the files of the project: in all that git tracks, binary files included.

A key that was committed once is known to the world, so this looks before that. Two kinds are found:
what has the form of a known token, and a value that looks random and is given to a name such as
"password". What is found and is none stands in secrets-allowed: its file, the first 16 digits of
the SHA-256 of what was found, and the reason. Nothing found is ever printed.

The samples of the self-test are put together when it runs, so this file holds none.
"""

import base64
import hashlib
import math
import os
import random
import re
import string
import subprocess

ALLOWED = "tests/lint/secrets-allowed"
# Larger files are data; there are none in the tree today.
BYTES_MAX = 4 << 20
# Bits for each character. Words and names stay below, random text of 20 characters is above.
ENTROPY_MIN = 3.4
# Shorter values are words far more often than keys.
VALUE_MIN = 12

NOT_BEFORE = rb"(?<![A-Za-z0-9_/+.-])"
NOT_AFTER = rb"(?![A-Za-z0-9_])"

# What it is, and its form. In each the first piece stands apart, so that no rule finds itself.
FORMS = [
    ("a private key", rb"-----BEGIN (?:[A-Z0-9]+ )*PRIV" rb"ATE KEY(?: BLOCK)?-----"),
    ("a private key of age", NOT_BEFORE + rb"AGE-SECRET" rb"-KEY-1[0-9A-Z]{50,}"),
    ("a key of a PuTTY user", rb"PuTTY-User-Key-File" rb"-\d:"),
    ("an AWS key ID", NOT_BEFORE + rb"(?:AK" rb"IA|AS" rb"IA)[0-9A-Z]{16}" + NOT_AFTER),
    ("a Google API key", NOT_BEFORE + rb"AI" rb"za[0-9A-Za-z_-]{35}" + NOT_AFTER),
    ("a Google OAuth token", NOT_BEFORE + rb"ya29" rb"\.[0-9A-Za-z_-]{20,}"),
    ("an Azure storage key", rb"Account" rb"Key=[0-9A-Za-z+/]{60,}={0,2}"),
    ("a GitHub token", NOT_BEFORE + rb"gh" rb"[pousr]_[0-9A-Za-z]{36,}" + NOT_AFTER),
    ("a GitHub token", NOT_BEFORE + rb"github" rb"_pat_[0-9A-Za-z_]{22,}"),
    ("a GitLab token", NOT_BEFORE + rb"gl" rb"(?:pat|rt|dt|ptt|oas)-[0-9A-Za-z_-]{20,}"),
    ("an npm token", NOT_BEFORE + rb"npm" rb"_[0-9A-Za-z]{36}" + NOT_AFTER),
    ("an npm token", rb":_auth" rb"Token=[^\s$]{8,}"),
    ("a PyPI token", NOT_BEFORE + rb"py" rb"pi-AgE[0-9A-Za-z_-]{30,}"),
    ("a Slack token", NOT_BEFORE + rb"xo" rb"x[abeoprs]-[0-9A-Za-z-]{10,}"),
    ("a Slack hook", rb"hooks\.slack" rb"\.com/services/T[0-9A-Z]+/B[0-9A-Z]+/\w+"),
    ("a Stripe key", NOT_BEFORE + rb"[rs]k" rb"_live_[0-9A-Za-z]{16,}"),
    ("a key of a language model", NOT_BEFORE + rb"sk" rb"-(?:ant-|proj-)?[0-9A-Za-z_-]{32,}"),
    ("a SendGrid key", NOT_BEFORE + rb"SG" rb"\.[0-9A-Za-z_-]{22}\.[0-9A-Za-z_-]{43}"),
    ("a JSON web token",
     NOT_BEFORE + rb"ey" rb"J[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{10,}"),
    ("a password in an address", rb"[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"'<>$%{}]{1,64}:"
                                 rb"[^\s/:@\"'<>$%{}]{6,64}@[A-Za-z0-9]"),
]

NAMES = rb"(?:pass(?:word|wd|phrase)?|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|" \
    rb"credentials?|auth[_-]?key)"
# name = "value", name: value, "name": "value", NAME=value; a prefix or suffix belongs to the name.
ASSIGNMENT = re.compile(
    rb"(?i)\b[\w.-]{0,40}" + NAMES + rb"[\w-]{0,20}[\"']?\s{0,4}(?::=|=>|=|:)\s{0,4}"
    rb"[\"']?([0-9A-Za-z+/_=.~!@#%^&*-]{" + str(VALUE_MIN).encode() + rb",200})")


def entropy(value):
    """Bits for each character, by how often each is in it."""
    counts = [value.count(each) for each in set(value)]
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts)


def looks_random(value):
    """
    Many different characters, of at least two kinds, and digits among them. A word, a path or a
    name in code (my_token_size, Some.thing) has none of that, or has it in pieces that are words.
    """
    text = value.decode("ascii")
    if not re.search(r"\d", text) or not re.search(r"[A-Za-z]", text):
        return False
    pieces = re.split(r"[_./=-]+", text)
    if max(len(piece) for piece in pieces) < VALUE_MIN:
        return False
    return entropy(text) >= ENTROPY_MIN


def find(data):
    """(offset, what it is, the bytes) of everything in data that looks like a credential."""
    for what, form in FORMS:
        for match in re.finditer(form, data):
            yield match.start(), what, match.group()
    for match in ASSIGNMENT.finditer(data):
        if looks_random(match.group(1)):
            yield match.start(), "a random value of a name for secrets", match.group(1)


def tracked(root):
    """Paths below root that git tracks or would add; without git every file but what is built."""
    # A list that git gives for a folder above would leave the files of a made-up tree out.
    if os.path.exists(os.path.join(root, ".git")):
        result = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], capture_output=True, check=False)
        if result.returncode == 0:
            return sorted({os.fsdecode(each) for each in result.stdout.split(b"\0") if each})
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".git" and
                      not re.fullmatch(r"build(-.*)?", name)]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found)


def read_allowed(root):
    """({(path, digest): line number}, complaints about the list itself)."""
    allowed, complaints = {}, []
    path = os.path.join(root, ALLOWED)
    if not os.path.exists(path):
        return allowed, complaints
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or line.startswith("#"):
                continue
            words = line.split(None, 2)
            if len(words) < 3 or not re.fullmatch(r"[0-9a-f]{16}", words[1]):
                complaints.append(f"{ALLOWED}:{number}: a line is FILE DIGEST REASON")
            else:
                allowed[words[0], words[1]] = number
    return allowed, complaints


def scan(root):
    """Yields a complaint for each credential, and for what is allowed and is not there."""
    allowed, complaints = read_allowed(root)
    yield from complaints
    used = set()
    for path in tracked(root):
        full = os.path.join(root, path)
        if os.path.islink(full) or not os.path.isfile(full):
            continue
        with open(full, "rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            yield f"{path}:1: too large to be searched for secrets"
        for offset, what, found in find(data):
            digest = hashlib.sha256(found).hexdigest()[:16]
            if (path, digest) in allowed:
                used.add((path, digest))
            else:
                line = data.count(b"\n", 0, offset) + 1
                yield f"{path}:{line}: {what}; if it is none, put \"{path} {digest} REASON\" " + \
                    f"into {ALLOWED}"
    for path, digest in sorted(set(allowed) - used):
        yield f"{ALLOWED}:{allowed[path, digest]}: nothing like that is in {path} any more"


def samples():
    """(files, how the complaint begins, a part of it): made up, other ones in every run."""
    def some(count, letters=string.ascii_letters + string.digits):
        # Never a run of the same letter, which nobody would take for random.
        return "".join(random.sample(letters * 4, count))

    def web(text):
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    upper = string.ascii_uppercase + string.digits
    made = [
        ("private key", "-----BEGIN " + "PRIVATE KEY-----\nMII\n"),
        ("private key", "-----BEGIN OPENSSH " + "PRIVATE KEY-----\n"),
        ("private key", "-----BEGIN EC " + "PRIVATE KEY-----\n"),
        ("private key", "-----BEGIN PGP " + "PRIVATE KEY BLOCK-----\n"),
        ("age", "AGE-" + "SECRET-KEY-1" + some(58, upper)),
        ("PuTTY", "PuTTY-User-" + "Key-File-3: ssh-ed25519"),
        ("AWS", "AK" + "IA" + some(16, upper)), ("AWS", "id=AS" + "IA" + some(16, upper)),
        ("random value", "aws_secret_access_key = " + "1a" + some(38)),
        ("Google API", "AI" + "za" + some(35)), ("Google OAuth", "ya29" + "." + some(40)),
        ("Azure", "Account" + "Key=" + some(86) + "=="),
        ("GitHub", "gh" + "p_" + some(36)), ("GitHub", "gh" + "s_" + some(36)),
        ("GitHub", "github" + "_pat_" + some(40)),
        ("GitLab", "gl" + "pat-" + some(20)), ("npm", "npm" + "_" + some(36)),
        ("npm", "//host/:_auth" + "Token=" + some(20)), ("PyPI", "py" + "pi-AgE" + some(60)),
        ("Slack", "xo" + "xb-" + some(12, string.digits) + "-" + some(24)),
        ("Slack", "https://hooks.slack" + ".com/services/T" + some(8, upper) + "/B" +
         some(8, upper) + "/" + some(24)),
        ("Stripe", "sk" + "_live_" + some(24)), ("language model", "sk" + "-ant-" + some(40)),
        ("SendGrid", "SG" + "." + some(22) + "." + some(43)),
        ("JSON web token", web('{"alg":"HS256","typ":"JWT"}') + "." + web('{"sub":"1234567890"}') +
         "." + some(43)),
        ("in an address", "postgres" + "://admin:" + some(12) + "@db.example/x"),
        ("random value", "pass" + "word: " + "7q" + some(20)),
        ("random value", '{"client_' + 'secret": "' + "9z" + some(24) + '"}'),
        ("random value", "export API_" + "TOKEN=" + "4k" + some(28)),
    ]
    for wanted, text in made:
        yield {"docs/x.md": f"one\n{text}\n"}, "docs/x.md:2: a", wanted
    # Where the other rules do not look.
    key = "gh" + "p_" + some(36)
    yield {"tests/fuzz/corpus/x/1": f"\0\1\n\n{key}"}, "tests/fuzz/corpus/x/1:3: a", "GitHub"
    # The list of what is allowed: without a reason, and for something that is gone.
    yield {ALLOWED: "docs/x.md 0123456789abcdef\n"}, f"{ALLOWED}:1: a line is", "REASON"
    yield {ALLOWED: "docs/x.md 0123456789abcdef not there\n"}, f"{ALLOWED}:1: nothing like", "more"


def clean_files():
    """What must not be taken for a credential."""
    made_up = b"".join([b"gh", b"p_", b"0123456789abcdefghijklmnopqrstuvwxyz"])
    digest = hashlib.sha256(made_up).hexdigest()[:16]
    return {
        "docs/clean.md": "password = read_password_from_terminal()\ntoken: ${{ CI_TOKEN }}\n"
                         "secret=\"$(cat /run/secret)\"\nhttps://user@host.example/path\n"
                         "the token is a 128-bit-number\napi_key: YOUR-API-KEY-GOES-HERE\n"
                         "passwd_file=/etc/passwd.d/first-2\n",
        "docs/allowed.md": made_up.decode() + "\n",
        ALLOWED: f"docs/allowed.md {digest} made up for this test\n",
    }
