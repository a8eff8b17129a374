"""Tables as typed classes, for loads, searches and safe writes, streams and the relay: see the README beside this."""

from relay.extras import needs

with needs("dynamodb", "relay.dynamodb.models"):
    from relay.dynamodb.models.attribute import Attribute, column, hash_key, range_key
    from relay.dynamodb.models.conditions import Condition
    from relay.dynamodb.models.declaration import Model, columns_of, item_key
    from relay.dynamodb.models.engine import Engine
    from relay.dynamodb.models.errors import (
        ConstraintViolation,
        InvalidCondition,
        InvalidModel,
        InvalidSearch,
        InvalidValue,
        MissingObjects,
        TableMismatch,
    )
    from relay.dynamodb.models.indexes import GlobalIndex, LocalIndex
    from relay.dynamodb.models.search import Search
    from relay.dynamodb.models.types import Seconds, current_engine, stored_as

__all__ = [
    "Attribute",
    "Condition",
    "ConstraintViolation",
    "Engine",
    "GlobalIndex",
    "InvalidCondition",
    "InvalidModel",
    "InvalidSearch",
    "InvalidValue",
    "LocalIndex",
    "MissingObjects",
    "Model",
    "Search",
    "Seconds",
    "TableMismatch",
    "column",
    "columns_of",
    "current_engine",
    "hash_key",
    "item_key",
    "range_key",
    "stored_as",
]
