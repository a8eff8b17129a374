"""Moving to a topic with more partitions, as documented, loses and duplicates nothing and keeps every key in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from relay.demo.truth import changed_item, check_topic
from relay.demo.workload import Item, RecordedWrite
from tests.command_line import relay
from tests.faults.harness import Scene

pytestmark = pytest.mark.services


def relay_all(scene: Scene, partitions: int, topics: str) -> tuple[int, str]:
    raw = yaml.safe_load(scene.path.read_text()) | {"topics": topics}
    raw["kafka"]["partitions"] = partitions
    scene.path.write_text(yaml.safe_dump(raw))
    running = scene.relay("--until-caught-up")
    return running.wait(90), running.log()


def test_a_relay_moves_to_a_topic_of_more_partitions_as_documented(scene: Scene) -> None:
    """I1, I2, I3"""
    workload = scene.workload(customers=6, pause=0.0)
    workload.warm_up()
    assert relay_all(scene, 2, "{name}.{table}")[0] == 0
    old = scene.events()
    workload.warm_up()

    code, said = relay_all(scene, 5, "{name}.{table}")
    assert code == 3
    assert "to spread its changes over 5, run `relay repartition" in said
    code, said = relay_all(scene, 5, "{name}.{table}.2")
    assert code == 2
    assert f"confirm it with `relay reset {scene.path} --moved {scene.table}`" in said
    assert relay("reset", str(scene.path), "--moved", scene.table).exit_code == 0
    assert relay_all(scene, 5, "{name}.{table}.2")[0] == 0
    new = scene.events()
    assert {event.partition for event in new} > {event.partition for event in old}
    # A consumer that reads the old topic to its end, and then the new one, reads every key in order.
    for topic in (old, new):
        homes = {(changed_item(event)[0], event.partition) for event in topic}
        assert len(homes) == len({customer for customer, _ in homes})
    one_after_the_other = [
        replace(event, partition=0, offset=place * 10**6 + event.offset * 10 + event.partition)
        for place, topic in enumerate((old, new))
        for event in topic
    ]
    history: dict[Item, list[RecordedWrite]] = {}
    for writer in workload.writers:
        for write in writer.writes:
            history.setdefault(write.item, []).append(write)
    assert {len(writes) for writes in history.values()} == {2}
    assert check_topic(history, one_after_the_other) == []
