#!/bin/sh
# Installs the command with its mount helper, man pages, completions, systemd units and guides, or removes them again:
#     install.sh install|uninstall
# PREFIX (/usr/local) is where to; DESTDIR, put before every path, is for those who make packages. HOMENODE_BINARY is the
# command to install; default: the release build.
set -eu
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local}
destination=${DESTDIR:-}
case $prefix in
/*) ;;
*)
    # The unit and the helper's link name the command by this path, wherever they are read.
    echo "install: PREFIX=$prefix is relative: give an absolute path, such as PREFIX=/usr/local" >&2
    exit 2
    ;;
esac
binary=${HOMENODE_BINARY:-${CARGO_TARGET_DIR:-target}/release/homenode}
# Cargo puts it beside the command.
library=$(dirname "$binary")/libhomenode.so

bin=$prefix/bin
lib=$prefix/lib/homenode
man=$prefix/share/man
units=$prefix/lib/systemd/system
sysusers=$prefix/lib/sysusers.d
tmpfiles=$prefix/lib/tmpfiles.d
bash=$prefix/share/bash-completion/completions
zsh=${ZSH_COMPLETIONS:-$prefix/share/zsh/site-functions}
fish=$prefix/share/fish/vendor_completions.d
defaults=/etc/default/homenode
documentation=$prefix/share/doc/homenode
example=$documentation/affinity.toml
# Below the documentation's directory, in the places that their links name.
guides="README.md CHANGELOG.md docs/*.md docs/*.png docs/*.svg docs/figures/* docs/guide/*.md docs/decisions/*.md docs/recipes/*.md $(find packaging/recipes -type f)
    packaging/modprobe.conf packaging/grafana.json packaging/prometheus-alerts.yml"
# mount(8) looks for helpers in /sbin only; below /usr that is the same directory.
case $prefix in
/usr) sbin=/usr/sbin helped_by=../bin/homenode ;;
*) sbin=/sbin helped_by=$bin/homenode ;;
esac
# For `mount -t homenode`, for `mount -o remount` (by the type in the mount table), for mkfs(8) and for fsck(8).
helpers="$sbin/mount.homenode $sbin/mount.fuse.homenode $sbin/mkfs.homenode $sbin/fsck.homenode"

# $1: mode; $2: file; $3: where to.
put() {
    install -D -m "$1" "$2" "$destination$3"
}

install_all() {
    if ! [ -x "$binary" ]; then
        echo "install: there is no $binary: build it first (cargo build --release -p homenode-cli)" >&2
        exit 1
    fi
    generated=$(mktemp -d)
    trap 'rm -rf "$generated"' EXIT
    "$binary" generate "$generated"
    put 755 "$binary" "$bin/homenode"
    if [ -e "$library" ]; then
        put 644 "$library" "$lib/libhomenode.so"
        put 644 crates/client/include/homenode.h "$prefix/include/homenode.h"
        sed "s|^prefix=/usr$|prefix=$prefix|" packaging/homenode.pc >"$generated/homenode.pc"
        put 644 "$generated/homenode.pc" "$prefix/share/pkgconfig/homenode.pc"
    else
        echo "install: there is no $library: \`homenode run\` will not work (cargo build --release -p homenode-client)" >&2
    fi
    # Whoever has a Rust toolchain has it; without it the files are only larger.
    if command -v strip >/dev/null; then
        strip --strip-unneeded "$destination$bin/homenode"
        [ ! -e "$destination$lib/libhomenode.so" ] || strip --strip-unneeded "$destination$lib/libhomenode.so"
    fi
    mkdir -p "$destination$sbin"
    for helper in $helpers; do
        ln -sfn "$helped_by" "$destination$helper"
    done
    for page in "$generated"/man/*; do
        put 644 "$page" "$man/man${page##*.}/${page##*/}"
    done
    put 644 "$generated/completions/homenode.bash" "$bash/homenode"
    put 644 "$generated/completions/_homenode" "$zsh/_homenode"
    put 644 "$generated/completions/homenode.fish" "$fish/homenode.fish"
    for unit in homenode@.service homenode-durable@.service homenode-steer@.service homenode-affinity.service homenode-web.service; do
        # Also in the comments, from which people copy.
        sed "s|^\(#* *\)ExecStart=/usr/bin/|\1ExecStart=$bin/|" "packaging/$unit" >"$generated/unit"
        put 644 "$generated/unit" "$units/$unit"
    done
    put 644 packaging/sysusers.conf "$sysusers/homenode.conf"
    put 644 packaging/tmpfiles.conf "$tmpfiles/homenode.conf"
    put 644 packaging/affinity.toml "$example"
    # The pattern's expansion is meant.
    # shellcheck disable=SC2086
    for guide in $guides; do
        put 644 "$guide" "$documentation/$guide"
    done
    # What somebody has written there stays.
    [ -e "$destination$defaults" ] || put 644 packaging/default "$defaults"
}

uninstall_all() {
    rm -f "$destination$bin/homenode" "$destination$lib/libhomenode.so" "$destination$prefix/include/homenode.h" \
        "$destination$prefix/share/pkgconfig/homenode.pc"
    [ ! -d "$destination$lib" ] || rmdir --ignore-fail-on-non-empty "$destination$lib"
    rm -f "$destination$man"/man1/homenode.1 "$destination$man"/man1/homenode-*.1 "$destination$man"/man8/mount.homenode.8 \
        "$destination$man"/man8/mount.fuse.homenode.8 "$destination$man"/man8/mkfs.homenode.8 "$destination$man"/man8/fsck.homenode.8
    rm -f "$destination$bash/homenode" "$destination$zsh/_homenode" "$destination$fish/homenode.fish"
    rm -f "$destination$units/homenode@.service" "$destination$units/homenode-durable@.service" "$destination$units/homenode-steer@.service" \
        "$destination$units/homenode-affinity.service" "$destination$units/homenode-web.service" "$destination$sysusers/homenode.conf" \
        "$destination$tmpfiles/homenode.conf" "$destination$example"
    # The pattern's expansion is meant.
    # shellcheck disable=SC2086
    for guide in $guides; do
        rm -f "$destination$documentation/$guide"
    done
    [ ! -d "$destination$documentation" ] || find "$destination$documentation" -depth -type d -empty -delete
    for helper in $helpers; do
        # Another installation's stays.
        if [ "$(readlink "$destination$helper")" = "$helped_by" ]; then
            rm -f "$destination$helper"
        fi
    done
    if cmp -s packaging/default "$destination$defaults"; then
        rm -f "$destination$defaults"
    elif [ -e "$destination$defaults" ]; then
        echo "uninstall: $destination$defaults was changed and stays"
    fi
}

case ${1:-} in
install) install_all ;;
uninstall) uninstall_all ;;
*)
    echo "usage: install.sh install|uninstall" >&2
    exit 2
    ;;
esac
