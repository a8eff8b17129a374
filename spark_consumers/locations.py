"""Folders of checkpoints and Delta tables, on this machine or on any file system that Hadoop knows, and their locks."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from relay.config.locations import legal, path_of
from relay.errors import ConfigError, Unavailable
from relay.process.folders import naming

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONGEST = 255  # the longest file name, in characters
# Prefixes that would make a folder a Delta table, names that already exist there, and names for other folders.
_TAKEN = re.compile(r"_delta_log|_relay_applied\.json(\.draft)?|\.\.?")


def local_folder(location: str) -> Path | None:
    """Return the local folder of ``location``, or None if it is in another store."""
    path = path_of(location)
    return None if path is None else Path(path)


def spark_path(location: str) -> str:
    """Return ``location`` as a path for Hadoop and Spark, in which nothing is encoded."""
    path = path_of(location)
    return location.removeprefix("delta+") if path is None else f"file://{path}"


def table_folder(location: str, source: str, table: str = "") -> str:
    """Return the location of a table in the copy at ``location``, or of all tables of a source."""
    return below(location, *(_folder_name(name) for name in (source, table) if name))


def _folder_name(name: str) -> str:
    """Return the folder name for a name. No other name has the same folder, or one above or inside it."""
    found = legal(name, max(0, len(legal(name)) - _LONGEST))  # I1
    return f"_x{ord(found[0]):04X}_{found[1:]}" if _TAKEN.fullmatch(found) else found


def check_folder(kind: str, location: str) -> str:
    """Check that a local folder is writable; other stores are not checked. Raises ``Unavailable``."""
    path = local_folder(location)
    if path is None:
        other = "; only EMR has s3://, elsewhere Spark has s3a://" if location.startswith(("s3:", "delta+s3:")) else ""
        return f"not checked: it is not a local folder{other}"
    # Path.exists raises if this user may not search the folder.
    nearest = next(each for each in (path, *path.parents) if os.path.exists(each))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise Unavailable(f"cannot write to {nearest}: the {kind} needs a writable folder")
    return "writable" if nearest == path else "will be created"


def below(location: str, *names: str) -> str:
    return "/".join((location.rstrip("/"), *names))


def refuse_on_cluster(what: str, location: str, master: str) -> None:
    """Raise ``ConfigError`` for a local folder, which differs on each machine of the cluster ``master``."""
    if (folder := local_folder(location)) is not None:
        raise ConfigError(
            f"{what} is the local folder {folder}, but Spark runs on the cluster {master}: use a location that all "
            "machines reach, such as hdfs://host/folder or s3a://bucket/folder; or set `spark.shared_folders: true` in "
            "the config if this folder is the same one on all of them"
        )


def sync(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(renames: Iterable[tuple[str, str]]) -> None:
    """Rename in order, durably, skipping renames that are done."""
    for old, new in renames:
        if Path(old).exists() and not Path(new).exists():
            Path(old).rename(new)
            sync(Path(old).parent)
            sync(Path(new).parent)


class LocalFolder:
    """A folder with small text files. ``uri``: its URI in Spark's form."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = spark_path(str(path))

    def read(self, name: str) -> str | None:
        """Return a file below the folder, or None if there is none. Raises ``OSError``."""
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, text: str) -> None:
        """Write a file durably, completely or not at all. Raises ``OSError``."""
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.path / f"{name}.draft"
        with naming(draft), draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path / name)
        sync(self.path)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder below this one; none if it does not exist."""
        try:
            return [path.name for path in (self.path / folder).iterdir()]
        except FileNotFoundError:
            return []


class HadoopFolder:
    """`LocalFolder` on a file system that Hadoop knows, as atomic as Spark's own checkpoints, whose classes it uses."""

    def __init__(self, uri: str, session: SparkSession) -> None:
        self.uri = uri
        from spark_consumers.spark_internals import checkpoint_files, jvm_of

        self._java = jvm_of(session.sparkContext)
        self._files = checkpoint_files(session, self._path())

    def read(self, name: str) -> str | None:
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        self._files.mkdirs(self._path())
        stream = self._files.createAtomic(self._path(name), True)
        try:
            stream.write(text.encode())
            stream.close()
        except BaseException:
            stream.cancel()
            raise

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        return [each.getPath().getName() for each in self._files.list(path)] if self._files.exists(path) else []

    def _path(self, *names: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(below(self.uri, *names))


# A killed consumer leaves a JVM that ends within moments, and holds the lock until then.
_TIMEOUT = 15.0  # seconds
_POLL = 0.1  # seconds


class Lock:
    """A lock against other processes, for use in a ``with``. ``what``: the name of the locked thing in errors.

    A child process that is given ``descriptor`` also holds the lock, and keeps it after its release here.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self.descriptor = -1

    def __enter__(self) -> Self:
        """Wait for the lock. Raises ``Unavailable``, which names the holder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._wait()
            with naming(self.path):
                os.ftruncate(self.descriptor, 0)
                os.pwrite(self.descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                return fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(self.descriptor, 32, 0).decode(errors="replace").strip()
                    raise Unavailable(
                        f"{self.what} is in use by another consumer, process {holder or 'unknown'}: stop that one "
                        f"first (lock file {self.path})"
                    ) from None
            time.sleep(_POLL)

    def __exit__(self, *error: object) -> None:
        os.close(self.descriptor)
        self.descriptor = -1


def lock_of(location: str | None) -> Lock | None:
    """Return the lock of a local ``location``, where Delta does not exclude a second writer; None for other stores."""
    folder = None if location is None else local_folder(location)
    return None if folder is None else Lock(folder.with_name(f"{folder.name}.lock"), str(folder))
