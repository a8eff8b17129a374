"""Changes whose images no message holds."""

from __future__ import annotations

from relay.change import Change
from relay.dynamodb.values import image_json
from tests.spark_consumers.topic import change

LARGEST = 20_000
"""The bytes that a message may have."""


def huge(customer: str, version: int) -> Change:
    one = change(customer, version)
    image = {"customer": {"S": customer}, "order_id": {"N": "1"}, "version": {"N": str(version)}}
    one.new = image_json({**image, "payload": {"S": "x" * LARGEST}})
    return one
