"""DynamoDB Streams: the relay's source, and ``Stream``, the same reading for Python programs.

What Python programs need is named here; see ``relay/dynamodb/README.md`` for an example.
"""

from relay.dynamodb.session import IteratorExpired
from relay.dynamodb.stream import Stream
from relay.dynamodb.stream_record import Record
from relay.dynamodb.stream_token import InvalidPosition, InvalidStream, StreamToken

__all__ = ["InvalidPosition", "InvalidStream", "IteratorExpired", "Record", "Stream", "StreamToken"]
