#!/bin/sh
# Makes an RPM of the command in DIR (default: the target directory's rpm), and prints where it is:
#     rpm.sh [DIR]
# HOMENODE_BINARY is the command to package; default: the release build.
set -eu
cd "$(dirname "$0")/.."
target=$(realpath "${CARGO_TARGET_DIR:-target}")
binary=$(realpath "${HOMENODE_BINARY:-$target/release/homenode}")
output=${1:-$target/rpm}
if ! command -v rpmbuild >/dev/null; then
    echo "rpm: there is no rpmbuild: install it first (apt-get install rpm, dnf install rpm-build)" >&2
    exit 1
fi
version=$("$binary" --version | cut -d' ' -f2)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$output"
rpmbuild -bb --quiet --define "_topdir $work" --define "_rpmdir $output" --define "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm" \
    --define "homenode_version $version" --define "homenode_source $PWD" --define "homenode_binary $binary" packaging/homenode.spec >&2
echo "$output/homenode-$version-1.$(uname -m).rpm"
