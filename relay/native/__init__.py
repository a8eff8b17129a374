"""The compiled core: what the plain Python beside it does, several times as fast. README.md says how it is built.

An installation may lack it. Then everything works the same, and the log says so once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.native._core import (
        BinlogScanner,
        BlockBuilder,
        ChangeBlock,
        CompiledItems,
        RecordWriter,
        VStreamReader,
    )

log = logging.getLogger(__name__)

_INTERFACE = 9  # what this version calls; one that was built of other sources may have another


def record_writer() -> type[RecordWriter] | None:
    """Return the compiled class; None for plain Python: it is not there, or ``RELAY_NATIVE=off`` is set.

    Raises ImportError if ``RELAY_NATIVE=required`` is set and it is not there.
    """
    found = _loaded()
    return None if found is None else found.RecordWriter


def vstream_reader() -> type[VStreamReader] | None:
    """Return the compiled class, as `record_writer` does."""
    found = _loaded()
    return None if found is None else found.VStreamReader


def block_builder() -> type[BlockBuilder] | None:
    """Return the compiled class, as `record_writer` does."""
    found = _loaded()
    return None if found is None else found.BlockBuilder


def binlog_scanner() -> type[BinlogScanner] | None:
    """Return the compiled class, as `record_writer` does."""
    found = _loaded()
    return None if found is None else found.BinlogScanner


def compiled_items() -> type[CompiledItems] | None:
    """Return the compiled class, as `record_writer` does."""
    found = _loaded()
    return None if found is None else found.CompiledItems


def row_reader() -> Callable[..., ChangeBlock | None] | None:
    """Return the compiled function ``read_rows``, as `record_writer` does."""
    found = _loaded()
    return None if found is None else found.read_rows


def copied_parts() -> Callable[[bytes], list[tuple[int, bytes]] | None] | None:
    """Return the compiled function ``copied_parts``, as `record_writer` does."""
    found = _loaded()
    return None if found is None else found.copied_parts


def _loaded() -> ModuleType | None:
    wanted = os.environ.get("RELAY_NATIVE", "")
    if wanted == "off":
        _say_once("RELAY_NATIVE=off")
        return None
    try:
        import relay.native._core as found

        if found.INTERFACE != _INTERFACE:
            raise ImportError("it was built of other sources")
    except ImportError as error:
        if wanted == "required":
            raise
        _say_once(str(error))
        return None
    return found


@cache
def _say_once(reason: str) -> None:
    log.info("records are made by plain Python, which takes several times the CPU of the compiled core (%s)", reason)
