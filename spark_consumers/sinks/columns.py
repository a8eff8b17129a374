"""Which columns of a copy hold the columns of the source, and how they follow them. A plain rule, without Spark.

The columns of a table may change at the source. A new one is added, and one that becomes wider is widened. One that is
dropped stays. One whose type changes in a different way continues in a separate column beside the earlier one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from relay.types.columns import TYPES, ColumnKind, column_type, decimal
from spark_consumers.records import Layout, RecordField
from spark_consumers.sinks.faults import TableFault

ITEM = "item"
"""The column of the items of a DynamoDB table without declared columns, as JSON."""

UNFIT = "_relay_unfit"
"""The column of the values that the target cannot store in their own, as JSON."""

NUMBER = "N"
"""The kind of a DynamoDB number in a key. All other kinds are column types."""

AS_TEXT = " as text"
"""Ends the kind of a date or time in a key, which is a text: rows may differ in what no type for times holds."""

_ENDS = (*dict.fromkeys(each.family for each in TYPES), "variant", "jsonb", "date", "datetime", "time")


@dataclass(frozen=True, slots=True)
class CopiedColumn:
    """A column of a copy. ``layouts``: their numbers by the image's column that it holds; None is all of the image."""

    name: str
    kind: str
    layouts: Mapping[str | None, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """Where the columns of some layouts go, and how the table has to change before: kinds by the names of columns."""

    keys: tuple[CopiedColumn, ...]
    row: tuple[CopiedColumn, ...]
    added: Mapping[str, str] = field(default_factory=dict)
    widened: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Naming:
    """How a target treats names and kinds.

    ``reserved``: the names that no column may have, each by ``same``. ``shown``: a name as it stores it. ``same``:
    what two names have in common that it cannot tell apart. ``kind``: the kind that holds the values of a kind.
    ``digits``: how many its widest decimal has. ``times``: the types of dates and times in SQL that it has.
    ``widens``: whether it gives a column of a kind that wider one; otherwise the values continue in a column beside it.
    """

    reserved: frozenset[str]
    shown: Callable[[str], str]
    same: Callable[[str], str]
    kind: Callable[[str], str]
    digits: int
    times: Collection[str]
    widens: Callable[[str, str], bool] = lambda stored, wider: True


def plan(
    what: str, stored: Mapping[str, str], key: Sequence[str] | None, layouts: Mapping[int, Layout], naming: Naming
) -> ColumnPlan:
    """Plan the columns of a table for the changes of ``layouts``, by number.

    ``stored``: the kinds of the columns that the table has, by name, empty if there is no table. ``key``: the columns
    of its key, in their order; None if there is no table, or if its key is not known. ``what``: names the table in
    errors. Raises ``TableFault`` if the target cannot hold the columns, or if the changes have a different key.
    """
    return _Planning(what, stored, key, naming).plan(layouts)


def held_in(found: ColumnPlan, stored: Collection[str]) -> dict[str | None, list[str]]:
    """Return, by column of the source in the layout 0, the ``stored`` columns that hold it: the first that is not null.

    A row that was written before the type of a column changed has its value in a different one.
    """
    present = {column.name: source for column in found.row for source in column.layouts}
    places = {}
    for name, source in present.items():
        base, _, end = name.rpartition("__")
        base = base if end in _ENDS else name
        earlier = [base, *(f"{base}__{end}" for end in _ENDS)]
        names = [name, *(other for other in earlier if other not in present)]
        places[source] = [each for each in names if each in stored]
    return places


def merged(stored: str, wanted: str, digits: int) -> str | None:
    """Return the narrowest kind that holds both kinds' values exactly, or None. ``digits``: a decimal's limit."""
    if stored == wanted:
        return stored
    if {stored, wanted} <= {ColumnKind.INT, ColumnKind.FLOAT, ColumnKind.DOUBLE}:
        return ColumnKind.DOUBLE
    if not _family(stored) == _family(wanted) == "number":
        return None
    if {stored, wanted} == {ColumnKind.INT, ColumnKind.LONG}:
        return ColumnKind.LONG
    one, other = column_type(stored), column_type(wanted)
    whole, scale = max(one.whole, other.whole), max(one.scale, other.scale)
    return str(decimal(whole + scale, scale)) if whole + scale <= digits else None


def _family(kind: str) -> str:
    try:
        return column_type(kind).family
    except ValueError:
        return kind  # NUMBER, or the type of a column that the copy did not create


_ANEW = "drop this table of the copy and refill it with `relay snapshot CONFIG SOURCE TABLE`"


class _Planning:
    def __init__(self, what: str, stored: Mapping[str, str], key: Sequence[str] | None, naming: Naming) -> None:
        self.what = what
        self.kinds = dict(stored)
        self.key = None if key is None else list(key)
        self.naming = naming
        self.added: dict[str, str] = {}
        self.widened: dict[str, str] = {}
        # The names that the table has, by what makes two names one; and in a layout, the columns at the source.
        self.names = {naming.same(name): name for name in stored}
        self.sources: dict[str, str] = {}

    def plan(self, layouts: Mapping[int, Layout]) -> ColumnPlan:
        rows: dict[str, dict[str | None, list[int]]] = {}
        # I12: a layout of the key only may not say what SQL calls it.
        for number, layout in sorted(layouts.items(), key=lambda each: each[1].has_key_only):
            in_key = {field.name for field in layout.key}
            self.sources = {}
            key = [self._key(layout, field) for field in layout.key]
            if self.key not in (None, key):  # I7: one row would be several, and two rows one
                raise TableFault(
                    f"{self.what}: its rows have the key {', '.join(self.key or ['missing'])}, but the changes have "
                    f"the key {', '.join(key)}: {_ANEW}"
                )
            self.key = key
            if layout.row is None:
                self._item(self.naming.kind("json"))
                rows.setdefault(ITEM, {}).setdefault(None, []).append(number)
            for column in layout.row or ():
                if column.name not in in_key:
                    rows.setdefault(self._column(layout, column), {}).setdefault(column.name, []).append(number)
        keys = self.key or []
        rows |= {name: {} for name in self.kinds if name not in keys and name not in rows}
        return ColumnPlan(
            tuple(CopiedColumn(name, self.kinds[name]) for name in keys),
            tuple(CopiedColumn(name, self.kinds[name], layouts) for name, layouts in rows.items()),
            self.added,
            self.widened,
        )

    def _key(self, layout: Layout, field: RecordField) -> str:
        name = self._named(layout, field.name, "key")
        kind = f"{field.sql}{AS_TEXT}" if field.sql in self.naming.times else self.naming.kind(field.kind)
        before = self.kinds.get(name, kind)
        if layout.has_key_only and before.endswith(AS_TEXT):
            kind = before
        # I7: equal values have one text in both, or a batch has one row under two keys.
        is_same = before == kind or _family(before) == _family(kind) == "number"
        if not is_same or not self._place(name, kind):
            raise TableFault(
                f"{self.what}: the key column {field.name} is {kind} at the source but {self.kinds[name]} in the copy, "
                f"which writes the same key differently: {_ANEW}"
            )
        return name

    def _item(self, kind: str) -> None:
        if not self._place(ITEM, kind):
            raise TableFault(
                f"{self.what}: {ITEM} is {self.kinds[ITEM]} in the copy, but `copy.items` asks for {kind}: change that "
                f"back, or {_ANEW}"
            )

    def _column(self, layout: Layout, field: RecordField) -> str:
        is_json = field.sql == "json" or field.kind == "rest"
        kind = field.sql if field.sql in self.naming.times else self.naming.kind("json" if is_json else field.kind)
        name = self._named(layout, field.name, "column")
        if self._place(name, kind):
            return name
        beside = self._claimed(self.naming.shown(f"{name}__{_family(kind)}"), field.name)
        if self._place(beside, kind):
            return beside
        raise TableFault(
            f"{self.what}: the source column {field.name} is {kind}, and its values fit neither of the copy's columns, "
            f"{name} ({self.kinds[name]}) and {beside} ({self.kinds[beside]}): {_ANEW}"
        )

    def _place(self, name: str, kind: str) -> bool:
        """Give a column a kind that holds ``kind``, too; return whether there is one."""
        if name not in self.kinds:
            self.kinds[name] = self.added[name] = kind
            return True
        wider = merged(self.kinds[name], kind, self.naming.digits)
        if wider is None:
            return False
        if wider != self.kinds[name]:
            if name not in self.added and not self.naming.widens(self.kinds[name], wider):
                return False
            self.kinds[name] = wider
            (self.added if name in self.added else self.widened)[name] = wider
        return True

    def _named(self, layout: Layout, source: str, prefix: str) -> str:
        """Return the name of a column, with a prefix if it is the name of one of ours."""
        untyped = layout.row is None or layout.rest is not None
        same = self.naming.same(source)
        taken = same in self.naming.reserved or (untyped and same == ITEM)
        return self._claimed(self.naming.shown(f"{prefix}_{source}" if taken else source), source)

    def _claimed(self, name: str, source: str) -> str:
        """Return ``name`` as the table has it. Raises ``TableFault`` if a column other than ``source`` has it."""
        same = self.naming.same(name)
        other = self.sources.setdefault(same, source)
        if other != source:  # I8
            raise TableFault(
                f"{self.what}: the columns {other} and {source} would be one column in the copy: rename one at the "
                "source"
            )
        return self.names.setdefault(same, name)
