from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Row(_message.Message):
    __slots__ = ("lengths", "values")
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    values: bytes
    def __init__(self, lengths: _Optional[_Iterable[int]] = ..., values: _Optional[bytes] = ...) -> None: ...

class Field(_message.Message):
    __slots__ = ("name", "type", "column_length", "charset", "decimals", "flags", "column_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    COLUMN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHARSET_FIELD_NUMBER: _ClassVar[int]
    DECIMALS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: int
    column_length: int
    charset: int
    decimals: int
    flags: int
    column_type: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[int] = ..., column_length: _Optional[int] = ..., charset: _Optional[int] = ..., decimals: _Optional[int] = ..., flags: _Optional[int] = ..., column_type: _Optional[str] = ...) -> None: ...

class QueryResult(_message.Message):
    __slots__ = ("fields", "rows")
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...

class BoundQuery(_message.Message):
    __slots__ = ("sql",)
    SQL_FIELD_NUMBER: _ClassVar[int]
    sql: str
    def __init__(self, sql: _Optional[str] = ...) -> None: ...

class TableLastPK(_message.Message):
    __slots__ = ("table_name", "lastpk")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    LASTPK_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    lastpk: QueryResult
    def __init__(self, table_name: _Optional[str] = ..., lastpk: _Optional[_Union[QueryResult, _Mapping]] = ...) -> None: ...

class ShardGtid(_message.Message):
    __slots__ = ("keyspace", "shard", "gtid", "table_p_ks")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    GTID_FIELD_NUMBER: _ClassVar[int]
    TABLE_P_KS_FIELD_NUMBER: _ClassVar[int]
    keyspace: str
    shard: str
    gtid: str
    table_p_ks: _containers.RepeatedCompositeFieldContainer[TableLastPK]
    def __init__(self, keyspace: _Optional[str] = ..., shard: _Optional[str] = ..., gtid: _Optional[str] = ..., table_p_ks: _Optional[_Iterable[_Union[TableLastPK, _Mapping]]] = ...) -> None: ...

class VGtid(_message.Message):
    __slots__ = ("shard_gtids",)
    SHARD_GTIDS_FIELD_NUMBER: _ClassVar[int]
    shard_gtids: _containers.RepeatedCompositeFieldContainer[ShardGtid]
    def __init__(self, shard_gtids: _Optional[_Iterable[_Union[ShardGtid, _Mapping]]] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("match", "filter")
    MATCH_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    match: str
    filter: str
    def __init__(self, match: _Optional[str] = ..., filter: _Optional[str] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("rules", "field_event_mode")
    RULES_FIELD_NUMBER: _ClassVar[int]
    FIELD_EVENT_MODE_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    field_event_mode: int
    def __init__(self, rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ..., field_event_mode: _Optional[int] = ...) -> None: ...

class Bitmap(_message.Message):
    __slots__ = ("count", "cols")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    COLS_FIELD_NUMBER: _ClassVar[int]
    count: int
    cols: bytes
    def __init__(self, count: _Optional[int] = ..., cols: _Optional[bytes] = ...) -> None: ...

class RowChange(_message.Message):
    __slots__ = ("before", "after", "data_columns", "json_partial_values")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    DATA_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    JSON_PARTIAL_VALUES_FIELD_NUMBER: _ClassVar[int]
    before: Row
    after: Row
    data_columns: Bitmap
    json_partial_values: Bitmap
    def __init__(self, before: _Optional[_Union[Row, _Mapping]] = ..., after: _Optional[_Union[Row, _Mapping]] = ..., data_columns: _Optional[_Union[Bitmap, _Mapping]] = ..., json_partial_values: _Optional[_Union[Bitmap, _Mapping]] = ...) -> None: ...

class RowEvent(_message.Message):
    __slots__ = ("table_name", "row_changes", "is_internal_table")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    ROW_CHANGES_FIELD_NUMBER: _ClassVar[int]
    IS_INTERNAL_TABLE_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    row_changes: _containers.RepeatedCompositeFieldContainer[RowChange]
    is_internal_table: bool
    def __init__(self, table_name: _Optional[str] = ..., row_changes: _Optional[_Iterable[_Union[RowChange, _Mapping]]] = ..., is_internal_table: bool = ...) -> None: ...

class FieldEvent(_message.Message):
    __slots__ = ("table_name", "fields", "enum_set_string_values", "is_internal_table")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    ENUM_SET_STRING_VALUES_FIELD_NUMBER: _ClassVar[int]
    IS_INTERNAL_TABLE_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    enum_set_string_values: bool
    is_internal_table: bool
    def __init__(self, table_name: _Optional[str] = ..., fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ..., enum_set_string_values: bool = ..., is_internal_table: bool = ...) -> None: ...

class KeyspaceShard(_message.Message):
    __slots__ = ("keyspace", "shard")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    keyspace: str
    shard: str
    def __init__(self, keyspace: _Optional[str] = ..., shard: _Optional[str] = ...) -> None: ...

class Journal(_message.Message):
    __slots__ = ("id", "migration_type", "shard_gtids", "participants")
    ID_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHARD_GTIDS_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    migration_type: int
    shard_gtids: _containers.RepeatedCompositeFieldContainer[ShardGtid]
    participants: _containers.RepeatedCompositeFieldContainer[KeyspaceShard]
    def __init__(self, id: _Optional[int] = ..., migration_type: _Optional[int] = ..., shard_gtids: _Optional[_Iterable[_Union[ShardGtid, _Mapping]]] = ..., participants: _Optional[_Iterable[_Union[KeyspaceShard, _Mapping]]] = ...) -> None: ...

class VEvent(_message.Message):
    __slots__ = ("type", "timestamp", "statement", "row_event", "field_event", "vgtid", "journal", "keyspace", "shard", "event_gtid")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    ROW_EVENT_FIELD_NUMBER: _ClassVar[int]
    FIELD_EVENT_FIELD_NUMBER: _ClassVar[int]
    VGTID_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EVENT_GTID_FIELD_NUMBER: _ClassVar[int]
    type: int
    timestamp: int
    statement: str
    row_event: RowEvent
    field_event: FieldEvent
    vgtid: VGtid
    journal: Journal
    keyspace: str
    shard: str
    event_gtid: str
    def __init__(self, type: _Optional[int] = ..., timestamp: _Optional[int] = ..., statement: _Optional[str] = ..., row_event: _Optional[_Union[RowEvent, _Mapping]] = ..., field_event: _Optional[_Union[FieldEvent, _Mapping]] = ..., vgtid: _Optional[_Union[VGtid, _Mapping]] = ..., journal: _Optional[_Union[Journal, _Mapping]] = ..., keyspace: _Optional[str] = ..., shard: _Optional[str] = ..., event_gtid: _Optional[str] = ...) -> None: ...

class VStreamFlags(_message.Message):
    __slots__ = ("minimize_skew", "heartbeat_interval", "stop_on_reshard", "cells", "include_reshard_journal_events", "tables_to_copy", "exclude_keyspace_from_table_name")
    MINIMIZE_SKEW_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    STOP_ON_RESHARD_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_RESHARD_JOURNAL_EVENTS_FIELD_NUMBER: _ClassVar[int]
    TABLES_TO_COPY_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_KEYSPACE_FROM_TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    minimize_skew: bool
    heartbeat_interval: int
    stop_on_reshard: bool
    cells: str
    include_reshard_journal_events: bool
    tables_to_copy: _containers.RepeatedScalarFieldContainer[str]
    exclude_keyspace_from_table_name: bool
    def __init__(self, minimize_skew: bool = ..., heartbeat_interval: _Optional[int] = ..., stop_on_reshard: bool = ..., cells: _Optional[str] = ..., include_reshard_journal_events: bool = ..., tables_to_copy: _Optional[_Iterable[str]] = ..., exclude_keyspace_from_table_name: bool = ...) -> None: ...

class VStreamRequest(_message.Message):
    __slots__ = ("tablet_type", "vgtid", "filter", "flags")
    TABLET_TYPE_FIELD_NUMBER: _ClassVar[int]
    VGTID_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    tablet_type: int
    vgtid: VGtid
    filter: Filter
    flags: VStreamFlags
    def __init__(self, tablet_type: _Optional[int] = ..., vgtid: _Optional[_Union[VGtid, _Mapping]] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., flags: _Optional[_Union[VStreamFlags, _Mapping]] = ...) -> None: ...

class VStreamResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[VEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[VEvent, _Mapping]]] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("autocommit", "target_string")
    AUTOCOMMIT_FIELD_NUMBER: _ClassVar[int]
    TARGET_STRING_FIELD_NUMBER: _ClassVar[int]
    autocommit: bool
    target_string: str
    def __init__(self, autocommit: bool = ..., target_string: _Optional[str] = ...) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("session", "query")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    session: Session
    query: BoundQuery
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., query: _Optional[_Union[BoundQuery, _Mapping]] = ...) -> None: ...

class StreamExecuteRequest(_message.Message):
    __slots__ = ("query", "session")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    query: BoundQuery
    session: Session
    def __init__(self, query: _Optional[_Union[BoundQuery, _Mapping]] = ..., session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class StreamExecuteResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: QueryResult
    def __init__(self, result: _Optional[_Union[QueryResult, _Mapping]] = ...) -> None: ...

class RPCError(_message.Message):
    __slots__ = ("message", "code")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    message: str
    code: int
    def __init__(self, message: _Optional[str] = ..., code: _Optional[int] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("error", "result")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    error: RPCError
    result: QueryResult
    def __init__(self, error: _Optional[_Union[RPCError, _Mapping]] = ..., result: _Optional[_Union[QueryResult, _Mapping]] = ...) -> None: ...
