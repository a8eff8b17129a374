"""The inputs of the golden files of the wire: values, keys, partitions, ids, by hand. See ``tests/golden.py``.

Binary is in base64 (``keyspace_id`` in hexadecimal), decimals are text, times ISO 8601 or, in the envelope,
microseconds since the epoch. Add cases at the end; to change one is to change the wire format.
"""

from __future__ import annotations

from typing import Any

TOKEN: dict[str, Any] = {
    "timestamp": 1700000000,
    "shard": "shop/2023-11-14T22:00:00.000/shardId-00000001700000000000-aaaaaaaa",
    "position": "DynamoDB/300000000000000499659",
}

# The fields that a case leaves out.
ORDINARY: dict[str, Any] = {
    "event_id": "0123456789abcdef0123456789abcdef",
    "operation": "UPDATE",
    "key": {"order_id": "o-1", "line": "7"},
    "old": None,
    "new": None,
    "images": "NEW_AND_OLD",
    "token": TOKEN,
    "committed_at": 1700000000000000,
    "relayed_at": 1700000000123456,
    "resume_timestamp": 1699999999,
    "snapshot": None,
    "transaction": None,
    "keyspace_id": None,
    "attributes": {"event_version": "1.1"},
}

ORDERS: dict[str, Any] = {"source": "shop", "table": "orders", "key": [["order_id", "S"], ["line", "N"]]}
BLOBS: dict[str, Any] = {"source": "shop", "table": "blobs", "key": [["id", "B"]]}
NAMES: dict[str, Any] = {
    "source": "1st",
    "table": "my-table.v2",
    "key": [["a-b", "S"], ["ab", "S"]],
    "row": [["1x", "string"], ["_x", "string"], ["", "string"], ["über", "string"], ["𝒳", "string"]],
}
TYPES: dict[str, Any] = {
    "source": "legacy",
    "table": "every_type",
    "key": [["id", "long"]],
    "row": [
        ["string", "string"],
        ["bytes", "bytes"],
        ["boolean", "boolean"],
        ["int", "int"],
        ["long", "long"],
        ["unsigned", "decimal(20,0)"],
        ["float", "float"],
        ["double", "double"],
        ["decimal", "decimal(38,10)"],
        ["long_decimal", "decimal(65,30)"],
        ["timestamp", "timestamp"],
        ["set", "set"],
    ],
}
DECLARED: dict[str, Any] = {
    "source": "shop",
    "table": "declared",
    "key": [["order_id", "S"]],
    "row": [["order_id", "string"], ["total", "decimal(38,10)"], ["paid", "boolean"], ["rest", "rest"]],
}

ATTRIBUTES: dict[str, Any] = {
    "source": "shop",
    "table": "attributes",
    "key": [["id", "B"], ["n", "N"]],
    "row": [
        ["id", "bytes"],
        ["n", "long"],
        ["a-b", "string"],
        ["ab", "string"],
        ["yes", "boolean"],
        ["int", "int"],
        ["double", "double"],
        ["decimal", "decimal(38,10)"],
        ["expires", "timestamp"],
        ["tags", "set"],
        ["any", "json"],
        ["rest", "rest"],
    ],
}

_EVERY_TYPE: dict[str, Any] = {
    "string": "naïve 🦉\u0000",
    "bytes": "AP8Q",
    "boolean": True,
    "int": -2147483648,
    "long": 9223372036854775807,
    "unsigned": "18446744073709551615",
    "float": 3.99,
    "double": 0.1,
    "decimal": "1234567890123456789012345678.0123456789",
    "long_decimal": "12345678901234567890123456789012345.012345678901234567890123456789",
    "timestamp": "2024-02-29T23:59:59.123456+00:00",
    "set": ["y", "x"],
}
_EDGES: dict[str, Any] = {
    "string": "",
    "bytes": "",
    "boolean": False,
    "int": 2147483647,
    "long": -9223372036854775808,
    "unsigned": "0",
    "float": -0.0,
    "double": 5e-324,
    "decimal": "-0.0000000001",
    "long_decimal": "-0.000000000000000000000000000001",
    "timestamp": "1969-12-31T23:59:59.999999+00:00",
    "set": [],
}
_EVERY_ATTRIBUTE = (
    '{"order_id":{"S":"o-1"},"line":{"N":"7"},"exact":{"N":"1.2300E+5"},"big":{"N":"12345678901234567890123456789012345678"},'
    '"raw":{"B":"AP8="},"texts":{"SS":["b","a"]},"numbers":{"NS":["2","1.0"]},"raws":{"BS":["AQ==","AA=="]},'
    '"yes":{"BOOL":true},"none":{"NULL":true},"list":{"L":[{"S":"1"},{"N":"1"},{"M":{"":{"S":""}}}]}}'
)
ITEM = '{"order_id":{"S":"o-1"},"line":{"N":"7"},"status":{"S":"new"}}'

_PROTECTED = {"ssn": "exclude", "phone": "mask", "email": "hash"}
# HMAC-SHA-256 of ada@example.org with the salt pepper.
_HASHED = "eddcbc0c0fa8cbf6d4cfd93ecdb9462505368148b51d85cd49b960068295db40"

VALUES: dict[str, dict[str, Any]] = {
    "an insert, new and old images": {"table": ORDERS, "change": {"operation": "INSERT", "new": _EVERY_ATTRIBUTE}},
    "an update, new and old images": {"table": ORDERS, "change": {"old": ITEM, "new": _EVERY_ATTRIBUTE}},
    "an update, new images": {"table": ORDERS, "change": {"new": ITEM, "images": "NEW"}},
    "an update, old images": {"table": ORDERS, "change": {"old": ITEM, "images": "OLD"}},
    "an update, keys only": {"table": ORDERS, "change": {"images": "KEYS_ONLY"}},
    "an update too big to carry": {"table": ORDERS, "change": {"images": "OMITTED"}},
    "a delete by time to live": {
        "table": ORDERS,
        "change": {
            "operation": "DELETE",
            "old": ITEM,
            "attributes": {
                "event_version": "1.1",
                "user_identity": '{"principal_id":"dynamodb.amazonaws.com","type":"Service"}',
                "ttl_delete": "true",
            },
        },
    },
    "a row of a snapshot": {
        "table": ORDERS,
        "change": {
            "operation": "READ",
            "new": ITEM,
            "images": "NEW",
            "token": None,
            "snapshot": {"id": "shop-1", "as_of": 1699999940},
            "attributes": {},
        },
    },
    "a truncate": {"table": ORDERS, "change": {"operation": "TRUNCATE", "key": None, "attributes": {}}},
    "an update in Confluent's wire format": {
        "table": ORDERS,
        "schema_id": 258,
        "change": {"old": ITEM, "new": _EVERY_ATTRIBUTE},
    },
    "a binary key": {"table": BLOBS, "change": {"key": {"id": "AAH/"}, "images": "KEYS_ONLY"}},
    "a replayed change with its origin, in a transaction": {
        "table": TYPES,
        "change": {
            "key": {"id": 1},
            "old": _EDGES,
            "new": _EVERY_TYPE,
            "token": {
                "timestamp": 1700000001,
                "shard": "legacy/commerce/-80",
                "position": "MySQL56/3e11fa47-71ca-11e1-9e33-c80aa9429562:1-57",
                "origin": {
                    "timestamp": 1700000000,
                    "shard": "legacy/commerce/0",
                    "position": "MySQL56/9a11fa47-71ca-11e1-9e33-c80aa9429562:1-12",
                },
            },
            "transaction": {"id": "MySQL56/3e11fa47-71ca-11e1-9e33-c80aa9429562:57", "order": 1, "last": True},
            "keyspace_id": "166b40b44aba4bd6",
            "attributes": {},
        },
    },
    "a typed row of nulls": {
        "table": TYPES,
        "change": {
            "operation": "DELETE",
            "key": {"id": -1},
            "old": dict.fromkeys(_EVERY_TYPE),
            "images": "NEW_AND_OLD",
        },
    },
    "names that Avro does not allow": {
        "table": NAMES,
        "change": {
            "operation": "INSERT",
            "key": {"a-b": "1", "ab": "2"},
            "new": {"1x": "a", "_x": "b", "": "c", "über": "d", "𝒳": "e"},
        },
    },
    "declared columns and the rest": {
        "table": DECLARED,
        "change": {
            "key": {"order_id": "o-1"},
            "old": {"order_id": "o-1", "total": "12.5", "paid": False, "rest": None},
            "new": {
                "order_id": "o-1",
                "total": "12.50",
                "paid": None,
                "rest": '{"paid":{"NULL":true},"n":{"N":"1.0"}}',
            },
        },
    },
    "declared columns of every type": {
        "table": ATTRIBUTES,
        "new_item": {
            "id": {"B": "AAH/"},
            "n": {"N": "7"},
            "a-b": {"S": "1"},
            "ab": {"S": ""},
            "yes": {"BOOL": True},
            "int": {"N": "-2147483648"},
            "double": {"N": "0.1"},
            "decimal": {"N": "1234567890123456789012345678.0123456789"},
            "expires": {"N": "1700000000.5"},
            "tags": {"SS": ["y", "x"]},
            "any": {"L": [{"S": "1"}, {"N": "1"}, {"M": {"": {"NS": ["1.0", "2"]}}}]},
            "rest": {"S": "an attribute like any other"},
            "exact": {"N": "9.9999999999999999999999999999999999999E+125"},
        },
        "change": {
            "operation": "INSERT",
            "key": {"id": "AAH/", "n": "7"},
            "new": {
                "id": "AAH/",
                "n": 7,
                "a-b": "1",
                "ab": "",
                "yes": True,
                "int": -2147483648,
                "double": 0.1,
                "decimal": "1234567890123456789012345678.0123456789",
                "expires": "2023-11-14T22:13:20.500000+00:00",
                "tags": ["y", "x"],
                "any": '{"L":[{"S":"1"},{"N":"1"},{"M":{"":{"NS":["1.0","2"]}}}]}',
                "rest": '{"rest":{"S":"an attribute like any other"},'
                '"exact":{"N":"9.9999999999999999999999999999999999999E+125"}}',
            },
        },
    },
    "declared columns that cannot hold what is there": {
        "table": ATTRIBUTES,
        "new_item": {
            "id": {"B": "AAH/"},
            "n": {"N": "-1.5"},
            "a-b": {"N": "1"},
            "yes": {"NULL": True},
            "int": {"N": "2147483648"},
            "double": {"N": "0.1000000000000000055511151231257827"},
            "decimal": {"N": "1E-11"},
            "expires": {"S": "2024-01-01T00:00:00Z"},
            "tags": {"NS": ["1"]},
            "any": {"NULL": True},
        },
        "change": {
            "key": {"id": "AAH/", "n": "-1.5"},
            "new": {
                "id": "AAH/",
                "n": None,
                "a-b": None,
                "ab": None,
                "yes": None,
                "int": None,
                "double": None,
                "decimal": None,
                "expires": None,
                "tags": None,
                "any": '{"NULL":true}',
                "rest": '{"n":{"N":"-1.5"},"a-b":{"N":"1"},"yes":{"NULL":true},"int":{"N":"2147483648"},'
                '"double":{"N":"0.1000000000000000055511151231257827"},"decimal":{"N":"1E-11"},'
                '"expires":{"S":"2024-01-01T00:00:00Z"},"tags":{"NS":["1"]}}',
            },
            "images": "NEW",
        },
    },
    "a DATETIME(3) in the key": {
        "table": {
            "source": "legacy",
            "table": "visits",
            "key": [["at", "string", "datetime"], ["page", "string"]],
            "row": [["at", "string"], ["page", "string"]],
        },
        "change": {
            "key": {"at": "2024-02-29 23:59:59.500", "page": "/"},
            "new": {"at": "2024-02-29 23:59:59.500", "page": "/"},
        },
    },
    "columns that are excluded, masked and hashed": {
        "table": {
            "source": "legacy",
            "table": "customer",
            "key": [["id", "long"]],
            "row": [["id", "long"], ["phone", "string"], ["email", "string"]],
            "protected": _PROTECTED,
        },
        "change": {"key": {"id": 1}, "new": {"id": 1, "phone": "***", "email": _HASHED}},
    },
    "attributes that are excluded, masked and hashed": {
        "table": {"source": "shop", "table": "customers", "key": [["id", "S"]], "protected": _PROTECTED},
        "change": {
            "key": {"id": "1"},
            "new": f'{{"id":{{"S":"1"}},"phone":{{"S":"***"}},"email":{{"S":"{_HASHED}"}}}}',
        },
    },
}

_PAIR: dict[str, Any] = {"key": [["order_id", "S"], ["line", "N"]]}
_SQL: dict[str, Any] = {
    "key": [["region", "string"], ["id", "long"], ["at", "timestamp"], ["n", "decimal(20,0)"], ["raw", "bytes"]],
    "hash_columns": 5,
}
_SQL_KEY: dict[str, Any] = {
    "region": "eu",
    "id": -7,
    "at": "2024-02-29T23:59:59.123456+00:00",
    "n": "18446744073709551615",
    "raw": "AP8=",
}

KEYS: dict[str, dict[str, Any]] = {
    "hash key S": {"table": _PAIR, "mode": "hash", "key": {"order_id": "o-1", "line": "7"}},
    "hash key S beyond ASCII": {"table": _PAIR, "mode": "hash", "key": {"order_id": "é🦉", "line": "7"}},
    "hash key N": {"table": {"key": [["id", "N"]]}, "mode": "hash", "key": {"id": "-1.5"}},
    "hash key B": {"table": {"key": [["id", "B"]]}, "mode": "hash", "key": {"id": "AAH/"}},
    "item of S and N": {"table": _PAIR, "mode": "item", "key": {"order_id": 'o"1', "line": "7"}},
    "item of B": {"table": {"key": [["id", "B"]]}, "mode": "item", "key": {"id": "AAH/"}},
    "one SQL column": {"table": {"key": [["id", "long"]]}, "mode": "hash", "key": {"id": 42}},
    "several SQL columns": {"table": _SQL, "mode": "hash", "key": _SQL_KEY},
    "item of SQL columns": {"table": _SQL, "mode": "item", "key": _SQL_KEY},
}

# Kafka's own client is tested with the first six.
PARTITIONS: dict[str, dict[str, str]] = {
    "21": {"text": "21"},
    "foobar": {"text": "foobar"},
    "a little bit long": {"text": "a-little-bit-long-string"},
    "a little bit longer": {"text": "a-little-bit-longer-string"},
    "long": {"text": "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8"},
    "three bytes": {"hex": "616263"},
    "empty": {"hex": ""},
    "high bytes": {"hex": "ff80fe00ff"},
    "more than 255 bytes": {"hex": "a5" * 257},
}

TOKENS: dict[str, dict[str, Any]] = {
    "of DynamoDB": {**TOKEN, "origin": None},
    "with an origin": VALUES["a replayed change with its origin, in a transaction"]["change"]["token"],
    "beyond ASCII": {"timestamp": 0, "shard": 'é"/\u0001', "position": "MariaDB/0-1-123", "origin": None},
}

EVENT_IDS: dict[str, dict[str, Any]] = {
    "first change of a key": {**TOKEN, "table": "orders", "key": "6f2d31", "n": 0},
    "second change of a key": {**TOKEN, "table": "orders", "key": "6f2d31", "n": 1},
    "parts that run together": {"shard": "ab", "position": "c", "table": "d", "key": "", "n": 0},
    "parts that run together otherwise": {"shard": "a", "position": "bc", "table": "d", "key": "", "n": 0},
}
