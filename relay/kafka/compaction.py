"""How soon Kafka compacts topics that are read from their start: by default not before a week or a GiB."""

from collections.abc import Mapping

DELETIONS_KEPT = 3600.0
"""The least number of seconds that Kafka keeps the record of a deletion, so that every reader sees it (I4)."""

_DELETIONS = "delete.retention.ms"

PROMPT = {
    "cleanup.policy": "compact",
    # The least that Kafka accepts.
    "segment.bytes": str(1 << 20),
    # Also ends a segment that grows slowly, and has it compacted although little of it is obsolete.
    "max.compaction.lag.ms": str(10 * 60 * 1000),
    # Transaction markers, one per checkpoint, are kept as long as deletions. The default is a day.
    _DELETIONS: str(int(DELETIONS_KEPT * 1000)),
}
"""The settings of a topic that is compacted soon."""


_LAG = "min.compaction.lag.ms"
_BEHIND = 7 * 24 * 3600 * 1000  # milliseconds that a consumer of a compacted topic may be behind: the default retention
LATE = {_LAG: str(_BEHIND)}  # the settings of a compacted topic of changes, whose consumers may be behind


def advice(topic: str, wanted: Mapping[str, str], found: Mapping[str, str], bootstrap_servers: str) -> str:
    """Return why ``topic`` is compacted too late or too soon, and what to do; empty if it is fine."""
    if "compact" in found.get("cleanup.policy", "") and "cleanup.policy" not in wanted:
        if int(found.get(_LAG, 0)) >= _BEHIND:
            return ""
        return (
            f"it is compacted and has {_LAG}={found.get(_LAG, 0)}: a consumer that is further behind misses changes "
            f"that later changes of the item have replaced, and deletions that left only a null: "
            f"{command(topic, LATE, bootstrap_servers)}"
        )
    larger = {name: value for name, value in _limits(wanted).items() if int(found.get(name, value)) > int(value)}
    if not larger:
        return ""
    settings = ", ".join(f"{name}={found[name]}" for name in larger)
    return (
        f"it has {settings}, so Kafka compacts it late, and starting, `relay status` and `relay reset` take ever "
        f"longer: {command(topic, larger, bootstrap_servers)}"
    )


def forgetting(topic: str, wanted: Mapping[str, str], found: Mapping[str, str], bootstrap_servers: str) -> str:
    """Return why a reader of ``topic`` may miss the deletion of a record; empty if it cannot."""
    limits = _limits(wanted)
    if _DELETIONS not in limits or int(found.get(_DELETIONS, limits[_DELETIONS])) >= int(limits[_DELETIONS]):
        return ""
    how = command(topic, {_DELETIONS: limits[_DELETIONS]}, bootstrap_servers)
    return (
        f"topic {topic!r} has {_DELETIONS}={found[_DELETIONS]} but needs {limits[_DELETIONS]}: a worker that reads it "
        f"slowly would continue from deleted checkpoints: {how}"
    )


def _limits(wanted: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if name in PROMPT and name != "cleanup.policy"}


def command(topic: str, settings: Mapping[str, str], bootstrap_servers: str) -> str:
    added = ",".join(f"{name}={value}" for name, value in settings.items())
    return (
        f"run `kafka-configs --bootstrap-server {bootstrap_servers} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {added}`"
    )
