"""What goes wrong with declared tables: each message names the class, and the column where there is one."""

from collections.abc import Sequence
from typing import Any

from relay.errors import RelayError, Unavailable


class InvalidModel(RelayError, TypeError):
    """A class declares a table that cannot be."""

    exit_code = 2


class InvalidValue(RelayError, ValueError):
    """A value is not of its column's declared type, in an object or in the table (I8)."""


class InvalidCondition(RelayError, ValueError):
    """A condition compares with what cannot be compared."""


class InvalidSearch(RelayError, ValueError):
    """A query or scan asks for what its table or index cannot answer."""


class ConstraintViolation(RelayError):
    """The item was not as a condition wanted it, so nothing was written; or a search has another number of results."""


class MissingObjects(RelayError):
    """The table has no items with the keys of ``objects``. All other objects of the call were loaded."""

    def __init__(self, message: str, objects: Sequence[Any]) -> None:
        super().__init__(message)
        self.objects = objects


class TableMismatch(Unavailable):
    """A table is not as its class declares it. The message has a line for each difference."""
