"""Debian packages, fetched and unpacked and never installed.

apt works on a view of its own: the machine's mirror and the machine's record of what is installed, but lists and
downloads in the cache. So the suites can differ from the machine's, and nothing of the machine changes.
"""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from . import cache
from .errors import LabError, Unavailable

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def run(command: list, **options) -> str:
    """Runs a command that must succeed, and gives its output."""
    words = [str(word) for word in command]
    try:
        # A session of its own, so that all that it starts can be ended with it.
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
        )
    except FileNotFoundError as error:
        raise Unavailable(f"there is no {command[0]} on this machine: the lab needs Debian and its build-essential") from error
    with process:
        try:
            output, errors = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if process.returncode:
        last = "\n  ".join((errors or output).strip().splitlines()[-8:])
        raise LabError(f"{command[0]} ({command[-1]}) failed with status {process.returncode}:\n  {last}")
    return output


def installed(package: str) -> bool:
    """Whether the machine has that package."""
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout == "installed"


def codename() -> str:
    """The machine's release of Debian."""
    named = re.search(r"^VERSION_CODENAME=(\S+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    if not named:
        raise Unavailable("/etc/os-release names no release of Debian: the lab fetches Debian packages")
    return named[1].strip('"')


def machine_sources(etc: Path = Path("/etc/apt")) -> list[tuple[str, str]]:
    """The pairs of address and suite in the machine's apt sources, of both formats."""
    pairs = []
    for listed in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]:
        if listed.exists():
            pairs += re.findall(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)", listed.read_text(), re.MULTILINE)
    for listed in sorted((etc / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", listed.read_text()):
            fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
            if "deb" in fields.get("Types", "").split() and fields.get("Enabled") != "no":
                pairs += [(uri, suite) for uri in fields.get("URIs", "").split() for suite in fields.get("Suites", "").split()]
    return pairs


def view_lines(release: str, pairs: list[tuple[str, str]]) -> list[str]:
    """What the lab's apt reads: the machine's own suites with their sources, and the suites of the kernels."""
    own = [pair for pair in pairs if pair[1] in (release, f"{release}-updates", f"{release}-security")]
    mirrors = [uri for uri, suite in own if suite == release]
    if not mirrors:
        raise Unavailable(f"no apt source of this machine has the suite {release}: add Debian's mirror to /etc/apt")
    more = [(mirrors[0], suite) for suite in cache.KERNELS.values() if suite != release]
    options = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    lines = [f"deb {options}{uri} {suite} main" for uri, suite in dict.fromkeys(own + more)]
    return lines + [f"deb-src {options}{uri} {suite} main" for uri, suite in dict.fromkeys(own)]


def view_directory() -> Path:
    """Where apt's view is, while packages are fetched."""
    return cache.root() / "apt"


def forget() -> None:
    """Removes lists and downloads: they are soon outdated, and were made to be unpacked."""
    shutil.rmtree(view_directory(), ignore_errors=True)


class View:
    """apt on the lab's view. Making it fetches the package lists: make it when a package is missing, not before."""

    def __init__(self):
        self.directory = view_directory()
        forget()
        for part in ("lists/partial", "archives/partial"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        sources = self.directory / "sources.list"
        sources.write_text("\n".join(view_lines(codename(), machine_sources())) + "\n")
        self.options = [
            *("-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null"),
            # Another release's packages are taken when they are named, and never to satisfy a dependency.
            *("-o", "Dir::Etc::Preferences=/dev/null", "-o", "Dir::Etc::PreferencesParts=/dev/null"),
            *("-o", f"APT::Default-Release={codename()}"),
            *("-o", f"Dir::State::Lists={self.directory}/lists", "-o", f"Dir::Cache={self.directory}"),
            *("-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none", "-o", "Debug::NoLocking=1"),
        ]
        print("lab: fetching the package lists of the machine's mirror", flush=True)
        try:
            self.apt("update", "--error-on=any")
        except LabError as error:
            raise Unavailable(f"{error}\nthe lists of {', '.join(cache.KERNELS.values())} and of this machine's own suites are "
                           "fetched from its mirror: see that `apt-get update` works, and that the mirror has these suites") from error

    def apt(self, *words, command: str = "apt-get", directory: Path | None = None) -> str:
        """Runs a command of apt in that directory."""
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C")
        try:
            return run([command, "-q", *self.options, *words], stdin=subprocess.DEVNULL, cwd=directory, env=environment)
        except LabError as error:
            raise Unavailable(str(error)) from error

    def download_missing(self, packages: list[str]) -> list[Path]:
        """Fetches packages and all they depend on that this machine lacks."""
        archives = self.directory / "archives"
        self.apt("install", "--download-only", "--yes", "--no-install-recommends", *packages)
        return sorted(archives.glob("*.deb"))

    def download(self, package: str, directory: Path) -> Path:
        """Fetches one package, whatever it depends on."""
        self.apt("download", package, directory=directory)
        return next(directory.glob("*.deb"))

    def kernel_package(self, version: str, suite: str) -> str:
        """The name of Debian's newest kernel of that version."""
        pattern = rf"^linux-image-{re.escape(version)}\.\d+.*-amd64$|^linux-image-{re.escape(version)}\.\d+-\d+-amd64$"
        names = self.apt("pkgnames", "linux-image-" + version, command="apt-cache").split()
        names = [name for name in names if re.match(pattern, name) and "-rt-" not in name and "-cloud-" not in name]
        if not names:
            raise Unavailable(
                f"{suite} on this machine's mirror has no kernel {version} for amd64 any more: "
                f"unpack one with `dpkg -x` to {cache.kernel_directory(version)}"
            )
        return max(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])


def unpack(package: Path, directory: Path) -> None:
    """Unpacks a package; installs nothing. Its absolute links, as of sbin/depmod to /bin/kmod, lead into the directory."""
    run(["dpkg", "-x", package, directory])
    for link in (path for path in directory.rglob("*") if path.is_symlink()):
        to = os.readlink(link)
        if to.startswith("/"):
            link.unlink()
            link.symlink_to(os.path.relpath(directory / to.lstrip("/"), link.parent))
