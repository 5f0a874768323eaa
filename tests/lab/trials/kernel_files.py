"""Files of the kernel lie with their writers, go where they are told to, and move while they are written: by the kernel's own figure of
tmpfs pages on each node (Shmem), which nothing else in the guest changes by much.
"""

import json
import os
import subprocess
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


def grown(before: list[int]) -> list[int]:
    """By how much they have become more."""
    return [now - then for now, then in zip(shmem(), before, strict=True)]


def map_of(path: Path) -> dict[int, int]:
    """Where a file lies, as the command tells it."""
    done = homenode("file", "map", "--json", path)
    if done.returncode:
        raise AssertionError(done.stderr)
    return {on["node"]: on["bytes"] for on in json.loads(done.stdout)["nodes"]}


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
            before = shmem()
            writers = {f"{block}node{node}"[:8]: cpus[0] for node, cpus in inside.node_cpus().items()}
            inside.fio(self.pool.directory, writers, block, "native", FILE // MIB)
            for node, bytes_more in enumerate(grown(before)):
                self.assertGreaterEqual(bytes_more, LOCAL, (block, node))
            for node, name in enumerate(writers):
                self.assertGreaterEqual(map_of(self.pool.directory / name).get(node, 0), LOCAL, name)
                (self.pool.directory / name).unlink()
            soon(lambda before=before: max(grown(before)) < MIB, "the files are gone")

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

    def test_a_file_moves_under_its_writer(self):
        path = self.pool.directory / "moving"
        writer = start("writer.py", str(path), 0, FILE // BLOCK)
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


if __name__ == "__main__":
    assert BINARY
    run_trials()
