"""FastAPI: the same orders, read by a coroutine function whose results are cached as JSON.

CACHE_URL=redis://cache:6379/0 ORDERS=orders uvicorn --factory fastapi_shop:create_app
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import boto3
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from relay.cache import AsyncTokenCache, Codec, RedisStore, TokenCache, cached


class Order(BaseModel):
    customer: str
    number: int
    total: int


class Change(BaseModel):
    total: int


ORDER: Codec[Order] = Codec(lambda order: order.model_dump_json().encode(), Order.model_validate_json)


def create_app() -> FastAPI:
    table = os.environ["ORDERS"]
    dynamodb = boto3.client("dynamodb")
    store = RedisStore(os.environ["CACHE_URL"])
    cache = AsyncTokenCache(TokenCache(store, os.environ.get("CACHE_NAMESPACE", "shop")))

    def typed(customer: str, number: int) -> dict[str, Any]:
        return {"customer": {"S": customer}, "number": {"N": str(number)}}

    @cached(cache, key="order:{customer}:{number}", codec=ORDER)
    async def order(customer: str, number: int) -> Order | None:
        # Consistently: what it reads is at least as new as the last invalidation.
        key = typed(customer, number)
        answer = await asyncio.to_thread(dynamodb.get_item, TableName=table, Key=key, ConsistentRead=True)
        if "Item" not in answer:
            return None
        return Order(customer=customer, number=number, total=int(answer["Item"]["total"]["N"]))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        store.close()

    app = FastAPI(lifespan=lifespan)

    @app.get("/orders/{customer}/{number}")
    async def show(customer: str, number: int) -> Order:
        found = await order(customer, number)
        if found is None:
            raise HTTPException(404)
        return found

    @app.put("/orders/{customer}/{number}", status_code=204)
    async def change(customer: str, number: int, to: Change) -> None:
        item = {**typed(customer, number), "total": {"N": str(to.total)}}
        await asyncio.to_thread(dynamodb.put_item, TableName=table, Item=item)
        await order.invalidate(customer, number)

    return app
