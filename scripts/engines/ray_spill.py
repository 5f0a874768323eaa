"""Puts more objects into Ray than its store holds, so that it spills them to a mount, and checks them.

    ray_spill.py DIR TEMPORARY OBJECTS [WAIT]

Prints, after "result:", the seconds of putting and getting, and the MiB that were spilled. With WAIT, a path, it makes
that file when all objects are put, and gets them when it is gone. Ends with 3 when Ray says that an object cannot be put
or got.
"""

import hashlib
import os
import sys
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_DISABLE_DOCKER_CPU_WARNING"] = "1"
os.environ["RAY_AUTH_MODE"] = "disabled"

import numpy
import ray

OBJECT_BYTES = 16 << 20
# Where Ray looks for room, and how long it waits for it: small, so that a full pool is told soon.
SETTINGS = {"oom_grace_period_s": 1, "local_fs_capacity_threshold": 0.95}

directory, temporary, objects = sys.argv[1], sys.argv[2], int(sys.argv[3])
wait = sys.argv[4] if len(sys.argv) > 4 else None
ray.init(
    num_cpus=1,
    include_dashboard=False,
    log_to_driver=False,
    object_store_memory=100 << 20,
    object_spilling_directory=directory,
    _temp_dir=temporary,
    _system_config=SETTINGS,
)


def source(number):
    return numpy.random.default_rng(number).integers(0, 1 << 62, OBJECT_BYTES // 8, dtype=numpy.int64)


def digest(array):
    return hashlib.blake2b(array.data).digest()


references, digests, seconds = [], [], 0.0
wrong = 0
try:
    for number in range(objects):
        array = source(number)
        start = time.monotonic()
        references.append(ray.put(array))
        seconds += time.monotonic() - start
        digests.append(digest(array))
    # Ray joins objects into files; what is left in the store is not there.
    spilled = sum(os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(directory) for name in names)
    if wait:
        open(wait, "w").close()
        while os.path.exists(wait):
            time.sleep(0.1)
    for number, reference in enumerate(references):
        start = time.monotonic()
        found = ray.get(reference, timeout=30)
        seconds += time.monotonic() - start
        wrong += digest(found) != digests[number]
        del found
except ray.exceptions.RayError as error:
    # An object that Ray has given is right, whatever became of the others.
    assert not wrong, f"{wrong} objects are wrong"
    print("result:", type(error).__name__, flush=True)
    try:
        ray.shutdown()
    except OSError as gone:
        # It removes its directory, which the pool took along. Its processes have ended before.
        print(gone, file=sys.stderr)
    os._exit(3)
assert not wrong, f"{wrong} of {objects} objects are wrong"
ray.shutdown()
assert spilled > objects * OBJECT_BYTES // 2, f"Ray spilled {spilled} bytes only"
print(f"result: {seconds:.2f} {spilled >> 20}")
