"""How tests run a trial in a guest: a program of trials/ that acts and judges, as unittest does, where the filesystem is."""

import json

from scene import HERE, SceneTest


class TrialTest(SceneTest):
    """A test that is as good as its trials."""

    def passes(self, program: str, *words, options: tuple = (), transport: str = "classic", seconds: int = 1500) -> str:
        """Runs a program of trials/ in a guest. All its tests have to pass, and none to be skipped. What it wrote."""
        uring = "echo Y >/sys/module/fuse/parameters/enable_uring;" if transport == "uring" else ""
        script = f'{uring} exec /usr/bin/python3 -B "$@"'
        environment = (f"PYTHONPATH={HERE}", f"TRANSPORT={transport}", f"TRIAL_SECONDS={seconds - 60}")
        # Where scenes find these two as well.
        words = [HERE / "trials" / program, self.binary, self.witness, *map(json.dumps, words)]
        done = self.lab(
            *("--show", HERE, *options, "--timeout", seconds, "--", "env", *environment, "sh", "-c", script, "sh"), *words
        )
        self.assertEqual(done.returncode, 0, f"{program} in the guest:\n{done.stdout}\n{done.stderr}")
        self.assertRegex(done.stderr, r"Ran [1-9]\d* tests? in .*\n\nOK\n")
        return done.stdout
