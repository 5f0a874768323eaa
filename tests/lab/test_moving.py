"""Files and members on the move, under writers, by the kernel's books. See trials/moving.py."""

from trial import TrialTest


class Moving(TrialTest):
    """Its trials, on each kernel."""

    def test_by_the_classic_transport(self):
        self.passes("moving.py", options=("--kernel", "6.1", "--mem", "384M"))

    def test_by_rings(self):
        self.passes("moving.py", options=("--kernel", "6.18", "--mem", "384M"), transport="uring")
