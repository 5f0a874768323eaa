#!/bin/bash
# Engines that people run, on mounts, in about a minute: RocksDB, Redis, PostgreSQL, LMDB and DuckDB. Each is killed, or meets a full or
# a lost pool, and what it kept is compared with what it had confirmed. One line each tells what was verified. HOMENODE is the
# command; default: the debug build. The files and manifests of docs/recipes/ are checked first, which needs
# no root; then the dashboard of packaging/.
#
# RocksDB, LMDB and Redis everysec: the rows of docs/recipes/key-value.md. RocksDB and Redis are killed in the middle of writes, and the server of
# a durable pool is killed below Redis.
# PostgreSQL: a sort on the pool, a full pool, a killed server, a new pool before and after the script of the recipe; a whole data directory on a
# mount, killed with SIGKILL, whose committed rows, indexes and page checksums are checked.
# Kubernetes: the DaemonSet's command in mount namespaces as kubelet makes them, killed and looked at from a consumer's namespace that began before;
# manifests by the schemas of Kubernetes 1.34 and 1.37. Units are checked by systemd only.
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null
# shellcheck source=scripts/engines/common.sh
. scripts/engines/common.sh

# Packages of Python and their versions: what this was tried with.
python_packages=(duckdb==1.5.6 lmdb==1.8.1 kubernetes-validate==1.37.0 'grafana-foundation-sdk==1769699379!11.6.0')
venv=$(realpath -m "$target/engines-venv")
python=$venv/bin/python
virtual_environment "$venv" "${python_packages[@]}"

scripts/check-recipes.sh "$python"
skip_without_mounts
need db_bench prometheus ldb redis-server jq setpriv pgrep
postgresql=$(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 2>/dev/null | sort -V | tail -n 1)/bin
[ -x "$postgresql/initdb" ] || fail "there is no PostgreSQL server: run scripts/setup.sh first"
make_scratch
TMPDIR=$scratch "$python" scripts/check-dashboard.py "$homenode"

# Number of keys of db_bench's fillseq, or where the first one is missing. $1: database.
keys_in_a_row() {
    ldb --db="$1" scan --key_hex --no_value --max_keys=30000000 2>/dev/null | cut -c 1-18 |
        awk '{ if (tolower($1) != sprintf("0x%016x", NR - 1)) { print "gap at " NR - 1 ": " $1; exit } } END { print NR }'
}

rocksdb() {
    local mount=$scratch/rocksdb keys=100000 found full
    bring_up "$mount" 512M

    # Keys and values of our own, compared byte by byte by another process.
    awk 'BEGIN { srand(1); for (i = 0; i < 40000; i++) printf "key%08d ==> %d-%.0f%.0f%.0f\n", i, i, 1e15 * rand(), 1e15 * rand(), 1e15 * rand() }' \
        >"$scratch/rocksdb.in"
    ldb --db="$mount/pairs" --create_if_missing load <"$scratch/rocksdb.in" >"$scratch/rocksdb.log" 2>&1
    ldb --db="$mount/pairs" scan --max_keys=1000000 2>>"$scratch/rocksdb.log" | sed 's/ : / ==> /' >"$scratch/rocksdb.out"
    cmp "$scratch/rocksdb.in" "$scratch/rocksdb.out" || fail "RocksDB: other pairs than those that were put"
    rm "$scratch/rocksdb.in" "$scratch/rocksdb.out"

    db_bench --db="$mount/bench" --benchmarks=fillseq,overwrite --num="$keys" --value_size=400 --compression_type=none \
        --threads=2 >"$scratch/rocksdb.log" 2>&1
    db_bench --db="$mount/bench" --use_existing_db=1 --benchmarks=verifychecksum,readrandom --num="$keys" --reads=50000 \
        --value_size=400 --verify_checksum=1 >"$scratch/rocksdb.log" 2>&1 || fail "RocksDB: $(tail -n 3 "$scratch/rocksdb.log")"
    grep -q '(50000 of 50000 found)' "$scratch/rocksdb.log" || fail "RocksDB: $(tail -n 3 "$scratch/rocksdb.log")"

    # A writer in key order is killed: what it left is a row of keys without a gap.
    db_bench --db="$mount/killed" --benchmarks=fillseq --num=20000000 --value_size=100 --write_buffer_size=4194304 \
        >"$scratch/rocksdb.log" 2>&1 &
    children=($!)
    sleep 3
    kill_hard "$!"
    children=()
    found=$(keys_in_a_row "$mount/killed")
    [ "$found" -gt 1000 ] 2>/dev/null || fail "RocksDB: keys after the kill: $found"
    take_down "$mount"

    bring_up "$mount" 64M
    ! db_bench --db="$mount/full" --benchmarks=fillseq --num=1000000 --value_size=400 --compression_type=none \
        >"$scratch/rocksdb.log" 2>&1 || fail "RocksDB wrote 400 MB to a pool of 64 MiB"
    grep -q 'No space left on device' "$scratch/rocksdb.log" || fail "RocksDB: $(tail -n 3 "$scratch/rocksdb.log")"
    full=$(keys_in_a_row "$mount/full")
    [ "$full" -gt 1000 ] 2>/dev/null || fail "RocksDB: keys of a full pool: $full"
    take_down "$mount"
    echo "RocksDB: ok: 40000 pairs byte by byte; checksums and 50000 of 50000 reads; without a gap: $found keys after kill -9, $full after a full pool"
}

# $1: its directory; $2: when it syncs its file.
start_redis() {
    redis-server --port 0 --unixsocket "$scratch/redis.socket" --dir "$1" --save '' --appendonly yes --appendfsync "${2:-always}" \
        --auto-aof-rewrite-min-size 2mb --auto-aof-rewrite-percentage 50 >"$scratch/redis.log" 2>&1 &
    children=($!)
    until_true 20 eval "redis-cli -s $scratch/redis.socket ping | grep -qx PONG" ||
        fail "Redis does not start: $(tail -n 3 "$scratch/redis.log")"
}

# Writes until the server is gone, which the rest of the arguments see to, after $1 seconds. Sets `confirmed`.
write_to_redis() {
    local writer seconds=$1
    shift
    "$python" scripts/engines/redis_writer.py write "$scratch/redis.socket" >"$scratch/redis.confirmed" 2>"$scratch/redis-writer.log" &
    writer=$!
    sleep "$seconds"
    "$@"
    wait "$writer" || fail "Redis: $(cat "$scratch/redis-writer.log")"
    confirmed=$(cat "$scratch/redis.confirmed")
}

# Whether an answer begins with $1; the rest: the command.
redis_says() {
    local expected=$1
    shift
    redis-cli -s "$scratch/redis.socket" "$@" | grep -q "^$expected"
}

# Whether its file has all that it has answered.
redis_has_written() {
    redis-cli -s "$scratch/redis.socket" info persistence | tr -d '\r' | grep -qx aof_buffer_length:0
}

check_redis() {
    "$python" scripts/engines/redis_writer.py check "$scratch/redis.socket" "$confirmed" || fail "Redis lost a confirmed write"
    end_children
}

redis() {
    local mount=$scratch/redis confirmed
    bring_up "$mount" 256M
    start_redis "$mount"
    write_to_redis 4 kill_hard "${children[0]}"
    grep -q 'AOF rewrite finished successfully' "$scratch/redis.log" || fail "Redis has not rewritten its file: it must write longer for that"
    start_redis "$mount"
    check_redis

    # Full: it refuses writes, goes on reading, and takes writes again when there is room.
    rm -r "$mount/appendonlydir"
    start_redis "$mount" everysec
    redis_says OK set before 1
    head -c 512M /dev/zero >"$mount/filler" 2>/dev/null && fail "the pool takes more than its size"
    until_true 20 redis_says MISCONF set within "$(printf '%8000d' 0)" || fail "Redis takes writes on a full pool"
    redis_says 1 get before || fail "Redis does not read on a full pool"
    rm "$mount/filler"
    until_true 20 redis_says OK set after 2 || fail "Redis takes no writes though there is room"
    # With everysec it answers before it writes, for up to two seconds, as long as an fsync goes on.
    until_true 20 redis_has_written || fail "Redis keeps what it has answered to itself"
    kill_hard "${children[0]}"
    start_redis "$mount"
    redis_says 1 get before || fail "Redis lost a write of before the pool was full"
    redis_says 2 get after || fail "Redis lost a write of after the pool was full"
    end_children
    take_down "$mount"
    echo "Redis: ok: $((confirmed + 1)) confirmed writes byte by byte after kill -9 (append-only file, rewritten meanwhile); full: refuses writes until there is room"
}

# The recipe docs/recipes/key-value.md: the server of a durable pool is killed below Redis.
redis_durable() {
    local mount=$scratch/durable confirmed
    export HOMENODE_POOLS=$scratch/known
    "$homenode" pool create engines "$scratch/member" --size 256M --unwritten >"$scratch/pool.log" 2>&1 || fail "$(cat "$scratch/pool.log")"
    bring_up_durable() {
        mkdir "$mount" 2>/dev/null || true
        pools+=("$mount")
        "$homenode" up engines "$mount" >"$scratch/up.log" 2>&1 || fail "no durable pool: $(cat "$scratch/up.log")"
    }
    bring_up_durable
    start_redis "$mount"
    write_to_redis 3 lose "$mount"
    # Redis ends by itself when it cannot append.
    until_true 20 gone "${children[0]}" || fail "Redis goes on without its files: $(tail -n 3 "$scratch/redis.log")"
    wait "${children[0]}" || true
    bring_up_durable
    start_redis "$mount"
    check_redis
    take_down "$mount"
    unset HOMENODE_POOLS
    echo "Redis, durable pool: ok: $((confirmed + 1)) confirmed writes byte by byte after kill -9 of the pool's server"
}

# PostgreSQL refuses to run as root. setpriv becomes the command, so that the id of the one is that of the other.
as_postgres=(setpriv --reuid postgres --regid postgres --clear-groups env HOME=/tmp)

query() {
    "${as_postgres[@]}" "$postgresql/psql" -h "$scratch/sockets" -U postgres -qAtX -v ON_ERROR_STOP=1 "$@"
}

# $1: data directory; the rest: options of the server.
start_postgresql() {
    local data=$1
    shift
    [ -d "$scratch/sockets" ] || install -d -o postgres -g postgres -m 700 "$scratch/sockets"
    "${as_postgres[@]}" "$postgresql/postgres" -D "$data" -c listen_addresses= -c "unix_socket_directories=$scratch/sockets" \
        -c shared_buffers=16MB "$@" >>"$scratch/postgresql.log" 2>&1 &
    children=($!)
    until_true 30 query -c 'select 1' || fail "PostgreSQL does not start: $(tail -n 5 "$scratch/postgresql.log")"
}

stop_postgresql() {
    kill -INT "${children[0]}"
    wait "${children[0]}" || fail "PostgreSQL: $(tail -n 5 "$scratch/postgresql.log")"
    children=()
}

postgresql() {
    local mount=$scratch/postgresql data=$scratch/postgresql/data log=$scratch/postgresql.log confirmed wrong writer
    bring_up "$mount" 1G
    install -d -o postgres -g postgres -m 700 "$data"
    "${as_postgres[@]}" "$postgresql/initdb" --data-checksums --auth=trust -D "$data" >"$log" 2>&1 || fail "initdb: $(tail -n 3 "$log")"
    start_postgresql "$data"
    query -c 'create table kept (number int primary key, body text)' -c 'create index on kept (body)'
    # psql prints a number when its transaction has been committed.
    seq 1000000 | sed "s/.*/insert into kept values (&, repeat(md5('&'), 10)) returning number;/" |
        query >"$scratch/confirmed" 2>"$scratch/psql.log" &
    writer=$!
    sleep 5
    kill_hard "${children[0]}"
    ! wait "$writer" || fail "PostgreSQL: the writer met no end: $(cat "$scratch/psql.log")"
    confirmed=$(wc -l <"$scratch/confirmed")
    [ "$confirmed" -gt 100 ] || fail "PostgreSQL confirmed $confirmed rows: $(cat "$scratch/psql.log")"
    [ "$(tail -n 1 "$scratch/confirmed")" = "$confirmed" ] || fail "PostgreSQL confirmed $(tail -n 1 "$scratch/confirmed") last"
    start_postgresql "$data"
    wrong=$(query -c "select count(*) from generate_series(1, $confirmed) as n left join kept on number = n
        where body is distinct from repeat(md5(n::text), 10)")
    [ "$wrong" = 0 ] || fail "PostgreSQL: $wrong of $confirmed committed rows are lost or changed"
    [ "$(query -c 'select count(*) from kept')" -le $((confirmed + 1)) ] || fail "PostgreSQL: rows that nobody committed"
    query -c 'create extension amcheck' -c "select bt_index_check(oid, true) from pg_class where relname like 'kept_%' and relkind = 'i'" \
        >/dev/null || fail "PostgreSQL: an index is damaged"
    stop_postgresql
    "${as_postgres[@]}" "$postgresql/pg_checksums" --check -D "$data" >"$log" 2>&1 || fail "pg_checksums: $(cat "$log")"
    take_down "$mount"
    echo "PostgreSQL: ok: $confirmed committed rows after kill -9, indexes and page checksums (data directory on the mount)"
}

# The recipe docs/recipes/postgresql.md: temporary files on the mount, all else on a disk.
postgresql_temporary() {
    local mount=$scratch/temporary data=$scratch/cluster log=$scratch/postgresql.log sort version
    local recipe=packaging/recipes/postgresql-temporary-tablespace
    : >"$log"
    bring_up "$mount" 96M
    install -d -o postgres -g postgres -m 700 "$data" "$mount/postgresql"
    "${as_postgres[@]}" "$postgresql/initdb" --no-sync --auth=trust -D "$data" >"$log" 2>&1 || fail "initdb: $(tail -n 3 "$log")"
    start_postgresql "$data" -c fsync=off -c log_temp_files=0 -c work_mem=1MB -c logging_collector=off
    query -c "create tablespace homenode location '$mount/postgresql'" -c "alter system set temp_tablespaces = 'homenode'" \
        -c 'select pg_reload_conf()' >/dev/null
    sort="select count(*) || ' ' || sum(place % 7) from (select row_number() over (order by md5(i::text)) as place from generate_series(1, 100000) i) s"
    # $1: pg_tblspc where temporary files lie on the mount, base where they lie in the data directory.
    sorts_in() {
        : >"$log"
        [ "$(query -c "$sort")" = '100000 300000' ] || fail "PostgreSQL: a sort has a wrong result"
        grep -q "temporary file: path \"$1/" "$log" || fail "PostgreSQL: temporary files lie elsewhere: $(cat "$log")"
    }
    has_table() {
        query -c 'create temporary table t as select 7 as seven' -c 'select seven from t' 2>/dev/null | grep -qx 7
    }
    until_true 10 sorts_in pg_tblspc || sorts_in pg_tblspc
    has_table || fail "PostgreSQL: no temporary table on the mount"

    # Full: the statement fails, with a message, and the server goes on.
    dd if=/dev/zero of="$mount/filler" bs=1M status=none 2>/dev/null && fail "the pool takes more than its size"
    ! query -c "$sort" >"$scratch/full.log" 2>&1 || fail "PostgreSQL: a sort needs no room in a full pool"
    grep -q 'No space left on device' "$scratch/full.log" || fail "PostgreSQL: $(cat "$scratch/full.log")"
    rm "$mount/filler"
    sorts_in pg_tblspc

    # Lost, and up again with nothing on it: temporary files are made elsewhere, and temporary tables fail, until the recipe has run.
    lose "$mount"
    sorts_in base
    "$recipe" "$mount/postgresql" "$data" "$postgresql" postgres | grep -q '^no pool is up' || fail "the recipe fails on a pool that is lost"
    bring_up "$mount" 96M
    ! has_table || fail "PostgreSQL: a temporary table in a directory that is gone"
    version=$("$recipe" "$mount/postgresql" "$data" "$postgresql" postgres)
    [ -d "$mount/postgresql/$(basename "$version")" ] || fail "the recipe made no directory: $version"
    has_table || fail "PostgreSQL: no temporary table after the recipe"
    sorts_in pg_tblspc
    stop_postgresql

    # Its owner has put a link in the place of the directory: root's directory behind it stays root's.
    mkdir -m 755 "$scratch/of-root"
    version=$mount/postgresql/$(basename "$version")
    rm -r "$version"
    "${as_postgres[@]}" ln -s "$scratch/of-root" "$version"
    "$recipe" "$mount/postgresql" "$data" "$postgresql" postgres >/dev/null || fail "the recipe fails on a link"
    [ "$(stat -c '%U %a' "$scratch/of-root")" = 'root 755' ] || fail "the recipe gives root's directory away: $(stat -c '%U %a' "$scratch/of-root")"
    take_down "$mount"
    echo "PostgreSQL, temporary tablespace: ok: sorts right on the mount; full: an error; lost: in the data directory; back: on the mount"
}

lmdb() {
    local said mount=$scratch/lmdb
    mkdir "$scratch/lmdb-logs"
    bring_up "$mount" 96M
    said=$("$python" scripts/engines/lmdb_full.py "$mount" "$scratch/lmdb-logs" write writemap) || fail "LMDB on a full pool"
    take_down "$mount"
    bring_up "$mount" 96M --data pool
    said="$said; data pool, $("$python" scripts/engines/lmdb_full.py "$mount" "$scratch/lmdb-logs" write writemap)" || fail "LMDB on a full pool of blocks"
    take_down "$mount"
    echo "LMDB: ok: full pool: $said"
}

duckdb() {
    local said mount=$scratch/duckdb
    bring_up "$mount" 1G
    said=$("$python" scripts/engines/duckdb_spill.py "$mount" 1500000) || fail "DuckDB"
    take_down "$mount"
    echo "DuckDB: ok: $said"
}

# The DaemonSet's command in a mount namespace as kubelet makes it, beside that of a consumer: docs/recipes/kubernetes.md.
kubernetes() {
    local volume=$scratch/volume command word consumer
    mkdir "$volume"
    mount --bind "$volume" "$volume"
    mounts+=("$volume")
    mount --make-rshared "$volume"
    pools+=("$volume/pool")
    command=$(sed -n 's/^ *- \(mkdir -p .* homenode up .*\)$/\1/p' packaging/recipes/kubernetes/daemonset.yaml |
        sed "s,/srv/homenode,$volume,g; s,exec homenode,exec $homenode,; s/25%/64M/")
    # It starts before the pool. HostToContainer is a mount namespace that is a slave of the machine's.
    # shellcheck disable=SC2016
    unshare --mount --propagation slave sh -c 'for word in first second; do
            until [ "$(cat "$1/pool/node0/word" 2>/dev/null)" = "$word" ]; do sleep 0.1; done
            echo "$word" >>"$2"
        done' consumer "$volume" "$scratch/seen" &
    consumer=$!
    for word in first second; do
        # Bidirectional is one whose mounts are shared.
        unshare --mount --propagation unchanged sh -c "$command" >"$scratch/kubernetes.log" 2>&1 &
        children=("$!" "$consumer")
        # A stat may still be answered for the pool that is dead.
        until_true 20 eval "echo $word >$volume/pool/node0/word" || fail "the DaemonSet's command: $(tail -n 3 "$scratch/kubernetes.log")"
        until_true 20 grep -qx "$word" "$scratch/seen" || fail "the pod with HostToContainer does not see the $word pool"
        # After a listing the kernel asks the server for the directory's times: mkdir -p fails on the dead mount then.
        ls "$volume/pool" >/dev/null
        kill_hard "${children[0]}"
        ! cat "$volume/pool/node0/word" 2>/dev/null || fail "a pool whose server was killed is still read"
    done
    wait "$consumer"
    children=()
    take_down "$volume/pool"
    umount "$volume"
    echo "Kubernetes: ok: the DaemonSet's command mounts for other mount namespaces, and again after kill -9 (no cluster)"
}

for engine in ${ENGINES:-rocksdb redis redis_durable postgresql postgresql_temporary lmdb duckdb kubernetes}; do
    "$engine"
done
