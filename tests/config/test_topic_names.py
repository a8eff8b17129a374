"""The topics of tables, and those that names given by a user mean."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.avro.schema import unescape
from relay.config import Config
from relay.config.config import is_topic
from relay.config.topic_names import only_tables, resolve_topics, topics_of_changes
from relay.errors import ConfigError
from tests.config.configs import change, read, refused


def config(*tables: str, **source: Any) -> Config:
    sources = [{"name": table, "type": "dynamodb", "table": table} for table in tables]
    kafka = {"bootstrap_servers": "127.0.0.1:1"}
    return Config.model_validate({"name": "shop", "kafka": kafka, "sources": [*sources, *([source] if source else [])]})


def test_topics_may_be_named_in_full_by_table_or_by_kind() -> None:
    relayed = config("orders", "lines")
    assert resolve_topics(relayed, []) == ["shop.orders", "shop.lines"]
    assert resolve_topics(relayed, ["lines", "shop.lines", "gaps", "shop.checkpoints"]) == [
        "shop.lines",
        "shop.gaps",
        "shop.checkpoints",
    ]


SQL = {"name": "shop", "type": "mysql", "shards": {"-": ["h:1"]}, "database": "d", "user": "u", "password": "p"}


def test_only_sources_of_sql_have_a_topic_of_statements() -> None:
    assert resolve_topics(config("orders", **SQL, tables=["items"]), ["ddl"]) == ["shop.ddl"]
    assert resolve_topics(config("ddl"), ["ddl"]) == ["shop.ddl"]  # the table of a config from before
    with pytest.raises(ConfigError, match="'ddl' is not a topic of this relay"):
        resolve_topics(config("orders"), ["ddl"])
    with pytest.raises(ValueError, match=r"topic 'shop.ddl' of table 'ddl' collides with topic 'shop.ddl'"):
        config(**SQL, tables=["ddl"])


@pytest.mark.parametrize(
    ("name", "said"), [("order", "did you mean `orders`"), ("xyz", "its topics are shop.orders, shop.checkpoints")]
)
def test_a_topic_of_another_application_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is not a topic of this relay; {said}"):
        resolve_topics(config("orders"), [name])


def test_only_topics_of_changes_hold_changes() -> None:
    relayed = config("orders", "lines")
    assert topics_of_changes(relayed, []) == ["shop.orders", "shop.lines"]
    assert topics_of_changes(relayed, ["shop.lines", "lines"]) == ["shop.lines"]
    with pytest.raises(ConfigError, match="'gaps' is not a topic of this relay; its topics are"):
        topics_of_changes(relayed, ["gaps"])


def test_tables_that_a_database_would_have_to_list_have_to_be_named() -> None:
    """Whoever reads the topics may have no access to the database."""
    relayed = config("orders", name="others", type="mysql", shards={"-": ["h:1"]}, database="d", user="u", password="p")
    with pytest.raises(ConfigError, match="name the tables to read"):
        topics_of_changes(relayed, [])
    assert topics_of_changes(relayed, ["items", "orders", "shop.orders"]) == ["shop.items", "shop.orders"]


def test_the_name_of_a_topic_means_the_topic_whatever_tables_share_another() -> None:
    """I1: a program's group contains the names of tables that share their topic."""
    relayed = config("orders", "lines", "items").model_copy(update={"topics": {"orders": "sales", "default": "others"}})
    relayed = Config.model_validate(relayed.model_dump(by_alias=True, exclude_none=True))
    assert only_tables(relayed, ["sales", "orders"]) == {}
    assert only_tables(relayed, ["sales", "items"]) == {"others": {"items"}}
    assert only_tables(relayed, ["others", "items"]) == {}
    unknown = Config.model_validate(
        {"name": "shop", "kafka": {"bootstrap_servers": "h:1"}, "topics": {"audit_*": "audit"}, "sources": [SQL]}
    )
    assert topics_of_changes(unknown, ["audit", "audit_a", "orders"]) == ["audit", "shop.orders"]
    assert only_tables(unknown, ["audit"]) == {}


@pytest.mark.parametrize("relayed", [config("orders", "lines"), config("orders", **SQL)])
def test_one_name_may_be_given_as_it_is(relayed: Config) -> None:
    assert topics_of_changes(relayed, "orders") == ["shop.orders"]


@given(st.text(min_size=1, max_size=24), st.text(min_size=1, max_size=24))
@example("old orders", "old_x0020_orders")
@example("a.b-c_x", "_x0")
def test_a_table_of_any_name_has_a_legal_topic_of_its_own(first: str, second: str) -> None:
    """I8: the topic says the name, as a name of Avro does; what Kafka allows stays as it is."""
    config = Config.model_construct(name="shop", topics="{name}.{table}")
    topics = [config.topic(table) for table in (first, second)]
    assert (topics[0] == topics[1]) == (first == second)
    for table, topic in zip((first, second), topics, strict=True):
        assert is_topic(topic)
        assert unescape(topic.removeprefix("shop.")) == table
    assert config.topic("Order-lines_x.2024") == "shop.Order-lines_x.2024"
    assert config.topic("old orders") == "shop.old_x0020_orders"


@given(st.text(min_size=30), st.text("xé价", min_size=30, max_size=300))
@example("价" * 64, "价" * 63 + "格")
@example("x" * 244, "x" * 245)
def test_a_table_of_a_long_name_has_a_legal_topic_of_its_own(first: str, second: str) -> None:
    """I12: one table whose name takes more than the 249 characters of a topic ended the relay."""
    config = Config.model_construct(name="shop", topics="{name}.{table}.v1")
    topics = [config.topic(table) for table in (first, second)]
    assert (topics[0] == topics[1]) == (first == second)
    for topic in topics:
        assert is_topic(topic)
        assert len(topic) <= 249
        assert topic.startswith("shop.")
        assert topic.endswith(".v1")


def test_a_name_that_is_too_long_is_the_only_problem_of_its_topics(file: Path) -> None:
    sources = "sources: [{name: s, type: dynamodb, table: orders}]"
    text = f'name: {"n" * 245}\nkafka: {{bootstrap_servers: "b:1"}}\n{sources}\n'
    found = refused(file, text)
    assert found
    assert all(each.startswith("1:7: `name`: topic 'n") for each in found)


@pytest.mark.parametrize(
    ("topics", "tables", "said"),
    [
        ("{name}.{tabel}", ["orders"], "`topics`: unknown placeholder {tabel}; use {name} and {table}"),
        ("{name}.{table", ["orders"],
         "`topics`: the template '{name}.{table' has an unmatched or empty '{' at position 8 (write a literal brace "
         "twice)"),
        ("{table} x", ["orders"], "`topics`: Kafka does not allow the topic name 'orders x'"),
        ("{name}.{table}", ["checkpoints"],
         "`topics`: topic 'shop.checkpoints' of table 'checkpoints' collides with topic 'shop.checkpoints'"),
        ("{name}.{table}", ["a.bc", "a_bc"],
         "`topics`: topic 'shop.a_bc' of table 'a_bc' collides with topic 'shop.a.bc'"),
        (f"{{table}}{'x' * 244}", ["orders"],
         f"`topics`: topic '_{sha256(b'orders').hexdigest()[:16]}{'x' * 244}' is longer than the 249 characters that "
         "Kafka allows"),
    ],
)  # fmt: skip
def test_topic_names_must_be_legal_and_distinct(file: Path, topics: str, tables: list[str], said: str) -> None:
    sources = "".join(f"\n  - {{name: s{i}, type: dynamodb, table: {table}}}" for i, table in enumerate(tables))
    text = f'name: shop\nkafka: {{bootstrap_servers: "b:1"}}\ntopics: "{topics}"\nsources:{sources}\n'
    assert refused(file, text) == [f"3:9: {said}"]


def test_a_single_table_may_have_a_topic_without_the_table_name(file: Path) -> None:
    assert read(file, change("{name}.{table}", "all-{name}")).topic("orders") == "all-shop"
