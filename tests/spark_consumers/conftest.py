"""What tests of the consumers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.cache import RedisStore
from tests.spark_consumers.cache_engines import Cache
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic


@pytest.fixture(scope="session")
def spark_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A Spark for tests that need none of their own."""
    process = SparkProcess(tmp_path_factory.mktemp("spark"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def spark_of_delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A Spark for the tests of a file that need the functions of the log."""
    process = SparkProcess(tmp_path_factory.mktemp("spark"), iceberg=False)
    yield process
    process.close()


@pytest.fixture
def topic(
    tmp_path: Path,
    kafka: Any,
    redis_server: Any,
    unique: str,
    spark_process: SparkProcess,
    request: pytest.FixtureRequest,
) -> Topic:
    """The topics of a relay, whose consumers run in that Spark; the parameter: their partitions, if not two."""
    partitions = getattr(request, "param", 2)
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process, partitions=partitions)


@pytest.fixture
def store(redis_server: Any) -> Iterator[RedisStore]:
    with RedisStore(redis_server.url) as store:
        yield store


@pytest.fixture(params=["python", "spark"])
def cache(topic: Topic, store: RedisStore, request: pytest.FixtureRequest) -> Cache:
    """The consumer of the cache, on each engine."""
    return Cache(topic, store, request.param)
