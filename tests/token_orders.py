"""The orders of two tokens, by short names, and what each is the other way round."""

from __future__ import annotations

from relay.token import Order

OLDER, EQUAL, NEWER, UNKNOWN = Order.OLDER, Order.EQUAL, Order.NEWER, Order.UNKNOWN
MIRROR = {OLDER: NEWER, NEWER: OLDER, EQUAL: EQUAL, UNKNOWN: UNKNOWN}
