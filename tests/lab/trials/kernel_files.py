"""Files of the kernel lie with their writers, go where they are told to, and move while they are written: by the kernel's own figure of
tmpfs pages on each node (Shmem), which nothing else in the guest changes by much.
"""

import contextlib
import ctypes
import json
import mmap
import os
import re
import signal
import subprocess
import threading
import time
import unittest
from pathlib import Path

import inside
from inside import BINARY
from pool import BLOCK, MIB, TRANSPORT, Pool, homenode, memory, on_node, run_trials, soon, start

NODES = range(4)
FILE = 16 * MIB
# Of all bytes of a file, those that have to be where they belong.
LOCAL = FILE * 95 // 100


def shmem() -> list[int]:
    """Bytes of tmpfs pages on each node."""
    return [memory(node, "Shmem") for node in NODES]


def low_watermark(node: int) -> int:
    """Free bytes at which the kernel turns to another node."""
    zones = Path("/proc/zoneinfo").read_text().split("Node ")[1:]
    return sum(int(zone.split(" low ")[1].split()[0]) for zone in zones if zone.startswith(f"{node},")) * BLOCK


def free_in_huge_pieces(node: int) -> int:
    """Free bytes of a node in aligned pieces of 2 MiB and more."""
    zones = [line.split() for line in Path("/proc/buddyinfo").read_text().splitlines()]
    counts = [zone[4:] for zone in zones if zone[1] == f"{node},"]
    return sum(int(count) * BLOCK << order for zone in counts for order, count in enumerate(zone) if order >= 9)


def grown(before: list[int]) -> list[int]:
    """By how much they have become more."""
    return [now - then for now, then in zip(shmem(), before, strict=True)]


def map_of(path: Path) -> dict[int, int]:
    """Where a file lies, as the command tells it."""
    done = homenode("file", "map", "--json", path)
    if done.returncode:
        raise AssertionError(done.stderr)
    return {on["node"]: on["bytes"] for on in json.loads(done.stdout)["nodes"]}


def writes_at_home(test: unittest.TestCase, directory: Path, block: str, jobs: int, mib: int) -> None:
    """Has fio as it is by default write files of so many MiB, `jobs` on each node: they come to lie there."""
    before = shmem()
    writers = {}
    for node, cpus in inside.node_cpus().items():
        writers |= {f"{block}n{node}j{job}": cpus[job % len(cpus)] for job in range(jobs)}
    inside.fio(directory, writers, block, "native", mib)
    for node, bytes_more in enumerate(grown(before)):
        test.assertGreaterEqual(bytes_more, jobs * mib * MIB * 95 // 100, (block, node))
    for name in writers:
        node = int(name[3])
        test.assertGreaterEqual(map_of(directory / name).get(node, 0), mib * MIB * 95 // 100, name)
        (directory / name).unlink()
    soon(lambda: max(grown(before)) < MIB, "the files are gone")


class KernelFiles(unittest.TestCase):
    """A pool over four nodes whose files are the kernel's."""

    def setUp(self):
        self.pool = Pool("96M", "--transport", TRANSPORT, "--per-node", data="kernel")
        self.addCleanup(self.pool.down)

    def write(self, name: str, node: int) -> Path:
        """A file of a writer on that node."""
        path = self.pool.directory / name
        with on_node(node), path.open("wb") as file:
            for _ in range(FILE // MIB):
                file.write(bytes(MIB))
        return path

    def test_the_default_job_of_fio_is_local(self):
        for block in ("4k", "1m"):
            writes_at_home(self, self.pool.directory, block, jobs=1, mib=FILE // MIB)

    def test_forty_jobs_at_once_are_local(self):
        # As many as in the paper's measurements (MBS-LVM, section 4), on four nodes.
        writes_at_home(self, self.pool.directory, "1m", jobs=10, mib=2)

    def test_policies_decide_where_new_bytes_go(self):
        before = shmem()
        bound = self.write("node1/file", node=3)
        self.assertGreaterEqual(map_of(bound).get(1, 0), LOCAL)
        self.assertGreaterEqual(grown(before)[1], LOCAL)
        spread = self.pool.directory / "spread"
        spread.touch()
        os.setxattr(spread, "user.homenode.policy", b"interleave")
        self.write("spread", node=0)
        for node, bytes_on in map_of(spread).items():
            self.assertLessEqual(abs(bytes_on - FILE / 4), FILE / 8, node)
        os.setxattr(spread, "user.homenode.policy", b"local")
        os.truncate(spread, 0)
        self.write("spread", node=2)
        self.assertGreaterEqual(map_of(spread).get(2, 0), LOCAL)

    def test_status_tells_bytes_by_node(self):
        for node in NODES:
            self.write(f"on{node}", node)
        told = {node["node"]: node["used_bytes"] for node in self.pool.status()["nodes"]}
        for node in NODES:
            self.assertLessEqual(abs(told[node] - FILE), FILE // 20, told)

    def test_writers_turn_to_other_nodes_once_theirs_is_fat(self):
        path = self.pool.directory / "large"
        with on_node(0), path.open("wb") as file:
            for _ in range(160):
                file.write(bytes(MIB))
                # An emulated look takes a hundred times as long as a real one.
                time.sleep(0.03)
        told = map_of(path)
        self.assertGreaterEqual(told[0], 90 * MIB, told)
        # How far writers go beyond the limit until they are steered.
        self.assertLessEqual(told[0], 128 * MIB, told)
        self.assertEqual(sum(told.values()), 160 * MIB)
        self.assertEqual(self.pool.member(0)["state"], "fat")
        print("beyond the limit of 96 MiB:", (told[0] >> 20) - 96, "MiB", told)
        os.truncate(path, 0)
        soon(lambda: self.pool.member(0)["state"] == "candidate", "node 0 is a candidate again")
        self.assertGreaterEqual(map_of(self.write("later", node=0)).get(0, 0), LOCAL)

    def test_drain_takes_files_off_a_node_and_writers_too(self):
        before = shmem()
        path = self.write("on0", node=0)
        opened = (self.pool.directory / "open").open("wb", buffering=0)
        self.addCleanup(opened.close)
        with on_node(0):
            writer = start("writer.py", str(self.pool.directory / "moving"), 0, FILE // BLOCK)
            writer.stdin.write("first\n")
            writer.stdin.flush()
            self.assertEqual(writer.stdout.readline(), "tagged first\n")
        done = homenode("pool", "drain", self.pool.directory, "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(map_of(path).get(0, 0), 0)
        with on_node(0):
            for _ in range(FILE // MIB):
                opened.write(bytes(MIB))
        writer.stdin.close()
        self.assertTrue(writer.stdout.readline().startswith("verified "))
        self.assertEqual(writer.wait(), 0)
        self.assertEqual(map_of(self.pool.directory / "moving").get(0, 0), 0)
        self.assertEqual(map_of(self.pool.directory / "open").get(0, 0), 0)
        self.assertLess(grown(before)[0], MIB)

    def test_a_file_moves_under_its_writer(self):
        self.moves_under(start("writer.py", self.moving, 0, FILE // BLOCK))

    def test_a_file_moves_under_a_writer_whose_calls_are_copies(self):
        writer = start("writer.py", self.moving, 0, FILE // BLOCK, False, through=(BINARY, "run", "--stats", "--"))
        self.moves_under(writer)
        said = writer.stderr.read()
        copies = re.search(r"(\d+) of \d+ reads and writes at an offset were copies", said)
        self.assertIsNotNone(copies, said)
        print("copies:", said)
        # Most calls are the first of a tick: all that is emulated is slow.
        self.assertGreater(int(copies[1]), 0, said)

    @property
    def moving(self) -> str:
        """The file of a writer."""
        return str(self.pool.directory / "moving")

    def moves_under(self, writer: subprocess.Popen) -> None:
        """Moves its file to other nodes while it writes, and reads what has to be there."""
        path = Path(self.moving)
        writer.stdin.write("first\n")
        writer.stdin.flush()
        self.assertEqual(writer.stdout.readline(), "tagged first\n")
        for node in (3, 1):
            done = homenode("file", "move", path, "--node", node)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertGreaterEqual(map_of(path).get(node, 0), LOCAL)
        writer.stdin.close()
        told = writer.stdout.readline()
        self.assertTrue(told.startswith("verified "), told)
        self.assertEqual(writer.wait(), 0)

    def test_a_file_of_a_plain_tmpfs_is_mapped_and_moved(self):
        directory = Path("/tmp/plain")
        directory.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "plain", directory], check=True)
        self.addCleanup(subprocess.run, ["umount", directory], check=True)
        path = directory / "file"
        with on_node(2):
            path.write_bytes(bytes(FILE))
        self.assertGreaterEqual(map_of(path).get(2, 0), LOCAL)
        done = homenode("file", "move", path, "--node", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(map_of(path), {0: FILE})
        self.assertEqual(homenode("file", "move", path, "--node", "9").returncode, 1)


@contextlib.contextmanager
def reader(path: Path, node: int):
    """A thread on a node that reads a file again and again."""
    is_over = threading.Event()

    def read() -> None:
        os.sched_setaffinity(0, inside.node_cpus()[node])
        with path.open("rb", buffering=0) as file:
            while not is_over.is_set():
                file.seek(0)
                while file.read(MIB):
                    pass

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Mover(unittest.TestCase):
    """Files that one node reads and that lie on another."""

    def up(self, mover: str) -> Pool:
        pool = Pool("96M", "--transport", TRANSPORT, "--mover", mover, data="kernel")
        self.addCleanup(pool.down)
        with on_node(0):
            (pool.directory / "file").write_bytes(bytes(FILE))
        return pool

    def test_plan_tells_and_moves_nothing(self):
        pool = self.up("plan")
        path = pool.directory / "file"
        with reader(path, node=2):
            told = soon(lambda: [found for found in pool.status()["mover"]["decisions"] if found["outcome"] == "would move"], "a plan")
        self.assertEqual([(found["inode"], found["node"]) for found in told], [(path.stat().st_ino, 2)])
        self.assertEqual(map_of(path), {0: FILE})
        reached = {on["node"]: on for on in pool.status()["mover"]["reached"]}
        self.assertGreaterEqual(reached[0]["written_bytes"], FILE)
        self.assertGreaterEqual(reached[2]["read_bytes"], FILE)
        text = homenode("status", pool.directory).stdout
        self.assertIn("would move: node 2 reaches it most", text)

    def test_on_moves_a_file_to_its_reader_once(self):
        pool = self.up("on")
        path = pool.directory / "file"
        before = shmem()
        with reader(path, node=2):
            soon(lambda: map_of(path).get(2, 0) >= LOCAL, "the file moves to node 2")
        self.assertGreaterEqual(grown(before)[2], LOCAL)
        with reader(path, node=3):
            time.sleep(4)
            self.assertGreaterEqual(map_of(path).get(2, 0), LOCAL, "it rests")
        mover = pool.status()["mover"]
        self.assertEqual(mover["moves"], 1)
        self.assertGreaterEqual(mover["moved_bytes"], LOCAL)

    def test_files_with_a_policy_stay(self):
        pool = self.up("on")
        path = pool.directory / "file"
        os.setxattr(path, "user.homenode.policy", b"node:0")
        with reader(path, node=2):
            time.sleep(4)
        self.assertEqual(map_of(path), {0: FILE})
        self.assertEqual(pool.status()["mover"]["moves"], 0)

    def test_off_counts_nothing(self):
        pool = self.up("off")
        self.assertEqual(pool.status()["mover"]["mode"], "off")
        self.assertEqual(pool.status()["mover"]["reached"], [])


class FullNodes(unittest.TestCase):
    """A pool beside node 0 that is full of something else."""

    def setUp(self):
        self.pool = Pool("256M", "--transport", TRANSPORT, data="kernel")
        self.addCleanup(lambda: self.pool.down())

    def write(self, directory: Path) -> int:
        """Has a writer on node 0 write 100 MiB; the bytes that came to lie there."""
        before = shmem()
        with on_node(0), (directory / "file").open("wb") as file:
            for _ in range(100):
                file.write(bytes(MIB))
        return grown(before)[0]

    def fill_with_page_cache(self) -> None:
        """Fills node 0, and waits until room was made there."""
        with on_node(0):
            disk = os.open("/dev/nvme0n1", os.O_RDONLY)
            self.addCleanup(os.close, disk)
            while os.read(disk, MIB):
                pass
        cache = memory(0, "FilePages") - memory(0, "Shmem")
        self.assertGreater(cache, 200 * MIB, "node 0 is not full of page cache: the disk is too small")
        # What is written, and what the kernel leaves free on a node.
        soon(lambda: memory(0, "MemFree") > 100 * MIB + low_watermark(0), "room was made")

    def test_the_default_job_of_fio_is_local(self):
        self.fill_with_page_cache()
        for block in ("4k", "1m"):
            writes_at_home(self, self.pool.directory, block, jobs=1, mib=FILE // MIB)

    def test_clean_page_cache_makes_room_for_writers(self):
        self.fill_with_page_cache()
        self.assertGreaterEqual(self.write(self.pool.directory), 95 * MIB)

    def test_room_is_made_without_reclaim_files(self):
        for node in NODES:
            path = Path(f"/sys/devices/system/node/node{node}/reclaim")
            if not path.exists():
                # Before Linux 6.17 all is made so.
                continue
            subprocess.run(["mount", "--bind", path, path], check=True)
            self.addCleanup(subprocess.run, ["umount", path], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        self.pool.down()
        self.pool = Pool("256M", "--transport", TRANSPORT, data="kernel")
        self.test_clean_page_cache_makes_room_for_writers()

    def free_memory_in_small_pieces(self) -> None:
        """Leaves node 2 free memory in pieces of three pages."""
        proactive = Path("/proc/sys/vm/compaction_proactiveness")
        before = proactive.read_text()
        # The kernel may not put it together by itself.
        proactive.write_text("0")
        self.addCleanup(proactive.write_text, before)
        directory = Path("/tmp/pieces")
        directory.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "huge=never,size=100%", "none", directory], check=True)
        self.addCleanup(subprocess.run, ["umount", directory], check=True)
        mib = memory(2, "MemFree") // MIB - 24
        libc = ctypes.CDLL(None, use_errno=True)
        with on_node(2), (directory / "file").open("wb") as file:
            for _ in range(mib):
                file.write(bytes(MIB))
            for at in range(0, mib * MIB, 4 * BLOCK):
                # Of four pages of the file three go.
                done = libc.fallocate(file.fileno(), 3, ctypes.c_long(at), ctypes.c_long(3 * BLOCK))
                self.assertEqual(done, 0, os.strerror(ctypes.get_errno()))

    def test_free_memory_in_small_pieces_is_put_together(self):
        self.pool.down()
        self.free_memory_in_small_pieces()
        self.assertLess(free_in_huge_pieces(2), 40 * MIB)
        time.sleep(3)
        self.assertLess(free_in_huge_pieces(2), 40 * MIB)
        self.pool = Pool("128M", "--transport", TRANSPORT, data="kernel")
        self.assertGreater(memory(2, "MemFree"), 128 * MIB)
        soon(lambda: free_in_huge_pieces(2) >= 48 * MIB, "free memory was put together")

    def have_pages_wait(self) -> None:
        """Has pages on node 2 locked for readers, whose server is stopped."""
        server = Pool("16M", "--transport", "classic", directory="/tmp/stopped")
        self.addCleanup(server.down)
        paths = [server.directory / f"file {number}" for number in range(300)]
        for path in paths:
            path.write_bytes(bytes(128 << 10))
        files = [os.open(path, os.O_RDONLY) for path in paths]
        for file in files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            self.addCleanup(os.close, file)
        os.kill(server.pid, signal.SIGSTOP)
        with on_node(2):
            readers = [threading.Thread(target=os.pread, args=(file, BLOCK, 0)) for file in files]
            for reader in readers:
                reader.start()
                self.addCleanup(reader.join)
        self.addCleanup(os.kill, server.pid, signal.SIGCONT)
        time.sleep(1)

    def test_pages_that_wait_for_a_stopped_server_stop_no_keeper(self):
        self.have_pages_wait()
        self.pool.down()
        self.free_memory_in_small_pieces()
        self.pool = Pool("128M", "--transport", TRANSPORT, data="kernel")
        tasks = Path(f"/proc/{self.pool.pid}/task").iterdir()
        room = next(task for task in tasks if inside.name_of(task) == "room")
        for _ in range(10):
            looked = (room / "schedstat").read_text()
            soon(lambda: (room / "schedstat").read_text() != looked, "the keeper goes on")
            time.sleep(1)

    def spilled_from(self, node):
        return {one["node"]: one["spilled_bytes"] for one in self.pool.status()["nodes"]}[node]

    def test_memory_of_programs_stays_and_bytes_spill(self):
        size = memory(0, "MemFree") - 24 * MIB
        with on_node(0):
            program = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.addCleanup(program.close)
            for at in range(0, size, BLOCK):
                program[at] = 1
        self.assertLess(self.write(self.pool.directory), 50 * MIB)
        self.assertEqual(sum(map_of(self.pool.directory / "file").values()), 100 * MIB)
        # Looks come after the bytes: a second apart, and slow in an emulated guest.
        soon(lambda: self.pool.member(0)["state"] == "fat", "node 0 is fat")
        soon(lambda: self.spilled_from(0) >= 50 * MIB, "the spill is counted")
        self.assertIn("oom_kill 0\n", Path("/proc/vmstat").read_text(encoding="ascii"))


if __name__ == "__main__":
    assert BINARY
    run_trials()
