"""One guest: started, listened to, ended. Whatever happens here, no process and no file of it outlives the call."""

import collections
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from . import cache, counts, initramfs, qemu, source
from .errors import LabError
from .options import Run

HEAD = struct.Struct("<cI")
# A panic, its registers and its trace.
LAST_LINES = 60
# What is started dies with this process, even if that is killed. In a session of its own: Ctrl-C is for this process alone.
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"]
SOURCE_PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


class BootFailed(Exception):
    """The guest did not get as far as the command: what happened, and the guest's last words."""


def run(job: Run) -> int:
    """Runs the command in a guest, and gives its exit status. A boot that fails is tried once more.

    Some boots hang, or panic when the kernel patches its own code under the feet of other vCPUs: one in dozens, by the emulator's
    fault. From the start of the command on nothing is tried again.
    """
    kernel = cache.kernel(job.kernel)
    archive = initramfs.build(job, kernel)
    check_memory(job)
    check_counter(job)
    # Missed before another guest is waited for.
    cache.tool("qemu-system-x86_64")
    with cache.locked("guest", "another guest to end"):
        try:
            return one(job, kernel, archive)
        except BootFailed as failed:
            say(f"{failed.args[0]}; once more")
        try:
            return one(job, kernel, archive)
        except BootFailed as failed:
            what, last_words = failed.args
            raise LabError(
                f"{what}, the second time: look with --verbose, or give --boot-timeout more. Its last words:\n{last_words}"
            ) from failed


def one(job: Run, kernel: cache.Kernel, archive: bytes) -> int:
    """One boot, and the command."""
    guest = Guest(job, kernel, archive)
    try:
        status = guest.listen()
        if job.count:
            counts.write(job.count, job.machine, job.delay_ns, counts.read(guest.files.counts))
        return status
    finally:
        guest.end()


def check_memory(job: Run) -> None:
    """A host that has less memory than a guest uses would kill something, and perhaps something else."""
    mib = sum(job.machine.memory_mib) + sum(device.size_mib for device in job.machine.nvdimm + job.machine.nvme)
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value = line.split(":")
        if name == "MemAvailable" and int(value.split()[0]) >> 10 < mib:
            raise LabError(f"the guest has {mib} MiB, and this machine has {int(value.split()[0]) >> 10} left: ask for less")


def check_counter(job: Run) -> None:
    """The counter is right only about the QEMU it was checked with."""
    if job.count is None and not job.delay_ns:
        return
    program = cache.tool("qemu-system-x86_64")
    told = subprocess.run([program, "--version"], env=cache.tool_environment(program), capture_output=True, text=True, check=False)
    if f"version {qemu.COUNTED_QEMU}." not in told.stdout:
        raise LabError(
            f"the counter was checked with QEMU {qemu.COUNTED_QEMU} (Debian 12) only, and this is: "
            f"{(told.stdout or told.stderr).splitlines()[0]}. Without --count and --delay-ns the guest runs"
        )


def say(text: str) -> None:
    """A message of the lab, apart from what the command writes."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def anonymous(name: str, contents: bytes = b"", size_mib: int = 0) -> int:
    """A file without a name, which is gone with those who have it open."""
    descriptor = os.memfd_create(name)
    if size_mib:
        os.ftruncate(descriptor, size_mib << 20)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(contents)
    return descriptor


def start_source(job: Run) -> subprocess.Popen:
    """The process at the other end of the cards, which has made their taps."""
    if not any(os.access(Path(place) / "ip", os.X_OK) for place in SOURCE_PATH.split(os.pathsep)):
        raise LabError("--source: there is no ip on this machine: apt-get install iproute2")
    queues = [str(card.queues) for card in job.machine.net]
    process = subprocess.Popen(
        [*DIES_WITH_US, "unshare", "--net", sys.executable, "-B", source.__file__, *queues],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PATH": SOURCE_PATH},
        text=True,
        start_new_session=True,
    )
    if process.stdout.readline() == source.READY:
        return process
    process.kill()
    told = process.communicate()[1].strip().splitlines() or ["it told nothing"]
    raise LabError(f"--source: its network namespace or a tap in it could not be made: {told[0]}. It needs root and /dev/net/tun")


class Guest:
    """A QEMU process and this end of its port and console."""

    def __init__(self, job: Run, kernel: cache.Kernel, archive: bytes):
        self.job = job
        self.console_lines = collections.deque(maxlen=LAST_LINES)
        self.console_part = b""
        self.frames = b""
        self.status = None
        self.started = False
        self.console, console = socket.socketpair()
        self.port, port = socket.socketpair()
        self.errors, errors = os.pipe()
        self.files = qemu.Descriptors(
            console=console.fileno(),
            port=port.fileno(),
            initramfs=anonymous("initramfs", archive),
            disks=[anonymous("disk", size_mib=device.size_mib) for device in job.machine.nvme],
            counts=anonymous("counts") if job.count or job.delay_ns else None,
        )
        self.inherited = [self.files.initramfs, *self.files.disks]
        if self.files.counts is not None:
            self.inherited.append(self.files.counts)
        words = qemu.arguments(job, kernel, self.files)
        self.source = start_source(job) if job.source else None
        place = ["nsenter", f"--net=/proc/{self.source.pid}/ns/net"] if self.source else []
        self.process = subprocess.Popen(
            [*DIES_WITH_US, "nice", "-n", "10", *place, *words],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=[console.fileno(), port.fileno(), *self.inherited],
            env=cache.tool_environment(Path(words[0])),
            start_new_session=True,
        )
        console.close()
        port.close()
        os.close(errors)

    def end(self) -> None:
        """Kills the guest, and closes all that was its."""
        for process in filter(None, [self.process, self.source]):
            process.kill()
            process.wait()
        if self.source:
            self.source.communicate()
        self.console.close()
        self.port.close()
        for descriptor in [self.errors, *self.inherited]:
            os.close(descriptor)

    def listen(self) -> int:
        """Passes on what the guest sends until it tells the command's exit status."""
        deadline = time.monotonic() + self.job.boot_timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.port, selectors.EVENT_READ, self.on_port)
            selector.register(self.console, selectors.EVENT_READ, self.on_console)
            selector.register(self.errors, selectors.EVENT_READ, self.on_console)
            while self.status is None:
                was_started = self.started
                events = selector.select(max(0.0, deadline - time.monotonic()))
                for key, _ in events:
                    received = os.read(key.fd, 1 << 16)
                    if received:
                        key.data(received)
                    else:
                        selector.unregister(key.fileobj)
                if not selector.get_map() and self.status is None:
                    if not self.started:
                        raise BootFailed("the guest ended while it booted", self.last_words())
                    raise LabError(f"the guest ended before the command did. Its last words:\n{self.last_words()}")
                if self.started and not was_started:
                    deadline = time.monotonic() + self.job.timeout_s
                elif self.status is None and time.monotonic() > deadline:
                    if not self.started:
                        what = f"the guest had not booted after {self.job.boot_timeout_s:g} s"
                        raise BootFailed(what, self.last_words())
                    # A kernel that hangs tells so on its console.
                    say(f"the command took longer than {self.job.timeout_s:g} s, and was ended (--timeout)")
                    say(f"the guest's last words:\n{self.last_words()}")
                    return 124
        return self.status

    def on_port(self, received: bytes) -> None:
        """Takes the frames that are whole: guest/agent.c tells what they are."""
        self.frames += received
        while len(self.frames) >= HEAD.size:
            kind, length = HEAD.unpack_from(self.frames)
            if len(self.frames) < HEAD.size + length:
                return
            contents = self.frames[HEAD.size : HEAD.size + length]
            self.frames = self.frames[HEAD.size + length :]
            if kind == b"S":
                self.started = True
            elif kind == b"X":
                self.status = contents[0]
            else:
                stream = sys.stdout.buffer if kind == b"O" else sys.stderr.buffer
                stream.write(contents)
                stream.flush()

    def on_console(self, received: bytes) -> None:
        """Keeps the last lines of the kernel's log and of what QEMU says."""
        if self.job.verbose:
            sys.stderr.buffer.write(received)
            sys.stderr.buffer.flush()
        *lines, self.console_part = (self.console_part + received).split(b"\n")
        self.console_lines += [line.decode(errors="replace").rstrip() for line in lines if line.strip()]

    def last_words(self) -> str:
        """The last lines of the console."""
        lines = [*self.console_lines, self.console_part.decode(errors="replace")]
        return "\n".join(f"  {line}" for line in lines if line.strip()) or "  (none)"


def main(words: list[str]) -> int:
    """lab/run."""
    from .options import parse

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return run(parse(words))
    except LabError as error:
        say(str(error))
        return 125
    except PermissionError as error:
        say(f"{error.filename}: {error.strerror}: whose cache is it? HOMENODE_LAB_CACHE names another")
        return 125
    except BrokenPipeError:
        # Nobody reads the output any more; nor shall Python's own last flush complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
