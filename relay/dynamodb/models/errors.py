"""Errors of declared tables. Each message names the class, and the column if there is one."""

from collections.abc import Sequence
from typing import Any

from relay.errors import RelayError, Unavailable


class InvalidModel(RelayError, TypeError):
    """A class declares a table that cannot exist."""

    exit_code = 2


class InvalidValue(RelayError, ValueError):
    """A value is not of its column's declared type, in an object or in the table (I8)."""


class InvalidCondition(RelayError, ValueError):
    """A condition compares values that cannot be compared."""


class InvalidSearch(RelayError, ValueError):
    """A query or scan needs columns or keys that its table or index does not have."""


class ConstraintViolation(RelayError):
    """The item did not meet a condition, so nothing was written; or a search found another number of items."""


class MissingObjects(RelayError):
    """The table has no items with the keys of ``objects``. All other objects of the call were loaded."""

    def __init__(self, message: str, objects: Sequence[Any]) -> None:
        super().__init__(message)
        self.objects = objects


class TableMismatch(Unavailable):
    """A table is not as its class declares it. The message has a line for each difference."""
