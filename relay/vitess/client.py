"""Calls to vtgate: change streams, and statements such as SHOW VITESS_SHARDS."""

import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from weakref import WeakSet

from google.protobuf.message import DecodeError

from relay.errors import RelayError, Unavailable
from relay.vitess.call import Call
from relay.vitess.failures import BrokenStream
from relay.vitess.http2 import CallEnded
from relay.vitess.proto import vtgate_pb2 as pb

CURRENT = "current"
"""The position that starts a stream at the head of its shard. No stream can resume there, so it is never kept (I4)."""

SHARDS = "show vitess_shards"  # lists the shards of all keyspaces, such as ``commerce/-80``
NO_TABLE = "dual"  # the name of a table that has no changes
TABLET_TYPES = {"PRIMARY": 1, "REPLICA": 2, "RDONLY": 3}

_VSTREAM = "/vtgateservice.Vitess/VStream"
_EXECUTE = "/vtgateservice.Vitess/Execute"
_STREAM_EXECUTE = "/vtgateservice.Vitess/StreamExecute"

_TRANSIENT = frozenset({1, 4, 8, 10, 14, 17})
"""Codes of errors that the statement did not cause: CANCELED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED,
UNAVAILABLE (no tablet is serving, for example during a failover) and CLUSTER_EVENT in Vitess' vtrpc.proto.
"""


class Rejected(RelayError):
    """A statement failed: vtgate or a tablet refused it."""


class Vtgate:
    """Makes calls to one vtgate, each on its own connection. Thread-safe. ``address``: host:port of its gRPC server."""

    def __init__(
        self, address: str, *, user: str | None = None, password: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        # The headers that Vitess' static authentication expects.
        self._headers = (("username", user), ("password", password or "")) if user else ()
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        # The readers' threads share these under the lock, which is not held while a call is closed.
        self._calls: WeakSet[Call] = WeakSet()
        self._closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """End every call, including calls that are made later."""
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
        """Open one stream over ``shards``, each at its position. If that is empty, vtgate copies the tables first.

        ``rules``: by table, the SELECT that filters it. ``copy``: the tables to copy. ``heartbeat``: seconds of silence
        before vtgate sends a heartbeat. The answers are `VStreamResponse` bytes. ``take`` raises vtgate's errors.
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
        """Run one statement and return its rows by column name.

        ``target``: where it runs, such as ``commerce:-80@replica``. ``timeout``: seconds. Raises ``Unavailable`` if
        vtgate does not answer, denies access or has no tablet to ask, and `Rejected` if the statement fails.
        """
        request = pb.ExecuteRequest(session=_session(target), query=pb.BoundQuery(sql=sql))
        try:
            answer = pb.ExecuteResponse.FromString(self._answer(request.SerializeToString(), timeout, sql))
        except DecodeError as error:
            raise Unavailable(f"vtgate {self.address} sent an answer to {sql!r} that cannot be read: {error}") from None
        if answer.error.code in _TRANSIENT:
            raise Unavailable(f"vtgate {self.address} cannot answer {sql!r} now: {answer.error.message}")
        if answer.error.message or answer.error.code:
            raise Rejected(f"vtgate {self.address} rejected {sql!r}: {answer.error.message}")
        names = [field.name for field in answer.result.fields]
        return [dict(zip(names, _texts(row), strict=True)) for row in answer.result.rows]

    def listed(self, sql: str, target: str = "", timeout: float = 10.0) -> set[str]:
        """Return the names that a statement lists, such as `SHARDS`. Raises ``Unavailable``, even if it fails."""
        try:
            return {str(next(iter(row.values()))) for row in self.execute(sql, target, timeout)}
        except RelayError as error:
            raise Unavailable(str(error)) from error

    def rows(self, sql: str, target: str, timeout: float = 300.0) -> Iterator[list[bytes | None]]:
        """Run one statement and yield the values of its rows, of which there may be any number.

        ``timeout``: the longest wait for a row, in seconds. Raises ``Unavailable``, even if the statement fails.
        """
        request = pb.StreamExecuteRequest(session=_session(target), query=pb.BoundQuery(sql=sql))
        call = self._call(_STREAM_EXECUTE, request.SerializeToString())
        try:
            while answers := call.take(timeout):
                for answer in answers:
                    yield from map(_values, pb.StreamExecuteResponse.FromString(answer).result.rows)
            raise Unavailable(f"vtgate {self.address} sent no row from {target} for {timeout:g} s")
        except DecodeError as error:
            raise Unavailable(f"vtgate {self.address} sent a row that cannot be read: {error}") from None
        except CallEnded as ended:
            if ended.code != "OK":
                raise Unavailable(f"vtgate {self.address}: {ended}") from None
        finally:
            call.close()

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


class EventKind(IntEnum):
    """The kinds of events that are handled or refused: VEventType in Vitess' binlogdata.proto."""

    BEGIN = 2
    COMMIT = 3
    ROLLBACK = 4
    DDL = 5
    INSERT = 6  # this and the next three are changes logged as statements
    REPLACE = 7
    UPDATE = 8
    DELETE = 9
    OTHER = 11
    ROW = 12
    FIELD = 13
    HEARTBEAT = 14
    VGTID = 15
    JOURNAL = 16
    COPY_COMPLETED = 20  # a table is copied, see `relay.vitess.table_copy`


def events_of(answer: bytes) -> Sequence[pb.VEvent]:
    """Return the events in an answer of a stream. Raises `BrokenStream`."""
    try:
        return pb.VStreamResponse.FromString(answer).events
    except DecodeError as error:
        raise BrokenStream(f"vtgate sent an answer that cannot be read: {error}") from None


def _texts(row: pb.Row) -> list[str | None]:
    """Return the values of a row as text. Bytes that are not UTF-8 become escapes."""
    return [None if value is None else value.decode(errors="backslashreplace") for value in _values(row)]


def _session(target: str) -> pb.Session:
    return pb.Session(autocommit=True, target_string=target)  # otherwise, a transaction stays open and nobody ends it


def _values(row: pb.Row) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    for length in row.lengths:
        found.append(None if length < 0 else row.values[at : at + length])
        at += max(0, length)
    return found
