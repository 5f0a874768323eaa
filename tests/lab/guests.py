"""Tests of the filesystem that run in guests: how they find the command, and their programs inside."""

import json
import os
import shutil
from pathlib import Path

import witness
from tests.support import LAB, LabTest

HERE = Path(__file__).resolve().parent


def command() -> Path | None:
    """The command under test."""
    repository = LAB.parent
    target = Path(os.environ.get("CARGO_TARGET_DIR", repository / "target"))
    named = os.environ.get("HOMENODE_BINARY")
    candidates = [Path(named)] if named else [target / kind / "homenode" for kind in ("release", "debug")]
    return next((path.resolve() for path in candidates if path.is_file()), None)


class GuestTest(LabTest):
    """A test whose work is done by a program of inside/: unittest in the guest, whose word counts here."""

    def setUp(self):
        super().setUp()
        binary = command()
        if binary is None:
            self.skipTest("SKIPPED: there is no homenode command: cargo build --release -p homenode-cli, or set HOMENODE_BINARY")
        # Below the test's directory, which the guest sees; the repository and the target directory may be below /tmp.
        self.binary = Path(shutil.copy(binary, self.directory))
        self.inside = Path(shutil.copytree(HERE / "inside", self.directory / "inside"))
        shutil.copy(witness.__file__, self.inside)
        self.witness = witness.compiled(self.directory)

    def passes(self, program: str, *words, options: tuple = (), transport: str = "classic") -> None:
        """Runs a program of inside/ in a guest. All its tests have to pass, and none to be skipped."""
        uring = "echo Y >/sys/module/fuse/parameters/enable_uring;" if transport == "uring" else ""
        script = f'{uring} exec /usr/bin/python3 -B "$@"'
        environment = {"HOMENODE_BINARY": self.binary, "WITNESS": self.witness, "TRANSPORT": transport}
        settings = [f"{name}={value}" for name, value in environment.items()]
        words = [word if isinstance(word, (str, Path)) else json.dumps(word) for word in words]
        done = self.lab(
            *(*options, "--timeout", 300, "--", "env", *settings, "sh", "-c", script, "sh", self.inside / program, *words)
        )
        self.assertEqual(done.returncode, 0, f"{program} in the guest:\n{done.stdout}\n{done.stderr}")
        self.assertRegex(done.stderr, r"Ran [1-9]\d* tests? in .*\n\nOK\n")
