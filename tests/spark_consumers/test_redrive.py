"""Stubs, redriven changes and collected tombstones, on Kafka, Spark and Delta."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from relay.avro.topic_schemas import TopicSchemas
from relay.change import Operation
from relay.config import load
from relay.kafka.dead_letters import DeadLetterWriter
from relay.kafka.topic_writer import TopicWriter
from relay.operations.dead_letters import DeadLetters
from relay.services.postgres import execute
from tests.benchmarks.changes import finished
from tests.spark_consumers import delta_rows
from tests.spark_consumers.oversize import LARGEST, huge
from tests.spark_consumers.topic import TABLE, Topic, change, copied, mark, read

pytestmark = pytest.mark.services


def found_in(topic: Topic) -> dict[str, Any]:
    """Bring log and copy up to date, and return what they have."""
    topic.consume("log copy", checkpoint=".")
    config = load(topic.path)
    assert config.copy_ is not None
    columns = ["customer", "item", "_relay_incomplete", "_relay_deleted"]
    if config.copy_.url.startswith("postgresql"):
        copied = execute(config.copy_.url, f"SELECT {', '.join(columns)} FROM orders._relay_rows_orders")
    else:
        copied = delta_rows.rows(topic.folder / "copy/orders/orders/_relay_rows", columns)
    logged = delta_rows.rows(topic.folder / "log", ["offset", "key", "images", "new"], where="key IS NOT NULL")
    return {
        "copy": {customer: [version(item), *flags] for customer, item, *flags in copied},
        "log": sorted([json.loads(key)["customer"], images, version(new) or 0] for _, key, images, new in logged),
        "order": [version(new) for _, key, _, new in logged if '"newer"' in key],
    }


def version(item: Any) -> int | None:
    found = json.loads(item) if isinstance(item, str) else item
    return None if found is None else int(found["version"]["N"])


@pytest.mark.parametrize(
    "target",
    [
        "postgres",
        pytest.param("delta", marks=pytest.mark.faults("one rule for both: [postgres]; in Delta: test_scenarios.py")),
    ],
)
def test_a_redrive_completes_copy_and_log_and_tombstones_are_collected_after_the_snapshot(
    topic: Topic, target: str, request: pytest.FixtureRequest
) -> None:
    """I7, I8: also in one batch with its stub, and after a newer change or a deletion, which it does not undo."""
    if target == "postgres":
        topic.set_copy_url(request.getfixturevalue("database_url"))
    raw = yaml.safe_load(topic.path.read_text())
    raw["copy"]["tombstone_retention"] = "1s"
    topic.path.write_text(yaml.safe_dump(raw))
    letters = DeadLetterWriter(topic.config.internal("dead_letters"), LARGEST)
    topic.publish(
        [
            mark("begin", 1_600_000_000),
            *(change(customer, 1, Operation.INSERT) for customer in ("done", "newer", "gone", "same")),
            change("plain", 1, Operation.INSERT),
            change("plain", 2, Operation.DELETE),
        ]
    )
    topic.publish([huge("done", 2), huge("newer", 2), huge("gone", 2)], largest=LARGEST, dead_letters=letters)
    topic.publish([change("newer", 3), change("gone", 3, Operation.DELETE)])

    before = found_in(topic)
    dead = DeadLetters(topic.config)
    dead.redrive(dead.all(), lambda letter: None)
    dead.redrive(dead.all()[:1], lambda letter: None)  # twice does no harm
    after = found_in(topic)
    topic.publish([mark("end", 1_600_000_000), change("same", 2)])
    last = found_in(topic)

    kept = {"same": [1, False, False], "plain": [None, False, True]}
    gone, newer = [None, False, True], [3, False, False]
    assert before["copy"] == {**kept, "done": [1, True, False], "newer": newer, "gone": gone}
    both = "NEW_AND_OLD"
    plain: list[list[Any]] = [
        ["done", both, 1],
        ["gone", both, 0],
        ["gone", both, 1],
        ["newer", both, 1],
        ["newer", both, 3],
    ]
    plain += [["plain", both, 0], ["plain", both, 1], ["same", both, 1]]
    assert before["log"] == sorted([*plain, *([name, "OMITTED", 0] for name in ("done", "newer", "gone"))])
    assert after["copy"] == {**kept, "done": [2, False, False], "newer": newer, "gone": gone}
    assert after["log"] == sorted([*plain, *([name, both, 2] for name in ("done", "newer", "gone"))])
    assert after["order"] == [1, 2, 3]
    # The tombstones were kept while the snapshot ran, and collected after its end.
    assert last["copy"] == {"same": [2, False, False], "done": [2, False, False], "newer": newer}


def test_a_change_that_a_consumer_could_not_decode_undoes_no_row_that_was_read_since(
    topic: Topic, database_url: str
) -> None:
    """I7: the row of a snapshot has no token. Where nothing newer is stored, the change is applied."""
    topic.set_copy_url(database_url)
    topic.publish([change("before", 1), read("read", 9, 1_700_000_200)])
    schemas = TopicSchemas(topic.config.kafka.client(), topic.config.internal("schemas"))
    writer = TopicWriter(TABLE, topic.name, 2, "hash", schemas)
    undecoded = [change("read", 5), change("before", 300), change("absent", 3)]
    producer = Producer(topic.config.kafka.client())
    for number, (value, *_) in enumerate(finished(writer, undecoded)):
        headers: dict[str, str | bytes | None] = {"reason": "unknown schema", "consumer": "copy"}
        producer.produce(
            topic.config.internal("dead_letters"), value, f"{topic.name}/0/{100 + number}/copy", 0, headers=headers
        )
    assert producer.flush(30) == 0
    schemas.close()
    topic.consume("copy", checkpoint="copy")
    dead = DeadLetters(topic.config)
    dead.redrive(dead.all(), lambda letter: None)
    topic.consume("copy", checkpoint="copy")
    assert copied(load(topic.path), "orders") == {"read": 9, "before": 300, "absent": 3}
