"""The topics of a plan's tables, and their partitions. The plan remembers both, because others would move changes."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from confluent_kafka.admin import AdminClient

from relay.change import MARK, Change, Images, Operation, event_id
from relay.config import Config
from relay.config.topic_routes import TopicClaims, by_table
from relay.kafka import topics
from relay.kafka.partition_offsets import offset_bounds
from relay.records import Plan
from relay.table import TableSchema


def with_partitions(plan: Plan, config: Config, requested: Mapping[str, int]) -> Plan:
    """Return ``plan`` with its topics and their partitions as ``config`` has them; itself if it has them already.

    ``requested``: by topic, the numbers that `relay repartition` has requested. These topics keep theirs, and a table
    keeps its topic: the plan remembers the routes of its tables.
    """
    now = _partitions(plan, config, requested)
    if now.items() <= plan.partitions.items() and plan.routes:
        return plan
    return replace(plan, partitions={**plan.partitions, **now}, routes=plan.routes or by_table(config.topics))


def topic_under(plan: Plan, table: str, claims: TopicClaims) -> str:
    """Return the topic to which the changes of a table went under ``plan``; "" if there were none."""
    if table not in plan.keys or not plan.routes:
        return ""
    return plan.topics.get(table) or claims.topic(table, plan.routes)


def moved_tables(plan: Plan, tables: Iterable[str], claims: TopicClaims) -> dict[str, str]:
    """Return, by table, that the config gives it another topic than its changes under ``plan`` went to."""
    found = {}
    for table in tables:
        if (old := topic_under(plan, table, claims)) and old != (new := claims.topic(table)):  # I2
            found[table] = (
                f"the changes of table {table} went to topic {old}, but the config says {new}: whoever reads {old} "
                "would miss the next changes. Set `topics` back. To move the table, stop the relay, let every consumer "
                f"read {old} to its end, and confirm it with `relay reset CONFIG --moved {table}` (deploy/docs/"
                "how_to/kafka.md, Move a table to another topic)"
            )
    return found


def moved_keys(admin: AdminClient, config: Config, plan: Plan, requested: Mapping[str, int]) -> dict[str, str]:
    """Return, by topic, that it has other partitions than when changes under ``plan`` were published there.

    Leaves out topics without the partitions of ``config``, which ``topics.survey`` finds. ``requested``: see
    `with_partitions`. Raises ``Unavailable``.
    """
    now = _partitions(plan, config, requested)
    others = {topic: before for topic, before in plan.partitions.items() if now.get(topic, before) != before}
    spread = {topic: number for topic, number in now.items() if topic in requested}
    there = topics.list_topics(admin, config) if others or spread else {}
    counts = {name: len(each.partitions) for name, each in there.items()}
    others = {topic: before for topic, before in others.items() if counts.get(topic) == now[topic]}
    ends = offset_bounds(admin, [(topic, number) for topic in others for number in range(now[topic])])
    used = {topic for (topic, _), (_, end) in ends.items() if end}
    lacking = {topic: number for topic, number in spread.items() if 0 < counts.get(topic, 0) < number}
    return {
        topic: f"topic {topic!r} has {topics.partitions_text(counts[topic])}, but its changes go to {number}: "
        "it was created again, so add the missing partitions with `kafka-topics --alter`"
        for topic, number in lacking.items()
    } | {
        topic: f"topic {topic!r} had {topics.partitions_text(before)} when its changes were published, and has "
        f"{now[topic]} now: changes of a key would go to another partition than its earlier ones, so that consumers "
        f"could apply them first; {topics.SPREAD.format(now[topic]) if now[topic] > before else topics.MOVE}"
        for topic, before in others.items()
        if topic in used
    }


def end_of_partitions(table: TableSchema, label: str, partitions: int, now: float) -> Change:
    """Return the mark after which a table's changes go to so many ``partitions``. ``now``: seconds since the epoch.

    It is the last record of the table in each former partition in which the old number counts (I2).
    """
    return Change(
        event_id=event_id(label, f"partitions/{partitions}", table.table, b"", 0),
        operation=Operation.READ,
        source=table.source,
        table=table.table,
        key=None,
        old=None,
        new=None,
        images=Images.KEYS_ONLY,
        token=None,
        committed_at=int(now * 1_000_000),
        attributes={MARK: "repartition", "partitions": str(partitions)},
    )


def _partitions(plan: Plan, config: Config, requested: Mapping[str, int]) -> dict[str, int]:
    now = {config.topic(table): config.partitions(table) for table in plan.keys}
    return now | {topic: plan.partitions.get(topic, each) for topic, each in requested.items() if topic in now}
