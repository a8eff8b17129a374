"""Where a shard stands now, and why a stream over it may be silent: questions to vtgate beside the stream."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container

from relay import gtid
from relay.errors import RelayError
from relay.gtid import GtidError, GtidSet
from relay.vitess.call import Call
from relay.vitess.client import CURRENT, Vtgate
from relay.vitess.http2 import CallEnded
from relay.vitess.proto import vtgate_pb2 as pb


class Head:
    """The head of a shard: the position that a stream which begins at `current` starts with.

    ``ask`` opens such a stream, ``poll`` looks for the answer without waiting and ends it. ``patience``: seconds after
    which a question without an answer may be asked again.
    """

    def __init__(
        self,
        vtgate: Vtgate,
        keyspace: str,
        shard: str,
        table: str,
        *,
        tablet_type: str,
        cells: str,
        patience: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._vtgate = vtgate
        self._patience = patience
        self._at = pb.ShardGtid(keyspace=keyspace, shard=shard, gtid=CURRENT)
        # One table, so that little comes until the stream is ended.
        self._rules = {table: select_all(table)}
        self._tablet_type = tablet_type
        self._cells = cells
        self._clock = clock
        self._stream: Call | None = None
        self._asked = 0.0
        # When the question that is open was asked, by the monotonic clock.
        self.asked_at = 0.0
        # Why the last question had no answer.
        self.failed: str | None = None

    @property
    def is_asking(self) -> bool:
        return self._stream is not None

    def ask(self) -> None:
        """Ask, unless there is a question without an answer, which is not an old one."""
        if self._stream is not None and time.monotonic() - self.asked_at > self._patience:
            self.close()
        if self._stream is None:
            self._asked = self._clock()
            self.asked_at = time.monotonic()
            self._stream = self._vtgate.vstream(
                [self._at],
                self._rules,
                tablet_type=self._tablet_type,
                cells=self._cells,
                heartbeat=0,
            )

    def poll(self, timeout: float = 0.0) -> tuple[float, GtidSet] | None:
        """Return when it was asked, in seconds of the clock, and the set executed then; None without an answer."""
        if self._stream is None:
            return None
        try:
            answers = self._stream.take(timeout)
        except CallEnded as ended:
            self.failed = str(ended)
            self.close()
            return None
        for answer in answers:
            for event in pb.VStreamResponse.FromString(answer).events:
                for at in event.vgtid.shard_gtids:
                    if at.gtid in ("", CURRENT):
                        continue
                    try:
                        head = gtid.parse(at.gtid)
                    except GtidError as error:
                        self.failed = f"its position cannot be read: {error}"
                        self.close()
                        return None
                    self.failed = None
                    self.close()
                    return self._asked, head
        return None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def select_all(table: str) -> str:
    """Return the select that takes every row of ``table``: without one v23 answers "Query was empty"."""
    quoted = table.replace("`", "``")
    return f"select * from `{quoted}`"


def rule(table: str, gone: Container[str]) -> tuple[str, str]:
    """Return what takes ``table`` and how. Of one that is gone by a pattern: at its name vtgate copies none at all."""
    return (f"/^{re.escape(table)}$", "") if table in gone else (table, select_all(table))


def why_silent(vtgate: Vtgate, keyspace: str, shard: str, tablet_type: str) -> str:
    """Ask what is wrong with a shard of which nothing comes. Takes up to some seconds."""
    try:
        shards = [
            row for row in vtgate.execute("show vitess_shards", timeout=3) if f"{keyspace}/{shard}" in row.values()
        ]
        tablets = [
            row
            for row in vtgate.execute("show vitess_tablets", timeout=3)
            if row.get("Keyspace") == keyspace and row.get("Shard") == shard
        ]
    except RelayError as error:
        return str(error)
    if not tablets:
        return "vtgate knows no tablet of it" + ("" if shards else ", and does not serve the shard")
    serving = [row for row in tablets if row.get("TabletType") == tablet_type and row.get("State") == "SERVING"]
    if not serving:
        there = ", ".join(sorted(f"{row.get('Alias')} {row.get('TabletType')} {row.get('State')}" for row in tablets))
        return f"no {tablet_type} tablet of it serves ({there}): start one, or choose another `tablet_type`"
    return f"{len(serving)} {tablet_type} tablets of it serve, so the reason is in the logs of vtgate and of these"


def missing_before(vtgate: Vtgate, keyspace: str, shard: str, tablet_type: str, flavour: str) -> GtidSet | None:
    """Return the set of which a tablet of the shard has the binlogs no more; None if that cannot be asked."""
    target = f"{keyspace}:{shard}@{tablet_type.lower()}"
    try:
        if flavour == "MySQL56":
            return _first(vtgate.execute("select @@global.gtid_purged", target, timeout=3), flavour)
        logs = vtgate.execute("show binary logs", target, timeout=3)
        if not logs or not (first := next(iter(logs[0].values()))):
            return None
        name = first.replace("'", "''")
        return _first(vtgate.execute(f"select binlog_gtid_pos('{name}', 4)", target, timeout=3), flavour)
    except (RelayError, GtidError):
        return None


def row_images(vtgate: Vtgate, keyspace: str, shard: str, tablet_type: str) -> set[str]:
    """Return which columns the databases of a shard log of a row: `FULL`. What cannot be asked is left out.

    The primary writes what its replicas write again, each by its own setting.
    """
    found = set()
    for kind in {"primary", tablet_type.lower()}:
        try:
            rows = vtgate.execute("select @@global.binlog_row_image", f"{keyspace}:{shard}@{kind}", timeout=3)
        except RelayError:
            continue
        value = _value(rows)
        if value is not None and value.isidentifier():
            found.add(value.upper())
    return found


def _value(rows: list[dict[str, str | None]]) -> str | None:
    return next(iter(rows[0].values()), None) if rows else None


def _first(rows: list[dict[str, str | None]], flavour: str) -> GtidSet | None:
    value = _value(rows)
    return gtid.parse(f"{flavour}/{value}") if value is not None else None
