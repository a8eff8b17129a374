"""A copy or a log in Delta, and any folder of Delta tables: a replay and the present ones change places by renames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from relay.config import Config, CopyConfig, LogConfig, redacted
from relay.errors import ConfigError
from spark_consumers import locations
from spark_consumers.kept_rows import OpenKeptRows
from spark_consumers.locations import HadoopFolder, LocalFolder, Lock, check_folder, local_folder
from spark_consumers.sinks.places import NOTE, Renames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_consumers.sinks.delta_copy import DeltaTable
    from spark_consumers.sinks.delta_log import DeltaLog


class DeltaPlace:
    """The folder ``location``. ``beside``: how the names of folders end that belong to it."""

    def __init__(self, location: str, beside: Sequence[str] = ()) -> None:
        self.location: str | None = location
        self.place = locations.spark_path(location)
        self._folder = local_folder(location)
        self._shown = redacted(location)
        self._beside = beside

    def change_note(self, session: SparkSession, room: str, rule: Callable[[str], str]) -> str:
        location = locations.table_folder(self.place if self._folder is None else str(self._folder), room)
        folder = HadoopFolder(location, session) if self._folder is None else LocalFolder(Path(location))
        before = folder.read(NOTE) or ""
        after = rule(before)
        if after != before:
            folder.write(NOTE, after)
        return after

    def content(self, session: SparkSession) -> str | None:
        return "the folder is not empty" if HadoopFolder(self.place, session).names("") else None

    def refuse_swap(self, present: str) -> None:
        there = local_folder(present)
        if self._folder is None or there is None:
            raise ConfigError(
                f"--swap: only two folders on this machine can be swapped safely, not {present} and "
                f"{self._shown}: omit --swap, set the config to the new place, and start the consumer with a new "
                "--checkpoint and `--from` the offsets that the replay ends with"
            )
        if _device(self._folder) != _device(there):
            raise ConfigError(
                f"--swap: {self._folder} and {there} are on different file systems: choose a location beside {there}"
            )

    def locks(self, present: str) -> list[Lock]:
        found = [locations.lock_of(location) for location in (present, self.location)]
        return [lock for lock in found if lock is not None]

    def renames(self, present: str, stamp: str) -> Renames:
        here, there = self._folder, local_folder(present)
        assert here is not None
        assert there is not None
        found = []
        for suffix in (*self._beside, ""):
            rebuilt, earlier = (Path(f"{folder}{suffix}") for folder in (here, there))
            if earlier.exists():
                found.append((str(earlier), f"{earlier}.{stamp}"))
            if rebuilt.exists():
                found.append((str(rebuilt), str(earlier)))
        return found

    def swap(self, stamp: str, renames: Renames) -> None:
        locations.rename(renames)

    def kept(self, stamp: str, renames: Renames) -> list[str]:
        return [new for _, new in renames if new.endswith(stamp)]


class DeltaTarget(DeltaPlace):
    def __init__(self, copy: CopyConfig) -> None:
        super().__init__(copy.url)
        self._copy = copy

    def open(self) -> Callable[[str, str], DeltaTable]:
        from spark_consumers.sinks.delta_copy import DeltaTable

        return partial(DeltaTable, self.place, self._copy, items=self._copy.items)

    def check(self, *, offline: bool) -> str:
        return check_folder("copy", self._copy.url)

    @contextmanager
    def kept_rows(self, config: Config) -> Iterator[OpenKeptRows]:
        from spark_consumers.session import delta_session
        from spark_consumers.sinks.kept_in_spark import KeptInLake, KeptInSpark

        with delta_session(config.spark) as session:
            yield partial(KeptInSpark, partial(KeptInLake, session, self.open()))


class DeltaLogTarget(DeltaPlace):
    """The log of ``log``, or of one ``keyrange``, which has a folder of its own."""

    def __init__(self, log: LogConfig, keyrange: str = "") -> None:
        super().__init__(f"{log.path.rstrip('/')}.{keyrange}" if keyrange else log.path, beside=["_gaps"])
        self._log = log

    def open(self, *, writes: bool = False) -> DeltaLog:
        from spark_consumers.sinks.delta_log import DeltaLog

        return DeltaLog(self.place, self._log)

    def check(self) -> str:
        return check_folder("log", self._log.path)


def _device(folder: Path) -> int:
    """Return the file system of a folder, which need not exist."""
    while not folder.exists():
        folder = folder.parent
    return folder.stat().st_dev
