"""DynamoDB and its streams: the relay's source, and ``Stream`` and ``batch_load`` for Python programs.

What Python programs need is named here, and loaded when it is asked for: consumers use ``values`` without boto3.
See ``relay/dynamodb/README.md`` for examples.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relay.dynamodb.batch_load import Loaded, batch_load
    from relay.dynamodb.session import IteratorExpired
    from relay.dynamodb.stream import Stream
    from relay.dynamodb.stream_record import Record
    from relay.dynamodb.stream_token import InvalidPosition, InvalidStream, StreamToken

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

_HOMES = {
    "InvalidPosition": "stream_token",
    "InvalidStream": "stream_token",
    "IteratorExpired": "session",
    "Loaded": "batch_load",
    "Record": "stream_record",
    "Stream": "stream",
    "StreamToken": "stream_token",
    "batch_load": "batch_load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES[name]}")
    # Importing a module names it here: `batch_load` is to be the function. So all of a module is named at once.
    globals().update({each: getattr(home, each) for each, where in _HOMES.items() if where == _HOMES[name]})
    return globals()[name]
