"""Tasks whose buffers are on other nodes: they go to them, or a file comes to them. See trials/tasks.py.

The emulator's counts are here: the share of accesses that are local, of the whole machine, behind its model of caches.
"""

import json

from trial import TrialTest

# In percent: of a machine whose tasks read their own node's buffers, and at most of one whose tasks do not: the scheduler moves some there.
LOCAL_MIN, WRONG_MAX = 95, 80


class Tasks(TrialTest):
    """Its trials, counted."""

    def test_on_four_nodes(self):
        self.measure(("--nodes", 4))

    def test_on_eight_nodes(self):
        self.measure(("--nodes", 8, "--cpus-per-node", 1, "--mem", "384M"))

    def test_on_eight_nodes_of_two_cpus(self):
        self.measure(("--nodes", 8, "--mem", "384M"))

    def measure(self, machine: tuple) -> None:
        """Runs the trials on a machine, remote accesses of which take 100 ns longer, by the emulator's model."""
        file = self.directory / "counts.json"
        nvme = ("--nvme", "node=0,queues=8,size=192M", "--nvme", "node=1,queues=8,size=256M")
        model = ("--count", file, "--delay-ns", 100)
        options = (*machine, "--kernel", "6.18", "--module", "ext4", *model, *nvme)
        told = self.passes("tasks.py", options=options, transport="uring", seconds=5400)
        lines = [json.loads(line) for line in told.splitlines() if line.startswith('{"')]
        names = [line["interval"] for line in lines if "interval" in line]
        intervals = json.loads(file.read_text())["intervals"]
        self.assertEqual(len(intervals), len(names))
        shares = {name: self.local_percent(rows) for name, rows in zip(names, intervals, strict=True)}
        print(*lines, shares, sep="\n")
        for wrong in ("ext4", "pool", "cached"):
            self.assertLess(shares[wrong], WRONG_MAX, shares)
        for right in ("placed", "cached-placed", "kernel", "come"):
            self.assertGreaterEqual(shares[right], LOCAL_MIN, shares)

    @staticmethod
    def local_percent(rows: list[dict]) -> float:
        """The local share of all accesses to memory that missed the caches."""
        sums = {True: 0, False: 0}
        for row in rows:
            if row["home"] is not None:
                sums[row["home"] == row["cpu_node"]] += row["missed_loads"] + row["missed_stores"]
        return 100 * sums[True] / sum(sums.values())
