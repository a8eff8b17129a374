"""The examples in the docstrings of the public modules print what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["cache.keys", "change", "gtid", "keyrange", "stream_token", "token"])
def test_the_examples_in_docstrings_are_right(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"relay.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
