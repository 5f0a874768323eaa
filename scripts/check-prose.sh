#!/bin/sh
# Finds documentation comments that open with a word that leaves the reader without a subject. Prints each, and fails if there is one.
set -eu
cd "$(dirname "$0")/.."
find crates fuzz -name '*.rs' ! -path '*/target/*' -print0 | xargs -0 awk '
    FNR == 1 { inside = "" }
    {
        is_doc = $0 ~ /^[ \t]*\/\/[\/!]/
        kind = $0 ~ /^[ \t]*\/\/!/ ? "inner" : "outer"
        if (is_doc && inside != kind && $0 ~ /^[ \t]*\/\/[\/!] (What|Of|Those|The same|So|None|As|One|By)([^A-Za-z0-9_]|$)/) {
            print FILENAME ":" FNR ": " $0
            found = 1
        }
        inside = is_doc ? kind : ""
    }
    END { exit found }'
