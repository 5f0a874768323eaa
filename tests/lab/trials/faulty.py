"""A cached pool on a disk that is slow, reads or writes nothing, or is gone for a while: the kernel's device mapper makes it so. Nobody gets
bytes that are not his, each call ends in time, and what was synced stays.
"""

import concurrent.futures
import contextlib
import errno
import mmap
import os
import threading
import time
import unittest
from pathlib import Path

from inside import run
from pool import BLOCK, MIB, Tank, homenode, run_trials, soon, stamped

LOWER = next(Path("/dev").glob("nvme*n1"))
# The device mapper's only disk; names in /dev/mapper are udev's.
DISK = Path("/dev/dm-0")
SECTORS = int(run("blockdev", "--getsz", LOWER))
# What is read does not fit.
CACHE, LARGE = 8 * MIB, 24 * MIB // BLOCK
SMALL = 2 * MIB // BLOCK
# Every call gives up after ten seconds at most without any progress of the disk, on a machine that is not emulated.
BOUND_S = 60
THREADS = 8
WHOLE = f"linear {LOWER} 0"
SLOW = f"delay {LOWER} 0 50"
READS_NOTHING, WRITES_NOTHING = (f"flakey {LOWER} 0 0 3600 1 error_{what}" for what in ("reads", "writes"))
GONE = "error"


def make(kind: str) -> None:
    """Makes the disk one of this kind, between two requests."""
    run("dmsetup", "suspend", "--nolockfs", "faulty")
    run("dmsetup", "reload", "faulty", "--table", f"0 {SECTORS} {kind}")
    run("dmsetup", "resume", "faulty")


class Faulty(unittest.TestCase):
    """Each on a pool of its own."""

    def setUp(self):
        run("dmsetup", "create", "faulty", "--table", f"0 {SECTORS} {WHOLE}")
        self.addCleanup(self.leave)
        self.pool = Tank(DISK, CACHE)

    def leave(self):
        """Whatever the disk is like, the pool can be left."""
        make(WHOLE)
        homenode("down", "/tmp/tank")
        homenode("pool", "export", "tank")
        run("dmsetup", "remove", "faulty")

    def again(self) -> None:
        """The pool is put away and comes again, from what is on the disk."""
        homenode("down", self.pool.directory)
        soon(lambda: not Path(f"/proc/{self.pool.pid}").exists(), "the server is gone")
        fsck = homenode("fsck", "tank")
        self.assertEqual(fsck.returncode, 0, fsck.stdout + fsck.stderr)
        self.pool.up()

    @contextlib.contextmanager
    def opened(self, name: str, flags: int = os.O_RDWR):
        """A descriptor past the page cache."""
        file = self.pool.open(name, flags)
        try:
            yield file
        finally:
            os.close(file)

    def sync(self, name: str) -> int:
        """The error number of a sync of a file, or 0."""
        with self.opened(name) as file:
            return self.number_of(lambda: os.fsync(file))

    def number_of(self, act) -> int:
        """The error number of what is done, or 0; it ends in time."""
        start = time.monotonic()
        try:
            act()
        except OSError as error:
            return error.errno
        finally:
            self.assertLess(time.monotonic() - start, BOUND_S)
        return 0

    def write_synced(self, name: str, blocks: int) -> None:
        self.assertEqual(self.pool.write(name, blocks, name), blocks)
        self.assertEqual(self.sync(name), 0)

    def read_blocks(self, name: str, blocks: int) -> int:
        """Reads a file block by block; those that can be read are right. How many cannot."""
        missing = 0
        with self.opened(name, os.O_RDONLY) as file:
            for block in range(blocks):
                try:
                    found = os.pread(file, BLOCK, block * BLOCK)
                except OSError as error:
                    self.assertEqual(error.errno, errno.EIO)
                    missing += 1
                else:
                    self.assertEqual(found, stamped(name, block, 1), f"block {block} of {name}")
        return missing

    def test_a_slow_disk_fails_nobody(self):
        self.write_synced("before", SMALL)
        make(SLOW)
        self.write_synced("slow", SMALL)
        self.pool.verify("slow", SMALL, "slow")
        make(WHOLE)
        self.again()
        for name in ("before", "slow"):
            self.pool.verify(name, SMALL, name)

    def test_reads_that_fail_are_told_and_leave_nothing_behind(self):
        self.write_synced("large", LARGE)
        make(READS_NOTHING)
        missing = self.read_blocks("large", LARGE)
        print(f"{missing} of {LARGE} blocks could not be read", flush=True)
        self.assertGreater(missing, LARGE // 2)
        self.assertLess(missing, LARGE)
        make(WHOLE)
        self.pool.verify("large", LARGE, "large")

    def test_writes_that_fail_are_told_and_what_was_synced_stays(self):
        self.write_synced("before", SMALL)
        make(WRITES_NOTHING)
        # It has come to memory, or is told.
        self.number_of(lambda: self.pool.write("after", SMALL, "after"))
        zeros = mmap.mmap(-1, BLOCK)
        with self.opened("before") as file:
            error = self.number_of(lambda: os.pwrite(file, zeros, 0)) or self.number_of(lambda: os.fsync(file))
        self.assertIn(error, (errno.EIO, errno.EROFS))
        make(WHOLE)
        self.again()
        with self.opened("before", os.O_RDONLY) as file:
            found = os.pread(file, SMALL * BLOCK, 0)
        # The first block is the old one or the new one.
        self.assertIn(found[:BLOCK], (stamped("before", 0, 1), bytes(BLOCK)))
        self.assertEqual(found[BLOCK:], stamped("before", 1, SMALL - 1))

    def test_a_disk_that_is_gone_under_load_is_told_to_all(self):
        self.write_synced("before", LARGE)
        ended, errors = threading.Event(), [0, 0]

        def work(number: int) -> None:
            while not ended.is_set():
                act = (lambda: self.pool.write(f"of-{number}", SMALL, "x")) if number % 2 else self.read_all
                errors[number % 2] += bool(self.number_of(act))

        with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
            works = [threads.submit(work, number) for number in range(THREADS)]
            try:
                time.sleep(2)
                make(GONE)
                soon(lambda: errors[0], "readers are told")
                soon(lambda: errors[1], "writers are told")
            finally:
                ended.set()
            # A call that took too long, or other bytes, are told here.
            for one in works:
                one.result(BOUND_S)
        make(WHOLE)
        self.again()
        self.pool.verify("before", LARGE, "before")

    def read_all(self) -> None:
        with self.opened("before", os.O_RDONLY) as file:
            for block in range(0, LARGE, MIB // BLOCK):
                found = os.pread(file, MIB, block * BLOCK)
                # A read of which a later part fails is short.
                self.assertEqual(found, stamped("before", block, MIB // BLOCK)[: len(found)])


if __name__ == "__main__":
    run_trials()
