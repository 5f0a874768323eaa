"""How the tests run lab/run."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent


# What lab/run says first when some other guest runs, of whoever.
WAITING = "lab: waiting for another guest to end\n"


class LabTest(unittest.TestCase):
    """A test with a directory of its own, which the guest can see, and be given to write to."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="homenode-lab-test-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name).resolve()

    def lab(self, *words, environment=None) -> subprocess.CompletedProcess:
        """Runs lab/run to its end."""
        done = subprocess.run(
            [LAB / "run", *map(str, words)],
            cwd=self.directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        done.stderr = done.stderr.removeprefix(WAITING)
        return done

    def output(self, *words) -> str:
        """What the command writes, which has to end well."""
        done = self.lab(*words)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def refused(self, *words, environment=None) -> str:
        """The one message of the lab about something that cannot be."""
        done = self.lab(*words, environment=environment)
        self.assertEqual((done.returncode, done.stdout), (125, ""), done.stderr)
        self.assertTrue(done.stderr.startswith("lab: "), done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr

    def compiled(self, name: str) -> Path:
        """A program of the tests, for the guest."""
        program = self.directory / name
        source = LAB / "tests" / f"{name}.c"
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", program, source], check=True)
        return program

    def counted(self, *words) -> tuple[dict, str]:
        """The counter's document about a command, and what the command wrote."""
        file = self.directory / "counts.json"
        written = self.output("--count", file, *words)
        return json.loads(file.read_text()), written


def total(rows: list[dict], field: str, **conditions) -> int:
    """The sum of a field over the rows that meet the conditions."""
    return sum(row[field] for row in rows if all(row[name] == value for name, value in conditions.items()))


def running(pid: int) -> bool:
    """Whether there is such a process, and more than its status is left of it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
