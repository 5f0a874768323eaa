"""The bench of locality, small: that it works, and that its shares are in the order they have to be."""

import json
import subprocess

from scene import built
from tests.support import LAB, LabTest


class Bench(LabTest):
    """Two nodes: half of what is remote by chance would be local."""

    def test_the_smallest_run(self):
        program = built("homenode-bench")
        if program is None:
            self.skipTest("SKIPPED: there is no homenode-bench: cargo build --release -p homenode-bench")
        rows = self.directory / "rows.json"
        done = subprocess.run(
            [program, "locality", "--smoke", "--json", rows], cwd=LAB.parent, capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        found = {row["case"]: row for row in json.loads(rows.read_text())["rows"]}
        self.assertGreater(found["2n/4k/library"]["homenode"], 90)
        # Its first file lies with its job, the second one does not.
        self.assertLess(found["2n/4k/library"]["peers"]["tmpfs"], 70)
        self.assertGreater(found["2n/4k/mount"]["homenode"], 80)
