"""What scenes in a guest are made of: nodes as the kernel tells of them, pools, pinned writers, and where their bytes lie.

A scene is a program of this directory that a guest runs (scene.py runs it): it acts, and tells facts; what they should be is
known to the test on the host. Writers' files are named by what they are filled with, eight bytes that no other file has, not
even one that is gone: so the witness finds each by its content.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import witness

NODES = Path("/sys/devices/system/node")
BINARY, WITNESS = sys.argv[1:3]
ARGUMENTS = sys.argv[3:]


def run(*words, **options) -> str:
    """What a program writes, which has to end well."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def homenode(*words) -> str:
    """What the command under test writes."""
    return run(BINARY, *words)


def topology() -> dict:
    """The machine as the command shows it."""
    return json.loads(homenode("topology", "--json"))


def offer_rings() -> None:
    """Has the kernel offer rings, where it can."""
    switch = Path("/sys/module/fuse/parameters/enable_uring")
    if switch.exists():
        switch.write_text("Y")


def tell(**facts) -> None:
    """Facts for the host: a line, as Python writes them, because nodes are numbers."""
    print(repr(facts), flush=True)


def cpu_list(text: str) -> list[int]:
    """CPUs as the kernel lists them: 1,4-6."""
    parts = [part.partition("-") for part in text.strip().split(",") if part]
    return [cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)]


def node_cpus() -> dict[int, list[int]]:
    """The CPUs of each node that are online."""
    paths = sorted(NODES.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    return {int(path.name[4:]): cpu_list((path / "cpulist").read_text()) for path in paths}


def meminfo(field: str) -> dict[int, int]:
    """A figure of each node, in bytes."""
    texts = {node: (NODES / f"node{node}/meminfo").read_text() for node in node_cpus()}
    return {node: int(re.search(rf" {field}: *(\d+) kB", text)[1]) << 10 for node, text in texts.items()}


def witnessed(pid: int, prefixes: list[str]) -> dict[str, dict[int, int]]:
    """Where the kernel has the pages of a process, by what they hold."""
    return witness.table(run(WITNESS, pid, *prefixes))


def by_node(rows) -> dict[int, int]:
    """Sums of pairs of a node and a figure."""
    sums = {}
    for node, figure in rows:
        sums[node] = sums.get(node, 0) + figure
    return sums


def present(table: dict[str, dict[int, int]]) -> dict[int, int]:
    """Of a witness's table: what is there of each node, whatever it holds."""
    return by_node(pair for nodes in table.values() for pair in nodes.items())


def name_of(task: Path) -> str:
    """Name of a thread, a folder of /proc; nothing when it has ended meanwhile."""
    with contextlib.suppress(OSError):
        return (task / "comm").read_text().rstrip("\n")
    return ""


def settled(read, seconds=10):
    """What is read once it stops changing: populating goes on for a while behind the writers."""
    last, deadline = None, time.monotonic() + seconds
    while (now := read()) != last:
        if time.monotonic() > deadline:
            sys.exit(f"not settled in {seconds} s: {last}, {now}")
        last = now
        time.sleep(0.2)
    return last


def fio(directory, writers: dict[str, int], block="1m", fallocate="native", mib=16) -> None:
    """Fills a file for each writer, at once, from its CPU. What fio does before, it does on the first writer's CPU."""
    words = ["taskset", "-c", next(iter(writers.values())), "fio", "--output=/dev/null", f"--directory={directory}"]
    words += ["--ioengine=psync", "--rw=write", f"--bs={block}", f"--size={mib}m", f"--fallocate={fallocate}"]
    words.append("--scramble_buffers=0")
    for prefix, cpu in writers.items():
        words += [f"--name={prefix}", f"--filename={prefix}", f"--cpus_allowed={cpu}", f'--buffer_pattern="{prefix}"']
    run(*words)


def wait(until, what: str, seconds=30) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + seconds
    while not until():
        if time.monotonic() > deadline:
            sys.exit(f"not in {seconds} s: {what}")
        time.sleep(0.1)


class Pool:
    """A pool and its mount, while the block runs. What it leaves behind is in `left` then."""

    def __init__(self, *options):
        self.directory = Path("/tmp/pool")
        self.directory.mkdir(exist_ok=True)
        self.options = options
        self.left = {}

    def __enter__(self):
        self.shmem_before = settled(lambda: meminfo("Shmem"))
        homenode("up", "--data=pool", *self.options, self.directory)
        self.pid = self.status()["pid"]
        return self

    def __exit__(self, *_):
        homenode("down", self.directory)
        self.left = {"shmem": self.shmem(), "server": Path(f"/proc/{self.pid}").exists(), "status": homenode("status").strip()}

    def status(self) -> dict:
        """What the filesystem tells of itself."""
        return json.loads(homenode("status", "--json", self.directory))["pools"][0]

    def shmem(self) -> dict[int, int]:
        """What the kernel has of each node as shared memory since before the pool was there."""
        return settled(lambda: {node: size - self.shmem_before[node] for node, size in meminfo("Shmem").items()})

    def map(self, name: str) -> dict[int, int]:
        """Where a file lies, by the command."""
        nodes = json.loads(homenode("file", "map", "--json", self.directory / name))["nodes"]
        return {on["node"]: on["bytes"] for on in nodes}

    def written(self, prefixes, before: dict, directory=".") -> dict:
        """Where files lie that were written since a status, as facts to tell."""
        populated = settled(lambda: by_node((member["home"], member["populated_bytes"]) for member in self.status()["members"]))
        after, found = self.status(), witnessed(self.pid, prefixes)
        earlier = {(cell["from"], cell["home"]): cell["written_bytes"] for cell in before["accesses"]}
        cells = {(cell["from"], cell["home"]): cell["written_bytes"] for cell in after["accesses"]}
        used = [
            by_node((member["home"], sign * member["used_bytes"]) for member in status["members"])
            for status, sign in ((after, 1), (before, -1))
        ]
        return {
            "map": {prefix: self.map(Path(directory) / prefix) for prefix in prefixes},
            "witness": {prefix: found.get(prefix, {}) for prefix in prefixes},
            "accesses": {cell: count - earlier.get(cell, 0) for cell, count in cells.items() if count > earlier.get(cell, 0)},
            "used": by_node(pair for figures in used for pair in figures.items()),
            "populated": populated,
            "present": present(found),
            "shmem": self.shmem(),
        }


def contents(path: Path) -> bytes:
    """What the server has of a file, whatever the kernel keeps of it."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()


def remove(directory: Path, prefixes) -> None:
    """Removes writers' files."""
    for prefix in prefixes:
        os.unlink(directory / prefix)
