"""What protects the programs of a release: read from the files themselves, by readelf and objdump.

Each check is a function that yields what is wrong with one program. With each stand the options
that make it complain: a small program is built with them, and without them, in every run, so that
a check that has become blind is seen.
"""

import os
import re
import subprocess

from builds import check, test as _test, TESTS as _ALL

TESTS = []

# What each program may load. One that faces a guest loads nothing but libc; the others say why.
LIBC = {"libc.so.6"}
PROGRAMS = {
    # The user's own program: reads a Boxfile (libyaml), prints JSON (jansson), makes digests and
    # random names (libsodium). From a guest it hands bytes on, and looks at none.
    "bin/box": LIBC | {"libyaml-0.so.2", "libjansson.so.4", "libsodium.so.23"},
    # Faces the guest on the control port, by src/wire alone. The libraries are for its own side:
    # the Boxfile of the user, what it answers to `box ps`, digests.
    "libexec/box/box-keeper": LIBC | {"libyaml-0.so.2", "libjansson.so.4", "libsodium.so.23"},
    # In a jail, with one archive and one image: unpacks compression and writes ext4.
    "libexec/box/box-image": LIBC | {"libarchive.so.13", "libext2fs.so.2", "libcom_err.so.2"},
    # Reads archives that a guest wrote.
    "libexec/box/box-copy": LIBC,
    # Static: the machine that it starts in holds nothing else.
    "libexec/box/box-guest": None,
    # Static: its jail has no file. Reads what a guest, name servers and servers say.
    "libexec/box/box-net": None,
}
# Compiled with checks of arithmetic and bounds that end the program.
FACING = ["libexec/box/box-keeper", "libexec/box/box-image", "libexec/box/box-copy",
          "libexec/box/box-guest", "libexec/box/box-net"]

COMPILER_FLAGS = ["-O2", "-fstack-protector-strong", "-fstack-clash-protection",
                  "-fcf-protection=full", "-ftrivial-auto-var-init=zero",
                  "-fzero-call-used-regs=used-gpr", "-fno-strict-aliasing",
                  "-fno-delete-null-pointer-checks"]
TRAPS = ["-fsanitize=signed-integer-overflow,bounds", "-fsanitize-undefined-trap-on-error"]


def test(function):
    """Marks a test of this file."""
    _test(function)
    _ALL.remove(function)
    TESTS.append(function)
    return function


def say(*command):
    """What a program prints. Its failure is one of the test."""
    result = subprocess.run(command, capture_output=True, text=True, errors="backslashreplace",
                            env={**os.environ, "LC_ALL": "C"}, check=False)
    check(result.returncode == 0, *command, result.stderr)
    return result.stdout


class Program:
    """One ELF file, read once."""

    def __init__(self, path, static=False, libraries=frozenset(LIBC), flags=()):
        self.path = path
        self.static = static
        self.libraries = libraries
        self.flags = flags
        self.header = say("readelf", "-W", "-h", path)
        self.segments = say("readelf", "-W", "-l", path)
        self.dynamic = say("readelf", "-W", "-d", path)
        self.symbols = say("readelf", "-W", "--dyn-syms", path)
        self.sections = say("readelf", "-W", "-S", path)

    def loads(self):
        """(flags, offset, sections) of every segment that is mapped."""
        rows = re.findall(r"^ +([A-Z_]+) +(0x\w+) 0x\w+ 0x\w+ 0x\w+ 0x\w+ ([R ][W ][E ])",
                          self.segments, re.M)
        mapping = dict(re.findall(r"^ +(\d\d) +(.*?) *$",
                                  self.segments.partition("Section to Segment")[2], re.M))
        return [(flags.replace(" ", ""), int(offset, 16), mapping.get(f"{index:02}", "").split())
                for index, (kind, offset, flags) in enumerate(rows) if kind == "LOAD"]


def pie(program):
    """Loaded where nobody knows."""
    if not re.search(r"^ +Type: +DYN\b", program.header, re.M):
        yield "is not of type DYN"
    if not re.search(r"\(FLAGS_1\).*\bPIE\b", program.dynamic):
        yield "is not marked as PIE"


def relro(program):
    """What the loader has written once is read-only from then on."""
    if "GNU_RELRO" not in program.segments:
        yield "has no GNU_RELRO segment"


def bind_now(program):
    """All of it is written at once, so that nothing must stay writable."""
    if not re.search(r"\(FLAGS\).*\bBIND_NOW\b|\(FLAGS_1\).*\bNOW\b", program.dynamic):
        yield "binds its functions late"
    if re.search(r" \.got\.plt ", program.sections):
        yield "has a .got.plt that stays writable"


def no_executable_stack(program):
    """Data on the stack is no code."""
    if not re.search(r"GNU_STACK .* RW +0x", program.segments):
        yield "has an executable stack"


def no_library_path(program):
    """Nobody may put a library in a place of his own."""
    if re.search(r"\((RPATH|RUNPATH)\)", program.dynamic):
        yield "has an RPATH"


def no_writable_code(program):
    """No segment is writable and executable at once."""
    if not program.loads():
        yield "has no segments"
    for flags, offset, _ in program.loads():
        if "W" in flags and "E" in flags:
            yield f"has a segment at {offset:#x} that is writable and executable"


def separate_code(program):
    """Only code is executable: headers and constants are gadgets otherwise."""
    code = re.compile(r"\.(init|plt(\..*)?|text(\..*)?|fini|iplt|.*freeres_fn)")
    for flags, offset, sections in program.loads():
        others = [name for name in sections if not code.fullmatch(name)]
        # An attribute X on the section says the same of those that have unusual names.
        others = [name for name in others if not re.search(
            rf"\] {re.escape(name)} +PROGBITS .* AX ", program.sections)]
        if "E" in flags and (offset == 0 or others):
            yield "has more than code in an executable segment: " + \
                " ".join(others or ["the ELF header"])


def no_text_relocations(program):
    """The loader never has to make code writable."""
    if re.search(r"\(TEXTREL\)|\(FLAGS\).*\bTEXTREL\b", program.dynamic):
        yield "has relocations in its code"


def right_libraries(program):
    """It loads what the table allows and nothing else."""
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", program.dynamic))
    extra = needed - (program.libraries or set())
    if extra:
        yield "loads " + " ".join(sorted(extra))
    if not program.static and not needed:
        yield "loads nothing, not even libc"


def right_interpreter(program):
    """A static program has none, any other the system's own."""
    found = re.findall(r"Requesting program interpreter: (.*)\]", program.segments)
    wanted = [] if program.static else ["/lib64/ld-linux-x86-64.so.2"]
    if found != wanted:
        yield f"has the interpreter {found} instead of {wanted}"


def disassemble(program, function):
    """The instructions of one function; empty when there is none of that name."""
    return say("objdump", "-d", "--no-show-raw-insn", f"--disassemble={function}", program.path)


def stack_protector(program):
    """A function with an array looks whether its end was overrun."""
    if not program.static and "__stack_chk_fail" not in program.symbols:
        yield "never looks at its stack"
    # libc has the name in any static program, so what counts is who calls it.
    if program.static and "__stack_chk_fail" not in disassemble(program, "main"):
        yield "does not look at the stack of main"


def fortify(program):
    """Calls of libc know how large their buffers are. A static program calls no libc by name."""
    if not program.static and not re.search(r"\b__(?!stack)\w+_chk\b", program.symbols):
        yield "calls no function of libc that checks a size"


def branch_tracking(program):
    """
    -fcf-protection=full: a function begins with endbr64. The mark for it in the file's notes needs
    start files that have it, and those of Debian 12 have not; so the code is looked at.
    """
    if not re.search(r"<main>:\n +\w+:\s+endbr64", disassemble(program, "main")):
        yield "main does not begin with endbr64"


def compiler_flags(program):
    """Each of our sources was compiled with all of the flags, by what the compiler wrote down."""
    units = re.findall(r"DW_AT_producer +: (?:\(.*?\): )?(.*)\n.*DW_AT_language.*\n"
                       r".*DW_AT_name +: (?:\(.*?\): )?(.*)\n",
                       say("readelf", "-W", "--debug-dump=info", "--dwarf-depth=1", program.path))
    if not units:
        yield "has no record of how it was compiled"
    for producer, name in units:
        missing = [flag for flag in program.flags if flag not in producer.split()]
        if missing:
            yield f"{name} was compiled without {' '.join(missing)}"


def no_mutants(program):
    """No confinement of it can be switched off: see src/base/mutant.h."""
    with open(program.path, "rb") as file:
        if b"BOX_MUTANT" in file.read():
            yield "has switches of its confinements"


# Check, options that must make it complain, whether that is a static program.
CHECKS = [
    (pie, ["-no-pie"], False),
    (pie, ["-static"], True),
    (relro, ["-Wl,-z,norelro"], False),
    (bind_now, ["-Wl,-z,lazy"], False),
    (no_executable_stack, ["-Wl,-z,execstack"], False),
    (no_library_path, ["-Wl,-rpath,/opt/lib"], False),
    (no_library_path, ["-Wl,-rpath,/opt/lib", "-Wl,--disable-new-dtags"], False),
    (no_writable_code, ["-DWRITABLE"], False),
    (separate_code, ["-Wl,-z,noseparate-code"], False),
    (no_text_relocations, ["-DABSOLUTE", "-Wl,-z,notext"], False),
    (right_libraries, ["-Wl,--no-as-needed", "-lm"], False),
    (right_libraries, ["-static-pie"], False),
    (right_interpreter, ["-Wl,--dynamic-linker=/opt/ld.so"], False),
    (right_interpreter, [], True),
    (stack_protector, ["-fno-stack-protector"], False),
    (stack_protector, ["-fno-stack-protector", "-static-pie"], True),
    (fortify, ["-U_FORTIFY_SOURCE"], False),
    (branch_tracking, ["-fcf-protection=none"], False),
    (branch_tracking, ["-fcf-protection=none", "-static-pie"], True),
    (compiler_flags, ["-fstrict-aliasing"], False),
    (compiler_flags, ["-g0"], False),
    (no_mutants, ["-DSWITCH=\"BOX_MUTANT\""], False),
]

SMALL = r"""
#include <stdio.h>
#include <string.h>
#ifdef ABSOLUTE
__asm__(".text\n.globl here\nhere: .quad here\n");
#endif
#ifdef WRITABLE
__asm__(".section .both, \"awx\"\n.quad 0\n.text\n");
#endif
int main(int argc, char **argv)
{
	char text[64];

#ifdef SWITCH
	puts(SWITCH);
#endif
	snprintf(text, sizeof(text), "%d %s", argc, argv[0]);
	return (int)strlen(text);
}
"""
GOOD = ["-O2", "-g", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", *COMPILER_FLAGS, "-fPIE", "-pie",
        "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack", "-Wl,-z,separate-code"]


def build_small(pair, options, static):
    path = os.path.join(pair.folder, "small")
    result = subprocess.run(["gcc", *GOOD, *options, "-x", "c", "-o", path, "-"], input=SMALL,
                            text=True, capture_output=True, check=False)
    check(result.returncode == 0, options, result.stderr)
    return Program(path, static, None if static else LIBC, COMPILER_FLAGS)


@test
def every_check_can_fail(pair):
    """Each refuses a program that is built without what it looks for."""
    blind = [f"{function.__name__} does not complain about {options}"
             for function, options, static in CHECKS
             if not list(function(build_small(pair, options, static)))]
    check(not blind, "\n".join(blind))


@test
def every_check_can_pass(pair):
    """None complains about a program that is built as it should be."""
    for options, static in (([], False), (["-static-pie"], True)):
        program = build_small(pair, options, static)
        for function in dict.fromkeys(function for function, _, _ in CHECKS):
            found = list(function(program))
            check(not found, function.__name__, options, found)


def each_program(pair):
    for name, libraries in PROGRAMS.items():
        flags = COMPILER_FLAGS + (TRAPS if name in FACING else [])
        yield name, Program(os.path.join(pair.root, name), libraries is None, libraries, flags)


@test
def every_program_is_hardened(pair):
    """All checks on all programs of the release."""
    problems = [f"{name} {problem}" for name, program in each_program(pair)
                for function in dict.fromkeys(function for function, _, _ in CHECKS)
                for problem in function(program)]
    check(not problems, "\n".join(problems))


@test
def every_program_is_in_the_table(pair):
    """A program that is new in the release must be looked at as well."""
    found = set()
    for parent, _, names in os.walk(pair.root):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    found.add(os.path.relpath(path, pair.root))
    check(found == set(PROGRAMS), sorted(found ^ set(PROGRAMS)))


@test
def no_file_has_rights_of_its_own(pair):
    """Nothing is setuid or setgid, has capabilities, or may be changed by others."""
    for parent, folders, names in os.walk(pair.root):
        for name in folders + names:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            check(os.path.islink(path) or mode & 0o7022 == 0, path, oct(mode))
            check("security.capability" not in os.listxattr(path, follow_symlinks=False), path)
