"""A scene: writers on all nodes, the first of which spills, and readers on the next node each; recorded, and witnessed.

At last the first node is given 2 % back and stays above the share from which others take its writers' bytes: a file that fits there
goes elsewhere, where tmpfs would leave it. The first node reads it often.

Its argument: MiB of each node's member.
"""

import mmap
import os
import signal
import subprocess
from pathlib import Path

import inside

TRACE = Path("/tmp/trace")
BLOCK = 64 << 10
# Blocks of the file that is removed, and of the one that could have its place.
REMOVED, AGAIN = 8, 7
READS = 100


def fill(path: Path, prefix: str, blocks: int) -> None:
    """Writes a file that holds its prefix, in blocks."""
    with open(path, "wb", buffering=0) as file:
        for _ in range(blocks):
            file.write(prefix.encode() * (BLOCK // len(prefix)))


def read_often(path: Path) -> None:
    """Reads all blocks of a file again and again, past the page cache."""
    file, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, BLOCK)
    for _ in range(READS):
        for block in range(AGAIN):
            os.preadv(file, [buffer], block * BLOCK)
    os.close(file)


def main() -> None:
    """Writes one after another, so that members fill in the same order in each run."""
    inside.offer_rings()
    member = int(inside.ARGUMENTS[0])
    cpus = {node: cpus[0] for node, cpus in inside.node_cpus().items()}
    prefixes = {node: f"simnode{node}" for node in cpus}
    with inside.Pool("--size-per-node", f"{member}M", "--transport", "uring") as pool:
        before = pool.status()
        words = [inside.BINARY, "simulate", "record", pool.directory, TRACE, "--seconds", "3600"]
        recorder = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, text=True)
        inside.wait(lambda: TRACE.exists() and TRACE.stat().st_size > 0, "the trace is begun")
        os.sched_setaffinity(0, {cpus[0]})
        fill(pool.directory / "simsmall", "simsmall", REMOVED)
        for node, prefix in prefixes.items():
            # The first needs more than its node has.
            mib = member * 3 // 2 if node == 0 else member // 2
            inside.fio(pool.directory, {prefix: cpus[node]}, "64k", "none", mib)
        for node, prefix in prefixes.items():
            reader = cpus[(node + 1) % len(cpus)]
            for _ in range(2):
                inside.run("taskset", "-c", reader, "dd", f"if={pool.directory / prefix}", "of=/dev/null", "bs=64k", "iflag=direct", "status=none")
        used = pool.status()["used_bytes"]
        os.unlink(pool.directory / "simsmall")
        inside.wait(lambda: pool.status()["used_bytes"] < used, "the removed file's blocks are free")
        prefixes["again"] = "simagain"
        fill(pool.directory / "simagain", "simagain", AGAIN)
        read_often(pool.directory / "simagain")
        # Then, and at no time before: a busy machine may take minutes.
        recorder.send_signal(signal.SIGINT)
        told = recorder.communicate()[0]
        inodes = {prefix: os.stat(pool.directory / prefix).st_ino for prefix in prefixes.values()}
        facts = pool.written(list(prefixes.values()), before)
        inside.tell(trace=TRACE.read_text(), told=told, inodes=inodes, witness=facts["witness"])


main()
