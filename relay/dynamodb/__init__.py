"""DynamoDB Streams: the relay's source, and ``Stream`` and ``batch_load`` for Python programs.

The public names load their modules on first use, because consumers use ``values`` without boto3. See
``relay/dynamodb/README.md`` for examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.extras import lazily

if TYPE_CHECKING:
    from relay.dynamodb.batch import Loaded, batch_load
    from relay.dynamodb.stream import Stream
    from relay.dynamodb.stream_calls import IteratorExpired
    from relay.dynamodb.stream_record import Record
    from relay.stream_token import InvalidPosition, InvalidStream, StreamToken

__all__ = [
    "InvalidPosition",
    "InvalidStream",
    "IteratorExpired",
    "Loaded",
    "Record",
    "Stream",
    "StreamToken",
    "batch_load",
]

if not TYPE_CHECKING:  # without this check, a type checker would accept any name
    __getattr__ = lazily(
        __name__,
        {
            "relay.dynamodb.batch": "Loaded batch_load",
            "relay.dynamodb.stream_calls": "IteratorExpired",
            "relay.dynamodb.stream": "Stream",
            "relay.dynamodb.stream_record": "Record",
            "relay.stream_token": "InvalidPosition InvalidStream StreamToken",
        },
        "dynamodb",
    )
