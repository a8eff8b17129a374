"""A table, as DynamoDB describes it."""

from __future__ import annotations

from relay.dynamodb.describe import Description
from relay.table import KeyColumn


def described(view_type: str) -> Description:
    key = (KeyColumn("order_id", "S"),)
    return Description("orders", "arn:table", "arn:stream", "label", view_type, key)
