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


@pytest.mark.parametrize(
    ("text", "rendered", "expected"),
    [
        ("order:{customer}:{id}", "order:ada:7", [{"customer": "ada", "id": "7"}]),
        ("order:{customer}:{id}", "user:ada:7", []),
        ("order:{customer}:{id}", "order:ada", []),
        ("{a}:{b}", "x:y:z", [{"a": "x", "b": "y:z"}, {"a": "x:y", "b": "z"}]),
        ("{a}{b}", "xy", [{"a": "", "b": "xy"}, {"a": "x", "b": "y"}, {"a": "xy", "b": ""}]),
        ("{a}/{a}", "x/x", [{"a": "x"}]),
        ("{a}/{a}", "x/y", []),
        ("{{{a}}}", "{1}", [{"a": "1"}]),
        ("all", "all", [{}]),
        ("all", "all of it", []),
    ],
)
def test_a_text_is_taken_apart_in_every_way_that_renders_it(
    text: str, rendered: str, expected: list[dict[str, str]]
) -> None:
    assert list(Template.parse(text).matches(rendered)) == expected


@given(st.text("a:{}", max_size=3), st.text("a:", max_size=4), st.text("a:", max_size=3), st.text("a:", max_size=4))
def test_the_rendered_columns_are_among_the_matches(before: str, first: str, between: str, second: str) -> None:
    literals = [text.replace("{", "{{").replace("}", "}}") for text in (before, between)]
    template = Template.parse(f"{literals[0]}{{x}}{literals[1]}{{y}}")
    rendered = template.render({"x": first, "y": second})
    found = list(template.matches(rendered))
    assert {"x": first, "y": second} in found
    assert all(template.render(each) == rendered for each in found)
    assert len(found) == len({tuple(each.items()) for each in found})
