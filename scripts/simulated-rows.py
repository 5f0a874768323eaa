#!/usr/bin/python3
"""Simulated rows beside measured ones: reads and writes by one and two threads on this machine.

The constants of the model are set by five rows of the library (1k, 4k, 64k and 1m by one thread, 64k by two) and two of each tmpfs (4k
and 1m by one thread); the rows of other sizes and of two threads are predicted. Runs `homenode-bench fs` and `homenode simulate fio` of a release build: about a minute, on an idle machine.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINE = 64
SIZES = {"1k": 1 << 10, "4k": 4 << 10, "16k": 16 << 10, "64k": 64 << 10, "256k": 256 << 10, "1m": 1 << 20, "2m": 2 << 20}
# By the bench's name: the simulator's name, and that of its constants.
CONTESTANTS = {"homenode": ("Homenode library", "library"), "tmpfs-huge": ("Homenode mount", "mount"), "tmpfs": ("tmpfs", "tmpfs")}
FITTED = {("1k", 1), ("4k", 1), ("64k", 1), ("1m", 1), ("64k", 2)}
# A row that differs from round to round by more than this cannot be met by 10 %.
SPREAD_MAX = 0.2
BAR = 0.10


def measured() -> dict:
    """Nanoseconds of an operation by (contestant, operation, size, threads), and the spread of the row."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        words = [ROOT / "target/release/homenode-bench", "fs", "--json", file.name]
        for operation in ("overwrite", "read"):
            words += ["--case", f"{operation}/1t/same", "--case", f"{operation}/2t/separate"]
        subprocess.run([*map(str, words)], check=True, stdout=subprocess.DEVNULL)
        rows = json.load(open(file.name))["rows"]
    found = {}
    for row in rows:
        size, operation, threads, _ = row["case"].split("/")
        for name in CONTESTANTS:
            ns = row["homenode"] if name == "homenode" else row["peers"][name]
            found[name, operation, size, int(threads[0])] = (ns, row["spread"])
    return found


def constants(rows: dict, name: str, operation: str) -> list[str]:
    """Those that five rows tell: a copy's three slopes and an operation's time by one thread, and memory by two."""
    slopes = []
    for small, large in (("64k", "1m"), ("4k", "64k"), ("1k", "4k")):
        lines = (SIZES[large] - SIZES[small]) / LINE
        slopes.append((rows["homenode", operation, large, 1][0] - rows["homenode", operation, small, 1][0]) / lines)
    line = slopes[0]
    ramp = max(0.0, slopes[1] / line - 1)
    first = max(0.0, slopes[2] / line - 1 - ramp)
    # Memory is the same for all: what two threads of the library get.
    memory = 2 * SIZES["64k"] / rows["homenode", operation, "64k", 2][0]
    costs = CONTESTANTS[name][1]

    def copied(size: str) -> float:
        lines = SIZES[size] / LINE
        return line * (lines + min(lines, 1024) * ramp + min(lines, 64) * first)

    # What an operation and its pages take beyond the copy, which is the library's.
    beyond = {size: rows[name, operation, size, 1][0] - copied(size) for size in ("4k", "1m")}
    page = max(0.0, (beyond["1m"] - beyond["4k"]) / 255)
    return [
        "local_ns=100",
        f"lines_under_way={100 / line}",
        f"ramp_percent={100 * ramp:.3f}",
        f"first_percent={100 * first:.3f}",
        f"memory_bytes_per_ns={memory}",
        "lines_per_written=1",
        f"{costs}.page_ns={page:.3f}",
        f"{costs}.operation_ns={max(0.0, beyond['4k'] - page):.3f}",
    ]


def simulated(known: list[str], name: str, operation: str, size: str, threads: int) -> float:
    words = [ROOT / "target/release/homenode", "simulate", "fio", "--machine", "node:1 core:2 pu:1", "--draws", "1", "--jobs", threads]
    words += ["--rw", "randrw", "--rwmixread", 100 if operation == "read" else 0, "--bs", SIZES[size], "--size", "64M", "--runtime", 0.05]
    for one in known:
        words += ["--set", one]
    told = subprocess.run([*map(str, words)], check=True, capture_output=True, text=True).stdout
    rate = float(re.search(rf"^{re.escape(CONTESTANTS[name][0])} +(\d+) MB/s", told, re.MULTILINE)[1])
    return SIZES[size] * threads / rate * 1000


def main() -> int:
    rows = measured()
    errors, missed = [], []
    print(f"{'row':<34} {'measured':>10} {'simulated':>10} {'':>7} {'spread':>7}")
    for (name, operation, size, threads), (ns, spread) in rows.items():
        if (size, threads) in FITTED and (name == "homenode" or size in ("4k", "1m")):
            continue
        known = constants(rows, name, operation)
        told = simulated(known, name, operation, size, threads)
        error = told / ns - 1
        is_noisy = spread > SPREAD_MAX
        row = f"{name} {size}/{operation}/{threads}t"
        print(f"{row:<34} {ns:>10.0f} {told:>10.0f} {error:>+7.0%} {spread:>7.0%} {'noisy' if is_noisy else ''}")
        if not is_noisy:
            errors.append(abs(error))
            if abs(error) > BAR:
                missed.append(row)
    errors.sort()
    print(f"{len(errors)} rows that are not noisy: median error {(errors or [1])[len(errors) // 2]:.1%}, {len(missed)} beyond {BAR:.0%}: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


sys.exit(main())
