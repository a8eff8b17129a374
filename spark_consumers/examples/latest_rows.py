"""Keeps the newest image of each item of one table in files, in batches that learn new columns on the way.

python -m spark_consumers.examples.latest_rows relay.yaml TABLE FOLDER
"""

from __future__ import annotations

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
    """Stores the newest row of each item. On a cluster ``folder`` has to be one that all executors share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def apply(self, batch: Any, number: int) -> None:
        """Apply a batch. It may come again after a crash, so each row is compared with what is stored."""
        self._folder.mkdir(parents=True, exist_ok=True)
        spark_consumers.apply_in_order(batch, self.store)

    def store(self, item: tuple[str, str, Any], changes: Iterator[Any]) -> None:
        """Store the last change of one item, unless a newer one is stored."""
        path = self._folder / f"{hashlib.sha256(item[2].encode()).hexdigest()}.json"
        *_, last = changes
        if path.exists() and last.token is not None:
            stored = json.loads(path.read_text())["token"]
            if (
                stored is not None
                and compare(EventToken.from_json(stored), EventToken.from_json(last.token)) is Order.NEWER
            ):
                return  # this batch was applied before; an unknown order stores
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"key": item[2], "row": last.new, "token": last.token}))
        draft.replace(path)


def main(config: Path, table: str, folder: Path) -> None:
    stream = spark_consumers.changes(load(config), [table], name="latest-rows", checkpoint=folder / "checkpoint")
    stream.foreach_batch(LatestRows(folder / "rows").apply, until_caught_up=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
