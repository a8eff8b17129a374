"""Vitess as a kind of source."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from relay.mysql_dialect.sources import check_tables, find_tables
from relay.source import CheckedSource, SourceKind
from relay.vitess.source import VitessSource

if TYPE_CHECKING:
    from relay.config import VitessConfig


def _find_tables(entry: VitessConfig) -> list[str]:
    with closing(VitessSource(entry)) as source:
        return find_tables(source)


def _check(entry: VitessConfig) -> CheckedSource:
    with closing(VitessSource(entry)) as source:
        return check_tables(entry, source)


KIND = SourceKind(VitessSource, _find_tables, _check)
