"""Packages of Debian or Ubuntu, unpacked into the cache. Needs no root, installs nothing."""

import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from relay.errors import Unavailable
from relay.jvm.jars import cache_folder
from relay.process.folders import made_once

_APT_SECONDS = 300.0
_OF_THIS_MACHINE = ("Dir::State::status=/var/lib/dpkg/status",)

Apt = Callable[[str], str]
"""Runs a line of ``apt-get`` or ``apt-cache``, and returns its output. Raises ``Unavailable``."""


def unpacked(
    package: str, with_others: Callable[[Apt], Iterable[str]], places: Sequence[str] = _OF_THIS_MACHINE
) -> Path:
    """Return the folder with the files of ``package`` and others, which are fetched once. Raises ``Unavailable``.

    ``with_others``: returns the names of the others. ``places``: settings of apt that say where packages come from.
    """
    folder = cache_folder() / package
    return made_once(folder, lambda: _fetch(folder, package, with_others, places))


def library_folders(folder: Path) -> list[Path]:
    return sorted({path.parent for path in folder.glob("usr/lib/**/lib*.so*")})


def _fetch(folder: Path, package: str, with_others: Callable[[Apt], Iterable[str]], places: Sequence[str]) -> None:
    """Fetch the package and, into a folder of its own, apt's lists, which needs no root."""
    if missing := [each for each in ("apt-get", "apt-cache", "dpkg-deb") if not shutil.which(each)]:
        raise Unavailable(f"{package} is not installed, and cannot be fetched without {missing[0]}: install {package}")
    part = folder.with_name(f"{package}.part")
    shutil.rmtree(part, ignore_errors=True)
    for each in ("state/lists/partial", "cache/archives/partial", "files"):
        (part / each).mkdir(parents=True)
    settings = [f"Dir::State={part / 'state'}", f"Dir::Cache={part / 'cache'}", *places, "APT::Sandbox::User=root"]
    options = [word for each in settings for word in ("-o", each)]
    run = partial(_run, folder=part, package=package)

    def apt(line: str) -> str:
        program, *arguments = line.split()
        return run([program, *options, *arguments])

    apt("apt-get -qq update")
    apt(f"apt-get -qq download {' '.join([package, *with_others(apt)])}")
    for fetched in part.glob("*.deb"):
        run(["dpkg-deb", "-x", str(fetched), "files"])
    # Its links lead to packages that are not there, so the folder could not be copied.
    shutil.rmtree(part / "files" / "usr" / "share" / "doc", ignore_errors=True)
    (part / "files").rename(folder)
    shutil.rmtree(part)


def _run(command: Sequence[str], folder: Path, package: str) -> str:
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_APT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"cannot fetch {package}: {command[0]} took longer than {_APT_SECONDS:.0f} s") from error
    if answer.returncode:
        raise Unavailable(f"cannot fetch {package} with {command[0]}: {answer.stderr.strip()[-500:]}")
    return answer.stdout
