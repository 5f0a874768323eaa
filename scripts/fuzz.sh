#!/bin/sh
# Fuzzes the decoders: what the kernel sends, from the device and through rings; the journal of core affinity, recordings,
# and what is sensed; what clients of `homenode web` send. FUZZ_SECONDS says for how long altogether; the default is ten minutes. It starts from fuzz/seeds, of which
# scripts/fuzz-seeds.sh makes the real requests; what it learns is kept in fuzz/corpus, what it finds in fuzz/artifacts, with
# the command that runs it again.
set -eu
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-600}

# cargo-fuzz is a command of its own, and the sanitizers are in nightly compilers only.
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz: installing cargo-fuzz"
    cargo install --locked cargo-fuzz
fi
if ! rustup toolchain list | grep -q '^nightly'; then
    echo "fuzz: installing a nightly compiler"
    rustup toolchain install nightly --profile minimal
fi
count=$(find fuzz/fuzz_targets -name '*.rs' | wc -l)
for file in fuzz/fuzz_targets/*.rs; do
    target=$(basename "$file" .rs)
    mkdir -p "fuzz/corpus/$target"
    # libFuzzer adds to the first directory only.
    cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- -max_total_time=$((seconds / count)) \
        -print_final_stats=1
done
