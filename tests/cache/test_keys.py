"""Which cache keys a change invalidates, and when it invalidates the namespace."""

from __future__ import annotations

from relay.cache.keys import ReducedChange, Templates, invalidations
from relay.change import Operation
from relay.config import CacheConfig
from relay.token import EventToken


def test_a_stub_invalidates_its_key_and_the_namespace_where_a_template_needs_an_image() -> None:
    """I6: a change too large to publish carries only its key."""
    token = EventToken(1000, "orders/l/s", "DynamoDB/1")
    stub = ReducedChange(Operation.UPDATE, "orders", {"id": "o-1"}, None, None, token)
    url = "redis://127.0.0.1:6379/0"
    by_key = Templates(CacheConfig(url=url, namespace="shop", keys={"orders": ["order:{id}"]}))
    found = invalidations([stub], by_key)
    assert (found.pairs, found.bumps) == ([("order:o-1", token)], [])
    by_image = Templates(CacheConfig(url=url, namespace="shop", keys={"orders": ["order:{id}", "of:{customer}"]}))
    found = invalidations([stub], by_image)
    assert len(found.bumps) == 1


TOKEN = EventToken(1000, "orders/l/s", "DynamoDB/1")
BY_CUSTOMER = Templates(
    CacheConfig(url="redis://127.0.0.1:6379/0", namespace="shop", keys={"orders": ["order:{id}", "of:{customer}"]})
)


def test_a_truncated_table_invalidates_the_namespace() -> None:
    """I6: nobody knows which rows it had."""
    truncated = ReducedChange(Operation.TRUNCATE, "orders", None, None, None, TOKEN)
    found = invalidations([truncated], BY_CUSTOMER)
    assert (found.pairs, found.bumps) == ([], ["orders was truncated"])


def test_a_row_that_a_snapshot_has_read_invalidates_nothing() -> None:
    """I10: it changes nothing, and comes with one image only. A consumer that expects two would stop here."""
    row = ReducedChange(Operation.READ, "orders", {"id": "o-1"}, None, {"customer": "ada"}, None)
    found = invalidations([row], BY_CUSTOMER)
    assert (found.pairs, found.bumps) == ([], [])


def test_an_update_invalidates_the_keys_of_the_old_row_and_of_the_new() -> None:
    """I6: the row has left the entry of its old customer."""
    moved = ReducedChange(Operation.UPDATE, "orders", {"id": "o-1"}, {"customer": "ada"}, {"customer": "bob"}, TOKEN)
    found = invalidations([moved], BY_CUSTOMER)
    assert found.pairs == [("order:o-1", TOKEN), ("of:ada", TOKEN), ("of:bob", TOKEN)]
