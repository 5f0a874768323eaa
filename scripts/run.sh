#!/bin/bash
# Shows the filesystem at work: `homenode demo`, with its mounts below ./mnt. Ctrl-C takes everything down.
# RING=1 allows rings (FUSE over io_uring) while it runs; afterwards the switch is as it was.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
    echo "run: mounting a filesystem needs root: run 'make run' as root" >&2
    exit 1
fi
cargo build --release -p homenode-cli -p homenode-client
set -- "${CARGO_TARGET_DIR:-target}/release/homenode" demo mnt "$@"
if [ "${RING:-0}" != 1 ]; then
    exec "$@"
fi
switch=/sys/module/fuse/parameters/enable_uring
if ! before=$(cat "$switch"); then
    echo "run: RING=1: this kernel has no FUSE over io_uring: it needs Linux 6.14 or newer, and the module fuse loaded" >&2
    exit 1
fi
trap 'echo "$before" >"$switch"' EXIT
echo Y >"$switch"
"$@" &
# The demo takes its mounts down first, then the switch goes back.
trap 'kill -TERM $!' INT TERM HUP
code=0
wait $! || code=$?
while kill -0 $! 2>/dev/null; do
    wait $! || code=$?
done
exit "$code"
