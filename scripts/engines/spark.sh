# Spark: shuffles with the local directories on a mount. scripts/engines.sh sources it.
# shellcheck shell=bash

# $1: directory; $2: rows.
spark_shuffle() {
    nice -n 5 "$store/python/bin/python" scripts/engines/spark_shuffle.py "$1" "$2" 2>"$scratch/spark.log"
}

spark() {
    local mount=$scratch/spark tmpfs=$scratch/spark-tmpfs disk=$scratch/spark-disk place round said status job rates=''
    virtual_environment "$store/python" "${python_packages[@]}"
    mkdir "$tmpfs" "$disk"
    mount -t tmpfs -o size=2G,huge=never homenode-engines "$tmpfs"
    mounts+=("$tmpfs")

    # Full: the job fails, with the reason.
    bring_up "$mount" 64M
    status=0
    said=$(spark_shuffle "$mount" 1000000) || status=$?
    [ "$status" -eq 3 ] || fail "Spark on a full pool: $status: $said $(tail -n 3 "$scratch/spark.log")"
    [ "$said" = 'No space left on device' ] || fail "Spark on a full pool: $said"
    take_down "$mount"

    # Lost in the middle: the job fails, and the next one runs on the pool that is back.
    bring_up "$mount" 2G
    spark_shuffle "$mount" 6000000 >"$scratch/spark-lost.log" &
    job=$!
    children=("$job")
    until_true 90 eval "[ \$(used_mib $mount) -gt 100 ]" || fail "Spark writes nothing to its pool"
    lose "$mount"
    status=0
    wait "$job" || status=$?
    children=()
    [ "$status" -ne 0 ] || fail "Spark did not miss the pool that was lost: $(cat "$scratch/spark-lost.log")"
    bring_up "$mount" 2G

    for ((round = 0; round < rounds; round++)); do
        for place in "$mount" "$tmpfs" "$disk"; do
            said=$(spark_shuffle "$place" 1000000) || fail "Spark on $place: $said $(tail -n 3 "$scratch/spark.log")"
            rates+="$(basename "$place") $(awk '{ print 1000 / $1, $2 }' <<<"$said")"$'\n'
        done
    done
    echo "Spark: ok: $((3 * rounds)) shuffles of 1000000 rows, each $(awk 'END { print $3 }' <<<"${rates%$'\n'}") MiB in files, same sums as without a shuffle; full, lost: the job fails; back: right"
    ratios "Spark shuffle and sort, 1000 rows/s" spark spark-tmpfs spark-disk 2 <<<"$rates"
    take_down "$mount"
    umount "$tmpfs"
}
