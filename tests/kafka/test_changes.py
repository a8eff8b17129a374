"""``relay.changes``: the changes as Python objects, by Kafka group."""

from __future__ import annotations

import json
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions

import relay
from relay.change import Operation, Snapshot
from relay.errors import ConfigError
from relay.kafka import changes as kafka_changes
from relay.kafka import same_topics, topics
from relay.kafka.group_offsets import GroupOffsets, Offsets, topic_ids
from relay.kafka.keys import partition
from relay.records import Gap
from tests.kafka.proxy import ProxiedBroker
from tests.spark_consumers.topic import Topic, change, read
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def topic(tmp_path: Path, unique: str, kafka: Any) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, "redis://127.0.0.1:1/0")


def versions(received: Any) -> list[tuple[str, str]]:
    return [(each.key["customer"], str(each.new["version"])) for each in received]


def test_a_change_comes_as_it_was_published_with_its_place(topic: Topic) -> None:
    published, row = change("ada", 1), read("bob", 2, as_of=1_700_000_000)
    topic.publish([published, row])
    with relay.changes(topic.path, ["orders"], until_caught_up=True) as changes:
        found = {each.event_id: each for each in changes}
    received = found[published.event_id]
    assert (received.topic, received.offset) == (topic.name, 0)
    assert (received.event_id, received.token) == (published.event_id, published.token)
    assert (received.old, received.new) == (
        {"customer": "ada", "order_id": Decimal(1), "version": Decimal(0)},
        {"customer": "ada", "order_id": Decimal(1), "version": Decimal(1)},
    )
    assert (received.operation, received.images, received.committed_at) == (
        Operation.UPDATE,
        published.images,
        published.committed_at,
    )
    assert found[row.event_id].snapshot == Snapshot("s", 1_700_000_000)
    assert found[row.event_id].token is None


def test_items_are_exact_json_where_it_is_asked_for(topic: Topic) -> None:
    published = change("ada", 1)
    topic.publish([published])
    with relay.changes(topic.path, ["orders"], typed_json=True, until_caught_up=True) as changes:
        (received,) = changes
    assert (received.old, received.new) == (published.old, published.new)


def test_a_group_goes_on_after_its_last_commit(topic: Topic) -> None:
    """What was not committed comes again: none is lost, whenever the program dies."""
    topic.publish([change("ada", version) for version in range(1, 5)])
    with relay.changes(topic.path, ["orders"], group=topic.name, until_caught_up=True) as changes:
        assert versions([next(changes), next(changes)]) == [("ada", "1"), ("ada", "2")]
        changes.commit()
        assert versions([next(changes)]) == [("ada", "3")]
    with relay.changes(topic.path, ["orders"], group=topic.name, until_caught_up=True) as changes:
        assert versions(changes) == [("ada", "3"), ("ada", "4")]
        changes.commit()
    with relay.changes(topic.path, ["orders"], group=topic.name, until_caught_up=True) as changes:
        assert versions(changes) == []


def test_a_group_starts_where_it_was_first_told_to_even_if_nothing_was_committed(topic: Topic) -> None:
    topic.publish([change("ada", 1)])
    with relay.changes(topic.path, ["orders"], group=topic.name, start="latest") as changes:
        assert changes.poll(1) is None
    topic.publish([change("ada", 2)])
    with relay.changes(topic.path, ["orders"], group=topic.name, start="latest", until_caught_up=True) as changes:
        assert versions(changes) == [("ada", "2")]


@pytest.mark.parametrize("ended", ["abort_transaction", "commit_transaction"])
def test_only_committed_changes_come(topic: Topic, ended: str) -> None:
    topic.publish([change("ada", 1)])
    with relay.changes(topic.path, ["orders"], until_caught_up=True) as changes:
        value = _raw(topic, next(changes).offset)
    producer = Producer({**topic.config.kafka.client(), "transactional.id": topic.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, value, b"ada", partition=0)
    producer.flush(30)
    getattr(producer, ended)(30)
    with relay.changes(topic.path, ["orders"], until_caught_up=True) as changes:
        assert len(list(changes)) == (1 if ended == "abort_transaction" else 2)


def test_programs_of_one_group_share_the_partitions_and_take_over_from_one_another(topic: Topic) -> None:
    customers = [f"c{number}" for number in range(20)]
    topic.publish([change(customer, 1) for customer in customers])
    with relay.changes(topic.path, ["orders"], group=topic.name) as one:
        with relay.changes(topic.path, ["orders"], group=topic.name) as two:
            of_one, of_two = set[str](), set[str]()
            # The first one may have all partitions for a moment.
            wait_until(lambda: (_poll(one, of_one) and _poll(two, of_two)) or None, 300)
            one.commit()
            two.commit()
            # On a busy machine they may share the partitions once more, and some of these come again.
            earlier = of_one | of_two
            topic.publish([change(customer, 2) for customer in customers])
            wait_until(lambda: len((_poll(one, of_one) | _poll(two, of_two)) - earlier) == len(customers) or None, 300)
            of_one -= earlier
            of_two -= earlier
            assert of_one
            assert of_two
            assert not of_one & of_two
        # The second one left without a commit: its share comes again, to the first.
        wait_until(lambda: of_two <= _poll(one, of_one) or None, 300)


def test_removed_changes_are_an_error(topic: Topic) -> None:
    """I1: whoever would go on behind them would never know that they are missing."""
    topic.publish([change("ada", version) for version in range(1, 4)])
    with relay.changes(topic.path, ["orders"], group=topic.name, until_caught_up=True) as changes:
        place = next(changes)
        changes.commit()
    admin = topics.connect(topic.config)
    for each in admin.delete_records([TopicPartition(topic.name, place.partition, 2)]).values():
        each.result()
    with (
        relay.changes(topic.path, ["orders"], group=topic.name, until_caught_up=True) as changes,
        pytest.raises(relay.RelayError, match="were removed before they were read"),
    ):
        list(changes)


@pytest.mark.parametrize("is_in_group", [False, True])
@pytest.mark.parametrize("is_of_group", [False, True])
def test_a_start_at_removed_changes_is_an_error(topic: Topic, is_in_group: bool, is_of_group: bool) -> None:
    """I1: as that of a program which keeps its offsets by itself, and was away for longer than the retention."""
    topic.publish([change("ada", version) for version in range(1, 4)])
    with relay.changes(topic.path, ["orders"], group=f"{topic.name}-other", until_caught_up=True) as changes:
        place = next(changes)
        changes.commit()
    admin = topics.connect(topic.config)
    for each in admin.delete_records([TopicPartition(topic.name, place.partition, 2)]).values():
        each.result()
    stored = json.dumps({topic.name: {str(place.partition): 1}})
    start = f"committed:{topic.name}-other" if is_of_group else stored
    group = topic.name if is_in_group else None
    with (
        relay.changes(topic.path, ["orders"], group=group, start=start) as changes,
        pytest.raises(relay.RelayError, match="were removed before they were read"),
    ):
        changes.poll(30)
    with relay.changes(topic.path, ["orders"], until_caught_up=True) as changes:
        assert versions(changes) == [("ada", "3")]


@pytest.mark.parametrize("is_in_group", [False, True])
def test_a_start_past_the_end_of_a_topic_is_an_error(topic: Topic, is_in_group: bool) -> None:
    """I1: the topic was created again, so what it has got since was never read."""
    topic.publish([change("ada", version) for version in range(1, 4)])
    start = json.dumps({topic.name: {"0": 7, "1": 7}})
    group = topic.name if is_in_group else None
    with (
        relay.changes(topic.path, ["orders"], group=group, start=start) as changes,
        pytest.raises(relay.RelayError, match="the topic was created again: changes are lost"),
    ):
        changes.poll(30)


@pytest.mark.parametrize("is_in_group", [False, True])
def test_a_topic_that_is_created_again_ends_a_program(
    topic: Topic, is_in_group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: it would go on at the offset of the old topic, behind changes of the new one."""
    monkeypatch.setattr(same_topics, "_LOOK", 0.0)
    topic.publish([change("ada", version) for version in range(1, 4)])
    with relay.changes(topic.path, ["orders"], group=topic.name if is_in_group else None) as changes:
        assert versions([next(changes) for _ in range(3)]) == [("ada", str(version)) for version in range(1, 4)]
        topic.create_again()
        topic.publish([change("ada", version) for version in range(11, 17)])

        def said() -> str | None:
            try:
                changes.poll(1)
            except relay.RelayError as error:
                return str(error) if "was created again" in str(error) else None
            return None

        assert wait_until(said)  # by the topic's id, or because the new topic is still shorter
        assert said()  # until the program ends


def test_a_group_does_not_go_on_at_offsets_of_a_topic_that_was_created_again(topic: Topic) -> None:
    """I1: a program that commits just then, ends, and is started again would pass over changes of the new topic."""
    topic.publish([change("ada", version) for version in range(1, 4)])
    with relay.changes(topic.path, ["orders"], group=topic.name) as changes:
        assert versions([next(changes) for _ in range(3)]) == [("ada", str(version)) for version in range(1, 4)]
        topic.create_again()
        topic.publish([change("ada", version) for version in range(11, 17)])
        changes.commit()
    with relay.changes(topic.path, ["orders"], group=topic.name) as changes:
        for _ in range(2):  # until somebody has deleted the offsets
            with pytest.raises(relay.RelayError, match=f"topic {topic.name} was created again"):
                next(changes)


@pytest.mark.parametrize("is_in_group", [False, True])
def test_no_program_starts_at_a_groups_offsets_of_a_topic_that_was_created_again(
    topic: Topic, is_in_group: bool
) -> None:
    """I1: it would pass over the first changes of the new topic."""
    topic.publish([change("ada", version) for version in range(1, 4)])
    with relay.changes(topic.path, ["orders"], group=f"{topic.name}-other") as changes:
        assert versions([next(changes) for _ in range(3)]) == [("ada", str(version)) for version in range(1, 4)]
        topic.create_again()
        topic.publish([change("ada", version) for version in range(11, 17)])
        changes.commit()
    group = topic.name if is_in_group else None
    with pytest.raises(ConfigError, match=f"topic {topic.name} was created again since group {topic.name}-other"):
        relay.changes(topic.path, ["orders"], group=group, start=f"committed:{topic.name}-other")


def test_a_group_notices_by_any_of_its_partitions_that_a_topic_was_created_again(topic: Topic) -> None:
    """I1: a program that knew the old topic has committed the first, and one that knows the new topic the last."""
    customer = next(name for name in map(str, range(100)) if partition(name.encode(), topic.partitions) == 0)
    topic.publish([change(customer, version) for version in range(1, 4)])
    with relay.changes(topic.path, ["orders"], group=topic.name) as changes:
        assert versions([next(changes) for _ in range(3)]) == [(customer, str(version)) for version in range(1, 4)]
        topic.create_again()
        topic.publish([change(customer, version) for version in range(11, 17)])
        changes.commit()
    with closing(GroupOffsets(topic.config, "changes", [topic.name], name=topic.name)) as group:
        ids = topic_ids(topics.connect(topic.config), topic.config, [topic.name])
        group.commit({topic.name: {"1": 0}}, ids=ids, wait=True)
    with (
        relay.changes(topic.path, ["orders"], group=topic.name) as changes,
        pytest.raises(relay.RelayError, match=f"topic {topic.name} was created again"),
    ):
        next(changes)


def test_a_group_that_begins_while_its_topic_is_created_again_does_not_go_on(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: where it begins is an offset of the topic before."""
    first_offsets = kafka_changes._first_offsets
    topic.publish([change("ada", version) for version in range(1, 4)])

    def looked_up_just_before(offsets: GroupOffsets, start: str) -> Offsets:
        found = first_offsets(offsets, start)
        topic.create_again()
        topic.publish([change("ada", version) for version in range(11, 17)])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(kafka_changes, "_first_offsets", looked_up_just_before)
        relay.changes(topic.path, ["orders"], group=topic.name, start="latest").close()
    with (
        relay.changes(topic.path, ["orders"], group=topic.name) as changes,
        pytest.raises(relay.RelayError, match=f"topic {topic.name} was created again"),
    ):
        next(changes)


def test_changes_come_while_a_broker_does_not_say_whether_topics_were_created_again(
    tmp_path: Path, unique: str, broker: ProxiedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: a program that waited for that would leave its group."""
    monkeypatch.setattr(same_topics, "_LOOK", 0.0)
    topic = Topic(tmp_path, unique, broker.bootstrap_servers, "redis://127.0.0.1:1/0")
    topic.publish([change("ada", version) for version in range(1, 4)])
    with relay.changes(topic.path, ["orders"]) as changes:
        broker.proxy.lose(client="-admin")
        assert versions([next(changes) for _ in range(3)]) == [("ada", str(version)) for version in range(1, 4)]
        wait_until(lambda: broker.proxy.lost or None, 30)
        asked = len(broker.proxy.lost)
        for _ in range(3):
            assert changes.poll(0.1) is None
        assert len(broker.proxy.lost) == asked  # it has not given up on the first answer


def test_a_gap_is_passed_on(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    """I9."""
    gap = {"id": "1", "source": "orders", "stream": "s", "shard": "0", "reason": "trimmed", "from": None, "to": None}
    producer = Producer(topic.config.kafka.client())
    producer.produce(topic.config.internal("gaps"), json.dumps(gap), b"1", partition=0)
    assert producer.flush(30) == 0
    gaps: list[Any] = []
    with relay.changes(topic.path, ["orders"], until_caught_up=True, on_gap=gaps.append) as changes:
        assert list(changes) == []
    assert gaps == [gap]
    with relay.changes(topic.path, ["orders"], until_caught_up=True) as changes:
        assert list(changes) == []
    assert "changes of source orders are missing (trimmed, shard 0)" in caplog.text


def test_a_statement_that_changed_rows_unseen_is_passed_on_with_the_changes_of_its_table(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """I9, I12"""
    made = [Gap("orders", "s", None, "altered", None, None, 1.0, table, "ALTER") for table in ("orders", "lines")]
    producer = Producer(topic.config.kafka.client())
    for each in made:
        producer.produce(topic.config.internal("gaps"), each.to_json(), b"1", partition=0)
    assert producer.flush(30) == 0
    gaps: list[Any] = []
    with relay.changes(topic.path, ["orders"], until_caught_up=True, on_gap=gaps.append) as changes:
        assert list(changes) == []
    assert gaps == [made[0].published()]
    with relay.changes(topic.path, ["orders"], until_caught_up=True) as changes:
        assert list(changes) == []
    assert "table orders of source orders may have other values than its changes say: ALTER" in caplog.text
    assert "are missing" not in caplog.text


@pytest.mark.parametrize("value", [b"hello", b"\x00\x00\x00\x00\x07x", b"\xc3\x01" + bytes(8) + b"x"])
def test_a_record_that_is_not_a_change_is_an_error_or_passed_on(topic: Topic, value: bytes) -> None:
    topic.publish([change("ada", 1)])
    topic.publish_raw(value)
    with relay.changes(topic.path, ["orders"], group=topic.name, until_caught_up=True) as changes:
        for _ in range(2):  # an error skips nothing
            with pytest.raises(relay.RelayError, match=rf"{topic.name}\[0\] offset \d"):
                list(changes)
    refused: list[bytes | None] = []
    with relay.changes(
        topic.path,
        ["orders"],
        group=topic.name,
        until_caught_up=True,
        on_undecodable=lambda message, _: refused.append(message.value()),
    ) as changes:
        assert versions(changes) == [("ada", "1")]
        changes.commit()
    assert refused == [value]


def test_without_a_group_there_is_nothing_to_commit(topic: Topic) -> None:
    topic.publish([change("ada", 1)])
    with relay.changes(topic.path, ["orders"], until_caught_up=True) as changes:
        next(changes)
        with pytest.raises(ConfigError, match="name the group"):
            changes.commit()


def test_a_wrong_start_is_refused_before_anything_is_read(topic: Topic) -> None:
    with pytest.raises(ConfigError, match="start yesterday: use earliest, latest"):
        relay.changes(topic.path, ["orders"], group=topic.name, start="yesterday")


def _raw(topic: Topic, offset: int) -> bytes:
    """Return the value of the only record of the topic."""
    from relay.kafka.committed import read_all_committed

    (message,) = read_all_committed(topics.connect(topic.config), topic.config, topic.name)
    assert message.offset() == offset
    return message.value() or b""


def _poll(changes: Any, ids: set[str]) -> set[str]:
    """Add the ids of the changes that have come to ``ids``, and return it."""
    while (each := changes.poll(0.2)) is not None:
        ids.add(each.event_id)
    return ids


def test_partitions_that_are_added_meanwhile_do_not_keep_a_program_from_its_end(topic: Topic) -> None:
    """They had no record when it started, so there is no end to read them to."""
    topic.publish([change("ada", 1)])
    with relay.changes(topic.path, ["orders"], group=topic.name, until_caught_up=True) as one:
        assert versions([next(one)]) == [("ada", "1")]
        admin = topics.connect(topic.config)
        admin.create_partitions([NewPartitions(topic.name, 6)])[topic.name].result(120)
        with relay.changes(topic.path, ["orders"], group=topic.name) as two:

            def has_an_added_partition() -> bool | None:
                one.poll(0.1)
                two.poll(0.1)
                added = [each.partition for each in one._consumer.assignment() if each.partition > 1]
                return (bool(added) and bool(two._consumer.assignment()) and not one._unread) or None

            wait_until(has_an_added_partition, 60)
            assert list(one) == []


@pytest.mark.parametrize("pause", [0, -1, 5, 90_000])
def test_a_pause_that_kafka_cannot_have_is_refused(topic: Topic, pause: float) -> None:
    with pytest.raises(ConfigError, match="longest_pause"):
        relay.changes(topic.path, ["orders"], longest_pause=pause)
