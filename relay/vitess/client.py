"""Calls to vtgate: change streams, and statements such as SHOW VITESS_SHARDS."""

import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from weakref import WeakSet

from google.protobuf.message import DecodeError

from relay.errors import RelayError, Unavailable
from relay.vitess.call import Call
from relay.vitess.failures import BrokenStream
from relay.vitess.http2 import CallEnded
from relay.vitess.proto import vtgate_pb2 as pb

CURRENT = "current"
"""The position of a stream that starts at the head of its shard. It cannot be resumed at, so it is never kept (I4)."""

EVERY = "/.*"
"""The rule that matches every table."""

TABLET_TYPES = {"PRIMARY": 1, "REPLICA": 2, "RDONLY": 3}

_VSTREAM = "/vtgateservice.Vitess/VStream"
_EXECUTE = "/vtgateservice.Vitess/Execute"

_TRANSIENT = frozenset({1, 4, 8, 10, 14, 17})
"""Codes of errors that are not the statement's: CANCELED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, UNAVAILABLE
(no tablet serves, such as during a failover) and CLUSTER_EVENT in Vitess' vtrpc.proto.
"""


class Vtgate:
    """Calls to one vtgate, each on a connection of its own. Thread-safe. ``address``: host:port of its gRPC server."""

    def __init__(
        self, address: str, *, user: str | None = None, password: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        # As Vitess' static authentication expects them.
        self._headers = (("username", user), ("password", password or "")) if user else ()
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        # Shared by the readers' threads, under the lock, which is not held while a call is closed.
        self._calls: WeakSet[Call] = WeakSet()
        self._closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """End every call, including calls that are made after this."""
        with self._lock:
            self._closed = True
            calls = list(self._calls)
        for call in calls:
            call.close()

    def vstream(
        self,
        shards: Sequence[pb.ShardGtid],
        rules: Mapping[str, str],
        *,
        tablet_type: str = "REPLICA",
        cells: str = "",
        copy: Sequence[str] = (),
        heartbeat: int = 1,
    ) -> Call:
        """Open one stream over ``shards``, each at its position; at an empty one, vtgate copies the tables first.

        ``rules``: by table, the select that filters it. ``copy``: the tables to copy. ``heartbeat``: seconds of silence
        after which vtgate sends one. The answers are `VStreamResponse` bytes; ``take`` raises what vtgate rejects.
        """
        request = pb.VStreamRequest(
            tablet_type=TABLET_TYPES[tablet_type],
            vgtid=pb.VGtid(shard_gtids=shards),
            filter=pb.Filter(rules=[pb.Rule(match=table, filter=select) for table, select in rules.items()]),
            flags=pb.VStreamFlags(
                heartbeat_interval=heartbeat,
                cells=cells,
                include_reshard_journal_events=True,
                tables_to_copy=copy,
                exclude_keyspace_from_table_name=True,
            ),
        )
        return self._call(_VSTREAM, request.SerializeToString())

    def execute(self, sql: str, target: str = "", timeout: float = 10.0) -> list[dict[str, str | None]]:
        """Run one statement and return its rows by column name. ``target``: such as ``commerce:-80@replica``.

        ``timeout``: seconds. Raises ``Unavailable`` if vtgate does not answer, denies access or has no tablet to ask,
        and ``RelayError`` for an error of the statement.
        """
        request = pb.ExecuteRequest(
            session=pb.Session(autocommit=True, target_string=target), query=pb.BoundQuery(sql=sql)
        )
        try:
            answer = pb.ExecuteResponse.FromString(self._answer(request.SerializeToString(), timeout, sql))
        except DecodeError as error:
            raise Unavailable(f"vtgate {self.address} answers {sql!r} with what cannot be read: {error}") from None
        if answer.error.code in _TRANSIENT:
            raise Unavailable(f"vtgate {self.address} cannot answer {sql!r} now: {answer.error.message}")
        if answer.error.message or answer.error.code:
            raise RelayError(f"vtgate {self.address} rejected {sql!r}: {answer.error.message}")
        names = [field.name for field in answer.result.fields]
        return [dict(zip(names, values(row), strict=True)) for row in answer.result.rows]

    def _answer(self, request: bytes, timeout: float, sql: str) -> bytes:
        """Return the one answer to a statement. Raises ``Unavailable``."""
        deadline = time.monotonic() + timeout
        call = self._call(_EXECUTE, request)
        answers: list[bytes] = []
        try:
            while (left := deadline - time.monotonic()) > 0:
                answers += call.take(left, 1)
        except CallEnded as ended:
            if ended.code == "OK" and len(answers) == 1:
                return answers[0]
            raise Unavailable(f"vtgate {self.address} does not answer {sql!r}: {ended}") from None
        finally:
            call.close()
        raise Unavailable(f"vtgate {self.address} does not answer {sql!r} within {timeout:g} s")

    def _call(self, path: str, request: bytes) -> Call:
        call = Call(self.address, path, request, headers=self._headers, tls=self._tls)
        with self._lock:
            self._calls.add(call)
            is_late = self._closed
        if is_late:
            call.close()
        return call


def events_of(answer: bytes) -> Sequence[pb.VEvent]:
    """Return the events in an answer of a stream. Raises `BrokenStream`."""
    try:
        return pb.VStreamResponse.FromString(answer).events
    except DecodeError as error:
        raise BrokenStream(f"an answer of vtgate cannot be read: {error}") from None


def event_of(raw: bytes) -> pb.VEvent:
    """Return one event of an answer. Raises `BrokenStream`."""
    try:
        return pb.VEvent.FromString(raw)
    except DecodeError as error:
        raise BrokenStream(f"an event of vtgate cannot be read: {error}") from None


def values(row: pb.Row) -> list[str | None]:
    """Return the values of a statement's row as text. Bytes that are not UTF-8 become escapes."""
    found: list[str | None] = []
    at = 0
    for length in row.lengths:
        if length < 0:
            found.append(None)
        else:
            found.append(row.values[at : at + length].decode(errors="backslashreplace"))
            at += length
    return found
