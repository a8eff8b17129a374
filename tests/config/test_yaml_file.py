"""Reading YAML files: places, variables, duplicate keys, and broken files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from relay.config import load
from relay.config.yaml_file import Document, read
from relay.errors import ConfigError


def document(file: Path, text: str, **environment: str) -> Document:
    file.write_text(text, encoding="utf-8")
    return read(file, environment)


def data(file: Path, text: str, **environment: str) -> Any:
    return document(file, text, **environment).data


def refused(file: Path, text: str, **environment: str) -> str:
    """Return the error about a file, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        document(file, text, **environment)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"{file}:")
    return str(caught.value).removeprefix(f"{file}:")


def test_values_keep_their_types_and_times_stay_text(file: Path) -> None:
    text = 'a: [1, 0.5, yes, ~, x, "1", 2026-11-21T06:00:00Z]\nb: {on: 1, 2: 3}\n'
    assert data(file, text) == {"a": [1, 0.5, True, None, "x", "1", "2026-11-21T06:00:00Z"], "b": {"on": 1, "2": 3}}


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
        ("a: {b: ${C}}\n", "1:9", "inside {...}, quote text that contains ${NAME}"),
        ("name: a\n---\nname: b\n", "2:1", "broken YAML"),
        ("name: &a [*a]\n", "1:7", "refers to the value that contains it"),
        ("name: !!python/name:os.system x\n", "1:7", "are not allowed here"),
        ("name: !!set {x}\n", "1:7", "are not allowed here"),
        ("name: !!pairs [x: y]\n", "1:7", "are not allowed here"),
        ("? [a, b]\n: c\n", "1:3", "a key must be plain text"),
        ("a: {<<: 1}\n", "1:9", "broken YAML"),
    ],
)
def test_broken_yaml_is_reported_with_its_line_and_column(file: Path, text: str, place: str, problem: str) -> None:
    said = refused(file, text)
    assert said.startswith(f"{place}: ")
    assert problem in said


@pytest.mark.parametrize(
    "number", ["01234", "-007", "12:30", "0x1F", "0b11", "1_000", "!!int '\u0663'", "12:30.5", "1_000.5"]
)
def test_a_number_that_yaml_would_change_is_refused_without_showing_it(file: Path, number: str) -> None:
    """I8: `where: {orders: {zip: 01234}}` would publish the rows of 668."""
    said = refused(file, f"a:\n  b: {number}\n")
    assert said == (
        "2:6: YAML reads this number differently from how it is written: quote it, or write it in plain decimals"
    )


def test_a_number_in_decimals_is_read(file: Path) -> None:
    text = "[0, -0, +7, 120, !!int '7', 0.5, .5, 5., -1.0e+3, 00.5, .inf, 08, 1e3]"
    assert data(file, text) == [0, 0, 7, 120, 7, 0.5, 0.5, 5.0, -1000.0, 0.5, float("inf"), "08", "1e3"]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("!!int hunter2", "int"),
        ("!!int ''", "int"),
        ("1" * 5000, "int"),
        ("!!float ''", "float"),
        ("!!bool hunter2", "bool"),
    ],
)
def test_a_value_that_its_tag_cannot_have_is_refused_without_showing_it(file: Path, value: str, kind: str) -> None:
    assert refused(file, f"a: {value}\n") == f"1:4: cannot read this value as {kind}"


@pytest.mark.parametrize("text", ['"x\\ud800"', '{"\\ud800": 1}', '{<<: {"\\ud800": 1}}', "x${BROKER}"])
def test_text_that_cannot_be_encoded_is_refused(file: Path, text: str) -> None:
    said = refused(file, f"a:\n  - {text}\n", BROKER="\udcff")
    assert re.fullmatch("2:[0-9]+: this text, or a variable in it, is not valid UTF-8", said)


@pytest.mark.parametrize(("text", "what"), [("", "is empty"), ("- a\n", "must be a mapping"), ("a\n", "mapping")])
def test_a_file_that_is_not_a_mapping_is_refused(file: Path, text: str, what: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"shop\.yaml:1:1: the file .*{what}"):
        load(file)


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"shop\.yaml: no such file"):
        read(file)


def test_a_file_that_is_not_utf8_is_refused(file: Path) -> None:
    file.write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match=r"shop\.yaml:1:7: not UTF-8 text \(at byte 6\)"):
        read(file)
    file.write_bytes(b"name: shop\nkafka: \xff\n")
    with pytest.raises(ConfigError, match=r"shop\.yaml:2:8: not UTF-8 text \(at byte 18\)"):
        read(file)


@pytest.mark.parametrize(
    "value",
    [
        "[" * 5000 + "]" * 5000,
        "{a: " * 3000 + "1" + "}" * 3000,
        "\n" + "".join(f"{' ' * i}a:\n" for i in range(1, 1000)),
    ],
)
def test_values_that_are_nested_too_deeply_are_refused(file: Path, value: str) -> None:
    file.write_text(f"kafka: {value}\n")
    with pytest.raises(ConfigError, match=r"shop\.yaml: its values are nested too deeply$"):
        read(file)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_a_duplicate_key_is_an_error(file: Path) -> None:
    said = refused(file, "a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert said == "4:3: duplicate key `b`; it is already set on line 2"


def test_merged_keys_may_be_overridden_and_anchors_reused(file: Path) -> None:
    text = "- &orders {name: orders, region: here}\n- {<<: *orders, name: lines}\n- *orders\n"
    assert data(file, text) == [
        {"name": "orders", "region": "here"},
        {"name": "lines", "region": "here"},
        {"name": "orders", "region": "here"},
    ]


def test_variables_expand_inside_strings_only(file: Path) -> None:
    text = "a: ${HOST}:9092\n${HOST}: [\"x${HOST}${PORT}\", '${EMPTY}']\n"
    assert data(file, text, HOST="h", PORT="1", EMPTY="") == {"a": "h:9092", "${HOST}": ["xh1", ""]}


def test_the_value_of_a_variable_is_always_text(file: Path) -> None:
    held = "6, b: {x: 1} ${HOST} # no"
    assert data(file, "a: ${HELD}\n", HELD=held) == {"a": held}
    assert data(file, "a: ${HELD}\n", HELD="6") == {"a": "6"}


def test_a_doubled_dollar_escapes_a_variable(file: Path) -> None:
    assert data(file, "a: file:///$${HOME}/$x/$/$$\n") == {"a": "file:///${HOME}/$x/$/$$"}


def test_a_variable_may_have_a_default_for_when_it_is_not_set_or_empty(file: Path) -> None:
    text = "a: ${HOST:-localhost}:${PORT:-}\nb: '${HOST:-a:-b $x}'\n"
    assert data(file, text, HOST="h", PORT="1") == {"a": "h:1", "b": "h"}
    assert data(file, text) == data(file, text, HOST="") == {"a": "localhost:", "b": "a:-b $x"}


def test_a_missing_variable_is_named_with_its_place(file: Path) -> None:
    assert refused(file, "a:\n  - ${BROKER}:9092\n") == "2:5: the environment variable BROKER is not set"


@pytest.mark.parametrize(
    "text", ["${BRO KER}", "${BROKER", "${}", "${BROKER:x}", "${BROKER-x}", "${:-x}", "${BROKER:-x"]
)
def test_a_broken_variable_is_refused_without_quoting_it(file: Path, text: str) -> None:
    said = refused(file, f'a: "hunter2{text}"\n', BROKER="b")
    assert said.startswith("1:4: `${` must start a variable")
    assert "hunter2" not in said
    assert "BRO" not in said


def test_variables_come_from_the_environment_of_the_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_TEST_VARIABLE", "x")
    file.write_text("a: ${RELAY_TEST_VARIABLE}\n")
    assert read(file).data == {"a": "x"}
