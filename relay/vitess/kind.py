"""Vitess as a kind of source."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from relay.mysql_dialect.sources import check_tables
from relay.source import CheckedSource, SourceKind
from relay.vitess.source import VitessSource, connect, definitions

if TYPE_CHECKING:
    from relay.config import VitessConfig


def _find_tables(entry: VitessConfig) -> list[str]:
    with closing(connect(entry)) as vtgate:
        return [name for name, found in definitions(vtgate, entry).items() if found.primary or entry.key_columns(name)]


def _check(entry: VitessConfig) -> CheckedSource:
    with closing(VitessSource(entry)) as source:
        return check_tables(entry, source)


KIND = SourceKind(VitessSource, _find_tables, _check)
