"""Which topics were deleted and created again, as their ids tell. Imports no client of Kafka."""

from collections.abc import Mapping

NO_ID = "A" * 22
"""The zero id, which older brokers give to every topic."""


def created_again(known: Mapping[str, str], ids: Mapping[str, str]) -> dict[str, str]:
    """Return the new ids of topics that have other ``ids`` than are ``known``. One that had none may be the same."""
    return {topic: number for topic, number in ids.items() if known.get(topic, NO_ID) not in (NO_ID, number)}
