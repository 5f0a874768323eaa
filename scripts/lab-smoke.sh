#!/bin/sh
# One guest of the lab, with two nodes: it boots, and its kernel has the nodes. For `make test`. SKIPPED, with the reason,
# where what a guest needs cannot be had. Takes ten seconds, half a minute more where the cache is empty; at most twelve minutes.
set -eu
cd "$(dirname "$0")/.."

# What `make lab` may take: it fetches some 200 MB the first time, and nothing later.
prepare_s=300
# What a guest may take: two boots of 120 s and a command of 60 s. The rest is for another guest to end.
guest_s=420

skip() {
    echo "SKIPPED the lab: $*"
    exit 0
}

[ -x /usr/bin/python3 ] || skip "there is no /usr/bin/python3 (Debian's package python3)"
status=0
# Its progress is shown as it comes; what it ends with is the reason. In the foreground, so that Ctrl-C reaches it.
exec 3>&1
said=$(timeout --foreground "$prepare_s" lab/prepare 2>&1 >&3) || status=$?
case $status in
0) ;;
3) skip "${said#lab: }" ;;
124) skip "make lab took more than $prepare_s s; run it once by itself" ;;
*) echo "$said" >&2 && exit 1 ;;
esac

nodes=$(timeout --foreground --preserve-status --signal INT "$guest_s" \
    lab/run --nodes 2 --cpus-per-node 1 --mem 256M --boot-timeout 120 --timeout 60 -- \
    cat /sys/devices/system/node/online /sys/devices/system/node/node1/cpulist) || status=$?
[ "$status" -ne 130 ] || skip "other guests of this cache did not end within two minutes"
if [ "$status" -ne 0 ] || [ "$nodes" != "$(printf '0-1\n1')" ]; then
    echo "lab: the guest of two nodes ended with status $status and told: $nodes" >&2
    exit 1
fi
echo "lab: a guest of two nodes works"
