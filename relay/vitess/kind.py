"""Vitess as a kind of source."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

from relay.config import VitessConfig
from relay.mysql_dialect.sources import check_tables, find_tables
from relay.source import Opening, SourceKind
from relay.vitess.source import VitessSource
from relay.vitess.table_rows import VitessTableRows


def _rows(
    entry: VitessConfig, open_shards: Callable[[], Sequence[Opening]], tables: Iterable[str]
) -> Iterator[VitessTableRows]:
    with closing(VitessSource(entry)) as source:
        shards = open_shards()
        source.connect()
        for table in tables:
            yield VitessTableRows(source, shards, table)


KIND = SourceKind(
    VitessSource, lambda entry: find_tables(VitessSource(entry)), lambda entry: check_tables(VitessSource(entry)), _rows
)
