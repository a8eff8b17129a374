"""A table that a Python class declares, by its dotted path: ``app.models:Order``.

The class is one of ``relay.dynamodb.models``, which nothing here imports: it says itself what the relay has to know.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any, Protocol, cast

FORM = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"
"""The form of dotted paths, for the JSON schema."""


class DeclaredTable(Protocol):
    """What a class says of its table."""

    def __columns__(self) -> Mapping[str, str]:
        """Return the types of its columns, as ``columns:`` has them, by attribute name."""

    def __differences__(self, table: Mapping[str, Any], ttl: str | None) -> Iterable[str]:
        """Return a message for each way in which the described table is less than declared."""


def declared_table(path: str) -> DeclaredTable:
    """Import the class at ``path``. Raises ValueError, saying what is wrong with it."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"{path!r} is not the path of a class: write app.models:Order")
    try:
        found: Any = attrgetter(name)(import_module(module))
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot import {path}: {error}: is its folder in PYTHONPATH?") from error
    except Exception as error:
        # Whatever a program of somebody else's raises when it is imported.
        raise ValueError(f"cannot import {path}: {error!r}") from error
    if not isinstance(found, type) or not hasattr(found, "__differences__"):
        raise ValueError(f"{path} is not the class of a table: let it extend relay.dynamodb.models.Model")
    return cast(DeclaredTable, found)
