"""Durable pools in guests: at each flush of a disk, on persistent memory whose guest is killed, and on its devices.

See trials/durable.py and examples/stamped.rs.
"""

import random
import subprocess
import threading

from tests.support import LAB
from trial import TrialTest

# A guest's CPU caches are not emulated: what a killed one stored is in the file. That stores are written back the crash harness shows.
KILLS = 4

# As `ndctl create-namespace --mode=fsdax` (pfn0.0, nd_pmem) or `--mode=devdax` (dax0.0, dax_pmem) does. Later guests find it so.
MODE = """
use_as() {
    cd /sys/bus/nd/devices
    echo namespace0.0 >../drivers/nd_pmem/unbind
    echo ram >$1/mode
    cat /proc/sys/kernel/random/uuid >$1/uuid
    echo namespace0.0 >$1/namespace
    echo $1 >../drivers/$2/bind
}
"""

# A filesystem with DAX, and the file of a pool on it.
FILESYSTEM = """
mkdir /tmp/place
[ -e "$told" ] || { use_as pfn0.0 nd_pmem; mkfs.ext4 -q -b 4096 /dev/pmem0; }
mount -t ext4 -o dax=always /dev/pmem0 /tmp/place
member=/tmp/place/member
[ -e "$told" ] || truncate -s 48M $member
"""

# Its mapping is one that keeps blocks in their place (MAP_SYNC).
IS_SYNCED = 'grep -q "^VmFlags:.* sf" /proc/[0-9]*/smaps || { echo "it is not mapped with MAP_SYNC" >&2; exit 1; }'

# The memory as a device.
DEVICE = """
[ -e "$told" ] || use_as dax0.0 dax_pmem
member=/dev/dax0.0
"""

# What each guest does: the first makes the pool, the others check what the one before has left; all then work until they are killed.
GUEST = """
homenode=$1 stamped=$2 told=$3
%s
%s
if [ -e "$told" ]; then
    "$homenode" fsck $member
    "$stamped" check $member <"$told"
else
    "$homenode" pool create tank $member
    mkdir /tmp/mnt
    "$homenode" up tank /tmp/mnt
    "$homenode" status --json /tmp/mnt | grep -q '"kind": "pmem"'
    %s
    "$homenode" down /tmp/mnt
fi
exec "$stamped" write $member
"""


class Durable(TrialTest):
    """The trials, and guests that are killed."""

    def setUp(self):
        super().setUp()
        self.stamped = self.program("examples/stamped", "cargo build --release -p homenode --example stamped")

    def logged(self, kind: str, size: str, kernel: str) -> None:
        """A pool on a disk whose writes are logged."""
        disks = ("--nvme", f"node=0,size={size}", "--nvme", "node=0,size=512M")
        modules = [word for name in ("dm-log-writes", "loop", "crc32c_generic", kind) for word in ("--module", name)]
        machine = ("--nodes", "1", "--mem", "1536M", *disks, *modules, "--kernel", kernel)
        print(self.passes("durable.py", "Logged", kind, str(self.stamped), options=machine), end="")

    def test_each_flush_of_a_disk_with_ext4(self):
        self.logged("ext4", "96M", "6.1")

    def test_each_flush_of_a_disk_with_xfs(self):
        self.logged("xfs", "320M", "6.12")

    def killed(self, *options, prepare: str, also: str) -> None:
        """Guests that are killed, one after the other, with persistent memory that stays."""
        memory, told = self.directory / "memory", self.directory / "told"
        with memory.open("wb") as file:
            file.truncate(96 << 20)
        disk = ("--nvdimm", f"node=1,size=96M,file={memory}")
        machine = ("--nodes", "2", "--cpus-per-node", "1", *disk, "--timeout", "120", *options)
        lines = []
        for round_number in range(KILLS + 1):
            words = [*machine, "--", "sh", "-ec", GUEST % (MODE, prepare, also), "sh", self.binary, self.stamped, told]
            with (self.directory / "errors").open("w+") as errors, subprocess.Popen(
                [LAB / "run", *map(str, words)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as guest:
                before = []
                while before[-1:] != ["up\n"] and (line := guest.stdout.readline()):
                    before.append(line)
                # The emulator goes with it, wherever it is then.
                threading.Timer(random.uniform(0.2, 4), guest.kill).start()
                rest = guest.stdout.readlines()
                errors.seek(0)
                self.assertEqual(before[-1:], ["up\n"], f"round {round_number}: {before} {errors.read()}")
            if round_number:
                self.assertRegex("".join(before), r": sound; (.*\n)+sound: ")
                print(f"{before[-2].strip()} (killed {round_number} times)")
            lines += [line for line in rest if line.endswith("\n")]
            told.write_text("".join(lines))
        self.assertGreater(len(lines), 100 * KILLS)

    def test_a_guest_with_dax_files_is_killed(self):
        self.killed("--module", "ext4", "--kernel", "6.18", prepare=FILESYSTEM, also=IS_SYNCED)

    def test_a_guest_with_a_dax_device_is_killed(self):
        self.killed(prepare=DEVICE, also="true")

    def test_devices_of_persistent_memory(self):
        two = ("--nvdimm", "node=1,size=96M", "--nvdimm", "node=0,size=96M")
        machine = ("--nodes", "2", "--cpus-per-node", "1", *two)
        print(self.passes("durable.py", "Devices", options=machine), end="")
