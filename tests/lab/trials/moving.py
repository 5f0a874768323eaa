"""Files are bound, moved, and driven off members, while writers on all nodes go on. Where they lie then tells the kernel; what they
hold tell the writers. Freed blocks keep their bytes, so writers tag them anew before the kernel is asked.
"""

import contextlib
import os
import signal
import subprocess
import time
import unittest
from pathlib import Path

from inside import BINARY
from pool import BLOCK, MIB, TRANSPORT, Pool, homenode, memory, on_node, run_trials, soon, start

MEMBER = 48 * MIB
NODES = range(4)
FILE = 6 * MIB


class Writers:
    """A writer.py on each node, w0 and so on."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self.generation = 0
        self.processes = [start("writer.py", str(pool.directory / self.name(node)), node, FILE // BLOCK) for node in NODES]
        self.tag()

    @staticmethod
    def name(node: int) -> str:
        """The file of a writer."""
        return f"w{node}"

    def tag(self) -> list[str]:
        """All of their blocks begin with a new tag each, which are given."""
        self.generation += 1
        tags = [f"{self.name(node)}.{self.generation}" for node in NODES]
        for process, tag in zip(self.processes, tags, strict=True):
            process.stdin.write(f"{tag}\n")
            process.stdin.flush()
        for process, tag in zip(self.processes, tags, strict=True):
            told = process.stdout.readline()
            if told != f"tagged {tag}\n":
                raise AssertionError(f"the writer of {tag} told {told!r} and ended with {process.wait()}")
        return tags

    def wrote(self) -> list[int]:
        """How many blocks each has written so far."""
        for process in self.processes:
            process.stdin.write("?\n")
            process.stdin.flush()
        return [int(process.stdout.readline().removeprefix("wrote ")) for process in self.processes]

    @contextlib.contextmanager
    def at_work(self, node: int):
        """A block of this writer's file has to be written meanwhile, or nothing was shown."""
        before = self.wrote()[node]
        yield
        if self.wrote()[node] <= before:
            raise AssertionError(f"{self.name(node)} was not written to meanwhile")

    def end(self) -> None:
        """They have to find all that they wrote."""
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            told = process.stdout.readline().split()
            process.stdout.close()
            if process.wait() or told[:1] != ["verified"] or int(told[1]) <= self.generation * FILE // BLOCK:
                raise AssertionError(f"a writer told {told} and ended with {process.returncode}")


class Moving(unittest.TestCase):
    """A pool over four nodes."""

    def setUp(self):
        self.pool = Pool(str(MEMBER), "--transport", TRANSPORT, "--per-node")
        self.addCleanup(self.pool.down)

    def tearDown(self):
        status = self.pool.status()
        self.assertEqual(status["fuse"]["panics"], 0)
        # The books agree with each other at rest.
        self.assertEqual(sum(member["used_bytes"] for member in status["members"]), status["used_bytes"])

    def done(self, *words) -> str:
        """A command that has to do what it is told."""
        done = homenode(*words)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return done.stdout

    def refused(self, *words) -> str:
        """One that has to say why not."""
        done = homenode(*words)
        self.assertEqual((done.returncode, done.stdout), (1, ""), words)
        return done.stderr

    def writers(self) -> Writers:
        """They are ended with the test at the latest."""
        writers = Writers(self.pool)
        for process in writers.processes:
            self.addCleanup(process.kill)
        return writers

    def drained(self, node: int) -> int:
        """The member on a node, after it was drained."""
        member = self.pool.member(node)["member"]
        self.assertIn(f"drained member {member}", self.done("pool", "drain", self.pool.directory, member))
        return member

    def policy(self, name: str, value: str) -> None:
        """As a person would set it."""
        done = subprocess.run(
            ["setfattr", "-n", "user.homenode.policy", "-v", value, self.pool.directory / name],
            capture_output=True, text=True, check=False,
        )
        if done.returncode:
            raise OSError(done.stderr)

    def placed(self, name: str, asking: int, size: int = 4 * MIB) -> dict[int, int]:
        """Where a new file lies that a node's CPU writes: the map's word, and the kernel's."""
        tag = name.replace("/", "-")
        with on_node(asking):
            self.assertEqual(self.pool.write(name, size // BLOCK, tag), size // BLOCK)
        homes = self.pool.map(name)
        self.assertEqual(self.pool.witness(f"{tag}:"), {f"{tag}:": homes})
        return homes

    def test_policies(self):
        root = self.pool.directory
        with self.subTest("of a file"):
            for name, value, expected in (
                ("bound", "node:2", {2: 4 * MIB}),
                ("local", "local", {1: 4 * MIB}),
                ("interleaved", "interleave", dict.fromkeys(NODES, 2 * MIB)),
            ):
                (root / name).touch()
                self.policy(name, value)
                self.assertEqual(self.placed(name, 1, sum(expected.values())), expected, name)
        with self.subTest("of a directory"):
            for name, value, expected in (("near", "node:3", {3: 4 * MIB}), ("wide", "interleave", dict.fromkeys(NODES, 2 * MIB))):
                (root / name).mkdir()
                self.policy(name, value)
                (root / name / "below").mkdir()
                self.assertEqual(os.getxattr(root / name / "below", "user.homenode.policy").decode(), value)
                self.assertEqual(self.placed(f"{name}/below/file", 0, sum(expected.values())), expected, name)
            self.policy("near/below", "local")
            self.assertEqual(self.placed("near/below/other", 0), {0: 4 * MIB})
        with self.subTest("of the directories that --per-node makes"):
            for node in NODES:
                self.assertEqual(self.placed(f"node{node}/file", (node + 1) % 4), {node: 4 * MIB})
        with self.subTest("that changes"):
            self.policy("bound", "node:0")
            with on_node(1):
                self.pool.write("bound", 1024, "behind", at=1024)
                self.pool.write("bound", 512, "over")
            self.assertEqual(self.pool.map("bound"), {0: 4 * MIB, 2: 4 * MIB})
            subprocess.run(["setfattr", "-x", "user.homenode.policy", root / "bound"], check=True)
            with on_node(1):
                self.pool.write("bound", 256, "last", at=2048)
            self.assertEqual(self.pool.map("bound"), {0: 4 * MIB, 1: MIB, 2: 4 * MIB})
        with self.subTest("that cannot be"):
            for value in ("node:9", "node:", "nearest", "node:-1", ""):
                self.assertRaises(OSError, self.policy, "local", value)
            self.assertEqual(os.getxattr(root / "local", "user.homenode.policy"), b"local")
        # A bound file is no spill: its writers asked for that node.
        self.assertEqual(self.pool.spills(), {})

    def test_files_go_round_under_their_writers(self):
        writers = self.writers()
        for turn in (1, 2, 3):
            for node in NODES:
                name, to = writers.name(node), (node + turn) % 4
                with writers.at_work(node):
                    said = self.done("file", "move", self.pool.directory / name, "--node", to)
                self.assertIn("moved 6.00 MiB of ", said)
                self.assertEqual(self.pool.map(name), {to: FILE})
            tags = writers.tag()
            self.assertEqual(self.pool.witness(*tags), {tag: {(node + turn) % 4: FILE} for node, tag in enumerate(tags)})
        for node in NODES:
            self.refused("file", "move", self.pool.directory / writers.name(node), "--node", 7)
        writers.end()

    def test_members_go_and_come_under_writers(self):
        writers = self.writers()
        for node in NODES:
            with self.subTest(node=node):
                before = memory(node, "Shmem")
                with writers.at_work(node):
                    member = self.drained(node)
                self.assertEqual(self.pool.member(node)["state"], "drained")
                self.assertEqual(self.pool.member(node)["used_bytes"], 0)
                for other in NODES:
                    self.assertNotIn(node, self.pool.map(writers.name(other)))
                for tag, homes in self.pool.witness(*writers.tag()).items():
                    self.assertEqual(sum(homes.values()), FILE)
                    self.assertNotIn(node, homes, tag)
                self.done("pool", "remove", self.pool.directory, member)
                self.assertNotIn(node, {member["home"] for member in self.pool.status()["members"]})
                # Not even what was freed before is left.
                self.assertNotIn(node, self.pool.witness("w")["w"])
                self.assertLessEqual(memory(node, "Shmem"), before - FILE)
                self.assertIn(f"on node {node}", self.done("pool", "add", self.pool.directory, "--node", node, "--size", MEMBER))
                self.assertEqual(self.placed(f"new-{node}", node), {node: 4 * MIB})
                self.done("file", "move", self.pool.directory / writers.name(node), "--node", node)
        tags = writers.tag()
        self.assertEqual(self.pool.witness(*tags), {tag: {node: FILE} for node, tag in enumerate(tags)})
        writers.end()

    def test_a_drain_that_cannot_fit_changes_nothing(self):
        names = []
        for node in NODES:
            with on_node(node):
                for number in range(10):
                    names.append(f"full-{node}-{number}")
                    self.assertEqual(self.pool.write(names[-1], 1024, names[-1]), 1024)
        maps = {name: self.pool.map(name) for name in names}
        before = self.pool.status()["members"]
        self.assertIn("no room", self.refused("pool", "drain", self.pool.directory, 1))
        after = self.pool.status()["members"]
        for field in ("member", "home", "state", "used_bytes", "capacity_bytes"):
            self.assertEqual([member[field] for member in after], [member[field] for member in before])
        self.assertEqual({name: self.pool.map(name) for name in names}, maps)
        self.assertEqual(self.placed("next", 1), {1: 4 * MIB})
        for name in names:
            self.pool.verify(name, 1024, name)
        self.assertIn("drain it first", self.refused("pool", "remove", self.pool.directory, 1))

    def test_a_command_that_is_killed_leaves_no_half_thing(self):
        writers = self.writers()
        blocks = 24 * MIB // BLOCK
        with on_node(1):
            self.pool.write("much", blocks, "much")
        file, statuses = self.pool.directory / "much", []
        for number, (after_s, signal_number) in enumerate((s, n) for s in (0, 0.05, 0.2) for n in (signal.SIGINT, signal.SIGKILL)):
            with self.subTest(after_s=after_s, signal=signal_number):
                statuses.append(self.killed(after_s, signal_number, "file", "move", file, "--node", number % 2 * 2))
                self.assertEqual(sum(self.pool.map("much").values()), 24 * MIB)
                self.pool.verify("much", blocks, "much")
        self.done("file", "move", file, "--node", 3)
        self.assertEqual(self.pool.map("much"), {3: 24 * MIB})
        for after_s, signal_number in ((0, signal.SIGINT), (0.05, signal.SIGKILL), (0.05, signal.SIGINT)):
            with self.subTest("drain", after_s=after_s, signal=signal_number):
                member = self.pool.member(3)["member"]
                statuses.append(self.killed(after_s, signal_number, "pool", "drain", self.pool.directory, member))
                # It goes on without anyone who waits for it; who asks again waits for both.
                self.drained(3)
                self.assertNotIn(3, self.pool.map("much"))
                self.done("pool", "remove", self.pool.directory, member)
                self.assertNotIn(3, self.pool.witness("w")["w"])
                self.pool.verify("much", blocks, "much")
                self.done("pool", "add", self.pool.directory, "--node", 3, "--size", MEMBER)
                self.done("file", "move", file, "--node", 3)
        # Most of them were killed while they waited for the server, by either.
        self.assertIn(130, statuses)
        self.assertIn(-signal.SIGKILL, statuses)
        writers.end()
        self.pool.verify("much", blocks, "much")

    def killed(self, after_s: float, signal_number: int, *words) -> int:
        """How a command ended that was sent a signal some time after it was about to ask the server."""
        process = subprocess.Popen([BINARY, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def listens():
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
            return process.poll() is not None or int(caught, 16) >> (signal.SIGINT - 1) & 1

        soon(listens, f"{words} listens for Ctrl-C")
        time.sleep(after_s)
        process.send_signal(signal_number)
        said = process.communicate()[1]
        if process.returncode == 130:
            self.assertIn("the server finishes the request", said)
        self.assertIn(process.returncode, (0, 130, -signal.SIGKILL), said)
        return process.returncode


if __name__ == "__main__":
    run_trials()
