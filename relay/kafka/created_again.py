"""Recognizes topics that were deleted and created again, by their ids. Imports no Kafka client."""

from collections.abc import Mapping

NO_ID = "A" * 22  # the zero id, which older brokers give to every topic


def created_again(known: Mapping[str, str], ids: Mapping[str, str]) -> dict[str, str]:
    """Return the new ids of topics whose ``ids`` differ from the ``known`` ones, except of those that had none."""
    return {topic: number for topic, number in ids.items() if known.get(topic, NO_ID) not in (NO_ID, number)}
