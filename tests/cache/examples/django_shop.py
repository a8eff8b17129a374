"""Django: the same orders, read by a function whose results are cached as JSON; the whole project in one file.

    CACHE_URL=redis://cache:6379/0 ORDERS=orders gunicorn django_shop:application

A function that is cached must see each write that was committed before it is called. So it does not read in a
transaction that may have begun before: with ATOMIC_REQUESTS each request is one.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import boto3
import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import path

from relay.cache import RedisStore, TokenCache, cached

if not settings.configured:
    settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY=os.urandom(16).hex())
    django.setup()

TABLE = os.environ["ORDERS"]
# Made when the module is imported, and connected by the worker that first uses it.
store = RedisStore(os.environ["CACHE_URL"])
cache = TokenCache(store, os.environ.get("CACHE_NAMESPACE", "shop"))


@functools.cache
def dynamodb() -> Any:
    return boto3.client("dynamodb")


def typed(customer: str, number: int) -> dict[str, Any]:
    return {"customer": {"S": customer}, "number": {"N": str(number)}}


@cached(cache, key="order:{customer}:{number}")
def order(customer: str, number: int) -> dict[str, Any] | None:
    item = dynamodb().get_item(TableName=TABLE, Key=typed(customer, number), ConsistentRead=True).get("Item")
    return item and {"customer": customer, "number": number, "total": int(item["total"]["N"])}


def orders(request: HttpRequest, customer: str, number: int) -> HttpResponse:
    if request.method == "GET":
        found = order(customer, number)
        return HttpResponse(status=404) if found is None else JsonResponse(found)
    if request.method == "PUT":
        total = json.loads(request.body)["total"]
        dynamodb().put_item(TableName=TABLE, Item={**typed(customer, number), "total": {"N": str(total)}})
        order.invalidate(customer, number)
        return HttpResponse(status=204)
    return HttpResponseNotAllowed(["GET", "PUT"])


urlpatterns = [path("orders/<str:customer>/<int:number>", orders)]
application = WSGIHandler()
