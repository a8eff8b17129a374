"""For servers that refuse to run as root: as whom they run, and where that account can reach.

Root's home is closed to all others, and so are temporary folders: what the account runs and writes is then kept
elsewhere. May be changed here: the account and those places.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from relay.errors import Unavailable

_NAME = "nobody"
# Only root writes there, so a fixed name is safe.
_PROGRAMS = Path("/var/cache/relay")
_DATA = Path("/var/tmp")


@dataclass(frozen=True)
class Account:
    """A user of this machine, and its group."""

    uid: int
    gid: int


def unprivileged() -> Account | None:
    """Return the account to run a server as: None, which is this one, unless this is root."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(_NAME)
    except KeyError:
        raise Unavailable(f"a database does not run as root, and there is no user {_NAME} to run it as") from None
    return Account(entry.pw_uid, entry.pw_gid)


def reaches(account: Account, folder: Path) -> bool:
    """Tell whether the account may read the folder and pass all that it lies in."""
    folder = folder.resolve()
    return _may(account, folder, 5) and all(_may(account, each, 1) for each in folder.parents)


def _may(account: Account, path: Path, bits: int) -> bool:
    found = path.stat()
    shift = 6 if found.st_uid == account.uid else 3 if found.st_gid == account.gid else 0
    return found.st_mode >> shift & bits == bits


def programs(folder: Path) -> Path:
    """Return the folder, or a copy of it that the unprivileged account reaches. A copy is made once."""
    account = unprivileged()
    if account is None or reaches(account, folder):
        return folder
    copy = _PROGRAMS / folder.name
    try:
        _PROGRAMS.mkdir(parents=True, exist_ok=True)
        with (_PROGRAMS / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not copy.is_dir():
                part = copy.with_name(copy.name + ".part")
                shutil.rmtree(part, ignore_errors=True)
                shutil.copytree(folder, part)
                _open_to_all(part)
                part.rename(copy)
        _PROGRAMS.chmod(0o755)
    except OSError as error:
        raise Unavailable(f"{_NAME} cannot reach {folder}, and it cannot be copied to {copy}: {error}") from error
    return copy


def _open_to_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        executable = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o755 if executable else 0o644)


def data_folder(folder: Path) -> Path:
    """Return the data folder of a server whose folder is given, made if need be.

    ``folder/data``, or where that links to: a place that the unprivileged account reaches. ``remove`` knows it.
    """
    data = folder / "data"
    account = unprivileged()
    if not data.exists():
        if account is None or reaches(account, folder):
            data.mkdir(mode=0o700)
        else:
            data.symlink_to(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=_DATA))
        give(data)
    return data.resolve()


def give(folder: Path) -> None:
    """Make the unprivileged account the owner of a folder and all that is in it."""
    account = unprivileged()
    if account is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, account.uid, account.gid)


def remove(folder: Path) -> None:
    """Remove a server's folder with its data, wherever that is. Does nothing if there is none."""
    data = folder / "data"
    if data.is_symlink():
        shutil.rmtree(data.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
