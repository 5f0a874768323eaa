"""Nodes and control groups without memory to give: nobody is killed for it, and writers go elsewhere. See trials/starving.py."""

from trial import TrialTest

THREE = ("--nodes", 3, "--cpus-per-node", "1", "--mem", "640M,512M,512M")


class Starving(TrialTest):
    """Its trials, with another way to eat memory on each kernel."""

    def test_anonymous_memory(self):
        self.passes("starving.py", "anonymous", options=(*THREE, "--kernel", "6.1"))

    def test_files_in_memory_and_rings(self):
        self.passes("starving.py", "tmpfs", options=(*THREE, "--kernel", "6.18"), transport="uring")
