#!/usr/bin/env python3
"""Compares two builds of homenode: requests of a mount with its bytes in the pool, in turns; both servers are up all the time.

    scripts/compare-builds.py BEFORE AFTER [--pairs N] [--seconds S] [--transport T] [--row R] [--viewers]

Prints for each row the median of the pairs' ratios (above 1: AFTER is faster), the range in which that median lies with 95 %
(by the order of the pairs, without an assumption on how they differ), and the least and the greatest pair. --viewers keeps a
`homenode web` of AFTER at work, and a page's reader that asks it once a second. Needs root and fio.
"""

import argparse
import json
import math
import re
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

DATA = "--bs=4k --size=64M --direct=1 --time_based".split()
ROWS = {
    "4k read": ["--rw=read", *DATA],
    "4k write": ["--rw=write", *DATA],
    "create and unlink": "--ioengine=filecreate --nrfiles=4000 --filesize=4k --openfiles=1 --unlink=1".split(),
}


def rate(row: str, mount: Path, seconds: float) -> float:
    """Operations a second of one run."""
    arguments = ROWS[row] + ([f"--runtime={seconds}"] if "--time_based" in ROWS[row] else [])
    done = subprocess.run(
        ["fio", "--name=f", f"--directory={mount}", "--output-format=json", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    for file in mount.glob("f.*"):
        file.unlink()
    return max(job["read"]["iops"], job["write"]["iops"]) or 4000 / (job["job_runtime"] / 1000)


def middle(ratios: list[float]) -> tuple[float, float, float]:
    """The median, and the bounds of it that hold with 95 %."""
    ordered, count = sorted(ratios), len(ratios)
    # The largest rank below which the median lies with 2.5 % at most.
    rank, below = 0, 1
    while 2 * (below + math.comb(count, rank + 1)) <= 0.05 * 2**count:
        rank += 1
        below += math.comb(count, rank)
    return ordered[count // 2], ordered[rank], ordered[count - 1 - rank]


def read_page(token: str, over: threading.Event) -> None:
    """Reads what the page reads, once a second."""
    asked = urllib.request.Request("http://127.0.0.1:7079/live", headers={"Authorization": f"Bearer {token}"})
    while not over.wait(1):
        urllib.request.urlopen(asked).read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs=2, type=Path, metavar="BUILD")
    parser.add_argument("--pairs", type=int, default=41)
    parser.add_argument("--seconds", type=float, default=0.8)
    parser.add_argument("--transport", action="append", choices=["classic", "uring"])
    parser.add_argument("--row", action="append", choices=list(ROWS))
    parser.add_argument("--viewers", action="store_true")
    options = parser.parse_args()
    if options.pairs < 6:
        parser.error("--pairs: fewer than 6 tell no range")
    for transport in options.transport or ["classic"]:
        with tempfile.TemporaryDirectory() as directory:
            compare(options, transport, [Path(directory, name) for name in ("before", "after")])


def compare(options: argparse.Namespace, transport: str, mounts: list[Path]) -> None:
    up, viewer, over = [], None, threading.Event()
    try:
        for build, mount in zip(options.builds, mounts):
            mount.mkdir()
            kind = ["--data", "pool", "--transport", transport, "--size-per-node", "512M"]
            # Its output is nobody's: the server inherits it.
            subprocess.run([build, "up", *kind, mount], check=True, stdout=subprocess.DEVNULL)
            up.append((build, mount))
        if options.viewers:
            viewer = subprocess.Popen(
                [options.builds[1], "web", "--listen", "127.0.0.1:7079"], stdout=subprocess.PIPE, text=True
            )
            token = re.search(r"token=(\w+)", viewer.stdout.readline()).group(1)
            threading.Thread(target=read_page, args=(token, over), daemon=True).start()
        ratios = {row: [] for row in options.row or ROWS}
        for pair in range(options.pairs + 1):
            for row in ratios:
                rates = {}
                # The order changes, so that neither is always the first.
                for at in [0, 1] if pair % 2 else [1, 0]:
                    rates[at] = rate(row, mounts[at], options.seconds)
                # The first pair warms up.
                if pair > 0:
                    ratios[row].append(rates[1] / rates[0])
        for row, found in ratios.items():
            median, low, high = middle(found)
            print(f"{transport:8} {row:18} {median:.3f}  95 %: {low:.3f} to {high:.3f}  pairs: {min(found):.2f} to {max(found):.2f}")
    finally:
        over.set()
        if viewer:
            viewer.terminate()
            viewer.wait()
        for build, mount in up:
            for _ in range(20):
                if subprocess.run([build, "down", mount], stdout=subprocess.DEVNULL).returncode == 0:
                    break
                time.sleep(0.1)


if __name__ == "__main__":
    main()
