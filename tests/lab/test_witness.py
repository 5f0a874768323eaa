"""The witness tells what is known: memory bound to nodes, by what it holds."""

import witness
from tests.support import LabTest


class Witness(LabTest):
    """One process whose memory the test placed."""

    def test_pages_are_told_by_content_and_node(self):
        program, held = witness.compiled(self.directory), witness.compiled(self.directory, "held")
        kinds = [("writer-a", 0, 100), ("writer-a", 2, 7), ("writer-b", 1, 3000), ("writer-c", 3, 1), ("?", 2, 5)]
        done = self.lab("--", held, program, *(f"{prefix}:{node}:{pages}" for prefix, node, pages in kinds))
        # A boot that was tried twice is told on standard error, and no fault of the witness.
        self.assertEqual(done.returncode, 0, done.stderr)
        told = witness.table(done.stdout)
        page = witness.PAGE_BYTES
        expected = {"writer-a": {0: 100 * page, 2: 7 * page}, "writer-b": {1: 3000 * page}, "writer-c": {3: page}}
        self.assertEqual(told, {**expected, witness.OTHER: {2: 5 * page}})
