"""A topic that gets more partitions (`relay repartition`) while consumers in Spark read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.scripted_relay import SplittingTable, start_relay
from tests.operating import Operated
from tests.spark_consumers import delta_rows
from tests.spark_consumers.spark_process import SparkProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def test_running_consumers_read_the_new_partitions_by_themselves(
    tmp_path: Path, kafka: Any, unique: str, spark_process: SparkProcess
) -> None:
    """I7: the log has every change once, and the copy the newest version of each item."""
    with ScriptedStream(page=5) as stream:
        play(Operated(tmp_path, stream, kafka.bootstrap_servers, unique), SplittingTable(stream, seed=3), spark_process)


def play(relay: Operated, table: SplittingTable, spark_process: SparkProcess) -> None:
    folder = relay.path.parent
    raw = yaml.safe_load(relay.path.read_text())
    log, copy = folder / "log", folder / "copy"
    relay.path.write_text(yaml.safe_dump({**raw, "log": {"path": str(log)}, "copy": {"url": f"delta://{copy}"}}))
    table.write(60)
    consumed = folder / "consumed.log"
    relay.run()
    worker = start_relay(relay.path)
    try:
        consumer = spark_process.start_relay(
            "consume", "log", "copy", str(relay.path), "--checkpoint", str(folder / "checkpoints"), log=consumed
        )

        def logged() -> list[tuple[Any, ...]]:
            return delta_rows.rows(log, ["event_id"], where="key IS NOT NULL") if delta_rows.is_there(log) else []

        def written() -> int:
            return sum(map(len, table.histories.values()))

        wait_until(lambda: len(logged()) == written() or None, 120)
        assert relay.command("repartition", "CONFIG", TABLE, "--partitions", "16")
        table.split()
        table.write(60)
        wait_until(lambda: len(logged()) == written() or None, 120)
        assert len({*logged()}) == written()

        def copied() -> dict[str, int]:
            found = delta_rows.rows(copy / "s" / TABLE, ["id", "item"])
            return {key: int(json.loads(item)["version"]["N"]) for key, item in found}

        newest = {item: versions[-1] for item, versions in table.histories.items()}
        wait_until(lambda: copied() == newest or None, 120)
        assert consumer.terminate() == 0
    finally:
        worker.terminate()
