"""A stream that is disabled and enabled again gets a new ARN: drained, reported and followed (I1, I9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.demo.truth import changed_item
from tests.command_line import run_until_caught_up
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.harness import Scene
from tests.faults.scripted_relay import published_versions, tail_topic, write_config
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def on_gap(scene: Scene, policy: str) -> None:
    raw = yaml.safe_load(scene.path.read_text())
    raw["sources"][0]["on_gap"] = policy
    scene.path.write_text(yaml.safe_dump(raw))


def put(scene: Scene, order: int) -> None:
    scene.client.put_item(
        TableName=scene.table, Item={"customer": {"S": "ada"}, "order_id": {"N": str(order)}, "version": {"N": "1"}}
    )


def replace_stream(scene: Scene, lost: int) -> None:
    """Disable the stream and enable it again, with the write of order ``lost`` in between."""
    scene.client.update_table(TableName=scene.table, StreamSpecification={"StreamEnabled": False})
    put(scene, lost)
    scene.client.update_table(
        TableName=scene.table, StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    )


def orders(scene: Scene) -> list[int]:
    return [
        int(changed_item(event)[1])
        for event in sorted(scene.events(), key=lambda event: (event.partition, event.offset))
    ]


def reasons(scene: Scene) -> list[str]:
    return [gap["value"]["reason"] for gap in tail_topic(scene.path, scene.config.internal("gaps"))]


def test_a_running_relay_follows_to_the_new_stream_and_says_what_may_be_lost(scene: Scene) -> None:
    on_gap(scene, "skip")
    relay = scene.relay()
    put(scene, 1)
    scene.wait_for_more(0)
    put(scene, 2)
    replace_stream(scene, lost=3)
    put(scene, 4)
    wait_until(lambda: orders(scene) == [1, 2, 4] or None, 90)
    assert relay.terminate() == 0, relay.log()
    assert reasons(scene) == ["new stream"]


def test_a_relay_that_was_down_drains_the_old_stream_first(scene: Scene) -> None:
    """I4: the positions of the old stream are never applied to the new one."""
    put(scene, 1)
    run_until_caught_up(scene.path)
    put(scene, 2)
    replace_stream(scene, lost=3)
    put(scene, 4)
    assert "new stream" in run_until_caught_up(scene.path, expected_code=1)
    assert orders(scene) == [1, 2]  # under `fail` nothing after the loss
    on_gap(scene, "skip")
    for _ in range(2):
        run_until_caught_up(scene.path)
    assert orders(scene) == [1, 2, 4]
    assert reasons(scene) == ["new stream"]


@pytest.fixture
def stream() -> Iterator[ScriptedStream]:
    """A table whose stream was replaced twice, within a day: versions 1 and 2, then 3, then 4."""
    with ScriptedStream() as current:
        first, second = current.disabled("2025-12-31T20:00:00.000"), current.disabled("2025-12-31T22:00:00.000")
        for version, (scripted, shard) in enumerate([(first, "a"), (first, "a"), (second, "b"), (current, "c")], 1):
            if version != 2:
                scripted.shard(shard)
            scripted.put(shard, "item", version, old=version - 1 or None)
        first.close("a")
        second.close("b")
        yield current


def test_a_relay_that_begins_at_the_horizon_begins_with_the_oldest_stream(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I1, I2, I9: every stream that can still be read, in order, with a gap before each that follows another."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    assert "new stream" in run_until_caught_up(path, expected_code=1)
    assert published_versions(path)[0] == {"item": [1, 2]}
    write_config(tmp_path, stream, kafka.bootstrap_servers, unique, on_gap="skip")
    run_until_caught_up(path)
    run_until_caught_up(path)
    histories, ids = published_versions(path)
    assert histories == {"item": [1, 2, 3, 4]}
    assert set(ids.values()) == {1}
    assert [gap["value"]["reason"] for gap in tail_topic(path, f"{unique}.gaps")] == ["new stream"] * 2


def test_a_disabled_stream_is_read_by_its_arn(tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> None:
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique, stream_arn=stream.earlier[0].arn, table=None)
    run_until_caught_up(path)
    assert published_versions(path)[0] == {"item": [1, 2]}
    assert tail_topic(path, f"{unique}.gaps") == []
