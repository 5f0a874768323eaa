#!/usr/bin/env python3
"""Compares two builds of homenode: requests of a mount with its bytes in the pool, in turns; both servers are up all the time.

    scripts/compare-builds.py BEFORE AFTER [--pairs N] [--transport T] [--viewers]

A turn is some 20 ms long, so both builds meet the same neighbours. The caller stays on one CPU, where rings serve it; servers of the
classic transport stay there, too, as it makes twice a difference where the scheduler puts their threads. Prints for each row the median of the
pairs' ratios (above 1: AFTER is faster), the range in which that median lies with 95 % (by the order of the pairs, without an
assumption on how they differ), and the least and the greatest pair. --viewers keeps a `homenode web` of AFTER at work, and a
reader that asks it once a second as the page does. Needs root.
"""

import argparse
import math
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BLOCK = 4096
FILE_BYTES = 32 << 20
REQUESTS = 1500
FILES = 150

# Reads the page's figures once a second; a process of its own, so that its interpreter takes no turns from the caller.
READER = """
import sys, time, urllib.request
asked = urllib.request.Request("http://127.0.0.1:7079/live", headers={"Authorization": "Bearer " + sys.argv[1]})
while True:
    urllib.request.urlopen(asked).read()
    time.sleep(1)
"""


def work(mount: Path) -> dict[str, Callable[[], None]]:
    """Turns of each row, on a file that is there."""
    block = mmap.mmap(-1, BLOCK)
    path = mount / "file"
    path.write_bytes(bytes(FILE_BYTES))
    file = os.open(path, os.O_RDWR | os.O_DIRECT)

    def reads() -> None:
        for nth in range(REQUESTS):
            os.preadv(file, [block], nth * BLOCK % FILE_BYTES)

    def writes() -> None:
        for nth in range(REQUESTS):
            os.pwritev(file, [block], nth * BLOCK % FILE_BYTES)

    def names() -> None:
        for nth in range(FILES):
            os.close(os.open(f"{mount}/{nth}", os.O_CREAT | os.O_WRONLY))
            os.unlink(f"{mount}/{nth}")

    return {"4k read": reads, "4k write": writes, "create and unlink": names}


def seconds(turn: Callable[[], None]) -> float:
    begun = time.perf_counter()
    turn()
    return time.perf_counter() - begun


def middle(ratios: list[float]) -> tuple[float, float, float]:
    """The median, and the bounds of it that hold with 95 %."""
    ordered, count = sorted(ratios), len(ratios)
    # The largest rank below which the median lies with 2.5 % at most.
    rank, below = 0, 1
    while 2 * (below + math.comb(count, rank + 1)) <= 0.05 * 2**count:
        rank += 1
        below += math.comb(count, rank)
    return ordered[count // 2], ordered[rank], ordered[count - 1 - rank]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs=2, type=Path, metavar="BUILD")
    parser.add_argument("--pairs", type=int, default=301)
    parser.add_argument("--transport", action="append", choices=["classic", "uring"])
    parser.add_argument("--viewers", action="store_true")
    options = parser.parse_args()
    if not 6 <= options.pairs <= 1000:
        parser.error("--pairs: from 6, as fewer tell no range, to 1000")
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit("compare-builds: told to end"))
    os.sched_setaffinity(0, {0})
    for transport in options.transport or ["classic"]:
        with tempfile.TemporaryDirectory() as directory:
            compare(options, transport, [Path(directory, name) for name in ("before", "after")])


def compare(options: argparse.Namespace, transport: str, mounts: list[Path]) -> None:
    every_cpu = {"preexec_fn": lambda: os.sched_setaffinity(0, range(os.cpu_count()))}
    up, viewers = [], []
    try:
        for build, mount in zip(options.builds, mounts):
            mount.mkdir()
            kind = ["--data", "pool", "--transport", transport, "--size-per-node", "256M"]
            where = every_cpu if transport == "uring" else {}
            subprocess.run([build, "up", *kind, mount], check=True, stdout=subprocess.DEVNULL, **where)
            up.append((build, mount))
        if options.viewers:
            web = [options.builds[1], "web", "--listen", "127.0.0.1:7079"]
            viewers.append(subprocess.Popen(web, stdout=subprocess.PIPE, text=True, **every_cpu))
            token = re.search(r"token=(\w+)", viewers[0].stdout.readline()).group(1)
            viewers.append(subprocess.Popen([sys.executable, "-c", READER, token], **every_cpu))
        before, after = (work(mount) for mount in mounts)
        ratios = {row: [] for row in before}
        for pair in range(options.pairs + 2):
            for row, found in ratios.items():
                # The order changes, so that neither is always the first.
                turns = [before[row], after[row]] if pair % 2 else [after[row], before[row]]
                one, other = (seconds(turn) for turn in turns)
                # The first pairs warm up.
                if pair > 1:
                    found.append(one / other if pair % 2 else other / one)
        for row, found in ratios.items():
            median, low, high = middle(found)
            extremes = f"pairs: {min(found):.2f} to {max(found):.2f}"
            print(f"{transport:8} {row:18} {median:.3f}  95 %: {low:.3f} to {high:.3f}  {extremes}")
        if any(viewer.poll() is not None for viewer in viewers):
            sys.exit("compare-builds: a viewer has ended: is port 7079 free?")
    finally:
        for viewer in viewers:
            viewer.terminate()
            viewer.wait()
        for build, mount in up:
            # Its file is still open here.
            subprocess.run([build, "down", "--lazy", mount], stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
