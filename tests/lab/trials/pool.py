"""What trials in a guest share: a mounted pool, its files, and programs beside it."""

import contextlib
import errno
import faulthandler
import json
import mmap
import os
import re
import subprocess
import sys
import time
import unittest
from pathlib import Path

import inside
from inside import ARGUMENTS, BINARY

WORDS = [json.loads(word) for word in ARGUMENTS]
TRANSPORT = os.environ["TRANSPORT"]
BLOCK = 4096
MIB = 1 << 20
# What the kernel, the server or a thread of it does a moment later than it was asked to. All that is emulated is slow.
SOON_S = 20
# A command that takes longer hangs.
COMMAND_S = 300


def run_trials(*names: str) -> None:
    """The tests of a program of this directory, or those of these names. One that hangs tells where, before the guest is ended."""
    faulthandler.dump_traceback_later(int(os.environ["TRIAL_SECONDS"]), exit=True)
    unittest.main(argv=[*sys.argv[:1], *names], verbosity=2)


def start(program: str, *words, through: tuple = ()) -> subprocess.Popen:
    """A program of this directory, to talk to. Started by the words of `through`, if there are any: what it says on standard error is kept then."""
    path = Path(__file__).with_name(program)
    return subprocess.Popen(
        [*through, sys.executable, "-B", path, BINARY, inside.WITNESS, *map(json.dumps, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE if through else None, text=True,
    )


def homenode(*words) -> subprocess.CompletedProcess:
    """The command, to its end, whatever that is. Of one that has none it is told where it waits, and where servers do."""
    words = [BINARY, *map(str, words)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as command:
        try:
            told = command.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            tell_waits()
            command.kill()
            raise
    return subprocess.CompletedProcess(words, command.returncode, *told)


def tell_waits() -> None:
    """Tells where the threads of all processes of the command wait in the kernel."""
    for task in Path("/proc").glob("[0-9]*/task/*"):
        with contextlib.suppress(OSError):
            if (task / "exe").samefile(BINARY):
                print(task, inside.name_of(task), (task / "stack").read_text(), file=sys.stderr)


class Commanding(unittest.TestCase):
    """Tests that give commands."""

    def slow(self, pid: int, disk: Path) -> None:
        """Until the test ends, threads of a server that serve a disk wait a second before each of their calls of the kernel."""
        queue = f"ublk{disk.name.removeprefix('ublkb')}q"
        threads = [task.name for task in Path(f"/proc/{pid}/task").iterdir() if inside.name_of(task).startswith(queue)]
        words = ["strace", *(word for thread in threads for word in ("-p", thread)), "-o", "/dev/null"]
        words += ["-e", "trace=io_uring_enter", "-e", "inject=io_uring_enter:delay_enter=1000000"]
        slow = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(slow.wait)
        self.addCleanup(slow.kill)
        time.sleep(1)

    def done(self, *words) -> str:
        """A command that has to do what it is told."""
        done = homenode(*words)
        self.assertEqual(done.returncode, 0, (words, done.stderr))
        return done.stdout


def memory(node: int, field: str) -> int:
    """Bytes of a line of the node's meminfo: the kernel's word."""
    return inside.meminfo(re.escape(field))[node]


@contextlib.contextmanager
def on_node(node: int):
    """This thread on a node's CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, inside.node_cpus()[node])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def soon(condition, what: str):
    """Waits until the condition holds, and gives what it gave."""
    deadline = time.monotonic() + SOON_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not after {SOON_S} s: {what}")
        time.sleep(0.05)
    return found


def stamped(tag: str, first: int, count: int) -> bytes:
    """Blocks that begin with the tag, and of which each is like no other."""
    return b"".join((f"{tag}:{block:08x};".encode() * BLOCK)[:BLOCK] for block in range(first, first + count))


class Pool:
    """A pool with a member on each node, mounted. What is written and read passes the page cache."""

    def __init__(self, size: str, *options: str, directory: str = "/tmp/pool", data: str = "pool"):
        self.directory = Path(directory)
        self.directory.mkdir(exist_ok=True)
        done = homenode("up", "--data", data, "--size-per-node", size, *options, self.directory)
        if done.returncode:
            raise AssertionError(f"up: {done.stderr}")
        self.pid = self.status()["pid"]

    def down(self) -> None:
        """Ends it, and with it its files."""
        done = homenode("down", self.directory)
        if done.returncode:
            raise AssertionError(f"down: {done.stderr}")
        # Its memory goes with it, a moment later.
        soon(lambda: not Path(f"/proc/{self.pid}").exists(), "the server is gone")

    def status(self) -> dict:
        """What the pool tells of itself."""
        done = homenode("status", "--json", self.directory)
        if done.returncode:
            raise AssertionError(f"status: {done.stderr}")
        return json.loads(done.stdout)["pools"][0]

    def member(self, node: int) -> dict:
        """What it tells of the first member on a node."""
        return next(member for member in self.status()["members"] if member["home"] == node)

    def spills(self) -> dict[tuple[int, int], int]:
        """Bytes by asking node and home."""
        return {(spill["from"], spill["home"]): spill["bytes"] for spill in self.status()["spills"]}

    def open(self, name: str, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        """A descriptor past the page cache."""
        return os.open(self.directory / name, flags | os.O_DIRECT, 0o600)

    def write(self, name: str, blocks: int, tag: str, at: int = 0) -> int:
        """Writes stamped blocks, a MiB at a time, until the pool is full; gives how many were."""
        written = 0
        # Whole pages: the kernel makes more requests of others.
        buffer = mmap.mmap(-1, MIB)
        file = self.open(name)
        try:
            while written < blocks:
                count = min(blocks - written, MIB // BLOCK)
                try:
                    buffer[: count * BLOCK] = stamped(tag, at + written, count)
                    got = os.pwrite(file, memoryview(buffer)[: count * BLOCK], (at + written) * BLOCK)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break
                if got % BLOCK:
                    raise AssertionError(f"{got} bytes were written of {name}")
                written += got // BLOCK
        finally:
            os.close(file)
        return written

    def take_grants_back(self) -> None:
        """Asks for all that is free: the pool looks for it in what the CPUs were granted. More would be refused at once. Returns when it is free again."""
        file = self.open("all-there-is")
        free = os.fstatvfs(file)
        try:
            os.posix_fallocate(file, 0, free.f_bfree * free.f_frsize)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(file)
            os.unlink(self.directory / "all-there-is")
        soon(lambda: os.statvfs(self.directory).f_bfree >= free.f_bfree, "what was asked for is free again")

    def verify(self, name: str, blocks: int, tag: str) -> None:
        """Reads what was written, and whether it is that."""
        file = self.open(name, os.O_RDONLY)
        try:
            for first in range(0, blocks, MIB // BLOCK):
                count = min(blocks - first, MIB // BLOCK)
                if os.pread(file, count * BLOCK, first * BLOCK) != stamped(tag, first, count):
                    raise AssertionError(f"{name} has other bytes in its blocks from {first} on")
        finally:
            os.close(file)

    def map(self, name: str) -> dict[int, int]:
        """Bytes of a file on each node, as `file map` tells them."""
        done = homenode("file", "map", "--json", self.directory / name)
        if done.returncode:
            raise AssertionError(f"file map: {done.stderr}")
        return {on["node"]: on["bytes"] for on in json.loads(done.stdout)["nodes"]}

    def witness(self, *prefixes: str) -> dict[str, dict[int, int]]:
        """Bytes of the server's pages that begin with each prefix, by node: the kernel's word. Freed blocks keep theirs."""
        told = inside.witnessed(self.pid, list(prefixes))
        return {prefix: told.get(prefix, {}) for prefix in prefixes}


class Tank(Pool):
    """A durable pool on a disk, with a cache of so many bytes, mounted."""

    def __init__(self, disk: Path, cache: int):
        self.directory, self.cache = Path("/tmp/tank"), cache
        self.directory.mkdir(exist_ok=True)
        inside.run(BINARY, "pool", "create", "--force", "tank", disk)
        self.up()

    def up(self) -> None:
        """Mounts it, the first time or anew."""
        inside.run(BINARY, "up", "--transport", TRANSPORT, "--cache", self.cache, "tank", self.directory)
        self.pid = self.status()["pid"]
