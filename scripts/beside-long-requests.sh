#!/bin/bash
# Worst 4 KiB O_DIRECT read of a file on CPU 0, for 4 s, beside one long request of the same CPU, through rings.
# beside-long-requests.sh [HOMENODE]: as root, with 6 GiB of memory to spare. docs/claims.md, the mount.
set -eu
homenode=$(realpath "${1:-target/release/homenode}")
mount=$(mktemp -d)
switch=/sys/module/fuse/parameters/enable_uring
before=$(cat $switch)
finish() {
    echo "$before" > $switch
    ! mountpoint -q "$mount" || "$homenode" down "$mount"
    rmdir "$mount"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
echo 1 > $switch
"$homenode" up --transport uring --data pool --size-per-node 5G "$mount"

reader='
import mmap, os, sys, time
descriptor = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
page, worst, end = mmap.mmap(-1, 4096), 0, time.monotonic() + 4
while (begin := time.monotonic()) < end:
    os.preadv(descriptor, [page], 0)
    worst = max(worst, time.monotonic() - begin)
print(f"worst read {worst * 1000:.1f} ms")
'
# Two files whose blocks lie by turns: none of either beside the next one.
single_blocks='
import os, sys
files = [os.open(f"{sys.argv[1]}/{name}", os.O_CREAT | os.O_WRONLY) for name in ("one", "other")]
for block in range(250_000):
    for descriptor in files:
        os.pwrite(descriptor, bytes(4096), block * 4096)
'
beside() {
    local name=$1
    shift
    taskset -c 0 python3 -c "$reader" "$mount/small" > "$mount/worst" &
    local pid=$!
    # The reader is at work when the request comes: it reads for four seconds.
    sleep 0.7
    taskset -c 0 "$@"
    wait $pid
    echo "$name: $(cat "$mount/worst")"
}

head -c 4096 /dev/urandom > "$mount/small"
beside "nothing" true
dd if=/dev/zero of="$mount/big" bs=1M count=3500 status=none
beside "zero range of 3500 MiB" fallocate -z -l 3500M "$mount/big"
beside "punch hole of 3400 MiB" fallocate -p -l 3400M "$mount/big"
dd if=/dev/zero of="$mount/big" bs=1M count=3500 status=none
beside "truncate of 3500 MiB" truncate -s 4096 "$mount/big"
python3 -c "$single_blocks" "$mount"
beside "truncate of 976 MiB in single blocks" truncate -s 4096 "$mount/one"
beside "punch hole of 900 MiB in single blocks" fallocate -p -l 900M "$mount/other"
rm "$mount/one" "$mount/other"
dd if=/dev/zero of="$mount/big" bs=1M count=2000 status=none
beside "copy of 2000 MiB" cp "$mount/big" "$mount/copy"
rm "$mount/copy"
dd if=/dev/zero of="$mount/big" bs=1M count=3500 status=none
beside "rm of 3500 MiB" rm "$mount/big"
python3 -c "$single_blocks" "$mount"
beside "rm of 976 MiB in single blocks" rm "$mount/one"
