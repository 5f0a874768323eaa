#!/bin/sh
# Interleavings of the lock-free code. `scripts/loom.sh --include-ignored` runs the model that takes minutes, too.
#
# Two or three threads, in each model of crates/shared: slots and gates, sleepers at a gate, maps (finding, filling, growing,
# moving, runs filled and made), maps behind gates (taking away, reserving, freeing nodes), frames of the cache, rings, tags,
# buckets, words that clients share, remapping, freezing. Models that call `bounded` or set a preemption_bound run all
# interleavings of so many preemptions, the others all there are. Loom does not know membarrier(2): see
# crates/shared/src/barrier.rs. Miri would check `shared` and `policy`, but the pinned stable toolchain has no miri component,
# so it is not run here.
set -eu
cd "$(dirname "$0")/.."

# An own target directory: other flags would rebuild everything in the common one, twice. Each model in a process of its own: most
# of its time is the kernel's, which maps and unmaps stacks of the model's threads, and would wait for the other models' there.
built=$(RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" \
    cargo test -p homenode-shared --lib --no-run --message-format=json-render-diagnostics)
binary=$(printf '%s\n' "$built" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
models=$("$binary" --list loom | sed -n 's/: test$//p')
if [ -z "$models" ]; then
    echo "loom: there is no loom test in homenode-shared: nothing was checked" >&2
    exit 1
fi
# shellcheck disable=SC2016
echo "$models" | xargs -P "$(nproc)" -I{} sh -c '
    name=$1; binary=$2; shift 2
    out=$("$binary" --exact "$name" "$@" 2>&1) || { echo "$out"; exit 1; }
    echo "$out" | grep "^test .*\.\.\."
' sh {} "$binary" "$@"
