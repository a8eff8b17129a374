"""The config of each kind of source."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from relay.config.value_types import StartAtToken
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
