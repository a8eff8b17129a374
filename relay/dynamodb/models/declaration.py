"""``Model``: a class declares a table with its columns and indexes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

from relay.config.template import Template
from relay.dynamodb.models import tracking
from relay.dynamodb.models.attribute import NO_DEFAULT, Attribute, Role, column
from relay.dynamodb.models.errors import InvalidModel, InvalidValue
from relay.dynamodb.models.indexes import NAME, NAME_IS, Index
from relay.dynamodb.models.tables import differences
from relay.dynamodb.models.types import Wire
from relay.dynamodb.values import key_attribute
from relay.types.columns import REST

ViewType = Literal["NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY"]


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """The declarations of a class. ``columns``, ``indexes``: by Python name. ``names``: all columns."""

    model: type[Model]
    table: str
    columns: Mapping[str, Attribute[Any]]
    names: frozenset[str]
    indexes: Mapping[str, Index]
    key: tuple[Attribute[Any], ...]
    """Hash first."""
    stream: ViewType | None
    ttl: Attribute[Any] | None
    cache_keys: tuple[str, ...]

    def key_names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.key)

    def key_of(self, of: Model) -> dict[str, Wire]:
        """Return the key of an object. Raises ``InvalidValue``, naming the column without a value."""
        key: dict[str, Wire] = {}
        for each in self.key:
            wire = each.wire(of)
            if wire is None:
                raise InvalidValue(f"{each.label} has no value, but is part of the key")
            key[each.attribute] = wire
        return key

    def fill(self, of: Any, item: Mapping[str, Wire], names: frozenset[str]) -> None:
        """Set the columns ``names`` of an object from its item; all others stay. Raises ``InvalidValue``."""
        values: dict[str, Any] = {}
        seen: dict[str, Wire | None] = {}
        for name, each in self.columns.items():
            if name in names:
                wire = seen[each.attribute] = item.get(each.attribute)
                if wire is not None:
                    values[name] = each.loaded(wire)
                elif each.type.empty is not None and not each.optional:
                    values[name] = each.type.empty()
        given = vars(of)
        given.update(values)
        for name in names - values.keys():
            given.pop(name, None)
        tracking.note(of, seen, names, tracking.NONE if names is self.names else self.names - names)

    def made(self, item: Mapping[str, Wire], names: frozenset[str]) -> Any:
        """Return a new object for an item whose columns ``names`` were read."""
        made = object.__new__(self.model)
        tracking.know(made, tracking.NONE)
        self.fill(made, item, names)
        return made


class Model(tracking.Tracked):
    """A table. Its annotations are columns; ``relay/dynamodb/models/README.md`` shows how.

    ``table``: the table's name, by default the name of the class. ``stream``: the view type of its stream, if it needs
    one. ``ttl``: the column with the time to live. ``cache_keys``: templates over attribute names, as ``cache.keys`` of
    a relay's config has them. ``abstract``: the class is only a base of others, which inherit all but the table's name.

    Raises ``InvalidModel`` where the class is created. An object is created from any columns' values by name.
    """

    __declaration__: ClassVar[Declaration | None] = None
    __given__: ClassVar[Mapping[str, Any]] = {}
    # The columns and indexes that the class itself declares, as written: subclasses make their own from them.
    __own__: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(
        cls,
        *,
        table: str | None = None,
        stream: ViewType | None = None,
        ttl: str | None = None,
        cache_keys: Iterable[str] | None = None,
        abstract: bool = False,
        **more: Any,
    ) -> None:
        super().__init_subclass__(**more)
        options = {"stream": stream, "ttl": ttl, "cache_keys": None if cache_keys is None else tuple(cache_keys)}
        cls.__given__ = {name: value for name, value in options.items() if value is not None}
        cls.__declaration__ = None
        columns, indexes = _members(cls)
        key = _key(cls.__name__, columns)
        for name, each in columns.items():
            setattr(cls, name, each)
        if cls.__hash__ is None:
            raise InvalidModel(f"{cls.__name__} is unhashable, since it has __eq__: define __hash__, too")
        if not abstract:
            bases = [vars(base).get("__given__", {}) for base in reversed(cls.__mro__)]
            given = {name: value for each in bases for name, value in each.items()}
            cls.__declaration__ = _declared(cls, table or cls.__name__, columns, key, indexes, given)

    def __init__(self, **values: Any) -> None:
        columns = declaration_of(type(self)).columns
        for name in values:
            if name not in columns:
                raise TypeError(f"{type(self).__name__} has no column {name!r}: it has {', '.join(columns)}")
        for name, each in columns.items():
            if each.default is not NO_DEFAULT and name not in values:
                values[name] = each.default() if callable(each.default) else each.default
        vars(self).update(values)
        tracking.know(self, tracking.columns(tracking.NONE, *values))

    def __repr__(self) -> str:
        values = {name: vars(self)[name] for name in declaration_of(type(self)).columns if name in vars(self)}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @classmethod
    def __columns__(cls) -> dict[str, str]:
        """Return the column types for ``columns:`` of a relay's source whose ``model`` is this class."""
        return columns_of(cls)

    @classmethod
    def __differences__(cls, table: Mapping[str, Any], ttl: str | None) -> list[str]:
        """Return the messages of ``relay check`` about a table."""
        return list(differences(declaration_of(cls), table, ttl))

    @classmethod
    def __from_image__(cls, image: Mapping[str, Any], *, is_key: bool) -> Self:
        """Return an object for an image, or a key, of a stream record."""
        declared = declaration_of(cls)
        made: Self = declared.made(image, declared.key_names() if is_key else declared.names)
        return made


def declaration_of(model: type[Model]) -> Declaration:
    """Return the declaration of a class. Raises ``InvalidModel`` for an abstract class."""
    if not _is_model(model) or model.__declaration__ is None:
        raise _undeclared(model)
    return model.__declaration__


def declarations_below(models: Iterable[type[Model]]) -> list[Declaration]:
    """Return the declarations of classes and their subclasses, except abstract ones. Raises ``InvalidModel``."""
    found = list(models)
    for model in found:
        if not _is_model(model):
            raise _undeclared(model)
        found += model.__subclasses__()
    return [each.__declaration__ for each in dict.fromkeys(found) if each.__declaration__ is not None]


def _is_model(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, Model)


def _undeclared(model: Any) -> InvalidModel:
    name = getattr(model, "__name__", repr(model))
    return InvalidModel(f"{name} declares no table: use a class that extends Model and is not abstract")


def _members(cls: type[Model]) -> tuple[dict[str, Attribute[Any]], dict[str, Index]]:
    """Return all columns and indexes of a class, first the inherited ones, each as a new object."""
    owner = cls.__name__
    columns: dict[str, tuple[Attribute[Any], Any]] = {}
    indexes: dict[str, Index] = {}
    for base in reversed(cls.__mro__):
        annotations = _annotations(owner, base)
        own = vars(cls) if base is cls else vars(base).get("__own__", vars(base))
        for name, value in {**dict.fromkeys(annotations), **own}.items():
            is_index, is_column = isinstance(value, Index), name in annotations
            if (name in columns and not is_column) or (name in indexes and not is_index):
                kind = "a column" if name in columns else "an index"
                raise InvalidModel(f"{owner}.{name} hides {kind} that {owner} inherits: give it another name")
            if is_index:
                indexes[name] = copy.copy(value)
            elif is_column:
                columns[name] = _column(owner, name, value if name in own else column()), annotations[name]
            elif isinstance(value, Attribute):
                raise InvalidModel(f"{owner}.{name} needs an annotation with the type of its values")
    cls.__own__ = {name: each for name, each in vars(cls).items() if isinstance(each, (Attribute, Index))}
    for name, (each, annotation) in columns.items():
        each.bind(owner, name, annotation)
    return {name: each for name, (each, _) in columns.items()}, indexes


def _annotations(owner: str, base: type[Any]) -> dict[str, Any]:
    """Return the column types that a class declares; for a class that is not a table, only Attributes."""
    is_table = issubclass(base, Model)
    try:
        if not is_table and "Attribute" not in str(inspect.get_annotations(base)):
            return {}  # names used in other annotations need not be known here
        found = inspect.get_annotations(base, eval_str=True)
    except NameError as error:
        raise InvalidModel(f"{owner}: {error} in an annotation: define it in the module, before the class") from error
    types = {}
    for name, annotation in found.items():
        origin: Any = get_origin(annotation)
        if origin is Attribute:
            types[name] = get_args(annotation)[0]
        elif is_table and origin is not ClassVar and annotation is not ClassVar:
            types[name] = annotation
    return types


def _column(owner: str, name: str, value: Any) -> Attribute[Any]:
    """Return a new column for the value assigned to an annotated name."""
    if not isinstance(value, Attribute):
        raise InvalidModel(f"{owner}.{name} has a value: use column(default=...), or annotate it as a ClassVar")
    if hasattr(Model, name):
        raise InvalidModel(f"{owner}.{name}: a column cannot have this name: use column({name!r}) under another name")
    return copy.copy(value)


def _key(owner: str, columns: Mapping[str, Attribute[Any]]) -> tuple[Attribute[Any], ...]:
    """Return the columns of the key, hash first. Raises ``InvalidModel`` where two columns are the same."""
    roles: dict[str, Attribute[Any]] = {}
    attributes: dict[str, Attribute[Any]] = {}
    for each in columns.values():
        if each.role and (other := roles.setdefault(each.role, each)) is not each:
            both = f"{other.name} and {each.name}"
            raise InvalidModel(f"{owner} has two {each.role} keys, {both}; a table can have only one")
        if (other := attributes.setdefault(each.attribute, each)) is not each:
            raise InvalidModel(f"{each.label} and {other.label} are both the attribute {each.attribute!r}")
    return tuple([roles[role] for role in get_args(Role) if role in roles])


def _declared(
    cls: type[Model],
    table: str,
    columns: dict[str, Attribute[Any]],
    key: tuple[Attribute[Any], ...],
    indexes: dict[str, Index],
    given: Mapping[str, Any],
) -> Declaration:
    owner = cls.__name__
    if not NAME.fullmatch(table):
        raise InvalidModel(f"{owner}: a table name must consist of {NAME_IS}; {table!r} does not")
    if not key or key[0].role != "hash":
        raise InvalidModel(f"{owner} has no hash key: declare one with hash_key(), or set abstract=True")
    named: set[str] = set()
    for name, index in indexes.items():
        index.bind(owner, name, columns, [each.name for each in key])
        setattr(cls, name, index)
        if index.name in named:
            raise InvalidModel(f"{index.label}: there are two indexes named {index.name!r} in the table")
        named.add(index.name)
    stream = given.get("stream")
    if stream not in (None, *get_args(ViewType)):
        raise InvalidModel(f"{owner}: stream={stream!r} is not a view type: use one of {', '.join(get_args(ViewType))}")
    for template in given.get("cache_keys", ()):
        _check_cache_key(owner, template, {each.attribute: each for each in columns.values()})
    ttl = _ttl(owner, given.get("ttl"), columns)
    names = frozenset(columns)
    return Declaration(cls, table, columns, names, indexes, key, stream, ttl, given.get("cache_keys", ()))


def _ttl(owner: str, name: str | None, columns: Mapping[str, Attribute[Any]]) -> Attribute[Any] | None:
    if name is None:
        return None
    if name not in columns:
        raise InvalidModel(f"{owner}: ttl={name!r} is not a column: its columns are {', '.join(columns)}")
    if columns[name].type.kind != "N":
        raise InvalidModel(f"{columns[name].label}: a time to live must be a number of seconds: annotate it as Seconds")
    return columns[name]


def _check_cache_key(owner: str, text: str, columns: Mapping[str, Attribute[Any]]) -> None:
    try:
        wanted = Template.parse(text).columns
    except ValueError as error:
        raise InvalidModel(f"{owner}: cache key: {error}") from error
    for name in wanted:
        if name not in columns:
            unknown = f"names {name!r}, which is not the attribute of any column"
            raise InvalidModel(f"{owner}: the cache key {text!r} {unknown}")
        if columns[name].type.kind not in ("S", "N", "B", "BOOL"):
            raise InvalidModel(f"{columns[name].label} cannot be in the cache key {text!r}: it is not a single value")


def columns_of(model: type[Model]) -> dict[str, str]:
    """Return ``columns:`` for a relay's source as one would write it for this class: types by attribute name."""
    return {each.attribute: each.declared for each in declaration_of(model).columns.values() if each.attribute != REST}


def item_key(model: type[Model], template: str) -> Callable[[str], dict[str, Wire]]:
    """Return a function that turns a cache key into the key of an item, for a ``DynamoDBLoader``::

        loader = DynamoDBLoader(client, engine.table_name(Order), item_key(Order, "order:{customer}:{number}"))
        cache.get_or_load("order:ada:1", loader.load)

    ``template``: one of the class' ``cache_keys``, over the attributes of its key and nothing else; otherwise
    ``InvalidModel``. The function raises ValueError for a text that is not the cache key of exactly one item.
    """
    declared = declaration_of(model)
    owner = model.__name__
    parsed = Template.parse(template)
    columns = {each.attribute: each for each in declared.key}
    if template not in declared.cache_keys or set(parsed.columns) != columns.keys():
        raise InvalidModel(
            f"{owner}: {template!r} must be one of its cache_keys, and use exactly the attributes of its key: "
            f"{', '.join(columns)}"
        )

    def read(text: str) -> dict[str, Wire]:
        found: list[dict[str, Wire]] = []
        for texts in parsed.matches(text):
            with suppress(ValueError):
                found.append({name: key_attribute(str(each.type.kind), texts[name]) for name, each in columns.items()})
        if len(found) != 1:
            items = f"more than one {owner}" if found else f"any {owner}"
            raise ValueError(f"{text!r} is {'' if found else 'not '}the cache key {template} of {items}")
        return found[0]

    return read
