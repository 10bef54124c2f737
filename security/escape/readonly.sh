# Runs as root inside a machine with `readonly: true`: tries to make its root writable. It prints what
# worked.
if mount -o remount,rw / 2>/dev/null && touch /escaped 2>/dev/null; then
	sync
	echo "a file was made after a remount"
fi
blockdev --setrw /dev/vda 2>/dev/null
if dd if=/dev/zero of=/dev/vda bs=4096 count=1 seek=100 conv=fsync 2>/dev/null; then
	echo "its disk was written"
fi
echo end
