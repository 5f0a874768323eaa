"""A scene: writers on all nodes, the first of which spills, and readers on the next node each; recorded, and witnessed.

Its argument: MiB of each node's member.
"""

import os
import subprocess
from pathlib import Path

import inside

TRACE = Path("/tmp/trace")


def main() -> None:
    """Writes one after another, so that members fill in the same order in each run."""
    inside.offer_rings()
    member = int(inside.ARGUMENTS[0])
    cpus = {node: cpus[0] for node, cpus in inside.node_cpus().items()}
    prefixes = {node: f"simnode{node}" for node in cpus}
    with inside.Pool("--size-per-node", f"{member}M", "--transport", "uring") as pool:
        before = pool.status()
        words = [inside.BINARY, "simulate", "record", pool.directory, TRACE, "--seconds", "25"]
        recorder = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, text=True)
        inside.wait(lambda: TRACE.exists() and TRACE.stat().st_size > 0, "the trace is begun")
        for node, prefix in prefixes.items():
            # The first needs more than its node has.
            mib = member * 3 // 2 if node == 0 else member // 2
            inside.fio(pool.directory, {prefix: cpus[node]}, "64k", "none", mib)
        for node, prefix in prefixes.items():
            reader = cpus[(node + 1) % len(cpus)]
            for _ in range(2):
                inside.run("taskset", "-c", reader, "dd", f"if={pool.directory / prefix}", "of=/dev/null", "bs=64k", "iflag=direct", "status=none")
        told = recorder.communicate()[0]
        inodes = {prefix: os.stat(pool.directory / prefix).st_ino for prefix in prefixes.values()}
        facts = pool.written(list(prefixes.values()), before)
        inside.tell(trace=TRACE.read_text(), told=told, inodes=inodes, witness=facts["witness"])


main()
