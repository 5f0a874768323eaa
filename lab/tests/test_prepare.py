"""Where a guest's needs cannot be had: one message, a status that says so, nothing left. Nothing is fetched."""

import contextlib
import io
import os
import subprocess
from pathlib import Path
from unittest import mock

from homenode_lab import cache, prepare

from .support import LAB, LabTest

# A port that nobody listens on, as the proxy of a network that is not there.
NO_NETWORK = 'Acquire::http::Proxy "http://127.0.0.1:9";\nAcquire::https::Proxy "http://127.0.0.1:9";\n'


class Unavailable(LabTest):
    """An empty cache, and something in the way."""

    def setUp(self):
        super().setUp()
        self.place = self.directory / "cache"
        self.cache = self.place / "homenode-lab"
        configuration = self.directory / "apt.conf"
        configuration.write_text(NO_NETWORK)
        self.environment = {**os.environ, "HOMENODE_LAB_CACHE": str(self.place), "APT_CONFIG": str(configuration)}

    def run_program(self, program: Path) -> subprocess.CompletedProcess:
        """Runs a program of the project to its end."""
        return subprocess.run(
            [program], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def test_without_a_network(self):
        done = self.run_program(LAB / "prepare")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("see that `apt-get update` works", done.stderr)
        self.assertEqual(done.stderr.count("lab: "), 1)
        files = [path for path in self.cache.rglob("*") if not path.is_dir()]
        self.assertEqual(files, [self.cache / "prepare.lock"])

    def test_the_smoke_boot_is_skipped_with_the_reason(self):
        done = self.run_program(LAB / "../scripts/lab-smoke.sh")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("\nSKIPPED the lab: ", done.stdout)
        self.assertIn("see that `apt-get update` works", done.stdout)

    def test_without_space(self):
        said = io.StringIO()
        with (
            mock.patch.dict(os.environ, self.environment),
            mock.patch("shutil.disk_usage", return_value=mock.Mock(free=50 << 20)),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(said),
        ):
            self.assertEqual(prepare.main(), 3)
        self.assertRegex(said.getvalue(), r"has 50 MiB of space, and the lab needs \d+: free some, or set HOMENODE_LAB_CACHE")

    def test_a_cache_that_cannot_be(self):
        self.place.write_text("a file")
        done = self.run_program(LAB / "prepare")
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn(f"Not a directory: '{self.cache}'", done.stderr)

    def test_what_others_have_beside_the_cache_stays(self):
        theirs = [self.place / name for name in (".netrc", "project/.env", "apt/lists", "kernels/.keep")]
        for path in theirs:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("theirs")
        left = self.cache / "kernels/.6.1.left"
        left.mkdir(parents=True)
        done = self.run_program(LAB / "prepare")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual([path.read_text() for path in theirs], ["theirs"] * len(theirs))
        self.assertFalse(left.exists(), "what was not whole is still there")

    def test_without_qemu(self):
        """On a machine that has all but QEMU, and a cache that has all but it."""
        programs = self.directory / "programs"
        programs.mkdir()
        for place in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
            for path in Path(place).glob("*"):
                if not path.name.startswith("qemu-system") and not (programs / path.name).exists():
                    (programs / path.name).symlink_to(path)
        self.cache.mkdir(parents=True)
        for path in cache.root().glob("*"):
            if path.name != "tools":
                (self.cache / path.name).symlink_to(path)
        told = self.refused("--", "true", environment={"PATH": str(programs), "HOMENODE_LAB_CACHE": str(self.place)})
        self.assertRegex(told, "there is no (qemu-system-x86_64|busybox) on this machine or in .*: run `make lab`")
