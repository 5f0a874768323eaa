"""Block devices of durable pools outlive their server. See trials/lasting.py.

HOMENODE_LAB_KILLS is how often it is killed under load.
"""

import os

from trial import TrialTest

MACHINE = ("--nodes", "2", "--cpus-per-node", "2", "--mem", "768M", "--module", "ublk_drv", "--module", "ext4")
# Of 6.12, what ext4's checksums need and the kernel cannot load by itself here.
KERNELS = {"6.18": (), "6.12": ("--module", "crc32c_generic")}


class Lasting(TrialTest):
    """The trials of trials/lasting.py."""

    def trials(self, kernel: str, name: str, *words, transport: str = "classic") -> None:
        """Those of one class of it, on a kernel."""
        print(self.passes("lasting.py", name, *words, options=("--kernel", kernel, *MACHINE, *KERNELS[kernel]), transport=transport), end="")

    def test_nobody_notices_that_the_server_is_killed(self):
        self.trials("6.18", "Killed", os.environ.get("HOMENODE_LAB_KILLS", "10"))

    def test_nobody_has_to_wait_for_ever(self):
        self.trials("6.18", "Ends", transport="uring")

    def test_no_device_goes_on_without_some_of_its_writes(self):
        self.trials("6.18", "Disks")
        self.trials("6.18", "Copied")

    def test_on_the_older_driver(self):
        self.trials("6.12", "Killed", "3")
        for name in ("Ends", "Disks", "Copied"):
            self.trials("6.12", name)
