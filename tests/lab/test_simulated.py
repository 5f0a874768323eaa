"""The simulator beside the lab: of the same reads and writes, how many bytes were local. In the guest the kernel tells where each file's
pages are; the simulator places them anew, by the recorded trace alone. Needs the command: HOMENODE_BINARY, or the one that is built.
"""

import re
import subprocess

from scene import SceneTest

# Points of the local share by which the two may differ.
POINTS = 3.0
MEMBER_MIB = 24


class Simulated(SceneTest):
    """A pool that spills, with local and remote readers."""

    def check(self, nodes: int, cpus: int, memory: str) -> None:
        """Runs the scene, and the simulator on its trace."""
        machine = ("--nodes", nodes, "--cpus-per-node", cpus, "--mem", memory)
        [facts] = self.scene("scene_simulated", "--kernel", "6.18", *machine, arguments=[MEMBER_MIB])
        file = self.directory / "trace"
        file.write_text(facts["trace"])
        lab = self.local_percent(facts)
        words = [self.binary, "simulate", "trace", file, "--machine", f"node:{nodes} core:{cpus} pu:1"]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        simulated, tmpfs = (float(re.search(rf"{name} +([0-9.]+) %", done.stdout)[1]) for name in ("Homenode", "tmpfs"))
        print(f"{nodes} nodes: local {lab:.1f} % by the guest's kernel, {simulated:.1f} % simulated; tmpfs {tmpfs:.1f} %")
        # Else nothing is shown: all local or all remote is easily met.
        self.assertTrue(20 < lab < 80, lab)
        # Nor if the rules of tmpfs gave the same share.
        self.assertGreater(abs(tmpfs - simulated), 2 * POINTS, done.stdout)
        self.assertLessEqual(abs(lab - simulated), POINTS, facts["told"] + done.stdout)

    def local_percent(self, facts: dict) -> float:
        """Share of the accesses' bytes on the node that asked, as the kernel has the files' pages."""
        files = {inode: facts["witness"][prefix] for prefix, inode in facts["inodes"].items()}
        local = everything = 0
        for line in facts["trace"].splitlines():
            words = line.split()
            if len(words) != 6 or line.startswith("#") or int(words[2]) not in files:
                continue
            homes, size = files[int(words[2])], int(words[4])
            local += size * homes.get(int(words[1]), 0) / sum(homes.values())
            everything += size
        self.assertGreater(everything, 2 * MEMBER_MIB << 20, "the trace has the writes and the reads")
        return 100 * local / everything

    def test_four_nodes(self):
        self.check(4, 2, "512M")

    def test_eight_nodes(self):
        self.check(8, 1, "320M")
