"""However a run ends, nothing of it stays."""

import os
import signal
import subprocess
import time

from homenode_lab import cache

from .support import LAB, WAITING, LabTest, running


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as listed:
        return [int(word) for word in listed.read().split()]


class Ends(LabTest):
    """Runs that do not end well."""

    def test_a_command_that_hangs(self):
        begin = time.monotonic()
        done = self.lab("--nodes", "2", "--timeout", "2", "--", "sh", "-c", "echo before; sleep 1000")
        self.assertEqual((done.returncode, done.stdout), (124, "before\n"))
        said = "lab: the command took longer than 2 s, and was ended (--timeout)\nlab: the guest's last words:\n"
        self.assertEqual(done.stderr[: len(said)], said)
        self.assertLess(time.monotonic() - begin, 150)

    def test_a_boot_that_hangs_is_tried_again(self):
        told = self.refused("--boot-timeout", "1", "--", "true")
        self.assertIn("the guest had not booted after 1 s; once more", told)
        self.assertIn("the guest had not booted after 1 s, the second time", told)

    def test_a_guest_that_panics(self):
        told = self.refused("--nodes", "2", "--", "sh", "-c", "echo c >/proc/sysrq-trigger")
        self.assertIn("the guest ended before the command did", told)
        self.assertIn("Kernel panic", told)

    def test_a_kernel_that_does_not_come_up(self):
        kernel = cache.kernel("6.1")
        place = self.directory / "homenode-lab"
        broken = place / "kernels/6.1"
        (broken / "lib/modules").mkdir(parents=True)
        (broken / "lib/modules" / kernel.version).symlink_to(kernel.modules)
        (broken / "boot").mkdir()
        (broken / "boot" / f"vmlinuz-{kernel.version}").write_bytes(bytes(1 << 20))
        (place / "programs").symlink_to(cache.root() / "programs")
        if cache.tools().exists():
            (place / "tools").symlink_to(cache.tools())
        told = self.refused("--", "true", environment={"HOMENODE_LAB_CACHE": str(self.directory)})
        self.assertIn("the guest ended while it booted; once more", told)
        self.assertIn("the guest ended while it booted, the second time", told)
        self.assertNotIn("(none)", told)

    def test_signals_leave_nothing(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
            for wait in ("boot", "command"):
                with self.subTest(signal=number.name, during=wait):
                    self.interrupted(number, status, wait)

    def interrupted(self, number: signal.Signals, status: int, wait: str):
        """Sends the signal to lab/run alone, and looks for what is left."""
        mounts = self.mounts()
        process = subprocess.Popen(
            [LAB / "run", "--nodes", "2", "--net", "node=1", "--source", "--", "sh", "-c", "echo up; sleep 1000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", env={**os.environ, "TMPDIR": str(self.directory)},
        )
        with process:
            if wait == "command":
                self.assertEqual(process.stdout.readline(), b"up\n")
            started = children(process.pid)
            while not started:
                time.sleep(0.05)
                started = children(process.pid)
            process.send_signal(number)
            self.assertEqual(process.wait(20), status)
            self.assertEqual(process.stderr.read().decode().removeprefix(WAITING), "")
        deadline = time.monotonic() + 5
        while any(map(running, started)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(any(map(running, started)), "QEMU or the source is still there")
        self.assertEqual(list(self.directory.iterdir()), [])
        self.assertEqual(self.mounts(), mounts)

    def mounts(self) -> list[str]:
        """The mounts of this machine that could be the lab's."""
        with open("/proc/self/mounts", encoding="utf-8") as listed:
            return [line for line in listed if " 9p " in line or " overlay " in line or "homenode-lab" in line]
