"""Databases, and fio."""

import glob
import pathlib
import re
import shutil
import subprocess
import sys

from .case import Case, run


class Sqlite(Case):
    """2,000 transactions of an insert and an update, then a query over all."""

    needs = {"sqlite3": "apt-get install sqlite3"}
    journal = "delete"

    def measure(self, at):
        sql = [f"PRAGMA journal_mode={self.journal};", "CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB);"]
        for key in range(2000):
            sql.append(f"BEGIN; INSERT INTO t VALUES ({key}, randomblob(400));")
            sql.append(f"UPDATE t SET v = randomblob(400) WHERE k = {key * 7919 % (key + 1)}; COMMIT;")
        sql.append("SELECT sum(length(v)) FROM t;")
        return at.timed("sqlite3", "-batch", at.directory / "sqlite", input="\n".join(sql))

    def after(self, at):
        for path in at.directory.glob("sqlite*"):
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

    def require(self):
        _ = self.programs

    def once(self, at):
        data = at.directory / "postgres"
        if data.exists():
            return
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        self.run_as(at, self.programs / "initdb", "-D", data, "-A", "trust", "--no-sync")
        self.start(at)
        try:
            self.pgbench(at, "-i", "-s", "10", "-q")
        finally:
            self.stop(at)

    def run_as(self, at, *command):
        return run("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command, cwd=at.directory)

    def pgbench(self, at, *arguments):
        return self.run_as(at, self.programs / "pgbench", "-h", at.directory / "postgres", *arguments, "postgres")

    def start(self, at):
        data = at.directory / "postgres"
        options = f"-k {data} -c listen_addresses='' -c shared_buffers=32MB -c logging_collector=off"
        self.run_as(at, *at.launcher, self.programs / "pg_ctl", "-D", data, "-w", "-l", data / "log", "-o", options, "start")

    def stop(self, at):
        data = at.directory / "postgres"
        self.run_as(at, self.programs / "pg_ctl", "-D", data, "-w", "-m", "fast", "stop")
        at.hear((data / "log").read_text())
        (data / "log").unlink()

    def before(self, at):
        self.start(at)

    def measure(self, at):
        printed = self.pgbench(at, "-c", "2", "-T", "4", "-n", *self.script)
        return 1 / float(re.search(r"tps = ([0-9.]+)", printed)[1])

    def after(self, at):
        self.stop(at)


class PgbenchRead(Pgbench):
    """pgbench -S: reads alone."""

    script = ("-S",)


class RocksDb(Case):
    """db_bench: 200,000 keys of 400 bytes."""

    unit, scale = "us", 1e6
    work = "fillrandom"
    needs = {"db_bench": "apt-get install rocksdb-tools"}

    def measure(self, at):
        works = "fillrandom" if self.work == "fillrandom" else f"fillrandom,{self.work}"
        printed = at.run("db_bench", f"--benchmarks={works}", f"--db={at.directory}/rocksdb", "--num=200000", "--value_size=400",
                         "--compression_type=none", "--seed=7", "--cache_size=1048576", "--write_buffer_size=4194304",
                         stdin=subprocess.DEVNULL)
        return float(re.search(rf"^{self.work} +: +([0-9.]+) micros/op", printed, re.M)[1]) / 1e6

    def after(self, at):
        shutil.rmtree(at.directory / "rocksdb")


class RocksDbRead(RocksDb):
    """The same, read at random."""

    work = "readrandom"


class FioVerify(Case):
    """fio writes 128 MiB at random, 4 KiB at a time, syncs them, and reads them back against their checksums."""

    unit, scale = "s", 1
    needs = {"fio": "apt-get install fio"}

    def measure(self, at):
        return at.timed("fio", "--name=verify", f"--filename={at.directory}/fio", "--rw=randwrite", "--bs=4k", "--size=128M",
                        "--ioengine=psync", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--end_fsync=1",
                        "--randrepeat=0", stdin=subprocess.DEVNULL, cwd=at.directory)

    def after(self, at):
        for path in [*at.directory.glob("fio"), *at.directory.glob("*.state")]:
            path.unlink()
