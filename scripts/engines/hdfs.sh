# HDFS: a NameNode and a DataNode with a disk and a RAM disk on a mount. scripts/engines.sh sources it.
# shellcheck shell=bash

hdfs_program() {
    local heap=$1
    shift
    java "-Xmx$heap" -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$hdfs/conf:$hdfs_classes" "$@"
}

# $1: number of its storages.
hdfs_start_datanode() {
    java -Xmx400m -Dorg.slf4j.simpleLogger.defaultLogLevel=info -cp "$hdfs/conf:$hdfs_classes" StartDataNode >"$hdfs/datanode.log" 2>&1 &
    datanode=$!
    children=("$namenode" "$datanode")
    until_true 30 grep "Successfully sent block report .* containing $1 storage report" "$hdfs/datanode.log" ||
        fail "HDFS: the DataNode does not come: $(grep -E 'ERROR|WARN' "$hdfs/datanode.log" | tail -n 5)"
}

hdfs_files() {
    hdfs_program 300m Files "$@" 2>"$hdfs/files.log"
}

hdfs() {
    local hdfs=$scratch/hdfs mount=$scratch/hdfs-pool tmpfs=$scratch/hdfs-tmpfs namenode datanode property
    local hdfs_classes rates
    mkdir -p "$hdfs/conf" "$hdfs/classes" "$tmpfs"
    hdfs_classes=$hdfs/classes:$(maven_classes hadoop)
    javac -cp "$hdfs_classes" -d "$hdfs/classes" scripts/engines/hadoop/*.java
    bring_up "$mount" 1G
    mount -t tmpfs -o size=1G,huge=never homenode-engines "$tmpfs"
    mounts+=("$tmpfs")
    mkdir "$mount/ram" "$mount/fast"
    {
        echo '<configuration>'
        while read -r property; do
            echo "<property><name>${property%% *}</name><value>${property#* }</value></property>"
        done <<PROPERTIES
fs.defaultFS hdfs://127.0.0.1:$(free_port)
hadoop.tmp.dir $hdfs/tmp
dfs.namenode.name.dir $hdfs/names
dfs.namenode.http-address 127.0.0.1:0
dfs.datanode.data.dir [DISK]file://$hdfs/disk,[RAM_DISK]file://$mount/ram,[NVDIMM]file://$mount/fast,[SSD]file://$tmpfs/fast
dfs.datanode.address 127.0.0.1:0
dfs.datanode.http.address 127.0.0.1:0
dfs.datanode.ipc.address 127.0.0.1:0
dfs.datanode.max.locked.memory 536870912
dfs.datanode.lazywriter.interval.sec 1
dfs.datanode.failed.volumes.tolerated 2
dfs.datanode.disk.check.min.gap 1s
dfs.datanode.du.reserved 0
dfs.datanode.round-robin-volume-choosing-policy.additional-available-space 0
dfs.heartbeat.interval 1
dfs.permissions.enabled false
PROPERTIES
        echo '</configuration>'
    } >"$hdfs/conf/hdfs-site.xml"
    # Hadoop takes fs.* of this file only, and dfs.* of the other.
    cp "$hdfs/conf/hdfs-site.xml" "$hdfs/conf/core-site.xml"
    hdfs_program 300m org.apache.hadoop.hdfs.server.namenode.NameNode -format -nonInteractive >"$hdfs/format.log" 2>&1 ||
        fail "HDFS: $(tail -n 5 "$hdfs/format.log")"
    java -Xmx400m -Dorg.slf4j.simpleLogger.defaultLogLevel=info -cp "$hdfs/conf:$hdfs_classes" \
        org.apache.hadoop.hdfs.server.namenode.NameNode >"$hdfs/namenode.log" 2>&1 &
    namenode=$!
    children=("$namenode")
    hdfs_start_datanode 4

    hdfs_restart_datanode() {
        kill -TERM "$datanode"
        wait "$datanode" || true
        hdfs_start_datanode "$1"
    }
    # $1: file; $2: expected storage types.
    hdfs_put() {
        local types
        types=$(hdfs_files put "$1" 96 LAZY_PERSIST) || fail "HDFS: put $1: $(tail -n 5 "$hdfs/files.log")"
        [ "$types" = "$2" ] || fail "HDFS: $1 is on $types, not on $2"
        hdfs_check "$1"
    }
    hdfs_check() {
        hdfs_files check "$1" 96 || fail "HDFS: $1: $(tail -n 5 "$hdfs/files.log")"
    }
    hdfs_persisted() {
        [ "$(find "$hdfs/disk" -path '*/lazypersist/*' -name 'blk_*' ! -name '*.meta' -size 65536 | wc -l)" -ge "$1" ]
    }
    hdfs_put /lazy/first RAM_DISK
    until_true 60 hdfs_persisted 3 || fail "HDFS: the first file is not on the disk yet"

    # Full: the DataNode takes its disk.
    head -c 2G /dev/zero >"$mount/filler" 2>/dev/null && fail "the pool takes more than its size"
    hdfs_put /lazy/second DISK
    rm "$mount/filler"

    # Lost: the DataNode goes on with its disk, where it finds what was on the pool when it starts anew.
    lose "$mount"
    hdfs_put /lazy/third DISK
    kill -0 "$datanode" || fail "HDFS: the DataNode ended with the pool"
    hdfs_restart_datanode 2
    hdfs_check /lazy/first

    # The pool is back, and a restart tells the DataNode.
    bring_up "$mount" 1G
    mkdir "$mount/ram" "$mount/fast"
    hdfs_restart_datanode 4
    hdfs_check /lazy/first
    hdfs_check /lazy/second
    hdfs_check /lazy/third
    hdfs_put /lazy/fourth RAM_DISK
    echo "HDFS: ok: 4 files of 96 MiB byte by byte: on the RAM disk; full: on the disk; lost, DataNode restarted: all from the disk; back: on the RAM disk"

    rates=$(hdfs_files rates 128 "$rounds" ALL_NVDIMM ALL_SSD HOT) || fail "HDFS: rates: $(tail -n 5 "$hdfs/files.log")"
    ratios "HDFS write of 128 MiB, MB/s" ALL_NVDIMM ALL_SSD HOT 3 <<<"$rates"
    ratios "HDFS read of 128 MiB, MB/s" ALL_NVDIMM ALL_SSD HOT 4 <<<"$rates"
    end_children
    take_down "$mount"
    umount "$tmpfs"
}
