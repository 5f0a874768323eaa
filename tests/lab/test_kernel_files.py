"""Where files of the kernel lie on a machine of four nodes. See trials/kernel_files.py."""

from trial import TrialTest


class KernelFiles(TrialTest):
    """Its trials, by each transport; older kernels pass nothing through."""

    def trials(self, kernel: str, transport: str) -> None:
        options = ("--kernel", kernel, "--nvme", "node=0,size=700M")
        # Beside the command, where that looks for it.
        self.program("libhomenode.so", "cargo build --release -p homenode-client")
        self.passes("kernel_files.py", options=options, transport=transport)

    def test_by_rings(self):
        self.trials("6.18", "uring")

    def test_by_the_classic_transport(self):
        self.trials("6.18", "classic")

    def test_on_linux_6_12(self):
        self.trials("6.12", "classic")
