"""The compiled core: the same results as plain Python, which replaces it if it is missing. See README.md."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from relay.native import _core

log = logging.getLogger(__name__)

_INTERFACE = 10  # the interface that this version calls; a core built from other sources may have another


class CoreMissing(ImportError):
    """The compiled core is required, and this installation lacks it. The message is for the user."""


class CoreModule(Protocol):
    """The contents of the module ``_core``."""

    BinlogScanner: type[_core.BinlogScanner]
    BlockBuilder: type[_core.BlockBuilder]
    CompiledItems: type[_core.CompiledItems]
    RecordWriter: type[_core.RecordWriter]
    VStreamReader: type[_core.VStreamReader]

    def copied_parts(self, answer: bytes, /) -> list[tuple[int, bytes]] | None: ...
    @property
    def read_rows(self) -> Callable[..., _core.ChangeBlock | None]: ...


def core() -> CoreModule | None:
    """Return the compiled core, or None if it was not built or ``RELAY_NATIVE=off`` is set: then use plain Python.

    Raises ``CoreMissing`` if ``RELAY_NATIVE=required`` is set and the core is missing, or for an unknown value.
    """
    wanted = os.environ.get("RELAY_NATIVE", "")
    if wanted == "off":
        _say_once("RELAY_NATIVE=off")
        return None
    if wanted not in ("", "required"):
        raise CoreMissing(f"the environment variable RELAY_NATIVE is {wanted!r}: use off or required, or leave it out")
    try:
        import relay.native._core as found

        if found.INTERFACE != _INTERFACE:
            raise ImportError("it was built from different sources")
    except ImportError as error:
        if wanted == "required":
            raise CoreMissing(
                f"RELAY_NATIVE=required is set, and this installation lacks the compiled core: {error}: install a "
                "wheel that has it, build it where Rust is installed, or leave RELAY_NATIVE out"
            ) from error
        _say_once(str(error))
        return None
    return found


@cache
def _say_once(reason: str) -> None:
    log.info("compiled core unavailable, using pure Python, which takes several times the CPU (%s)", reason)
