#!/bin/bash
# Mixed load on a mount for SOAK_MINUTES (default: 30), by each transport, on a pool of memory and on one on a disk with a cache of 8 MiB, while members
# come and go and files move: nothing may fail, every byte is verified, and the server must not grow. Then servers and disks are taken away under load, and
# programs copy beside others that cut their files: some minutes. Needs root; SOAK_SIZE is the size of the pool's first member.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$((${SOAK_MINUTES:-30} * 60))
size=${SOAK_SIZE:-1G}
target=${CARGO_TARGET_DIR:-target}
homenode=$target/release/homenode
# After a warm-up of a sixth of its time the server may grow by this much in the rest: what the allocator keeps, and the
# map nodes and inodes of a moment with more files.
growth_kib_max=32768
# The mean of the last third may be above that of the middle third by this much: it levels off.
slope_kib_max=4096
# When everything is removed, the server gives back what lies above its size before the load, but for this much; and for
# the payloads of rings, which stay.
left_kib_max=16384
ring_buffers_mib=64
switch=/sys/module/fuse/parameters/enable_uring

fail() {
    echo "soak: $*" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || fail "mounting needs root"
[ -c /dev/fuse ] || fail "there is no /dev/fuse"
cargo build --release --quiet -p homenode-cli
# fsx, as the tests install it.
fsx=$target/tools/bin/fsx
[ -x "$fsx" ] || env -u CARGO_TARGET_DIR cargo install fsx --version 0.3.2 --locked --quiet --root "$target/tools"
fsx=$(realpath "$fsx")

scratch=$(mktemp -d)
mount=$scratch/mount
mkdir "$mount"
switch_before=''
workers=()
# The pool on a disk, known to nobody else, and its disk.
export HOMENODE_POOLS=$scratch/known
disk=''

cleanup() {
    trap '' HUP INT TERM
    [ -z "$switch_before" ] || echo "$switch_before" >"$switch"
    end_workers
    if mountpoint -q "$mount"; then
        "$homenode" down "$mount" || umount --lazy "$mount"
    fi
    [ -z "$disk" ] || losetup -d "$disk"
    rm -rf --one-file-system "$scratch"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

end_workers() {
    touch "$scratch/stop"
    local pid
    for pid in "${workers[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
    workers=()
}

# Runs a function again and again until it fails, which is noted, or the soak stops. $1: its name, and that of its directory.
# Each round is a process of its own: bash ignores errexit in a function that is called in a condition.
worker() {
    mkdir "$mount/$1"
    local rounds=0
    until [ -e "$scratch/stop" ]; do
        "$1" "$mount/$1" >"$scratch/$1.log" 2>&1 &
        if ! wait $!; then
            cp "$scratch/$1.log" "$scratch/$1.failed"
            break
        fi
        rounds=$((rounds + 1))
    done
    echo "$rounds" >"$scratch/$1.rounds"
}

start_worker() {
    worker "$1" &
    workers+=($!)
}

verified_writes() {
    (cd "$1" && fio --name=buffered --rw=randwrite --ioengine=psync --bsrange=512-300k --bs_unaligned=1 --size=24m \
        --io_size=64m --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --fallocate=none \
        --norandommap=1 --randrepeat=0)
    (cd "$1" && fio --name=direct --rw=randwrite --ioengine=libaio --direct=1 --bsrange=4k-1m --blockalign=4k --iodepth=16 \
        --serialize_overlap=1 --size=24m --io_size=64m --verify=crc32c --verify_fatal=1 --do_verify=1 \
        --verify_state_save=0 --fallocate=none --norandommap=1 --randrepeat=0)
    rm "$1"/*
}

mapped_writes() {
    (cd "$1" && fio --name=mapped --rw=randwrite --ioengine=mmap --bsrange=4k-64k --size=16m --io_size=48m --fsync=64 \
        --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --fallocate=none --norandommap=1 --randrepeat=0)
    rm "$1"/*
}

names() {
    local index
    mkdir "$1/directory"
    for index in {1..200}; do
        echo "$index" >"$1/directory/$index"
        mv "$1/directory/$index" "$1/directory/renamed-$index"
    done
    ln "$1/directory/renamed-1" "$1/link"
    ln -s directory/renamed-2 "$1/symlink"
    [ "$(find "$1/directory" -type f | wc -l)" -eq 200 ]
    [ "$(cat "$1/link" "$1/symlink" "$1/directory/renamed-200")" = $'1\n2\n200' ]
    rm -r "${1:?}"/*
}

attributes() {
    local index
    for index in {1..40}; do
        echo "$index" >"$1/$index"
        setfattr -n user.name -v "value of $index" "$1/$index"
        setfacl -m u:nobody:rw "$1/$index"
    done
    for index in {1..40}; do
        [ "$(getfattr --only-values --absolute-names -n user.name "$1/$index")" = "value of $index" ]
        getfacl --absolute-names "$1/$index" | grep -qx user:nobody:rw-
        setfattr -x user.name "$1/$index"
    done
    rm "$1"/*
}

exerciser() {
    "$fsx" -N 5000 -S "$RANDOM" "$1/file"
    rm -f "$1"/*
}

moves() {
    head -c 8M /dev/urandom >"$1/file"
    local sum member
    sum=$(sha256sum <"$1/file")
    "$homenode" file move "$1/file" --node 0
    if [ "$kind" = disk ]; then
        "$homenode" pool add "$mount" "$scratch/added" --size 64M --direct
    else
        "$homenode" pool add "$mount" --node 0 --size 64M
    fi
    member=$("$homenode" status --json "$mount" | jq '[.pools[0].members[].member] | max')
    cp "$1/file" "$1/copy"
    "$homenode" pool drain "$mount" "$member"
    "$homenode" pool remove "$mount" "$member"
    rm -f "$scratch/added"
    [ "$(sha256sum <"$1/file")" = "$sum" ] && [ "$(sha256sum <"$1/copy")" = "$sum" ]
    rm "$1"/*
}

# A worker with a fault that is not its last command. The soak must tell it, or it would tell nothing.
planted_fault() {
    [ "$(cat "$1")" = nothing ]
    touch "$scratch/stop"
}

all_workers=(verified_writes mapped_writes names attributes exerciser moves)

# KiB of the server's memory besides the pool: its own pages, not the mapped files that members are.
server_memory_kib() {
    awk '/^RssAnon:/ { print $2 }' "/proc/$1/status"
}

mean_kib() {
    printf '%s\n' "$@" | awk '{ sum += $1 } END { printf "%d", sum / NR }'
}

server_descriptors() {
    find "/proc/$1/fd" -mindepth 1 | wc -l
}

# Without the workers that the kernel's io_uring keeps for a ring that has read a disk.
server_threads() {
    # One that ends meanwhile is none.
    { cat /proc/"$1"/task/*/comm 2>/dev/null || true; } | grep -vc '^iou-wrk-'
}

check_workers() {
    local failed
    for failed in "$scratch"/*.failed; do
        [ -e "$failed" ] || continue
        tail -n 40 "$failed" >&2
        fail "$(basename "$failed" .failed) failed: $1"
    done
}

# $1: transport; $2: kind of pool, memory or disk; $3: seconds.
soak() {
    local transport=$1 kind=$2 seconds=$3 server start warm=0
    local what="$transport, $kind"
    local options=(--transport "$transport") left_kib_allowed=$left_kib_max descriptors_left
    if [ "$transport" = uring ]; then
        options+=(--buffers "${ring_buffers_mib}M")
        left_kib_allowed=$((left_kib_max + ring_buffers_mib * 1024))
    fi
    if [ "$kind" = disk ]; then
        truncate --size="$size" "$scratch/disk"
        disk=$(losetup --find --show --direct-io=on "$scratch/disk")
        "$homenode" pool create soak "$disk"
        "$homenode" up soak "$mount" --cache 8M "${options[@]}"
    else
        "$homenode" up "$mount" --size-per-node "$size" "${options[@]}"
    fi
    [ "$("$homenode" status --json "$mount" | jq -r .pools[0].fuse.transport)" = "$transport" ] || fail "not served by $transport"
    server=$("$homenode" status --json "$mount" | jq .pools[0].pid)
    local threads descriptors
    local memory_before samples=()
    memory_before=$(server_memory_kib "$server")
    threads=$(server_threads "$server")
    descriptors=$(server_descriptors "$server")
    descriptors_left=$descriptors
    # A disk that was read by its ring keeps that, and the ring's bell.
    [ "$kind" = memory ] || descriptors_left=$((descriptors + 2))
    rm -f "$scratch/stop" "$scratch"/*.rounds
    local name
    for name in "${all_workers[@]}"; do
        start_worker "$name"
    done
    start=$SECONDS
    local memory memory_warm=0 memory_max=0 descriptors_max=0 threads_max=0 count
    while [ $((SECONDS - start)) -lt "$seconds" ]; do
        sleep 1
        check_workers "$what"
        memory=$(server_memory_kib "$server")
        samples+=("$memory")
        count=$(server_descriptors "$server")
        [ "$count" -le "$descriptors_max" ] || descriptors_max=$count
        count=$(server_threads "$server")
        [ "$count" -le "$threads_max" ] || threads_max=$count
        if [ "$warm" -eq 0 ] && [ $((SECONDS - start)) -ge $((seconds / 6)) ]; then
            warm=1
            memory_warm=$memory
        fi
        [ "$memory" -le "$memory_max" ] || memory_max=$memory
    done
    end_workers
    check_workers "$what"
    for name in "${all_workers[@]}"; do
        echo "soak: $what: $name: $(cat "$scratch/$name.rounds") rounds"
        [ "$(cat "$scratch/$name.rounds")" -gt 0 ] || fail "$name never came to its end: $what"
    done

    memory=$(server_memory_kib "$server")
    echo "soak: $what: server's memory besides the pool: warm $memory_warm KiB, most $memory_max KiB, at the end" \
        "$memory KiB; descriptors $descriptors before, most $descriptors_max; threads $threads before, most $threads_max"
    [ $((memory - memory_warm)) -le "$growth_kib_max" ] || fail "the server grew by $((memory - memory_warm)) KiB"
    local middle last
    middle=$(mean_kib "${samples[@]:${#samples[@]}/3:${#samples[@]}/3}")
    last=$(mean_kib "${samples[@]:${#samples[@]}*2/3}")
    echo "soak: $what: mean of the middle third $middle KiB, of the last third $last KiB"
    [ $((last - middle)) -le "$slope_kib_max" ] || fail "the server's memory does not level off"
    # A command that talks to the server has a thread and a descriptor; adding a member maps its file.
    [ "$descriptors_max" -le $((descriptors + 16)) ] || fail "the server had $descriptors_max descriptors"
    [ "$threads_max" -le $((threads + 16)) ] || fail "the server had $threads_max threads"

    rm -rf "${mount:?}"/*
    # A pool on a disk keeps its log, which is rewritten when it is a sixteenth of the pool and some segments long.
    local attempt report='' log_kib_max=0
    [ "$kind" = memory ] || log_kib_max=73728
    for ((attempt = 0; attempt < 100; attempt++)); do
        report=$("$homenode" status --json "$mount" | jq .pools[0])
        [ "$(jq '.used_bytes + .reserved_bytes' <<<"$report")" -gt $((log_kib_max * 1024)) ] || break
        sleep 0.1
    done
    [ "$(jq '.used_bytes + .reserved_bytes' <<<"$report")" -le $((log_kib_max * 1024)) ] ||
        fail "something is left of removed files: $report"
    [ "$(df --output=used "$mount" | tail -n 1)" -le "$log_kib_max" ] || fail "df: $(df "$mount")"
    [ "$(jq .fuse.panics <<<"$report")" -eq 0 ] || fail "the server met a bug of its own: $report"
    [ "$(server_descriptors "$server")" -le "$descriptors_left" ] || fail "descriptors are left: $(ls -l "/proc/$server/fd")"
    [ "$(server_threads "$server")" -le "$threads" ] || fail "threads are left: $(sort /proc/"$server"/task/*/comm | uniq -c)"
    # Freed memory leaves the heap on a timer of some seconds.
    for ((attempt = 0; attempt < 200; attempt++)); do
        memory=$(server_memory_kib "$server")
        [ $((memory - memory_before)) -gt "$left_kib_allowed" ] || break
        sleep 0.1
    done
    echo "soak: $what: memory before the load $memory_before KiB, with everything removed $memory KiB"
    [ $((memory - memory_before)) -le "$left_kib_allowed" ] || fail "memory of removed files is not given back"
    echo "soak: $what: $(jq .fuse.requests <<<"$report") requests, no panic, all space given back"
    "$homenode" down "$mount"
    if [ "$kind" = disk ]; then
        "$homenode" fsck soak
        "$homenode" pool export soak
        losetup -d "$disk"
        disk=''
        rm "$scratch/disk"
    fi
}

worker planted_fault
[ -e "$scratch/planted_fault.failed" ] || fail "the fault that was planted was not told"
rm -r "$mount/planted_fault" "$scratch"/planted_fault.*

transports=(classic)
if ! [ -e "$switch" ]; then
    echo "SKIPPED: rings: this kernel has no FUSE over io_uring (Linux 6.14 and newer have it)"
else
    if [ "$(cat "$switch")" != Y ]; then
        switch_before=$(cat "$switch")
        echo Y >"$switch"
    fi
    transports+=(uring)
fi
for transport in "${transports[@]}"; do
    for kind in disk memory; do
        soak "$transport" "$kind" $((seconds / ${#transports[@]} / 2))
    done
done

# Processes that are killed at work on a disk below a cache, and disks that hang or die.
HOMENODE_TEST_KILLS=100 cargo test --quiet -p homenode --test durable killed
cargo test --quiet -p homenode --test lost_disk --test cached
# Faults under load, at 17 moments each by each transport: more than 200 mounts that are taken away.
HOMENODE_TEST_ROUNDS=17 cargo test --quiet -p homenode-cli --test faults faults::server

# Programs that copy beside programs that cut: a minute of each, and copies that are stopped at each instruction.
HOMENODE_TEST_SECONDS=60 HOMENODE_TEST_STEPS=all cargo test --quiet -p homenode-client --test faults
