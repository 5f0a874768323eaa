#!/bin/sh
# Records real requests of the kernel and makes the seeds of the fuzz targets request and ring of them (fuzz/seeds). Needs
# root and strace.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --workspace --bins --examples

work=$(mktemp -d)
mount=$work/mount
mkdir "$mount"
strace -f -xx -s 1024 -e trace=read -o "$work/trace" \
    "$target/debug/homenode" up --foreground --transport classic --data pool --size-per-node 16M "$mount" &
server=$!
trap 'umount -l "$mount" 2>/dev/null || true; wait $server || true; rm -rf --one-file-system "$work"' EXIT
attempts=0
until mountpoint -q "$mount"; do
    attempts=$((attempts + 1))
    [ "$attempts" -lt 200 ] || exit 1
    sleep 0.1
done

# Each kind of request, with little data.
(
    cd "$mount"
    mkdir directory
    echo short >file
    head -c 300 /dev/zero >longer
    cat file
    cp --sparse=always longer sparse
    cp --reflink=never file copy
    mknod pipe p
    ln file link
    ln -s 'target of the link' symlink
    readlink symlink
    mv --no-clobber copy directory/moved
    mv directory/moved file
    setfattr -n user.name -v value file
    getfattr -n user.name file
    getfattr -d file
    setfattr -x user.name file
    setfacl -m u:nobody:r file
    getfacl file
    truncate -s 100 longer
    touch -d 2001-01-01 longer
    chmod 600 longer
    chown 1:1 longer
    fallocate -l 8192 longer
    fallocate --punch-hole -o 0 -l 4096 longer
    flock file true
    sync file
    sync -f file
    df .
    ls -la . directory missing || true
    echo 3 >/proc/sys/vm/drop_caches
    dd if=file of=longer bs=100 oflag=direct conv=notrunc
    ls -la
    rm pipe link
    rmdir directory
) >/dev/null 2>&1
umount "$mount"
wait $server || true
rm -rf fuzz/seeds/request fuzz/seeds/ring
"$target/debug/examples/fuzz_seeds" fuzz/seeds <"$work/trace"
