#!/usr/bin/env python3
"""Whole programs on a mount whose files are the kernel's, beside tmpfs by default, tmpfs with huge=always, and a mount whose bytes are in
the pool's blocks; or with --disk a durable pool on a disk, cached, beside ext4 and xfs with their page cache. docs/claims.md, files of the kernel, and
the cache of disks.

bench-programs.py [--disk] [--rounds N] [--case NAME]... [HOMENODE]

As root, with 12 GiB of memory to spare. Needs rsync, git, make, sqlite3, postgresql, rocksdb-tools and fio. All contestants take turns in each
round; a figure is the median of the rounds, a ratio the median of those within rounds, with the least and the greatest.
"""

import argparse
import contextlib
import glob
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SIZE = "3G"
SWITCH = pathlib.Path("/sys/module/fuse/parameters/enable_uring")
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
FILES = 20_000


def run(*command, **options):
    """Runs a command; its output."""
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, **options)
    if done.returncode != 0:
        sys.exit(f"bench-programs: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def timed(*command, **options):
    """Seconds that a command takes."""
    start = time.monotonic()
    run(*command, **options)
    return time.monotonic() - start


class Case:
    """Something that is measured: `once` before all rounds, then `before` (not timed) and `measure` in each; seconds, or seconds an
    operation."""

    unit = "ms"
    scale = 1e3
    # With huge=always each small file would first clear 2 MiB.
    has_small_files = False

    def once(self, directory):
        pass

    def before(self, directory):
        pass

    def after(self, directory):
        pass


class List(Case):
    """`ls -l` of 20,000 files."""

    has_small_files = True

    def once(self, directory):
        (directory / "many").mkdir()
        for number in range(FILES):
            (directory / "many" / f"file-{number}").write_bytes(b"x" * 100)

    def measure(self, directory):
        return timed("ls", "-l", directory / "many")


class ListCold(List):
    """The same after the kernel has forgotten names and attributes, which those of a tmpfs it cannot."""

    def before(self, directory):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("2")


class StatAfterBurst(Case):
    """stat of 2,000 files that were just written."""

    unit, scale = "us/file", 1e6
    has_small_files = True

    def measure(self, directory):
        paths = [directory / "burst" / f"file-{number}" for number in range(2000)]
        (directory / "burst").mkdir()
        for path in paths:
            path.write_bytes(bytes(4096))
        start = time.monotonic()
        for path in paths:
            os.stat(path)
        return (time.monotonic() - start) / len(paths)

    def after(self, directory):
        shutil.rmtree(directory / "burst")


class Rsync(Case):
    """rsync -a of /usr/include into an empty directory."""

    has_small_files = True

    def measure(self, directory):
        return timed("rsync", "-a", "/usr/include/", directory / "include")

    def after(self, directory):
        shutil.rmtree(directory / "include")


class CloneAndBuild(Case):
    """git clone of this repository, and bzip2 built with make -j2."""

    has_small_files = True

    def measure(self, directory):
        [source] = glob.glob(os.path.expanduser("~/.cargo/registry/src/*/bzip2-sys-*/bzip2-1.0.8"))
        start = time.monotonic()
        run("git", "clone", "--quiet", "--no-hardlinks", REPOSITORY, directory / "clone")
        shutil.copytree(source, directory / "build")
        run("make", "-j2", "-C", directory / "build", "bzip2")
        return time.monotonic() - start

    def after(self, directory):
        shutil.rmtree(directory / "clone")
        shutil.rmtree(directory / "build")


class Sqlite(Case):
    """2,000 transactions of an insert and an update, then a query over all."""

    journal = "delete"

    def measure(self, directory):
        sql = [f"PRAGMA journal_mode={self.journal};", "CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB);"]
        for key in range(2000):
            sql.append(f"BEGIN; INSERT INTO t VALUES ({key}, randomblob(400));")
            sql.append(f"UPDATE t SET v = randomblob(400) WHERE k = {key * 7919 % (key + 1)}; COMMIT;")
        sql.append("SELECT sum(length(v)) FROM t;")
        return timed("sqlite3", "-batch", directory / "sqlite", input="\n".join(sql))

    def after(self, directory):
        for path in directory.glob("sqlite*"):
            path.unlink()


class SqliteWal(Sqlite):
    """The same with a write-ahead log."""

    journal = "wal"


class Pgbench(Case):
    """PostgreSQL: pgbench with two clients for four seconds; time of a transaction and client."""

    unit, scale = "us", 1e6
    script: tuple = ()

    @property
    def programs(self):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        if not found:
            sys.exit("bench-programs: PostgreSQL is missing: apt-get install postgresql")
        return pathlib.Path(found[-1])

    def once(self, directory):
        data = directory / "postgres"
        if data.exists():
            return
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        self.run_as(directory, "initdb", "-D", data, "-A", "trust", "--no-sync")
        self.start(directory)
        self.run_as(directory, "pgbench", *self.socket(directory), "-i", "-s", "10", "-q", "postgres")
        self.stop(directory)

    def socket(self, directory):
        return ["-h", str(directory / "postgres")]

    def run_as(self, directory, program, *arguments):
        return run("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", self.programs / program, *arguments, cwd=directory)

    def start(self, directory):
        data = directory / "postgres"
        options = f"-k {data} -c listen_addresses='' -c shared_buffers=32MB -c logging_collector=off"
        self.run_as(directory, "pg_ctl", "-D", data, "-w", "-l", data / "log", "-o", options, "start")

    def stop(self, directory):
        self.run_as(directory, "pg_ctl", "-D", directory / "postgres", "-w", "-m", "fast", "stop")

    def before(self, directory):
        self.start(directory)

    def measure(self, directory):
        printed = self.run_as(directory, "pgbench", *self.socket(directory), "-c", "2", "-T", "4", "-n", *self.script, "postgres")
        return 1 / float(re.search(r"tps = ([0-9.]+)", printed)[1])

    def after(self, directory):
        self.stop(directory)


class PgbenchRead(Pgbench):
    """pgbench -S: reads alone."""

    script = ("-S",)


class RocksDb(Case):
    """db_bench: 200,000 keys of 400 bytes."""

    unit, scale = "us", 1e6
    work = "fillrandom"

    def measure(self, directory):
        works = "fillrandom" if self.work == "fillrandom" else f"fillrandom,{self.work}"
        printed = run("db_bench", f"--benchmarks={works}", f"--db={directory}/rocksdb", "--num=200000", "--value_size=400",
                      "--compression_type=none", "--seed=7", "--cache_size=1048576", "--write_buffer_size=4194304",
                      stdin=subprocess.DEVNULL)
        return float(re.search(rf"^{self.work} +: +([0-9.]+) micros/op", printed, re.M)[1]) / 1e6

    def after(self, directory):
        shutil.rmtree(directory / "rocksdb")


class RocksDbRead(RocksDb):
    """The same, read at random."""

    work = "readrandom"


class FioVerify(Case):
    """fio writes 128 MiB at random, 4 KiB at a time, syncs them, and reads them back against their checksums."""

    unit, scale = "s", 1

    def measure(self, directory):
        return timed("fio", "--name=verify", f"--filename={directory}/fio", "--rw=randwrite", "--bs=4k", "--size=128M",
                     "--ioengine=psync", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--end_fsync=1",
                     "--randrepeat=0", stdin=subprocess.DEVNULL, cwd=directory)

    def after(self, directory):
        for path in [*directory.glob("fio"), *directory.glob("*.state")]:
            path.unlink()


CASES = {
    "ls-l": List(),
    "ls-l-cold": ListCold(),
    "stat-after-burst": StatAfterBurst(),
    "rsync": Rsync(),
    "clone-build": CloneAndBuild(),
    "sqlite": Sqlite(),
    "sqlite-wal": SqliteWal(),
    "pgbench-read": PgbenchRead(),
    "pgbench": Pgbench(),
    "rocksdb-fill": RocksDb(),
    "rocksdb-read": RocksDbRead(),
    "fio-verify": FioVerify(),
}


def switch_rings_on(stack):
    """Until the end, when the switch is as it was."""
    stack.callback(SWITCH.write_text, SWITCH.read_text())
    SWITCH.write_text("1")


@contextlib.contextmanager
def contestants(homenode, base):
    """Directories by name, taken down at the end."""
    with contextlib.ExitStack() as stack:
        switch_rings_on(stack)
        found = {}
        for name, options in [("homenode", ["--data", "kernel"]), ("pool", ["--data", "pool"])]:
            directory = base / name
            directory.mkdir()
            run(homenode, "up", "--transport", "uring", *options, "--size-per-node", SIZE, directory)
            stack.callback(run, homenode, "down", directory)
            found[name] = directory
        for name, options in [("tmpfs", ""), ("tmpfs-huge", ",huge=always")]:
            directory = base / name
            directory.mkdir()
            run("mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755{options}", "tmpfs", directory)
            stack.callback(run, "umount", "--lazy", directory)
            found[name] = directory
        yield {name: found[name] for name in ["homenode", "tmpfs", "tmpfs-huge", "pool"]}


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
            found[name] = directory
        yield found


def measure(name, case, directories, rounds):
    """Prints the row of a case."""
    if case.has_small_files:
        directories = {one: directory for one, directory in directories.items() if one != "tmpfs-huge"}
    for directory in directories.values():
        if not (directory / "many").exists() or not isinstance(case, List):
            case.once(directory)
    seconds = {contestant: [] for contestant in directories}
    order = list(directories)
    for number in range(rounds + 1):
        for contestant in order[number % len(order):] + order[:number % len(order)]:
            directory = directories[contestant]
            case.before(directory)
            try:
                took = case.measure(directory)
            finally:
                case.after(directory)
            if number > 0:  # The first one warms up.
                seconds[contestant].append(took)
    own = seconds["homenode"]
    cells = [f"{name:18}{statistics.median(own) * case.scale:12.1f} {case.unit:8}"]
    for peer in order[1:]:
        ratios = [theirs / ours for theirs, ours in zip(seconds[peer], own)]
        cells.append(f"{peer} {statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})")
    print("  ".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", action="store_true", help="a cached pool on a disk beside ext4 and xfs")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("homenode", nargs="?", default=REPOSITORY / "target/release/homenode")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-programs: only root can mount: run it as root")
    for program, package in [("rsync", "rsync"), ("git", "git"), ("make", "make"), ("sqlite3", "sqlite3"), ("db_bench", "rocksdb-tools"), ("fio", "fio")]:
        if shutil.which(program) is None:
            sys.exit(f"bench-programs: {program} is missing: apt-get install {package}")
    base = pathlib.Path(tempfile.mkdtemp(prefix="homenode-bench-"))
    base.chmod(0o755)
    try:
        stage = contestants_on_disks if arguments.disk else contestants
        with stage(arguments.homenode, base) as directories:
            for name in arguments.case or CASES:
                measure(name, CASES[name], directories, arguments.rounds)
    finally:
        for directory in base.iterdir():
            directory.rmdir()
        base.rmdir()


if __name__ == "__main__":
    main()
