"""What the runner of a consumer on Spark decides on its own: no test here starts a Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from relay.avro.framing import single_object_header
from relay.config import Config
from relay.errors import RelayError
from spark_consumers.change_log import log_consumer
from spark_consumers.checkpoint import ConsumerCheckpoint
from spark_consumers.consumer_http import served
from spark_consumers.invalidate import CacheConsumer
from spark_consumers.runner import Runner
from tests.spark_consumers.topic import Topic, change

pytestmark = pytest.mark.services


@pytest.fixture
def topic(tmp_path: Path, kafka: Any, redis_server: Any, unique: str) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url)


@contextmanager
def begun(config: Config, kind: str, checkpoint: Path) -> Iterator[Runner]:
    """Yield the runner of a consumer that has begun with a new checkpoint."""
    assert config.cache is not None
    assert config.log is not None
    consumer = CacheConsumer(config, config.cache) if kind == "cache" else log_consumer(config, config.log)
    with ExitStack() as stack:
        (watch,) = stack.enter_context(served(config, [(kind, consumer.topics)], None))
        runner = Runner(consumer, config, ConsumerCheckpoint(str(checkpoint)), True, watch)
        runner.connect(stack)
        runner.begin(None, stack)
        yield runner


@pytest.mark.parametrize(("kind", "waits"), [("cache", False), ("log", True)])
def test_only_the_cache_waits_for_no_schema(topic: Topic, kind: str, waits: bool) -> None:
    """I1, I6: it would hold up the invalidations behind a value that it makes up for."""
    with begun(topic.config, kind, topic.folder / "checkpoint") as runner:
        assert runner.schema_wait.look([single_object_header(b"unknown?")]) is not waits


@pytest.mark.parametrize(("kind", "code"), [("log", 2), ("cache", 1)])
def test_a_topic_that_is_created_again_ends_what_reads_it_and_only_a_cache_is_worth_a_restart(
    topic: Topic, kind: str, code: int
) -> None:
    """I1, I6: it would go on at the offset of the old one."""
    topic.publish([change("c0", 1)])
    with begun(topic.config, kind, topic.folder / "checkpoint") as runner:
        if kind == "cache":
            runner._begin(cast(Any, None))
        assert runner._created_again() == {}
        topic.create_again()
        with pytest.raises(RelayError, match=f"topic {topic.name} was (deleted and )?created again") as refused:
            runner._refuse(runner._created_again())
        assert refused.value.exit_code == code


@pytest.mark.parametrize("kind", ["cache", "log"])
def test_a_checkpoint_that_cannot_be_read_for_a_while_is_read_again_and_then_worth_a_restart(
    topic: Topic, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: any other error would end all consumers of the process."""
    monkeypatch.setattr("spark_consumers.runner.RETRY_DELAYS", (0.0, 0.0))
    checkpoint = topic.folder / "checkpoint"
    with begun(topic.config, kind, checkpoint) as runner:
        checkpoint.rename(topic.folder / "away")
        checkpoint.write_text("no folder")
        with pytest.raises(RelayError, match=r"gave up after 3 attempts: .*Not a directory") as failed:
            runner._begin(cast(Any, None))
        assert failed.value.exit_code == 1
