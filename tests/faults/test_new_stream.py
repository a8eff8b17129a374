"""A stream that is disabled and enabled again gets a new ARN: drained, reported and followed (I1, I9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.harness import Scene, wait_until
from tests.faults.scripted_relay import tail_topic

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]


@pytest.fixture
def scene(tmp_path: Path, kafka: Any, dynamodb: Any, unique: str) -> Iterator[Scene]:
    scene = Scene(tmp_path, unique, kafka.bootstrap_servers, dynamodb.endpoint_url)
    yield scene
    scene.close()


def on_gap(scene: Scene, policy: str) -> None:
    raw = yaml.safe_load(scene.path.read_text())
    raw["sources"][0]["on_gap"] = policy
    scene.path.write_text(yaml.safe_dump(raw))


def put(scene: Scene, order: int) -> None:
    scene.client.put_item(
        TableName=scene.table,
        Item={"customer": {"S": "ada"}, "order_id": {"N": str(order)}, "version": {"N": "1"}},
    )


def replace_stream(scene: Scene, lost: int) -> None:
    """Disable the stream and enable it again, with the write of order ``lost`` in between."""
    scene.client.update_table(TableName=scene.table, StreamSpecification={"StreamEnabled": False})
    put(scene, lost)
    scene.client.update_table(
        TableName=scene.table, StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    )


def orders(scene: Scene) -> list[int]:
    return [int(event.item[1]) for event in sorted(scene.events(), key=lambda event: (event.partition, event.offset))]


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
    assert scene.relay("--until-caught-up").wait(90) == 0
    put(scene, 2)
    replace_stream(scene, lost=3)
    put(scene, 4)
    stopped = scene.relay("--until-caught-up")
    assert stopped.wait(90) == 1, stopped.log()
    assert "new stream" in stopped.log()
    assert orders(scene) == [1, 2]  # under `fail` nothing after the loss
    on_gap(scene, "skip")
    for _ in range(2):
        relay = scene.relay("--until-caught-up")
        assert relay.wait(90) == 0, relay.log()
    assert orders(scene) == [1, 2, 4]
    assert reasons(scene) == ["new stream"]
