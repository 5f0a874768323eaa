"""Tasks on a machine of several nodes that read files whose buffers are on other nodes: on ext4, with its page cache warm, and in a pool,
before and after core affinity has looked at them three times. What each reader reads is on the node after its own.

Every interval of steady reading is marked for the emulator's counter, and told in its order; only the readers are at work then.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
import unittest
from pathlib import Path

from daemon import Daemon, affinity
from inside import BINARY, run, wait
from pool import MIB, Pool, Tank, homenode, on_node, run_trials
from wiring import NODES, Load, threads

FILE = 12 * MIB
MEMBER = 64 * MIB
# Large enough that bytes are what a reader accesses, small enough that its buffers stay in its CPU's cache.
BLOCK = 64 << 10
# Until the daemon has looked so often, and what it has moved has settled.
PERIODS, PERIOD_S = 3, 5
STEADY_S = 10
INTERVAL_S = 4
# Share of the bytes that the pool counts that has to be local, in percent.
LOCAL_MIN = 95


# Until a reader has begun, and until the daemon has placed all of them, in a guest that is counted.
BEGUN_S, PLACED_S = 90, 900
ANYWHERE = {cpu for cpus in NODES.values() for cpu in cpus}


def disks() -> list[Path]:
    """The NVMe disks."""
    return sorted(Path("/dev").glob("nvme*n1"))


def next_to(node: int) -> int:
    """The node on which a reader's file is."""
    return (node + 1) % len(NODES)


class Reader(Load):
    """fio, which reads a file at random; begun on a node. Unless it is to stay there it may then run anywhere."""

    def __init__(self, path: Path, node: int, direct: bool, stays: bool = False):
        cpu = NODES[node][0]
        words = ["taskset", "-c", str(cpu), "fio", f"--name=on-{node}", f"--filename={path}", "--output=/dev/null"]
        words += ["--thread", "--ioengine=psync", "--rw=randread", f"--bs={BLOCK}", f"--size={FILE}", "--invalidate=0"]
        words += [f"--direct={int(direct)}", "--time_based", "--runtime=1d", "--norandommap", "--eta=never"]
        self.process = subprocess.Popen(words)
        wait(lambda: self.read() > MIB, f"{path} is read", BEGUN_S)
        if not stays:
            for thread in threads(self.process.pid):
                os.sched_setaffinity(thread, ANYWHERE)

    def read(self) -> int:
        """Bytes so far, of all its threads."""
        lines = Path(f"/proc/{self.process.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))

    def busiest(self) -> int:
        """The thread that reads."""
        def bytes_of(thread):
            lines = Path(f"/proc/{self.process.pid}/task/{thread}/io").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))

        return max(threads(self.process.pid), key=bytes_of)


def accesses(pool: Pool) -> dict[tuple[int, int], int]:
    """Bytes that the pool has counted, by the CPU's node and the home."""
    return {(cell["from"], cell["home"]): cell["read_bytes"] + cell["written_bytes"] for cell in pool.status()["accesses"]}


def local_percent(before: dict, after: dict) -> float:
    """The local share of what was counted between two looks."""
    moved = {cell: count - before.get(cell, 0) for cell, count in after.items()}
    return 100 * sum(count for (of, home), count in moved.items() if of == home) / sum(moved.values())


def fill(path: Path, node: int, direct: bool) -> None:
    """A file that is written from a node."""
    with on_node(node):
        flag = ["oflag=direct"] if direct else []
        run("dd", "if=/dev/urandom", f"of={path}", "bs=1M", f"count={FILE // MIB}", *flag)


class Tasks(unittest.TestCase):
    """Readers on the wrong nodes."""

    def interval(self, what: str, readers: list[Reader]) -> None:
        """Marks some seconds of steady reading."""
        before = [reader.read() for reader in readers]
        run("mark", "for", INTERVAL_S)
        read = sum(reader.read() - at for reader, at in zip(readers, before, strict=True))
        print(json.dumps({"interval": what, "bytes": read}), flush=True)

    def readers(self, directory: Path, direct: bool) -> list[Reader]:
        """A reader for each node, at work."""
        for node in NODES:
            fill(directory / f"of-{node}", next_to(node), direct)
        readers = []
        for node in NODES:
            readers.append(Reader(directory / f"of-{node}", node, direct))
            self.addCleanup(readers[-1].kill)
        time.sleep(STEADY_S)
        return readers

    def test_1_page_cache_on_other_nodes(self):
        disk = disks()[0]
        run("mkfs.ext4", "-q", disk)
        directory = Path("/tmp/ext4")
        directory.mkdir()
        run("mount", disk, directory)
        self.addCleanup(run, "umount", directory)
        readers = self.readers(directory, direct=False)
        self.interval("ext4", readers)
        for reader in readers:
            reader.kill()

    @contextlib.contextmanager
    def daemon(self, readers: list[Reader] | None = None):
        """At rest while the block runs, after its periods, and when it has placed the readers or had time to."""
        daemon = Daemon("--period", str(PERIOD_S))
        self.addCleanup(daemon.process.kill)
        # The first period begins when it has looked once.
        time.sleep((PERIODS + 1) * PERIOD_S)
        deadline = time.monotonic() + PLACED_S
        while self.misplaced(readers or []) and time.monotonic() < deadline:
            time.sleep(1)
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            daemon.process.send_signal(signal.SIGCONT)
            print(daemon.end())

    def go_to_their_buffers(self, pool: Pool, before: str, after: str) -> None:
        """Readers past the page cache, alone and beside the daemon."""
        self.addCleanup(pool.down)
        readers = self.readers(pool.directory, direct=True)
        counted = accesses(pool)
        self.interval(before, readers)
        wrong = local_percent(counted, accesses(pool))
        with self.daemon(readers):
            counted = accesses(pool)
            self.interval(after, readers)
            right = local_percent(counted, accesses(pool))
            self.check_placed(readers)
        print(json.dumps({"of": after, "local_percent": [wrong, right]}))
        # The scheduler has moved some to where they belong, perhaps.
        self.assertLess(wrong, 80)
        self.assertGreaterEqual(right, LOCAL_MIN)
        # They are let go.
        for reader in readers:
            self.assertEqual(os.sched_getaffinity(reader.busiest()), ANYWHERE)
            reader.kill()

    def misplaced(self, readers: list[Reader]) -> list[Reader]:
        """Those that may run elsewhere than where their file is."""
        homes = [set(NODES[next_to(node)]) for node in NODES]
        return [reader for reader, home in zip(readers, homes, strict=False) if os.sched_getaffinity(reader.busiest()) != home]

    def check_placed(self, readers: list[Reader]) -> None:
        """Each may run where its file is, and nowhere else."""
        for reader in self.misplaced(readers):
            self.fail(affinity("explain", reader.busiest(), "--period", "5").stdout)

    def test_2_tasks_go_to_their_buffers(self):
        self.go_to_their_buffers(Pool(str(MEMBER), "--transport", "uring"), "pool", "placed")

    def test_2_tasks_go_to_frames_of_the_cache(self):
        # The frames lie with who wrote the files; the disk is on one node.
        self.go_to_their_buffers(Tank(disks()[1], len(NODES) * MEMBER), "cached", "cached-placed")

    def test_2_tasks_go_to_files_of_the_kernel(self):
        # The server sees none of these reads: BPF programs do. It looks where files lie one part of its time in ten.
        pool = Pool(str(MEMBER), "--transport", "uring", data="kernel")
        self.addCleanup(pool.down)
        readers = self.readers(pool.directory, direct=False)
        with self.daemon(readers):
            self.interval("kernel", readers)
            self.check_placed(readers)
        for reader in readers:
            reader.kill()

    def test_3_a_file_comes_to_a_task_that_somebody_has_pinned(self):
        pool = Pool(str(MEMBER), "--transport", "uring")
        self.addCleanup(pool.down)
        fill(pool.directory / "far", 2, direct=True)
        reader = Reader(pool.directory / "far", 0, direct=True, stays=True)
        self.addCleanup(reader.kill)
        said = homenode("doctor", "--period", "5").stdout
        self.assertIn("far from its buffers: 100 % of", said)
        self.assertIn("files of the pool can come to it", said)
        planned = affinity("plan", "--period", "5").stdout
        self.assertIn("uses it and cannot move", planned)
        self.assertEqual(pool.map("far"), {2: FILE})
        with self.daemon():
            self.assertEqual(pool.map("far"), {0: FILE})
            before = accesses(pool)
            self.interval("come", [reader])
            self.assertGreaterEqual(local_percent(before, accesses(pool)), LOCAL_MIN)
            self.assertEqual(os.sched_getaffinity(reader.busiest()), {NODES[0][0]})
            explained = affinity("explain", reader.busiest(), "--period", "3").stdout
            self.assertIn("where it stays: `revert` does not move it back", explained)
        self.assertEqual(pool.map("far"), {0: FILE})
        reader.kill()

    def test_4_users_without_rights_learn_nothing(self):
        pool = Pool(str(MEMBER), "--transport", "uring")
        self.addCleanup(pool.down)
        fill(pool.directory / "far", 2, direct=True)
        reader = Reader(pool.directory / "far", 0, direct=True)
        self.addCleanup(reader.kill)
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--clear-groups", BINARY, "affinity", "plan", "--period=3"],
            capture_output=True, text=True, check=True,
        )
        self.assertIn("bytes of threads in memory of pools: cannot list the servers", done.stdout)
        self.assertNotIn("its buffers are on", done.stdout)
        reader.kill()


if __name__ == "__main__":
    run_trials()
