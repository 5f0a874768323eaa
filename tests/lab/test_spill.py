"""A node that is full: where its writers go, that it is told, and that they come home again. See trials/spilling.py."""

from trial import TrialTest

# From each node another one is nearest than the way back says: who reads columns for rows goes wrong at every node.
ASYMMETRIC = "10 40 20 30\n20 10 30 40\n30 20 10 40\n30 20 40 10\n"
ROWS = {0: [2, 3, 1], 1: [0, 2, 3], 2: [1, 0, 3], 3: [1, 0, 2]}
# A line of three nodes, and one without CPUs behind the second: of two that are as near it is the lower one.
LINE = "10 20 30 40\n20 10 20 25\n30 20 10 40\n40 25 40 10\n"
LINED = {0: [1, 2, 3], 1: [0, 2, 3], 2: [1, 0, 3]}


class Spill(TrialTest):
    """Its trials on machines whose distances are known."""

    def spills(self, distances: str, orders: dict, *options, transport: str) -> None:
        """Runs them where the firmware tells these distances."""
        file = self.directory / "distances"
        file.write_text(distances)
        self.passes("spilling.py", orders, options=("--distances", file, "--mem", "384M", *options), transport=transport)

    def test_the_row_of_the_asking_node_decides(self):
        self.spills(ASYMMETRIC, ROWS, "--kernel", "6.1", "--cpus-per-node", "1", transport="classic")

    def test_a_line_of_nodes_and_one_of_memory_only_by_rings(self):
        options = ("--kernel", "6.18", "--nodes", 3, "--cpus-per-node", "1", "--memory-only", "256M")
        self.spills(LINE, LINED, *options, transport="uring")
