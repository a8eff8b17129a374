"""Whose each topic is."""

from __future__ import annotations

import pytest

from relay.config import Config
from relay.errors import ConfigError

DATABASE = {"type": "mysql", "shards": {"-": ["db:3306"]}}


def config_of(*sources: dict[str, object], topic_settings: object = None, **topics: str) -> Config:
    entries = [
        {"name": f"s{number}", "database": f"d{number}", **DATABASE, **each} for number, each in enumerate(sources)
    ]
    kafka = {"bootstrap_servers": "db:9092"}
    content = {"name": "shop", "kafka": kafka, "sources": entries, "topics": topics, "topic_settings": topic_settings}
    return Config.model_validate({key: value for key, value in content.items() if value})


def test_a_topic_belongs_to_the_first_table_that_asks_for_it() -> None:
    """I8"""
    first, second = (config := config_of({}, {})).sources
    assert not first.without_topic("a.b")
    assert not first.without_topic("a.b")
    assert first.without_topic("a_b") == "its topic would be 'shop.a_b', which is the topic of table a.b of source s0"
    assert config.claims.is_contested
    assert "the topic of table a.b of source s0" in second.without_topic("a.b")
    assert not second.without_topic("c")
    for name in ("gaps", "ddl", "checkpoints", "schemas", "watermarks", "dead_letters", "dead.letters"):
        assert first.without_topic(name).endswith("one of the relay's own"), name


def test_tables_of_all_sources_may_share_a_topic_that_is_named_without_them() -> None:
    """I8: but no two sources have one table, and no other name gives the same topic."""
    topics = {"audit_*": "audit", "other": "audit", "late*": "au.dit", "audit": "{table}", "own_*": "shop.gaps"}
    first, second = (config := config_of({}, {}, **topics)).sources
    assert not first.without_topic("audit_a")
    assert not second.without_topic("audit_b")
    assert not second.without_topic("other")
    assert not config.claims.is_contested
    assert "'audit', which is the topic of table audit_a of source s0" in second.without_topic("audit_a")
    assert "the topic of table audit_b of source s1" in first.without_topic("audit_b")
    assert "the topic of table audit_a of source s0" in first.without_topic("audit")
    assert not second.without_topic("later")
    assert not first.without_topic("late")
    assert "one of the relay's own" in first.without_topic("own_a")


def test_a_table_that_appears_with_other_settings_is_left_out_of_the_topic_of_others() -> None:
    """I8, I12: it alone."""
    settings = {"audit_b": {"partitions": 3}, "audit_c": {"retention.ms": -1}, "audit_*": {"partitions": 4}}
    config = config_of({}, {}, topic_settings=settings, **{"audit_*": "audit"})
    first, second = config.sources
    assert not first.without_topic("audit_a")
    said = "it shares its topic 'audit' with table audit_a of source s0, so `{}` must be the same for both"
    for table, setting in (("audit_b", "partitions"), ("audit_c", "retention.ms")):
        assert second.without_topic(table) == said.format(setting)
    assert not second.without_topic("audit_d")
    assert config.claims.is_contested


def test_a_table_that_appears_without_a_setting_is_left_out_of_the_topic_of_one_that_has_it() -> None:
    """I8: the topic was made for the other one."""
    for setting, value in ("partitions", 3), ("retention.ms", 60_000):
        config = config_of({}, topic_settings={"audit_a": {setting: value}}, **{"audit_*": "audit"})
        (source,) = config.sources
        assert not source.without_topic("audit_a")
        assert f"so `{setting}` must be the same for both" in source.without_topic("audit_b")
        assert config.claims.is_contested


def test_a_setting_of_a_table_that_is_left_out_of_its_topic_names_no_unknown_table() -> None:
    """I12: whoever starts the relay has to read why the table is left out."""
    there = ["audit_a", "audit_b"]

    def found(**settings: object) -> list[str]:
        config = config_of({}, topic_settings=settings, **{"audit_*": "audit"})
        return list(config.with_tables(lambda entry: [each for each in there if not entry.without_topic(each)]).tables)

    assert found(audit_b={"partitions": 3}) == ["audit_a"]
    with pytest.raises(ConfigError, match="no source reads table 'audit_x'; did you mean"):
        found(audit_b={"partitions": 3}, audit_x={"partitions": 3})


def test_named_tables_come_first_then_those_that_were_relayed_before() -> None:
    """I8, I12: the topic has their changes."""
    first, second, named = (config := config_of({}, {}, {"tables": ["t"]})).sources
    assert "table t of source s2" in first.without_topic("t")
    assert not first.without_topic("u")
    config.claim([("s1", "u"), ("s0", "t"), ("s0", "gaps")])
    assert not config.claims.is_contested
    assert "table u of source s1" in first.without_topic("u")
    assert not second.without_topic("u")
    assert not named.without_topic("t")
    assert "table t of source s2" in first.without_topic("t")
    assert "the relay's own" in first.without_topic("gaps")


def test_the_tables_that_are_found_are_the_ones_that_have_a_topic() -> None:
    config = config_of({}, {})
    there = {"s0": ["a_b", "gaps", "t"], "s1": ["a.b", "u"]}
    found = config.with_tables(lambda entry: [each for each in there[entry.name] if not entry.without_topic(each)])
    assert {table: source.name for table, source in found.tables.items()} == {"a_b": "s0", "t": "s0", "u": "s1"}
    assert found == config.with_tables(lambda entry: found.sources[int(entry.name[1:])].table_names)
