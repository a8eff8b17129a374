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
DYNAMODB = "sources: [{{name: s, type: dynamodb, tables: [{}]}}]\n"
ANY_TABLE = 'sources: [{name: s, type: mysql, database: d, shards: {"-": ["h:3306"]}}]\n'


def config(folder: Path, topics: str, tables: Sequence[str] = ()) -> Config:
    file = folder / "relay.yaml"
    sources = DYNAMODB.format(", ".join(tables)) if tables else ANY_TABLE
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
        ("{orders: x, lines: x}", ["orders", "lines"],
         "3:28: `topics.lines`: topic 'x' of table 'lines' collides with topic 'x'"),
        ("{orders: shop.gaps}", ["orders"],
         "3:18: `topics.orders`: topic 'shop.gaps' of table 'orders' collides with topic 'shop.gaps'"),
        ("{ordrs: x}", ["orders"], "3:17: `topics.ordrs`: no source reads table 'ordrs'; did you mean `orders`?"),
        ('{"a*": x}', ["orders"], "3:16: `topics.a*`: must contain {table}, because several tables may match"),
        ("{default: x}", ["orders", "lines"],
         "3:19: `topics.default`: must contain {table}, because there are several tables"),
        ('{"d*": "x.{table}", default: x}', [],
         "3:38: `topics.default`: must contain {table}, because there are several tables"),
        ("{default: x}", [], "3:19: `topics.default`: must contain {table}, because there are several tables"),
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


def test_workers_whose_patterns_are_in_another_order_have_another_config(tmp_path: Path) -> None:
    """I2: the first pattern decides, so both would publish one table, to two topics."""
    one, other = (
        config(tmp_path, topics, ["a-b"])
        for topics in ('{"a*": "x.{table}", "*b": "y.{table}"}', '{"*b": "y.{table}", "a*": "x.{table}"}')
    )
    assert [one.topic("a-b"), other.topic("a-b")] == ["x.a-b", "y.a-b"]
    assert one.hashes() != other.hashes()
