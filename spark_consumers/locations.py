"""Folders of checkpoints and Delta tables: on this machine, or on any other file system that Hadoop knows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.config.locations import legal, path_of
from relay.errors import ConfigError, Unavailable
from relay.process.folders import naming

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LONGEST = 255  # characters of a name in a folder
# What would make a folder a table of Delta, what is there already, and what means another folder.
_TAKEN = re.compile(r"_delta_log|_relay_applied\.json(\.draft)?|\.\.?")


def local_folder(location: str) -> Path | None:
    """Return the local folder of ``location``, or None if it is in another store."""
    path = path_of(location)
    return None if path is None else Path(path)


def spark_path(location: str) -> str:
    """Return ``location`` as a path of Hadoop, and so of Spark: nothing in it is encoded."""
    path = path_of(location)
    return location.removeprefix("delta+") if path is None else f"file://{path}"


def table_folder(location: str, source: str, table: str = "") -> str:
    """Return the location of a table in the copy at ``location``, or of all tables of a source."""
    return below(location, *(_folder_name(name) for name in (source, table) if name))


def _folder_name(name: str) -> str:
    """Return a name as that of a folder of its own, which no other name has, and which is in no other folder."""
    found = legal(name, max(0, len(legal(name)) - _LONGEST))  # I1
    return f"_x{ord(found[0]):04X}_{found[1:]}" if _TAKEN.fullmatch(found) else found


def check_folder(kind: str, location: str) -> str:
    """Check that a local folder is writable; other stores are not checked. Raises ``Unavailable``."""
    path = local_folder(location)
    if path is None:
        other = "; only EMR has s3://, and Spark elsewhere s3a://" if location.startswith(("s3:", "delta+s3:")) else ""
        return f"not checked: it is not a local folder{other}"
    # Path.exists raises where one may not look.
    nearest = next(each for each in (path, *path.parents) if os.path.exists(each))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise Unavailable(f"cannot write to {nearest}: the {kind} needs a writable folder")
    where = "" if path.is_absolute() else f" in {Path.cwd()}, where this command runs: write the folder in full"
    return ("writable" if nearest == path else "will be created") + where


def below(location: str, *names: str) -> str:
    """Return the location of something in the folder ``location``."""
    return "/".join((location.rstrip("/"), *names))


def refuse_on_cluster(what: str, location: str, master: str) -> None:
    """Raise ``ConfigError`` for a local folder, which is another one on each machine of the cluster ``master``."""
    if (folder := local_folder(location)) is not None:
        raise ConfigError(
            f"{what} is the local folder {folder}, but Spark runs on the cluster {master}: give it a location that all "
            "machines reach, such as hdfs://host/folder or s3a://bucket/folder; or set `spark.shared_folders: true` in "
            "the config if this folder is the same one on all of them"
        )


def sync(folder: Path) -> None:
    """Make durable what was renamed in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(renames: Iterable[tuple[str, str]]) -> None:
    """Rename in order, durably, leaving out what is done."""
    for old, new in renames:
        if Path(old).exists() and not Path(new).exists():
            Path(old).rename(new)
            sync(Path(old).parent)
            sync(Path(new).parent)


class LocalFolder:
    """A folder with small text files. ``uri``: as Spark takes it."""

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
        """Write a file, durably, in full or not at all. Raises ``OSError``."""
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
    """A folder with the methods of `LocalFolder`, on a file system that Hadoop knows, as ``session`` is set up for it.

    It goes by what Spark writes its own checkpoints with, so it is atomic wherever those are.
    """

    def __init__(self, uri: str, session: SparkSession) -> None:
        self.uri = uri
        jvm: Any = session._jvm
        self._jvm = jvm
        conf = session._jsparkSession.sessionState().newHadoopConf()
        managers = getattr(self._jvm.org.apache.spark.sql.execution.streaming, "CheckpointFileManager$")
        self._files = getattr(managers, "MODULE$").create(self._path(), conf)

    def read(self, name: str) -> str | None:
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
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
        if not self._files.exists(path):
            return []
        return [status.getPath().getName() for status in self._files.list(path)]

    def _path(self, *names: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(below(self.uri, *names))
