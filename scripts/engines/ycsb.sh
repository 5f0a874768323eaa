# Redis and etcd with their files on a mount, under load A of YCSB: half reads, half updates. scripts/engines.sh sources it.
# shellcheck shell=bash

# Builds a program of a module of Go once. $1: module@version; $2: package; $3: name of the program; the rest: arguments of `go mod edit`.
go_program() {
    local module=$1 package=$2 program=$store/bin/$3 made
    shift 3
    made=$program.made-of
    if [ -x "$program" ] && [ "$(cat "$made")" = "$module $*" ]; then
        return
    fi
    mkdir -p "$store/bin"
    rm -rf "$scratch/module"
    mkdir "$scratch/module"
    printf 'module engines\n\ngo 1.24\n' >"$scratch/module/go.mod"
    (
        cd "$scratch/module"
        export GOFLAGS='-mod=mod -buildvcs=false'
        [ "$#" -eq 0 ] || go mod edit "$@"
        go get "$module"
        nice go build -o "$program" "$package"
    ) >"$scratch/go.log" 2>&1 || fail "$package: $(grep -v downloading "$scratch/go.log" | tail -n 5)"
    echo "$module $*" >"$made"
}

go_ycsb() {
    # A module's own replacements do not count where another one requires it.
    go_program github.com/pingcap/go-ycsb@v1.0.3 github.com/pingcap/go-ycsb/cmd/go-ycsb go-ycsb \
        -replace=github.com/apache/thrift=github.com/apache/thrift@v0.0.0-20171203172758-327ebb6c2b6d
}

# Runs load A, and prints operations a second. Each value that is read is compared with what its key decides. $1: load or run; $2: the
# database; $3: records; $4: operations; the rest: properties. A run of N records may ask for one more than a load of N makes.
ycsb_a() {
    local phase=$1 database=$2 records=$3 operations=$4 property properties=()
    shift 4
    for property in workload=core "recordcount=$records" "operationcount=$operations" readproportion=0.5 updateproportion=0.5 \
        scanproportion=0 insertproportion=0 requestdistribution=zipfian fieldcount=10 fieldlength=100 dataintegrity=true "$@"; do
        properties+=(-p "$property")
    done
    "$store/bin/go-ycsb" "$phase" "$database" --threads 4 "${properties[@]}" >"$scratch/ycsb.log" 2>&1 ||
        fail "YCSB-A, $database: $(tail -n 3 "$scratch/ycsb.log")"
    ! grep -qE '_ERROR|unexpected' "$scratch/ycsb.log" || fail "YCSB-A, $database: $(grep -E '_ERROR|unexpected' "$scratch/ycsb.log" | head -n 3)"
    sed -n 's/^TOTAL .* OPS: \([0-9.]*\),.*/\1/p' "$scratch/ycsb.log"
}

# Starts the same engine in three places. $1: engine; $2: size of mount and tmpfs.
three_places() {
    places=("$scratch/$1" "$scratch/$1-tmpfs" "$scratch/$1-disk")
    bring_up "${places[0]}" "$2"
    mkdir "${places[1]}" "${places[2]}"
    mount -t tmpfs -o "size=$2,huge=never" homenode-engines "${places[1]}"
    mounts+=("${places[1]}")
}

end_places() {
    end_children
    take_down "${places[0]}"
    umount "${places[1]}"
    rm -rf "${places[2]}"
}

ycsb() {
    local places place digest round rates='' servers=()
    go_ycsb
    three_places ycsb 1G
    # $1: place.
    ycsb_redis() {
        redis-server --port 0 --unixsocket "$1.socket" --dir "$1" --save '' --appendonly yes --appendfsync always \
            --enable-debug-command local >>"$scratch/redis.log" 2>&1 &
        servers+=("$!")
        children=("${servers[@]}")
        until_true 30 eval "redis-cli -s $1.socket ping | grep -qx PONG" || fail "Redis: $(tail -n 3 "$scratch/redis.log")"
    }
    for place in "${places[@]}"; do
        ycsb_redis "$place"
        ycsb_a load redis 20001 0 redis.network=unix "redis.addr=$place.socket" >"$scratch/loaded"
    done
    # Round 0 warms up.
    for ((round = 0; round <= rounds; round++)); do
        for place in "${places[@]}"; do
            rates+="$round $(basename "$place") $(ycsb_a run redis 20000 20000 redis.network=unix "redis.addr=$place.socket")"$'\n'
        done
    done
    digest=$(redis-cli -s "${places[0]}.socket" debug digest)
    kill_hard "${servers[0]}"
    ycsb_redis "${places[0]}"
    [ "$(redis-cli -s "${places[0]}.socket" debug digest)" = "$digest" ] || fail "Redis has other data after kill -9"
    ycsb_a run redis 20000 20000 redis.network=unix "redis.addr=${places[0]}.socket" >"$scratch/after"
    echo "YCSB-A on Redis: ok: each value that was read is right; the same digest after kill -9 (append-only file, fsync of each write)"
    sed -n '/^0 /d; s/^[0-9]* //p' <<<"$rates" | ratios "YCSB-A on Redis, operations/s" ycsb ycsb-tmpfs ycsb-disk 2
    end_places
}

etcd() {
    local places place before after full round rates='' servers=() addresses=()
    go_ycsb
    go_program go.etcd.io/etcd/server/v3@v3.6.16 go.etcd.io/etcd/server/v3 etcd
    go_program go.etcd.io/etcd/etcdctl/v3@v3.6.16 go.etcd.io/etcd/etcdctl/v3 etcdctl
    go_program go.etcd.io/bbolt@v1.4.3 go.etcd.io/bbolt/cmd/bbolt bbolt
    three_places etcd 1G
    # $1: place; $2: address of clients.
    etcd_server() {
        local peers
        peers=http://127.0.0.1:$(free_port)
        "$store/bin/etcd" --data-dir "$1/data" --listen-client-urls "$2" --advertise-client-urls "$2" --listen-peer-urls "$peers" \
            --initial-advertise-peer-urls "$peers" --initial-cluster "default=$peers" >>"$1.log" 2>&1 &
        servers+=("$!")
        children=("${servers[@]}")
        until_true 30 "$store/bin/etcdctl" --endpoints="$2" endpoint health || fail "etcd: $(tail -n 3 "$1.log")"
    }
    etcd_contents() {
        "$store/bin/etcdctl" --endpoints="$1" get '' --prefix --write-out=json | jq --compact-output '.kvs' | sha256sum
    }
    for place in "${places[@]}"; do
        addresses+=("http://127.0.0.1:$(free_port)")
        etcd_server "$place" "${addresses[-1]}"
        ycsb_a load etcd 501 0 "etcd.endpoints=${addresses[-1]#http://}" >"$scratch/loaded"
    done
    for ((round = 0; round <= rounds; round++)); do
        for place in 0 1 2; do
            rates+="$round $(basename "${places[place]}") $(ycsb_a run etcd 500 8000 "etcd.endpoints=${addresses[place]#http://}")"$'\n'
        done
    done
    before=$(etcd_contents "${addresses[0]}")
    kill_hard "${servers[0]}"
    etcd_server "${places[0]}" "${addresses[0]}"
    after=$(etcd_contents "${addresses[0]}")
    [ "$after" = "$before" ] || fail "etcd has other data after kill -9"
    [ "$("$store/bin/etcdctl" --endpoints="${addresses[0]}" get '' --prefix --keys-only | grep -c .)" -ge 500 ] || fail "etcd lost keys"

    # Full: it ends, and has all that it confirmed when there is room again.
    head -c 2G /dev/zero >"${places[0]}/filler" 2>/dev/null && fail "the pool takes more than its size"
    full=0
    while [ "$full" -lt 200 ] && head -c 750000 /dev/urandom | base64 --wrap=0 |
        timeout 10 "$store/bin/etcdctl" --endpoints="${addresses[0]}" put "full/$full" >"$scratch/put.log" 2>&1; do
        full=$((full + 1))
    done
    until_true 10 gone "${servers[-1]}" || fail "etcd goes on with a full pool"
    wait "${servers[-1]}" || true
    grep -q 'no space left on device' "${places[0]}.log" || fail "etcd: $(tail -n 3 "${places[0]}.log")"
    rm "${places[0]}/filler"
    etcd_server "${places[0]}" "${addresses[0]}"
    [ "$("$store/bin/etcdctl" --endpoints="${addresses[0]}" get full/ --prefix --keys-only | grep -c .)" -ge "$full" ] || fail "etcd lost keys of the full pool"
    kill -TERM "${servers[-1]}"
    wait "${servers[-1]}" || true
    "$store/bin/bbolt" check "${places[0]}/data/member/snap/db" >"$scratch/bbolt.log" 2>&1 || fail "etcd: $(tail -n 3 "$scratch/bbolt.log")"
    echo "etcd: ok: each value that was read is right; the same keys, values and revisions after kill -9; full: it ends, and has what it confirmed when there is room; its file is sound"
    sed -n '/^0 /d; s/^[0-9]* //p' <<<"$rates" | ratios "YCSB-A on etcd, operations/s" etcd etcd-tmpfs etcd-disk 2
    end_places
}
