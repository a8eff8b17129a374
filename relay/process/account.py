"""The account for servers that refuse to run as root, and folders that it can reach, unlike root's home."""

import os
import pwd
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from relay.errors import Unavailable
from relay.process.folders import made_once

_NAME = "nobody"
# Only root writes there, so a fixed name is safe.
_PROGRAMS = Path("/var/cache/relay")
_DATA = Path("/var/tmp")


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int


def unprivileged() -> Account | None:
    """Return the account to run servers as; None for the current one, unless this process runs as root."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(_NAME)
    except KeyError:
        raise Unavailable(
            f"databases refuse to run as root, and this machine has no user {_NAME} to run them as: create one"
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)


def reaches(account: Account, folder: Path) -> bool:
    """Return whether the account may read the folder and traverse its parents."""
    folder = folder.resolve()
    return _may(account, folder, 5) and all(_may(account, each, 1) for each in folder.parents)


def _may(account: Account, path: Path, bits: int) -> bool:
    found = path.stat()
    shift = 6 if found.st_uid == account.uid else 3 if found.st_gid == account.gid else 0
    return found.st_mode >> shift & bits == bits


def reachable_copy(folder: Path) -> Path:
    """Return the folder if the unprivileged account can reach it, otherwise a reachable copy that is made once."""
    account = unprivileged()
    if account is None or reaches(account, folder):
        return folder
    copy = _PROGRAMS / folder.name
    try:
        made_once(copy, lambda: _copy(folder, copy))
        _PROGRAMS.chmod(0o755)
    except OSError as error:
        raise Unavailable(f"user {_NAME} cannot reach {folder}, and copying it to {copy} failed: {error}") from error
    return copy


def _copy(folder: Path, copy: Path) -> None:
    part = copy.with_name(f"{copy.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(folder, part)
    for path in (part, *part.rglob("*")):
        executable = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o755 if executable else 0o644)
    part.rename(copy)


def data_folder(folder: Path) -> Path:
    """Return the data folder of the server in ``folder``, created if missing: ``folder/data``, or its link target."""
    data = folder / "data"
    account = unprivileged()
    if not data.exists():
        if account is None or reaches(account, folder):
            data.mkdir(mode=0o700)
        else:
            data.symlink_to(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=_DATA))
        give_ownership(data)
    return data.resolve()


def give_ownership(folder: Path) -> None:
    account = unprivileged()
    if account is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, account.uid, account.gid)


def remove_server_folder(folder: Path) -> None:
    """Remove a server's folder and its data, wherever that is. Does nothing if the folder does not exist."""
    data = folder / "data"
    if data.is_symlink():
        shutil.rmtree(data.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
