"""The code against ``schemas/golden/``: the wire format changes only with these files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import fastavro
import pytest

from relay.avro.decode import decode
from relay.avro.framing import confluent_header, fingerprint, schema_id, single_object_header
from relay.avro.schema import unescape
from relay.change import Images, Operation
from relay.dynamodb.columns import TypedRows
from relay.records import CommittedRecords, Gap, StreamId, partitions_key
from relay.token import EventToken
from relay.types.columns import REST, column_type
from tests import golden, golden_inputs
from tests.avro.known import Known


def committed(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((golden.FOLDER / name).read_text(encoding="utf-8"))
    return content


def cases(name: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in committed(name)["cases"]]


@pytest.mark.parametrize("name", sorted(golden.FILES))
def test_the_code_produces_what_is_committed(name: str) -> None:
    produced = golden.text(golden.FILES[name]())
    # For an intended change of the wire format run python -m tests.golden, and read the difference.
    assert json.loads(produced) == committed(name)
    assert produced == (golden.FOLDER / name).read_text(encoding="utf-8")


def test_the_folder_holds_only_golden_files() -> None:
    assert {path.name for path in golden.FOLDER.iterdir()} == set(golden.FILES)


def test_the_golden_values_cover_every_operation_view_and_column_type() -> None:
    decoded = [case["decoded"] for case in committed("values.json")["cases"]]
    assert {value["operation"] for value in decoded} == set(Operation)
    assert {value["images"] for value in decoded} == set(Images)
    kinds = {str(column_type(kind)).split("(")[0] for _, kind in golden_inputs.TYPES["row"]}
    assert kinds == {"string", "bytes", "boolean", "int", "long", "float", "double", "decimal", "timestamp", "set"}


@pytest.mark.parametrize("case", cases("values.json"))
def test_fastavro_decodes_every_value_as_stated(case: dict[str, Any]) -> None:
    schemas = committed("values.json")["schemas"]
    value = bytes.fromhex(case["bytes"])
    size = 5 if value[:1] == b"\x00" else 10
    body = BytesIO(value[size:])
    read = fastavro.schemaless_reader(body, fastavro.parse_schema(schemas[value[:size].hex()]), None)
    assert golden.shown(read) == case["decoded"]
    assert body.read() == b""


@pytest.mark.parametrize("case", cases("values.json"))
def test_a_value_decodes_to_its_input_with_the_names_of_the_source(case: dict[str, Any]) -> None:
    schemas = committed("values.json")["schemas"]
    known = Known({bytes.fromhex(header): schema for header, schema in schemas.items()})
    change = golden.shown(decode(known, bytes.fromhex(case["bytes"])))
    for part in ("key", "old", "new"):
        raw = case["decoded"][part]
        if isinstance(raw, dict):
            assert change[part] == {unescape(name): value for name, value in raw.items()}
        assert {**golden_inputs.ORDINARY, **case["input"]["change"]}[part] is None or change[part] is not None
    same = set(change) - {"key", "old", "new"}
    assert {name: change[name] for name in same} == {name: case["decoded"][name] for name in same}


@pytest.mark.parametrize("case", [case for case in cases("values.json") if "new_item" in case.values[0]["input"]])
def test_an_item_becomes_the_stated_row(case: dict[str, Any]) -> None:
    """I8."""
    given = case["input"]
    table = golden.read_table(given["table"])
    assert table.row is not None
    rows = TypedRows({column.name: column.type for column in table.row if column.type != REST})
    assert rows.columns == table.row
    new = dict(rows.row(given["new_item"]))
    if new["expires"] is not None:
        new["expires"] = datetime.fromtimestamp(new["expires"] / 1e6, UTC)
    assert new == golden.read_values(table.row, given["change"]["new"])


@pytest.mark.parametrize("header", sorted(committed("values.json")["schemas"]))
def test_a_header_matches_its_schema(header: str) -> None:
    raw = bytes.fromhex(header)
    number = schema_id(raw)
    if number is None:
        assert raw == single_object_header(fingerprint(committed("values.json")["schemas"][header]))
    else:
        assert raw == confluent_header(number)


@pytest.mark.parametrize(
    ("name", "signed"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a little bit long", -985981536),
        ("a little bit longer", -1486304829),
        ("long", -58897971),
        ("three bytes", 479470107),
    ],
)
def test_the_partition_hash_is_that_of_the_java_client(name: str, signed: int) -> None:
    """I2: the vectors of Kafka's own tests."""
    hashes = {case["name"]: case["decoded"]["murmur2"] for case in committed("partitions.json")["cases"]}
    assert hashes[name] == signed % (1 << 32)


@pytest.mark.parametrize("case", cases("tokens.json"))
def test_a_token_is_read_back(case: dict[str, Any]) -> None:
    text = bytes.fromhex(case["bytes"])
    assert list(json.loads(text)) == ["timestamp", "shard", "position", "origin"]
    assert EventToken.from_json(text).to_json().encode() == text


@pytest.mark.parametrize("case", [*cases("checkpoints.json"), *cases("snapshot_requests.json")])
def test_a_record_of_the_checkpoints_is_read_back(case: dict[str, Any]) -> None:
    key, value = bytes.fromhex(case["key"]), bytes.fromhex(case["bytes"])
    stream = StreamId(**committed("checkpoints.json")["stream"])
    view = CommittedRecords()
    view.apply(key, value)
    known = view.of(stream)
    found = [
        (stream.plan_key, known.plan),
        (stream.listing_key, known.listing),
        (stream.snapshot_key, known.control),
        *((stream.shard_key(name), shard) for name, shard in known.checkpoints.items()),
        *((stream.segment_key(name), segment) for name, segment in known.segments.items()),
        *((gap.key, gap) for gap in known.pending_gaps.values()),
        *((request.key, request) for request in [*view.requests_of("shop"), *view.altered_of("shop")]),
        *view.owners.items(),
        *(
            (partitions_key(source, topic), asked)
            for source, topics in view.requested_partitions.items()
            for topic, asked in topics.items()
        ),
    ]
    assert [(place, record.to_json()) for place, record in found if record is not None] == [(key, value)]


@pytest.mark.parametrize("case", cases("gaps.json"))
def test_a_gap_has_the_same_id_each_time_it_is_found(case: dict[str, Any]) -> None:
    """I9."""
    again = Gap(**{**case["input"], "found_at": case["input"]["found_at"] + 1, "end": None})
    assert again.id == case["decoded"]["id"]


@pytest.mark.parametrize("case", cases("dead_letters.json"))
def test_the_records_of_a_dead_letter_hold_the_complete_change(case: dict[str, Any]) -> None:
    """I8."""
    records = case["decoded"]
    assert "".join(record["bytes"] for record in records) == case["bytes"]
    name = golden_inputs.ORDINARY["event_id"]
    numbers = range(1, len(records) + 1)
    assert [record["key"] for record in records] == [f"{name}/{number}" for number in numbers]
    assert [record["headers"]["chunk"] for record in records] == [f"{number}/{len(records)}" for number in numbers]
    if case["input"]["encoding"] == "json":
        assert json.loads(bytes.fromhex(case["bytes"]))["new"] == json.loads(case["input"]["change"]["new"])
