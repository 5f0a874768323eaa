"""The benches that boot guests, small: that they work, and that their shares are in the order they have to be."""

import json
import subprocess

from scene import built
from tests.support import LAB, LabTest

ENDS = ("bytes", "completions-home", "modelled")


class Bench(LabTest):
    """Each bench, in guests of its own."""

    def rows(self, *words) -> dict[str, dict]:
        """What a bench finds, by case."""
        program = built("homenode-bench")
        if program is None:
            self.skipTest("SKIPPED: there is no homenode-bench: cargo build --release -p homenode-bench")
        rows = self.directory / "rows.json"
        done = subprocess.run(
            [program, *words, "--smoke", "--json", rows], cwd=LAB.parent, capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return {row["case"]: row for row in json.loads(rows.read_text())["rows"]}

    def test_locality_of_two_nodes(self):
        found = self.rows("locality")
        self.assertGreater(found["2n/4k/library"]["homenode"], 90)
        # Its first file lies with its job, the second one does not.
        self.assertLess(found["2n/4k/library"]["peers"]["tmpfs"], 70)
        self.assertGreater(found["2n/4k/mount"]["homenode"], 80)

    def test_affinity_of_four_connections(self):
        command = built("homenode")
        if command is None:
            self.skipTest("SKIPPED: there is no homenode: cargo build --release -p homenode-cli, or set HOMENODE_BINARY")
        found = self.rows("affinity", "--only", "shares", "--only", "modelled", "--command", command)
        off, local = ({end: found[f"4n/upload/{policy}/4c/{end}"]["homenode"] for end in ENDS} for policy in ("off", "local"))
        self.assertGreater(local["bytes"], 80)
        # The queues' interrupts alone bring completions to their submitters; to the disks threads have to be brought.
        for end in ("bytes", "completions-home"):
            self.assertGreater(local[end], off[end])
        self.assertGreater(local["modelled"], 0)
