"""The docstrings of attributes, as the JSON schema of configs has them."""

from __future__ import annotations

from relay.config.model import attribute_docs


class Place:
    host: str
    """Where it runs,
    by name."""
    port: int = 1
    "Its port."
    limit = 3
    """Not annotated, so no attribute of the config."""
    note: str = ""

    def method(self) -> None:
        """Not of an attribute."""


class Inner(Place):
    port: int = 2
    user: str = ""
    """Who logs in."""


def test_the_docstring_below_an_attribute_is_its_description() -> None:
    assert attribute_docs(Place) == {"host": "Where it runs,\nby name.", "port": "Its port."}


def test_a_class_inherits_them_but_for_attributes_that_it_declares_again() -> None:
    assert attribute_docs(Inner) == {"host": "Where it runs,\nby name.", "user": "Who logs in."}


def test_a_class_without_a_file_has_none() -> None:
    made = type("Made", (), {"__annotations__": {"host": str}})
    assert attribute_docs(made) == {}
