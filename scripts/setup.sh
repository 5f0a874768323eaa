#!/bin/sh
# Installs the Debian packages that building, testing and running need. Does nothing, and needs no network, when all are
# there.
set -eu

# package, and what needs it
packages='
build-essential  the linker and C compiler that Rust builds and the C project of the tests use
pkg-config       finds hwloc for the build
libhwloc-dev     topology of the machine: nodes, CPUs, caches, distances
libudev-dev      the binding to hwloc links what a static hwloc would need, and that is udev too
clang            compiles the programs that count bytes of threads in the kernel
libbpf-dev       the headers those programs include
libelf-dev       what loads those programs reads their object files with it
zlib1g-dev       libelf and the loader need it
git              the repository is one of the trees copied into the filesystem
fio              throughput in "make run" (homenode demo), verified I/O in the tests
e2fsprogs        mkfs.ext4 and fsck.ext4, on block volumes in guests
xfsprogs         mkfs.xfs and xfs_repair, likewise
dmsetup          a disk that logs its writes, under durable pools in guests
rsync            copies trees in "make run" and verifies them, as an outside judge
acl              setfacl and getfacl, for the tests of POSIX ACLs
attr             setfattr and getfattr, for the tests of extended attributes
sqlite3          the database that the tests run on the filesystem
util-linux       mount, umount, setpriv
procps           the tests look at processes
iproute2         the tests make network namespaces with it
strace           gives the server errors of the kernel, in the tests of faults
bsdutils         script, a terminal for the tests of "homenode top"
curl             asks "homenode web" in the tests
chromium         a browser, for the tests of its page
lintian          the rules of Debian packages, in the tests
rpm              builds and lists the package of other distributions, in the tests
prometheus       checks metrics and alerts (promtool), and answers queries of the dashboard
rocksdb-tools    db_bench and ldb, for the tests of engines
redis-server     an engine of those tests, and redis-cli
postgresql       likewise
python3-venv     LMDB, DuckDB, the schemas of Kubernetes and the types of Grafana come into a virtual environment of it
jq               reads "homenode status --json" in them
'

if ! command -v cargo >/dev/null; then
    echo "setup: there is no cargo: install the Rust toolchain first and put it on the PATH" >&2
    exit 1
fi
if ! command -v dpkg-query >/dev/null; then
    echo "setup: this is not Debian. Install the equivalents of these packages by hand:$packages" >&2
    exit 1
fi

missing=''
while read -r package reason; do
    [ -n "$package" ] || continue
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    if [ "$state" != installed ]; then
        echo "setup: installing $package: $reason"
        missing="$missing $package"
    fi
done <<END
$packages
END
[ -n "$missing" ] || exit 0

as_root=''
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup: installing packages needs root. Run as root: apt-get install$missing" >&2
        exit 1
    fi
    as_root=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q </dev/null
# The word splitting of $missing is meant: one argument a package.
# shellcheck disable=SC2086
$as_root apt-get install -q -y --no-install-recommends $missing </dev/null
