"""The inputs of the golden files of the relay's own records: checkpoints, gaps, dead letters. See ``tests/golden.py``.

Written by hand, in the forms of ``tests/golden_inputs.py``. Later relays must read what a relay has stored.
"""

from __future__ import annotations

from typing import Any

from tests.golden_inputs import ITEM, ORDERS, TOKEN

STREAM = {"source": "shop", "label": "2023-11-14T22:00:00.000"}
SHARD = "shardId-00000001700000000000-aaaaaaaa"
SEGMENT = "1700000000-00112233/2"

SHARDS: dict[str, dict[str, Any]] = {
    "planned": {"state": "planned", "start": {"type": "trim_horizon"}, "updated_at": 1700000000.5},
    "reading": {
        "state": "reading",
        "position": {"type": "after_sequence", "sequence": "300000000000000499659"},
        "token": TOKEN | {"origin": None},
        "parents": ["shardId-00000001699990000000-bbbbbbbb"],
        "start": {"since": 1699990000.25},
        "updated_at": 1700000001.0,
        "progress": 1700000000.75,
        "quiet_at": 1700000000.875,
    },
    "finished": {
        "state": "finished",
        "position": {"type": "after_sequence", "sequence": "300000000000000499660"},
        "children": ["shardId-00000001700010000000-cccccccc", "shardId-00000001700010000001-dddddddd"],
        "updated_at": 1700010000.0,
    },
    "gone": {"state": "gone", "gap": "0011223344556677", "updated_at": 1700010000.0},
    "ended by a reshard": {
        "state": "finished",
        "position": {"gtid": "MariaDB/0-1-7"},
        "updated_at": 1700000001.0,
        "journal": {"id": "17", "participants": ["-"], "targets": {"-80": {"gtid": "MariaDB/0-1-1"}}},
        "reached": 1700000000.5,
        "emptied": {"orders": 1699999999.5},
    },
    "with a table that the plan lacks": {
        "state": "reading",
        "position": {"gtid": "MariaDB/0-1-7"},
        "updated_at": 1700000001.0,
        "unplanned": {"later": {"key": [["a", "int"], ["b", "string"]], "hashed": 1}},
    },
}

PLANS: dict[str, dict[str, Any]] = {
    "a plan": {
        "requested": "latest",
        "planned_at": 1700000000.5,
        "shards": {SHARD: {"since": 1700000000.5}},
        "keys": {"orders": [["order_id", "S"], ["line", "N"]]},
        "config_hash": "8f2d31aa",
    },
    "a plan at a token": {
        "requested": "token:0123456789abcdef",
        "planned_at": 1700000000.5,
        "shards": {
            "shardId-00000001699990000000-bbbbbbbb": {"type": "passed"},
            SHARD: {"type": "after_sequence", "sequence": "300000000000000499659"},
            "shardId-00000001700000000001-eeeeeeee": {"type": "at_sequence", "sequence": "300000000000000499661"},
        },
        "keys": {"orders": [["order_id", "S"], ["line", "N"]]},
        "config_hash": "8f2d31aa",
    },
    "a plan of an SQL source": {
        "requested": "current",
        "planned_at": 1700000000.5,
        "shards": {"-": {"gtid": "MariaDB/0-1-7"}},
        "keys": {"visits": [["id", "long"], ["day", "string", "date"]]},
        "config_hash": "8f2d31aa",
        "hashed": {"visits": 2},
    },
    "a plan after a reset": {
        "requested": "latest",
        "planned_at": 1700000000.5,
        "shards": {SHARD: {"type": "trim_horizon"}},
        "keys": {"orders": [["order_id", "S"], ["line", "N"]]},
        "config_hash": "8f2d31aa",
        "gap": "0011223344556677",
        "floor": 1699999999,
        "in_force": "0a1b2c3d4e5f6071",
    },
}

OWNERS: dict[str, dict[str, Any]] = {
    "the owner of a partition": {"process": "host-1/7", "sources": {"shop": "0a1b2c3d4e5f6071"}},
    "an owner that waits for more partitions of a topic": {
        "process": "host-1/7",
        "sources": {"shop": "0a1b2c3d4e5f6071"},
        "ready": {"shop.orders": 24},
    },
}

PARTITIONS: dict[str, dict[str, Any]] = {"requested partitions": {"partitions": 24}}

LISTINGS: dict[str, dict[str, Any]] = {
    "a listing": {
        "begun": 1700000000.5,
        "took": 0.25,
        "shards": [
            {"id": "shardId-00000001699990000000-bbbbbbbb", "closed": True},
            {"id": SHARD, "parents": ["shardId-00000001699990000000-bbbbbbbb"]},
        ],
    },
    "a listing of a stream that another one continues": {
        "begun": 1700000000.5,
        "took": 0.25,
        "successor": "2023-11-15T22:00:00.000",
    },
}

GAPS: dict[str, dict[str, Any]] = {
    "trimmed": {
        "source": "shop",
        "label": "2023-11-14T22:00:00.000",
        "shard": SHARD,
        "reason": "trimmed",
        "begin": {"type": "after_sequence", "sequence": "1"},
        "end": {"type": "at_sequence", "sequence": "9"},
        "found_at": 1700000000.5,
    },
    "a new stream": {
        "source": "shop",
        "label": "2023-11-14T22:00:00.000",
        "shard": None,
        "reason": "new stream",
        "begin": None,
        "end": None,
        "found_at": 1700000000.5,
    },
    "a statement that may have changed rows": {
        "source": "shop",
        "label": "commerce",
        "shard": None,
        "reason": "table orders may have different values now, which no change shows",
        "begin": {"gtid": "0-1-57"},
        "end": None,
        "found_at": 1700000000.0,
        "table": "orders",
        "statement": "ALTER TABLE orders MODIFY total DECIMAL(9,1)",
    },
    "a reset": {
        "source": "shop",
        "label": "2023-11-14T22:00:00.000",
        "shard": None,
        "reason": "reset",
        "begin": {"planned_at": 1699990000.5, "shards": {SHARD: {"type": "after_sequence", "sequence": "1"}}},
        "end": {"start": "trim_horizon", "planned_at": 1700000000.5},
        "found_at": 1700000000.5,
    },
    "shards of a token that have expired": {
        "source": "shop",
        "label": "2023-11-14T22:00:00.000",
        "shard": None,
        "reason": "shards of the token lost",
        "begin": {"shards": {SHARD: {"type": "after_sequence", "sequence": "1"}}},
        "end": None,
        "found_at": 1700000000.5,
    },
}

# ``gap``: a name in GAPS.
PENDING_GAPS: dict[str, dict[str, Any]] = {
    "a pending gap": {"gap": "trimmed", "decision": None, "updated_at": 1700000001.0},
    "an accepted gap": {"gap": "trimmed", "decision": "resnapshot", "updated_at": 1700000002.0},
}

SNAPSHOTS: dict[str, dict[str, Any]] = {
    "a planned snapshot": {
        "state": "planned",
        "id": "1700000000-00112233",
        "after": 1699999999,
        "gaps": ["0011223344556677"],
        "updated_at": 1700000000.5,
    },
    "a running snapshot of a table": {
        "state": "reading",
        "id": "1700000000-00112233",
        "after": 1699999999,
        "begun": {
            "as_of": 1700000000,
            "segments": 1,
            "rows": 1000,
            "parts": [{"table": "orders", "created": 1699990000.25}],
        },
        "gaps": ["0011223344556677"],
        "covered": ["orders"],
        "updated_at": 1700000001.0,
    },
    "a requested snapshot of one table that runs": {
        "state": "reading",
        "id": "1700000000-00112233",
        "begun": {
            "as_of": 1700000000,
            "segments": 1,
            "rows": 1000,
            "parts": [{"shard": "-", "table": "customer"}],
            "emptied": {"-": 1699990000.25},
        },
        "tables": ["customer"],
        "requests": ["1699999990-44556677"],
        "repaired": ["0011223344556677"],
        "read": True,
        "updated_at": 1700000001.0,
    },
    "a finished snapshot, of which a table is read again": {
        "state": "finished",
        "id": "1700000000-00112233",
        "after": 1699999937,
        "begun": {"as_of": 1700000000, "segments": 2, "rows": 1000},
        "covered": ["customer", "orders"],
        "left_out": ["orders"],
        "again": ["orders"],
        "repetitions": 1,
        "updated_at": 1700000002.0,
    },
}

SEGMENTS: dict[str, dict[str, Any]] = {
    "a segment": {
        "state": "reading",
        "position": {"type": "rows", "rows": 500},
        "updated_at": 1700000001.0,
        "unplanned": {"later": {"key": [["a", "int"]], "hashed": 1}},
    }
}

SNAPSHOT_REQUESTS: dict[str, dict[str, Any]] = {
    "of all tables": {
        "source": "shop",
        "id": "1699999990-44556677",
        "tables": [],
        "requested_at": 1699999990.5,
        "updated_at": 1699999990.5,
    },
    "of two tables, stopped": {
        "source": "shop",
        "id": "1699999990-8899aabb",
        "tables": ["customer", "orders"],
        "requested_at": 1699999990.5,
        "stopped": True,
        "updated_at": 1699999995.5,
    },
    "of nobody, for a statement": {
        "source": "shop",
        "id": "1700000000-ccddeeff0",
        "tables": ["orders"],
        "requested_at": 1699999999.5,
        "updated_at": 1699999999.5,
        "after": 1700000000,
        "gap": GAPS["a statement that may have changed rows"],
    },
}

# The change, the largest size of a record, and the reason.
DEAD_LETTERS: dict[str, dict[str, Any]] = {
    "too large, in two chunks": {
        "table": ORDERS,
        "change": {"new": ITEM, "images": "NEW", "attributes": {"event_version": "1.1", "redriven": "true"}},
        "largest": 1000,
        "reason": "too large",
        "detail": "50141 bytes; shop.orders takes 50000",
        "encoding": "avro",
    },
    "not encodable": {
        "table": ORDERS,
        "change": {
            # Half a surrogate pair, in an escape.
            "new": '{"order_id":{"S":"o-1"},"line":{"N":"7"},"text":{"S":"\\ud83d"}}',
            "images": "NEW",
            "attributes": {"event_version": "1.1", "redriven": "true"},
        },
        "largest": 10_000,
        "reason": "not encodable",
        "detail": "shop: the UPDATE of orders cannot be carried exactly: str is not valid UTF-8",
        "encoding": "json",
    },
}

_COLUMNS = [["id", "long"], ["name", "string"], ["at", "string", "datetime"]]

STATEMENTS: dict[str, dict[str, Any]] = {
    "a column is added": {
        "kind": "ALTER",
        "statement": "ALTER TABLE customer ADD COLUMN at DATETIME(3) DEFAULT '2023-11-14'",
        "text": "COMPLETE",
        "tables": [
            {
                "table": "customer",
                "before": {"columns": _COLUMNS[:2], "primary": ["id"]},
                "before_by": "rows",
                "after": {"columns": _COLUMNS, "primary": ["id"]},
                "after_by": "statement",
            }
        ],
    },
    "tables are exchanged, of which one has protected columns": {
        "kind": "RENAME",
        "statement": "RENAME TABLE customer TO old, new TO customer",
        "text": "WITHOUT_VALUES",
        "tables": [
            {
                "table": "customer",
                "renamed_to": "old",
                "before": {
                    "columns": _COLUMNS[:2],
                    "primary": ["id"],
                    "protected": [["ssn", "exclude"], ["name", "mask"]],
                },
                "before_by": "rows",
                "after": {"columns": _COLUMNS[:2], "primary": ["id"]},
                "after_by": "rows",
            },
            {"table": "new", "renamed_to": "customer"},
        ],
    },
    "a table is dropped": {
        "kind": "DROP",
        "statement": "DROP TABLE IF EXISTS `customer` /* generated by server */",
        "text": "COMPLETE",
        "tables": [{"table": "customer", "after_by": "statement"}],
    },
    "a statement that is too large": {"kind": "ALTER", "statement": "", "text": "OMITTED", "tables": [{"table": "t"}]},
}
