#!/bin/sh
# Installs, uses and removes what users are given: the files of `make install`, and the Debian package, that one in a copy
# of this machine's root directory that nobody else sees and that is gone afterwards. HOMENODE_BINARY is the command to
# package; default: the debug build.
set -eu
cd "$(dirname "$0")/.."
HOMENODE_BINARY=${HOMENODE_BINARY:-${CARGO_TARGET_DIR:-target}/debug/homenode}
export HOMENODE_BINARY

fail() {
    echo "test-package: $*" >&2
    exit 1
}

# A file that every installation has, below its prefix.
files='
bin/homenode
lib/homenode/libhomenode.so
include/homenode.h
share/pkgconfig/homenode.pc
lib/systemd/system/homenode@.service
lib/systemd/system/homenode-durable@.service
lib/systemd/system/homenode-affinity.service
lib/systemd/system/homenode-steer@.service
lib/systemd/system/homenode-web.service
lib/sysusers.d/homenode.conf
lib/tmpfiles.d/homenode.conf
share/doc/homenode/affinity.toml
share/doc/homenode/packaging/modprobe.conf
share/doc/homenode/packaging/grafana.json
share/doc/homenode/packaging/prometheus-alerts.yml
share/doc/homenode/README.md
share/doc/homenode/docs/claims.md
share/doc/homenode/docs/blk.svg
share/doc/homenode/docs/limits.md
share/doc/homenode/docs/guide/pools.md
share/doc/homenode/docs/recipes/hdfs.md
share/doc/homenode/docs/figures/blk-mq-4.svg
share/doc/homenode/packaging/recipes/kubernetes/daemonset.yaml
share/bash-completion/completions/homenode
share/fish/vendor_completions.d/homenode.fish
share/man/man1/homenode.1
share/man/man1/homenode-up.1
share/man/man1/homenode-top.1
share/man/man1/homenode-web.1
share/man/man1/homenode-file-map.1
share/man/man1/homenode-affinity-run.1
share/man/man8/mount.homenode.8
share/man/man8/mount.fuse.homenode.8
share/man/man8/mkfs.homenode.8
share/man/man8/fsck.homenode.8
share/man/man1/homenode-pool-create.1
'

test_make_install() {
    echo "test-package: install and uninstall below $work/stage"
    DESTDIR=$work/stage PREFIX=/usr/local scripts/install.sh install
    for file in $files share/zsh/site-functions/_homenode; do
        [ -f "$work/stage/usr/local/$file" ] || fail "$file is not installed"
    done
    for helper in mount.homenode mount.fuse.homenode mkfs.homenode fsck.homenode; do
        [ "$(readlink "$work/stage/sbin/$helper")" = /usr/local/bin/homenode ] || fail "there is no $helper"
    done
    if command -v strip >/dev/null && command -v nm >/dev/null; then
        [ -z "$(nm "$work/stage/usr/local/bin/homenode" 2>/dev/null)" ] || fail "the installed command has its symbols"
    fi
    flags=$(PKG_CONFIG_SYSROOT_DIR=$work/stage PKG_CONFIG_PATH=$work/stage/usr/local/share/pkgconfig pkg-config --cflags --libs homenode)
    # The word splitting of $flags is meant.
    # shellcheck disable=SC2086
    cc -Wall -Wextra -Werror crates/client/examples/records.c $flags -o "$work/records"
    LD_LIBRARY_PATH=$work/stage/usr/local/lib/homenode "$work/records" "$work/file" | grep -q '^4096000 bytes$' ||
        fail "a C program that uses the library does not work"
    if PREFIX=relative/path DESTDIR=$work/relative/ scripts/install.sh install 2>"$work/said"; then
        fail "a relative PREFIX is taken"
    fi
    grep -q 'relative/path is relative' "$work/said" || fail "a relative PREFIX is refused without saying so"
    for unit in homenode@.service homenode-durable@.service homenode-steer@.service homenode-affinity.service homenode-web.service; do
        grep -q '^ExecStart=/usr/local/bin/homenode ' "$work/stage/usr/local/lib/systemd/system/$unit" ||
            fail "$unit starts another command"
        ! grep '^#* *ExecStart=/usr/bin/homenode ' "$work/stage/usr/local/lib/systemd/system/$unit" ||
            fail "$unit names a command that is not installed"
    done
    echo changed >>"$work/stage/etc/default/homenode"
    DESTDIR=$work/stage PREFIX=/usr/local scripts/install.sh install
    DESTDIR=$work/stage PREFIX=/usr/local scripts/install.sh uninstall >/dev/null
    left=$(cd "$work/stage" && find . ! -type d)
    [ "$left" = ./etc/default/homenode ] || fail "uninstall leaves $left; only the changed defaults may stay"
}

test_package_list() {
    echo "test-package: files of $package"
    list=$(dpkg-deb --contents "$package" | awk '{ print $6 }')
    for file in $files share/zsh/vendor-completions/_homenode share/doc/homenode/copyright; do
        case $file in share/man/*) file=$file.gz ;; esac
        echo "$list" | grep -qx "./usr/$file" || fail "the package has no /usr/$file"
    done
    for file in ./usr/sbin/mount.homenode ./usr/sbin/mount.fuse.homenode ./etc/default/homenode; do
        echo "$list" | grep -qx "$file" || fail "the package has no $file"
    done
    if command -v lintian >/dev/null; then
        # The maintainer's address is for whoever publishes the package to give. libbpf's zlib is linked in, as all of a Rust program is. The scripts
        # call systemctl themselves, as they are the RPM's, too.
        lintian --allow-root --fail-on error,warning \
            --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs,embedded-library,maintainer-script-calls-systemctl \
            "$package"
    else
        echo "SKIPPED: needs lintian (rules of Debian packages)"
    fi
}

test_rpm_list() {
    if ! command -v rpmbuild >/dev/null; then
        echo "SKIPPED: needs rpmbuild (package rpm): no RPM is made"
        return
    fi
    rpm=$(scripts/rpm.sh "$work/rpm")
    echo "test-package: files of $rpm"
    list=$(rpm --query --list --package "$rpm")
    for file in $files; do
        case $file in share/man/*) file=$file* ;; esac
        # The pattern of a compressed page is meant.
        echo "$list" | grep -qx "/usr/${file%\*}\(\.gz\)\?" || fail "the RPM has no /usr/$file"
    done
    rpm --query --configfiles --package "$rpm" | grep -qx /etc/default/homenode || fail "the RPM would overwrite /etc/default/homenode"
}

# In a mount namespace of its own: a copy of / in memory, of which only what is changed takes room.
test_package_at_work() {
    root=$work/root
    mkdir "$work/layer" "$root"
    mount -t tmpfs -o size=512M layer "$work/layer"
    mkdir "$work/layer/upper" "$work/layer/work"
    if ! mount -t overlay -o "lowerdir=/,upperdir=$work/layer/upper,workdir=$work/layer/work" overlay "$root"; then
        echo "SKIPPED: needs a kernel that can lay a filesystem over / (overlay): the package is not installed"
        return
    fi
    for directory in dev proc sys; do
        mount --rbind "/$directory" "$root/$directory"
    done
    mount -t tmpfs run "$root/run"
    if ! chroot "$root" dpkg --version >/dev/null; then
        echo "SKIPPED: needs dpkg on the filesystem of /: the package is not installed"
        return
    fi
    cp "$package" "$root/homenode.deb"
    chroot "$root" sh -eu -s <<'END'
        export DEBIAN_FRONTEND=noninteractive
        cd /
        # What this machine has of it, in the copy: pools that are known, and above all the journal of changes that are in force outside.
        rm -rf /var/lib/homenode
        find /usr /etc -xdev -name '*homenode*' -prune -exec rm -rf {} +
        fail() { echo "test-package: $*" >&2; exit 1; }
        mounted() { findmnt -n -o SOURCE,FSTYPE /srv/pool || true; }
        trap 'umount -l /srv/pool 2>/dev/null || true' EXIT
        dpkg --install homenode.deb
        mkdir -p /srv/pool

        homenode up /srv/pool --size-per-node 16M --per-node
        homenode status /srv/pool
        echo content >/srv/pool/node0/file
        homenode run --stats -- true 2>&1 | grep -q 'homenode run: process' || fail "the library of homenode run is not loaded"
        [ "$(homenode file map /srv/pool/node0/file | cut -d' ' -f1,2)" = "node 0" ] || fail "the file is not on node 0"
        homenode down /srv/pool
        [ -z "$(mounted)" ] || fail "still mounted: $(mounted)"

        mount -t homenode homenode /srv/pool -o size_per_node=16M,nosuid
        echo content >/srv/pool/file
        [ "$(mounted)" = "homenode fuse.homenode" ] || fail "mount -t homenode mounted $(mounted)"
        if mount -o remount,size_per_node=32M /srv/pool; then fail "a remount that cannot resize the pool does not say so"; fi
        mount -o remount,ro /srv/pool
        if touch /srv/pool/other 2>/dev/null; then fail "a file was made on a read-only mount"; fi
        umount /srv/pool

        homenode pool create data /var/member --size 16M
        mount -t homenode data /srv/pool
        echo content >/srv/pool/file
        umount /srv/pool
        fsck -t homenode data || fail "fsck(8) finds faults"
        homenode up data /srv/pool
        [ "$(cat /srv/pool/file)" = content ] || fail "a durable pool has lost a file"
        homenode down /srv/pool
        homenode pool export data
        rmdir /etc/homenode/pools /etc/homenode

        homenode affinity plan --period 0.2 --config /usr/share/doc/homenode/affinity.toml
        homenode affinity revert

        echo 'homenode /srv/pool homenode size_per_node=16M,nofail 0 0' >/etc/fstab
        mount --all
        mount --all
        [ "$(mounted)" = "homenode fuse.homenode" ] || fail "the line of /etc/fstab mounted $(mounted)"
        umount /srv/pool
        # umount does not wait for the server.
        attempts=0
        until [ "$(homenode status)" = "no pool is up" ]; do
            attempts=$((attempts + 1))
            [ "$attempts" -lt 100 ] || fail "a server is left"
            sleep 0.1
        done

        if command -v systemd-analyze >/dev/null; then
            # It exits with 0 also when it warns; what it says of other units is not ours.
            said=$(systemd-analyze verify --man=no homenode@srv-pool.service homenode-durable@srv-data.service homenode-steer@dev-shm.service homenode-affinity.service 2>&1 | grep homenode || true)
            [ -z "$said" ] || fail "$said"
        else
            echo "SKIPPED: needs systemd-analyze (the units are not verified)"
        fi
        bash -n /usr/share/bash-completion/completions/homenode

        dpkg --purge homenode
        left=$(find /usr /etc -xdev -name '*homenode*')
        [ -z "$left" ] || fail "the package leaves $left"
END
}

if [ "${1:-}" = in-namespace ]; then
    work=$2 package=$3
    test_package_at_work
    exit
fi

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
test_make_install
package=$(scripts/deb.sh "$work")
test_package_list
test_rpm_list
if [ "$(id -u)" -ne 0 ] || ! [ -c /dev/fuse ]; then
    echo "SKIPPED: needs root and /dev/fuse: the package is not installed"
    exit
fi
echo "test-package: installing, using and removing it"
unshare --mount --propagation private "$0" in-namespace "$work" "$package"
echo "test-package: all well"
