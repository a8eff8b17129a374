"""Numbers, and true or false, may come from the environment, in the file and in ``--set``."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import jsonschema
import pytest
import yaml

from relay.config import Config, MySQLConfig, load
from relay.config.config import json_schema, read
from relay.config.echo import echo, to_yaml
from relay.errors import ConfigError
from tests.config.configs import GOOD, change, two_sources

ROWS = two_sources(
    "{name: m, type: mysql, database: d, shards: {'-': ['h:1']}, tombstones: '${T}', key: item, "
    "snapshot_rows_per_second: '${N:-50}'}"
)


def loaded(file: Path, text: str, *settings: str) -> Config:
    file.write_text(dedent(text), encoding="utf-8")
    return load(file, settings)


def test_a_number_may_come_from_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N", "12")
    assert loaded(file, change("partitions: 6", 'partitions: "${N}"')).kafka.partitions == 12
    assert loaded(file, change("partitions: 6", 'partitions: "${NOBODY:-9}"')).kafka.partitions == 9
    assert loaded(file, change("partitions: 6", 'partitions: "1${N}"')).kafka.partitions == 112
    assert loaded(file, GOOD, "kafka.partitions=${N}").kafka.partitions == 12


def test_true_and_false_may_come_from_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T", "yes")
    source = loaded(file, ROWS).sources[1]
    assert isinstance(source, MySQLConfig)
    assert (source.tombstones, source.snapshot_rows_per_second) == (True, 50)
    assert not loaded(file, GOOD, "spark.shared_folders=${NOBODY:-false}").spark.shared_folders


def test_a_text_from_the_environment_stays_text(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N", "12")
    found = loaded(file, change("namespace: shop", 'namespace: "${N}"').replace("name: shop", "name: ${N}"))
    assert found.name == "12"
    assert found.cache is not None
    assert found.cache.namespace == "12"


@pytest.mark.parametrize("held", ["12", " 12\n", "+12"])
def test_a_number_is_read_as_in_the_file(held: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N", held)
    assert loaded(file, change("partitions: 6", 'partitions: "${N}"')).kafka.partitions == 12


OTHER_VALUES = ["many", "", "6.5", "yes", "[6]", "{a: 6}", "${N}", "6\n7", "1" * 5000]
NOT_DECIMAL = ["010", "0x10", "0b11", "1:30", "1_2", "1e3", "12 # x", "!!int '7'", "&a 5", "'6'", ".inf", "\u0663"]


@pytest.mark.parametrize("held", OTHER_VALUES + NOT_DECIMAL)
def test_another_value_from_the_environment_is_refused_with_its_variable(
    held: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8"""
    monkeypatch.setenv("N", held)
    with pytest.raises(ConfigError) as caught:
        loaded(file, change("partitions: 6", 'partitions: "${N}"'))
    assert str(caught.value).startswith(f"{file}:2:58: `kafka.partitions` must be ")
    assert str(caught.value).endswith(", not what its variable contains")


def test_a_number_is_not_taken_for_true(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I8"""
    monkeypatch.setenv("T", "1")
    with pytest.raises(
        ConfigError, match=r"`sources\[1\].tombstones` must be true or false, not what its variable contains"
    ):
        loaded(file, ROWS)


def test_a_number_in_quotes_is_text_if_the_file_has_it(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"`kafka.partitions` must be an integer, not '6'"):
        loaded(file, change("partitions: 6", 'partitions: "6"'))


def test_a_bound_holds_for_a_number_from_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N", "0")
    with pytest.raises(ConfigError, match=r"`kafka.partitions` must be at least 1, not what its variable contains"):
        loaded(file, change("partitions: 6", 'partitions: "${N}"'))


def test_problems_elsewhere_are_reported_beside_numbers_from_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("N", "12")
    with pytest.raises(ConfigError) as caught:
        loaded(file, change("partitions: 6", 'partitions: "${N}"').replace("key: hash", "key: hashed"))
    assert str(caught.value) == f"{file}:13:10: `sources[0].key` must be 'hash' or 'item', not 'hashed'"


def test_the_echo_has_the_variable_and_loads_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N", "12")
    file.write_text(dedent(change("partitions: 6", 'partitions: "${N}"')))
    shown = echo(*read(file))
    assert shown["kafka"]["partitions"] == "${N}"
    assert loaded(file, to_yaml(shown)).kafka.partitions == 12


VALUES: list[tuple[str, dict[str, str]]] = [
    (change("partitions: 6", 'partitions: "${V}"'), {"V": "12"}),
    (change("shared_folders: true", 'shared_folders: "${V}"'), {"V": "true"}),
    (ROWS, {"T": "false"}),
    (change("snapshot: none", "snapshot: ${V}"), {"V": "initial"}),
    (change("on_gap: fail", "on_gap: ${V:-skip}"), {}),
    (change("producer: {}", 'producer: {acks: "${V}", enable.idempotence: "${W}"}'), {"V": "all", "W": "true"}),
]


@pytest.mark.parametrize(("text", "environment"), VALUES)
def test_the_schema_takes_variables_where_check_takes_them(
    text: str, environment: dict[str, str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    loaded(file, text)
    jsonschema.Draft202012Validator(json_schema()).validate(data(text))


@pytest.mark.parametrize("value", ['"6"', '"yes"', '"$V"'])
def test_the_schema_refuses_other_texts_in_place_of_a_number(value: str) -> None:
    assert not jsonschema.Draft202012Validator(json_schema()).is_valid(
        data(change("partitions: 6", f"partitions: {value}"))
    )


def test_the_schema_names_its_dialect() -> None:
    found = json_schema()
    assert next(iter(found)) == "$schema"
    jsonschema.validators.validator_for(found, default=None).check_schema(found)


def data(text: str) -> Any:
    return json.loads(json.dumps(yaml.safe_load(dedent(text))))
