"""The rows behind the cached objects of a ``World``: each change of each shard, and so what is true."""

from __future__ import annotations

from collections.abc import Mapping

from relay.token import EventToken

KEYS = ("user:1", "user:2")  # composite objects, each made of a row in each shard
SHARDS = ("orders/stream/-80", "orders/stream/80-")
_SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

Row = tuple[str, str]
Versions = Mapping[Row, int]
"""By (cache key, shard): the position in the shard of a change to the key's row there; 0 for none."""


def token(shard: str, position: int) -> EventToken:
    """Three changes share each second, so that timestamps alone do not order them."""
    return EventToken(1000 + position // 3, shard, f"DynamoDB/{position}")


def gtid_token(shard: str, position: int) -> EventToken:
    """A token that a replica can be asked for."""
    return EventToken(1000 + position // 3, shard, f"MySQL56/{_SERVER}:1-{position + 1}")


class ChangedRows:
    """``logs``: by shard, the key of each change. ``commits``: the time of each."""

    def __init__(self) -> None:
        self.logs: dict[str, list[str]] = {shard: [] for shard in SHARDS}
        self.commits: dict[str, list[float]] = {shard: [] for shard in SHARDS}

    def change(self, shard: str, key: str, now: float) -> None:
        self.logs[shard].append(key)
        self.commits[shard].append(now)

    def ends(self) -> dict[str, int]:
        """Return how many changes each shard has."""
        return {shard: len(log) for shard, log in self.logs.items()}

    def versions(self, at: Mapping[str, int]) -> dict[Row, int]:
        """Return the versions of all rows of the shards as of these positions."""
        found = {(key, shard): 0 for key in KEYS for shard in at}
        for shard, position in at.items():
            for index, key in enumerate(self.logs[shard][:position], start=1):
                found[key, shard] = index
        return found

    def changed(self, since: Mapping[str, int], to: Mapping[str, int]) -> dict[Row, int]:
        """Return the versions of the rows that have changed between two positions."""
        return {row: at for row, at in self.versions(to).items() if at > since[row[1]]}
