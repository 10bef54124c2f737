# Runs as root inside the machine that is tried. Each part begins with a line `@NAME`; what follows is
# judged outside. A part that finds what was planted on purpose shows that it can see at all.
#
# From the environment: CONTROL a word that is here on purpose, TARGETS and PORTS what to connect to.

part() {
	echo "@$1"
}

part words
for process in /proc/[0-9]*; do
	tr '\0' '\n' <"$process/environ"
	tr '\0' ' ' <"$process/cmdline"
done 2>/dev/null
cat /proc/cmdline
dmesg

part devices
find /dev -type b -o -type c

part ports
cat /sys/class/virtio-ports/*/name

part pci
for device in /sys/bus/pci/devices/*; do
	echo "$(cat "$device/vendor") $(cat "$device/device")"
done

part interfaces
ls /sys/class/net

part reach
for target in $TARGETS; do
	for port in $PORTS; do
		(
			nc -w 3 "$target" "$port" </dev/null >/dev/null 2>&1
			echo "$target $port $?"
		) &
	done
done
wait

part data
echo "$CONTROL" >/data/control
sync
device=$(awk '$2 == "/data" { print $1 }' /proc/mounts)
cat "/sys/class/block/${device##*/}/size"
dd if=/dev/zero of=/data/fill bs=1M 2>&1
wc -c </data/fill
rm /data/fill
sync

part end
