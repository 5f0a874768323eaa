"""A node that has no free memory, because another program has eaten it. Its word: how eater.py is to eat."""

import contextlib
import os
import subprocess
import time
import unittest
from pathlib import Path

from eater import available
from pool import BLOCK, MIB, TRANSPORT, WORDS, Pool, homenode, on_node, run_trials, soon, start

KIND = WORDS[0]
MEMBER = 128 * MIB
# A quarter of a member is populated before it is needed.
AHEAD = MEMBER // 4
# Below what a pool leaves of a node, 64 MiB, and above where the kernel kills: with huge pages it keeps 27 MiB of a node as small.
LEAVE = 50
STARVED = 1
NODES = range(3)
# On this machine all nodes are as far from each other.
NEAREST = 0


class Eater:
    """eater.py, from when it is full to when it is to end."""

    def __init__(self, node: int, leave: int = LEAVE, wait: bool = True):
        self.process = start("eater.py", KIND, node, leave)
        if wait:
            self.wait_full()

    def wait_full(self) -> None:
        """Until it has eaten all."""
        line = self.process.stdout.readline()
        if not line.startswith("eaten "):
            raise AssertionError(f"the eater ended with {self.process.wait()}")

    def end(self) -> None:
        """It gives all back. It has to have lived until now."""
        if self.process.poll() is not None:
            raise AssertionError(f"the eater ended with {self.process.returncode}")
        self.process.stdin.close()
        if self.process.wait():
            raise AssertionError(f"the eater ended with {self.process.returncode}")
        self.process.stdout.close()


def oom_kills() -> int:
    """What the kernel has killed for want of memory, in nodes and control groups."""
    return next(int(line.split()[1]) for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("oom_kill "))


class Starving(unittest.TestCase):
    """A pool over three nodes, one of which is eaten."""

    def setUp(self):
        killed = oom_kills()

        def nobody_was_killed():
            self.assertEqual(oom_kills(), killed)
            log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.lower()
            for word in ("oom-killer", "out of memory", "oom_reaper"):
                self.assertNotIn(word, log)

        self.addCleanup(nobody_was_killed)

    def up(self, size: int = MEMBER) -> Pool:
        """A pool, populated as far ahead as it is without writers."""
        pool = Pool(str(size), "--transport", TRANSPORT)
        self.addCleanup(pool.down)
        soon(lambda: all(member["populated_bytes"] >= size // 4 for member in pool.status()["members"]), "populated ahead")
        return pool

    def eater(self, node: int, leave: int = LEAVE, wait: bool = True) -> Eater:
        """One that is ended at the latest with the test."""
        eater = Eater(node, leave, wait)
        self.addCleanup(eater.process.kill)
        return eater

    def check_state(self, pool: Pool, node: int, state: str) -> None:
        """It may take a second until the node is looked at again."""
        soon(lambda: pool.member(node)["state"] == state, f"node {node} is {state}: {pool.status()['members']}")

    def test_writers_spill_while_another_program_has_the_memory(self):
        pool = self.up()
        eater = self.eater(STARVED)
        blocks = 2 * AHEAD // BLOCK
        with on_node(STARVED):
            self.assertEqual(pool.write("starved", blocks, "starved"), blocks)
        homes = pool.map("starved")
        # What was populated is used before anything spills, but for the grants that other CPUs hold, 2 MiB each.
        self.assertGreaterEqual(homes.get(STARVED, 0), AHEAD - len(NODES) * 2 * MIB, homes)
        self.assertEqual(homes, {STARVED: homes[STARVED], NEAREST: 2 * AHEAD - homes[STARVED]})
        self.assertEqual(pool.spills(), {(STARVED, NEAREST): homes[NEAREST]})
        self.assertEqual(pool.witness("starved"), {"starved": homes})
        member = pool.member(STARVED)
        self.assertEqual((member["state"], member["populated_bytes"]), ("fat", AHEAD))
        # Page cache counts, as it does for the eater: the larger the program, the more of the rest it is.
        self.assertGreater(available(STARVED), 30 * MIB)
        with on_node(2):
            pool.write("fed", 1024, "fed")
        self.assertEqual(pool.map("fed"), {2: 1024 * BLOCK})
        eater.end()
        self.check_state(pool, STARVED, "candidate")
        # Those of the time of need would be used up first.
        pool.take_grants_back()
        with on_node(STARVED):
            self.assertEqual(pool.write("after", blocks, "after"), blocks)
        self.assertEqual(pool.map("after"), {STARVED: 2 * AHEAD})
        for name in ("starved", "after"):
            pool.verify(name, blocks, name)

    def test_a_program_that_eats_while_writers_write(self):
        pool = self.up(192 * MIB)
        eater = self.eater(STARVED, wait=False)
        written = 0
        with on_node(STARVED):
            # Slower than it eats, so that the node is starved before the member is full.
            while not pool.spills():
                self.assertEqual(pool.write("racing", 1024, "racing", at=written), 1024)
                written += 1024
                time.sleep(0.1)
        eater.wait_full()
        homes = pool.map("racing")
        self.assertIn(STARVED, homes)
        self.assertLess(homes[STARVED], 180 * MIB, "it was the member that was full")
        self.assertEqual(sum(homes.values()), written * BLOCK)
        self.assertEqual(pool.spills(), {(STARVED, home): count for home, count in homes.items() if home != STARVED})
        pool.verify("racing", written, "racing")
        eater.end()

    def test_a_machine_without_memory_says_so_and_kills_nobody(self):
        pool = self.up()
        eaters = [self.eater(node) for node in NODES]
        with on_node(STARVED):
            written = pool.write("all", 3 * MEMBER // BLOCK, "all")
            # What is populated is used, wherever it is.
            self.assertGreaterEqual(written * BLOCK, 3 * AHEAD)
            self.assertLess(written * BLOCK, 3 * MEMBER)
            self.assertEqual(pool.write("more", 1, "more"), 0)
        self.assertEqual({member["state"] for member in pool.status()["members"]}, {"fat"})
        pool.verify("all", written, "all")
        for eater in eaters:
            eater.end()
        for node in NODES:
            self.check_state(pool, node, "candidate")
            with on_node(node):
                pool.write(f"again-{node}", 1024, "again")
            self.assertEqual(pool.map(f"again-{node}"), {node: 1024 * BLOCK})
        pool.verify("all", written, "all")

    def test_a_drain_that_no_node_has_memory_for_is_undone(self):
        pool = self.up()
        with on_node(STARVED):
            blocks = 3 * AHEAD // BLOCK
            self.assertEqual(pool.write("drained", blocks, "drained"), blocks)
        eaters = [self.eater(node) for node in NODES if node != STARVED]
        member = pool.member(STARVED)["member"]
        done = homenode("pool", "drain", pool.directory, member)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("no room", done.stderr)
        # What moved stays moved; nothing is lost, and the member takes data as before.
        pool.verify("drained", blocks, "drained")
        self.check_state(pool, STARVED, "candidate")
        self.assertEqual(sum(pool.map("drained").values()), blocks * BLOCK)
        with on_node(STARVED):
            pool.write("home", 1024, "home")
        self.assertEqual(pool.map("home"), {STARVED: 1024 * BLOCK})
        for eater in eaters:
            eater.end()
        for node in NODES:
            self.check_state(pool, node, "candidate")
        done = homenode("pool", "drain", pool.directory, member)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(STARVED, pool.map("drained"))
        pool.verify("drained", blocks, "drained")

    def test_no_pool_comes_up_on_memory_that_is_not_there(self):
        eater = self.eater(STARVED)
        directory = Path("/tmp/refused")
        directory.mkdir()
        for words in ((), ("--size-per-node", "128M")):
            done = homenode("up", "--data=pool", *words, directory)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"node {STARVED}", done.stderr)
            self.assertFalse(os.path.ismount(directory))
        done = homenode("up", "--data=pool", "--node", "0", "--node", "2", directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        with on_node(STARVED):
            (directory / "file").write_bytes(bytes(MIB))
        self.assertEqual(homenode("down", directory).returncode, 0)
        eater.end()

    def test_a_control_group_has_less_than_the_nodes(self):
        groups = Path("/sys/fs/cgroup")
        (groups / "cgroup.subtree_control").write_text("+memory")
        group = groups / "small"
        group.mkdir()
        limit = 224 * MIB
        (group / "memory.max").write_text(str(limit))
        # Only the server belongs to it.
        (group / "cgroup.procs").write_text(str(os.getpid()))
        try:
            pool = Pool(str(MEMBER), "--transport", TRANSPORT)
        finally:
            (groups / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.ExitStack() as stack:
            stack.callback(pool.down)
            self.assertEqual(Path(f"/proc/{pool.pid}/cgroup").read_text().strip(), "0::/small")
            with on_node(STARVED):
                written = pool.write("grouped", 3 * MEMBER // BLOCK, "grouped")
            # What the group allows is used, and the server keeps some for itself: without its text it would hang forever.
            self.assertTrue(limit // 2 < written * BLOCK < limit - 32 * MIB, written * BLOCK)
            self.assertEqual({member["state"] for member in pool.status()["members"]}, {"fat"})
            pool.verify("grouped", written, "grouped")
            (group / "memory.max").write_text("max")
            self.check_state(pool, STARVED, "candidate")
            with on_node(STARVED):
                self.assertEqual(pool.write("free", 1024, "free"), 1024)
            events = (group / "memory.events").read_text().split()
            self.assertEqual(events[events.index("oom_kill") + 1], "0")
        # Until the server's end has left it.
        soon(lambda: "populated 0" in (group / "cgroup.events").read_text(), "the group is empty")
        group.rmdir()


if __name__ == "__main__":
    run_trials()
