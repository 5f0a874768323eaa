#!/bin/bash
# Engines as people install them, on mounts, in a quarter of an hour: each with a full and a lost pool where that matters, its data verified,
# and its speed beside a tmpfs and a disk. HOMENODE is the command; default: the release build. ENGINES names some of them
# (default: all); ROUNDS is the number of rounds of a comparison (5). What they need is fetched once, below the target directory.
#
# hdfs: a NameNode and a DataNode of Hadoop 3.4.1 without its native library. Every byte is verified: on the RAM disk, with a full pool, after the
# pool's server was killed and the DataNode restarted, and with a new pool.
# spark: Spark 3.5 in one process. The sums of shuffled rows must be those without a shuffle. A job on a full pool, and one whose pool is lost in
# its middle, must fail; on a new pool the result must be right. Workers of a cluster and --per-node are not tried.
# ycsb, etcd: YCSB's load A on Redis and etcd with each value checked. Both are killed, and etcd's pool is filled.
# kafka: killed, and one of its directories is filled. A lost pool is not tried.
# ray: Ray 2.60 on one machine. Each object that is got is compared with the one that was put: after spilling, on a full pool, on a pool that is
# lost, and on a new one. Tasks made again, and a worker that joins a cluster, are not tried.
# Tried by hand: Redis with appendfsync always on a full pool; RocksDB, Redis and etcd on a pool of memory that is lost.
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null
HOMENODE=${HOMENODE:-${CARGO_TARGET_DIR:-target}/release/homenode}
# shellcheck source=scripts/engines/common.sh
. scripts/engines/common.sh
# shellcheck source=scripts/engines/hdfs.sh
. scripts/engines/hdfs.sh
# shellcheck source=scripts/engines/kafka.sh
. scripts/engines/kafka.sh
# shellcheck source=scripts/engines/spark.sh
. scripts/engines/spark.sh
# shellcheck source=scripts/engines/ray.sh
. scripts/engines/ray.sh
# shellcheck source=scripts/engines/ycsb.sh
. scripts/engines/ycsb.sh
rounds=${ROUNDS:-5}
python_packages=(pyspark==3.5.9 ray==2.60.0 numpy==2.2.6)
store=$(realpath -m "$target/engines")

# The classes of a pom.xml in scripts/engines/, fetched once, as a path of Java. $1: its directory.
maven_classes() {
    local list=$store/$1.classpath
    if ! [ "$list" -nt "scripts/engines/$1/pom.xml" ]; then
        mkdir -p "$store"
        mvn --quiet --batch-mode -Dstyle.color=never --file "scripts/engines/$1/pom.xml" dependency:build-classpath -Dmdep.outputFile="$list" >&2
    fi
    cat "$list"
}

# A port of the loopback that nobody listens on.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Prints the median of a column for the mount, and its ratios to tmpfs and disk, each the median of the ratios of all rounds, with the
# lowest and the highest. Lines of standard input begin with the name of the place. $1: title; $2 to $4: names of mount, tmpfs
# and disk; $5: column.
ratios() {
    python3 scripts/engines/ratios.py "$@"
}

# Whether commands are there; if not, tells which engine is left out. $1: engine; $2: what to install; the rest: commands.
have() {
    local engine=$1 advice=$2 command
    shift 2
    for command in "$@"; do
        if ! command -v "$command" >/dev/null; then
            echo "SKIPPED: $engine: there is no $command ($advice)"
            return 1
        fi
    done
}

# Whether Go is there, of a release that builds etcd. $1: engine.
have_go() {
    have "$1" "Go 1.24 or newer" go || return 1
    if ! printf '%s\n' 1.24 "$(go env GOVERSION | sed 's/^go//')" | sort --version-sort --check=quiet; then
        echo "SKIPPED: $1: $(go env GOVERSION) is older than Go 1.24"
        return 1
    fi
}

skip_without_mounts
need jq curl pgrep python3
make_scratch

for engine in ${ENGINES:-hdfs spark ycsb etcd kafka ray}; do
    started=$SECONDS
    case $engine in
    hdfs) have HDFS "apt-get install maven openjdk-17-jdk-headless" mvn java javac || continue ;;
    spark) have Spark "apt-get install openjdk-17-jre-headless" java || continue ;;
    ycsb)
        have_go "YCSB-A on Redis" || continue
        have "YCSB-A on Redis" scripts/setup.sh redis-server || continue
        ;;
    etcd) have_go etcd || continue ;;
    kafka) have Kafka "apt-get install maven openjdk-17-jdk-headless" mvn java javac || continue ;;
    ray) ;;
    *) fail "there is no engine $engine" ;;
    esac
    "$engine"
    echo "$engine: $((SECONDS - started)) s"
done
