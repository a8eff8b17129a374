"""Calls to vtgate: change streams whose events are taken in batches, and statements such as SHOW VITESS_SHARDS.

Nothing here knows what the events mean. May be changed here: how the connection is kept, and how much waits.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Its core writes of every connection that ends to stderr, and reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc

from relay.errors import ConfigError, RelayError, Unavailable
from relay.vitess.proto import vtgate_pb2 as pb

CURRENT = "current"
"""The position of a stream that begins where its shard stands. It says nothing of where: it is never kept (I4)."""

EVERY = "/.*"
"""The rule that takes every table."""

TABLET_TYPES = {"PRIMARY": 1, "REPLICA": 2, "RDONLY": 3}

BUFFER = 64 << 20
"""Bytes of events, as they were sent, that wait to be taken, of all open streams of a `Vtgate` together (I11).

Each has the same share, and holds the whole of an answer that is more than what is left of it.
"""

LEAST_BUFFER = 1 << 20
"""Bytes that a stream may have waiting however many are open: with less, vtgate waits for us after each answer."""

_VSTREAM = "/vtgateservice.Vitess/VStream"
_EXECUTE = "/vtgateservice.Vitess/Execute"
_TAKEN_AT_ONCE = 1 << 20
_OPTIONS = [
    # vtgate bounds what it sends (16 MiB unless --grpc-max-message-size says otherwise), so there is no bound here.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A connection whose other end has vanished is found out. vtgate refuses pings more often than every 10 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # One connection for each `Vtgate`, so that two that are busy do not share one.
    ("grpc.use_local_subchannel_pool", 1),
    # The thread that iterates a stream reads it itself: half the CPU time of handing each answer over.
    ("SingleThreadedUnaryStream", 1),
]


class StreamEnded(Exception):
    """A stream is over. ``code``: the name of the gRPC status; ``text``: the server's own words."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM: the authority that signed vtgate's certificate (None: the system's), our own certificate, its key.

    ``name``: the one that the certificate has to carry, where it is not that of the address.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    name: str | None = None


class Budget:
    """Bytes that streams share, whichever threads they are opened and closed by."""

    def __init__(self, total: int = BUFFER, least: int = LEAST_BUFFER) -> None:
        self.total = total
        self.least = least
        self._streams = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Budget[{self.total} bytes, {self._streams} streams]>"

    @property
    def share(self) -> int:
        """Bytes that each of the open streams may hold now."""
        return max(self.least, self.total // max(1, self._streams))

    def join(self) -> None:
        with self._lock:
            self._streams += 1

    def leave(self) -> None:
        with self._lock:
            self._streams -= 1


class VStream:
    """One open change stream. ``take`` and ``close`` may be called by different threads.

    ``budget``: what it takes its share of until it is closed.
    """

    def __init__(self, call: Any, budget: Budget) -> None:
        self._call = call
        self._budget = budget
        budget.join()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        # Whether nothing is read until some of what waits is taken.
        self._is_full = False
        self._ended: StreamEnded | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._feed, name="vstream", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._ended else "open"
        return f"<VStream[{state}, {self._size} bytes waiting]>"

    def take(self, timeout: float, most: int = _TAKEN_AT_ONCE) -> list[bytes]:
        """Return answers that have come, as `VStreamResponse` bytes, up to about ``most`` bytes; [] after ``timeout``.

        Raises `StreamEnded` once everything that came before the end was taken.
        """
        with self._changed:
            if not self._waiting and self._ended is None and timeout > 0:
                self._changed.wait_for(lambda: bool(self._waiting) or self._ended is not None, timeout)
            taken: list[bytes] = []
            size = 0
            while self._waiting and size < most:
                answer = self._waiting.popleft()
                size += len(answer)
                taken.append(answer)
            if taken:
                self._size -= size
                if self._is_full:
                    self._changed.notify_all()
            elif self._ended is not None:
                raise self._ended
            return taken

    def close(self) -> None:
        """End the call. What waits is dropped."""
        with self._changed:
            if not self._closed:
                self._budget.leave()
            self._closed = True
            self._waiting.clear()
            self._size = 0
            self._changed.notify_all()
        self._call.cancel()

    def _feed(self) -> None:
        ended = StreamEnded("OK", "vtgate ended the stream")
        try:
            for answer in self._call:
                with self._changed:
                    while self._size >= self._budget.share and not self._closed:
                        self._is_full = True
                        self._changed.wait()
                    self._is_full = False
                    if self._closed:
                        break
                    self._waiting.append(answer)
                    self._size += len(answer)
                    if len(self._waiting) == 1:
                        self._changed.notify_all()
        except grpc.RpcError as error:
            ended = _ended(error)
        finally:
            with self._changed:
                self._ended = ended
                self._changed.notify_all()


class Vtgate:
    """One connection to a vtgate. ``address``: host:port of its gRPC server. Connects when it is first used."""

    def __init__(
        self, address: str, *, user: str | None = None, password: str | None = None, tls: Tls | None = None
    ) -> None:
        self.address = address
        self._budget = Budget()
        # What Vitess' static authentication reads.
        self._metadata: tuple[tuple[str, str], ...] = (("username", user), ("password", password or "")) if user else ()
        options: list[tuple[str, int | str]] = list(_OPTIONS)
        if tls is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            if tls.name:
                options.append(("grpc.ssl_target_name_override", tls.name))
            credentials = grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.certificate))
            self._channel = grpc.secure_channel(address, credentials, options)
        self._vstream = self._channel.unary_stream(
            _VSTREAM, request_serializer=pb.VStreamRequest.SerializeToString, response_deserializer=None
        )
        self._execute = self._channel.unary_unary(
            _EXECUTE,
            request_serializer=pb.ExecuteRequest.SerializeToString,
            response_deserializer=pb.ExecuteResponse.FromString,
        )

    def __repr__(self) -> str:
        return f"<Vtgate[{self.address}]>"

    def close(self) -> None:
        """End every call and the connection."""
        self._channel.close()

    def vstream(
        self,
        shards: Sequence[pb.ShardGtid],
        rules: Mapping[str, str],
        *,
        tablet_type: str = "REPLICA",
        cells: str = "",
        copy: Sequence[str] = (),
        heartbeat: int = 1,
        budget: Budget | None = None,
    ) -> VStream:
        """Open one stream over ``shards``, each at its position; an empty one copies the tables first.

        ``rules``: by table, the select that filters it. ``copy``: the tables that are copied. ``heartbeat``: seconds
        of silence after which vtgate sends one. ``budget``: where it is not to share that of the others.
        What is wrong with the request is told by ``take``.
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
        return VStream(self._vstream(request, metadata=self._metadata, wait_for_ready=False), budget or self._budget)

    def execute(self, sql: str, target: str = "", timeout: float = 10.0) -> list[dict[str, str | None]]:
        """Run one statement and return its rows by column name. ``target``: such as ``commerce:-80@replica``.

        Raises ``Unavailable`` where vtgate does not answer or refuses us, ``RelayError`` for its other errors.
        """
        request = pb.ExecuteRequest(
            session=pb.Session(autocommit=True, target_string=target), query=pb.BoundQuery(sql=sql)
        )
        try:
            answer = self._execute(request, metadata=self._metadata, timeout=timeout)
        except grpc.RpcError as error:
            ended = _ended(error)
            raise Unavailable(f"vtgate {self.address} does not answer {sql!r}: {ended}") from None
        if answer.error.message or answer.error.code:
            raise RelayError(f"vtgate {self.address} refuses {sql!r}: {answer.error.message}")
        names = [field.name for field in answer.result.fields]
        return [dict(zip(names, values(row), strict=True)) for row in answer.result.rows]


def values(row: pb.Row) -> list[str | None]:
    """Return the values of a row as text. What is not UTF-8 is shown with escapes: rows of tables go elsewhere."""
    found: list[str | None] = []
    at = 0
    for length in row.lengths:
        if length < 0:
            found.append(None)
        else:
            found.append(row.values[at : at + length].decode(errors="backslashreplace"))
            at += length
    return found


def _ended(error: grpc.RpcError) -> StreamEnded:
    # Every error that a call raises is a call as well, and has its status.
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if code is None or details is None:
        return StreamEnded("UNKNOWN", str(error))
    return StreamEnded(code().name, details() or "")


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"tls: {path}: {error.strerror}") from None
