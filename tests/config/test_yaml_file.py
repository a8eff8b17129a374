"""Reading YAML: places, variables, keys given twice, and what is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.config import load
from relay.config.yaml_file import Document, read
from relay.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.yaml"


def document(file: Path, text: str, **environment: str) -> Document:
    file.write_text(text, encoding="utf-8")
    return read(file, environment)


def data(file: Path, text: str, **environment: str) -> Any:
    return document(file, text, **environment).data


def refused(file: Path, text: str, **environment: str) -> str:
    """Return what is said about a file, without its name."""
    with pytest.raises(ConfigError) as caught:
        document(file, text, **environment)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"{file}:")
    return str(caught.value).removeprefix(f"{file}:")


def test_values_are_read_as_what_they_are_and_times_as_they_stand(file: Path) -> None:
    text = 'a: [1, 0.5, yes, ~, x, "1", 2026-11-21T06:00:00Z]\nb: {on: 1, 2: 3}\n'
    assert data(file, text) == {
        "a": [1, 0.5, True, None, "x", "1", "2026-11-21T06:00:00Z"],
        "b": {"on": 1, "2": 3},
    }


def test_every_key_and_value_has_its_line_and_column(file: Path) -> None:
    found = document(file, "a:\n  - {b: 1,\n     c: x}\n")
    assert found.place(("a", 0, "c")) == (3, 9)
    assert found.place(("a", 0, "c"), key=True) == (3, 6)
    assert found.place(("a", 0, "d")) == (2, 5)
    assert found.place(("z",), key=True) == (1, 1)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("name: [shop\nkafka: {}\n", "2:6", "broken YAML"),
        ("name: shop\n  kafka: {}\n", "2:8", "mapping values are not allowed here"),
        ("name: a\x07b\n", "1:8", "broken YAML"),
        ("name: *nobody\n", "1:7", "undefined alias"),
        ("a: {b: ${C}}\n", "1:9", "inside {...} a text with ${NAME} has to stand in quotes"),
        ("name: a\n---\nname: b\n", "2:1", "broken YAML"),
        ("name: &a [*a]\n", "1:7", "inside the value"),
        ("name: !!python/name:os.system x\n", "1:7", "are not allowed here"),
        ("name: !!set {x}\n", "1:7", "are not allowed here"),
        ("name: !!pairs [x: y]\n", "1:7", "are not allowed here"),
        ("? [a, b]\n: c\n", "1:3", "a key has to be plain text"),
        ("a: {<<: 1}\n", "1:9", "broken YAML"),
    ],
)
def test_broken_yaml_is_reported_with_its_line_and_column(file: Path, text: str, place: str, problem: str) -> None:
    said = refused(file, text)
    assert said.startswith(f"{place}: ")
    assert problem in said


@pytest.mark.parametrize(("text", "what"), [("", "is empty"), ("- a\n", "has to be a mapping"), ("a\n", "mapping")])
def test_a_file_that_is_no_mapping_is_no_config(file: Path, text: str, what: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"shop\.yaml:1:1: the file .*{what}"):
        load(file)


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"shop\.yaml: there is no such file"):
        read(file)


def test_a_file_that_is_not_utf8_is_named(file: Path) -> None:
    file.write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match=r"shop\.yaml: is not UTF-8 text \(byte 6\)"):
        read(file)


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_a_key_given_twice_is_an_error(file: Path) -> None:
    said = refused(file, "a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert said == "4:3: the key `b` is given twice, first on line 2"


def test_merged_keys_may_be_overridden_and_anchors_used_again(file: Path) -> None:
    text = "- &orders {name: orders, region: here}\n- {<<: *orders, name: lines}\n- *orders\n"
    assert data(file, text) == [
        {"name": "orders", "region": "here"},
        {"name": "lines", "region": "here"},
        {"name": "orders", "region": "here"},
    ]


def test_variables_expand_inside_strings_only(file: Path) -> None:
    text = "a: ${HOST}:9092\n${HOST}: [\"x${HOST}${PORT}\", '${EMPTY}']\n"
    assert data(file, text, HOST="h", PORT="1", EMPTY="") == {"a": "h:9092", "${HOST}": ["xh1", ""]}


def test_what_a_variable_holds_is_text_and_nothing_else(file: Path) -> None:
    held = "6, b: {x: 1} ${HOST} # no"
    assert data(file, "a: ${HELD}\n", HELD=held) == {"a": held}
    assert data(file, "a: ${HELD}\n", HELD="6") == {"a": "6"}


def test_a_dollar_more_keeps_a_variable_as_it_is(file: Path) -> None:
    assert data(file, "a: file:///$${HOME}/$x/$/$$\n") == {"a": "file:///${HOME}/$x/$/$$"}


def test_a_missing_variable_is_named_with_its_place(file: Path) -> None:
    assert refused(file, "a:\n  - ${BROKER}:9092\n") == "2:5: the environment variable BROKER is not set"


@pytest.mark.parametrize("text", ["${BRO KER}", "${BROKER", "${}", "${BROKER:-x}"])
def test_a_broken_variable_is_refused_without_quoting_it(file: Path, text: str) -> None:
    said = refused(file, f'a: "hunter2{text}"\n', BROKER="b")
    assert said.startswith("1:4: `${` has to begin a variable")
    assert "hunter2" not in said
    assert "BRO" not in said


def test_the_variables_are_those_of_the_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_TEST_VARIABLE", "x")
    file.write_text("a: ${RELAY_TEST_VARIABLE}\n")
    assert read(file).data == {"a": "x"}
