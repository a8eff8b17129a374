"""``relay verify``: finds values that the cache serves though their rows make others, and accuses no other value."""

from __future__ import annotations

import json
import random
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.config import load
from relay.dynamodb import Stream
from relay.dynamodb.values import image_json
from relay.operations.verify_cache import verify
from relay.services.mariadb import PASSWORD, USER
from tests.command_line import errors, relay
from tests.listening import NOBODY
from tests.operations.verified_shop import Shop, primary_key
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def shop(request: pytest.FixtureRequest, dynamodb: Any, tmp_path: Path, unique: str) -> Iterator[Shop]:
    """Its cache is in Redis, or where the test says."""
    server: Any = request.getfixturevalue(getattr(request, "param", "redis_server"))
    found = Shop(unique, dynamodb.endpoint_url, server.url, tmp_path)
    yield found
    found.store.close()
    found.client.delete_table(TableName=unique)


def stale_keys(answer: Mapping[str, Any]) -> list[str]:
    return sorted(entry["key"] for entry in answer["stale_entries"])


on_both = pytest.mark.parametrize("shop", ["redis_server", "memcached_server"], indirect=True)


@on_both
def test_values_that_are_as_their_items_are_consistent(shop: Shop) -> None:
    keys = [shop.put(number, 1) for number in range(5)]
    for key in [*keys, "order:ada:404"]:
        shop.cache.get_or_load(key, shop.loader.load)
    shop.invalidator.apply([(keys[0], None)])
    answer = shop.verify()
    assert (answer["sampled"], answer["checked"], answer["consistent"]) == (6, 5, 5)
    assert (answer["stale"], answer["unknown"], answer["without_value"]) == (0, 0, 1)
    assert (answer["consistent_within"], answer["within_seconds"]) == (1.0, 1.0)
    assert shop.verify("--sample", "3")["sampled"] == 3


def test_a_set_in_another_order_and_attributes_in_another_order_are_the_same_item(shop: Shop) -> None:
    key = shop.put(7, 1)
    item = {"version": {"N": "1.0"}, "tags": {"SS": ["a", "b"]}, "number": {"N": "7"}, "customer": {"S": "ada"}}
    shop.plant(key, image_json(item).encode())
    assert shop.verify()["consistent"] == 1


@on_both
def test_stale_values_are_found_and_shown_beside_what_is_true(shop: Shop) -> None:
    changed, deleted, created, right = (shop.put(number, 1) for number in range(4))
    old = {key: shop.loader.load(key, None).value for key in (changed, deleted, right)}
    shop.put(0, 2)
    shop.client.delete_item(TableName=shop.table, Key=dict(primary_key(deleted)))
    for key, value in old.items():
        shop.plant(key, value)
    shop.plant(created, None)
    answer = shop.verify(code=4)
    assert (answer["checked"], answer["consistent"], answer["stale"]) == (4, 1, 3)
    assert answer["consistent_within"] == 0.25
    assert stale_keys(answer) == [changed, deleted, created]
    shown = {entry["key"]: entry for entry in answer["stale_entries"]}
    assert (old[changed] or b"").decode() == shown[changed]["cached"]
    assert '"version":{"N":"2"}' in shown[changed]["truth"]
    assert (shown[deleted]["truth"], shown[created]["cached"]) == (None, None)
    assert all(entry["seconds"] >= 1.0 for entry in answer["stale_entries"])


def test_a_stale_value_is_named_and_ends_the_command_with_code_4(shop: Shop) -> None:
    key = shop.put(1, 1)
    shop.plant(key, None)
    result = relay("verify", shop.config, "--within", "0.2")
    assert result.exit_code == 4
    shown = rf"stale for \d+\.\d s: {key}\n  cached: \(no such item\)\n  now:    {{"
    assert re.search(shown, result.stdout)
    assert "consistent within 0.2 s: 0 of 1 (0.0000%)" in result.stdout
    assert f"1 of 1 values in namespace {shop.table} are stale" in result.stderr
    assert "1 values differ from their rows: looking again for up to 0.2 s" in result.stderr
    document = json.loads(shop.config.read_text())
    document["sources"][0]["protect"] = {shop.table: {"version": "mask"}}
    shop.config.write_text(json.dumps(document))
    result = relay("verify", shop.config, "--within", "0.2")
    assert "now:    not shown, because of `protect`" in result.stdout
    assert '"version"' not in result.stdout


def test_a_value_that_is_invalidated_in_time_is_late_and_not_stale(shop: Shop) -> None:
    key = shop.put(1, 1)
    shop.cache.get_or_load(key, shop.loader.load)
    shop.put(1, 2)

    def invalidate(_: str) -> None:
        """Between the first look and the second."""
        shop.invalidator.apply([(key, None)])

    found = verify(load(shop.config), sample=10, within=20.0, say=invalidate)
    assert (found.consistent, found.late, found.stale) == (1, 1, [])
    assert 0.0 < found.slowest < 20.0


def test_values_that_cannot_be_compared_are_unknown_with_the_reason(shop: Shop) -> None:
    shop.plant(shop.put(1, 1), b"\x80pickled")
    shop.plant(shop.put(2, 1), b'{"customer":{"S":"bob"},"number":{"N":"2"}}')
    shop.plant("order:ada:2.0", None)  # no item's key has this text
    shop.plant("basket:ada", b"1")
    shop.plant("order:" + "9" * 5000 + ":1", None)
    answer = shop.verify()
    assert (answer["unknown"], answer["checked"], answer["consistent_within"]) == (5, 0, None)
    assert sum(answer["unknown_reasons"].values()) == 5
    assert all("--loader" in reason for reason in answer["unknown_reasons"])
    assert (answer["unmatched"], answer["unmatched_keys"]) == (1, ["basket:ada"])


def test_a_key_that_several_items_may_have_is_compared_with_the_items_of_its_value(shop: Shop) -> None:
    """``order:a:b:1`` may be of customer ``a:b`` only, since ``b:1`` is not a number."""
    item = {"customer": {"S": "a:b"}, "number": {"N": "1"}}
    shop.client.put_item(TableName=shop.table, Item=item)
    shop.plant("order:a:b:1", image_json(item).encode())
    shop.plant("order:a:b:2", None)
    assert shop.verify()["consistent"] == 2


@contextmanager
def module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Iterator[None]:
    """A module of the application in the folder where ``relay`` is run."""
    (folder / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop(name, None)


def test_an_application_names_the_loader_that_makes_its_bytes(
    shop: Shop, mariadb: Any, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are MariaDB's, the bytes the application's own."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(f"CREATE TABLE {unique}.users (id INT PRIMARY KEY, name VARCHAR(20))")
    mariadb.execute(f"INSERT INTO {unique}.users VALUES (1, 'ann'), (2, 'bob')")
    source = {"name": "users", "type": "mysql", "database": unique, "user": USER, "start": "current"}
    shop.configure(
        sources=[{**source, "shards": {"-": [f"{mariadb.host}:{mariadb.port}"]}, "tables": ["users"]}],
        cache={"url": shop.cache_url, "namespace": shop.table, "keys": {"users": ["user:{id}"]}},
    )
    shop.plant("user:1", b"<ann>")
    shop.plant("user:2", b"<rob>")
    shop.plant("user:3", None)
    text = f"""
        import pymysql
        from relay.cache import LoadedValue

        class Users:
            def load_many(self, wanted):
                at = {{"host": {mariadb.host!r}, "port": {mariadb.port}}}
                with pymysql.connect(**at, user={USER!r}, password={PASSWORD!r}) as connection:
                    with connection.cursor() as cursor:
                        cursor.execute("SELECT id, name FROM {unique}.users")
                        found = {{f"user:{{id}}": f"<{{name}}>".encode() for id, name in cursor.fetchall()}}
                return {{key: LoadedValue(found.get(key), {{}}, fresher=True) for key in wanted}}

        users = Users()
        load_many = users.load_many

        def broken(wanted):
            raise OSError("no route to host")

        def unlike(wanted):
            return dict.fromkeys(wanted, b"bytes")

        clock = iter(range(10**9))

        def unsteady(wanted):
            return {{key: LoadedValue(str(next(clock)).encode(), {{}}, fresher=True) for key in wanted}}

        def lagging(wanted):
            return {{key: LoadedValue(b"old", {{}}, fresher=False) for key in wanted}}
        """
    with module(shop.folder, monkeypatch, unique, text):
        for name in ("users", "load_many", "users.load_many"):
            answer = shop.verify("--loader", f"{unique}:{name}", code=4)
            assert (answer["consistent"], stale_keys(answer)) == (2, ["user:2"])
        assert list(shop.verify("--loader", f"{unique}:unsteady", within=0.2)["unknown_reasons"].values()) == [3]
        assert shop.verify("--loader", f"{unique}:lagging")["unknown"] == 3
        message = failure(shop, 3, "--loader", f"{unique}:broken")
        assert message.startswith(f"the loader {unique}:broken failed for 3 keys, the first of them 'user:")
        assert message.endswith("OSError: no route to host")
        assert "must return a relay.cache.LoadedValue" in failure(shop, 2, "--loader", f"{unique}:unlike")
        assert f"module '{unique}' has no attribute 'no'" in failure(shop, 2, "--loader", f"{unique}:no")
        assert "must be module:name" in failure(shop, 2, "--loader", unique)
        assert "No module named 'no_such_module'" in failure(shop, 2, "--loader", "no_such_module:x")
        assert "without the application's loader: name it with --loader module:name" in failure(shop, 2)


def test_functions_of_an_application_are_loaders_of_their_own_keys(
    shop: Shop, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {shop.table: ["order:{customer}:{number}", "user:{customer}"]}
    shop.configure(cache={"url": shop.cache_url, "namespace": shop.table, "keys": keys})
    shop.plant(shop.put(1, 1), b'"1"')
    shop.plant(shop.put(2, 5), b'"4"')
    shop.plant("user:ada", b"ADA")
    shop.plant("basket:ada", b"1")
    text = f"""
        import asyncio
        import boto3
        from relay.cache import TEXT, AsyncTokenCache, MemoryStore, TokenCache, cached

        cache = TokenCache(MemoryStore(), "other")
        client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url={shop.endpoint_url!r})

        @cached(cache, key="order:{{customer}}:{{number}}")
        def order(customer: str, number: int):
            key = {{"customer": {{"S": customer}}, "number": {{"N": str(number)}}}}
            return client.get_item(TableName={shop.table!r}, Key=key, ConsistentRead=True)["Item"]["version"]["N"]

        lock = asyncio.Lock()

        @cached(AsyncTokenCache(cache), key="user:{{customer}}", codec=TEXT)
        async def user(customer: str):
            async with lock:
                await asyncio.sleep(0)
                return customer.upper()
        """
    with module(shop.folder, monkeypatch, unique, text):
        answer = shop.verify("--loader", f"{unique}:order", "--loader", f"{unique}:user", code=4)
    assert (answer["consistent"], stale_keys(answer)) == (2, ["order:ada:2"])
    assert answer["unknown_reasons"] == {"no --loader returned a value for the key": 1}


def failure(shop: Shop, code: int, *options: str) -> str:
    result = relay("verify", shop.config, *options)
    assert result.exit_code == code, (result.output, result.exception)
    (message,) = errors(result)
    return message


def test_what_cannot_be_reached_ends_the_command_with_code_3(shop: Shop) -> None:
    shop.plant(shop.put(1, 1), None)
    cache_url = shop.cache_url
    shop.cache_url = f"redis://{NOBODY}/0"
    shop.configure()
    assert f"Redis at {shop.cache_url} is not available" in failure(shop, 3)
    shop.cache_url, shop.endpoint_url = cache_url, f"http://{NOBODY}"
    shop.configure()
    assert "source orders: DynamoDB in region us-east-1" in failure(shop, 3)


def test_a_config_without_a_cache_is_refused(shop: Shop) -> None:
    shop.configure(cache=None)
    assert "the config has no `cache:` section" in failure(shop, 2)


def test_a_busy_application_has_no_stale_values_and_a_planted_one_is_found(shop: Shop) -> None:
    """Readers, writers and the invalidator run meanwhile; nothing is accused but the value that was planted."""
    numbers = range(200)
    for number in [*numbers, 1000]:
        shop.put(number, 0)
    stop = threading.Event()
    written, failures = [0] * 4, []
    # One for each change that was applied: the writers must not leave the invalidator further and further behind.
    room = threading.Semaphore(0)

    def repeat(step: Callable[[random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not stop.is_set():
                step(rng)
        except Exception as error:  # shown at the end of the test
            failures.append(error)

    def read(rng: random.Random) -> None:
        keys = [f"order:ada:{min(int(rng.expovariate(0.05)), 249)}" for _ in range(5)]
        shop.cache.get_many(keys, shop.loader.load_many)
        time.sleep(0.005)  # or the database has no time for anyone else

    def write(writer: int, rng: random.Random) -> None:
        if not room.acquire(timeout=0.1):
            return
        written[writer] += 1
        number = rng.choice(numbers)
        if rng.random() < 0.1:
            key = dict(primary_key(f"order:ada:{number}"))
            deleted = shop.client.delete_item(TableName=shop.table, Key=key, ReturnValues="ALL_OLD")
            if not deleted.get("Attributes"):
                room.release()  # nothing has changed
        else:
            shop.put(number, written[writer])
        time.sleep(0.005)

    stream = Stream(shop.streams, shop.stream_arn, "trim_horizon")

    def invalidate(_: random.Random) -> None:
        record = next(stream)
        if record is None:
            time.sleep(0.05)
        else:
            # DynamoDB Local sends no image of an item that two delete at once.
            number = (record["new"] or record["old"] or record["key"])["number"]["N"]
            shop.invalidator.apply([(f"order:ada:{number}", None)])
            room.release()

    steps = [read] * 4 + [lambda rng, writer=writer: write(writer, rng) for writer in range(4)] + [invalidate]
    threads = [threading.Thread(target=repeat, args=(step, seed)) for seed, step in enumerate(steps)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: bool(failures) or (min(written) > 20 and shop.cache.hits > 100) or None, 60)
        clean = [shop.verify(within=120.0) for _ in range(5)]
        shop.plant("order:ada:1000", b'{"customer":{"S":"ada"},"number":{"N":"1000"},"version":{"N":"1"}}')
        spoilt = shop.verify(code=4, within=20.0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert all(answer["stale"] == answer["unknown"] == 0 for answer in clean), clean
    assert sum(answer["checked"] for answer in clean) > 200
    assert stale_keys(spoilt) == ["order:ada:1000"]
