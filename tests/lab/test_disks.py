"""Disks at home on two nodes, driven by io_uring: verified, and completed where they were submitted. See trials/disks.py."""

from trial import TrialTest

MACHINE = ("--nvme", "node=1,queues=8,size=64M", "--nvme", "node=3,queues=8,size=64M")


class Disks(TrialTest):
    """Its trials, on each kernel."""

    def trials(self, kernel: str) -> None:
        """With the program that drives them."""
        program = self.program("examples/disks", "cargo build --release -p homenode --example disks")
        told = self.passes("disks.py", str(program), options=(*MACHINE, "--kernel", kernel))
        # The numbers of docs/claims.md.
        print(*(line for line in told.splitlines() if line.startswith("nvme")), sep="\n")

    def test_on_6_1(self):
        self.trials("6.1")

    def test_on_6_18(self):
        self.trials("6.18")
