"""Two caches of one relay share neither a group nor a checkpoint, on any engine (I10)."""

from __future__ import annotations

import json
import re

import pytest

from relay.cache import RedisStore, generation_key
from relay.config import load
from relay.errors import ConfigError
from relay.kafka import topics
from spark_consumers import changes
from spark_consumers.launch import state_folder
from tests.command_line import relay
from tests.spark_consumers.topic import Topic, change

pytestmark = pytest.mark.services

SECOND = ("--set", "cache.name=second")


def elsewhere(topic: Topic, key: str) -> tuple[str, str]:
    """Return the option by which a command gets another cache than the topic's, with the same or another ``key``."""
    other = {"url": f"{topic.redis_url.removesuffix('/0')}/1", "namespace": f"{topic.config.name}-2"}
    return "--set", f"cache.{key}={other[key]}"


def behind(topic: Topic, *options: str) -> tuple[str, int | None]:
    """Return the group of the cache that a config with ``options`` has, and how far it is behind."""
    (cache, *_) = json.loads(relay("status", topic.path, "--json", *options).stdout)["consumers"]
    return cache["group"], cache["offsets_behind"]


@pytest.mark.parametrize("engine", ["python", "spark"])
@pytest.mark.parametrize("key", ["url", "namespace"])
def test_a_second_cache_does_not_begin_in_the_group_of_the_first_and_may_have_one_of_its_own(
    topic: Topic, store: RedisStore, engine: str, key: str
) -> None:
    """I10: while one of them was down, the lag of the group was that of the other."""
    assert topic.config.cache is not None
    name, other = topic.config.name, elsewhere(topic, key)
    topics.create_missing(topics.connect(topic.config), topic.config, ["orders", "lines"])  # what a relay has made
    topic.publish([change("c0", 1)])
    topic.consume("cache", checkpoint="one", engine=engine)
    before = store.generation(generation_key(name))
    topic.publish([change("c0", 2)])
    for checkpoint in ("one",) if engine == "python" else ("one", "two"):  # on the same machine, and on another
        topic.refuse("cache", *other, checkpoint=checkpoint, engine=engine)
        said = topic.log.read_text()
        assert f"group {name}.cache has the offsets of the cache {topic.config.cache.place}, and" in said
        assert f"--from committed:{name}.cache" in said
    its_own = (*other, *SECOND, "--from", f"committed:{name}.cache")
    assert (
        topic.consume("cache", *its_own, checkpoint="one" if engine == "python" else "three", engine=engine)["rows"]
        == 1
    )
    assert behind(topic, *other, *SECOND) == (f"{name}.cache.second", 0)
    assert behind(topic) == (f"{name}.cache", 1)
    assert topic.consume("cache", checkpoint="one", engine=engine)["rows"] == 1
    assert behind(topic) == (f"{name}.cache", 0)
    assert store.generation(generation_key(name)) == before


@pytest.mark.parametrize("engine", ["python", "spark"])
def test_a_cache_whose_server_is_called_otherwise_goes_on_where_it_is(
    topic: Topic, store: RedisStore, engine: str
) -> None:
    """I6: it would be invalidated by nobody until somebody reads why."""
    topic.publish([change("c0", 1)])
    topic.consume("cache", checkpoint="one", engine=engine)
    before = store.generation(generation_key(topic.config.name))
    topic.publish([change("c0", 2)])
    renamed = ("--set", f"cache.url={topic.redis_url.replace('127.0.0.1', 'localhost')}")
    assert topic.consume("cache", *renamed, checkpoint="one", engine=engine)["rows"] == 1
    assert store.generation(generation_key(topic.config.name)) == before


def test_a_cache_with_a_name_has_a_folder_of_its_own_and_no_other_consumer_gets_its_group(topic: Topic) -> None:
    named = load(topic.path, SECOND[1:])
    assert state_folder(topic.config, "cache").endswith(f"/{topic.config.name}/cache")
    assert state_folder(named, "cache").endswith(f"/{topic.config.name}/cache.second")
    assert state_folder(named, "copy").endswith(f"/{topic.config.name}/copy")
    for name in "cache.second", "log.-80", "copy.x":  # the log of a key range
        with pytest.raises(ConfigError, match=f"'{re.escape(name)}' is one of the relay's own consumers"):
            changes(topic.config, ["orders"], name=name)
