"""Whose fault it is that a target refuses something: a row's or a table's. All else is tried again, and stops all."""

from relay.errors import RelayError


class TableFault(RelayError):
    """A table cannot take its changes until a person has removed the cause. The others can."""


class RowFault(TableFault):
    """The target refuses the values of a row among those that it was to write, and has written none of them."""
