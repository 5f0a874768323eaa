"""Block devices of a durable pool, whose server is killed again and again. The first argument names the class to run."""

import contextlib
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import inside
from pool import BLOCK, MIB, TRANSPORT, WORDS, Commanding, homenode, soon

POOL = Path("/tmp/pool")
MEMBERS = Path("/tmp/members")
PLACE = Path("/tmp/mnt")
# Members of a copy of the pool, and where that is mounted.
COPIES = Path("/tmp/copies")
COPY = Path("/tmp/copy")
# All that is at work ends when there is such a file.
ENOUGH = Path("/tmp/enough")
# Bytes of the disk that each writer has for itself.
PART = 4 * MIB
# By then a program that waits for a device has gone on, or it hangs.
GO_ON_S = 60
# The kernel's version.
RELEASE = tuple(map(int, os.uname().release.split(".")[:2]))


def killed(pid: int) -> None:
    """SIGKILL, and nothing of the process is left."""
    os.kill(pid, signal.SIGKILL)
    soon(lambda: not Path(f"/proc/{pid}").exists(), "the server is gone")


class Writer:
    """A process of one CPU that writes stamped blocks of its part of a disk, and reads what it wrote before; it ends with its first error.

    A block's bytes are of the last write to it that returned: nobody else writes there, and it waits for each write."""

    def __init__(self, disk: Path, nth: int, cpu: int):
        self.told = Path(f"/tmp/writer{nth}")
        self.told.write_bytes(bytes(8))
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.sched_setaffinity(0, [cpu])
                self.run(disk, nth)
                code = 0
            except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it is
                print(f"writer {nth}: {error!r}", file=sys.stderr, flush=True)
            os._exit(code)

    def run(self, disk: Path, nth: int) -> None:
        """What the process does until it is enough: then it reads all."""
        randomly = random.Random(nth)
        buffer = mmap.mmap(-1, 16 * BLOCK)
        told = os.open(self.told, os.O_WRONLY)
        file = os.open(disk, os.O_RDWR | os.O_DIRECT)
        blocks = PART // BLOCK
        written = {}
        for count in range(1, 1 << 60):
            first = randomly.randrange(blocks)
            length = min(randomly.choice((1, 1, 1, 2, 16)), blocks - first)
            for at in range(length):
                buffer[at * BLOCK : (at + 1) * BLOCK] = self.block(nth, first + at, count)
            self.whole(os.pwrite(file, memoryview(buffer)[: length * BLOCK], nth * PART + first * BLOCK), length)
            written.update((first + at, count) for at in range(length))
            if count % 3 == 0:
                os.fsync(file)
            self.check(file, buffer, nth, randomly.choice(list(written)), written)
            os.pwrite(told, count.to_bytes(8, "little"), 0)
            if ENOUGH.exists():
                break
        for block in range(blocks):
            self.check(file, buffer, nth, block, written)
        print(f"writer {nth}: {count} writes, {len(written)} blocks read back", flush=True)

    def check(self, file: int, buffer: mmap.mmap, nth: int, block: int, written: dict[int, int]) -> None:
        """Reads a block, which has to be what was written last."""
        self.whole(os.preadv(file, [memoryview(buffer)[:BLOCK]], nth * PART + block * BLOCK), 1)
        expected = self.block(nth, block, written[block]) if block in written else bytes(BLOCK)
        if buffer[:BLOCK] != expected:
            raise AssertionError(f"block {block} has {buffer[:32]!r}, not {expected[:32]!r}")

    def whole(self, done: int, blocks: int) -> None:
        """All bytes were done."""
        if done != blocks * BLOCK:
            raise AssertionError(f"{done} bytes of {blocks} blocks")

    def block(self, nth: int, block: int, count: int) -> bytes:
        """Bytes that no other write has."""
        return (f"{nth:02x}:{block:06x}:{count:08x};".encode() * BLOCK)[:BLOCK]

    def count(self) -> int:
        """Writes that it has read back."""
        return int.from_bytes(self.told.read_bytes(), "little")

    def ended(self) -> bool:
        """Whether it ended well."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0


class Lasting(Commanding):
    """A durable pool, and volumes that are attached."""

    # Options that the pool is made with.
    options = ()

    def setUp(self):
        for directory in (POOL, MEMBERS, PLACE, COPIES, COPY):
            directory.mkdir(exist_ok=True)
        self.done("pool", "create", "data", MEMBERS / "a", "--size", "192M", *self.options)
        self.addCleanup(self.put_away)
        self.up()

    def put_away(self) -> None:
        """Nothing is left of it."""
        try:
            if os.path.ismount(POOL):
                self.done("down", POOL)
            self.assertEqual(self.left(), [])
            self.done("pool", "export", "data")
            self.done("fsck", MEMBERS / "a")
        finally:
            # The next test is not to suffer from this one.
            homenode("pool", "export", "--force", "data")
            for path in MEMBERS.iterdir():
                path.unlink()

    def left(self) -> list[str]:
        """Devices, and what is noted of them."""
        noted = Path("/run/homenode/ublk")
        notes = sorted(str(path) for path in noted.iterdir()) if noted.exists() else []
        return notes + sorted(str(path) for path in Path("/dev").glob("ublk[bc]*"))

    def refused(self, *words) -> str:
        """One that has to say why not, in its last line."""
        done = homenode(*words)
        self.assertEqual((done.returncode, done.stdout), (1, ""), (words, done.stderr))
        return done.stderr.splitlines()[-1]

    def up(self) -> str:
        """Brings the pool up; what the command says of it."""
        done = homenode("up", "--transport", TRANSPORT, "data", POOL)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.pid = int(re.search(r'"pid": ?(\d+)', self.done("status", "--json", POOL))[1])
        return done.stderr

    def disk(self, name: str, size: str = "32M") -> Path:
        """A new volume, attached."""
        self.done("volume", "create", POOL / name, "--size", size)
        disk = Path(self.done("volume", "attach", POOL / name).strip())
        self.kernel_has_looked_at(disk)
        return disk

    def kernel_has_looked_at(self, disk: Path) -> None:
        """Newer kernels look for partitions behind the attach, and until then nobody else may. Killed meanwhile, a server leaves those who open the disk
        waiting in the kernel.
        """
        looks = ["blockdev", "--rereadpt", disk]
        soon(lambda: subprocess.run(looks, check=False, capture_output=True).returncode == 0, "the kernel has looked at the disk")

    def aside(self, name: str, other: str) -> None:
        """Renames what is noted of devices."""
        os.rename(Path("/run/homenode") / name, Path("/run/homenode") / other)

    def reader(self, disk: Path, count: str) -> subprocess.Popen:
        """A program that reads the disk."""
        words = ["dd", f"if={disk}", "of=/dev/null", "bs=4096", f"count={count}", "iflag=direct"]
        program = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(program.kill)
        return program

    def waiting_reader(self, disk: Path, kill: bool = True) -> subprocess.Popen:
        """A program that waits for a disk whose server was killed."""
        if kill:
            killed(self.pid)
        reader = self.reader(disk, "16")
        time.sleep(2)
        self.assertIsNone(reader.poll(), "it waits")
        return reader

    def failed(self, program: subprocess.Popen) -> None:
        """It ends with an error."""
        try:
            told, _ = program.communicate(timeout=GO_ON_S)
        except subprocess.TimeoutExpired:
            # Where the server is, who waits for it, and who is in the driver.
            others = [task for task in Path("/proc").glob("[0-9]*") if "ublk" in stack_of(task)]
            for task in [*Path(f"/proc/{self.pid}/task").iterdir(), Path(f"/proc/{program.pid}"), *others]:
                print(inside.name_of(task), stack_of(task), file=sys.stderr)
            raise
        self.assertNotEqual(program.returncode, 0, told)
        self.assertRegex(told, r"Input/output error|No such device")

    def run_well(self, *words, **options) -> str:
        """Another program that has to end well."""
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, timeout=GO_ON_S, **options)
        self.assertEqual(done.returncode, 0, (words, done.stdout, done.stderr))
        return done.stdout


class Killed(Lasting):
    """The server is killed under load, and comes back, as often as the second argument says."""

    def test_nobody_notices(self):
        rounds = int(WORDS[1])
        disk, other = self.disk("disk"), self.disk("filesystem", "48M")
        self.assertEqual(Path(f"/sys/block/{disk.name}/queue/write_cache").read_text().strip(), "write back")
        self.run_well("mkfs.ext4", "-q", other)
        self.run_well("mount", other, PLACE)
        cpus = [cpus[0] for cpus in inside.node_cpus().values()]
        writers = [Writer(disk, nth, cpu) for nth, cpu in enumerate(cpus)]
        # Many requests under way at once, in the last quarter of the disk, over and over.
        words = [f"--filename={disk}", "--direct=1", "--ioengine=libaio", "--iodepth=16", "--offset=24m", "--size=8m", "--rw=randwrite"]
        words += ["--bsrange=4k-64k", "--bs_unaligned=0", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--fsync=32"]
        script = 'n=0; while [ ! -e /tmp/enough ]; do "$@" >/tmp/fio.told 2>&1 || { cat /tmp/fio.told; exit 1; }; n=$((n + 1)); done; echo $n'
        load = subprocess.Popen(["sh", "-c", script, "sh", "fio", "--name=load", *words], stdout=subprocess.PIPE, text=True)
        files = subprocess.Popen(["sh", "-c", FILES, "sh", PLACE], stdout=subprocess.PIPE, text=True)
        randomly = random.Random(rounds)
        began, slowest = time.monotonic(), 0.0
        for nth in range(rounds):
            time.sleep(randomly.random())
            killed(self.pid)
            at = time.monotonic()
            told = self.up()
            slowest = max(slowest, time.monotonic() - at)
            for device in (disk, other):
                self.assertIn(f"took up {device}", told)
            counts = [writer.count() for writer in writers]
            for writer, count in zip(writers, counts, strict=True):
                self.wait(lambda writer=writer, count=count: writer.count() > count + 1, f"a writer goes on after kill {nth + 1}")
            self.assertEqual((load.poll(), files.poll()), (None, None), f"they go on after kill {nth + 1}")
        spent = time.monotonic() - began
        ENOUGH.touch()
        self.assertTrue(all([writer.ended() for writer in writers]))
        loops, made = load.communicate(timeout=300)[0], files.communicate(timeout=300)[0]
        self.assertEqual((load.returncode, files.returncode), (0, 0), (loops, made))
        print(f"{rounds} kills in {spent:.0f} s, the slowest up {slowest:.1f} s; fio verified {loops.strip()} times, {made.strip()} files made")
        self.run_well("umount", PLACE)
        self.run_well("fsck.ext4", "-f", "-n", other)
        self.done("down", POOL)
        self.assertEqual(self.left(), [])

    def wait(self, condition, what: str) -> None:
        """Until the condition holds."""
        deadline = time.monotonic() + GO_ON_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"not in {GO_ON_S} s: {what}")
            time.sleep(0.02)


# Files with known bytes, made durable, renamed, and read past the page cache: until it is enough.
FILES = r"""
set -e
cd "$1"; n=0
while [ ! -e /tmp/enough ]; do
    n=$((n + 1)); f=$((n % 40))
    echo "$n" | dd of=new conv=fsync status=none
    head -c 20000 /dev/urandom >>new
    sync new; sha1sum <new >new.sum; sync new.sum
    mv new "file$f"; mv new.sum "sum$f"
    dd if="file$f" iflag=nocache count=0 status=none
    [ "$(sha1sum <"file$f")" = "$(cat "sum$f")" ]
done
for f in file*; do [ "$(sha1sum <"$f")" = "$(cat "sum${f#file}")" ]; done
echo "$n"
"""


def stack_of(task: Path) -> str:
    """Where a thread is in the kernel; nothing when it has ended meanwhile."""
    with contextlib.suppress(OSError):
        return (task / "stack").read_text()
    return ""


class Ends(Lasting):
    """Nobody has to wait for ever."""

    def test_detached_by_force_while_it_waits(self):
        for by_device in (False, True):
            disk = self.disk(f"disk{by_device}")
            reader = self.waiting_reader(disk)
            name = disk if by_device else POOL / f"disk{by_device}"
            told = self.refused("volume", "detach", name)
            for part in (str(disk), "waits for the pool's server", "homenode up", "volume detach --force"):
                self.assertIn(part, told)
            listed = homenode("volume", "list")
            self.assertIn(f"{disk} of volume {POOL}/disk{by_device} waits", listed.stderr)
            self.assertIsNone(reader.poll(), "it waits still")
            self.done("volume", "detach", "--force", name)
            self.failed(reader)
            self.assertEqual(self.left(), [])
            self.assertNotIn("took up", self.up())
            self.done("volume", "remove", POOL / f"disk{by_device}")

    def test_down_and_export_end_what_is_idle_and_refuse_what_is_in_use(self):
        for words in (("down", POOL), ("pool", "export", "data")):
            disk = self.disk("disk")
            killed(self.pid)
            with disk.open("rb"):
                told = self.refused(*words)
                for part in (str(disk), f"({os.getpid()})", "homenode up", "volume detach --force"):
                    self.assertIn(part, told)
            self.assertTrue(disk.is_block_device(), "nothing was done")
            done = homenode(*words)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"ended {disk}", done.stderr)
            self.assertEqual(self.left(), [])
            if words[0] == "pool":
                self.done("pool", "import", MEMBERS)
            self.up()
            self.done("volume", "remove", POOL / "disk")

    def test_killed_while_it_flushes_a_device(self):
        disk = self.disk("disk")
        with disk.open("r+b", buffering=0) as user:
            user.write(b"x" * (24 * MIB))
            self.slow(self.pid, disk)
            os.kill(self.pid, signal.SIGTERM)
            time.sleep(1)
            self.assertTrue(Path(f"/proc/{self.pid}").exists(), "it flushes")
            killed(self.pid)
            self.assertIn(f"took up {disk}", self.up())
            os.fsync(user.fileno())
        self.done("volume", "detach", POOL / "disk")

    def test_members_exchanged_meanwhile(self):
        disk = self.disk("disk")
        self.done("pool", "add", POOL, MEMBERS / "b", "--size", "192M")
        self.done("pool", "drain", POOL, "0")
        self.done("pool", "remove", POOL, "0")
        reader = self.waiting_reader(disk)
        self.assertIn(f"took up {disk}", self.up())
        reader.communicate(timeout=GO_ON_S)
        self.assertEqual(reader.returncode, 0)
        self.done("volume", "detach", POOL / "disk")
        self.done("pool", "add", POOL, MEMBERS / "a")
        self.done("pool", "drain", POOL, "1")
        self.done("pool", "remove", POOL, "1")

    def test_detach_and_down_are_about_the_mounted_pool(self):
        disk = self.disk("disk")
        reader = self.waiting_reader(disk)
        self.done("pool", "create", "other", COPIES / "other", "--size", "64M")
        self.done("up", "--transport", TRANSPORT, "other", POOL)
        self.done("volume", "create", POOL / "disk", "--size", "16M")
        own = Path(self.done("volume", "attach", POOL / "disk").strip())
        self.done("volume", "detach", POOL / "disk")
        self.assertFalse(own.exists())
        self.done("down", POOL)
        self.done("pool", "export", "other")
        (COPIES / "other").unlink()
        self.assertIsNone(reader.poll(), "it waits for its own pool")
        self.assertIn(f"took up {disk}", self.up())
        reader.communicate(timeout=GO_ON_S)
        self.assertEqual(reader.returncode, 0)
        self.done("volume", "detach", POOL / "disk")

    def test_a_pool_that_cannot_be_opened_says_who_waits(self):
        disk = self.disk("disk")
        reader = self.waiting_reader(disk)
        (MEMBERS / "a").rename(MEMBERS / "aside")
        told = self.refused("up", "data", POOL)
        print(told)
        for part in (str(disk), "waits for the pool's server", "volume detach --force"):
            self.assertIn(part, told)
        (MEMBERS / "aside").rename(MEMBERS / "a")
        self.assertIsNone(reader.poll())
        self.assertIn(f"took up {disk}", self.up())
        reader.communicate(timeout=GO_ON_S)
        self.assertEqual(reader.returncode, 0)

    def test_removed_and_resized_meanwhile(self):
        disks = {name: self.disk(name, "16M") for name in ("removed", "anew", "smaller", "larger")}
        readers = {name: self.waiting_reader(disk, kill=name == "removed") for name, disk in disks.items()}
        # The devices are of no pool that is up: another process has the volumes.
        self.aside("ublk", "aside")
        self.up()
        self.done("volume", "remove", POOL / "removed")
        self.done("volume", "remove", POOL / "anew")
        self.done("volume", "create", POOL / "anew", "--size", "16M")
        self.done("volume", "resize", "--force", POOL / "smaller", "--size", "8M")
        self.done("volume", "resize", POOL / "larger", "--size", "64M")
        reasons = {"removed": "was removed", "anew": "was removed, and made anew", "smaller": "was made smaller"}
        self.aside("aside", "ublk")
        for words in (("resize", POOL / "larger", "--size", "128M"), ("remove", POOL / "larger")):
            told = self.refused("volume", *words)
            for part in ("the volume larger", f"{disks['larger']} waits", "volume attach", "volume detach --force"):
                self.assertIn(part, told)
        for name in ("anew", "smaller"):
            told = self.refused("volume", "attach", POOL / name)
            for part in (str(disks[name]), reasons[name], "volume detach --force"):
                self.assertIn(part, told)
        self.aside("ublk", "aside")
        self.done("down", POOL)
        self.aside("aside", "ublk")
        told = self.up()
        print(told)
        for name, why in reasons.items():
            self.assertIn(f"volume {name} {why}", told)
            self.assertIn(f"ended {disks[name]}", told)
            self.failed(readers[name])
        self.assertIn(f"took up {disks['larger']}", told)
        readers["larger"].communicate(timeout=GO_ON_S)
        self.assertEqual(readers["larger"].returncode, 0)

    def test_a_filesystem_on_a_device_that_is_mounted_inside_the_pool(self):
        disk, place = self.disk("filesystem", "48M"), POOL / "place"
        self.run_well("mkfs.ext4", "-q", disk)
        place.mkdir()
        self.run_well("mount", disk, place)
        (place / "file").write_bytes(b"in the page cache" * 1000)
        killed(self.pid)
        # Nobody uses it, so the kernel writes it back where its mount goes.
        told = self.up()
        for part in (f"took up {disk}", f"{disk} was mounted on {place}"):
            self.assertIn(part, told)
        self.run_well("mount", disk, place)
        self.assertEqual((place / "file").read_bytes(), b"in the page cache" * 1000)
        with (place / "file").open("rb") as file:
            killed(self.pid)
            self.assertIn(f"{disk} was mounted on {place}", self.up())
            self.assertEqual(os.pread(file.fileno(), 6, 0), b"in the")
        self.run_well("mount", disk, place)
        killed(self.pid)
        # A server that is killed while it takes all that over leaves no dead end: neither a device nor a mount that the next one waits for.
        for _ in range(6):
            words = ["timeout", "--signal=KILL", str(random.uniform(0.2, 1.5)), inside.BINARY, "up", "--foreground", "data", POOL]
            subprocess.run([*map(str, words)], capture_output=True, check=False)
        if f"{disk} of an unknown volume waits" in homenode("volume", "list").stderr:
            # It was killed between two commands that the older driver needs without a crash.
            self.assertLess(RELEASE, (6, 16))
            self.assertIn("volume detach --force", self.refused("up", "data", POOL))
            self.done("volume", "detach", "--force", disk)
            self.run_well("umount", place)
        print(self.up())
        (POOL / "file").write_bytes(b"it works")
        self.assertFalse(os.path.ismount(place))
        homenode("volume", "detach", POOL / "filesystem")

    def test_killed_while_it_takes_a_device_up(self):
        disk = self.disk("disk")
        self.run_well("dd", "if=/dev/urandom", f"of={disk}", "bs=1M", "count=1", "oflag=direct", "status=none")
        reader = self.waiting_reader(disk)
        # The kernel has prepared the device for a new server, which is killed at each of the next steps.
        for _ in range(8):
            words = ["timeout", "--signal=KILL", str(random.uniform(0.3, 1.5)), inside.BINARY, "up", "--foreground", "data", POOL]
            subprocess.run([*map(str, words)], capture_output=True, check=False)
        told = self.up()
        print(told)
        if f"took up {disk}" in told:
            reader.communicate(timeout=GO_ON_S)
            self.assertEqual(reader.returncode, 0)
            return
        # It was killed between two commands that the older driver needs without a crash.
        self.assertLess(RELEASE, (6, 16))
        self.assertIn(f"{disk} of an unknown volume waits", homenode("volume", "list").stderr)
        # One of those that were killed may have served it.
        is_served = reader.poll() == 0
        self.done("volume", "detach", "--force", disk)
        if not is_served:
            self.failed(reader)

    def test_a_queue_that_fails_ends_the_device(self):
        disk = self.disk("disk")
        queue = f"ublk{disk.name.removeprefix('ublkb')}q"
        thread = next(task.name for task in Path(f"/proc/{self.pid}/task").iterdir() if inside.name_of(task).startswith(queue))
        words = ["strace", "-p", thread, "-o", "/dev/null", "-e", "trace=io_uring_enter", "-e", "inject=io_uring_enter:error=EBADF"]
        failing = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(failing.wait)
        self.addCleanup(failing.kill)
        reader = self.reader(disk, "100000")
        self.failed(reader)
        soon(lambda: not disk.exists(), "the disk is gone")

    def test_told_to_end_it_ends_its_devices(self):
        for has_part in (False, True):
            with self.subTest(has_part=has_part):
                self.ends_with_its_server("part" if has_part else "disk", has_part)

    def ends_with_its_server(self, name: str, has_part: bool) -> None:
        """A server is told to end while the kernel keeps bytes of a filesystem on a disk, or on a partition of the disk."""

        def place_of(disk: Path) -> Path:
            if not has_part:
                return disk
            part = Path(f"{disk}p1")
            self.kernel_has_looked_at(disk)
            self.run_well("addpart", disk, 1, 2048, 61440)
            return soon(lambda: part if part.exists() else None, "the partition is there")

        place = place_of(self.disk(name))
        self.run_well("mkfs.ext4", "-q", place)
        self.run_well("mount", place, PLACE)
        (PLACE / "file").write_bytes(b"x" * MIB)
        os.kill(self.pid, signal.SIGTERM)
        soon(lambda: not Path(f"/proc/{self.pid}").exists(), "the server is gone")
        self.assertEqual(self.left(), [])
        self.run_well("umount", PLACE)
        self.up()
        # What the kernel kept came to the volume before the end.
        place = place_of(Path(self.done("volume", "attach", POOL / name).strip()))
        self.run_well("mount", place, PLACE)
        self.assertEqual((PLACE / "file").read_bytes(), b"x" * MIB)
        self.run_well("umount", PLACE)
        self.run_well("fsck.ext4", "-f", "-n", place)


class Disks(Lasting):
    """The server keeps what was written to a disk in its own memory, and so takes along what is not durable."""

    options = ("--direct", "--cache", "16M")

    def test_a_device_ends_with_its_server(self):
        disk = self.disk("disk")
        self.assertEqual(self.left(), ["/dev/ublkb0", "/dev/ublkc0"], "it is to wait for nobody")
        buffer = mmap.mmap(-1, MIB)
        file = os.open(disk, os.O_RDWR | os.O_DIRECT)
        try:
            for byte in (b"d", b"l"):
                buffer[:] = byte * MIB
                self.assertEqual(os.pwrite(file, buffer, 0), MIB)
                if byte == b"d":
                    os.fsync(file)
            killed(self.pid)
            told = self.up()
            print(told)
            self.assertNotIn("took up", told)
            with contextlib.suppress(OSError):
                self.assertEqual(os.preadv(file, [buffer], 0), 0)
            for use in (lambda: os.pwrite(file, buffer, 0), lambda: os.fsync(file)):
                with self.assertRaises(OSError):
                    use()
        finally:
            os.close(file)
        soon(lambda: not self.left(), "the device is gone")
        disk = Path(self.done("volume", "attach", POOL / "disk").strip())
        told = disk.read_bytes()[:MIB]
        # Each block as it was made durable, or as it was written afterwards.
        self.assertTrue(all(told[at : at + BLOCK] in (b"d" * BLOCK, b"l" * BLOCK) for at in range(0, MIB, BLOCK)))
        self.done("volume", "detach", POOL / "disk")

    def test_a_filesystem_survives_as_after_a_power_cut(self):
        disk = self.disk("disk")
        self.run_well("mkfs.ext4", "-q", disk)
        self.run_well("mount", disk, PLACE)
        (PLACE / "file").write_bytes(b"x" * MIB)
        self.run_well("sync", PLACE / "file")
        # Without a buffer here: nothing is written when it is closed.
        with open(PLACE / "other", "wb", buffering=0) as other:
            other.write(b"y" * MIB)
            killed(self.pid)
            self.up()
            with self.assertRaises(OSError):
                os.fsync(other.fileno())
        self.run_well("umount", PLACE)
        soon(lambda: not self.left(), "the device is gone")
        disk = Path(self.done("volume", "attach", POOL / "disk").strip())
        self.run_well("mount", disk, PLACE)
        self.assertEqual((PLACE / "file").read_bytes(), b"x" * MIB)
        self.run_well("umount", PLACE)
        self.run_well("fsck.ext4", "-f", "-n", disk)
        self.done("volume", "detach", POOL / "disk")


class Copied(Lasting):
    """There are copies of the pool's members, which have the pool's UUID."""

    def copy(self, member: Path = MEMBERS / "a") -> Path:
        """A copy of a member."""
        path = COPIES / "a"
        self.run_well("cp", member, path)
        self.addCleanup(lambda: path.unlink(missing_ok=True))
        return path

    def test_a_device_ends_when_its_member_is_a_copy(self):
        disk = self.disk("disk")
        reader = self.waiting_reader(disk)
        self.copy().replace(MEMBERS / "a")
        told = self.up()
        print(told)
        self.assertIn("volume disk may lack completed writes", told)
        self.assertIn(f"ended {disk}", told)
        self.assertNotIn("took up", told)
        self.failed(reader)

    def test_a_device_ends_though_another_server_has_lost_its_writes(self):
        disk = self.disk("disk")
        reader = self.waiting_reader(disk)
        self.copy().replace(MEMBERS / "a")
        self.aside("ublk", "aside")
        self.up()
        self.aside("aside", "ublk")
        told = self.refused("volume", "attach", POOL / "disk")
        for part in (str(disk), "may lack completed writes", "volume detach --force"):
            self.assertIn(part, told)
        self.assertIsNone(reader.poll(), "it waits still")
        self.aside("ublk", "aside")
        self.done("down", POOL)
        self.aside("aside", "ublk")
        # This one finds all there.
        told = self.up()
        self.assertIn("volume disk may lack completed writes", told)
        self.assertIn(f"ended {disk}", told)
        self.failed(reader)

    def test_a_copy_leaves_the_waiting_devices_of_the_pool_alone(self):
        disk = self.disk("disk")
        reader = self.waiting_reader(disk)
        copy = self.copy()
        self.done("pool", "import", copy)
        done = homenode("up", "data", COPY)
        self.assertEqual(done.returncode, 0, done.stderr)
        print(done.stderr)
        for part in (f"left {disk} of volume disk alone", "volume detach --force"):
            self.assertIn(part, done.stderr)
        self.done("volume", "resize", "--force", COPY / "disk", "--size", "8M")
        self.assertIsNone(reader.poll(), "it waits still")
        self.done("down", COPY)
        self.done("pool", "export", "--force", "data")
        self.done("pool", "import", MEMBERS)
        self.assertIn(f"took up {disk}", self.up())
        reader.communicate(timeout=GO_ON_S)
        self.assertEqual(reader.returncode, 0)

    def test_a_copy_leaves_the_devices_of_the_pool_alone(self):
        for has_volume in (False, True):
            self.done("down", POOL)
            copy = self.copy()
            self.up()
            if has_volume:
                disk = Path(self.done("volume", "attach", POOL / "disk").strip())
            else:
                disk = self.disk("disk")
                self.run_well("mkfs.ext4", "-q", disk)
            self.run_well("mount", disk, PLACE)
            (PLACE / "file").write_bytes(b"x" * MIB)
            self.done("pool", "import", copy)
            at = time.monotonic()
            done = homenode("up", "data", COPY)
            self.assertEqual(done.returncode, 0, done.stderr)
            print(f"a copy {'with' if has_volume else 'without'} the volume: up in {time.monotonic() - at:.1f} s, {done.stderr!r}")
            self.assertLess(time.monotonic() - at, 30, "it waits for no device")
            for word in ("ended", "took up", str(disk)):
                self.assertNotIn(word, done.stderr)
            self.assertTrue(disk.is_block_device())
            (PLACE / "other").write_bytes(b"y" * MIB)
            self.run_well("sync", PLACE / "other")
            self.run_well("umount", PLACE)
            self.run_well("fsck.ext4", "-f", "-n", disk)
            self.done("down", COPY)
            self.done("pool", "import", MEMBERS)
            self.done("volume", "detach", POOL / "disk")
            copy.unlink()


suite = unittest.defaultTestLoader.loadTestsFromName(WORDS[0], sys.modules[__name__])
sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
