"""Columns whose values are not published, and what replaces them: a contract, since consumers may join by it."""

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from relay.config.errors import mapping
from relay.config.model import only

MASK = "***"
"""The text that replaces each value of a masked column."""

NOT_SHOWN = "its value cannot be carried exactly; neither is shown, because the table has protected columns"
"""The text that messages show in place of a value and of the reason why it cannot be carried."""

_FORMS = "use `exclude`, `mask`, `{hash: {salt: ...}}`, or `{absent: ...}` around one of these"


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """How a column is published. ``kind``: not at all, as `MASK`, or as a hash made with ``salt``."""

    kind: Literal["exclude", "mask", "hash"]
    salt: str = field(default="", repr=False)
    may_be_absent: bool = False  # the column may be missing now, and exist only in earlier or later rows

    @property
    def hashed(self) -> Callable[[bytes], str]:
        """Returns the text that replaces a value: its HMAC-SHA-256 as 64 lower-case hexadecimal digits."""
        salt = self.salt.encode()
        return lambda value: hmac.digest(salt, value, "sha256").hex()

    def as_in_file(self) -> Any:
        rule = {"hash": {"salt": self.salt}} if self.kind == "hash" else self.kind
        return {"absent": rule} if self.may_be_absent else rule


ColumnRules = Mapping[str, ColumnRule]
"""The rules of one table, by column."""

IN_KEY = "it is part of the key, which identifies the row and is published with each change: remove this rule"
"""Why a key column cannot have a rule."""


def in_key(key: Iterable[str], rules: ColumnRules) -> str | None:
    """Return a column of a key that has a rule, or None if none has."""
    return next((column for column in key if column in rules), None)


def _rule(given: Any) -> ColumnRule:
    """Parse one rule. The message of ``ValueError`` does not quote it, because it may contain a salt."""
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
        raise ValueError("`hash` needs only a `salt`: {hash: {salt: ...}}")
    salt = options["salt"]
    if not isinstance(salt, str) or not salt:
        raise ValueError("the salt must be non-empty text, best given as `${NAME}`")
    return ColumnRule("hash", salt)


_PLAIN_RULE = {"anyOf": [{"enum": ["exclude", "mask"]}, only("hash", only("salt", {"type": "string", "minLength": 1}))]}
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
