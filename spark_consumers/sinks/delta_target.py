"""A copy in Delta."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from relay.config import Config, CopyConfig
from spark_consumers.kept_rows import OpenKeptRows
from spark_consumers.locations import check_folder
from spark_consumers.sinks.delta_place import DeltaPlace

if TYPE_CHECKING:
    from spark_consumers.sinks.delta_copy import DeltaTable


class DeltaTarget(DeltaPlace):
    """The copy of ``copy``."""

    def __init__(self, copy: CopyConfig) -> None:
        super().__init__(copy.url)
        self._copy = copy

    def open(self) -> Callable[[str, str], DeltaTable]:
        from spark_consumers.sinks.delta_copy import DeltaTable
        from spark_consumers.sinks.upkeep import Schedule

        schedule = Schedule(self._copy.maintain_every, self._copy.keep_versions)
        return partial(DeltaTable, self.place, schedule, items=self._copy.items)

    def check(self, *, offline: bool) -> str:
        return check_folder("copy", self._copy.url)

    @contextmanager
    def kept_rows(self, config: Config) -> Iterator[OpenKeptRows]:
        from spark_consumers.session import delta_session
        from spark_consumers.sinks.kept_delta import KeptInDelta

        with delta_session("relay verify", config.spark) as session:
            yield partial(KeptInDelta, session, self.place, items=self._copy.items)
