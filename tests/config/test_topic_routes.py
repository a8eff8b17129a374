"""The topic of each table, as a mapping in the config says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config import load
from relay.config.config import Config
from relay.errors import ConfigError

HEAD = 'name: shop\nkafka: {bootstrap_servers: "b:1"}\n'
DYNAMODB = "sources: [{{name: s, type: dynamodb, tables: [{}]{}}}]\n"
ANY_TABLE = 'sources: [{name: s, type: mysql, database: d, shards: {"-": ["h:3306"]}}]\n'


def config(folder: Path, topics: str, tables: Sequence[str] = (), more: str = "") -> Config:
    file = folder / "relay.yaml"
    sources = DYNAMODB.format(", ".join(tables), more) if tables else ANY_TABLE
    file.write_text(f"{HEAD}topics: {topics}\n{sources}", encoding="utf-8")
    return load(file)


def test_a_table_has_the_topic_of_its_name_or_of_the_first_pattern_or_the_default(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        '{orders: sales.orders.v1, "audit_*": "audit.{table}", "*_old": "old-{table}", default: "{name}-{table}"}',
        ["orders", "audit_in", "audit_old", "in_old", "lines"],
    )
    assert {table: found.topic(table) for table in found.tables} == {
        "orders": "sales.orders.v1",
        "audit_in": "audit.audit_in",
        "audit_old": "audit.audit_old",
        "in_old": "old-in_old",
        "lines": "shop-lines",
    }
    assert found.topic("appears later") == "shop-appears_x0020_later"


def test_without_a_default_other_tables_have_the_topics_that_they_have_without_a_mapping(tmp_path: Path) -> None:
    found = config(tmp_path, "{orders: sales.orders}")
    assert [found.topic(table) for table in ("orders", "lines", "default")] == [
        "sales.orders",
        "shop.lines",
        "shop.default",
    ]


@given(st.text(), st.text(), st.text(min_size=1))
def test_only_a_star_in_a_pattern_stands_for_other_characters(before: str, after: str, inside: str) -> None:
    pattern = f"{before}*{after}"
    found = Config.model_construct(name="shop", topics={pattern: "matched.{table}", "default": "other.{table}"})
    assert found.topic(f"{before}{inside}{after}").startswith("matched.")
    if "*" not in before + after and not (inside + before + after).endswith(after):
        assert found.topic(inside + before + after).startswith("other.")
    exact = Config.model_construct(name="shop", topics={"[a-z].?": "matched", "default": "other.{table}"})
    assert exact.topic("b.x") == "other.b.x"


@pytest.mark.parametrize(
    ("topics", "tables", "said"),
    [
        ('{orders: "{table}", lines: orders}', ["orders", "lines"],
         "3:36: `topics.lines`: topic 'orders' of table 'lines' collides with topic 'orders'"),
        ("{orders: x.y, lines: x_y}", ["orders", "lines"],
         "3:30: `topics.lines`: topic 'x_y' of table 'lines' collides with topic 'x.y'"),
        ('{"a*": shop.gaps}', ["abc"],
         "3:16: `topics.a*`: topic 'shop.gaps' of table 'abc' collides with topic 'shop.gaps'"),
        ("{orders: shop.gaps}", ["orders"],
         "3:18: `topics.orders`: topic 'shop.gaps' of table 'orders' collides with topic 'shop.gaps'"),
        ("{ordrs: x}", ["orders"], "3:17: `topics.ordrs`: no source reads table 'ordrs'; did you mean `orders`?"),
        ('{orders: "{tabel}"}', ["orders"],
         "3:18: `topics.orders`: unknown placeholder {tabel}; use {name} and {table}"),
        ('{orders: "{"}', ["orders"],
         "3:18: `topics.orders`: the template '{' has an unmatched or empty '{' at position 1 (write a literal brace "
         "twice)"),
        ("{orders: 5}", ["orders"], "3:18: `topics.orders`: must be text, such as sales.orders.v1"),
        ("{}", ["orders"], "3:9: `topics`: must name at least one table, or be left out"),
        ("[orders]", ["orders"],
         "3:9: `topics` must be text (quote it if it looks like something else), not a list"),
    ],
)  # fmt: skip
def test_a_wrong_route_is_named_with_its_place(tmp_path: Path, topics: str, tables: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(tmp_path, topics, tables)
    assert str(refused.value) == f"{tmp_path / 'relay.yaml'}:{said}"


def test_one_table_may_have_a_default_without_its_name_beside_tables_with_topics_of_their_own(tmp_path: Path) -> None:
    found = config(tmp_path, "{orders: a, default: b}", ["orders", "lines"])
    assert [found.topic("orders"), found.topic("lines")] == ["a", "b"]


def test_tables_share_a_topic_that_is_named_without_them(tmp_path: Path) -> None:
    tables = ["orders", "audit_a", "audit_b", "lines"]
    found = config(tmp_path, '{orders: "sales.{name}", "audit_*": audit, default: "{name}.{table}"}', tables)
    assert [found.topic(table) for table in tables] == ["sales.shop", "audit", "audit", "shop.lines"]
    assert found.shared_topics == {"audit"}
    assert config(tmp_path, "all", tables).shared_topics == {"all"}
    assert config(tmp_path, "{orders: x, audit_a: x}", tables).shared_topics == {"x"}
    for topics, of in ('"{table}"', ["orders", "lines"]), ("all", ["orders"]), ("{orders: x, default: y}", tables[:2]):
        assert config(tmp_path, topics, of).shared_topics == frozenset()


def test_a_topic_that_any_number_of_tables_may_get_counts_as_shared_however_many_there_are(tmp_path: Path) -> None:
    """So that the subjects of their schemas stay the same."""
    found = config(tmp_path, '{orders: sales, "audit_*": audit, "d*": "d.{table}", default: others}')
    assert found.shared_topics == {"audit", "others"}
    assert found.with_tables(lambda source: ["orders", "audit_a"]).shared_topics == {"audit", "others"}
    assert config(tmp_path, "{orders: x, lines: x, items: y}").shared_topics == {"x"}


SHARED = "all\ntopic_settings: "


@pytest.mark.parametrize(
    ("topics", "source", "said"),
    [
        (SHARED + "{orders: {partitions: 3}}", "",
         "4:39: `topic_settings.orders.partitions`: tables 'orders' and 'lines' share topic 'all', so `partitions` "
         "must be the same for both"),
        (SHARED + "{lines: {retention.ms: 3}, orders: {retention.ms: 4}}", "",
         "4:67: `topic_settings.orders.retention.ms`: tables 'orders' and 'lines' share topic 'all', so `retention.ms` "
         "must be the same for both"),
        (SHARED + "{default: {cleanup.policy: compact}}", ", key: item",
         "4:44: `topic_settings.default.cleanup.policy`: must be delete for table 'lines': several tables share the "
         "topic, and Kafka would delete records of one for equal keys of another"),
        ("all", ", key: item, tombstones: true",
         "4:85: `sources[0].tombstones`: does not fit topic 'all': its tables may have equal keys, and a null says no "
         "table"),
        ('all\nschema_registry: {url: "http://r"}', ", envelope: debezium",
         "5:11: `sources[0]`: `envelope: debezium` gives each table a topic of its own, but several share 'all'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_topic_of_several_tables_is_refused(
    tmp_path: Path, topics: str, source: str, said: str
) -> None:
    """I1, I8"""
    with pytest.raises(ConfigError) as refused:
        config(tmp_path, topics, ["orders", "lines"], source)
    assert str(refused.value).splitlines()[0] == f"{tmp_path / 'relay.yaml'}:{said}"


def test_what_fits_a_topic_of_several_tables_is_not_refused(tmp_path: Path) -> None:
    assert config(tmp_path, SHARED + "{orders: {partitions: 6}}", ["orders", "lines"]).partitions("lines") == 6
    one = config(tmp_path, SHARED + "{orders: {cleanup.policy: compact}}", ["orders"], ", key: item")
    assert one.shared_topics == frozenset()


def test_workers_whose_patterns_are_in_another_order_have_another_config(tmp_path: Path) -> None:
    """I2: the first pattern decides, so both would publish one table, to two topics."""
    one, other = (
        config(tmp_path, topics, ["a-b"])
        for topics in ('{"a*": "x.{table}", "*b": "y.{table}"}', '{"*b": "y.{table}", "a*": "x.{table}"}')
    )
    assert [one.topic("a-b"), other.topic("a-b")] == ["x.a-b", "y.a-b"]
    assert one.hashes() != other.hashes()
