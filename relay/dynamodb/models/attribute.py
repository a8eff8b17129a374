"""Columns: a class' declarations of attributes, and the descriptor that reads and writes their values in objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, overload

from relay.config.dynamodb_columns import canonical_type
from relay.dynamodb.models import tracking
from relay.dynamodb.models.conditions import Comparable
from relay.dynamodb.models.errors import InvalidModel, InvalidValue
from relay.dynamodb.models.types import ANY, UNFIT, Wire, resolve

T = TypeVar("T")

Role = Literal["hash", "range"]

NO_DEFAULT: Any = object()


class Attribute(Comparable[T]):
    """A column of a table. On the class, it is used to build conditions; on an object, it is the value::

        class Order(Model, table="orders"):
            customer: Attribute[str] = hash_key()
            total: Attribute[Decimal]

        Order.total > Decimal(5)  # a condition
        Order(customer="ada", total=Decimal(5)).total  # Decimal(5)

    ``name``: the name in Python. ``attribute``: the name in the table. ``optional``: whether it may be None (no
    attribute). ``role``: ``hash`` or ``range`` for columns of the key. ``declared``: its type in ``columns:`` of a
    relay's source.
    """

    def __init__(
        self, attribute: str | None = None, *, role: Role | None = None, columns: str | None = None, default: Any
    ) -> None:
        super().__init__((), ANY, f"column {attribute}")
        self.name = ""
        self.attribute = attribute or ""
        self.role = role
        self.optional = False
        self.default = default
        self.declared = columns or ""

    def bind(self, owner: str, name: str, annotation: Any) -> None:
        """Give the column its place in a class. Raises ``InvalidModel``."""
        self.name = name
        self.label = f"{owner}.{name}"
        self.attribute = self.attribute or name
        self.path = (self.attribute,)
        try:
            self.type, self.optional = resolve(annotation)
            self.declared = canonical_type(self.declared or self.type.declared)
        except (NameError, TypeError, ValueError) as error:
            raise InvalidModel(f"{self.label}: {error}") from error
        if not callable(self.default) and self.default.__hash__ is None:
            shared = f"the default {self.default!r} would be shared by all objects"
            raise InvalidModel(f"{self.label}: {shared}: use a function that creates one, such as default=list")
        if not 1 <= len(self.attribute.encode()) <= 255:
            name = f"an attribute name must consist of 1 to 255 bytes; {self.attribute!r} does not"
            raise InvalidModel(f"{self.label}: {name}")
        if self.role and (self.optional or self.type.kind not in ("S", "N", "B")):
            key = "a key must be text, a number or bytes, and never None"
            raise InvalidModel(f"{self.label} is a {self.role} key: {key}")

    @overload
    def __get__(self, of: None, owner: type[Any]) -> Attribute[T]: ...
    @overload
    def __get__(self, of: object, owner: type[Any]) -> T: ...
    def __get__(self, of: object | None, owner: type[Any]) -> Attribute[T] | T:
        if of is None:
            return self
        try:
            return vars(of)[self.name]  # type: ignore[no-any-return]
        except KeyError:
            pass
        known = tracking.known_of(of)
        if self.name in known.left_out and self.name not in known.marked:
            raise AttributeError(f"{self.label} was not read: the search that returned this object did not project it")
        if self.optional:
            return None  # type: ignore[return-value]
        raise AttributeError(f"{self.label} has no value: it was not set, and is not in the table's item")

    def __set__(self, of: object, value: T) -> None:
        vars(of)[self.name] = value
        tracking.mark(of, self.name)

    def __delete__(self, of: object) -> None:
        vars(of).pop(self.name, None)
        tracking.mark(of, self.name)

    def wire(self, of: object) -> Wire | None:
        """Return an object's value in DynamoDB's form, or None for no attribute. Raises ``InvalidValue`` (I8)."""
        values = vars(of)
        if self.name not in values or (values[self.name] is None and self.optional):
            return None
        return self.dumped(values[self.name], self.type)

    def loaded(self, wire: Mapping[str, Any]) -> Any:
        """Return the value of an item's attribute. Raises ``InvalidValue`` (I8)."""
        if self.optional and "NULL" in wire:
            return None
        try:
            return self.type.load(wire)
        except UNFIT as error:
            reason = f"the item has {wire!r:.200}, not the declared type" if isinstance(error, KeyError) else error
            raise InvalidValue(f"{self.label} (attribute {self.attribute}): {reason}") from error


def hash_key(attribute: str | None = None, *, columns: str | None = None, default: Any = NO_DEFAULT) -> Any:
    """Declare the hash key. Takes the arguments of ``column``."""
    return Attribute(attribute, role="hash", columns=columns, default=default)


def range_key(attribute: str | None = None, *, columns: str | None = None, default: Any = NO_DEFAULT) -> Any:
    """Declare the range key. Takes the arguments of ``column``."""
    return Attribute(attribute, role="range", columns=columns, default=default)


def column(attribute: str | None = None, *, columns: str | None = None, default: Any = NO_DEFAULT) -> Any:
    """Declare a column for which the annotation is not enough.

    ``attribute``: its name in the table, if that differs from its name in Python. ``columns``: its type in ``columns:``
    of a relay's source, such as ``decimal(12,2)``, if that differs from its annotation's. ``default``: the value for
    objects that are created without one, or a function that returns it.
    """
    return Attribute(attribute, columns=columns, default=default)
