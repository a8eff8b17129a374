"""The keys of items by those of a cache."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal

import pytest

from relay.cache import DynamoDBLoader, MemoryStore, Outcome, TokenCache, key_text
from relay.dynamodb.models import Attribute, Engine, InvalidModel, Model, hash_key, item_key, range_key
from tests.dynamodb.models.shop import Order

TEMPLATE = "order:{customer}:{number}"


class Blob(Model, cache_keys=["blob:{id}", "{id}:{id}", "of:{owner}"]):
    id: Attribute[bytes] = hash_key()
    owner: Attribute[str]


class Pair(Model, cache_keys=["{left}:{right}"]):
    left: Attribute[str] = hash_key()
    right: Attribute[Decimal] = range_key()


class Texts(Model, cache_keys=["{left}:{right}"]):
    left: Attribute[str] = hash_key()
    right: Attribute[str] = range_key()


@pytest.mark.parametrize(
    ("model", "template", "key"),
    [
        (Order, TEMPLATE, {"customer": {"S": "ada"}, "number": {"N": "-1"}}),
        (Order, TEMPLATE, {"customer": {"S": "a:b"}, "number": {"N": "12"}}),
        (Blob, "blob:{id}", {"id": {"B": b"\x00\xff"}}),
        (Blob, "{id}:{id}", {"id": {"B": b"\x00\xff"}}),
        (Pair, "{left}:{right}", {"left": {"S": "1:x"}, "right": {"N": "0.5"}}),
    ],
)
def test_the_key_of_an_item_is_read_from_its_cache_key(
    model: type[Model], template: str, key: dict[str, object]
) -> None:
    assert item_key(model, template)(key_text(template, key)) == key


@pytest.mark.parametrize(
    ("model", "template", "text", "message"),
    [
        (Order, TEMPLATE, "order:ada", "'order:ada' is not the cache key order:.* of any Order"),
        (Order, TEMPLATE, "order:ada:1.0", "is not the cache key .* of any Order"),
        (Order, TEMPLATE, "order:ada:one", "is not the cache key .* of any Order"),
        (Blob, "blob:{id}", "blob:%", "is not the cache key .* of any Blob"),
        (Blob, "blob:{id}", "blob:YR==", "is not the cache key .* of any Blob"),
        (Texts, "{left}:{right}", "a:b:c", "is the cache key .* of more than one Texts"),
    ],
)
def test_a_text_that_is_the_key_of_no_one_item_is_refused(
    model: type[Model], template: str, text: str, message: str
) -> None:
    """I8"""
    with pytest.raises(ValueError, match=message):
        item_key(model, template)(text)


@pytest.mark.parametrize("template", ["of:{owner}", "other:{id}"])
def test_a_template_that_does_not_name_one_item_is_refused(template: str) -> None:
    with pytest.raises(
        InvalidModel, match=r"Blob: .* must be one of its cache_keys, and use exactly the .* its key: id"
    ):
        item_key(Blob, template)


@pytest.mark.services
def test_a_cache_is_filled_by_the_class_and_reads_what_was_saved(engine: Engine) -> None:
    """I6"""
    cache = TokenCache(MemoryStore(), "shop")
    loader = DynamoDBLoader(engine.client, engine.table_name(Order), item_key(Order, TEMPLATE))
    order = Order(customer=uuid.uuid4().hex, number=1, total=Decimal(5))
    engine.save(order)
    key = f"order:{order.customer}:1"

    def total() -> tuple[str, Outcome]:
        found = cache.get_or_load(key, loader.load)
        return json.loads(found.value or b"")["total"]["N"], found.outcome

    assert [total(), total()] == [("5", Outcome.FILLED), ("5", Outcome.HIT)]
    order.total = Decimal(6)
    engine.save(order, atomic=True, cache=cache)
    assert total() == ("6", Outcome.FILLED)
