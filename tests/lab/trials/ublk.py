"""A volume as a block device: its queues, what is on it, its users, and its ends. The first argument names the class to run."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import inside
from pool import MIB, TRANSPORT, WORDS, Commanding, Pool, homenode, soon

MEMBER = 96 * MIB
NODES = range(4)
# By then a program that waits for a device has ended, or it hangs.
END_S = 60


class Attached(Commanding):
    """A pool over four nodes, and volumes."""

    def setUp(self):
        self.pool = self.brought_up("/tmp/pool", MEMBER)

    def brought_up(self, directory: str, size: int) -> Pool:
        """A pool that is gone after the test."""
        pool = Pool(str(size), "--transport", TRANSPORT, directory=directory)
        self.addCleanup(self.down, pool)
        return pool

    def down(self, pool: Pool) -> None:
        """Ends it, if that was not the test."""
        if Path(f"/proc/{pool.pid}").exists():
            pool.down()
        self.assertEqual(list(Path("/dev").glob("ublkb*")), [])

    def refused(self, *words) -> str:
        """One that has to say why not, in one line."""
        done = homenode(*words)
        self.assertEqual((done.returncode, done.stdout), (1, ""), (words, done.stderr))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def disk(self, name: str, size: str, *options, pool: Pool | None = None) -> Path:
        """A new volume, attached."""
        volume = (pool or self.pool).directory / name
        self.done("volume", "create", volume, "--size", size)
        return self.attached(volume, *options)

    def attached(self, volume: Path, *options) -> Path:
        """Its device."""
        disk = Path(self.done("volume", "attach", volume, *options).strip())
        self.assertRegex(str(disk), r"^/dev/ublkb\d+$")
        self.assertTrue(disk.is_block_device())
        return disk

    def listed(self, name: str) -> dict:
        """What the command tells of a volume."""
        volumes = json.loads(self.done("volume", "list", "--json", self.pool.directory))["volumes"]
        return next(volume for volume in volumes if volume["name"] == name)

    def run_well(self, *words, **options) -> str:
        """Another program that has to end well."""
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **options)
        self.assertEqual(done.returncode, 0, (words, done.stdout, done.stderr))
        return done.stdout

    @contextlib.contextmanager
    def mounted(self, disk: Path, kind: str):
        """The filesystem on it, mounted."""
        place = Path("/tmp/mnt")
        place.mkdir(exist_ok=True)
        self.run_well("mount", "-t", kind, disk, place)
        try:
            yield place
        finally:
            self.run_well("umount", place)

    def accesses(self) -> tuple[int, int]:
        """Bytes that CPUs moved of their node, and of others, by the pool's books."""
        cells = self.pool.status()["accesses"]
        moved = [(cell["from"] == cell["home"], cell["read_bytes"] + cell["written_bytes"]) for cell in cells]
        return tuple(sum(bytes for is_local, bytes in moved if is_local == wanted) for wanted in (True, False))


def fio(disk: Path, *options, jobs=(("job", ()),)) -> list[str]:
    """The command line of fio on a device, past the page cache."""
    words = ["fio", f"--filename={disk}", "--direct=1", "--ioengine=libaio", "--iodepth=8", *options]
    return words + [word for name, own in jobs for word in (f"--name={name}", *own)]


class FourNodes(Attached):
    """One volume, policy local, that all nodes use at once."""

    def threads(self) -> dict[int, list[int]]:
        """The CPUs that the thread of each queue may run on."""
        found = {}
        for task in Path(f"/proc/{self.pool.pid}/task").iterdir():
            name = re.fullmatch(r"ublk\d+q(\d+)", inside.name_of(task))
            if name:
                mask = re.search(r"^Cpus_allowed_list:\s*(\S+)", (task / "status").read_text(), re.M)[1]
                found[int(name[1])] = inside.cpu_list(mask)
        return found

    def test_a_queue_for_each_cpu_and_its_thread_there(self):
        disk = self.disk("disk", "32M")
        queues = {
            int(queue.name): inside.cpu_list((queue / "cpu_list").read_text().replace(" ", ""))
            for queue in Path(f"/sys/block/{disk.name}/mq").iterdir()
        }
        cpus = sorted(cpu for cpus in inside.node_cpus().values() for cpu in cpus)
        self.assertEqual(sorted(cpu for cpus in queues.values() for cpu in cpus), cpus)
        self.assertEqual(len(queues), len(cpus), queues)
        self.assertEqual(self.threads(), queues)
        limits = Path(f"/sys/block/{disk.name}/queue")
        told = {name: int((limits / name).read_text()) for name in ("logical_block_size", "physical_block_size", "discard_granularity")}
        self.assertEqual(told, {"logical_block_size": 512, "physical_block_size": 4096, "discard_granularity": 4096})
        self.assertEqual((limits / "write_cache").read_text().strip(), "write through")

    def test_what_each_writes_is_verified_and_local(self):
        disk = self.disk("disk", "64M")
        cpus = {node: cpus[0] for node, cpus in inside.node_cpus().items()}
        jobs = [(f"node{node}", (f"--cpus_allowed={cpu}", f"--offset={node * 16}m")) for node, cpu in cpus.items()]
        before = self.accesses()
        options = ("--size=16m", "--rw=randwrite", "--bsrange=512-512k", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1")
        self.run_well(*fio(disk, *options, jobs=jobs))
        local, remote = (after - earlier for after, earlier in zip(self.accesses(), before, strict=True))
        share = local / (local + remote)
        print(f"by the pool's books {share:.2%} of {local + remote} bytes were local")
        # Written, and read for verification.
        self.assertGreaterEqual(local + remote, 2 * 64 * MIB)
        self.assertGreaterEqual(share, 0.95)
        nodes = {on["node"]: on["bytes"] for on in self.listed("disk")["nodes"]}
        self.assertTrue(all(nodes.get(node, 0) >= 0.95 * 16 * MIB for node in NODES), nodes)

    def test_an_idle_device_takes_no_time_of_the_cpu(self):
        disk = self.disk("disk", "32M")
        self.run_well("dd", "if=/dev/zero", f"of={disk}", "bs=1M", "count=8", "oflag=direct", "status=none")

        def ticks() -> int:
            stats = Path(f"/proc/{self.pool.pid}/task").glob("*/stat")
            fields = [stat.read_text().rpartition(") ")[2].split() for stat in stats]
            return sum(int(field[11]) + int(field[12]) for field in fields)

        time.sleep(1)
        before = ticks()
        time.sleep(3)
        self.assertLessEqual(ticks() - before, 15, "of 300 for one CPU")


class Filesystems(Attached):
    """ext4 and xfs on a volume, and a build of C sources there."""

    def built(self, kind: str, make: list[str], check: list[str]) -> None:
        """Makes the filesystem, works on it, and has it checked."""
        disk = self.disk(kind, "320M")
        self.run_well(*make, disk)
        made = self.listed(kind)["used_bytes"]
        with self.mounted(disk, kind) as place:
            sources = place / "bzip2"
            shutil.copytree(WORDS[1], sources)
            objects = []
            for source in ("blocksort", "huffman", "crctable", "randtable", "compress", "decompress", "bzlib", "bzip2"):
                self.run_well("gcc", "-O1", "-c", f"{source}.c", cwd=sources)
                objects.append(f"{source}.o")
            self.run_well("gcc", "-o", "bzip2", *objects, cwd=sources)
            sample = sources / "sample1.ref"
            packed = subprocess.run([sources / "bzip2", "-c", sample], stdout=subprocess.PIPE, check=True).stdout
            found = subprocess.run([sources / "bzip2", "-dc"], input=packed, stdout=subprocess.PIPE, check=True).stdout
            self.assertEqual(found, sample.read_bytes())
            # Freed blocks go back to the pool.
            (place / "large").write_bytes(b"x" * (32 * MIB))
            os.sync()
            full = self.listed(kind)["used_bytes"]
            (place / "large").unlink()
            os.sync()
            self.run_well("fstrim", place)
            trimmed = self.listed(kind)["used_bytes"]
            self.assertLess(trimmed, full - 30 * MIB)
            print(f"{kind}: {made >> 10} KiB when made, {full >> 10} with a file of 32 MiB, {trimmed >> 10} without it")
        self.run_well(*check, disk)
        # And once more, from what the pool has.
        self.done("volume", "detach", self.pool.directory / kind)
        disk = self.attached(self.pool.directory / kind)
        with self.mounted(disk, kind) as place:
            self.assertEqual((place / "bzip2/bzip2.c").read_bytes(), Path(WORDS[1], "bzip2.c").read_bytes())
        self.run_well(*check, disk)
        self.done("volume", "detach", self.pool.directory / kind)
        self.done("volume", "remove", self.pool.directory / kind)
        self.assertEqual(self.pool.status()["used_bytes"], 0)

    def test_ext4(self):
        self.built("ext4", ["mkfs.ext4", "-q"], ["fsck.ext4", "-f", "-n"])

    def test_xfs(self):
        self.built("xfs", ["mkfs.xfs", "-q"], ["xfs_repair", "-n"])


class Ends(Attached):
    """The server is killed, told to end, or left by its mount."""

    def busy(self, disk: Path) -> subprocess.Popen:
        """fio at work on a device, until it fails."""
        words = fio(disk, "--rw=randrw", "--bs=16k", "--size=16m", "--time_based", "--runtime=300", "--numjobs=2")
        written = self.written(disk)
        program = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(program.kill)
        soon(lambda: self.written(disk) > written + MIB, "fio has written")
        return program

    def written(self, disk: Path) -> int:
        """Bytes, by the kernel's books."""
        return int(Path(f"/sys/block/{disk.name}/stat").read_text().split()[6]) * 512

    def failed(self, program: subprocess.Popen) -> str:
        """It ends, with errors. A disk that has just gone has no bytes any more, and so no space for direct writes."""
        told, _ = program.communicate(timeout=END_S)
        self.assertNotEqual(program.returncode, 0, told)
        self.assertRegex(told, r"Input/output error|No such device|No space left on device")
        return told

    def test_killed_under_load(self):
        other = self.brought_up("/tmp/other", MEMBER // 2)
        kept = self.disk("kept", "16M", pool=other)
        disk = self.disk("disk", "32M")
        idle = self.disk("idle", "32M")
        program = self.busy(disk)
        os.kill(self.pool.pid, signal.SIGKILL)
        began = time.monotonic()
        self.failed(program)
        print(f"fio ended {time.monotonic() - began:.1f} s after the server was killed")
        soon(lambda: not disk.exists() and not idle.exists(), "the disks are gone")
        left = sorted(path.name for path in Path("/dev").glob("ublkc*"))
        self.assertEqual(len(left), 3, left)
        self.done("down", self.pool.directory)
        done = homenode("up", "--size-per-node", MEMBER, self.pool.directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        for gone in (disk, idle):
            self.assertIn(f"cleared the dead block device {gone}", done.stderr)
        self.assertNotIn(str(kept), done.stderr)
        self.pool.pid = self.pool.status()["pid"]
        self.assertEqual([path.name for path in Path("/dev").glob("ublkc*")], [kept.name.replace("ublkb", "ublkc")])
        # The other server's works on, and ours again.
        for path in (kept, self.disk("disk", "32M")):
            self.run_well("dd", "if=/dev/urandom", f"of={path}", "bs=1M", "count=4", "oflag=direct", "status=none")
        self.done("volume", "detach", other.directory / "kept")
        self.done("volume", "detach", self.pool.directory / "disk")
        self.assertEqual(list(Path("/dev").glob("ublk[bc]*")), [])

    def test_killed_under_a_mounted_filesystem(self):
        disk = self.disk("disk", "64M")
        self.run_well("mkfs.ext4", "-q", disk)
        place = Path("/tmp/mnt")
        place.mkdir(exist_ok=True)
        self.run_well("mount", disk, place)
        (place / "file").write_bytes(b"x" * MIB)
        os.kill(self.pool.pid, signal.SIGKILL)
        # Its own files end with errors, nobody hangs.
        done = subprocess.run(["sh", "-c", f"dd if=/dev/zero of={place}/new bs=1M count=8 conv=fsync"], timeout=END_S, check=False, capture_output=True)
        self.assertNotEqual(done.returncode, 0, done)
        subprocess.run(["umount", place], timeout=END_S, check=True)
        self.done("down", self.pool.directory)
        self.done("up", "--size-per-node", MEMBER, self.pool.directory)
        self.pool.pid = self.pool.status()["pid"]
        self.assertEqual(list(Path("/dev").glob("ublk[bc]*")), [])

    def test_told_to_end_under_load(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            program = self.busy(self.disk("disk", "32M"))
            os.kill(self.pool.pid, number)
            self.failed(program)
            soon(lambda: not Path(f"/proc/{self.pool.pid}").exists(), "the server is gone")
            self.assertEqual(list(Path("/dev").glob("ublk[bc]*")), [])
            self.assertFalse(os.path.ismount(self.pool.directory))
            self.done("up", "--size-per-node", MEMBER, self.pool.directory)
            self.pool.pid = self.pool.status()["pid"]

    def test_down_with_what_is_idle_and_what_is_in_use(self):
        disk = self.disk("disk", "32M")
        self.disk("idle", "32M")
        self.run_well("mkfs.ext4", "-q", disk)
        with self.mounted(disk, "ext4") as place:
            for words in (("down",), ("down", "--lazy")):
                told = self.refused(*words, self.pool.directory)
                for part in ("volume disk", str(disk), f"umount {place}", "homenode volume detach --force"):
                    self.assertIn(part, told)
            self.assertIsNotNone(self.listed("idle")["device"], "all stays as it was")
            (place / "file").write_bytes(b"x" * MIB)
        self.done("down", self.pool.directory)
        soon(lambda: not Path(f"/proc/{self.pool.pid}").exists(), "the server is gone")
        self.assertEqual(list(Path("/dev").glob("ublk[bc]*")), [])

    def test_a_queue_that_fails_ends_the_device(self):
        disk = self.disk("disk", "32M")
        other = self.disk("other", "32M")
        tasks = Path(f"/proc/{self.pool.pid}/task").iterdir()
        queue = f"ublk{disk.name.removeprefix('ublkb')}q"
        thread = next(task.name for task in tasks if inside.name_of(task).startswith(queue))
        program = self.busy(disk)
        # The kernel serves this thread's ring no more, as far as the thread can tell.
        words = ["strace", "-p", thread, "-o", "/dev/null", "-e", "trace=io_uring_enter", "-e", "inject=io_uring_enter:error=EBADF"]
        failing = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(failing.wait)
        self.addCleanup(failing.kill)
        self.failed(program)
        soon(lambda: not disk.exists(), "the disk is gone")
        self.assertFalse(self.listed("disk")["attached"])
        self.run_well("dd", "if=/dev/zero", f"of={other}", "bs=1M", "count=4", "oflag=direct", "status=none")
        disk = self.attached(self.pool.directory / "disk")
        self.run_well("dd", "if=/dev/zero", f"of={disk}", "bs=1M", "count=4", "oflag=direct", "status=none")

    def test_killed_while_it_ends_a_device(self):
        disk = self.disk("disk", "32M")
        pid = self.pool.pid
        with disk.open("r+b", buffering=0) as user:
            user.write(b"x" * (24 * MIB))
            self.slow(pid, disk)
            os.kill(pid, signal.SIGTERM)
            time.sleep(1)
            self.assertTrue(Path(f"/proc/{pid}").exists(), "the kernel still writes")
            os.kill(pid, signal.SIGKILL)
            soon(lambda: not Path(f"/proc/{pid}").exists(), "the server is gone")
            soon(lambda: not disk.exists(), "the disk is gone")
        self.done("down", self.pool.directory)
        self.done("up", "--size-per-node", MEMBER, self.pool.directory)
        self.pool.pid = self.pool.status()["pid"]
        self.assertEqual(list(Path("/dev").glob("ublk[bc]*")), [])

    def test_stopped_by_its_unmounting(self):
        self.disk("disk", "32M")
        self.run_well("umount", self.pool.directory)
        soon(lambda: not Path(f"/proc/{self.pool.pid}").exists(), "the server is gone")
        self.assertEqual(list(Path("/dev").glob("ublk[bc]*")), [])


class Users(Attached):
    """Who uses a device, and what they are told."""

    def volume(self, name: str) -> Path:
        """Its name for the command."""
        return self.pool.directory / name

    def test_a_full_pool_is_told_to_its_writer_only(self):
        modest = self.disk("modest", "16M")
        greedy = self.disk("greedy", "2G")
        write = ("--rw=write", "--bs=64k", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1")
        self.run_well(*fio(modest, *write, "--size=16m"))
        busy = subprocess.Popen(fio(modest, *write, "--size=16m", "--loops=3"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        done = subprocess.run(
            ["dd", "if=/dev/zero", f"of={greedy}", "bs=1M", "oflag=direct"], capture_output=True, text=True, check=False, timeout=300
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("No space left on device", done.stderr)
        told, _ = busy.communicate(timeout=300)
        self.assertEqual(busy.returncode, 0, told)
        # What it had written it can write again, and reads what it wrote.
        self.run_well(*fio(modest, *write, "--size=16m"))
        self.run_well("blkdiscard", greedy)
        self.assertEqual(self.listed("greedy")["used_bytes"], 0)
        self.run_well("dd", "if=/dev/zero", f"of={greedy}", "bs=1M", "count=8", "oflag=direct", "status=none")

    def test_an_attached_volume_stays_as_it_is(self):
        disk = self.disk("disk", "32M")
        self.assertIn(f"attached already, as {disk}", self.refused("volume", "attach", self.volume("disk")))
        for words in (("resize", self.volume("disk"), "--size", "64M"), ("remove", self.volume("disk"))):
            told = self.refused("volume", *words)
            self.assertIn("volume disk: it is attached", told)
            self.assertIn("homenode volume detach", told)
        self.assertEqual((self.listed("disk")["attached"], self.listed("disk")["device"]), (True, str(disk)))
        self.assertIn(str(disk), self.done("volume", "list", self.pool.directory))
        self.assertEqual(int(self.run_well("blockdev", "--getsize64", disk)), 32 * MIB)
        self.done("volume", "detach", self.volume("disk"))
        self.assertFalse(disk.exists())
        self.assertEqual((self.listed("disk")["attached"], self.listed("disk")["device"]), (False, None))
        self.assertIn("not attached", self.refused("volume", "detach", self.volume("disk")))
        self.done("volume", "resize", self.volume("disk"), "--size", "64M")
        self.assertEqual(int(self.run_well("blockdev", "--getsize64", self.attached(self.volume("disk")))), 64 * MIB)

    def test_what_is_in_use_is_detached_by_force_only(self):
        disk = self.disk("disk", "64M")
        self.run_well("mkfs.ext4", "-q", disk)
        with self.mounted(disk, "ext4") as place:
            told = self.refused("volume", "detach", self.volume("disk"))
            for part in ("volume disk is in use", f"{disk} is mounted on {place}", "--force"):
                self.assertIn(part, told)
            (place / "file").write_bytes(b"x" * MIB)
        with disk.open("rb"):
            told = self.refused("volume", "detach", self.volume("disk"))
            self.assertIn(f"{disk} is open by", told)
            self.assertIn(f"({os.getpid()})", told)
        self.run_well("addpart", disk, 1, 2048, 8192)
        part = Path(f"{disk}p1")
        soon(part.exists, "the partition is there")
        with part.open("rb"):
            self.assertIn(f"({os.getpid()})", self.refused("volume", "detach", self.volume("disk")))
        self.run_well("delpart", disk, 1)
        place.mkdir(exist_ok=True)
        self.run_well("mount", disk, place)
        file = os.open(place / "file", os.O_RDWR)
        self.done("volume", "detach", "--force", self.volume("disk"))
        self.assertFalse(disk.exists())
        with self.assertRaises(OSError):
            os.write(file, b"y" * MIB)
            os.fsync(file)
        os.close(file)
        self.run_well("umount", place)
        # The volume has what was there before.
        disk = self.attached(self.volume("disk"))
        with self.mounted(disk, "ext4"):
            self.assertEqual((place / "file").stat().st_size, MIB)
        self.run_well("fsck.ext4", "-f", "-n", disk)

    def test_a_trace_is_replayed(self):
        trace = Path("/tmp/trace")
        disk = self.disk("disk", "32M", "--trace", trace)
        self.run_well(*fio(disk, "--rw=randrw", "--bs=4k", "--size=4m", "--number_ios=500"))
        self.run_well("blkdiscard", "-o", "0", "-l", str(MIB), disk)
        self.done("volume", "detach", self.volume("disk"))
        self.assertEqual(trace.stat().st_size % 32, 0)
        entries = trace.stat().st_size // 32 - 1
        self.assertGreater(entries, 500)
        told = json.loads(self.done("blk", "replay", "--asap", "--device", "ram", "--json", trace))
        print(f"replayed: {told}")
        played = sum(operation["requests"] for operation in told["operations"])
        self.assertEqual((played, told["failed"], told["refused"], told["lost"]), (entries, {}, {}, 0))
        copy = Path("/tmp/copy")
        with copy.open("wb") as file:
            file.truncate(32 * MIB)
        self.done("blk", "replay", "--asap", "--device", copy, "--overwrite", trace)


class Without(Attached):
    """A kernel without the driver."""

    def test_there_is_one_message(self):
        self.done("volume", "create", self.pool.directory / "disk", "--size", "32M")
        told = self.refused("volume", "attach", self.pool.directory / "disk")
        for part in ("attach the volume disk", "/dev/ublk-control", "modprobe ublk_drv"):
            self.assertIn(part, told)
        self.assertFalse(self.listed("disk")["attached"])
        self.done("volume", "remove", self.pool.directory / "disk")


suite = unittest.defaultTestLoader.loadTestsFromTestCase(globals()[WORDS[0]])
sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
