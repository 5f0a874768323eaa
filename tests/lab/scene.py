"""How tests run a scene in a guest, and what they know about where bytes belong."""

import ast
import os
import shutil
from pathlib import Path

import witness
from tests.support import LAB, LabTest

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
# Of a writer's bytes, what has to lie on its node.
SHARE = 0.95


def built(name: str) -> Path | None:
    """A program of the workspace, if it was built; the command is HOMENODE_BINARY, if that is set."""
    repository = LAB.parent
    target = Path(os.environ.get("CARGO_TARGET_DIR", repository / "target"))
    named = os.environ.get("HOMENODE_BINARY") if name == "homenode" else None
    candidates = [Path(named)] if named else [target / kind / name for kind in ("release", "debug")]
    return next((path.resolve() for path in candidates if path.is_file()), None)


class SceneTest(LabTest):
    """A test with the command, and the witness, where a guest sees them."""

    def setUp(self):
        super().setUp()
        self.binary = self.program("homenode", "cargo build --release -p homenode-cli, or set HOMENODE_BINARY")
        self.witness = witness.compiled(self.directory)

    def program(self, name: str, remedy: str) -> Path:
        """A program that was built, below the test's directory: the target directory may be below /tmp, which guests lack."""
        path = built(name)
        if path is None:
            self.skipTest(f"SKIPPED: there is no {name}: {remedy}")
        return Path(shutil.copy(path, self.directory))

    def scene(self, name: str, *options, arguments=()) -> list[dict]:
        """The facts that a scene tells, in a guest with these options of lab/run."""
        words = ["python3", "-B", HERE / f"{name}.py", self.binary, self.witness, *arguments]
        done = self.lab("--show", HERE, "--timeout", 300, *options, "--", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [ast.literal_eval(line) for line in done.stdout.splitlines()]

    def check_placed(self, facts: dict, homes: dict[str, int], size: int) -> None:
        """Files lie on their homes by the filesystem's word and by the kernel's, which agree about all memory of the pool."""
        least = SHARE * size
        for prefix, home in homes.items():
            with self.subTest(what=facts["what"], file=prefix, home=home):
                self.assertGreaterEqual(facts["map"][prefix].get(home, 0), least, facts)
                self.assertGreaterEqual(facts["witness"][prefix].get(home, 0), least, facts)
        for home in set(homes.values()):
            files = list(homes.values()).count(home)
            with self.subTest(what=facts["what"], home=home):
                written = sum(bytes for (_, to), bytes in facts["accesses"].items() if to == home)
                self.assertGreaterEqual(written, files * least, facts)
                self.assertGreaterEqual(facts["used"].get(home, 0), files * least, facts)
        self.check_memory(facts)

    def check_local(self, facts: dict, size: int) -> None:
        """Each byte of the files was written by a CPU of its home, says the access matrix."""
        remote = sum(written for (mover, home), written in facts["accesses"].items() if mover != home)
        self.assertLessEqual(remote, (1 - SHARE) * len(facts["map"]) * size, facts)

    def check_memory(self, facts: dict) -> None:
        """Each member's memory is its home's: pages of the server, and shared memory of the node."""
        with self.subTest(what=facts["what"]):
            self.assertEqual(facts["present"], {node: size for node, size in facts["populated"].items() if size}, facts)
            for node, size in facts["populated"].items():
                # Others have shared memory too: files that the guest writes in its /tmp and /run.
                self.assertAlmostEqual(facts["shmem"][node], size, delta=MIB // 2, msg=facts)

    def check_gone(self, left: dict) -> None:
        """Nothing is left of a pool."""
        self.assertEqual((left["server"], left["status"]), (False, "no pool is up"))
        for node, size in left["shmem"].items():
            self.assertLess(size, MIB // 2, f"shared memory is left on node {node}: {left}")
