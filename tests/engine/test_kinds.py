"""The kinds of sources: each type that a config may name has one, and one is imported when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest

from relay.config.errors import SOURCE_TYPES
from relay.config.sources import SourceConfig
from relay.engine.kinds import kind_of
from relay.source import SourceKind

ENTRIES = {get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(get_args(SourceConfig)[0])}


def test_the_types_in_messages_are_those_of_sources() -> None:
    assert list(SOURCE_TYPES) == list(ENTRIES)


@pytest.mark.parametrize("name", SOURCE_TYPES)
def test_each_type_has_a_kind_and_imports_no_other(name: str) -> None:
    others = [f"relay.{other}.source" for other in SOURCE_TYPES if other != name]
    code = (
        "import sys, types\nfrom relay.engine.kinds import kind_of\n"
        f"kind_of(types.SimpleNamespace(type={name!r}, name='s'))\n"
        f"assert sys.modules.keys().isdisjoint({others!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    entry: Any = type("Entry", (), {"type": name, "name": "s"})
    assert isinstance(kind_of(entry), SourceKind)


@pytest.mark.parametrize("name", SOURCE_TYPES)
def test_a_config_says_what_its_kind_can_do_without_importing_it(name: str) -> None:
    section: Any = ENTRIES[name]
    entry: Any = type("Entry", (), {"type": name, "name": "s"})
    kind = kind_of(entry)
    said = section.traits.can_read_items, section.traits.has_stream_tokens
    assert said == (kind.items is not None, kind.stream_token is not None)
