"""Core affinity: what is on the wrong node is put right, nothing that is others' is touched, and all is put back. See
trials/affinity.py.
"""

from homenode_lab import cache
from trial import TrialTest

MACHINE = ("--net", "node=1,queues=4", "--source", "--nvme", "node=1,queues=8", "--nvme", "node=3,queues=8")


class Affinity(TrialTest):
    """Its trials, on each kernel."""

    def trials(self, kernel: str) -> None:
        """With the load's program and irqbalance, where the guest sees them."""
        bench = self.program("homenode-bench", "cargo build --release -p homenode-bench")
        irqbalance = cache.tool("irqbalance")
        libraries = cache.tool_environment(irqbalance).get("LD_LIBRARY_PATH", "")
        words = (str(bench), str(irqbalance), libraries)
        told = self.passes("affinity.py", *words, options=(*MACHINE, "--kernel", kernel))
        # The numbers of docs/claims.md.
        print(*(line for line in told.splitlines() if "_right_percent" in line), sep="\n")

    def test_on_6_1(self):
        self.trials("6.1")

    def test_on_6_18(self):
        self.trials("6.18")
