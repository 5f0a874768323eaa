"""A cached pool on a disk that the device mapper makes slow, faulty, or takes away, by each transport. See trials/faulty.py."""

from trial import TrialTest


class Faulty(TrialTest):
    """Its trials."""

    def test_by_the_classic_transport(self):
        self.served_by("classic")

    def test_by_rings(self):
        self.served_by("uring")

    def served_by(self, transport: str) -> None:
        modules = [word for name in ("dm-flakey", "dm-delay") for word in ("--module", name)]
        machine = ("--nodes", 2, "--cpus-per-node", 1, "--nvme", "node=0,size=256M", *modules, "--kernel", "6.18")
        print(self.passes("faulty.py", options=machine, transport=transport), end="")
