#!/bin/sh
# Everything that must hold before a commit. cargo's own tests run last, so that their summary ends the output.
set -eu
cd "$(dirname "$0")/.."
exec </dev/null
target=${CARGO_TARGET_DIR:-target}

step() {
    printf '\n== %s\n' "$*"
}

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --quiet -- -D warnings

step "every interleaving of the lock-free code (loom)"
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
# Without instrumentation, so that the compiler in use will do. An own target directory, as they are a workspace of their own.
CARGO_TARGET_DIR="$target/fuzz" cargo check --quiet --locked --manifest-path fuzz/Cargo.toml

step "build"
cargo build --workspace --examples --bins

step "the library's example"
"$target/debug/examples/placement"

step "benches, small: they work; their numbers mean nothing here"
"$target/debug/homenode-bench" fs --smoke
"$target/debug/homenode-bench" metadata --smoke
"$target/debug/homenode-bench" mount --smoke

step "package: installed, used and removed"
HOMENODE_BINARY="$target/debug/homenode" scripts/test-package.sh

step "examples in the documentation"
cargo test --workspace --doc

step "tests"
cargo test --workspace --lib --bins --tests
