"""A vtgate over real gRPC that plays scripts, for behaviour that a real one cannot be brought to show.

`ScriptedVtgate` answers each VStream call with a script. `Log` is the binlog of a shard and makes scripts of it, as
vtgate v23 or an older one would, split into answers as the test needs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import grpc

from relay.vitess.client import EventKind
from relay.vitess.proto import vtgate_pb2 as pb

KEYSPACE = "commerce"
STARTED = (
    "select cast(unix_timestamp() - variable_value as signed) from information_schema.global_status"
    " where variable_name = 'Uptime'"
)
"""The statement that asks a MariaDB when it was started."""
JOURNALS = f"{KEYSPACE}:0@primary select val from _vt.resharding_journal where db_name = database()"
_INT64, _VARCHAR = 265, 6165


@dataclass(frozen=True)
class Fails:
    """The call ends with this status."""

    code: str
    text: str


HOLDS = None
"""The call stays open and sends nothing but the heartbeats that were asked for."""

Step = list[pb.VEvent] | Fails | bytes | None
"""What a stream does next. Bytes are an answer as it is sent, which nobody may be able to read."""

Script = Callable[[pb.VStreamRequest], Iterator[Step]]


Answer = list[dict[str, str | None]] | str | bytes | pb.RPCError
"""Rows of text by column name, an error, or bytes. An error that is a mere text says that the statement is wrong."""


class ScriptedVtgate:
    """``script`` plays each stream.

    ``answers``: by statement, or by target and statement, beside the shards of the keyspace.
    """

    def __init__(
        self,
        script: Script,
        answers: Mapping[str, Answer | Callable[[], Answer]] | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.script = script
        shards: Answer = [{"Shards": f"{KEYSPACE}/0"}]
        self.answers: dict[str, Answer | Callable[[], Answer]] = {
            "select unix_timestamp()": lambda: [{"unix_timestamp()": str(int(time.time()))}],
            "show vitess_shards": shards,
            "show vitess_keyspaces": [{"Keyspace": KEYSPACE}],
            # Started before all that is in a log.
            STARTED: [{"started": "-1"}],
            STARTED.replace("information", "performance"): [{"started": "-1"}],
            "show binary logs": [{"Log_name": "binlog.000001"}],
            "select binlog_gtid_pos('binlog.000001', 4)": [{"position": ""}],
            "show binlog events in 'binlog.000001' limit 20": [{"Event_type": "Previous_gtids", "Info": ""}],
            **(answers or {}),
        }
        self.requests: list[pb.VStreamRequest] = []
        # The primary key of each table, as `key_order` asks for it.
        self.key: list[dict[str, str | None]] = [{"column_name": "id", "column_type": "bigint", "collation_name": None}]
        # The target and the text of each statement.
        self.statements: list[tuple[str, str]] = []
        self.metadata: list[dict[str, Any]] = []
        # Whether idle streams send heartbeats.
        self.beats = True
        self._pool = ThreadPoolExecutor(64)
        self._server = grpc.server(self._pool)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "vtgateservice.Vitess",
                    {
                        "VStream": grpc.unary_stream_rpc_method_handler(
                            self._vstream,
                            request_deserializer=pb.VStreamRequest.FromString,
                            response_serializer=_serialized,
                        ),
                        "Execute": grpc.unary_unary_rpc_method_handler(
                            self._execute,
                            request_deserializer=pb.ExecuteRequest.FromString,
                            response_serializer=_serialized,
                        ),
                    },
                ),
            )
        )
        if credentials is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self.address = f"127.0.0.1:{port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
        self._pool.shutdown()

    @property
    def reads(self) -> list[pb.VStreamRequest]:
        """The requests for streams that are not at the head."""
        return [r for r in self.requests if r.vgtid.shard_gtids[0].gtid != "current"]

    def _vstream(self, request: pb.VStreamRequest, context: Any) -> Iterator[pb.VStreamResponse | bytes]:
        self.requests.append(request)
        self.metadata.append({item.key: item.value for item in context.invocation_metadata()})
        for step in self.script(request):
            if isinstance(step, Fails):
                context.abort(getattr(grpc.StatusCode, step.code), step.text)
            elif step is HOLDS:
                beat = time.monotonic()
                while context.is_active():
                    time.sleep(0.002)
                    if self.beats and request.flags.heartbeat_interval and time.monotonic() - beat > 0.1:
                        beat = time.monotonic()
                        yield pb.VStreamResponse(
                            events=[pb.VEvent(type=EventKind.HEARTBEAT, timestamp=int(time.time()))]
                        )
            else:
                yield step if isinstance(step, bytes) else pb.VStreamResponse(events=step)

    def _execute(self, request: pb.ExecuteRequest, context: Any) -> pb.ExecuteResponse | bytes:
        self.metadata.append({item.key: item.value for item in context.invocation_metadata()})
        self.statements.append((request.session.target_string, request.query.sql))
        of_target = self.answers.get(f"{request.session.target_string} {request.query.sql}")
        answer = self.answers.get(request.query.sql, "no such table (errno 1146)") if of_target is None else of_target
        if callable(answer):
            answer = answer()
        if "information_schema.statistics" in request.query.sql and answer == "no such table (errno 1146)":
            answer = self.key
        if isinstance(answer, bytes):
            return answer
        if isinstance(answer, str):
            answer = pb.RPCError(message=answer, code=3)
        if isinstance(answer, pb.RPCError):
            return pb.ExecuteResponse(error=answer)
        names = list(answer[0]) if answer else []
        rows = [made([value if value is None else value.encode() for value in row.values()]) for row in answer]
        return pb.ExecuteResponse(result=pb.QueryResult(fields=[pb.Field(name=n) for n in names], rows=rows))


def _serialized(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else bytes(answer.SerializeToString())


def made(values: Sequence[bytes | None]) -> pb.Row:
    lengths = [-1 if value is None else len(value) for value in values]
    return pb.Row(lengths=lengths, values=b"".join(value or b"" for value in values))


def moved(at: str, to: str = "customers", number: int = 7, tables: str = "customer", gtid: str = "0-9-5") -> Any:
    """The row of a journal: the shard had its last change of the tables ``at``, and ``to`` has them since."""
    return {
        "val": f'id:{number}  tables:"{tables}"  local_position:"MariaDB/{at}"  shard_gtids:{{keyspace:"{to}"  '
        f'shard:"-"  gtid:"MariaDB/{gtid}"}}  participants:{{keyspace:"{KEYSPACE}"  shard:"0"}}'
    }


def fields(table: str = "customer", **more: str) -> pb.FieldEvent:
    """Return the fields of ``id bigint``, ``name varchar(20)``, and ``more`` columns by their types."""
    known = [
        pb.Field(name="id", type=_INT64, flags=3, charset=63, column_type="bigint(20)"),
        pb.Field(name="name", type=_VARCHAR, charset=45, column_type="varchar(20)"),
        *(pb.Field(name=name, type=_INT64, charset=63, column_type=kind) for name, kind in more.items()),
    ]
    return pb.FieldEvent(table_name=table, fields=known, enum_set_string_values=True)


@dataclass
class Transaction:
    """``changes``: (table, before, after); rows are tuples of bytes or None."""

    gtid: str
    timestamp: int
    changes: list[tuple[str, tuple[bytes | None, ...] | None, tuple[bytes | None, ...] | None]] = field(
        default_factory=list
    )
    statement: str | None = None
    journal: pb.Journal | None = None


@dataclass
class Log:
    """The binlog of one shard, of MariaDB in one domain. ``before``: the executed set before its first transaction."""

    shard: str = "0"
    before: str = "MariaDB/0-1-10"
    transactions: list[Transaction] = field(default_factory=list)
    # Whether events carry the GTID of their transaction, as they do since v23.
    names: bool = True
    # Bytes of rows in one answer, if transactions are sent in chunks, as they are since v24.
    chunk: int | None = None
    layouts: dict[str, pb.FieldEvent] = field(default_factory=lambda: {t: fields(t) for t in ("customer", "other")})

    def add(self, *rows: Any, statement: str | None = None, journal: pb.Journal | None = None) -> Transaction:
        """Append a transaction of ``rows``: (before, after) of customer, or (table, before, after)."""
        number = len(self.transactions) + 11
        changes = [row if len(row) == 3 else ("customer", *row) for row in rows]
        done = Transaction(f"0-1-{number}", 1_700_000_000 + number, changes, statement, journal)
        self.transactions.append(done)
        return done

    @property
    def head(self) -> str:
        return f"MariaDB/{self.transactions[-1].gtid}" if self.transactions else self.before

    def number(self, position: str) -> int:
        """Return how many transactions a position covers."""
        return [self.before, *(f"MariaDB/{one.gtid}" for one in self.transactions)].index(position)

    def after(self, position: str) -> list[Transaction]:
        return self.transactions[self.number(position) :]

    def vgtid(self, gtid: str, pks: Sequence[pb.TableLastPK] = ()) -> pb.VEvent:
        own = pb.ShardGtid(keyspace=KEYSPACE, shard=self.shard, gtid=gtid, table_p_ks=pks)
        return pb.VEvent(type=EventKind.VGTID, vgtid=pb.VGtid(shard_gtids=[own]), keyspace=KEYSPACE, shard=self.shard)

    def play(self, transactions: Sequence[Transaction], known: set[str]) -> Iterator[list[pb.VEvent]]:
        """Yield the answers for ``transactions``. ``known``: tables whose fields this stream has sent."""
        for one in transactions:
            answer: list[pb.VEvent] = []
            about: dict[str, Any] = {"timestamp": one.timestamp, "keyspace": KEYSPACE, "shard": self.shard}
            about["event_gtid"] = one.gtid if self.names else ""
            end = self.vgtid(f"MariaDB/{one.gtid}")
            if one.statement is not None:
                kind = EventKind.OTHER if one.statement == "" else EventKind.DDL
                known.clear()
                yield [end, pb.VEvent(type=kind, statement=one.statement, **about)]
                continue
            answer.append(pb.VEvent(type=EventKind.BEGIN, **about))
            size = 0
            for table, before, after in one.changes:
                if table not in known:
                    known.add(table)
                    answer.append(pb.VEvent(type=EventKind.FIELD, field_event=self.layouts[table], **about))
                change = pb.RowChange()
                if before is not None:
                    change.before.CopyFrom(made(before))
                if after is not None:
                    change.after.CopyFrom(made(after))
                row = pb.RowEvent(table_name=table, row_changes=[change])
                answer.append(pb.VEvent(type=EventKind.ROW, row_event=row, **about))
                size += len(change.before.values) + len(change.after.values)
                if self.chunk is not None and size >= self.chunk:
                    yield answer
                    answer, size = [], 0
            if one.journal is not None:
                answer.append(pb.VEvent(type=EventKind.JOURNAL, journal=one.journal, **about))
            yield [*answer, end, pb.VEvent(type=EventKind.COMMIT, **about)]

    def script(self, request: pb.VStreamRequest) -> Iterator[Step]:
        """Play the log from the requested position, and hold."""
        own = request.vgtid.shard_gtids[0]
        if own.gtid == "current":
            yield [self.vgtid(self.head), pb.VEvent(type=EventKind.OTHER, keyspace=KEYSPACE, shard=self.shard)]
        else:
            yield from self.play(self.after(own.gtid), set())
        yield HOLDS


Rows = dict[str, list[tuple[bytes | None, ...]]]
"""By table, its rows, whose first column is the key."""

Tablet = Callable[[], tuple[str, Rows]]
"""Returns where a tablet is that begins to copy: the executed set, and the rows at it."""


def copy_script(log: Log, rows: Rows | Tablet, batch: int, seed: int) -> Script:
    """Play the copy of the requested table in batches, as uvstreamer.go does.

    ``rows``: those at the head of the log, or what gives them for each tablet that is read. A call may fail between
    batches, or go on with another tablet as vtgate does: that one first sends the changes of what was copied.
    """
    chance = random.Random(seed)
    here: dict[str, Any] = {"keyspace": KEYSPACE, "shard": log.shard}
    begin, commit = (pb.VEvent(type=kind, **here) for kind in (EventKind.BEGIN, EventKind.COMMIT))

    def tablet() -> tuple[str, Rows]:
        return rows() if callable(rows) else (log.head, rows)

    def play(request: pb.VStreamRequest) -> Iterator[Step]:
        own = request.vgtid.shard_gtids[0]
        if own.gtid == "current" or not request.flags.tables_to_copy:
            yield from log.script(request)
            return
        assert own.gtid == ""
        (table,) = request.flags.tables_to_copy
        pks, at, is_complete = list(own.table_p_ks), "", False
        while not is_complete:
            found, content = tablet()
            if at:
                if log.number(found) < log.number(at):
                    continue  # vtgate takes no tablet that is behind the one before
                for answer in log.play(log.transactions[log.number(at) : log.number(found)], set()):
                    for event in answer:
                        for one in event.vgtid.shard_gtids:
                            one.table_p_ks.extend(pks)
                    # A catch-up is cut off in the middle of a transaction, which then comes again.
                    yield [*(each for each in answer if each.type in (EventKind.BEGIN, EventKind.ROW)), *answer]
            at = found
            start = [begin, pb.VEvent(type=EventKind.FIELD, field_event=log.layouts[table], **here), log.vgtid(at, pks)]
            last = int(bytes(pks[0].lastpk.rows[0].values)) if pks else 0
            rest = sorted((row for row in content[table] if int(row[0] or 0) > last), key=lambda row: int(row[0] or 0))
            is_complete = True
            for first in range(0, len(rest), batch):
                some = rest[first : first + batch]
                changes = ([pb.RowChange(after=made(row))] for row in some)
                events = [pb.RowEvent(table_name=table, row_changes=change) for change in changes]
                key = pb.QueryResult(fields=[pb.Field(name="id", type=_INT64)], rows=[made([some[-1][0]])])
                pks = [pb.TableLastPK(table_name=table, lastpk=key)]
                row_events = [pb.VEvent(type=EventKind.ROW, row_event=event, **here) for event in events]
                yield [*(start or [begin]), *row_events, log.vgtid(at, pks), commit]
                start = []
                if chance.random() < 0.1:
                    yield Fails("UNAVAILABLE", "the tablet is gone")
                if chance.random() < 0.1:
                    is_complete = False
                    break
            else:
                yield [*start, begin, log.vgtid(at), commit]
        yield [pb.VEvent(type=EventKind.COPY_COMPLETED, **here), pb.VEvent(type=EventKind.COPY_COMPLETED)]
        yield HOLDS

    return play
