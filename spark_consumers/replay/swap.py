"""Puts a rebuilt target in the place of the present one, and lets the consumer go on where the replay ended.

The target and the consumer's checkpoint change together: a file in the checkpoint's folder says what to do, is written
before anything and removed after everything, and no consumer starts from that checkpoint meanwhile. Each step may be
done again.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

from relay.errors import ConfigError, Unavailable
from relay.kafka.group_offsets import GroupOffsets, Offsets
from spark_consumers.checkpoint import SWAP, ConsumerCheckpoint
from spark_consumers.locations import rename, sync
from spark_consumers.locks import Lock
from spark_consumers.replay.target import ReplayTarget
from spark_consumers.running import log_event
from spark_consumers.session import existing_session

_CHECKPOINT = ("spark", "start.json", "query.txt")


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
        target.place.refuse_swap(target.present)

    @property
    def is_pending(self) -> bool:
        return bool(self._plan)

    def begin(self, end: Offsets, topics: Mapping[str, str]) -> None:
        """Write down durably what to do. ``end``: where the consumer goes on. ``topics``: their ids.

        Raises ``Unavailable``.
        """
        stamp = time.strftime("before-%Y%m%dT%H%M%SZ", time.gmtime())
        with self._locked():
            self._plan = {
                "into": self._target.identity,
                "end": end,
                "topics": dict(topics),
                "stamp": stamp,
                "renames": self._target.place.renames(self._target.present, stamp),
            }
            self._checkpoint.folder.write(SWAP, json.dumps(self._plan))

    def finish(self, forget: Callable[[], None]) -> tuple[Offsets, list[str]]:
        """Do all of it, also what an earlier run has left; return where the consumer goes on, and what is kept.

        ``forget``: the replay. Raises ``Unavailable``.
        """
        stamp, end, topics = self._plan["stamp"], self._plan["end"], self._plan["topics"]
        with self._locked():
            earlier = self._folder / stamp
            earlier.mkdir(exist_ok=True)
            rename((str(self._folder / name), str(earlier / name)) for name in _CHECKPOINT)
            self._target.place.swap(stamp, self._plan["renames"])
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
        kept = self._target.place.kept(stamp, self._plan["renames"])
        log_event("swapped", consumer.name, target=self._target.name, kept=kept, checkpoint=str(earlier), offsets=end)
        return end, kept

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the locks of the consumer, so that it does not run. Raises ``Unavailable``."""
        of_checkpoint = Lock(self._folder / "lock", f"the checkpoint {self._folder}")
        with ExitStack() as stack:
            for lock in (of_checkpoint, *self._target.place.locks(self._target.present)):
                stack.enter_context(lock)
            yield


def _forget_tables() -> None:
    """Let a Spark that runs on in this process reread the tables."""
    session = existing_session()
    if session is not None:
        jvm: Any = session._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
