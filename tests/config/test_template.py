"""Templates: text with column names in braces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config.template import Template


@pytest.mark.parametrize(
    ("text", "columns", "rendered"),
    [
        ("order:{order_id}", ("order_id",), "order:1"),
        ("{a}{b}{a}", ("a", "b"), "121"),
        ("all", (), "all"),
        ("", (), ""),
        ("{{{a}}}", ("a",), "{1}"),
        ("{{a}}", (), "{a}"),
        ("{user.name:x!r [0]}", ("user.name:x!r [0]",), "9"),
    ],
)
def test_rendering_fills_in_the_columns(text: str, columns: tuple[str, ...], rendered: str) -> None:
    template = Template.parse(text)
    assert template.columns == columns
    values = {"order_id": "1", "a": "1", "b": "2", "user.name:x!r [0]": "9"}
    assert template.render(values) == rendered


@pytest.mark.parametrize(("text", "position"), [("a{", 2), ("a}b", 2), ("{}", 1), ("{a{b}}", 1), ("{a}}", 4)])
def test_an_unmatched_or_empty_brace_is_an_error_with_its_position(text: str, position: int) -> None:
    with pytest.raises(ValueError, match=rf"has an unmatched or empty .* at position {position} "):
        Template.parse(text)


def test_rendering_without_a_value_names_the_column() -> None:
    with pytest.raises(KeyError, match="order_id"):
        Template.parse("{order_id}").render({})


@given(st.text(), st.text(alphabet=st.characters(exclude_characters="{}"), min_size=1), st.text())
def test_any_text_around_any_column_is_kept(before: str, column: str, after: str) -> None:
    escaped_before, escaped_after = (text.replace("{", "{{").replace("}", "}}") for text in (before, after))
    template = Template.parse(f"{escaped_before}{{{column}}}{escaped_after}")
    assert template.render({column: "X"}) == before + "X" + after
