"""Where files of the kernel lie on a machine of four nodes. See trials/kernel_files.py."""

from trial import TrialTest


class KernelFiles(TrialTest):
    """Its trials, by each transport; older kernels pass nothing through."""

    def test_by_rings(self):
        self.passes("kernel_files.py", options=("--kernel", "6.18", "--mem", "512M"), transport="uring")

    def test_by_the_classic_transport(self):
        self.passes("kernel_files.py", options=("--kernel", "6.18", "--mem", "512M"))
