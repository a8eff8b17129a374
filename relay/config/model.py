"""The base of every mapping in the config, and parts of its JSON schema: JavaScript's patterns, and descriptions."""

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from relay.config.hidden import HIDDEN, is_secret, redacted

SETTINGS: dict[str, Any] = {"additionalProperties": {"type": ["string", "number", "boolean"]}}
"""The pattern of another program's settings."""

VARIABLE: dict[str, Any] = {"type": "string", "pattern": r"\$\{"}
"""A text with a variable, where the value itself is not text."""

TEMPLATE = r"(?:[^{}]|\{[^{}]+\}|\{\{|\}\})+"
"""The pattern of ``relay.config.template.Template``."""

TIME = r"\d{4}-?[\dW].*"
"""Roughly the pattern of ISO times."""


def form(pattern: str) -> str:
    """Return a regular expression for texts with this pattern, or with a variable, which may hold anything."""
    return rf"^(?:{pattern})$|\$\{{"


def texts(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": form(pattern)}


def like(pattern: str) -> WithJsonSchema:
    return WithJsonSchema(texts(pattern))


@dataclass(frozen=True)
class TextForm:
    """Annotates texts with a pattern, and refuses others. ``problem``: the error, with `{}` for the text."""

    pattern: str
    problem: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": form(self.pattern)}

    def _checked(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise ValueError(self.problem.format(repr(value)))
        return value


def only(key: str, inside: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: inside}, "required": [key], "additionalProperties": False}


class ConfigModel(BaseModel):
    """A mapping in the config: it refuses unknown keys and wrong types, and its ``repr`` shows no secrets."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe each key by its docstring. Pydantic would read the sources at each start, which takes 40 ms."""
        made = handler(schema)
        keys = handler.resolve_ref_schema(made)["properties"]
        for name, text in attribute_docs(cls).items():
            if name in cls.model_fields:
                keys[cls.model_fields[name].alias or name].setdefault("description", text)
        return made

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Hide passwords, also in logs and tracebacks."""
        for name, value in super().__repr_args__():
            yield name, redacted(value) if value is None or not is_secret(name or "") else HIDDEN


class WithVariables(GenerateJsonSchema):
    """Also accepts a variable where a number, a boolean or one of several words is expected."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return {"anyOf": [super().int_schema(schema), VARIABLE]}

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return {"anyOf": [super().bool_schema(schema), VARIABLE]}

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        found = super().literal_schema(schema)
        # A literal with one word is a source's type, which decides how the rest is read.
        return {"anyOf": [found, VARIABLE]} if "enum" in found else found


def attribute_docs(kind: type) -> dict[str, str]:
    """Return the docstring below each attribute of a class, even if inherited; {} if its source is unavailable."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        names = inspect.get_annotations(each)
        if names:
            docs = _docs_in(each)
            found = {name: text for name, text in found.items() if name not in names} | docs
    return found


@functools.cache
def _docs_in(kind: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # a class without a file
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for attribute, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name):
            match text:
                case ast.Expr(value=ast.Constant(value=str(doc))):
                    found[attribute.target.id] = inspect.cleandoc(doc)
    return found
