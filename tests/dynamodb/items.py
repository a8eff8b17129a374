"""Items of every type that DynamoDB has, to draw from."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.builds(
    lambda sign, digits, exponent: f"{sign}{digits}E{exponent}",
    st.sampled_from(["", "-", "+"]),
    st.text("0123456789", min_size=1, max_size=38),
    st.integers(-167, 125),
)

TYPED = st.recursive(
    st.one_of(
        st.text().map(lambda v: {"S": v}),
        NUMBERS.map(lambda v: {"N": v}),
        st.binary().map(lambda v: {"B": v}),
        st.booleans().map(lambda v: {"BOOL": v}),
        st.just({"NULL": True}),
        st.lists(st.text(), min_size=1).map(lambda v: {"SS": v}),
        st.lists(NUMBERS, min_size=1).map(lambda v: {"NS": v}),
        st.lists(st.binary(), min_size=1).map(lambda v: {"BS": v}),
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: {"L": v})
        | st.dictionaries(st.text(), inner, max_size=3).map(lambda v: {"M": v})
    ),
    max_leaves=8,
)


def with_base64(part: Any) -> Any:
    """Give typed values as they are in DynamoDB's JSON."""
    if isinstance(part, bytes):
        return b64encode(part).decode()
    if isinstance(part, dict):
        return {name: with_base64(value) for name, value in part.items()}
    if isinstance(part, list):
        return [with_base64(value) for value in part]
    return part
