"""Puts a rebuilt target in the place of the present one, and lets the consumer go on where the replay ended.

The target and the consumer's checkpoint change together: a file in the checkpoint's folder says what is to be done, is
written before anything and removed after everything, and no consumer starts from that checkpoint meanwhile. Each step
may be done again.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from relay.errors import ConfigError, Unavailable
from relay.kafka.group_offsets import GroupOffsets, Offsets
from spark_consumers.checkpoint import SWAP, ConsumerCheckpoint
from spark_consumers.locations import local_folder, sync
from spark_consumers.locks import Lock
from spark_consumers.replay.target import ReplayTarget
from spark_consumers.running import log_event
from spark_consumers.session import existing_session
from spark_consumers.sinks import delta

_CHECKPOINT = ("spark", "start.json")


class Swap:
    """Swaps ``target`` with what the config names. ``checkpoint``: the consumer's. Raises ``ConfigError`` if it cannot
    be done safely.
    """

    def __init__(self, target: ReplayTarget, checkpoint: str) -> None:
        self._target = target
        self._checkpoint = ConsumerCheckpoint(checkpoint)
        if self._checkpoint.local is None:
            raise ConfigError(f"--swap: the checkpoint {checkpoint} is not on this machine: see `relay replay --help`")
        self._folder = self._checkpoint.local
        self._plan: dict[str, Any] = json.loads(self._checkpoint.folder.read(SWAP) or "{}")
        if self._plan and self._plan["into"] != target.identity:
            raise ConfigError(f"--swap: another swap did not come to its end, of {self._plan['into']}: finish it first")
        if target.database is not None:
            if not target.prefix:
                raise ConfigError(
                    "--swap: in PostgreSQL schemas change places in one database: give --into schema:NAME"
                )
        elif target.folder is None or local_folder(target.present) is None:
            raise ConfigError(
                f"--swap: only folders of this machine can change places safely, not {target.present} and "
                f"{target.name}: leave --swap out, set the config to the new place, and start the consumer with a new "
                "--checkpoint and `--from` the offsets that the replay ends with"
            )
        elif _device(target.folder) != _device(self._present):
            raise ConfigError(
                f"--swap: {target.folder} and {self._present} are on two file systems: give a place beside it"
            )

    @property
    def is_pending(self) -> bool:
        return bool(self._plan)

    @property
    def _present(self) -> Path:
        folder = local_folder(self._target.present)
        assert folder is not None
        return folder.absolute()

    def begin(self, end: Offsets, topics: Mapping[str, str]) -> None:
        """Write down, durably, what is to be done. ``end``: where the consumer goes on. ``topics``: their ids.

        Raises ``Unavailable``.
        """
        stamp = time.strftime("before-%Y%m%dT%H%M%SZ", time.gmtime())
        with self._locked():
            self._plan = {
                "into": self._target.identity,
                "end": end,
                "topics": dict(topics),
                "stamp": stamp,
                "renames": self._renames(stamp),
            }
            self._checkpoint.folder.write(SWAP, json.dumps(self._plan))

    def finish(self, forget: Callable[[], None]) -> tuple[Offsets, list[str]]:
        """Do what is to be done, and what an earlier run has left; return where the consumer goes on, and what is kept.

        ``forget``: the replay. Raises ``Unavailable``.
        """
        stamp, end, topics = self._plan["stamp"], self._plan["end"], self._plan["topics"]
        with self._locked():
            earlier = self._folder / stamp
            earlier.mkdir(exist_ok=True)
            _rename([(str(self._folder / name), str(earlier / name)) for name in _CHECKPOINT])
            self._exchange(stamp)
            self._checkpoint.begin(end)
            self._checkpoint.note_topics(topics)  # I1
            forget()
            (self._folder / SWAP).replace(earlier / SWAP)
            sync(self._folder)
        _forget_tables()
        consumer = self._target.consumer()
        group = GroupOffsets(self._target.config, consumer.name, consumer.topics)
        with closing(group), contextlib.suppress(Unavailable):  # it only reports the lag
            group.commit(end, ids=topics, wait=True)
        kept = self._kept(stamp)
        log_event("swapped", consumer.name, target=self._target.name, kept=kept, checkpoint=str(earlier), offsets=end)
        return end, kept

    def _exchange(self, stamp: str) -> None:
        if self._target.database is None:
            _rename(self._plan["renames"])
            return
        from spark_consumers.sinks.postgres import PostgresDatabase, swap_schemas

        target = self._target
        names = target.schemas(target.prefix), target.schemas(), target.schemas(suffix=f"_{stamp}")
        swap_schemas(PostgresDatabase(self._target.database), list(zip(*names, strict=True)))

    def _kept(self, stamp: str) -> list[str]:
        if self._target.database is not None:
            return self._target.schemas(suffix=f"_{stamp}")
        return [new for old, new in self._plan["renames"] if new.endswith(stamp)]

    def _renames(self, stamp: str) -> list[tuple[str, str]]:
        """Return which folders are renamed, in their order. The log's gaps are in a table beside it."""
        if self._target.database is not None:
            return []
        assert self._target.folder is not None
        found = []
        for suffix in ("_gaps", "") if self._target.kind == "log" else ("",):
            new, present = (Path(f"{folder}{suffix}") for folder in (self._target.folder.absolute(), self._present))
            if present.exists():
                found.append((str(present), f"{present}.{stamp}"))
            if new.exists():
                found.append((str(new), str(present)))
        return found

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the locks of the consumer, so that it does not run. Raises ``Unavailable``."""
        wanted = [Lock(self._folder / "lock", f"the checkpoint {self._folder}")]
        if self._target.database is None:
            locks = [delta.lock(location) for location in (self._target.present, str(self._target.folder))]
            wanted += [lock for lock in locks if lock is not None]
        with ExitStack() as stack:
            for lock in wanted:
                lock.acquire()
                stack.callback(lock.release)
            yield


def _rename(renames: list[tuple[str, str]]) -> None:
    """Rename in order, durably, leaving out what is done."""
    for old, new in renames:
        if Path(old).exists() and not Path(new).exists():
            Path(old).rename(new)
            sync(Path(old).parent)
            sync(Path(new).parent)


def _device(folder: Path) -> int:
    """Return the file system of a folder, which need not exist."""
    while not folder.exists():
        folder = folder.parent
    return folder.stat().st_dev


def _forget_tables() -> None:
    """Let a Spark that runs on in this process read the tables anew."""
    session = existing_session()
    if session is not None:
        jvm: Any = session._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
