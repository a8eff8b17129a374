"""Parts of the JSON schema of configs beyond the types of values, for editors: the patterns of texts.

Rules about several keys are checked by the validators alone. Regular expressions are JavaScript's.
"""

import re
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

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
