"""``--set key=value`` in place of what the file says."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import get_args

import pytest

from relay.commands.options import SetOption
from relay.config import Config, DynamoDBConfig, load
from relay.config.config import read
from relay.errors import ConfigError
from tests.config.configs import GOOD, only


def loaded(file: Path, *settings: str, text: str = GOOD) -> Config:
    file.write_text(dedent(text), encoding="utf-8")
    return load(file, settings)


def refused(file: Path, *settings: str, text: str = GOOD) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(file, *settings, text=text)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def test_a_setting_takes_the_place_of_a_value_in_the_file(file: Path) -> None:
    found = loaded(file, "kafka.partitions=12", "name=store", "http=", "cache.keys.orders=[a, 'b:{order_id}']")
    assert (found.kafka.partitions, found.name, found.http) == (12, "store", None)
    assert found.cache is not None
    assert found.cache.keys == {"orders": ["a", "b:{order_id}"]}


def test_the_examples_of_the_help_change_what_may_be_changed(file: Path) -> None:
    """Not `kafka.partitions` or `start`, which a relay that has run refuses."""
    option = get_args(SetOption)[1].help
    examples = re.findall(r"([\w.]+=[\w.:]+\w)", option.replace("NAME", "orders"))
    assert [example.partition("=")[0] for example in examples] == ["http", "sources.orders.on_gap"]
    found = loaded(file, *examples)
    assert found.http is not None
    assert (str(found.http.address), found.sources[0].on_gap) == ("127.0.0.1:9401", "skip")


def test_the_last_setting_of_a_key_counts(file: Path) -> None:
    found = loaded(file, "kafka.partitions=12", "kafka={bootstrap_servers: b:1}", "kafka.partitions=13")
    assert (found.kafka.bootstrap_servers, found.kafka.partitions) == ("b:1", 13)


def test_a_setting_adds_a_section_that_the_file_does_not_have(file: Path) -> None:
    text = GOOD[: GOOD.index("    cache:")]
    found = loaded(file, "log.path=file:///log", "spark.master=yarn", text=text)
    assert found.log is not None
    assert (found.log.path, found.spark.master) == ("file:///log", "yarn")


def test_a_name_of_another_program_may_contain_dots(file: Path) -> None:
    found = loaded(file, "kafka.producer.linger.ms=7", "spark.conf.spark.executor.memory=4g")
    assert found.kafka.producer == {"linger.ms": 7}
    assert found.spark.conf["spark.executor.memory"] == "4g"


@pytest.mark.parametrize("key", ["sources.orders.start", "sources[0].start"])
def test_a_source_is_set_by_its_name_or_its_number(file: Path, key: str) -> None:
    assert only(loaded(file, f"{key}=-30s")).start == "-30s"


def test_the_name_of_a_source_may_contain_dots(file: Path) -> None:
    text = GOOD.replace("- name: orders", "- name: orders.eu")
    found = loaded(file, "sources.orders.eu.columns.a.b=string", text=text).sources[0]
    assert isinstance(found, DynamoDBConfig)
    assert found.columns == {"a.b": "string"}


def test_variables_expand_in_settings_and_are_remembered_as_they_were_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    file.write_text(dedent(GOOD.replace("redis://", "redis://${OLD:-x}@")))
    config, document = read(file, ["cache.url=redis://:${SECRET}@h/0"])
    assert config.cache is not None
    assert config.cache.url == "redis://:hunter2@h/0"
    assert document.variables == {("cache", "url"): "redis://:${SECRET}@h/0"}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("kafka.partitions", "--set kafka.partitions: must be key=value, such as http=127.0.0.1:9401"),
        ("=12", "--set : must be key=value, such as http=127.0.0.1:9401"),
        ("kafka.partitions=0",
         "--set kafka.partitions: `kafka.partitions` must be at least 1, not 0"),
        ("kafka={bootstrap_servers: ':'}",
         "--set kafka: `kafka.bootstrap_servers`: ':' is not a broker address, such as 127.0.0.1:9092 or ssl://[::1]:9093"),
        ("kafka.partitons=9", "--set kafka.partitons: unknown key `partitons` in `kafka`; did you mean `partitions`?"),
        ("sources[0].strat.x=1", "--set sources[0].strat.x: unknown key `strat` in `sources[0]`; did you mean "
         "`start`?"),
        ("name.x=1", "--set name.x: `name` in the file is a single value, so nothing can be set inside it"),
        ("cache.keys.orders=[",
         "--set cache.keys.orders:1:2: broken YAML: while parsing a flow node, expected the node content, but found "
         "'<stream end>'"),
        ("topics={name}.{table}",
         "--set topics:1:7: broken YAML: expected '<document start>', but found '<scalar>'; quote text that begins "
         "with { or [, also inside the quotes of a shell"),
        ("kafka.partitions=1:30", "--set kafka.partitions:1:1: YAML reads this number differently from how it is "
         "written: quote it, or write it in plain decimals"),
        ("kafka.producer.\udcff=1", "--set 'kafka.producer.\\udcff': not UTF-8 text"),
        ("http=${NOBODY}", "--set http:1:1: the environment variable NOBODY is not set"),
        ("sources.lines.start=latest", "--set sources.lines.start: must be sources.NAME.KEY, or sources[NUMBER].KEY "
         "with a number from 0; the sources are orders"),
        ("sources[1].start=latest", "--set sources[1].start: must be sources.NAME.KEY, or sources[NUMBER].KEY "
         "with a number from 0; the sources are orders"),
        ("sources.orders.start=soon",
         "--set sources.orders.start: `sources[0].start`: 'soon' is not a start; use trim_horizon, latest, an ISO time "
         "such as 2026-11-21T06:00:00Z, or a relative time such as -30s"),
    ],
)  # fmt: skip
def test_an_error_names_the_setting(file: Path, setting: str, said: str) -> None:
    assert refused(file, setting) == [said]


def test_what_a_section_lacks_that_only_a_setting_made_names_the_setting(file: Path) -> None:
    text = GOOD[: GOOD.index("    cache:")]
    assert refused(file, "copy.items=json", text=text) == ["--set copy.items: `copy.url` is missing"]


def test_a_problem_of_a_value_that_the_file_has_names_the_file(file: Path) -> None:
    text = GOOD.replace("snapshot: none", "strat: {a: b}").replace("on_gap: fail", "columns: {a: txt}")
    said = refused(file, "sources[0].strat.x=1", "sources[0].columns.b=string", text=text)
    assert [each.partition(": ")[0] for each in said] == [f"{file}:12:5", f"{file}:14:18"]


def test_problems_of_settings_and_of_the_file_are_reported_together(file: Path) -> None:
    text = GOOD.replace("key: hash", "key: hashed")
    assert refused(file, "kafka.partitions=0", text=text) == [
        "--set kafka.partitions: `kafka.partitions` must be at least 1, not 0",
        f"{file}:13:10: `sources[0].key` must be 'hash' or 'item', not 'hashed'",
    ]
