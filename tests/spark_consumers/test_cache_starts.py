"""Where the consumer of the cache begins, and what it makes of what Kafka no longer has: one suite for its engines.

What is about one engine's own code is in ``test_python_engine`` and ``test_runner``.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer

from relay.cache import RedisStore, generation_key
from tests.spark_consumers.cache_engines import Cache, has_applied
from tests.spark_consumers.invalidated import version
from tests.spark_consumers.topic import Topic, change
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def test_it_goes_on_where_it_was_and_refuses_to_start_elsewhere(topic: Topic, cache: Cache) -> None:
    topic.publish([change("c0", 1)])
    assert cache.consume("--from", "earliest")["rows"] == 1
    topic.publish([change("c0", 2)])
    topic.refuse("cache", "--from", "earliest", checkpoint="one", engine=cache.engine)
    assert "--from earliest only applies to a" in topic.log.read_text()
    assert cache.consume()["rows"] == 1


def test_a_start_is_kept_by_a_process_that_is_killed_before_its_first_batch(topic: Topic, cache: Cache) -> None:
    topic.publish([change("c0", 1)])
    process = cache.start("--from", "latest")
    wait_until(lambda: process.has_logged('"started"'), 120)
    process.kill()
    topic.publish([change("c0", 2)])
    assert cache.consume()["rows"] == 1


@pytest.mark.parametrize(("first", "second"), [("python", "spark"), ("spark", "python")])
def test_one_engine_goes_on_where_the_other_has_committed(
    topic: Topic, store: RedisStore, first: str, second: str
) -> None:
    """They share the group and the namespace, so neither invalidates it for the other."""
    topic.publish([change("c0", 1)])
    topic.consume("cache", checkpoint="one", engine=first)
    before = store.generation(generation_key(topic.config.name))
    topic.publish([change("c0", 2)])
    assert topic.consume("cache", "--from", "committed", checkpoint="one", engine=second)["rows"] == 1
    topic.publish([change("c0", 3)])
    assert topic.consume("cache", checkpoint="one", engine=second)["rows"] == 1
    assert version(store, topic, "c0") == 3
    assert store.generation(generation_key(topic.config.name)) == before


def test_a_start_that_skips_changes_and_new_cache_keys_invalidate_the_namespace_and_no_other_start_does(
    topic: Topic, cache: Cache
) -> None:
    """I6: what was skipped, or had no such key, never invalidates anything."""

    def invalidates(*arguments: str, checkpoint: str) -> bool:
        cache.consume(*arguments, checkpoint=checkpoint)
        return cache.is_invalidated()

    topic.publish([change(f"c{number}", 1) for number in range(5)])
    assert cache.is_invalidated()
    assert invalidates(checkpoint="one")
    topic.publish([change("c9", 1)])
    assert not invalidates(checkpoint="one")
    assert not invalidates("--from", "committed", checkpoint="two")
    topic.publish([change("c9", 2)])
    assert invalidates("--from", "latest", checkpoint="three")
    topic.set_cache_keys("order:{customer}", "version:{version}")
    assert invalidates(checkpoint="three")
    assert not invalidates(checkpoint="three")


def test_records_that_were_removed_before_they_were_applied_invalidate_the_namespace(
    topic: Topic, cache: Cache
) -> None:
    """I9, I10: retention was shorter than the consumer was down. It goes on by itself."""
    topic.publish([change("c0", number) for number in range(1, 4)])
    cache.consume()
    assert cache.is_invalidated()
    topic.publish([change("c0", number) for number in range(4, 7)])
    topic.remove_all()
    topic.publish([change("c0", 7)])
    assert cache.consume()["rows"] == 1
    assert cache.is_invalidated()
    assert cache.version("c0") == 7
    topic.publish([change("c0", 8)])
    assert cache.consume()["rows"] == 1
    assert not cache.is_invalidated()


def test_records_that_are_removed_while_it_hangs_are_not_passed_over(topic: Topic, cache: Cache) -> None:
    """I6, I9: the process was stopped, or waited for its store, for longer than the topic's retention."""
    topic.publish([change("c0", 1)])
    process = cache.start_alone()
    has_applied(topic)
    assert cache.is_invalidated()
    process.pause()
    topic.publish([change("c0", 2)])
    time.sleep(1)  # it may have asked for these already, and gets them
    topic.publish([change("c0", number) for number in range(3, 5)])
    topic.remove_all()
    topic.publish([change("c0", 5)])
    process.wake()
    wait_until(lambda: cache.version("c0") == 5 or not process.is_running or None, 120)
    process.kill()
    cache.consume()
    assert cache.version("c0") == 5
    assert cache.is_invalidated()


def test_it_goes_on_where_a_topic_that_was_created_again_ends(topic: Topic, cache: Cache) -> None:
    """I6: what the topic gets until it reaches the offset of the checkpoint would not be read, and the last changes on
    the old topic may not have been."""
    topic.publish([change("c0", version) for version in range(1, 7)])
    cache.consume()
    assert cache.is_invalidated()
    topic.create_again()
    topic.publish([change("c0", 7)])
    cache.consume()
    assert cache.is_invalidated()
    topic.publish([change("c0", 8)])
    assert cache.consume()["rows"] == 1


def test_a_topic_that_is_created_again_while_it_runs_ends_it_and_the_next_start_invalidates(
    topic: Topic, cache: Cache
) -> None:
    """I6, I9: it may have more records by then than were read of the old one."""
    topic.publish([change("c0", version) for version in (1, 2)])
    process = cache.start()
    has_applied(topic)
    assert cache.is_invalidated()
    topic.create_again()
    topic.publish([change("c0", version) for version in (3, 4, 5, 6)])
    assert process.wait(150) == 1, process.log()
    cache.consume()
    assert cache.is_invalidated()


def test_only_the_cache_goes_on_where_it_has_committed_once_a_topic_was_created_again(
    topic: Topic, cache: Cache
) -> None:
    """I1, I6: it invalidates its namespace, and a log that began there would lack the first changes."""
    topic.publish([change("c0", 1), change("c0", 2)])
    cache.consume()
    assert cache.is_invalidated()
    reported, group = topic.reported("cache"), f"{topic.config.name}.cache"
    topic.create_again()
    topic.publish([change("c0", version) for version in (3, 4, 5, 6)])
    client = Consumer({**topic.config.kafka.client(), "group.id": group})
    client.commit(offsets=reported, asynchronous=False)  # as one that has not noticed does
    client.close()
    topic.refuse("log", "--from", f"committed:{group}", checkpoint="log")
    assert f"topic {topic.name} was created again since group {group} read it" in topic.log.read_text()
    assert cache.consume("--from", "committed", checkpoint="two")["rows"] == 2
    assert cache.is_invalidated()
