"""``relay verify CONFIG copy|log``: compares the rows of the copy, or the newest in the log, with the source."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from relay.config import Config, SourceConfig
from relay.config.topic_names import topics_of_cache
from relay.engine.kinds import kind_of
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.checkpoints import committed_records
from relay.kafka.committed import read_all_committed
from relay.kafka.group import has_members
from relay.kafka.group_offsets import GroupOffsets, Offsets
from relay.operations.compared_rows import ComparedKey, ComparedRow, ComparedTable, NoRoom, are_alike, digest_pairs
from relay.operations.suspicion import ROUNDS, Judgement, Settled, Suspicion, Terms
from relay.records import Shard
from relay.source import Opening, SourceRows
from relay.stream.watermark_records import OVERALL
from spark_consumers.kept_rows import KeptRows, kept_rows

_MOST_AGAIN = 100_000  # rows that are looked at again
_AT_ONCE = 1_000  # rows per look
_PATIENCE = 120.0  # seconds to wait for relay and consumer; the watermark of an idle shard is up to 75 s behind
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0  # seconds between two looks, which double each time
_EXAMPLES = 20
_ENDING = (ConfigError, Unavailable, NoRoom)  # errors that are not about one table
_NOT_COMPARED = "not compared"
_KINDS = ("missing", "extra", "different")
_Rows = tuple[ComparedRow | None, ComparedRow | None]  # the stored one and the source's


@dataclass(frozen=True, slots=True)
class WrongRow:
    """A row that has been wrong for ``seconds``. ``columns``: the stored and the true values of a different row."""

    kind: str
    key: dict[str, str]
    seconds: float
    columns: dict[str, list[str | None]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        found = {"kind": self.kind, "key": self.key, "seconds": round(self.seconds, 1)}
        columns = {name: {"kept": kept, "source": truth} for name, (kept, truth) in self.columns.items()}
        return {**found, "columns": columns} if columns else found


@dataclass(slots=True)
class TableVerification:
    """The result for one table. Each row is ``consistent``, wrong in some way, ``incomplete`` or ``unknown``."""

    table: str
    where: str
    within: float
    consistent: int = 0
    late: int = 0  # how many of the consistent ones differed at first
    slowest: float = 0.0  # the seconds until the last of them agreed
    incomplete: int = 0
    wrong: Counter[str] = field(default_factory=Counter)  # by kind
    unknown: Counter[str] = field(default_factory=Counter)  # by reason
    wrong_rows: list[WrongRow] = field(default_factory=list)
    incomplete_keys: list[dict[str, str]] = field(default_factory=list)
    duplicates: int = 0  # changes that the log has more than once, and keys that several rows of the copy have
    duplicated: list[tuple[str, str]] = field(default_factory=list)  # examples of both
    refused: str = ""  # why no row could be compared

    @property
    def checked(self) -> int:
        return self.consistent + self.wrong.total()

    @property
    def problems(self) -> str:
        """The problems in words; empty if there are none."""
        counts = [(self.wrong[kind], kind) for kind in _KINDS]
        counts.append((self.duplicates, "duplicated"))
        return ", ".join([f"{count} {what}" for count, what in counts if count] + [self.refused] * bool(self.refused))

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "where": self.where,
            "checked": self.checked,
            "consistent": self.consistent,
            "late": self.late,
            "slowest_seconds": round(self.slowest, 1),
            **{kind: self.wrong[kind] for kind in _KINDS},
            "duplicates": self.duplicates,
            "incomplete": self.incomplete,
            "unknown": self.unknown.total(),
            "within_seconds": self.within,
            "wrong_rows": [each.to_json() for each in self.wrong_rows],
            "duplicated": [{"event_id": event_id, "key": key} for event_id, key in self.duplicated],
            "incomplete_keys": self.incomplete_keys,
            "unknown_reasons": dict(self.unknown),
            **({"refused": self.refused} if self.refused else {}),
        }


def verify_tables(
    config: Config, kind: str, *, sample: int | None, within: float, say: Callable[[str], None] = lambda text: None
) -> Iterator[TableVerification]:
    """Compare the ``copy`` or the ``log`` of each table with its source, and yield one result per table.

    ``sample``: about how many rows of each table and side to compare; None means all. ``within``: seconds that relay
    and consumer may take for a change. ``say``: receives progress messages. Raises ``ConfigError`` and ``Unavailable``.
    """
    if (config.copy_ if kind == "copy" else config.log) is None:
        raise ConfigError(f"the config has no `{kind}:` section: add one to verify the {kind}")
    with closing(AppliedTime(config, kind)) as applied, kept_rows(config, kind) as open_kept:

        def verify(rows: SourceRows) -> TableVerification:
            table = ComparedTable(rows.schema)
            kept = open_kept(table.layout, table.wanted)
            return TableVerifier(table, rows, kept, applied, within, say).run(sample)

        for entry in config.sources:
            open_rows = partial(kind_of(entry).rows, entry, partial(open_shards, config, entry))
            for found in verify_source(open_rows, entry.table_names, verify, within):
                if found.wrong and not applied.is_running:
                    say("no relay is running: changes since it stopped count as differences until it has run again")
                yield found


def verify_source(
    open_rows: Callable[[Sequence[str]], Iterator[SourceRows]],
    tables: Iterable[str],
    verify: Callable[[SourceRows], TableVerification],
    within: float,
) -> Iterator[TableVerification]:
    """``verify`` the ``tables`` that ``open_rows`` opens, one after another, and refuse what cannot be compared."""
    left = [*tables]
    while left:
        try:
            for rows in open_rows([*left]):
                with closing(rows):
                    found = _verified(rows, verify, within)
                del left[0]
                yield found
        except _ENDING:
            raise
        except RelayError as error:  # I12: for example, the source lacks the table
            yield TableVerification(left.pop(0), _NOT_COMPARED, within, refused=str(error))


def _verified(rows: SourceRows, verify: Callable[[SourceRows], TableVerification], within: float) -> TableVerification:
    try:
        return verify(rows)
    except _ENDING:
        raise
    except RelayError as error:  # I12: for example, the stored rows have another key
        return TableVerification(rows.schema.table, _NOT_COMPARED, within, refused=str(error))


@dataclass
class TableVerifier:
    """Compares one table. ``clock``: returns seconds since the epoch. ``applied``: reports the consumer's progress."""

    table: ComparedTable
    truth: SourceRows
    kept: KeptRows
    applied: AppliedTime
    within: float
    say: Callable[[str], None]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    _waiting: dict[ComparedKey, Suspicion] = field(default_factory=dict, init=False)
    _result: TableVerification = field(init=False)

    def __post_init__(self) -> None:
        self._result = TableVerification(self.table.table, self.kept.where, self.within)

    def run(self, sample: int | None) -> TableVerification:
        result = self._result
        if sample is None:
            self._compare_all()
            duplicates, duplicated = self.kept.duplicates()
            result.duplicates += duplicates
            result.duplicated += duplicated
        else:
            now = self.clock()
            rows = [*self._true_rows(self.truth.some(sample)), *self._kept_rows(self.kept.some(sample))]
            self._waiting = {row.key: Suspicion(now, now) for row in rows}
        self._look(is_first=sample is not None)
        if self._waiting:
            self.say(
                f"{len(self._waiting)} rows of {result.table} differ from the source: looking again for "
                f"{self.within:g} s or more"
            )
        pause = _FIRST_PAUSE
        while self._waiting:
            self.sleep(min(pause, self.within / 4))
            begun = self.clock()
            self._look()
            pause = min(max(2 * pause, self.clock() - begun), _LONGEST_PAUSE)
        return result

    def _compare_all(self) -> None:
        # The kept rows first: rows that change in between differ, and are looked at again.
        result, left_out, twice = self._result, 0, list[ComparedKey]()
        for pair in digest_pairs(self._kept_rows(self.kept.all()), self._true_rows(self.truth.all())):
            if pair.is_twice:  # I7
                result.duplicates += 1
                twice += [pair.key] if len(twice) < _EXAMPLES else []
            if are_alike(pair.kept, pair.truth):
                result.consistent += 1
            elif len(self._waiting) < _MOST_AGAIN:  # I11
                now = self.clock()
                self._waiting[pair.key] = Suspicion(now, now)
            else:
                left_out += 1
        if left_out:
            result.unknown[f"only the first {_MOST_AGAIN} rows that differ are looked at again"] += left_out
        if twice:
            rows = self._kept_rows(self.kept.of(twice))
            named = [(row.event_id, orjson.dumps(self.table.shown(row.key)).decode()) for row in rows]
            result.duplicated = named[:_EXAMPLES]

    def _look(self, *, is_first: bool = False) -> None:
        """Look again at the waiting rows, and count the settled ones. ``is_first``: whether this is the first look."""
        through = self.applied.through()  # before the kept rows are read
        keys = list(self._waiting)
        for at in range(0, len(keys), _AT_ONCE):
            several = keys[at : at + _AT_ONCE]
            kept = {row.key: row for row in self._kept_rows(self.kept.of(several))}
            truth = {row.key: row for row in self._true_rows(self.truth.of(several))}
            now = self.clock()
            terms = Terms(now, through, self.within, max(ROUNDS * self.within, self.within + _PATIENCE))
            for key in several:
                rows = kept.get(key), truth.get(key)
                settled = self._waiting[key].of_row(*rows, terms, from_start=self.kept.from_start)
                if settled is not None:
                    self._settle(key, settled, rows, now - self._waiting.pop(key).first, is_first=is_first)

    def _settle(self, key: ComparedKey, settled: Settled, rows: _Rows, seconds: float, *, is_first: bool) -> None:
        result, (judgement, detail) = self._result, settled
        if judgement is Judgement.CONSISTENT:
            result.consistent += 1
            if not is_first:
                result.late += 1
                result.slowest = max(result.slowest, seconds)
        elif judgement is Judgement.INCOMPLETE:
            result.incomplete += 1
            result.incomplete_keys += [self.table.shown(key)] if result.incomplete <= _EXAMPLES else []
        elif judgement is Judgement.UNKNOWN:
            result.unknown[detail] += 1
        else:
            result.wrong[detail] += 1
            if len(result.wrong_rows) < _EXAMPLES:
                columns = self.table.differences(*rows)
                result.wrong_rows.append(WrongRow(detail, self.table.shown(key), seconds, columns))

    def _kept_rows(self, rows: Iterable[Any]) -> Iterator[ComparedRow]:
        return map(self.table.of_kept, rows)

    def _true_rows(self, rows: Iterable[tuple[Any, Any]]) -> Iterator[ComparedRow]:
        return (self.table.of_source(key, image) for key, image in rows)


class AppliedTime:
    """How far the consumer ``kind`` has applied commits at the sources. Methods raise ``Unavailable``."""

    def __init__(self, config: Config, kind: str) -> None:
        self._config = config
        self._admin = topics.connect(config)
        topics_of = [*dict.fromkeys(map(config.topic, config.tables))]
        if kind == "cache" and config.cache is not None:
            topics_of = topics_of_cache(config, config.cache)
        self._group = GroupOffsets(config, kind, topics_of)
        self._through = 0.0
        # A time, and the ends of the topics that contain everything committed before it.
        self._awaited: tuple[float, Offsets] | None = None
        sections = {"log": config.log, "copy": config.copy_}
        self.apply_every = each.apply_every if (each := sections.get(kind)) else 0.0  # seconds that records may wait
        # At the last look:
        self.is_running = True  # whether a relay was running
        self.waiting = 0  # how many offsets the consumer lacked of those that it was awaited to reach
        self.committed: Offsets = {}  # those of its group

    def close(self) -> None:
        self._group.close()

    def through(self) -> float:
        """Return a time in seconds up to which all commits at the sources are applied; 0 while unknown.

        If no relay runs, the topics stop growing, so only their ends count.
        """
        if self._awaited is None:
            published = self._published()  # before the ends are read
            self._awaited = published, self._group.locate({})[1]
        published, ends = self._awaited
        self.committed = committed = self._group.committed() or {}
        self.waiting = sum(
            max(0, end - max(0, committed.get(topic, {}).get(partition, 0)))
            for topic, of_topic in ends.items()
            for partition, end in of_topic.items()
        )
        if self.waiting:
            return self._through
        self._awaited = None
        reached = max(self._through, published)
        if self.is_running:  # I1: what is committed while no relay runs is on no topic yet when one runs again
            self._through = reached
        return reached

    def _published(self) -> float:
        now, config = time.time(), self._config
        self.is_running = has_members(self._admin, f"{config.name}.relay")
        if not self.is_running:
            return now
        found = 0.0
        for message in read_all_committed(self._admin, config, config.internal("watermarks")):
            if message.key() == OVERALL and message.value():
                found = max(found, float(orjson.loads(message.value() or b"")["watermark"]))
        return found


def open_shards(config: Config, entry: SourceConfig) -> list[Opening]:
    """Return the shards that have not ended: during a reshard, old and new shards have its rows."""
    committed = committed_records(config).newest(entry.name)
    checkpoints, plan = (committed.checkpoints, committed.plan) if committed is not None else ({}, None)
    keys, hashed = (plan.keys, plan.hashed) if plan is not None else ({}, {})
    found = [
        Opening(Shard(id), each.start or {}, keys=keys, hashed=hashed)
        for id, each in sorted(checkpoints.items())
        if not each.state.ended
    ]
    if not found:
        raise Unavailable(f"source {entry.name} has not been read yet: start `relay run` first")
    return found
