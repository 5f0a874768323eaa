#!/usr/bin/python3
"""Simulated rows beside measured ones: reads and writes by one and two threads on this machine.

`homenode-bench fs` runs several times. Within a run a row's contestants take turns, so what a row takes is the median of its ratios to
memcpy's, times the median of memcpy's. The hardware is told by memcpy, of each size by one thread and by two. Where the library
copies faster than memcpy, its own row of one thread tells its copies, and those of the kernel of 1m and more: there memcpy has
another way than the kernel, which has string instructions for all sizes. An operation's time is told by each contestant's row of 1k,
and a page's by the tmpfs's of 1m. All other rows are predicted. Some minutes on an idle machine; needs release builds of homenode and
homenode-bench. `--from FILE…` takes the JSON of runs that are there already.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = 9
SIZES = {"1k": 1 << 10, "4k": 4 << 10, "16k": 16 << 10, "64k": 64 << 10, "256k": 256 << 10, "1m": 1 << 20, "2m": 2 << 20}
PAGES = {size: max(1, value // 4096) for size, value in SIZES.items()}
# By the bench's name: the simulator's name, and that of its constants.
CONTESTANTS = {"homenode": ("Homenode library", "library"), "tmpfs-huge": ("Homenode mount", "mount"), "tmpfs": ("tmpfs", "tmpfs")}
# A row that differs from run to run by more than this, as a ratio to memcpy's, cannot be met by 10 %.
SPREAD_MAX = 0.2
BAR = 0.10


def bench(file: pathlib.Path) -> pathlib.Path:
    words = [ROOT / "target/release/homenode-bench", "fs", "--json", file]
    for operation in ("overwrite", "read"):
        words += ["--case", f"{operation}/1t/same", "--case", f"{operation}/2t/separate"]
    subprocess.run([*map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return file


def measured(files: list[pathlib.Path]) -> dict:
    """Nanoseconds of an operation by (contestant, operation, size, threads), and how far the middle half of the runs is apart."""
    memcpy, ratios = {}, {}
    for file in files:
        for row in json.loads(file.read_text())["rows"]:
            size, operation, threads, _ = row["case"].split("/")
            key = operation, size, int(threads[0])
            memcpy.setdefault(key, []).append(row["peers"]["memcpy"])
            for name in CONTESTANTS:
                ns = row["homenode"] if name == "homenode" else row["peers"][name]
                ratios.setdefault((name, *key), []).append(ns / row["peers"]["memcpy"])
    found = {("memcpy", *key): (statistics.median(all_ns), 0.0) for key, all_ns in memcpy.items()}
    for (name, *key), seen in ratios.items():
        ratio = statistics.median(seen)
        low, _, high = statistics.quantiles(seen, n=4, method="inclusive") if len(seen) > 1 else (ratio,) * 3
        found[name, *key] = (ratio * found["memcpy", *key][0], (high - low) / ratio)
    return found


def tells_hardware(rows: dict, name: str, operation: str, size: str, threads: int) -> bool:
    """Whether a row is the library's that is taken for the hardware's."""
    return name == "homenode" and threads == 1 and rows[name, operation, size, 1][0] < rows["memcpy", operation, size, 1][0]


def constants(rows: dict, name: str, operation: str) -> list[str]:
    """Copies of this machine, and what an operation and a page of a contestant take beside them."""
    yardsticks = {size: ["memcpy"] if name != "homenode" and value < 1 << 20 else ["memcpy", "homenode"] for size, value in SIZES.items()}
    alone = {size: min(rows[one, operation, size, 1][0] for one in yardsticks[size]) for size in SIZES}
    known = ["local_ns=100", "lines_under_way=10", "lines_per_written=1", "memory_bytes_per_ns=1000"]
    for size, value in SIZES.items():
        by_two = rows["memcpy", operation, size, 2][0] / rows["memcpy", operation, size, 1][0]
        known += [f"copies.{value}={alone[size]:.3f}", f"crowded_copies.{value}={alone[size] * by_two:.3f}"]
    beside = {size: rows[name, operation, size, 1][0] - alone[size] for size in ("1k", "1m")}
    page = 0.0 if name == "homenode" else max(0.0, (beside["1m"] - beside["1k"]) / (PAGES["1m"] - 1))
    costs = CONTESTANTS[name][1]
    return [*known, f"{costs}.page_ns={page:.3f}", f"{costs}.operation_ns={max(0.0, beside['1k'] - page):.3f}"]


def simulated(known: list[str], name: str, operation: str, size: str, threads: int) -> float:
    words = [ROOT / "target/release/homenode", "simulate", "fio", "--machine", "node:1 core:2 pu:1", "--draws", "1", "--jobs", threads]
    words += ["--rw", "randrw", "--rwmixread", 100 if operation == "read" else 0, "--bs", SIZES[size], "--size", "64M", "--runtime", 0.05]
    for one in known:
        words += ["--set", one]
    told = subprocess.run([*map(str, words)], check=True, capture_output=True, text=True).stdout
    rate = float(re.search(rf"^{re.escape(CONTESTANTS[name][0])} +(\d+) MB/s", told, re.MULTILINE)[1])
    return SIZES[size] * threads / rate * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulated rows beside measured ones.")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of homenode-bench fs (default: %(default)s)")
    parser.add_argument("--from", dest="files", nargs="+", type=pathlib.Path, help="take these JSON files of homenode-bench fs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        files = arguments.files or [bench(pathlib.Path(directory) / f"{run}.json") for run in range(arguments.runs)]
        rows = measured(files)
    errors, missed = [], []
    print(f"{'row':<34} {'measured':>10} {'simulated':>10} {'':>7} {'spread':>7}")
    for (name, operation, size, threads), (ns, spread) in rows.items():
        sets_constants = threads == 1 and (size == "1k" or size == "1m" and name != "homenode")
        if name == "memcpy" or sets_constants or tells_hardware(rows, name, operation, size, threads):
            continue
        told = simulated(constants(rows, name, operation), name, operation, size, threads)
        error = told / ns - 1
        is_noisy = spread > SPREAD_MAX
        row = f"{name} {size}/{operation}/{threads}t"
        print(f"{row:<34} {ns:>10.0f} {told:>10.0f} {error:>+7.1%} {spread:>7.0%} {'noisy' if is_noisy else ''}")
        if not is_noisy:
            errors.append(abs(error))
            if abs(error) > BAR:
                missed.append(row)
    errors.sort()
    told = f"{len(errors)} rows that are not noisy, medians of {len(files)} runs: median error {(errors or [1])[len(errors) // 2]:.1%}"
    print(f"{told}, {len(missed)} beyond {BAR:.0%}: {', '.join(missed) or 'none'}")
    return 1 if missed or not errors else 0


sys.exit(main())
