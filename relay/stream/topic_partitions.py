"""How many partitions the topics of a plan's tables have. The plan remembers it, because another number moves keys."""

from dataclasses import replace

from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.kafka import topics
from relay.kafka.partition_offsets import offset_bounds
from relay.records import Plan


def with_partitions(plan: Plan, config: Config) -> Plan:
    """Return ``plan`` with the partitions of its topics as ``config`` has them; itself if it has them already."""
    now = _partitions(plan, config)
    return plan if now.items() <= plan.partitions.items() else replace(plan, partitions={**plan.partitions, **now})


def moved_keys(admin: AdminClient, config: Config, plan: Plan) -> dict[str, str]:
    """Return, by topic, that it has other partitions than when changes under ``plan`` were published there.

    Leaves out topics without the partitions of ``config``, which ``topics.survey`` finds. Raises ``Unavailable``.
    """
    now = _partitions(plan, config)
    others = {topic: before for topic, before in plan.partitions.items() if now.get(topic, before) != before}
    counts = {name: len(each.partitions) for name, each in topics.list_topics(admin, config).items()} if others else {}
    others = {topic: before for topic, before in others.items() if counts.get(topic) == now[topic]}
    ends = offset_bounds(admin, [(topic, number) for topic in others for number in range(now[topic])])
    used = {topic for (topic, _), (_, end) in ends.items() if end}
    return {
        topic: f"topic {topic!r} had {topics.partitions_text(before)} when its changes were published, and has "
        f"{now[topic]} now: changes of a key would go to another partition than its earlier ones, so that consumers "
        f"could apply them first; {topics.MOVE}"
        for topic, before in others.items()
        if topic in used
    }


def _partitions(plan: Plan, config: Config) -> dict[str, int]:
    return {config.topic(table): config.partitions(table) for table in plan.keys}
