"""The types of columns: how values are dumped to DynamoDB's typed form and loaded, exactly or not at all (I8).

``dump`` returns None for a value that is stored as an absent attribute: an empty set.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import wraps
from inspect import signature
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from relay.dynamodb.values import canonical_number
from relay.types.columns import EPOCH
from relay.types.items import binary, one_value

if TYPE_CHECKING:
    from relay.dynamodb.models.engine import Engine

F = TypeVar("F", bound=Callable[..., Any])

Wire = dict[str, Any]
"""A DynamoDB-typed value, as in boto3's client: ``{"N": "1.5"}``, ``{"B": b"..."}``."""

UNFIT = (ArithmeticError, LookupError, TypeError, ValueError)
"""The errors that types raise for a value that they cannot dump or load, including times and numbers out of range."""

MAX_DIGITS = 38
_LEAST, _MOST = Decimal("1E-130"), Decimal("1E+126")  # AWS, "Number": magnitudes from 1E-130 to below 1E+126


@dataclass(frozen=True, slots=True)
class AttributeType:
    """How the values of a column are stored. ``kind``: DynamoDB's type; None means any.

    ``declared``: the type in ``columns:`` of a relay's source. ``element``: the type of the elements of a set, list or
    map. ``fields``: a map's declared entries. ``empty``: makes the value that is stored by omitting the attribute.
    """

    kind: str | None
    dump: Callable[[Any], Wire | None]
    load: Callable[[Mapping[str, Any]], Any]
    declared: str = "json"
    element: AttributeType | None = None
    fields: Mapping[str, AttributeType] | None = None
    empty: Callable[[], Any] | None = None


def stored_as(backing: Any, *, dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> AttributeType:
    """Return a type of your own for ``Annotated``, whose values are stored as values of the type ``backing``::

        Money = Annotated[Euro, stored_as(Decimal, dump=lambda euro: euro.amount, load=Euro)]

    ``dump`` returns a value of ``backing``, or None for no attribute. ``load`` is its inverse. What they raise refuses
    the value. ``current_engine()`` returns the engine that calls them.
    """
    inner, _ = resolve(backing)

    def dump_value(value: Any) -> Wire | None:
        backed = _refusing(dump, value)
        return None if backed is None else inner.dump(backed)

    return AttributeType(inner.kind, dump_value, lambda wire: _refusing(load, inner.load(wire)), inner.declared)


_in_use: ContextVar[Any] = ContextVar("engine", default=None)


def current_engine() -> Engine | None:
    """Return the engine whose call is now dumping or loading a value, for the functions of ``stored_as``."""
    engine: Engine | None = _in_use.get()
    return engine


def in_use(method: F) -> F:
    """Make an engine the `current_engine` while its method runs."""

    @wraps(method)
    def call(engine: Engine, *arguments: Any, **options: Any) -> Any:
        before = _in_use.set(engine)
        try:
            return method(engine, *arguments, **options)
        finally:
            _in_use.reset(before)

    return cast(F, call)


def _refusing(function: Callable[[Any], Any], value: Any) -> Any:
    try:
        return function(value)
    except Exception as error:
        raise ValueError(f"{str(value)[:100]!r} is refused: {type(error).__name__}: {error}") from error


def resolve(annotation: Any, within: tuple[type, ...] = ()) -> tuple[AttributeType, bool]:
    """Return the type of an annotation, and whether it allows None. TypeError says what cannot be a column."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        types_given = [extra for extra in arguments[1:] if isinstance(extra, AttributeType)]
        return (types_given[0], False) if types_given else resolve(arguments[0], within)
    if origin is Union or origin is types.UnionType:
        inner = [each for each in arguments if each is not types.NoneType]
        if len(inner) != 1 or len(inner) == len(arguments):
            raise TypeError(f"{annotation} is a choice of types: a column must have one type, or one type and None")
        return resolve(inner[0], within)[0], True
    if annotation is Any:
        return ANY, True
    if annotation in _SCALARS:
        return _SCALARS[annotation], False
    if origin in (set, frozenset) and len(arguments) == 1:
        return _set(arguments[0], within, origin), False
    if origin is list and len(arguments) == 1:
        return _list(_nullable(arguments[0], within)), False
    if origin is dict and len(arguments) == 2 and arguments[0] is str:
        return _map(_nullable(arguments[1], within)), False
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _record(annotation, within), False
    names = ", ".join(kind.__name__ for kind in _SCALARS)
    use = f"use {names}, set[...], list[...], dict[str, ...], a dataclass, Any, or Annotated[..., stored_as(...)]"
    raise TypeError(f"{annotation!r} is not a type of columns: {use}")


# -------------------------------------------------------------------------------------------------- scalars


def wrong(value: object, wanted: str) -> TypeError:
    return TypeError(f"{str(value)[:100]!r} ({type(value).__name__}) is not {wanted}")


def _of(kind: type[Any] | tuple[type[Any], ...], wanted: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise wrong(value, wanted)
    return value


def number(text: str) -> str:
    """Return the canonical text of a number that DynamoDB holds exactly. Raises ValueError for any other."""
    canonical = canonical_number(text)
    if len(canonical) > MAX_DIGITS:
        value = Decimal(canonical)
        digits = len(canonical.replace(".", "").strip("-0"))
        if digits > MAX_DIGITS or (value and not _LEAST <= value.copy_abs() < _MOST):  # I8
            raise ValueError(f"{text[:100]} exceeds the {MAX_DIGITS} digits, or the range, of DynamoDB's numbers")
    return canonical


def _dump_str(value: Any) -> Wire:
    if not _of(str, "a str", value).isascii():
        value.encode()  # a lone surrogate raises UnicodeEncodeError, which is a ValueError
    return {"S": value}


def _dump_int(value: Any) -> Wire:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(value, "an int")
    return {"N": number(str(value))}


def _load_int(wire: Mapping[str, Any]) -> int:
    return int(canonical_number(wire["N"]))


def _dump_decimal(value: Any) -> Wire:
    if not _of(Decimal, "a Decimal", value).is_finite():
        raise ValueError(f"{value} is not a number that DynamoDB can store")
    if value and abs(value.adjusted()) > 200:  # before it is written out
        raise ValueError(f"{value} is outside the range of DynamoDB's numbers")
    return {"N": number(f"{value:f}") if value else "0"}


def _dump_float(value: Any) -> Wire:
    if not math.isfinite(_of(float, "a float", value)):
        raise ValueError(f"{value} is not a number that DynamoDB can store")
    return {"N": number(repr(value))}


def _load_float(wire: Mapping[str, Any]) -> float:
    text = wire["N"]
    value = float(text)
    if Decimal(repr(value)) != Decimal(text):
        raise ValueError(f"{text} is not a float: declare the column as Decimal")
    return value


def _dump_bytes(value: Any) -> Wire:
    return {"B": bytes(_of((bytes, bytearray), "bytes", value))}


def _aware(value: Any) -> datetime:
    time: datetime = _of(datetime, "a datetime", value)
    if time.utcoffset() is None:
        raise ValueError(f"{time} has no time zone: use an aware datetime")
    return time


def _dump_datetime(value: Any) -> Wire:
    # Always in UTC and with six decimals, so that texts sort as times do.
    return {"S": _aware(value).astimezone(UTC).isoformat(timespec="microseconds")}


def _dump_seconds(value: Any) -> Wire:
    seconds, rest = divmod(_aware(value) - EPOCH, timedelta(seconds=1))
    if rest:
        raise ValueError(f"{value} is not a whole second: use .replace(microsecond=0)")
    return {"N": str(seconds)}


_SCALARS: dict[Any, AttributeType] = {
    str: AttributeType("S", _dump_str, itemgetter("S"), "string"),
    int: AttributeType("N", _dump_int, _load_int, "long"),
    Decimal: AttributeType("N", _dump_decimal, lambda wire: Decimal(wire["N"]), "decimal(38,10)"),
    float: AttributeType("N", _dump_float, _load_float, "double"),
    bool: AttributeType("BOOL", lambda value: {"BOOL": _of(bool, "a bool", value)}, itemgetter("BOOL"), "boolean"),
    bytes: AttributeType("B", _dump_bytes, lambda wire: binary(wire["B"]), "bytes"),
    datetime: AttributeType("S", _dump_datetime, lambda wire: _aware(datetime.fromisoformat(wire["S"])), "string"),
    UUID: AttributeType("S", lambda value: {"S": str(_of(UUID, "a UUID", value))}, lambda w: UUID(w["S"]), "string"),
}

Seconds = Annotated[
    datetime, AttributeType("N", _dump_seconds, lambda wire: EPOCH + timedelta(seconds=_load_int(wire)), "timestamp")
]
"""A time that is stored as whole seconds since the epoch, as DynamoDB's time to live wants it."""


# -------------------------------------------------------------------------------------------------- collections


def _set(annotation: Any, within: tuple[type, ...], make: type[set[Any]] | type[frozenset[Any]]) -> AttributeType:
    element, optional = resolve(annotation, within)
    if optional or element.kind not in ("S", "N", "B"):
        raise TypeError(f"{annotation!r} cannot be in a set: a set holds only text, numbers or bytes")
    kind = f"{element.kind}S"

    def dump(value: Any) -> Wire | None:
        # Different values may be stored as the same one, or be omitted.
        elements = _of((set, frozenset), "a set", value)
        wires = {wire[str(element.kind)] for each in elements if (wire := element.dump(each)) is not None}
        return {kind: sorted(wires)} if wires else None

    def load(wire: Mapping[str, Any]) -> Any:
        return make(element.load({str(element.kind): each}) for each in wire[kind])

    if element is _SCALARS[str]:
        return AttributeType(kind, dump, lambda wire: make(wire[kind]), "set", element, empty=make)
    return AttributeType(kind, dump, load, "set" if kind == "SS" else "json", element, empty=make)


def _nullable(annotation: Any, within: tuple[type, ...]) -> AttributeType:
    """Return the type of an element; None becomes DynamoDB's null."""
    inner, optional = resolve(annotation, within)
    if not optional or inner is ANY:
        return inner

    def dump(value: Any) -> Wire | None:
        return {"NULL": True} if value is None else inner.dump(value)

    def load(wire: Mapping[str, Any]) -> Any:
        return None if wire.get("NULL") else inner.load(wire)

    return dataclasses.replace(inner, dump=dump, load=load)


def _present(wire: Wire | None, place: object) -> Wire:
    if wire is None:
        absent = "would be stored as no attribute, like an empty set: it cannot be in a list or map"
        raise ValueError(f"the value at {place!r} {absent}")
    return wire


def _list(element: AttributeType) -> AttributeType:
    def dump(value: Any) -> Wire:
        return {"L": [_present(element.dump(each), at) for at, each in enumerate(_of(list, "a list", value))]}

    return AttributeType("L", dump, lambda wire: [element.load(each) for each in wire["L"]], element=element)


def _map(element: AttributeType) -> AttributeType:
    def dump(value: Any) -> Wire:
        for name in _of(dict, "a dict", value):
            if not isinstance(name, str) or not name:
                raise wrong(name, "a non-empty str, as a name in a map must be")
        return {"M": {name: _present(element.dump(each), name) for name, each in value.items()}}

    return AttributeType(
        "M", dump, lambda wire: {name: element.load(each) for name, each in wire["M"].items()}, element=element
    )


def _record(kind: type[Any], within: tuple[type, ...]) -> AttributeType:
    """Return the type of a dataclass: a map with its fields, without those that are None or an empty set."""
    if kind in within:
        raise TypeError(f"{kind.__name__} contains itself: use dict[str, Any]")
    given = [each.name for each in dataclasses.fields(kind) if each.init]
    if more := [n for n, each in signature(kind).parameters.items() if n not in given and each.default is each.empty]:
        unknown = f"{', '.join(more)}, which is not one of its fields, so it could not be loaded"
        raise TypeError(f"{kind.__name__} takes {unknown}")
    hints = get_type_hints(kind, include_extras=True)
    resolved = {name: resolve(hints[name], (*within, kind)) for name in given}
    fields = {name: found for name, (found, _) in resolved.items()}
    absent = {name: found.empty for name, (found, _) in resolved.items() if found.empty}
    absent |= {name: lambda: None for name, (_, optional) in resolved.items() if optional}

    def dump(value: Any) -> Wire:
        if type(value) is not kind:
            raise wrong(value, f"a {kind.__name__}")
        entries: dict[str, Wire] = {}
        for name, (inner, optional) in resolved.items():
            each = getattr(value, name)
            if not (each is None and optional) and (wire := inner.dump(each)) is not None:
                entries[name] = wire
        return {"M": entries}

    def load(wire: Mapping[str, Any]) -> Any:
        entries = wire["M"]
        if unknown := sorted(entries.keys() - fields.keys()):  # I8: the next save would drop them
            raise ValueError(f"{kind.__name__} declares no {', '.join(unknown)}: declare it, or use dict[str, Any]")
        values = {name: fields[name].load(each) for name, each in entries.items() if "NULL" not in each}
        values |= {name: make() for name, make in absent.items() if name not in values}
        return kind(**values)

    return AttributeType("M", dump, load, fields=fields)


# -------------------------------------------------------------------------------------------------- anything


def _dump_any(value: Any) -> Wire | None:
    if value is None:
        return {"NULL": True}
    scalar = _SCALARS.get(type(value))
    if scalar is not None and scalar.kind != "S":
        return scalar.dump(value)
    if isinstance(value, str):
        return _dump_str(value)
    if isinstance(value, (set, frozenset)):
        if not value:
            return None
        kinds = {str if isinstance(each, str) else bytes if isinstance(each, bytes) else Decimal for each in value}
        if len(kinds) == 1 and kinds <= {str, bytes}:
            return _set(kinds.pop(), (), set).dump(value)
        wires = [_dump_any(each) or {} for each in value]
        if all(wire.keys() == {"N"} for wire in wires):
            return {"NS": sorted(wire["N"] for wire in wires)}
    if isinstance(value, list):
        return _list(ANY).dump(value)
    if isinstance(value, dict):
        return _map(ANY).dump(value)
    raise wrong(value, "a DynamoDB value: text, a number, bytes, bool, None, a set of one of these, a list or a dict")


ANY = AttributeType(None, _dump_any, one_value)
"""Any value; numbers are loaded as Decimal."""
