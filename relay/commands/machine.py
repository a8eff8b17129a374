"""Faults of the machine that runs a command: its standard streams, its disks, and permissions of its files."""

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from relay.errors import ConfigError, RelayError, Unavailable
from relay.native import CoreMissing

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG
}  # fmt: skip
_FOLDERS = {".local/state/relay": "RELAY_STATE", ".cache/relay": "RELAY_CACHE"}  # with what names another one


def prepare_streams() -> None:
    """Open closed standard streams, whose numbers connections could get. Let stdout escape what it cannot encode."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # a new file gets the lowest free number
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def local_failures(*, is_service: bool = False) -> Iterator[None]:
    """Turn failures of files and of the installation into errors for the user. Flush stdout at the end.

    A pipe that is closed, as after `head`, ends a command well. A service fails, for its supervisor to restart it.
    """
    done = 1 if is_service else 0
    try:
        yield
        sys.stdout.flush()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich has already noticed that the reader is gone
            raise typer.Exit(done) from None
        raise
    except CoreMissing as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        if error.errno == errno.EPIPE and _has_no_reader():
            _discard()
            raise typer.Exit(done) from None
        if error.errno in _FULL:
            _discard()
            where = f" {error.filename}" if error.filename else ""
            raise RelayError(f"cannot write{where}: {error.strerror}") from error
        if error.errno in _REFUSED and error.filename:
            place = str(error.filename)
            variables = [name for folder, name in _FOLDERS.items() if _is_for(place, os.environ.get(name) or folder)]
            hint = f"; {' and '.join(variables)} can name another folder" if variables else ""
            raise Unavailable(f"cannot use {place}: {error.strerror}{hint}") from error
        raise


def _is_for(place: str, folder: str) -> bool:
    """Whether ``place`` is in ``folder``, or is missing and has to be created for it, such as the home folder."""
    return folder in place or Path(os.path.expanduser("~"), folder).is_relative_to(place)


def _has_no_reader() -> bool:
    """Whether stdout is a pipe without a reader. An error of a closed connection to a server looks alike."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _discard() -> None:
    """Drop what stdout still buffers: Python would try to write it again at exit, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
