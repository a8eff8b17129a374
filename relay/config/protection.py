"""Columns whose values are not published: which ones, and what is published in their place.

The keys are a contract with users, and so are the texts: a consumer may join by them.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from relay.config.errors import mapping
from relay.config.schema_forms import only

MASK = "***"
"""The text that is published in place of each value of a masked column."""

NOT_SHOWN = "its value cannot be carried exactly, and is not shown because the table has protected columns"
"""What messages say in place of a value and of why it cannot be carried."""

_FORMS = "use `exclude`, `mask`, `{hash: {salt: ...}}`, or `{absent: ...}` around one of these"


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What is published in place of a column. ``kind``: nothing, `MASK`, or a hash made with ``salt``.

    ``may_be_absent``: the table may not have the column now, only in earlier or later rows.
    """

    kind: Literal["exclude", "mask", "hash"]
    salt: str = field(default="", repr=False)
    may_be_absent: bool = False

    @property
    def hashed(self) -> Callable[[bytes], str]:
        """What makes the text in place of a value: HMAC-SHA-256 in 64 lower-case hexadecimal digits."""
        return partial(_hashed, self.salt.encode())

    def as_in_file(self) -> Any:
        rule = {"hash": {"salt": self.salt}} if self.kind == "hash" else self.kind
        return {"absent": rule} if self.may_be_absent else rule


def _hashed(salt: bytes, value: bytes) -> str:
    return hmac.digest(salt, value, "sha256").hex()


ColumnRules = Mapping[str, ColumnRule]
"""The rules of one table, by column."""

IN_KEY = "it is part of the key, which identifies the row and is published with each change: remove this rule"
"""Why a column can have no rule."""


def in_key(key: Iterable[str], rules: ColumnRules) -> str | None:
    """Return a column of a key that has a rule, or None if none has."""
    return next((column for column in key if column in rules), None)


def _rule(given: Any) -> ColumnRule:
    """Parse one rule. The messages of ``ValueError`` do not quote it: it may have a salt."""
    if isinstance(given, ColumnRule):
        return given
    if given == "exclude" or given == "mask":
        return ColumnRule(given)
    if isinstance(given, dict) and set(given) == {"absent"}:
        return replace(_rule(given["absent"]), may_be_absent=True)
    if not isinstance(given, dict) or set(given) != {"hash"}:
        raise ValueError(f"is not a rule: {_FORMS}")
    options = given["hash"]
    if not isinstance(options, dict) or set(options) != {"salt"}:
        raise ValueError("`hash` needs a `salt`, and nothing else: {hash: {salt: ...}}")
    salt = options["salt"]
    if not isinstance(salt, str) or not salt:
        raise ValueError("the salt must be text that is not empty, best given as `${NAME}`")
    return ColumnRule("hash", salt)


_SALT = {"type": "string", "minLength": 1}
_PLAIN_RULE = {"anyOf": [{"enum": ["exclude", "mask"]}, only("hash", only("salt", _SALT))]}
_Rule = Annotated[
    ColumnRule,
    PlainValidator(_rule),
    PlainSerializer(ColumnRule.as_in_file, when_used="json"),
    WithJsonSchema({"anyOf": [*_PLAIN_RULE["anyOf"], only("absent", _PLAIN_RULE)]}),
]
_Rules = Annotated[
    dict[str, _Rule],
    mapping(f"{{column: rule}}; for a rule {_FORMS}", at_least=1),
    Field(json_schema_extra={"minProperties": 1}),
]
Protect = Annotated[dict[str, _Rules], mapping(f"{{table: {{column: rule}}}}; for a rule {_FORMS}")]
"""The rules of a source's tables, by table and column."""
