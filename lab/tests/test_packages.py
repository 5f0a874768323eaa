"""Where packages come from, and that only what is whole gets into the cache. Nothing is fetched."""

import os
import signal
import time
from pathlib import Path
from unittest import mock

from homenode_lab import cache, packages
from homenode_lab.errors import LabError, Unavailable

from .support import LabTest, running

ONE_LINE = """
# deb https://example.invalid/debian commented main
deb [signed-by=/a arch=amd64] https://example.invalid/debian bookworm main contrib
deb-src https://example.invalid/debian bookworm main
"""
STANZAS = """Types: deb
# a comment
URIs: https://example.invalid/one
Suites: bookworm bookworm-updates
Components: main

Types: deb
Enabled: no
URIs: https://example.invalid/two
Suites: bookworm
Components: main
"""


class Sources(LabTest):
    """The machine's apt sources, and what becomes of them."""

    def test_both_formats(self):
        (self.directory / "sources.list.d").mkdir()
        (self.directory / "sources.list").write_text(ONE_LINE)
        (self.directory / "sources.list.d/debian.sources").write_text(STANZAS)
        self.assertEqual(
            packages.machine_sources(self.directory),
            [
                ("https://example.invalid/debian", "bookworm"),
                ("https://example.invalid/one", "bookworm"),
                ("https://example.invalid/one", "bookworm-updates"),
            ],
        )

    def test_the_machines_mirror_with_other_suites(self):
        pairs = [("mirror", "bookworm"), ("security", "bookworm-security"), ("vendor", "stable")]
        with mock.patch.object(packages, "KEYRING", Path("/nowhere")):
            lines = packages.view_lines("bookworm", pairs)
        self.assertEqual(
            lines,
            [
                *("deb mirror bookworm main", "deb security bookworm-security main"),
                *("deb mirror trixie main", "deb mirror trixie-backports main"),
                *("deb-src mirror bookworm main", "deb-src security bookworm-security main"),
            ],
        )
        with self.assertRaisesRegex(LabError, "no apt source of this machine has the suite forky"):
            packages.view_lines("forky", pairs)


class Commands(LabTest):
    """What `make lab` starts."""

    def test_all_of_it_ends_with_make_lab(self):
        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        told = self.directory / "told"
        with self.assertRaises(KeyboardInterrupt):
            packages.run(["sh", "-c", 'sleep 1000 & echo $! >"$1"; wait', "sh", told])
        child = int(told.read_text())
        deadline = time.monotonic() + 5
        while running(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(running(child))

    def test_a_program_that_is_not_there(self):
        with self.assertRaisesRegex(Unavailable, "there is no no-such-program on this machine"):
            packages.run(["no-such-program"])


class Cache(LabTest):
    """What is in the cache is whole."""

    def setUp(self):
        super().setUp()
        patch = mock.patch.dict(os.environ, {"HOMENODE_LAB_CACHE": str(self.directory)})
        patch.start()
        self.addCleanup(patch.stop)

    def test_what_fails_half_way_is_not_there(self):
        final = cache.kernel_directory("6.1")
        with self.assertRaises(OSError), cache.staged(final) as stage:
            (stage / "half").write_text("")
            raise OSError("no space")
        self.assertEqual(list(final.parent.iterdir()), [])
        with cache.staged(final) as stage:
            (stage / "whole").write_text("")
        self.assertEqual([path.name for path in final.iterdir()], ["whole"])

    def test_the_newest_kernel_is_taken(self):
        names = ["6.1.0-9-amd64", "6.1.0-48-amd64", "6.1.0-48-rt-amd64", "6.1.0-49-cloud-amd64", "6.1.0-50-amd64-unsigned", "6.12.1-amd64"]
        view = mock.Mock(apt=mock.Mock(return_value="\n".join(f"linux-image-{name}" for name in names)))
        self.assertEqual(packages.View.kernel_package(view, "6.1", "bookworm"), "linux-image-6.1.0-48-amd64")
        with self.assertRaisesRegex(LabError, "trixie-backports on this machine's mirror has no kernel 6.18"):
            packages.View.kernel_package(view, "6.18", "trixie-backports")


class Unpacked(LabTest):
    """What becomes of a package's files."""

    def test_absolute_links_stay_in_the_directory(self):
        tree, package, to = (self.directory / name for name in ("tree", "one.deb", "to"))
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text("Package: one\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: one\n")
        (tree / "bin").mkdir()
        (tree / "bin/one").write_text("one")
        (tree / "sbin").mkdir()
        (tree / "sbin/other").symlink_to("/bin/one")
        packages.run(["dpkg-deb", "--build", tree, package])
        for _ in range(2):
            packages.unpack(package, to)
            self.assertEqual(os.readlink(to / "sbin/other"), "../bin/one")
            self.assertEqual((to / "sbin/other").read_text(), "one")
