#!/bin/bash
# Checks the files of packaging/recipes/ and the pages that show them: manifests by the published schemas of Kubernetes, units by
# systemd, XML by a parser, and that each excerpt in a page is in the file that the page names. $1: a Python with the package
# kubernetes-validate.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:?usage: check-recipes.sh PYTHON, of an environment with kubernetes-validate}
recipes=packaging/recipes

"$python" -c 'import kubernetes_validate' || {
    echo "check-recipes: $python has no package kubernetes-validate" >&2
    exit 1
}
# The first release that has dynamic resource allocation as v1, and the newest one known here.
for version in 1.34.0 1.37.0; do
    "$python" -m kubernetes_validate --kubernetes-version "$version" --strict --quiet "$recipes"/kubernetes/*.yaml || {
        echo "check-recipes: a manifest does not follow the schema of Kubernetes $version" >&2
        exit 1
    }
done
manifests=$(find "$recipes/kubernetes" -name '*.yaml' | wc -l)

"$python" -c 'import sys, xml.dom.minidom as dom; [dom.parse(name) for name in sys.argv[1:]]' "$recipes"/*.xml

if command -v systemd-analyze >/dev/null; then
    # systemd finds programs by their paths, so it gets a root directory that has them, all empty.
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    units=$root/etc/systemd/system
    mkdir -p "$units"
    cp -r "$recipes"/systemd/. packaging/homenode*.service "$units"
    # Units of the distribution that the drop-ins add to, as far as that matters.
    printf '[Service]\nExecStart=/bin/true\n' | tee "$units/postgresql@.service" >"$units/redis-server.service"
    grep -rhoE '^Exec[A-Za-z]*=[-+]*[a-z/][^ ]*' "$units" | sed 's/^[^=]*=[-+]*//; s,^[^/],/usr/bin/&,' | sort -u | while read -r program; do
        install -D -m 755 /dev/null "$root$program"
    done
    for target in network network-online local-fs multi-user sysinit basic shutdown; do
        echo '[Unit]' >"$units/$target.target"
    done
    echo '[Service]
ExecStart=/bin/true' >"$units/modprobe@.service"
    code=0
    said=$(systemd-analyze verify --man=no --root="$root" hdfs-datanode.service spark-worker@0.service ray-worker.service \
        postgresql@15-main.service redis-server.service homenode@srv-pool.service homenode-durable@srv-data.service 2>&1) || code=$?
    if [ -n "$said" ] || [ "$code" -ne 0 ]; then
        echo "check-recipes: systemd ends with $code and says: $said" >&2
        exit 1
    fi
    units_checked="$(find "$recipes/systemd" -type f | wc -l) units and drop-ins by systemd"
else
    units_checked="units SKIPPED: there is no systemd-analyze"
fi

# A restart of what wants the pool would start the pool too, while it stops or after it was lost.
wrong=$(grep -rE '^Exec[A-Za-z]*=.*systemctl.* (try-)?restart ' "$recipes"/systemd/homenode*.d | grep -v -e ' --job-mode=ignore-requirements ') || true
if [ -n "$wrong" ]; then
    echo "check-recipes: a drop-in of a pool starts the pool that stops: $wrong" >&2
    exit 1
fi

# In a page, a line "From `packaging/recipes/FILE`:" stands before an excerpt: each of its lines is a line of FILE, in order. Links lead to files.
excerpts=$("$python" - docs/recipes/*.md <<'PYTHON'
import os
import re
import sys

excerpts = 0
for page in sys.argv[1:]:
    text = open(page).read()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert os.path.exists(os.path.join(os.path.dirname(page), link)), f"{page}: there is no {link}"
    for name, block in re.findall(r"From `(packaging/recipes/[^`]+)`:\n\n((?:    [^\n]*\n|\n(?=    ))+)", text):
        lines = iter(open(name).read().splitlines())
        for line in block.splitlines():
            line = line[4:]
            assert not line or line in lines, f"{page}: {name} has no line {line!r} at that place"
        excerpts += 1
    assert text.count("From `") == len(re.findall(r"^From `packaging/recipes/[^`]+`:\n\n    ", text, re.MULTILINE)), f"{page}: an excerpt that is none"
print(excerpts)
PYTHON
)
echo "recipes: ok: $manifests manifests by the schemas of Kubernetes 1.34 and 1.37; $units_checked; $excerpts excerpts are those of their files"
