"""Durable pools on a disk that logs its writes, and on devices of persistent memory. The first argument names the class to run.

`Logged` has the filesystem and the program `stamped` behind it; `Devices` has nothing.
"""

import contextlib
import json
import os
import random
import subprocess
import threading
import time
import uuid
from pathlib import Path

from pool import MIB, WORDS, Commanding, homenode, run_trials
from write_log import WriteLog

# The device mapper's only disk; names in /dev/mapper are udev's.
DISK = Path("/dev/dm-0")
PLACE = Path("/tmp/place")
# How long the load runs, and how long states of the disk are looked at. All of it is emulated.
LOAD_S = 8
LOOK_S = 130


def run_well(*words, **options) -> str:
    """What a program writes, which has to end well."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise AssertionError(f"{words}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def disk_named(serial: str) -> Path:
    """The device file of an NVMe disk."""
    found = [path for path in Path("/sys/block").glob("nvme*n1") if (path / "device/serial").read_text().strip() == serial]
    return Path("/dev") / found[0].name


@contextlib.contextmanager
def mounted(disk: Path, *options):
    """A filesystem on a disk, for a while."""
    PLACE.mkdir(exist_ok=True)
    run_well("mount", *options, disk, PLACE)
    try:
        yield PLACE / "member"
    finally:
        run_well("umount", PLACE)


class Logged(Commanding):
    """A pool on a file of ext4 or xfs, whose disk tells in which order writes became durable."""

    def setUp(self):
        _, self.kind, self.stamped = WORDS
        self.disk, self.log = disk_named("nvme0-node0"), disk_named("nvme1-node0")

    def load(self) -> list[str]:
        """Works on a new pool, and gives what was told to be durable. A mark `N` says that the first N lines had been told by then."""
        sectors = run_well("blockdev", "--getsz", self.disk).strip()
        run_well("dmsetup", "create", "logged", "--table", f"0 {sectors} log-writes {self.disk} {self.log}")
        self.assertEqual(Path("/sys/block/dm-0/queue/write_cache").read_text().strip(), "write back")
        quick = {"ext4": ("-q", "-E", "nodiscard"), "xfs": ("-q", "-K")}[self.kind]
        run_well(f"mkfs.{self.kind}", *quick, DISK)
        lines = []
        # By a loop device, which makes one flush at a time: the log takes what a flush finds written when that begins, and notes it when that ends. With
        # two at a time, what a block held before may stand in the log behind what it holds.
        with mounted(DISK, "-o", "loop", "-t", self.kind) as member:
            run_well("truncate", "-s", "48M", member)
            self.done("pool", "create", "tank", member)
            self.mark("made")
            with subprocess.Popen([self.stamped, "write", member], stdout=subprocess.PIPE, text=True) as worker:
                reader = threading.Thread(target=lambda: lines.extend(worker.stdout))
                reader.start()
                end = time.monotonic() + LOAD_S
                while time.monotonic() < end:
                    self.mark(len(lines))
                    time.sleep(0.05)
                self.assertIsNone(worker.poll())
                worker.kill()
                reader.join()
        run_well("dmsetup", "remove", "logged")
        return lines

    def mark(self, what) -> None:
        """Puts a mark in the log."""
        run_well("dmsetup", "message", "logged", "0", "mark", what)

    def sound(self, image: Path, told: list[str]) -> str:
        """What `stamped check` says of the pool on a copy of a disk, and why it is not sound."""
        copy = Path("/tmp/copy")
        run_well("cp", "--sparse=always", image, copy)
        with mounted(copy, "-o", "loop", "-t", self.kind) as member:
            checked = homenode("fsck", member)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
            done = subprocess.run(
                [self.stamped, "check", member], input="".join(told), capture_output=True, text=True, check=False
            )
        return done.stdout if done.returncode == 0 else f"not sound: {done.stderr}"

    def test_each_flush_leaves_what_was_told_before(self):
        lines = self.load()
        log = WriteLog(self.log)
        entries = list(log.entries())
        self.assertEqual(entries[-1].mark, "dm-log-writes-end", "the log is full")
        made = next(nth for nth, entry in enumerate(entries) if entry.mark == "made")
        points = [nth for nth, entry in enumerate(entries) if nth > made and entry.is_durable]
        self.assertGreater(len(points), 50)
        # A power cut comes with another boot.
        boot = Path("/tmp/boot_id")
        boot.write_text(str(uuid.uuid4()))
        run_well("mount", "--bind", boot, "/proc/sys/kernel/random/boot_id")
        begin, looked, told_in_all = time.monotonic(), 0, 0
        image = Path("/tmp/image")
        with image.open("wb") as file:
            file.truncate(int(run_well("blockdev", "--getsize64", self.disk)))
        disk = os.open(image, os.O_RDWR)
        told = []
        for nth, entry in enumerate(entries):
            log.apply(entry, disk)
            if entry.mark is not None and entry.mark.isdecimal():
                told = lines[: int(entry.mark)]
            if nth <= made or not entry.is_durable:
                continue
            # As many as there is time for, spread over the log, and the last.
            time_share = (time.monotonic() - begin) / LOOK_S
            log_share = (nth - made) / (len(entries) - made)
            if nth == points[-1] or time_share < log_share:
                said = self.sound(image, told)
                self.assertTrue(said.startswith("sound:"), f"at entry {nth} of {len(entries)}: {said}")
                looked += 1
                told_in_all += len(told)
        # That the oracle sees a loss: of what nobody was promised.
        said = self.sound(image, [*told, "0 log 4000000\n"])
        self.assertRegex(said, "not sound: .*record 4000000 was told")
        os.close(disk)
        print(
            f"{self.kind}: {len(lines)} lines told, {len(entries)} writes and flushes; "
            f"{looked} of {len(points)} flushes replayed and sound, in {time.monotonic() - begin:.0f} s"
        )
        self.assertGreater(looked, 20)
        self.assertGreater(told_in_all, looked)


def make_device(number: int) -> Path:
    """Makes a device of the namespace of that number, as `ndctl create-namespace --mode=devdax` does."""
    bus, name = Path("/sys/bus/nd"), f"dax{number}.0"
    device = Path("/dev") / name
    if not device.exists():
        (bus / "drivers/nd_pmem/unbind").write_text(f"namespace{number}.0")
        for attribute, text in (("mode", "ram"), ("uuid", str(uuid.uuid4())), ("namespace", f"namespace{number}.0")):
            (bus / "devices" / name / attribute).write_text(text)
        (bus / "drivers/dax_pmem/bind").write_text(name)
    return device


class Devices(Commanding):
    """Persistent memory as a character device, and what is refused of it."""

    def refused(self, *words, status: int = 1) -> str:
        """A command that has to say why not."""
        done = homenode(*words)
        self.assertEqual(done.returncode, status, (words, done.stdout, done.stderr))
        return done.stderr

    def test_a_pool_on_a_device(self):
        device = make_device(0)
        size = int(Path("/sys/bus/dax/devices/dax0.0/size").read_text())
        self.assertRegex(self.done("member", "list"), r"(?m)^dax0\.0 .* available$")
        self.done("pool", "create", "tank", device)
        self.assertIn("is a member of pool", self.refused("pool", "create", "other", device, "--force"))
        directory = Path("/tmp/mnt")
        directory.mkdir()
        self.done("up", "tank", directory)
        member = json.loads(self.done("status", "--json", directory))["pools"][0]["members"][0]
        self.assertEqual((member["kind"], member["capacity_bytes"]), ("pmem", size))
        print(f"the member on {device}: {member}")
        contents = random.Random(1).randbytes(5 * MIB + 77)
        with open(directory / "file", "wb") as file:
            file.write(contents)
            os.fsync(file.fileno())
        # fsck(8): the check could not be made.
        self.assertIn("in use", self.refused("fsck", device, status=8))
        self.done("down", directory)
        for option in ("--read-only", "--degraded"):
            self.assertIn("without --read-only and --degraded", self.refused("up", option, "tank", directory))
        self.done("pool", "export", "tank")
        self.assertIn("sound", self.done("fsck", device))
        self.done("pool", "import", device)
        self.done("up", "tank", directory)
        self.assertEqual((directory / "file").read_bytes(), contents)
        self.done("down", directory)
        # What is no persistent memory is none.
        self.assertIn("no device of persistent memory", self.refused("pool", "create", "other", "/dev/zero"))

    def test_a_device_that_holds_data_is_taken_by_force_only(self):
        # The device begins behind 2 MiB for the kernel.
        with open("/dev/pmem1", "r+b", buffering=0) as disk:
            disk.seek(2 * MIB + 5000)
            disk.write(b"data")
        device = make_device(1)
        self.assertIn("holds data", self.refused("pool", "create", "held", device))
        self.done("pool", "create", "held", device, "--force")


if __name__ == "__main__":
    run_trials(WORDS[0])
