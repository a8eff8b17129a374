"""Tables that a stream's plan lacks: checkpoints that cover their changes announce them to the owner of the plan."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, islice

from relay.config.topic_routes import TopicClaims
from relay.records import CommittedStream, Plan, UnplannedTable
from relay.source import Source
from relay.stream.planning import key_of
from relay.stream.topic_partitions import topic_under
from relay.table import TableSchema

_MOST_NAMED = 500  # tables in one checkpoint, whose record would otherwise become too large


class NewTables:
    def __init__(self, source: Source, committed: CommittedStream, claims: TopicClaims) -> None:
        self._source = source
        self._claims = claims
        self._committed = committed
        # Tables that may be missing from the plan, and those among them whose changes pages had.
        self._new: dict[str, TableSchema] = {}
        self._met: dict[str, TableSchema] = {}
        self._last_plan: Plan | None = None  # the plan at the last call of `take_added`

    def begin(self, plan: Plan, tables: Iterable[TableSchema]) -> None:
        """Begin with a checked plan, and the source's ``tables``, which the plan may lack."""
        self._last_plan = plan
        self._new |= {table.table: table for table in tables}

    def meet(self, plan: Plan, tables: Iterable[TableSchema]) -> None:
        """Note which of ``tables``, whose changes a page has, ``plan`` lacks."""
        met = {table.table: table for table in tables if table.table not in plan.keys}
        self._new |= met
        self._met |= met

    def added(self) -> Plan | None:
        """Return the plan with the tables that it lacks; None if it lacks none, or if its source cannot get any."""
        if (plan := self._committed.plan) is None or not self._source.has_journals:
            return None
        # Kept until the plan shows them: the transaction that adds them may be aborted.
        self._new = {name: table for name, table in self._new.items() if name not in plan.keys}
        return _with(plan, {**self._unplanned(self._new.values()), **_announced(self._committed)}, self._claims)

    def take_added(self) -> list[str]:
        """Return the tables that were added to the plan since the last call, whichever worker found them."""
        before, plan = self._last_plan, self._committed.plan
        self._last_plan = plan
        if before is None or plan is None or before is plan:
            return []
        return [table for table in plan.keys if table not in before.keys]

    def unplanned(self) -> Mapping[str, UnplannedTable]:
        """Return the tables of this worker's pages that the plan lacks, for the checkpoint that covers them."""
        plan = self._committed.plan
        if not self._met or plan is None:
            return {}
        self._met = {name: table for name, table in self._met.items() if name not in plan.keys}
        return self._unplanned(islice(self._met.values(), _MOST_NAMED))

    def known_in(self, plan: Plan) -> Plan:
        """Return ``plan`` with the tables that, by the committed checkpoints, it lacks."""
        return known_in(plan, self._committed, self._claims)

    def _unplanned(self, tables: Iterable[TableSchema]) -> dict[str, UnplannedTable]:
        topic = self._claims.topic
        return {each.table: UnplannedTable(key_of(each), each.hash_columns, topic(each.table)) for each in tables}


def known_in(plan: Plan, committed: CommittedStream, claims: TopicClaims) -> Plan:
    """Return the ``plan`` of a stream with the tables that, by the ``committed`` checkpoints, it lacks."""
    return _with(plan, _announced(committed), claims) or plan


def _announced(committed: CommittedStream) -> Mapping[str, UnplannedTable]:
    shards, segments = committed.checkpoints.values(), committed.segments.values()
    told = chain((each.unplanned for each in shards), (each.unplanned for each in segments))
    return {name: table for tables in told for name, table in tables.items()}


def _with(plan: Plan, tables: Mapping[str, UnplannedTable], claims: TopicClaims) -> Plan | None:
    """Return ``plan`` with the keys and topics of the ``tables`` that it lacks, or None if it has them all."""
    new = {name: table for name, table in tables.items() if name not in plan.keys}
    if not new:
        return None
    keys = {name: table.key for name, table in new.items()}
    hashed = {name: table.hashed for name, table in new.items()}
    found = replace(plan, keys={**plan.keys, **keys}, hashed={**plan.hashed, **hashed})
    told = {name: each.topic for name, each in new.items() if each.topic}
    others = {name: told[name] for name in told if told[name] != topic_under(found, name, claims)}
    return replace(found, topics={**others, **plan.topics})
