#!/bin/bash
# Shows the filesystem at work: `homenode demo`, with its mounts below ./mnt. Ctrl-C takes everything down.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
    echo "run: mounting a filesystem needs root: run 'make run' as root" >&2
    exit 1
fi
cargo build --release -p homenode-cli
exec "${CARGO_TARGET_DIR:-target}/release/homenode" demo mnt "$@"
