"""The examples for web frameworks, on a real table and a real Redis."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import boto3
import pytest

from relay.cache import Invalidator, RedisStore
from tests.cache.sources import create_orders

pytestmark = pytest.mark.services

Request = Callable[[str, str, Any], tuple[int, Any]]
"""Makes a request, of a method, a path and a body of JSON; returns the status and the answer."""


@pytest.fixture
def table(dynamodb: Any, redis_server: Any, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of the application's table, which has the name of the test; the environment leads to it."""
    for name, value in {
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "CACHE_URL": redis_server.url,
        "CACHE_NAMESPACE": unique,
        "ORDERS": unique,
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("dynamodb")
    create_orders(client, unique)
    yield client
    client.delete_table(TableName=unique)


def flask_client(stack: ExitStack) -> Request:
    from tests.cache.examples.flask_shop import create_app

    client = stack.enter_context(create_app().test_client())

    def request(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = client.open(path, method=method, json=body)
        return answer.status_code, answer.get_json(silent=True)

    return request


def fastapi_client(stack: ExitStack) -> Request:
    from fastapi.testclient import TestClient

    from tests.cache.examples.fastapi_shop import create_app

    client = stack.enter_context(TestClient(create_app()))

    def request(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = client.request(method, path, json=body)
        return answer.status_code, answer.json() if answer.status_code == 200 else None

    return request


def django_client(stack: ExitStack) -> Request:
    import tests.cache.examples.django_shop as shop

    importlib.reload(shop)  # with this test's environment
    from django.test import Client

    client = Client()
    stack.callback(shop.store.close)

    def request(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = client.generic(method, path, data=b"" if body is None else json.dumps(body).encode())
        return answer.status_code, answer.json() if answer.status_code == 200 else None

    return request


def total_of(answer: Any) -> int:
    total = answer["total"]
    return int(total["N"] if isinstance(total, dict) else total)


@pytest.mark.parametrize("framework", [flask_client, fastapi_client, django_client])
def test_an_application_serves_what_was_written_last(
    framework: Callable[[ExitStack], Request], table: Any, redis_server: Any, unique: str
) -> None:
    path, key = "/orders/ada/7", "order:ada:7"

    def write(total: int) -> None:
        """As another application does, of which this one does not know."""
        item = {"customer": {"S": "ada"}, "number": {"N": "7"}, "total": {"N": str(total)}}
        table.put_item(TableName=unique, Item=item)

    with ExitStack() as stack, RedisStore(redis_server.url) as store:
        request = framework(stack)
        assert request("GET", path, None)[0] == 404
        assert request("PUT", path, {"total": 1})[0] == 204
        status, answer = request("GET", path, None)
        assert (status, total_of(answer)) == (200, 1)
        write(2)
        assert total_of(request("GET", path, None)[1]) == 1  # cached, and the consumer has yet to see the change
        Invalidator(store, unique).apply([(key, None)])
        assert total_of(request("GET", path, None)[1]) == 2
        assert request("PUT", path, {"total": 3})[0] == 204
        assert total_of(request("GET", path, None)[1]) == 3
