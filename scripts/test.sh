#!/bin/sh
# Everything that must hold before a commit. cargo's own tests run last, so that their summary ends the output.
set -eu
cd "$(dirname "$0")/.."
exec </dev/null
target=${CARGO_TARGET_DIR:-target}

# Rings, where the kernel has them: on for the tests, and at their end as they were.
switch=/sys/module/fuse/parameters/enable_uring
switch_before=''
trap '[ -z "$switch_before" ] || echo "$switch_before" >"$switch"' EXIT
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

step() {
    printf '\n== %s\n' "$*"
}

step "format"
cargo fmt --all --check
scripts/check-prose.sh

step "lints"
cargo clippy --workspace --all-targets --quiet -- -D warnings

step "interleavings of the lock-free code (loom)"
# Two threads, in each model of crates/shared: slots and gates, sleepers at a gate, maps (finding, filling, growing, moving,
# runs filled and made), maps behind gates (taking away, reserving, freeing nodes), rings, tags, buckets, remapping, freezing.
# Models that call `bounded` or set a preemption_bound run all interleavings of so many preemptions, the others all there are.
# Loom does not know membarrier(2): see crates/shared/src/barrier.rs. Miri would check `shared` and `policy`, but the
# pinned stable toolchain has no miri component, so it is not run here.
# An own target directory: other flags would rebuild everything in the common one, twice.
loom() {
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$target/loom" cargo test -p homenode-shared --release --lib loom -- "$@"
}
loom
if ! loom --list 2>/dev/null | grep -q ': test$'; then
    echo "test: there is no loom test in homenode-shared: nothing was checked" >&2
    exit 1
fi

step "the fuzz targets compile"
# Without instrumentation, so that the compiler in use will do; and without the fuzzer's engine in C++, as nothing is linked.
CUSTOM_LIBFUZZER_PATH=/nonexistent/libfuzzer.a CARGO_TARGET_DIR="$target" cargo check --quiet --locked --manifest-path fuzz/Cargo.toml

step "build"
cargo build --workspace --examples --bins
cargo build --package homenode-client

step "the library's examples"
"$target/debug/examples/placement"
"$target/debug/examples/blk"

step "benches, small: they work; their numbers mean nothing here"
"$target/debug/homenode-bench" fs --smoke
"$target/debug/homenode-bench" metadata --smoke
"$target/debug/homenode-bench" mount --smoke
"$target/debug/homenode-bench" blk --smoke
"$target/debug/homenode-bench" cache --smoke
if [ "$(id -u)" -eq 0 ]; then
    "$target/debug/homenode-bench" affinity --smoke --only daemon
    "$target/debug/homenode-bench" durable --smoke --directory "$target"
    "$target/debug/homenode-bench" preload --smoke
else
    echo "SKIPPED: what core affinity's daemon costs, durable pools beside ext4 and xfs, programs under homenode run: only root may run these"
fi

step "package: installed, used and removed"
HOMENODE_BINARY="$target/debug/homenode" scripts/test-package.sh

step "the lab: a guest with two nodes"
scripts/lab-smoke.sh

step "examples in the documentation"
cargo test --workspace --doc

step "crashes of durable pools: planted faults are found"
cargo test -p homenode-engine --features planted --test crash planted

# What is done on a mount is done by each transport, with each kind of body. Last, all tests by the better transport, with files of the
# kernel where it offers to pass reads and writes through.
mounted() {
    step "tests of a mount: $1, data $2"
    HOMENODE_TEST_TRANSPORT=$1 HOMENODE_TEST_DATA=$2 \
        cargo test --workspace --test mount --test posix --test exercise
}
mounted "$transport" pool
step "faults of a mount, data pool"
HOMENODE_TEST_DATA=pool cargo test --package homenode-cli --test faults
step "programs at work on a mount, their reads and writes as copies"
runner=CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER
env "$runner=$(realpath "$target")/debug/homenode run --" HOMENODE_TEST_DATA=auto \
    cargo test --package homenode-cli --test exercise --test posix
if [ "$transport" = uring ]; then
    mounted classic pool
    mounted classic auto
    step "tests, a mount's through rings"
else
    echo "SKIPPED: tests of a mount through rings: $no_rings"
    step "tests"
fi
HOMENODE_TEST_TRANSPORT=$transport HOMENODE_TEST_DATA=auto cargo test --workspace --lib --bins --tests
