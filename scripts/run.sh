#!/bin/bash
# Shows the filesystem at work: mounts a pool on ./mnt, copies real trees into it, has rsync verify them, lets fio read
# and write there and on tmpfs, prints one table, and takes everything down again, on Ctrl-C too.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
repository=$PWD
mount_point=$repository/mnt
homenode=${CARGO_TARGET_DIR:-target}/release/homenode
size_per_node=1G
file_bytes=$((128 << 20))
seconds=2

fail() {
    echo "run: $*" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || fail "mounting a filesystem needs root: run 'make run' as root"
[ -c /dev/fuse ] || fail "there is no /dev/fuse: load the kernel's fuse module, or give the container the device"

cargo build --release -p homenode-cli

# Unmounts the pool. After Ctrl-C, what this script started may take a moment to end, and uses the mount until then.
take_down() {
    local message attempt
    for ((attempt = 0; attempt < 50; attempt++)); do
        mountpoint -q "$mount_point" || return 0
        message=$("$homenode" down "$mount_point" 2>&1) && return 0
        sleep 0.1
    done
    echo "$message" >&2
    umount --lazy "$mount_point"
}

scratch=''
cleanup() {
    trap '' INT TERM
    take_down
    rmdir "$mount_point" 2>/dev/null || true
    if [ -n "$scratch" ]; then
        for peer in "$scratch"/tmpfs*; do
            mountpoint -q "$peer" && umount --lazy "$peer"
        done
        rm -rf --one-file-system "$scratch"
    fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$mount_point"
"$homenode" up "$mount_point" --size-per-node "$size_per_node"
mountpoint -q "$mount_point" || fail "'homenode up' succeeded, but nothing is mounted on $mount_point"
scratch=$(mktemp -d)
mkdir "$scratch/tmpfs" "$scratch/tmpfs-huge"
mount -t tmpfs -o size="$size_per_node" tmpfs "$scratch/tmpfs"
if ! mount -t tmpfs -o size="$size_per_node",huge=always tmpfs "$scratch/tmpfs-huge"; then
    fail "this kernel has no huge pages for tmpfs (CONFIG_TRANSPARENT_HUGEPAGE): there is nothing to compare with"
fi
targets=("$mount_point" "$scratch/tmpfs" "$scratch/tmpfs-huge")

tracked() {
    git -c safe.directory="$repository" ls-files -z
}

# Copies a tree to a directory. $1: include or repository; $2: the directory.
copy() {
    case $1 in
    include)
        rsync -aHAX /usr/include/ "$2/include/"
        ;;
    repository)
        mkdir -p "$2/repository"
        cp -a .git "$2/repository/"
        tracked | rsync -aHAX --ignore-missing-args --from0 --files-from=- ./ "$2/repository/"
        ;;
    esac
}

# Prints every difference between a tree and its copy, by content, links, modes, owners, times, ACLs and attributes.
differences() {
    case $1 in
    include)
        rsync -nacHAX --delete --itemize-changes /usr/include/ "$2/include/"
        ;;
    repository)
        rsync -nacHAX --delete --itemize-changes .git "$2/repository/"
        tracked | rsync -nacHAX --ignore-missing-args --itemize-changes --from0 --files-from=- ./ "$2/repository/"
        ;;
    esac
}

# Where the bytes of the files named on standard input (each ended by a NUL) lie, such as "node 0: 512 MiB".
where_bytes_lie() {
    xargs -0 getfattr --absolute-names -n user.homenode.map -- |
        sed -n 's/^user.homenode.map="\(.*\)"$/\1/p' | tr ',' '\n' | awk -F= '
        NF == 2 { bytes[$1] += $2; if ($1 + 0 > last) last = $1 + 0 }
        END { for (node = 0; node <= last; node++) if (node in bytes) {
            printf "%snode %d: %.1f MiB", separator, node, bytes[node] / 1048576; separator = ", " } }'
}

table=$scratch/table
row() {
    printf '%-22s %10s %10s %7s %10s %7s  %s\n' "$@" >>"$table"
}

# $1: what; $2 to $4: MB/s on the mount, tmpfs, tmpfs with huge pages; $5: where the bytes lie.
row_of_speeds() {
    row "$1" "$2" "$3" "$(ratio "$2" "$3")" "$4" "$(ratio "$2" "$4")" "$5"
}

ratio() {
    awk -v ours="$1" -v theirs="$2" 'BEGIN { if (theirs == "-") print "-"; else printf "%.2fx", ours / theirs }'
}

row "MB/s" homenode tmpfs ratio tmpfs-huge ratio "where the bytes lie"

for tree in include repository; do
    speeds=()
    # Not to huge pages: there each small file would first clear 2 MiB.
    for target in "$mount_point" "$scratch/tmpfs"; do
        start=$(date +%s%N)
        copy "$tree" "$target"
        end=$(date +%s%N)
        bytes=$(du -s --apparent-size -B1 "$target/$tree" | cut -f1)
        speeds+=("$(awk -v bytes="$bytes" -v ns=$((end - start)) 'BEGIN { printf "%.1f", bytes * 1000 / ns }')")
    done
    found=$(differences "$tree" "$mount_point")
    [ -z "$found" ] || fail "the copy of $tree differs from the original:"$'\n'"$found"
    count=$(find "$mount_point/$tree" | wc -l)
    echo "copied and verified $tree: $count files, directories and links, no difference found by rsync"
    where=$(find "$mount_point/$tree" -type f -print0 | where_bytes_lie)
    row_of_speeds "copy $tree" "${speeds[@]}" - "$where"
done

jobs=$(nproc)
[ "$jobs" -le 2 ] || jobs=2
# $1: directory; the rest: what to do. Prints MB/s.
fio_speed() {
    local directory=$1
    shift
    fio --name=smoke --directory="$directory" --ioengine=psync --fallocate=none --size=$file_bytes --numjobs="$jobs" \
        --group_reporting --output-format=json "$@" |
        jq '.jobs[0] | (.read.bw_bytes + .write.bw_bytes) / 1e6 * 10 | round / 10'
}

for target in "${targets[@]}"; do
    fio_speed "$target" --rw=write --bs=1M >/dev/null
done
for size in 4k 1M; do
    for operation in randwrite randread; do
        speeds=()
        for target in "${targets[@]}"; do
            speeds+=("$(fio_speed "$target" --rw=$operation --bs=$size --time_based --runtime=$seconds)")
        done
        where=$(printf '%s\0' "$mount_point"/smoke.* | where_bytes_lie)
        row_of_speeds "fio $operation $size" "${speeds[@]}" "$where"
    done
done

echo
cat "$table"
echo
echo "fio: psync, $jobs jobs, fallocate=none, files laid out before; the mount is a FUSE filesystem, its reads come from"
echo "the page cache once there. The library, which is what the project is fast at, is measured by 'make bench'."
echo
"$homenode" status "$mount_point"
