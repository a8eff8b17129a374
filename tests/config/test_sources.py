"""The config of each kind of source."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from relay.config import DynamoDBConfig, MySQLConfig, VitessConfig
from relay.config.value_types import StartAtGtids, StartAtToken
from relay.errors import ConfigError
from tests.config.configs import ARN, GOOD, ONE_TABLE, change, only, read, refused


def test_declared_columns_keep_their_order_and_get_their_canonical_spelling(file: Path) -> None:
    columns = '{order_id: string, on: "decimal( 38, 10)", "": json, "a-b": set, 7: timestamp}'
    source = only(read(file, change("key: hash", f"columns: {columns}")))
    assert source.columns is not None
    assert list(source.columns.items()) == [
        ("order_id", "string"),
        ("on", "decimal(38,10)"),
        ("", "json"),
        ("a-b", "set"),
        ("7", "timestamp"),
    ]
    assert only(read(file, GOOD)).columns is None


_TYPES = (
    "the types are int, long, double, string, bytes, boolean, timestamp, set, json, and decimal(p,s) with p up to 38"
)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("{}", "13:14: `sources[0].columns` must not be empty"),
        ("[a]", "13:14: `sources[0].columns` must be a mapping of keys to values, not a list"),
        ("{a: 1}", "13:18: `sources[0].columns.a` must be text (quote it if it looks like something else), "
                   "not 1"),
        ("{a: text}", f"13:18: `sources[0].columns.a`: unknown type 'text'; {_TYPES}"),
        ("{a: float}", f"13:18: `sources[0].columns.a`: unknown type 'float'; {_TYPES}"),
        ("{a: rest}", f"13:18: `sources[0].columns.a`: unknown type 'rest'; {_TYPES}"),
        ('{a: "decimal(4)"}', f"13:18: `sources[0].columns.a`: unknown type 'decimal(4)'; {_TYPES}"),
        ('{a: "decimal(39,0)"}',
         "13:18: `sources[0].columns.a`: type decimal(39,0) has more digits than a DynamoDB number, which has at most "
         "38"),
        ("{rest: string}",
         "13:21: `sources[0].columns.rest`: cannot be declared: `rest` holds the attributes without a column"),
    ],
)  # fmt: skip
def test_columns_must_have_types_that_attributes_can_have(file: Path, columns: str, said: str) -> None:
    assert refused(file, change("key: hash", f"columns: {columns}")) == [said]


def test_a_class_declares_the_columns_of_a_table(file: Path) -> None:
    source = only(read(file, change("key: hash", "model: tests.dynamodb.models.shop:Counter")))
    assert source.columns == {"id": "string", "count": "long", "by": "string"}
    again = type(source).model_validate(source.model_dump())
    assert again.columns == source.columns


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("5", "13:12: `sources[0].model` must be text (quote it if it looks like something else), not 5"),
        ("shop", "13:12: `sources[0].model`: 'shop' is not the path of a class: write app.models:Order"),
        ("nowhere:Order", "13:12: `sources[0].model`: cannot import nowhere:Order: No module named 'nowhere': is its "
                          "folder in PYTHONPATH?"),
        ("relay.table:Order", "13:12: `sources[0].model`: cannot import relay.table:Order: AttributeError(\"module "
                              "'relay.table' has no attribute 'Order'\")"),
        ("relay.table:Column", "13:12: `sources[0].model`: relay.table:Column is not a table's class: make "
                               "it extend relay.dynamodb.models.Model"),
        ("relay.dynamodb.models:Model", "13:12: `sources[0].model`: Model declares no table: use a class that extends "
                                        "Model and is not abstract"),
        ("tests.dynamodb.models.shop:Counter\n        columns: {a: string}",
         "14:14: `sources[0].columns`: conflicts with `model`, which declares them: remove one of the two"),
    ],
)  # fmt: skip
def test_a_class_that_declares_no_table_is_refused_at_its_place(file: Path, model: str, said: str) -> None:
    assert refused(file, change("key: hash", f"model: {model}")) == [said]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("trim_horizon", None),
        ("latest", 1_000_000.0),
        ("-30s", 999_970.0),
        ("-5m", 999_700.0),
        ("-1h", 996_400.0),
        ("-7d", 395_200.0),
        ("2026-11-21T06:00:00Z", datetime(2026, 11, 21, 6, tzinfo=UTC).timestamp()),
        ("2026-11-21T06:00:00+02:00", datetime(2026, 11, 21, 4, tzinfo=UTC).timestamp()),
        ("2026-11-21 06:00:00", datetime(2026, 11, 21, 6, tzinfo=UTC).timestamp()),
        ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC).timestamp()),
    ],
)
def test_a_start_is_converted_to_seconds_since_the_epoch(file: Path, start: str, expected: float | None) -> None:
    config = read(file, change("start: trim_horizon", f"start: {start}"))
    assert config.sources[0].start == start
    assert only(config).start_time(1_000_000.0) == expected


class TestStartAtAToken:
    def test_the_file_is_found_relative_to_the_config_and_compared_by_content(self, file: Path) -> None:
        token = {"stream_arn": ARN, "active": ["s"], "shards": [{"shard_id": "s"}]}
        (file.parent / "token.json").write_text(json.dumps(token))
        start = read(file, change("start: trim_horizon", "start: {token: token.json}")).sources[0].start
        assert isinstance(start, StartAtToken)
        assert start.content == token
        (file.parent / "elsewhere.json").write_text(json.dumps(token, indent=4, sort_keys=True))
        moved = read(file, change("start: trim_horizon", "start: {token: elsewhere.json}")).sources[0].start
        assert str(moved) == str(start)
        (file.parent / "elsewhere.json").write_text(json.dumps({**token, "active": []}))
        assert str(read(file, change("start: trim_horizon", "start: {token: elsewhere.json}")).sources[0].start) != str(
            start
        )

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (None, "token.json: no such file"),
            ('{"active": [],\n oops}', "token.json:2:2: not valid JSON: "),
            ("[]", "token.json:1:1: a stream token must be a JSON object, not []"),
            ('{"stream_arn": "a", "active": "s"}', "token.json:1:1: 'active' in the stream token must be a list"),
        ],
    )
    def test_an_invalid_token_is_refused_with_its_place_in_both_files(
        self, file: Path, text: str | None, said: str
    ) -> None:
        if text is not None:
            (file.parent / "token.json").write_text(text)
        (line,) = refused(file, change("start: trim_horizon", "start: {token: token.json}"))
        assert line.startswith(f"11:12: `sources[0].start`: {file.parent}/{said}")

    def test_a_token_in_a_home_folder_that_is_unknown_is_refused(self, file: Path) -> None:
        (line,) = refused(file, change("start: trim_horizon", "start: {token: ~nobody9/x.json}"))
        assert line == "11:12: `sources[0].start`: ~nobody9/x.json: the home folder is unknown: write the path in full"

    @pytest.mark.parametrize("start", ["{tokn: a}", "{}", "{token: 1}", "{token: a, vgtid: b}", "[a]", "true"])
    def test_any_other_value_is_refused(self, file: Path, start: str) -> None:
        (line,) = refused(file, change("start: trim_horizon", f"start: {start}"))
        assert line.startswith("11:12: `sources[0].start`: a start ")

    def test_a_token_is_refused_for_another_stream(self, file: Path) -> None:
        (file.parent / "token.json").write_text(json.dumps({"stream_arn": ARN, "active": [], "shards": []}))
        start = GOOD.replace("start: trim_horizon", "start: {token: token.json}")
        (line,) = refused(file, start.replace("table: orders", "tables: [orders, lines]"))
        assert f"the token belongs to stream {ARN}; set `stream_arn` to it" in line
        (line,) = refused(file, start.replace("table: orders", f"stream_arn: {ARN[:-1]}1"))
        assert f"the token belongs to stream {ARN}; set `stream_arn` to it" in line


@pytest.mark.parametrize("start", ["yesterday", "-", "30s", "-30", "-1y", "2026-13-01", "current"])
def test_any_other_start_is_refused(file: Path, start: str) -> None:
    (said,) = refused(file, change("start: trim_horizon", f'start: "{start}"'))
    assert said.startswith(f"11:12: `sources[0].start`: {start!r} is not a start; ")


def test_a_stream_arn_gives_the_table_and_the_region(file: Path) -> None:
    config = read(
        file,
        f"""\
        name: shop
        kafka: {{bootstrap_servers: "127.0.0.1:9092"}}
        sources: [{{name: orders, type: dynamodb, stream_arn: "{ARN}"}}]
        cache: {{url: "redis://h", namespace: n, keys: {{orders: ["{{id}}"]}}}}
        """,
    )
    source = only(config)
    assert (source.table_name, source.region_name) == ("orders", "eu-west-1")


class TestSeveralTables:
    def test_each_table_of_a_list_becomes_a_source_of_its_own(self, file: Path) -> None:
        text = GOOD.replace("table: orders", "tables: [orders, order-lines]").replace("on_gap: fail", "on_gap: skip")
        config = read(file, text)
        assert [(source.name, source.table_names, source.on_gap) for source in config.sources] == [
            ("orders.orders", ["orders"], "skip"),
            ("orders.order-lines", ["order-lines"], "skip"),
        ]

    def test_problems_of_later_sources_are_reported_at_their_place(self, file: Path) -> None:
        text = GOOD.replace("table: orders", "tables: [orders, lines]").replace(
            "    cache:", "      - {name: b, type: dynamodb, table: lines}\n    cache:"
        )
        [line] = refused(file, text)
        assert line.startswith("15:")
        assert "source 'orders.lines' already reads table 'lines'" in line

    def test_tables_found_by_tags_are_checked_once_they_are_known(self, file: Path) -> None:
        config = read(file, GOOD.replace("table: orders", "tags: {relay: 'yes'}"))
        found = config.with_tables(lambda source: ["orders", "lines"])
        assert [source.name for source in found.sources] == ["orders.lines", "orders.orders"]
        with pytest.raises(ConfigError, match="no source reads table 'orders'"):
            config.with_tables(lambda source: ["lines"])

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("tables: []", "tables"),
            ("tables: [orders, o]", "'o' is not a valid table name"),
            ("table: orders\n        tables: [lines]", ONE_TABLE),
            ("tables: [orders]\n        columns: {id: string}", "describe a single table"),
        ],
    )
    def test_invalid_or_contradictory_keys_are_refused(self, file: Path, line: str, said: str) -> None:
        assert said in "\n".join(refused(file, GOOD.replace("table: orders", line)))


VITESS = """\
    name: shop
    kafka: {bootstrap_servers: "127.0.0.1:9092"}
    sources:
      - name: legacy
        type: vitess
        vtgate: "127.0.0.1:15991"
        keyspace: commerce
"""
MYSQL = """\
    name: shop
    kafka: {bootstrap_servers: "127.0.0.1:9092"}
    sources:
      - name: legacy
        type: mysql
        database: shop
"""
NO_START = "is not a start; use `current`, an ISO time such as 2026-11-21T06:00:00Z, a relative time such as -30s, or"
NO_VSTREAM_START = (
    "is not a start; use `current`, `copy`, an ISO time such as 2026-11-21T06:00:00Z, a relative time such as -30s, or "
    '{vgtid: [{shard: "-80", gtid: "MySQL56/..."}, ...]}'
)
NO_KEY = (
    "`sources[0].key`: must be `hash`, `item`, a list of columns that serve as the primary key, such as [a, b], or "
    "{table: [a, b]}"
)


class TestSQLSources:
    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("keyrange: 80-40",
             "8:15: `sources[0].keyrange`: key range 80-40 is empty: its end is not after its start"),
            ("tls: {ca: a, crt: b}", "8:23: `sources[0].tls.crt`: unknown key; use ca, cert or key"),
            ("tls: {cert: b}", "8:10: `sources[0].tls`: set both `cert` and `key`, or neither"),
            ("tombstones: true",
             "8:17: `sources[0].tombstones`: requires `key: item`: under a hash key, a tombstone would delete all of "
             "its rows"),
            ("key: {a: [b]}\n        tables: [c]", "8:14: `sources[0].key.a`: is not in `tables`; they are c"),
            ("key: hsh", f"8:10: {NO_KEY}"),
            ("key: []", f"8:10: {NO_KEY}"),
            ("key: [1]", f"8:10: {NO_KEY}"),
            ("key: {}", f"8:10: {NO_KEY}"),
            ("key: {a: []}", f"8:10: {NO_KEY}"),
            ("key: {a: [b, c, b]}", "8:21: `sources[0].key.a[2]`: is listed twice"),
            ("key: [b, b]", "8:14: `sources[0].key[1]`: is listed twice"),
            ("on_gap: repair", "8:13: `sources[0].on_gap` must be 'fail', 'skip' or 'resnapshot', not 'repair'"),
            ("tablet_type: master",
             "8:18: `sources[0].tablet_type` must be 'primary', 'replica' or 'rdonly', not 'master'"),
            ("silence: 5",
             "8:14: `sources[0].silence`: a duration needs a unit: write, for example, 30s, 5m, 1h or 7d"),
            ("table: a", "8:5: unknown key `table` in `sources[0]`; did you mean `tables`?"),
        ],
    )  # fmt: skip
    def test_an_invalid_value_is_reported_with_line_and_column(self, file: Path, line: str, said: str) -> None:
        assert refused(file, f"{VITESS}        {line}\n") == [said]

    @pytest.mark.parametrize(
        ("key", "mode", "columns"),
        [("hash", "hash", ()), ("item", "item", ()), ("[a, b]", "hash", ("a", "b")), ("{t: [b]}", "hash", ("b",))],
    )
    def test_the_key_is_hash_item_or_columns_that_serve_as_the_primary_key(
        self, file: Path, key: str, mode: str, columns: tuple[str, ...]
    ) -> None:
        (source,) = read(file, f"{VITESS}        key: {key}\n").sources
        assert not isinstance(source, DynamoDBConfig)
        assert (source.key_mode, source.key_columns("t")) == (mode, columns)

    @pytest.mark.parametrize(
        ("start", "since"),
        [("current", None), ("copy", None), ("-30s", 970.0), ("1970-01-01T00:00:05Z", 5.0), ("1970-01-01", 0.0)],
    )
    def test_a_vstream_may_start_at_a_time(self, file: Path, start: str, since: float | None) -> None:
        (source,) = read(file, f"{VITESS}        start: {start}\n").sources
        assert isinstance(source, VitessConfig)
        assert source.start_time(1_000.0) == since
        assert VitessConfig.parse_start(start) == source.start

    @pytest.mark.parametrize("start", ["now", "latest", "trim_horizon", "-30", "{gtid: {'-': MariaDB/0-1-5}}", "[a]"])
    def test_a_vstream_refuses_other_starts(self, file: Path, start: str) -> None:
        (said,) = refused(file, f"{VITESS}        start: {start}\n")
        assert said.startswith("8:12: `sources[0].start`: ")
        assert said.endswith(NO_VSTREAM_START)

    @pytest.mark.parametrize(
        ("start", "said"),
        [
            ("{vgtid: []}", "must list at least one shard"),
            ("{vgtid: [{shard: '-80', gtid: current}]}", "shard '-80': 'current' is neither UUID:1-5 (MySQL) nor "
                                                         "domain-server-sequence (MariaDB)"),
            ("{vgtid: [{shard: a, gtid: MariaDB/0-1-5}, {shard: a, gtid: MariaDB/0-1-6}]}",
             "`vgtid` lists shard 'a' twice"),
            ("{vgtid: [{shard: 0, gtid: MariaDB/0-1-5}, {shard: '0', gtid: MariaDB/0-1-6}]}",
             "`vgtid` lists shard '0' twice"),
            ("{vgtid: [{shard: [-80], gtid: ''}]}", "shard '[-80]': the GTID set '' is empty; to start at the head, "
             "use `current`"),
            ("{vgtid: [{shard: a}]}", "an entry of `vgtid` must have the keys `shard` and `gtid`, not {'shard': 'a'}"),
        ],
    )  # fmt: skip
    def test_a_vgtid_must_give_every_shard_a_position(self, file: Path, start: str, said: str) -> None:
        """I4."""
        assert refused(file, f"{VITESS}        start: {start}\n") == [f"8:12: `sources[0].start`: {said}"]

    def test_a_vgtid_is_accepted_as_vitess_prints_it(self, file: Path) -> None:
        entry = "{keyspace: commerce, shard: '-', gtid: MariaDB/0-1-5}"
        (source,) = read(file, f"{VITESS}        start: {{vgtid: [{entry}]}}\n").sources
        assert isinstance(source.start, StartAtGtids)
        assert source.start.positions == {"-": "MariaDB/0-1-5"}


class TestMySQLSources:
    @pytest.mark.parametrize(
        ("shards", "said"),
        [
            ("{'-': []}", ["7:19: `sources[0].shards.-`: needs a server, such as db1:3306"]),
            ("{'-': [db1]}", ["7:20: `sources[0].shards.-[0]`: 'db1' is not an address to connect to, such as "
                              "db1:3306 or [::1]:3306"]),
            ("{8x-: ['db:1']}", ["7:19: `sources[0].shards.8x-`: '8x-' is not a key range: write -, -80, 40-80 or 80-, "
                                 "with an even number of hex digits per bound"]),
        ],
    )  # fmt: skip
    def test_shards_must_be_key_ranges_with_servers(self, file: Path, shards: str, said: list[str]) -> None:
        assert refused(file, f"{MYSQL}        shards: {shards}\n") == said

    @pytest.mark.parametrize(
        ("positions", "keyrange", "said"),
        [
            ("-80: MariaDB/0-1-5", "-", "key range -: no shard holds 80-; use -80 (shards: -80)"),
            ("-80: MariaDB/0-1-5, 80-: MariaDB/0-2-5", "-", ""),
            ("-80: MariaDB/0-1-5, 80-: MariaDB/0-2-5", "-80", "key range -80 has no part of 80-"),
            ("all: MariaDB/0-1-5", "-", ""),
            ("-: MariaDB/0-1-5, 80-: MariaDB/0-2-5", "-", "shards - and 80- overlap, so a row of key range - may be in "
             "either: list only one of them (shards: -, 80-)"),
        ],
    )  # fmt: skip
    def test_a_first_run_needs_a_position_for_every_part_of_the_key_range_and_a_later_one_none(
        self, file: Path, positions: str, keyrange: str, said: str
    ) -> None:
        """I4. The shards of the start may be older than those in `shards`."""
        shards = f"{{'-': ['db:1']}}\n        keyrange: '{keyrange}'"
        (source,) = read(file, f"{MYSQL}        shards: {shards}\n        start: {{gtid: {{{positions}}}}}\n").sources
        assert source.start_problem == (said and f"`start`: {said}")

    def test_a_single_shard_may_have_any_name_but_several_must_be_key_ranges(self, file: Path) -> None:
        assert read(file, f"{MYSQL}        shards: {{all: ['db:1']}}\n").sources[0].name == "legacy"
        said = refused(file, f"{MYSQL}        shards: {{a: ['db:1'], b: ['db:2']}}\n")
        assert [line.partition("`: ")[0] for line in said] == [
            "7:17: `sources[0].shards.a",
            "7:30: `sources[0].shards.b",
        ]

    @pytest.mark.parametrize("start", ["copy", "latest", "yesterday", "trim_horizon", "[a]", "5"])
    def test_a_binlog_refuses_other_starts(self, file: Path, start: str) -> None:
        (said,) = refused(file, f"{MYSQL}        shards: {{'-': ['db:1']}}\n        start: {start}\n")
        assert said.startswith("8:12: `sources[0].start`: ")
        assert NO_START in said

    @pytest.mark.parametrize(("start", "since"), [("current", None), ("-30s", 970.0), ("1970-01-01T00:00:05Z", 5.0)])
    def test_the_start_is_converted_to_seconds_since_the_epoch(
        self, file: Path, start: str, since: float | None
    ) -> None:
        (source,) = read(file, f"{MYSQL}        shards: {{'-': ['db:1']}}\n        start: {start}\n").sources
        assert isinstance(source, MySQLConfig)
        assert source.start_time(1000.0) == since

    def test_tables_may_be_read_beside_the_binlog(self, file: Path) -> None:
        more = "        snapshot: initial\n        on_gap: resnapshot\n        snapshot_rows_per_second: 5000\n"
        (source,) = read(file, f"{MYSQL}        shards: {{'-': ['db:1']}}\n{more}").sources
        assert isinstance(source, MySQLConfig)
        assert (source.snapshot, source.on_gap, source.snapshot_rows_per_second) == ("initial", "resnapshot", 5000)
        (said,) = refused(file, f"{MYSQL}        shards: {{'-': ['db:1']}}\n        snapshot_rows_per_second: 9\n")
        assert said.startswith("8:31: `sources[0].snapshot_rows_per_second`")

    def test_the_pace_of_a_copy_of_vitess_may_be_limited(self, file: Path) -> None:
        (source,) = read(file, f"{VITESS}        start: copy\n        snapshot_rows_per_second: 5000\n").sources
        assert isinstance(source, VitessConfig)
        assert source.snapshot_rows_per_second == 5000

    @pytest.mark.parametrize("table", ["''", "vreplication", "_vt.", ".a"])
    def test_the_reshard_checkpoint_table_needs_its_database(self, file: Path, table: str) -> None:
        text = f"{MYSQL}        shards: {{'-': ['db:1']}}\n        reshard_checkpoint_table: {table}\n"
        (said,) = refused(file, text)
        assert "must be a table with its database, such as _vt.vreplication" in said


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (VitessConfig, {"type": "vitess", "vtgate": "v:15991", "keyspace": "shop"}),
        (MySQLConfig, {"type": "mysql", "shards": {"-": ["db:3306"]}, "database": "shop", "user": "relay"}),
    ],
)
def test_tombstones_of_sql_tables_require_the_full_primary_key_as_the_kafka_key(
    kind: type[VitessConfig | MySQLConfig], more: dict[str, object]
) -> None:
    """I1: under the hash key alone, compaction would drop all of its rows."""
    entry = {"name": "shop", "keyrange": "-", "tombstones": True, **more}
    with pytest.raises(ValueError, match="requires `key: item`"):
        kind.model_validate(entry)
    assert kind.model_validate({**entry, "key": "item"}).tombstones
