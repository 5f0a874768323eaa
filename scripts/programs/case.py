"""A case, a contestant, and programs that are run."""

import re
import shutil
import subprocess
import sys
import time

# What `homenode run --stats` tells of a process.
TOLD = re.compile(
    r"(\d+) of (\d+) reads and writes at an offset were copies; (\d+) system calls on files of a pool, (\d+) on others")


def finish(*command, **options):
    """Runs a command, which succeeds; what has become of it."""
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, **options)
    if done.returncode != 0:
        sys.exit(f"bench-programs: {' '.join(map(str, command))} ended with {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}")
    return done


def run(*command, **options):
    """Runs a command; its output."""
    return finish(*command, **options).stdout


class Contestant:
    """A directory, and how programs that work there are started."""

    def __init__(self, directory, homenode=None):
        """`homenode`: the command by whose `run` they are started."""
        self.directory = directory
        self.homenode = homenode
        self.is_counting = False
        self.heard = [0, 0, 0, 0]

    @property
    def launcher(self):
        """What stands before a program and its arguments."""
        if self.homenode is None:
            return []
        return [self.homenode, "run", *(["--stats"] if self.is_counting else []), "--"]

    def run(self, *command, **options):
        """Runs a command; its output."""
        done = finish(*self.launcher, *command, **options)
        self.hear(done.stderr)
        return done.stdout

    def timed(self, *command, **options):
        """Seconds that a command takes."""
        start = time.monotonic()
        self.run(*command, **options)
        return time.monotonic() - start

    def hear(self, text):
        """Adds up what processes have counted: copies, calls, system calls on files of the pool, and on others."""
        for told in TOLD.findall(text):
            self.heard = [heard + int(number) for heard, number in zip(self.heard, told)]

    def start_counting(self):
        self.is_counting = self.homenode is not None

    def stop_counting(self):
        """What processes have counted."""
        heard, self.heard, self.is_counting = self.heard, [0, 0, 0, 0], False
        return heard


class Case:
    """Something that is measured: `once` before all rounds, then `before` (not timed) and `measure` in each; seconds, or seconds an
    operation."""

    unit = "ms"
    scale = 1e3
    # With huge=always each small file would first clear 2 MiB.
    has_small_files = False
    # Programs, and what brings them.
    needs: dict = {}

    def require(self):
        """Ends with a message if a program is missing."""
        for program, way in self.needs.items():
            if shutil.which(program) is None:
                sys.exit(f"bench-programs: {program} is missing: {way}")

    def once(self, at):
        pass

    def before(self, at):
        pass

    def after(self, at):
        pass
