#!/usr/bin/env python3
"""Whole programs on a mount whose files are the kernel's, beside tmpfs by default, tmpfs with huge=always, and a mount whose bytes are in
the pool's blocks; or with --disk a durable pool on a disk, cached, beside ext4 and xfs with their page cache; or with --run programs under `homenode run`,
beside the same on the mount as it is, and on tmpfs with huge=always. docs/claims.md, files of the kernel, the cache of disks, and programs under `homenode run`.

bench-programs.py [--disk | --run] [--rounds N] [--case NAME]... [HOMENODE]

As root, with 12 GiB of memory to spare. Tells which programs are missing. All contestants take turns in each round; a figure is the median of the rounds, a
ratio the median of those within rounds, with the least and the greatest. With --run, the calls that were copies are counted in the round that warms up.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile

# Nothing is left in the tree.
sys.dont_write_bytecode = True
from programs import databases, files, started  # noqa: E402
from programs.case import Contestant, run  # noqa: E402

SIZE = "3G"
SWITCH = pathlib.Path("/sys/module/fuse/parameters/enable_uring")
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

CASES = {
    "ls-l": files.List(),
    "ls-l-cold": files.ListCold(),
    "stat-after-burst": files.StatAfterBurst(),
    "rsync": files.Rsync(),
    "clone-build": files.CloneAndBuild(),
    "sqlite": databases.Sqlite(),
    "sqlite-wal": databases.SqliteWal(),
    "pgbench-read": databases.PgbenchRead(),
    "pgbench": databases.Pgbench(),
    "rocksdb-fill": databases.RocksDb(),
    "rocksdb-read": databases.RocksDbRead(),
    "fio-verify": databases.FioVerify(),
}
CASES_OF_RUN = {
    "sqlite-transactions": started.SqliteTransactions("delete"),
    "sqlite-lookups": started.SqliteLookups("delete"),
    "sqlite-queries": started.SqliteQueries("delete"),
    "sqlite-wal-transactions": started.SqliteTransactions("wal"),
    "sqlite-wal-lookups": started.SqliteLookups("wal"),
    "sqlite-wal-queries": started.SqliteQueries("wal"),
    "rocksdb-fill": databases.RocksDb(),
    "rocksdb-read": databases.RocksDbRead(),
    "pgbench-read": databases.PgbenchRead(),
    "pgbench": databases.Pgbench(),
    "ycsb-a": started.Ycsb(),
    "maven": started.MavenBuild(),
}


def switch_rings_on(stack):
    """Until the end, when the switch is as it was."""
    stack.callback(SWITCH.write_text, SWITCH.read_text())
    SWITCH.write_text("1")


def mount_tmpfs(stack, directory, options=""):
    directory.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755{options}", "tmpfs", directory)
    stack.callback(run, "umount", "--lazy", directory)
    return Contestant(directory)


def mount_pool(stack, homenode, directory, *options, through=None):
    directory.mkdir()
    run(homenode, "up", "--transport", "uring", "--size-per-node", SIZE, *options, directory)
    stack.callback(run, homenode, "down", directory)
    return Contestant(directory, through)


@contextlib.contextmanager
def contestants(homenode, base):
    """Contestants by name, taken down at the end."""
    with contextlib.ExitStack() as stack:
        switch_rings_on(stack)
        yield {
            "homenode": mount_pool(stack, homenode, base / "homenode", "--data", "kernel"),
            "tmpfs": mount_tmpfs(stack, base / "tmpfs"),
            "tmpfs-huge": mount_tmpfs(stack, base / "tmpfs-huge", ",huge=always"),
            "pool": mount_pool(stack, homenode, base / "pool", "--data", "pool"),
        }


@contextlib.contextmanager
def contestants_of_run(homenode, base):
    """The mount with programs under `homenode run`, the mount as it is, and tmpfs."""
    with contextlib.ExitStack() as stack:
        switch_rings_on(stack)
        yield {
            "run": mount_pool(stack, homenode, base / "run", "--data", "kernel", through=homenode),
            "tmpfs": mount_tmpfs(stack, base / "tmpfs"),
            "tmpfs-huge": mount_tmpfs(stack, base / "tmpfs-huge", ",huge=always"),
            "mount": mount_pool(stack, homenode, base / "mount", "--data", "kernel"),
        }


@contextlib.contextmanager
def contestants_on_disks(homenode, base):
    """The same, each on a loop device of its own with direct I/O on a tmpfs."""
    with contextlib.ExitStack() as stack:
        switch_rings_on(stack)
        os.environ["HOMENODE_POOLS"] = str(base / "pools")
        stack.callback(shutil.rmtree, base / "pools", True)
        disks = base / "disks"
        disks.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=9G", "tmpfs", disks)
        stack.callback(run, "umount", "--lazy", disks)
        found = {}
        for name in ["homenode", "ext4", "xfs"]:
            file, directory = disks / name, base / name
            directory.mkdir()
            with file.open("wb") as made:
                made.truncate(3 << 30)
            disk = run("losetup", "--find", "--show", "--direct-io=on", file).strip()
            stack.callback(run, "losetup", "--detach", disk)
            if name == "homenode":
                run(homenode, "pool", "create", "bench-programs", disk, "--cache", "1G")
                run(homenode, "up", "bench-programs", directory, "--transport", "uring")
                stack.callback(run, homenode, "down", directory)
            else:
                run(f"mkfs.{name}", "-q", disk)
                run("mount", disk, directory)
                stack.callback(run, "umount", directory)
            directory.chmod(0o755)
            found[name] = Contestant(directory)
        yield found


def measure(name, case, contestants, rounds):
    """Prints the row of a case."""
    without = set()
    if case.has_small_files:
        without = {"tmpfs-huge"}
    elif "run" in contestants:
        without = {"tmpfs"}
    contestants = {one: at for one, at in contestants.items() if one not in without}
    for at in contestants.values():
        if not (at.directory / "many").exists() or not isinstance(case, files.List):
            case.once(at)
    seconds = {one: [] for one in contestants}
    order = list(contestants)
    counts = None
    for number in range(rounds + 1):
        for one in order[number % len(order):] + order[:number % len(order)]:
            at = contestants[one]
            if number == 0:  # It warms up, and is not timed.
                at.start_counting()
            case.before(at)
            try:
                took = case.measure(at)
            finally:
                case.after(at)
            if number > 0:
                seconds[one].append(took)
            elif at.is_counting:
                counts = at.stop_counting()
    print("  ".join(row(name, case, seconds, counts)), flush=True)


def row(name, case, seconds, counts):
    """The cells of a case: the first contestant's median, and the ratios."""
    own, *peers = seconds
    yield f"{name:24}{statistics.median(seconds[own]) * case.scale:12.1f} {case.unit:8}"
    for peer in peers:
        yield f"{peer} {ratio(seconds[peer], seconds[own])}"
    if own == "run":
        tmpfs, mount = peers
        yield f"mount to {tmpfs} {ratio(seconds[tmpfs], seconds[mount])}"
        copies, calls, slow, others = counts
        # Programs of Go end past the C library, and tell nothing.
        told = f"{copies} of {calls} calls at an offset were copies, {slow} system calls on the pool, {others} on other files"
        yield told if calls > 0 else "copies not told"


def ratio(theirs, ours):
    """Median of how many times as long they take, least and greatest."""
    ratios = [their / our for their, our in zip(theirs, ours)]
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_mutually_exclusive_group()
    stages.add_argument("--disk", action="store_true", help="a cached pool on a disk beside ext4 and xfs")
    stages.add_argument("--run", action="store_true", help="programs under `homenode run` beside the same without, and on tmpfs")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--case", action="append", choices={**CASES, **CASES_OF_RUN})
    parser.add_argument("homenode", nargs="?", default=REPOSITORY / "target/release/homenode")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-programs: only root can mount: run it as root")
    cases = CASES_OF_RUN if arguments.run else CASES
    chosen = arguments.case or list(cases)
    for name in chosen:
        if name not in cases:
            sys.exit(f"bench-programs: there is no case {name} {'with' if arguments.run else 'without'} --run: it has {', '.join(cases)}")
        cases[name].require()
    homenode = shutil.which(arguments.homenode)
    if homenode is None:
        sys.exit(f"bench-programs: {arguments.homenode} is missing: cargo build --release")
    homenode = os.path.abspath(homenode)
    # What was mounted is taken down then, too.
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit("bench-programs: told to end"))
    base = pathlib.Path(tempfile.mkdtemp(prefix="homenode-bench-"))
    base.chmod(0o755)
    stage = contestants_of_run if arguments.run else contestants_on_disks if arguments.disk else contestants
    try:
        with stage(homenode, base) as found:
            for name in chosen:
                measure(name, cases[name], found, arguments.rounds)
    finally:
        for directory in base.iterdir():
            directory.rmdir()
        base.rmdir()


if __name__ == "__main__":
    main()
