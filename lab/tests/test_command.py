"""How a command's output and end come back, on both kernels, and what the guest may do to the host."""

import hashlib
import subprocess

from homenode_lab import cache

from .support import LAB, WAITING, LabTest


class Command(LabTest):
    """A command in a small guest."""

    SMALL = ("--nodes", "1", "--cpus-per-node", "1")

    def test_output_error_and_status_apart(self):
        for kernel in cache.KERNELS:
            with self.subTest(kernel=kernel):
                done = self.lab("--kernel", kernel, "--", "sh", "-c", "uname -r; echo problem >&2; wc -c; exit 3")
                self.assertEqual((done.returncode, done.stderr), (3, "problem\n"))
                release, read = done.stdout.splitlines()
                self.assertTrue(release.startswith(f"{kernel}."), release)
                self.assertEqual(read, "0", "the standard input is empty")

    def test_words_and_directory_are_kept(self):
        words = ["printf", "<%s>", "two words", "", "a\nline", "$HOME *", "é"]
        self.assertEqual(self.output(*self.SMALL, "--", *words), "<two words><><a\nline><$HOME *><é>")
        self.assertEqual(self.output(*self.SMALL, "--", "pwd"), f"{self.directory}\n")

    def test_how_it_ended(self):
        for command, status in (("kill -9 $$", 137), ("exec /nowhere/at-all", 127), ("exec /etc/passwd", 126)):
            with self.subTest(command=command):
                self.assertEqual(self.lab(*self.SMALL, "--", "bash", "-c", command).returncode, status)
        done = self.lab(*self.SMALL, "--", "no-such-command")
        self.assertEqual((done.returncode, done.stderr), (127, "lab: no-such-command: No such file or directory\n"))

    def test_much_output_and_none_who_reads(self):
        # seq's numbers make each place of the output different.
        count = 1_000_000
        expected = hashlib.sha256("".join(f"{number}\n" for number in range(1, count + 1)).encode()).hexdigest()
        written = self.output(*self.SMALL, "--", "sh", "-c", f"seq {count} >/dev/stdout")
        self.assertEqual(hashlib.sha256(written.encode()).hexdigest(), expected)
        piped = subprocess.run(
            f"{LAB}/run {' '.join(self.SMALL)} -- yes | head -n 1; echo ${{PIPESTATUS[0]}}",
            shell=True, executable="/bin/bash", capture_output=True, text=True, check=False,
        )
        self.assertEqual((piped.stdout, piped.stderr.removeprefix(WAITING)), ("y\n141\n", ""))

    def test_a_process_left_behind_is_not_waited_for(self):
        self.assertEqual(self.output(*self.SMALL, "--timeout", "60", "--", "sh", "-c", "sleep 1000 & echo done"), "done\n")

    def test_only_shared_directories_are_written_to(self):
        shared = self.directory / "shared"
        shared.mkdir()
        script = f"echo lost >{self.directory}/lost || echo lost >/root/lost && cat /root/lost; echo kept >{shared}/kept"
        done = self.lab(*self.SMALL, "--share", shared, "--", "sh", "-c", script)
        self.assertEqual((done.returncode, done.stdout), (0, "lost\n"), done.stderr)
        self.assertEqual((shared / "kept").read_text(), "kept\n")
        self.assertEqual([path.name for path in self.directory.iterdir()], ["shared"])
        self.assertNotEqual(subprocess.run(["test", "-e", "/root/lost"], check=False).returncode, 0)

    def test_modules(self):
        self.assertIn("null_blk", self.output(*self.SMALL, "--module", "null_blk", "--", "cat", "/proc/modules"))
        self.assertIn("has no module no_such", self.refused("--module", "no_such", "--", "true"))
