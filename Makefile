# What people type. The build itself is meson's; what each target does is in scripts/.
#
#   make              build in build/, ready to run as build/root/usr/local/bin/box
#   make setup        install by apt what is missing here (asks sudo when you are not root)
#   make demo         set up, build, and run a command in a sandbox, with times
#   make test         set up and run every test; the last line is N passed, N failed, N skipped
#   make lint         only the rules about the code itself
#   make fuzz S=60    fuzz every target for S seconds
#   make bench        measure, and write bench/RESULTS.md
#   make release      build an archive that is the same bytes wherever it is built
#   make install      copy to DESTDIR/PREFIX (PREFIX=/usr/local)
#   make uninstall    remove exactly what install put there
#   make clean        remove everything that was built

PREFIX = /usr/local
DESTDIR =
S = 60

all:
	@scripts/build

help:
	@sed -n 's/^#   //p' Makefile

setup:
	@scripts/setup

demo: setup all
	@scripts/demo

test:
	@scripts/setup --tests
	@scripts/test

lint:
	@tests/lint/lint --self-test
	@tests/lint/lint

fuzz:
	@scripts/setup --tests
	@scripts/fuzz $(S)

bench: setup all
	@bench/run

release:
	@scripts/release

install:
	@[ -x build/root/usr/local/bin/box ] || scripts/build
	@scripts/install install "$(PREFIX)" "$(DESTDIR)"

uninstall:
	@scripts/install uninstall "$(PREFIX)" "$(DESTDIR)"

clean:
	rm -rf build build-*

# The steps of one target follow one another.
.NOTPARALLEL:
.PHONY: all help setup demo test lint fuzz bench release install uninstall clean
