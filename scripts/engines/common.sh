# For scripts that run engines on mounts; they source it. It makes the scratch directory, $scratch, brings pools up, and takes all
# back when the script ends, however it ends. $homenode is the command, by its full path.
# shellcheck shell=bash

target=${CARGO_TARGET_DIR:-target}
homenode=$(realpath -m "${HOMENODE:-$target/debug/homenode}")
script=$(basename "$0" .sh)

fail() {
    echo "$script: $*" >&2
    exit 1
}

# Ends the script, successfully, where the machine lacks what no package brings.
skip_without_mounts() {
    if [ "$(id -u)" -ne 0 ]; then
        echo "SKIPPED: engines on a mount: mounting needs root"
        exit 0
    elif ! [ -c /dev/fuse ]; then
        echo "SKIPPED: engines on a mount: there is no /dev/fuse"
        exit 0
    fi
    [ -x "$homenode" ] || fail "there is no $homenode: build it first (cargo build -p homenode-cli), or set HOMENODE"
}

# Fails without a command that setup.sh installs.
need() {
    local command
    for command in "$@"; do
        command -v "$command" >/dev/null || fail "there is no $command: run scripts/setup.sh first"
    done
}

# A virtual environment of Python with packages of these versions, made once. $1: its directory; the rest: packages.
virtual_environment() {
    local directory=$1 made
    shift
    made=$directory/made-of
    if [ -e "$made" ] && [ "$(cat "$made")" = "$*" ]; then
        return
    fi
    rm -rf "$directory"
    python3 -m venv "$directory"
    "$directory/bin/pip" install --quiet --disable-pip-version-check "$@" >&2
    echo "$*" >"$made"
}

# Processes to end, by their ids.
children=()
pools=()
mounts=()

cleanup() {
    local status=$?
    trap '' HUP INT TERM
    set +e
    end_children
    # What a process of ours started and left to init names the scratch directory, which nobody else knows, in its command line.
    local directory pid
    for pid in $(pgrep -f -- "$scratch/"); do
        # Pools are taken down below.
        [ "$(readlink "/proc/$pid/exe")" = "$homenode" ] || kill -KILL "$pid"
    done
    for directory in "${pools[@]}"; do
        take_down "$directory"
    done
    for directory in "${mounts[@]}"; do
        ! mountpoint -q "$directory" || umount "$directory" || umount --lazy "$directory"
    done
    if [ "$status" -ne 0 ] && [ -n "${KEEP_LOGS:-}" ]; then
        find "$scratch" -xdev -name '*.log' -exec cp --no-clobber -t "$KEEP_LOGS" {} +
    fi
    rm -rf --one-file-system "$scratch"
    exit "$status"
}

make_scratch() {
    scratch=$(mktemp -d)
    # Servers that do not run as root find their files below it.
    chmod 755 "$scratch"
    trap cleanup EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# A process with all that it started, by their ids.
descendants() {
    local child
    for child in $(pgrep -P "$1"); do
        descendants "$child"
    done
    echo "$1"
}

# Kills a process and all that it started, and waits until they are gone.
kill_hard() {
    local pid ids
    ids=$(descendants "$1")
    # shellcheck disable=SC2086
    kill -KILL $ids 2>/dev/null || true
    wait "$1" 2>/dev/null || true
    for pid in $ids; do
        until_true 10 gone "$pid" || {
            echo "$script: process $pid does not end" >&2
            return 1
        }
    done
}

# Whether a process has ended. A zombie has: its parent has not looked yet.
gone() {
    local state
    state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) || return 0
    [ -z "$state" ] || [ "$state" = Z ]
}

end_children() {
    local pid
    for pid in "${children[@]}"; do
        kill_hard "$pid"
    done
    children=()
}

# Waits until a command succeeds. $1: seconds; the rest: the command.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.1
    done
}

# Brings a pool up. $1: its directory, made if it is not there; $2: its size; the rest: options.
bring_up() {
    local directory=$1 size=$2
    shift 2
    # A mount whose server was killed is there, and no directory to stat(2).
    mkdir "$directory" 2>/dev/null || true
    pools+=("$directory")
    "$homenode" up "$directory" --size-per-node "$size" "$@" 2>"$scratch/up.log" || {
        cat "$scratch/up.log" >&2
        fail "no pool on $directory"
    }
}

# Ends a pool, also one whose server was killed.
take_down() {
    mountpoint -q "$1" || "$homenode" status "$1" >/dev/null 2>&1 || grep -q " $1 " /proc/mounts || return 0
    "$homenode" down "$1" >/dev/null 2>&1 || umount --lazy "$1"
}

# Id of a pool's server.
server_of() {
    "$homenode" status --json "$1" | jq '.pools[0].pid'
}

# Kills the server of a pool, as a bug or the kernel would: what it held is lost.
lose() {
    local server
    server=$(server_of "$1")
    kill -KILL "$server"
    until_true 10 gone "$server" || fail "the server of $1 does not end"
}

used_mib() {
    df --block-size=1M --output=used "$1" | tail -n 1 | tr -d ' '
}
