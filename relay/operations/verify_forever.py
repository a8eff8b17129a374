"""``relay verify --forever``: samples what the sinks keep beside the running system, and accuses what stays wrong."""

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from relay.cache import entry_key, open_store
from relay.cache.keys import CacheRules, ReducedChange, cache_keys
from relay.cache.store import SampledStore
from relay.change import Operation
from relay.config import Config
from relay.engine.kinds import kind_of
from relay.errors import RelayError
from relay.kafka.changes import ReceivedChange, Reception
from relay.observe.verifier import Accusation, VerifierObserver
from relay.operations.compared_rows import ComparedTable
from relay.operations.expected_values import Comparison, ServedValue, truth
from relay.operations.samples import PICKED, Key, Samples
from relay.operations.verify_cache import served_values
from relay.operations.verify_tables import AppliedTime, open_shards
from relay.source import SourceRows
from spark_consumers.kept_rows import OpenKeptRows, kept_rows

ROUND = 15.0  # seconds of a round
_CHANGES = 20_000  # changes that pass in a round; then the verifier skips to the newest ones
_OPENED = 50  # tables that a round opens only to know their keys
_FAILURES = 3  # tables of a source that a round fails to open until it leaves the source alone
OpenTables = Callable[[Collection[str]], Iterator[SourceRows]]  # opens tables of a source, one after another
CompareValues = Callable[[Mapping[str, ServedValue]], Mapping[str, Comparison]]  # by key


class WatchedTables(Samples):
    """The copy or the log. ``sources``: opens the tables of each source; ``tables``: the source of each table."""

    def __init__(
        self, *arguments: Any, sources: Mapping[str, OpenTables], tables: Mapping[str, str], kept: OpenKeptRows
    ) -> None:
        super().__init__(*arguments)
        self._sources, self._source_of, self._open_kept = sources, tables, kept
        self._known: dict[str, ComparedTable] = {}
        self._to_pick: deque[str] = deque(random.sample(sorted(tables), len(tables)))
        self._picks = 0

    def keys_of(self, change: ReceivedChange) -> Iterator[Key]:
        table = self._known.get(change.table)
        if table is not None and change.key is not None and {each.name for each in table.key} <= change.key.keys():
            yield change.table, table.key_of(change.key)

    def pick(self, count: int) -> Sequence[Key]:
        self._to_pick.rotate()  # one table each time, since that reads all its rows
        self._picks = count
        return ()

    def shown(self, key: Key) -> Mapping[str, str]:
        return self._known[key[0]].shown(key[1]) if key[0] else {}

    def look_at(self, keys: Collection[Key]) -> str | None:
        by_table: dict[str, list[tuple[str, ...]]] = {}
        for table, key in keys:
            by_table.setdefault(table, []).append(key)
        picked, self._picks = self._to_pick[0] if self._picks else "", 0
        unknown = islice(self._source_of.keys() - self._known.keys(), _OPENED)
        by_table = {table: [] for table in (picked, *unknown) if table} | by_table
        failed = list[str]()
        for source, open_tables in self._sources.items():
            left = [table for table in by_table if self._source_of.get(table) == source]
            random.shuffle(left)
            for _ in range(_FAILURES):
                try:
                    for rows in open_tables([*left]) if left else ():
                        with closing(rows):
                            self._look_at_table(rows, by_table[left[0]], is_picked=left[0] == picked)
                        del left[0]
                    break
                except RelayError as error:  # I12
                    failed.append(str(error))
                    table = left.pop(0)
                    self.have_failed([(table, key) for key in by_table[table]], str(error))
        return "; ".join(failed) or None

    def _look_at_table(self, rows: SourceRows, keys: Sequence[tuple[str, ...]], *, is_picked: bool) -> None:
        table = ComparedTable(rows.schema)
        before = self._known.get(table.table, table)
        if [each.name for each in before.key] != [each.name for each in table.key]:
            self.forget(table.table)  # while it is known by its old key
        self._known[table.table] = table
        keys = [key for key in keys if (table.table, key) in self.watched]
        opened = self._open_kept(table.layout, table.wanted) if keys or is_picked else None
        if opened is None:
            return
        if is_picked:
            found = [table.of_kept(row).key for row in opened.some(PICKED)]
            self.watch(((table.table, key), None) for key in found)
        if not keys:
            return
        kept = {row.key: row for row in map(table.of_kept, opened.of(keys))}
        truth = {row.key: row for row in (table.of_source(*row) for row in rows.of(keys))}
        self.have_looked(table.table)
        changes = [each for key in keys for each in self.watched[table.table, key].changes()]
        oldest = min((each["committed_at"] for each in changes), default=0.0)
        counts = opened.counted([each["event_id"] for each in changes], oldest) if changes else None
        for key in keys:
            stored, true, watched = kept.get(key), truth.get(key), self.watched[table.table, key]
            ids = [each["event_id"] for each in watched.changes()]
            times = [(each, counts.get(each, 0)) for each in ids] if counts is not None else []
            wrong = next((each for each in times if each[1] != 1), None)  # I7
            if wrong is not None:  # before the row, which is often wrong because of it
                kind = "doubled" if wrong[1] else "lost"
                settled = watched.suspicion.of_difference(f"{kind} change", wrong, self.terms)
            else:
                settled = watched.suspicion.of_row(stored, true, self.terms, from_start=opened.from_start)
            shown = stored and {"event_id": stored.event_id, "digest": stored.digest[:8]}
            seen = {"what": "look", "kept": shown, "source": true and {"digest": true.digest[:8]}}
            self.settle((table.table, key), settled, seen, [*table.differences(stored, true)])


class WatchedCache(Samples):
    """The cache. ``compare``: such as `LoadersTruth.compare`. ``rules``: the cache's keys."""

    def __init__(
        self, *arguments: Any, store: SampledStore, namespace: str, compare: CompareValues, rules: CacheRules
    ) -> None:
        super().__init__(*arguments)
        self._store, self._namespace, self._compare, self._rules = store, namespace, compare, rules

    def keys_of(self, change: ReceivedChange) -> list[Key]:
        if change.key is None or change.operation is Operation.TRUNCATE:
            return []
        reduced = ReducedChange(
            change.operation, change.source, change.table, change.key, change.old, change.new, change.token
        )
        try:
            return [("", (key,)) for key in cache_keys(reduced, self._rules.of_table(change.table))]
        except ValueError:  # the consumer invalidates the whole namespace
            return []

    def pick(self, count: int) -> list[Key]:
        prefix = entry_key(self._namespace, "")
        return [("", (name.removeprefix(prefix),)) for name in self._store.sample(prefix, count)]

    def shown(self, key: Key) -> Mapping[str, str]:
        return {"key": key[1][0]} if key[1] else {}

    def look_at(self, keys: Collection[Key]) -> None:
        wanted = [key for _, (key,) in keys]
        served = served_values(self._store, self._namespace, wanted, self.clock()) if wanted else {}
        compared = self._compare(served) if served else {}
        self.have_looked()
        for key in wanted:
            value, found, suspicion = served.get(key), compared.get(key), self.watched["", (key,)].suspicion
            if found is not None and found.misplaced:
                settled = suspicion.of_difference("misplaced", "misplaced", self.terms)
            else:
                settled = suspicion.of_value(value, found, self.terms)
            shown = None
            if value is not None:
                tokens = {shard: token and token.to_json() for shard, token in value.tokens.items()}
                shown = {"tokens": tokens, "is_as_source": found is not None and found.is_same}
            self.settle(("", (key,)), settled, {"what": "look", "served": shown})


@dataclass
class ForeverVerifier:
    sinks: Sequence[Samples]
    open_changes: Callable[[], Reception]  # opens the topics at their ends
    observer: VerifierObserver
    rate: float  # rows that it reads a second, on average, over all sinks
    say: Callable[[str], None]  # receives why a sink cannot be looked at, and why samples are unknown
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    _changes: Reception | None = field(default=None, init=False)

    def round(self) -> None:
        unread = self._let_pass(self.clock() + ROUND)
        most = max(1, int(self.rate * ROUND / len(self.sinks)))
        for sink in self.sinks:
            reason = sink.look(most) or unread
            if (reason or sink.has_read) and self.observer.look(sink.name, reason):
                self.say(
                    f"{sink.name} cannot be looked at: {reason}" if reason else f"{sink.name} can be looked at again"
                )
            for reason in self.observer.new_reasons(sink.name):
                self.say(f"{sink.name} has samples that are unknown: {reason}")

    def close(self) -> None:
        if self._changes is not None:
            self._changes.close()
            self._changes = None

    def _let_pass(self, until: float) -> str | None:
        """Take the changes that come until then, and return why they could not be read."""
        passed, reason = 0, None
        while (left := until - self.clock()) > 0:
            change = None
            try:
                if self._changes is None:
                    self._changes = self.open_changes()
                change = self._changes.poll(min(left, 0.5))
            except RelayError as error:
                reason = str(error)
            passed += change is not None
            if reason or passed >= _CHANGES:
                self.close()
                self.sleep(left)
            elif change is not None:
                for sink in self.sinks:
                    sink.pass_by(change)
        return reason


@contextmanager
def open_verifier(
    config: Config,
    kinds: Sequence[str],
    observer: VerifierObserver,
    *,
    rate: float,
    loaders: Sequence[str],
    tell: Callable[[Accusation], None],
    say: Callable[[str], None],
) -> Iterator[ForeverVerifier]:
    """Yield the verifier of the ``kinds`` of sinks. Raises ``ConfigError`` for an unusable loader, ``Unavailable``."""
    with ExitStack() as stack:
        sinks = list[Samples]()
        for kind in kinds:
            applied = stack.enter_context(closing(AppliedTime(config, kind)))
            common = kind, applied, observer, tell
            if kind == "cache" and (cache := config.cache) is not None:
                compare = stack.enter_context(closing(truth(config, loaders))).compare
                store = stack.enter_context(closing(open_store(cache.url)))
                rules = CacheRules(cache, config.sources)
                sinks.append(
                    WatchedCache(*common, store=store, namespace=cache.namespace, compare=compare, rules=rules)
                )
            else:
                kept = stack.enter_context(kept_rows(config, kind))
                sources = {
                    entry.name: partial(kind_of(entry).rows, entry, partial(open_shards, config, entry))
                    for entry in config.sources
                }
                tables = {table: entry.name for table, entry in config.tables.items()}
                sinks.append(WatchedTables(*common, sources=sources, tables=tables, kept=kept))

        def changes() -> Reception:
            return Reception(config, start="latest", on_gap=lambda _: None, on_undecodable=lambda *_: None)

        yield stack.enter_context(closing(ForeverVerifier(sinks, changes, observer, rate=rate, say=say)))
