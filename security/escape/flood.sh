# Runs as root inside a machine that is about to be ended: kills all that runs beside it, uses up
# processes and memory, and writes to the kernel's log, the console and its output without end. The
# first 8 MiB of output come in any case.
kill -9 -1
line="flood flood flood flood flood flood flood flood"
yes "$line" | head -c 8388608
yes "$line" &
while :; do
	echo "$line" >/dev/kmsg
	echo "$line" >/dev/console
done &
tail /dev/zero &
bomb() {
	bomb | bomb &
}
bomb
wait
