# Runs as root inside the machine that is tried, as guest.sh does. It only looks: without a kernel of its
# own it would run on the host.
#
# From the environment: CONTROL the name of a file to make, MARK that of a file of the host, PATHS
# directories of the host.

part() {
	echo "@$1"
}

part kernel
cat /proc/sys/kernel/random/boot_id
cat /proc/1/comm

part files
touch "/tmp/$CONTROL"
find / -xdev \( -name "$MARK" -o -name "$CONTROL" \) 2>/dev/null
rm "/tmp/$CONTROL"
find /data -name "$MARK"
for path in $PATHS; do
	if [ -e "$path" ]; then
		echo "$path"
	fi
done

part mounts
cut -d ' ' -f 1-3 /proc/mounts

part end
