#!/bin/bash
# What code inside a machine would try, against an installed box. One line for each check, then how many
# failed. Exit code 0: all hold. 1: one does not. 2: it could not be set up.
#
#   security/escape-test.sh [OPTION…] BOX [strict|standard] [ENGINE]
#
#   BOX                the program, such as /usr/local/bin/box
#   strict|standard    isolation of the sandboxes it makes (strict)
#   ENGINE             engine of them: auto, kvm or qemu (auto)
#   --only NAME,…      only these checks, or groups of checks
#   --home DIR         a BOX_HOME that an earlier call with --home has made, or makes it, and leaves it there
#   --list             the checks, with the group of each
#
# It makes sandboxes in a BOX_HOME of its own, which it removes, and starts and ends machines there. It
# runs as root or as a normal user, and needs bash and python3 on the host, nothing inside. The checks of
# names need a network with a resolver that is the suite's own: root makes it, with ip and mount; for a
# normal user they are skipped where nobody has made it (security/escape/naming.py).
set -euo pipefail

if ! command -v python3 >/dev/null; then
	echo "escape-test: python3 is missing; install it, for example by apt-get install python3" >&2
	exit 2
fi
exec python3 -B "$(dirname "$(readlink -f "$0")")/escape/suite.py" "$@"
