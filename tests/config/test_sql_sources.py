"""The config of the SQL sources: Vitess, and MySQL or MariaDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.config import DynamoDBConfig, MySQLConfig, VitessConfig
from relay.config.value_types import StartAtGtids
from tests.config.configs import read, refused

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
