"""`homenode steer` on a tmpfs without a mount of ours. Its words: the tests to be run, all if there are none."""

import fcntl
import os
import signal
import subprocess
import unittest
from pathlib import Path

from inside import BINARY
from kernel_files import FILE, LOCAL, map_of, reader
from pool import WORDS, homenode, memory, on_node, run_trials, soon


class Steer(unittest.TestCase):
    """A tmpfs with small pages."""

    def setUp(self):
        self.directory = Path("/tmp/steered")
        self.directory.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "steered", self.directory], check=True)
        self.addCleanup(subprocess.run, ["umount", self.directory], check=False)

    def steer(self) -> subprocess.Popen:
        """It reports each second."""
        words = [BINARY, "steer", "--mover", "on", "--report", "1", self.directory]
        steer = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(steer.kill)
        return steer

    def ended(self, steer: subprocess.Popen) -> str:
        """What one told that was ended."""
        steer.send_signal(signal.SIGINT)
        told, error = steer.communicate(timeout=30)
        self.assertEqual(steer.returncode, 0, error)
        return told

    def test_the_mover(self):
        read = self.directory / "read"
        with on_node(0):
            read.write_bytes(bytes(FILE))
        # Who opens this one waits for its lease, which nobody gives up.
        leased = self.enterContext((self.directory / "leased").open("wb"))
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        steer = self.steer()
        with reader(read, node=3):
            soon(lambda: map_of(read).get(3, 0) >= LOCAL, "the file moves to node 3")
        self.assertIn(f"{read} moved: node 3 reaches it most", self.ended(steer))

    def test_a_file_that_is_written_moves(self):
        path = self.directory / "written"
        with on_node(0):
            path.write_bytes(bytes(FILE))
        steer = self.steer()

        def write():
            with path.open("r+b") as file:
                file.write(bytes(FILE))
            return map_of(path).get(3, 0) >= LOCAL

        with on_node(3):
            soon(write, "the file moves to node 3")
        self.ended(steer)

    def test_policies(self):
        bound, inherits = self.directory / "bound", self.directory / "sub" / "inherits"
        inherits.parent.mkdir()
        for path in (bound, inherits):
            path.touch()
        os.setxattr(bound, "user.homenode.policy", b"node:1")
        os.setxattr(inherits.parent, "user.homenode.policy", b"interleave")
        steer = self.steer()
        self.assertIn("2 files, 2 with a policy", steer.stdout.readline())
        with on_node(0):
            for path in (bound, inherits):
                path.write_bytes(bytes(FILE))
        self.ended(steer)
        self.assertGreaterEqual(map_of(bound).get(1, 0), LOCAL)
        for node, bytes_on in map_of(inherits).items():
            self.assertLessEqual(abs(bytes_on - FILE / 4), FILE / 8, node)

    def test_it_ends_when_the_tmpfs_was_unmounted(self):
        before = memory(0, "Shmem")
        with on_node(0):
            (self.directory / "file").write_bytes(bytes(FILE))
        steer = self.steer()
        steer.stdout.readline()
        subprocess.run(["umount", "--lazy", self.directory], check=True)
        told, error = steer.communicate(timeout=30)
        self.assertEqual(steer.returncode, 0, error)
        self.assertIn(f"{self.directory} leads elsewhere now", told)
        soon(lambda: memory(0, "Shmem") < before + FILE // 2, "its memory is free")

    def test_what_is_no_tmpfs_is_refused(self):
        for words in (["/proc"], ["/nowhere"], [__file__]):
            done = homenode("steer", *words)
            self.assertEqual((done.returncode, done.stdout), (1, ""), done)


if __name__ == "__main__":
    run_trials(*WORDS)
