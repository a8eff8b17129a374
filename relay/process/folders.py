"""The folders of this machine that the relay uses, and file names in errors about writing to them."""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from relay.errors import ConfigError, Unavailable


def state_folder() -> Path:
    """Return ``$RELAY_STATE``, or ``~/.local/state/relay``: the local state of the relays on this machine."""
    return own_folder("RELAY_STATE", ".local/state/relay")


def own_folder(variable: str, in_home: str) -> Path:
    """Return the folder that an environment variable names, otherwise the default one in the home folder.

    Raises ``ConfigError`` if it is a file, and ``Unavailable`` if the user has no home folder.
    """
    if named := os.environ.get(variable):
        if os.path.exists(named) and not os.path.isdir(named):
            raise ConfigError(f"the environment variable {variable} names {named}, which is not a folder")
        return Path(named)
    try:
        return Path.home() / in_home
    except RuntimeError as error:
        raise Unavailable(f"this user has no home folder: name a folder to use in {variable}") from error


def made_once(folder: Path, make: Callable[[], object]) -> Path:
    """Return ``folder``; if it is missing, one process creates it with ``make``, which renames it into place."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():  # the former holder of the lock may have created it
                make()
    return folder


def size_of(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1e6:.0f} MB"


def tell(text: str) -> None:
    """Print on stderr why creating a folder takes long."""
    print(f"relay: {text}", file=sys.stderr, flush=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add this file's name to an ``OSError`` from the body that names no file, as when a disk is full."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
