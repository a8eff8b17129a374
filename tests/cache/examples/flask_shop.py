"""Flask: orders of a DynamoDB table, cached as the items that they are.

    CACHE_URL=redis://cache:6379/0 ORDERS=orders flask --app flask_shop run

The relay's config says which changes invalidate what is cached here:

    cache: {url: "redis://cache:6379/0", namespace: shop, keys: {orders: ["order:{customer}:{number}"]}}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import boto3
from flask import Flask, Response, request

from relay.cache import DynamoDBLoader, RedisStore, TokenCache, key_text

KEY = "order:{customer}:{number}"


def primary_key(cache_key: str) -> Mapping[str, Any]:
    """Return the primary key of the item that a cache key names."""
    customer, number = cache_key.removeprefix("order:").rsplit(":", 1)
    return {"customer": {"S": customer}, "number": {"N": number}}


def create_app() -> Flask:
    app = Flask(__name__)
    table = os.environ["ORDERS"]
    dynamodb = boto3.client("dynamodb")
    # One for the process: its threads share the connections, and a fork opens its own.
    cache = TokenCache(RedisStore(os.environ["CACHE_URL"]), os.environ.get("CACHE_NAMESPACE", "shop"))
    orders = DynamoDBLoader(dynamodb, table, primary_key, key=KEY)

    @app.get("/orders/<customer>/<int:number>")
    def show(customer: str, number: int) -> Response:
        key = key_text(KEY, {"customer": customer, "number": number})
        value = cache.get_or_load(key, orders.load).value
        if value is None:  # also that there is no such order is cached, until there is one
            return Response(status=404)
        return Response(value, mimetype="application/json")

    @app.put("/orders/<customer>/<int:number>")
    def change(customer: str, number: int) -> Response:
        key = key_text(KEY, {"customer": customer, "number": number})
        dynamodb.put_item(TableName=table, Item={**primary_key(key), "total": {"N": str(request.get_json()["total"])}})
        cache.invalidate(key)  # the relay does it, too, but maybe after this user's next request
        return Response(status=204)

    return app
