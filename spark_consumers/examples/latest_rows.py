"""Keeps the newest row of each item of one table in files, in batches that learn new columns on the way.

python -m spark_consumers.examples.latest_rows relay.yaml TABLE FOLDER
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import spark_consumers
from relay import EventToken, Order, compare
from relay.config import load


class LatestRows:
    """Stores the newest row of each item. On a cluster ``folder`` has to be one that all executors share.

    TRUNCATE, and the ends of snapshots, are changes of no single item, so they delete nothing here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def apply(self, batch: Any, number: int) -> None:
        """Apply a batch. It may come again after a crash, so each change is compared with what is stored."""
        self._folder.mkdir(parents=True, exist_ok=True)
        spark_consumers.apply_in_order(batch, self.store)

    def store(self, item: tuple[str, str, Any], changes: Iterator[Any]) -> None:
        """Store the newest row of one item."""
        path = self._folder / f"{hashlib.sha256(item[2].encode()).hexdigest()}.json"
        stored = json.loads(path.read_text()) if path.exists() else {"key": item[2]}
        for change in changes:
            if is_newer(change, stored):
                stored |= {"event_id": change.event_id, "token": change.token}
                if change.operation == "READ":
                    stored["as_of"] = change.snapshot_as_of
                # Without its image, as if it was too large, a change leaves an older row, which it marks.
                stored["incomplete"] = change.new is None and change.operation != "DELETE"
                if not stored["incomplete"]:
                    stored["row"] = change.new
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(stored))
        draft.replace(path)


def is_newer(change: Any, stored: dict[str, Any]) -> bool:
    if change.event_id == stored.get("event_id") and "redriven" not in change.attributes:
        return False
    if "redriven" in change.attributes:  # sent again later: it only completes the row that it left incomplete
        return bool(stored.get("incomplete") and stored["event_id"] == change.event_id)
    token = EventToken.from_json(stored["token"]) if stored.get("token") else None
    if change.operation == "READ":  # of a snapshot, which may have read it before a change that came first
        return bool((token.timestamp if token else -1) < change.snapshot_as_of >= stored.get("as_of", 0))
    # A batch that comes again has older changes; an unknown order stores.
    return token is None or compare(token, EventToken.from_json(change.token)) is not Order.NEWER


def main(config: Path, table: str, folder: Path) -> None:
    stream = spark_consumers.changes(load(config), [table], name="latest-rows", checkpoint=folder / "checkpoint")
    stream.foreach_batch(LatestRows(folder / "rows").apply, until_caught_up=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
