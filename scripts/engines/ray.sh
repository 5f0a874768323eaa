# Ray: objects that do not fit into its store are spilled to a mount. scripts/engines.sh sources it.
# shellcheck shell=bash

# $1: directory; the rest: what ray_spill.py takes more. Other lines than its own are of Ray.
ray_spill() {
    local directory=$1
    shift
    HOME=$scratch nice -n 5 "$store/python/bin/python" scripts/engines/ray_spill.py "$directory" "$scratch/r" 24 "$@" 2>"$scratch/ray.log" |
        sed -n 's/^result: //p'
}

ray() {
    local mount=$scratch/ray tmpfs=$scratch/ray-tmpfs disk=$scratch/ray-disk wait=$scratch/ray-wait place round said status job rates=''
    virtual_environment "$store/python" "${python_packages[@]}"
    mkdir "$tmpfs" "$disk"
    mount -t tmpfs -o size=1G,huge=never homenode-engines "$tmpfs"
    mounts+=("$tmpfs")

    # Full: Ray tells it, and no object is wrong.
    bring_up "$mount" 96M
    status=0
    said=$(ray_spill "$mount") || status=$?
    [ "$status" -eq 3 ] && [ "$said" = OutOfDiskError ] || fail "Ray on a full pool: $status: $said $(tail -n 3 "$scratch/ray.log")"
    take_down "$mount"

    # Lost after objects were spilled: they cannot be got, and none is wrong.
    bring_up "$mount" 1G
    ray_spill "$mount" "$wait" >"$scratch/ray-lost.log" &
    job=$!
    children=("$job")
    until_true 90 test -e "$wait" || fail "Ray does not spill: $(tail -n 3 "$scratch/ray.log")"
    lose "$mount"
    rm "$wait"
    status=0
    wait "$job" || status=$?
    children=()
    [ "$status" -eq 3 ] || fail "Ray on a lost pool: $status: $(cat "$scratch/ray-lost.log") $(tail -n 3 "$scratch/ray.log")"
    bring_up "$mount" 1G

    for ((round = 0; round < rounds; round++)); do
        for place in "$mount" "$tmpfs" "$disk"; do
            said=$(ray_spill "$place") || fail "Ray on $place: $said $(tail -n 3 "$scratch/ray.log")"
            rates+="$(basename "$place") $(awk '{ print 384 / $1, $2 }' <<<"$said")"$'\n'
        done
    done
    echo "Ray: ok: $((3 * rounds)) times 24 objects of 16 MiB byte by byte, $(awk 'END { print $3 }' <<<"${rates%$'\n'}") MiB of them spilled; full: OutOfDiskError; lost: $(cat "$scratch/ray-lost.log"); back: right"
    ratios "Ray put and get with spilling, MiB/s" ray ray-tmpfs ray-disk 2 <<<"$rates"
    take_down "$mount"
    umount "$tmpfs"
}
