#!/bin/sh
# Makes a Debian package of the command in DIR (default: the target directory's debian), and prints where it is:
#     deb.sh [DIR]
# HOMENODE_BINARY is the command to package; default: the release build. DEBFULLNAME and DEBEMAIL name the maintainer, as
# for Debian's own tools.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
binary=${HOMENODE_BINARY:-$target/release/homenode}
output=${1:-$target/debian}
maintainer="${DEBFULLNAME:-The Homenode authors} <${DEBEMAIL:-homenode@localhost}>"

if ! [ -x "$binary" ]; then
    echo "deb: there is no $binary: build it first (cargo build --release -p homenode-cli)" >&2
    exit 1
fi
version=$("$binary" --version | cut -d' ' -f2)-1
architecture=$(dpkg --print-architecture)
# The same sources give the same package: no time but that of the last commit, or of the release notes without git.
seconds=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH="$seconds"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
documentation=$root/usr/share/doc/homenode
umask 022

HOMENODE_BINARY=$binary DESTDIR=$root PREFIX=/usr ZSH_COMPLETIONS=/usr/share/zsh/vendor-completions \
    scripts/install.sh install
gzip -9n "$root"/usr/share/man/man*/*

gzip -9nc CHANGELOG.md >"$documentation/changelog.gz"
gzip -9nc >"$documentation/changelog.Debian.gz" <<END
homenode ($version) unstable; urgency=medium

  * What has changed is in changelog.gz.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$seconds")
END
# A line for each library that is linked in; our own, which have a path, are left out.
libraries=$(cargo tree --locked --offline -p homenode-cli -e normal,no-proc-macro --prefix none -f ' {p}: {l}')
{
    cat packaging/copyright
    echo "$libraries" | grep -v ' (/' | LC_ALL=C sort -u
} >"$documentation/copyright"

# dpkg-shlibdeps reads a source package's control file.
mkdir "$work/debian" "$root/DEBIAN"
printf 'Source: homenode\n\nPackage: homenode\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O root/usr/bin/homenode)
cat >"$root/DEBIAN/control" <<END
Package: homenode
Version: $version
Section: admin
Priority: optional
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f1)
Depends: ${depends#shlibs:Depends=}
Description: filesystem in memory that keeps bytes on their NUMA node
 Homenode joins the memory of every NUMA node into one pool and mounts a
 filesystem on it. A file's bytes lie on the node of the CPU that first writes
 them, while that node has room; what spills to other nodes is counted. It
 tells where a file's bytes lie, and moves them while the file is in use.
 .
 A pool of memory loses its contents with its server, as a tmpfs does with its
 mount. A durable pool keeps them on files, disks or persistent memory.
END
echo /etc/default/homenode >"$root/DEBIAN/conffiles"
install -m 755 packaging/postinst packaging/prerm "$root/DEBIAN"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

mkdir -p "$output"
package=$output/homenode_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
