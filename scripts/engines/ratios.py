"""Compares places in rounds: see `ratios` of scripts/engines.sh.

    ratios.py TITLE MOUNT TMPFS DISK COLUMN <lines

COLUMN counts from 1. More is better, as in a rate.
"""

import statistics
import sys

title, mount, tmpfs, disk, column = sys.argv[1:]
values = {mount: [], tmpfs: [], disk: []}
for line in sys.stdin:
    words = line.split()
    if words and words[0] in values:
        values[words[0]].append(float(words[int(column) - 1]))
rounds = {len(list_) for list_ in values.values()}
assert len(rounds) == 1 and rounds != {0}, f"{title}: rounds are missing: {values}"


def ratio(place):
    ratios = [ours / theirs for ours, theirs in zip(values[mount], values[place])]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


print(
    f"{title}: mount {statistics.median(values[mount]):.0f}; to tmpfs {ratio(tmpfs)}; to the disk {ratio(disk)};"
    f" {rounds.pop()} rounds in turn"
)
