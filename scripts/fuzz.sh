#!/bin/sh
# Fuzzes the decoder of FUSE requests. FUZZ_SECONDS says for how long; the default is a minute. What it finds lies in
# fuzz/artifacts, with the command that runs it again.
set -eu
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}

# cargo-fuzz is a command of its own, and the sanitizers are in nightly compilers only.
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz: installing cargo-fuzz"
    cargo install --locked cargo-fuzz
fi
if ! rustup toolchain list | grep -q '^nightly'; then
    echo "fuzz: installing a nightly compiler"
    rustup toolchain install nightly --profile minimal
fi
for target in fuzz/fuzz_targets/*.rs; do
    cargo +nightly fuzz run "$(basename "$target" .rs)" -- -max_total_time="$seconds"
done
