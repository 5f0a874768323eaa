"""`homenode steer` on a machine of four nodes. See trials/steer.py."""

from trial import TrialTest


class Steer(TrialTest):
    """Its trials; policies need Linux 6.6."""

    def test_on_linux_6_18(self):
        self.passes("steer.py", options=("--kernel", "6.18"))

    def test_on_linux_6_1(self):
        names = ("test_the_mover", "test_a_file_that_is_written_moves", "test_it_ends_when_the_tmpfs_was_unmounted")
        self.passes("steer.py", *(f"Steer.{name}" for name in names), options=("--kernel", "6.1"))
