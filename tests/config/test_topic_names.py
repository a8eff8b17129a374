"""The topics that names given by a user mean."""

from __future__ import annotations

from typing import Any

import pytest

from relay.config import Config
from relay.config.topic_names import resolve_topics, topics_of_changes
from relay.errors import ConfigError


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
    ("name", "said"), [("order", "did you mean 'orders'"), ("xyz", "its topics are shop.orders, shop.checkpoints")]
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


@pytest.mark.parametrize("relayed", [config("orders", "lines"), config("orders", **SQL)])
def test_one_name_may_be_given_as_it_is(relayed: Config) -> None:
    assert topics_of_changes(relayed, "orders") == ["shop.orders"]
