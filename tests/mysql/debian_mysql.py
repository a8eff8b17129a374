"""The MySQL of Debian's sid, a 9.7 in 2026: of the package registries, only this one has a server. Needs no root."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from relay.errors import Unavailable
from relay.process.account import reachable_copy
from relay.services import debian

_PACKAGE = "mysql-server-core"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"  # of the package debian-archive-keyring
# Relations of packages that `apt-cache depends` would list beside what a package needs.
_ONLY_NEEDED = " ".join(
    f"--no-{relation}" for relation in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
)
_SCRIPT = """\
#!/bin/sh
# The libraries are newer than those of this machine, and need their own loader.
here=$(dirname "$(readlink -f "$0")")
exec "$here/{loader}" --library-path "{libraries}" "$here/usr/sbin/mysqld" "$@"
"""


def mysqld() -> Path:
    """Return a script that passes its arguments on to the server, fetched once, 110 MB. Raises ``Unavailable``."""
    with TemporaryDirectory() as place:
        folder = reachable_copy(debian.unpacked(_PACKAGE, _libraries, _sid(Path(place))))
    script = folder / "mysqld"
    if not script.exists():
        loaders = [path for path in folder.glob("usr/lib*/ld-linux*.so*") if path.exists()]
        if not loaders:
            raise Unavailable(f"the libraries of {_PACKAGE} in {folder} have no loader")
        libraries = ":".join(f"$here/{each.relative_to(folder)}" for each in debian.library_folders(folder))
        draft = folder / "mysqld.part"
        draft.write_text(_SCRIPT.format(loader=loaders[0].relative_to(folder), libraries=libraries))
        draft.chmod(0o755)
        draft.rename(script)
    return script


def _sid(folder: Path) -> list[str]:
    """Return the settings of apt for packages of sid alone, whatever this machine runs and has installed.

    Programs of sid run with its libraries only, so all of them have to be fetched with it.
    """
    sources, nothing = folder / "sources.list", folder / "status"
    sources.write_text(f"deb [signed-by={_KEYS}] http://deb.debian.org/debian sid main\n")
    nothing.touch()
    return [f"Dir::State::status={nothing}", f"Dir::Etc::sourcelist={sources}", "Dir::Etc::sourceparts=/dev/null"]


def _libraries(apt: debian.Apt) -> list[str]:
    """Return every library that the server needs, and those that they need."""
    lines = apt(f"apt-cache depends --recurse {_ONLY_NEEDED} {_PACKAGE}").splitlines()
    # A name alone on its line begins the dependencies of a package.
    found = {line for line in lines if line.startswith("lib")}
    return sorted(each for each in found if "perl" not in each)
