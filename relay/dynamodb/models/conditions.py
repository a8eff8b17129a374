"""Conditions on columns, and the DynamoDB expressions that they become."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from relay.dynamodb.models.errors import InvalidCondition, InvalidValue
from relay.dynamodb.models.types import ANY, UNFIT, AttributeType, Wire

T = TypeVar("T")

Step = str | int
"""A step of a path: the name of an entry of a map, or the number of an element of a list."""


class Placeholders:
    """The names and values of a request's expressions, each once. Every name gets one, so none is a reserved word."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, tuple[str, Wire]] = {}

    def path(self, *steps: Step) -> str:
        """Return the path as it is written in expressions, such as ``#n0.#n1[2]``."""
        text = ""
        for step in steps:
            name = step if isinstance(step, int) else self._names.setdefault(step, f"#n{len(self._names)}")
            text += f"[{name}]" if isinstance(name, int) else f".{name}"
        return text.removeprefix(".")

    def value(self, wire: Wire) -> str:
        return self._values.setdefault(repr(wire), (f":v{len(self._values)}", wire))[0]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a request that explain the placeholders, none if there are none."""
        names = {short: name for name, short in self._names.items()}
        values = dict(self._values.values())
        arguments = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
        return {name: each for name, each in arguments.items() if each}


class Condition(ABC):
    """A condition that an item has to meet. Combine conditions with ``&``, ``|`` and ``~``."""

    parts: Sequence[Condition] = ()

    def __and__(self, other: Condition) -> Condition:
        return Junction("AND", self, other)

    def __or__(self, other: Condition) -> Condition:
        return Junction("OR", self, other)

    def __invert__(self) -> Condition:
        return Negation(self)

    def __bool__(self) -> bool:
        raise InvalidCondition("a condition is neither true nor false: combine conditions with & | ~, not and, or, not")

    @abstractmethod
    def render(self, placeholders: Placeholders) -> str:
        """Return the condition as an expression. Raises ``InvalidCondition``, ``InvalidValue``."""

    def columns(self) -> Iterator[Comparable[Any]]:
        """Yield the columns, and the places inside columns, that it tests."""
        for part in self.parts:
            yield from part.columns()


class Junction(Condition):
    """``AND`` or ``OR``, of any number of conditions."""

    def __init__(self, word: str, *parts: Condition) -> None:
        self.word = word
        for part in parts:
            if not isinstance(part, Condition):
                raise InvalidCondition(f"{part!r} is not a condition: compare a column of a class")
            self.parts = [*self.parts, *(part.parts if isinstance(part, Junction) and part.word == word else [part])]

    def __repr__(self) -> str:
        return f"({f' {self.word} '.join(map(repr, self.parts))})"

    def render(self, placeholders: Placeholders) -> str:
        return f"({f' {self.word} '.join(part.render(placeholders) for part in self.parts)})"


class Negation(Condition):
    def __init__(self, part: Condition) -> None:
        self.parts = [part]

    def __repr__(self) -> str:
        return f"(NOT {self.parts[0]!r})"

    def render(self, placeholders: Placeholders) -> str:
        return f"(NOT {self.parts[0].render(placeholders)})"


_FORMS = {"between": "({} BETWEEN {} AND {})", "begins_with": "(begins_with({}, {}))", "contains": "(contains({}, {}))"}

_ORDERED = ({"S", "N", "B"}, "compares text, numbers and bytes")
_KINDS = {
    **dict.fromkeys(("<", "<=", ">", ">=", "between"), _ORDERED),
    "begins_with": ({"S", "B"}, "applies to text and bytes"),
    "contains": ({"S", "B", "SS", "NS", "BS", "L"}, "applies to text, bytes, sets and lists"),
}
"""The DynamoDB types that an operator accepts, if not all (AWS, "Comparison operator reference")."""


class Test(Condition):
    """One comparison of a column with values, or with other columns. ``operator``: written as in an expression."""

    __test__ = False  # not a pytest test

    def __init__(self, operator: str, column: Comparable[Any], *values: Any) -> None:
        kinds, said = _KINDS.get(operator, (None, ""))
        if kinds is not None and column.type.kind is not None and column.type.kind not in kinds:
            raise InvalidCondition(f"{column!r}: {operator} {said}, not {column.type.kind}")
        self.operator = operator
        self.column = column
        self.values = values

    def __repr__(self) -> str:
        return f"({self.column!r} {self.operator} {', '.join(map(repr, self.values))})"

    def render(self, placeholders: Placeholders) -> str:
        # Before any placeholder is taken: DynamoDB refuses one that is not used.
        kind = self.column.type
        kind = kind.element or kind if self.operator == "contains" else kind
        wires = [v if v is None or isinstance(v, Comparable) else self.column.dumped(v, kind) for v in self.values]
        if any(wire is None for wire in wires):
            if self.operator in ("=", "<>") and len(wires) == 1:
                function = "attribute_not_exists" if self.operator == "=" else "attribute_exists"
                return f"({function}({placeholders.path(*self.column.path)}))"
            raise InvalidCondition(
                f"{self.column!r} {self.operator}: a value is None, or stored as no attribute, which DynamoDB cannot "
                "compare: use == None or is_(None)"
            )
        name = placeholders.path(*self.column.path)
        operands = [
            placeholders.path(*wire.path) if isinstance(wire, Comparable) else placeholders.value(wire)
            for wire in wires
            if wire is not None
        ]
        if self.operator == "IN":
            return f"({name} IN ({', '.join(operands)}))"
        return _FORMS.get(self.operator, f"({{}} {self.operator} {{}})").format(name, *operands)

    def columns(self) -> Iterator[Comparable[Any]]:
        yield from (each for each in (self.column, *self.values) if isinstance(each, Comparable))


class Comparable(Generic[T]):
    """A column, or a place inside one, that conditions can test."""

    def __init__(self, path: tuple[Step, ...], kind: AttributeType, label: str) -> None:
        self.path = path
        self.type = kind
        self.label = label

    def __repr__(self) -> str:
        return self.label

    def dumped(self, value: Any, kind: AttributeType) -> Wire | None:
        """Return a value in DynamoDB's form. Raises ``InvalidValue``, naming the column (I8)."""
        try:
            return kind.dump(value)
        except UNFIT as error:
            raise InvalidValue(f"{self.label}: {error}") from error

    __hash__ = object.__hash__

    def __eq__(self, other: T | Comparable[T] | None) -> Condition:  # type: ignore[override]
        return Test("=", self, other)

    def __ne__(self, other: T | Comparable[T] | None) -> Condition:  # type: ignore[override]
        return Test("<>", self, other)

    def __lt__(self, other: T | Comparable[T]) -> Condition:
        return Test("<", self, other)

    def __le__(self, other: T | Comparable[T]) -> Condition:
        return Test("<=", self, other)

    def __gt__(self, other: T | Comparable[T]) -> Condition:
        return Test(">", self, other)

    def __ge__(self, other: T | Comparable[T]) -> Condition:
        return Test(">=", self, other)

    def between(self, lower: T | Comparable[T], upper: T | Comparable[T]) -> Condition:
        """From ``lower`` to ``upper``, both included."""
        return Test("between", self, lower, upper)

    def begins_with(self, prefix: T | Comparable[T]) -> Condition:
        """Text, or bytes, that begin with ``prefix``."""
        return Test("begins_with", self, prefix)

    def contains(self, value: Any) -> Condition:
        """A set or a list with the element ``value``, or text with this part."""
        return Test("contains", self, value)

    def in_(self, values: Iterable[T]) -> Condition:
        """One of ``values``, at most 100."""
        values = list(values)
        if not 1 <= len(values) <= 100:
            raise InvalidCondition(f"{self!r}.in_() takes 1 to 100 values, not {len(values)}")
        return Test("IN", self, *values)

    def is_(self, value: T | None) -> Condition:
        """The same as ``==``; None means that the item has no such attribute."""
        return Test("=", self, value)

    def is_not(self, value: T | None) -> Condition:
        """The same as ``!=``; None means that the item has such an attribute."""
        return Test("<>", self, value)

    def __getitem__(self, step: Step) -> Comparable[Any]:
        """Return the place of an element of a list, or of an entry of a map."""
        kind = self.type
        fits = {int: ("L", None), str: ("M", None)}.get(type(step), ())
        if kind.kind not in fits or (isinstance(step, int) and step < 0):
            raise InvalidCondition(f"{self!r} has no [{step!r}]: a list takes a number from 0, a map a name")
        if kind.fields is not None and step not in kind.fields:
            raise InvalidCondition(f"{self!r} has no [{step!r}]: it has {', '.join(kind.fields)}")
        inner = kind.fields[str(step)] if kind.fields is not None else kind.element
        return Comparable((*self.path, step), inner or ANY, f"{self.label}[{step!r}]")

    def __iter__(self) -> Any:
        raise TypeError(f"{self!r} is a column, not a value: it cannot be iterated")
