#!/bin/bash
# Everything that must hold before a commit. cargo's own tests run last. What was SKIPPED is told once more at the end.
set -eu
cd "$(dirname "$0")/.."
exec </dev/null
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
log=$target/test.log
exec > >(trap "" HUP; exec tee -i "$log") 2>&1

# Rings, where the kernel has them: on for the tests, and at their end as they were.
switch=/sys/module/fuse/parameters/enable_uring
switch_before=''
benches=''
# All that was said comes out, and is in the log.
end_log() {
    echo "== $1"
    for _ in $(seq 50); do
        tail -n 1 "$log" | grep -qxF "== $1" && return 0
        sleep 0.1
    done
}

finish() {
    # A bench ends its mounts before it ends.
    if [ -n "$benches" ]; then
        pkill -P "$benches" || true
        wait "$benches" || true
    fi
    [ -z "$switch_before" ] || echo "$switch_before" >"$switch"
    [ -z "$benches" ] || cat "$target/benches.log" || true
    end_log "the end"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
transport=classic
no_rings=''
if ! [ -e "$switch" ]; then
    no_rings='this kernel has no FUSE over io_uring (Linux 6.14 and newer have it)'
elif [ "$(cat "$switch")" = Y ]; then
    transport=uring
elif ! [ -w "$switch" ]; then
    no_rings="they are off, and only root may switch them on: echo Y > $switch"
else
    switch_before=$(cat "$switch")
    echo Y >"$switch"
    transport=uring
fi

# Many tests wait more than they compute.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) > 4 ? $(nproc) : 4))}"

step() {
    printf '\n== %s\n' "$*"
}

step "format"
cargo fmt --all --check
scripts/check-prose.sh

step "lints"
cargo clippy --workspace --all-targets --quiet -- -D warnings

step "interleavings of the lock-free code (loom)"
scripts/loom.sh

step "the fuzz targets compile"
# Without instrumentation, so that the compiler in use will do; and without the fuzzer's engine in C++, as nothing is linked.
CUSTOM_LIBFUZZER_PATH=/nonexistent/libfuzzer.a CARGO_TARGET_DIR="$target" cargo check --quiet --locked --manifest-path fuzz/Cargo.toml

# Each step names the whole workspace: of a single package, cargo chooses other features of what it depends on, and builds that anew.
step "build"
cargo test --workspace --tests --no-run
cargo build --workspace --examples --bins
cargo build --package homenode-client

step "the library's examples"
"$target/debug/examples/placement"
"$target/debug/examples/blk"

# They wait for much, so they go on beside the next steps; their output comes when they have ended.
benches() {
    "$target/debug/homenode-bench" fs --smoke
    "$target/debug/homenode-bench" metadata --smoke
    "$target/debug/homenode-bench" mount --smoke
    "$target/debug/homenode-bench" blk --smoke
    "$target/debug/homenode-bench" cache --smoke
    if [ "$(id -u)" -eq 0 ]; then
        "$target/debug/homenode-bench" affinity --smoke --only daemon
        "$target/debug/homenode-bench" durable --smoke --directory "$target"
        "$target/debug/homenode-bench" preload --smoke --case 4k --case other
    else
        echo "SKIPPED: what core affinity's daemon costs, durable pools beside ext4 and xfs, programs under homenode run: only root may run these"
    fi
}
benches >"$target/benches.log" 2>&1 &
benches=$!

step "package: installed, used and removed"
HOMENODE_BINARY="$target/debug/homenode" scripts/test-package.sh

step "engines on mounts: killed, full, lost"
HOMENODE="$target/debug/homenode" scripts/engines-small.sh

step "the lab: a guest with two nodes"
scripts/lab-smoke.sh

step "examples in the documentation"
cargo test --workspace --doc

# What is done on a mount is done by each transport, with each kind of body. Programs at work are left out where the pool's blocks are
# reached without rings: they have each transport and each kind of body in the other pairs. Last, all tests by the better transport, with
# files of the kernel where it offers to pass reads and writes through.
mounted() {
    step "tests of a mount: $1, data $2"
    HOMENODE_TEST_TRANSPORT=$1 HOMENODE_TEST_DATA=$2 \
        cargo test --workspace --test mount --test posix ${3:+--test "$3"}
}
mounted "$transport" pool exercise

step "benches, small: they work; their numbers mean nothing here"
ended=0
wait "$benches" || ended=$?
benches=''
cat "$target/benches.log"
[ "$ended" -eq 0 ] || exit "$ended"

step "faults of a mount, data pool"
HOMENODE_TEST_DATA=pool cargo test --workspace --test faults
step "programs at work on a mount, their reads and writes as copies"
runner=CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER
# The posix suite is not run so: it hardly uses a descriptor often enough, and makes most calls without the C library.
ended=0
env "$runner=$(realpath "$target")/debug/homenode run --stats --" HOMENODE_TEST_DATA=auto \
    cargo test --workspace --test exercise 2>"$target/copies.log" || ended=$?
cat "$target/copies.log"
[ "$ended" -eq 0 ] || exit "$ended"
# Of the tests' own process, which ends last. They cut their files all the time, and most calls find a file that is being cut: runs had 873 to 2,384.
copies=$(awk '/^homenode run: process/ { copies = $5 } END { print copies + 0 }' "$target/copies.log")
if [ "$(id -u)" -ne 0 ] || [ "$(printf '%s\n' 6.9 "$(uname -r)" | sort -V | head -n 1)" != 6.9 ]; then
    echo "SKIPPED: copies: they need root and Linux 6.9"
elif [ "$copies" -lt 200 ]; then
    echo "only $copies reads and writes of the stamps were copies" >&2
    exit 1
fi
if [ "$transport" = uring ]; then
    mounted classic pool
    mounted classic auto exercise
else
    echo "SKIPPED: tests of a mount through rings: $no_rings"
fi

step "all tests; mounts use the transport $transport"
HOMENODE_TEST_TRANSPORT=$transport HOMENODE_TEST_DATA=auto cargo test --workspace --tests

end_log "all tests have passed"
skipped=$(grep -a 'SKIPPED' "$log" || true)
if [ -n "$skipped" ]; then
    printf '\nNOT TESTED HERE:\n%s\n' "$skipped"
    [ "${HOMENODE_TEST_ALL:-}" != 1 ] || exit 1
fi
