#!/bin/sh
# One guest of the lab, with two nodes: it boots, and its kernel has the nodes. For `make test`. SKIPPED, with the reason,
# where what a guest needs cannot be had.
set -eu
cd "$(dirname "$0")/.."

skip() {
    echo "SKIPPED the lab: $*"
    exit 0
}

[ -x /usr/bin/python3 ] || skip "there is no /usr/bin/python3 (Debian's package python3)"
# Fetches some 200 MB the first time, and nothing later.
status=0
said=$(timeout 300 lab/prepare 2>&1) || status=$?
case $status in
0) ;;
3) skip "$said" ;;
124) skip "make lab took more than 300 s; run it once by itself" ;;
*) echo "$said" >&2 && exit 1 ;;
esac
echo "$said"

nodes=$(lab/run --nodes 2 --cpus-per-node 1 --mem 256M --boot-timeout 120 --timeout 60 -- \
    cat /sys/devices/system/node/online /sys/devices/system/node/node1/cpulist) || status=$?
if [ "$status" -ne 0 ] || [ "$nodes" != "$(printf '0-1\n1')" ]; then
    echo "lab: the guest of two nodes ended with status $status and told: $nodes" >&2
    exit 1
fi
echo "lab: a guest of two nodes works"
