"""A Spark consumer's checkpoint: where it started, and what it has reached.

It is the truth about progress. The Kafka group ``<name>.<consumer>`` only reports it, so that ordinary tools show the
lag and a new checkpoint can start exactly there (``--from committed``).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from relay.errors import RelayError
from relay.kafka.group_offsets import Offsets

_START = "start.json"


class ConsumerCheckpoint:
    """The folder of a consumer's checkpoint: Spark's own, and the offsets at which the consumer started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spark = folder / "spark"

    @property
    def exists(self) -> bool:
        return (self.folder / _START).exists()

    def start(self) -> Offsets:
        """Return the offsets at which the consumer started."""
        offsets: Offsets = json.loads((self.folder / _START).read_text())
        return offsets

    def resume(self) -> Offsets:
        """Return the offsets at which the consumer resumes: the end of the last batch that Spark has committed."""
        commits = self.spark / "commits"
        done = [int(path.name) for path in commits.iterdir() if path.name.isdecimal()] if commits.exists() else []
        return self.end_offsets(max(done, default=-1))

    def begin(self, start: Offsets) -> None:
        """Store, durably, the offsets at which the consumer starts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{_START}.draft"
        with draft.open("w") as file:
            json.dump(start, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.folder / _START)

    def end_offsets(self, batch: int) -> Offsets:
        """Return the end offsets of a batch, which Spark stores before it runs the batch.

        Of batch -1, the offsets at which the consumer started. Raises ``RelayError`` if Spark's file cannot be read.
        """
        if batch < 0:
            return self.start()
        path = self.spark / "offsets" / str(batch)
        try:
            # The file has a version, Spark's settings, and a line for each source.
            _, _, line = path.read_text().splitlines()
            found: Offsets = json.loads(line)
        except (OSError, ValueError) as error:
            raise RelayError(f"cannot read {path} as an offset file of Spark 4.0: {error}") from error
        return found
