"""Short names for the orders of two tokens, and the mirror image of each."""

from __future__ import annotations

from relay.token import Order

OLDER, EQUAL, NEWER, UNKNOWN = Order.OLDER, Order.EQUAL, Order.NEWER, Order.UNKNOWN
MIRROR = {OLDER: NEWER, NEWER: OLDER, EQUAL: EQUAL, UNKNOWN: UNKNOWN}
