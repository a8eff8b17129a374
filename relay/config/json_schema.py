"""The JSON schema of configs, for editors: what ``relay check --schema`` prints."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from relay.config.config import Config
from relay.config.model import VARIABLE


def json_schema() -> dict[str, Any]:
    return {"$schema": GenerateJsonSchema.schema_dialect, **Config.model_json_schema(schema_generator=_WithVariables)}


class _WithVariables(GenerateJsonSchema):
    """Also accepts a variable where a number, a boolean or one of several words is expected."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _or_variable(super().int_schema(schema))

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return _or_variable(super().bool_schema(schema))

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        found = super().literal_schema(schema)
        # A literal with one word is a source's type, which decides how the rest is read.
        return _or_variable(found) if "enum" in found else found


def _or_variable(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"anyOf": [schema, VARIABLE]}
