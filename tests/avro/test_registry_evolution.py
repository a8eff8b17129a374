"""What a registry is asked before the next version of a table's schema is used, and what is done with its answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema

from relay.avro.debezium import DebeziumEncoder, SourceInfo
from relay.avro.schema import change_schema
from relay.avro.schema_registry import RegistrySchemas
from relay.errors import RelayError, Unavailable
from relay.table import Column, KeyColumn, TableSchema
from tests.avro.guarded import Guarded, basic
from tests.containers import Registry

pytestmark = pytest.mark.services

PASSWORD = "hunter2/?@"
IN_URL = "hunter2%2F%3F%40"


@pytest.fixture
def registered(schema_registry: Any) -> Iterator[RegistrySchemas]:
    schemas = RegistrySchemas(schema_registry.url)
    yield schemas
    schemas.close()


@pytest.fixture
def bold(schema_registry: Any) -> Iterator[RegistrySchemas]:
    schemas = RegistrySchemas(schema_registry.url, "register")
    yield schemas
    schemas.close()


def schema(table: str, **row: str) -> dict[str, Any]:
    columns = tuple(Column(*column) for column in row.items())
    return change_schema(TableSchema("shop", table, (KeyColumn("id", "S"),), 1, columns))


def test_columns_are_added_and_removed_under_backward_compatibility(registered: RegistrySchemas, unique: str) -> None:
    rows = [{"a": "int"}, {"a": "int", "b": "string"}, {"a": "long", "b": "string"}, {"b": "string"}]
    headers = [registered.register(unique, schema(unique, **row)) for row in rows]
    assert len(set(headers)) == 4
    assert registered.subject(unique) == (4, "BACKWARD")


def test_going_back_to_earlier_columns_uses_the_existing_version(registered: RegistrySchemas, unique: str) -> None:
    first = registered.register(unique, schema(unique, a="int"))
    second = registered.register(unique, schema(unique, a="int", b="int"))
    assert registered.register(unique, schema(unique, a="int")) == first
    assert registered.register(unique, schema(unique, a="int", b="int")) == second
    assert registered.subject(unique)[0] == 2


def test_another_envelope_on_a_topic_is_refused(bold: RegistrySchemas, unique: str) -> None:
    """I8: even if incompatible schemas are registered, since readers take one form."""
    table = TableSchema("shop", "orders", (KeyColumn("id", "S"),), 1)
    of_debezium = DebeziumEncoder(table, unique, SourceInfo("dynamodb", "shop", "", "1")).value_schema
    for topic, first, second in (
        (unique, schema("orders"), of_debezium),
        (f"{unique}.2", of_debezium, schema("orders")),
    ):
        header = bold.register(topic, first)
        assert bold.newest_envelope(topic) == (header if first is of_debezium else None)
        with pytest.raises(RelayError, match=f"topic {topic} has records of a different `envelope`"):
            bold.register(topic, second)
        assert "a different `envelope`" in bold.refusal(topic, second)


def test_each_table_of_a_shared_topic_has_its_own_subject(schema_registry: Any, unique: str) -> None:
    """I1, I8: tables with incompatible columns, of which one had the topic before the others came, or after."""
    unique, only = f"{unique}-relay.all", f"{unique}-relay.only"
    mine, other = schema("orders", a="int"), schema("lines", a="string")
    with (
        closing(RegistrySchemas(schema_registry.url, common=[only])) as alone,
        closing(RegistrySchemas(schema_registry.url, common=[unique])) as again,
        closing(RegistrySchemas(schema_registry.url, shared=[unique])) as shared,
        closing(RegistrySchemas(schema_registry.url, shared=[unique])) as reader,
    ):
        header = alone.register(unique, mine)
        assert shared.lacks([(unique, mine), (unique, other)]) == [False, True]
        later = schema("orders", a="int", b="int")
        headers = [shared.register(unique, each) for each in (mine, other, later)]
        assert shared.subject(unique, "relay.shop.orders") == (2, "BACKWARD")
        assert shared.subject(unique, "relay.shop.lines") == (1, "BACKWARD")
        assert "is not compatible" in shared.refusal(unique, schema("orders", a="string", b="int"))
        reader.learn([unique])
        assert reader.all().keys() == {header, *headers}
        # Once the other table is gone, its values are still there, and this one keeps its subject.
        headers.append(again.register(unique, schema("lines", a="string", b="int")))
        again.learn([unique])
        assert again.all().keys() == {header, *headers}
        assert again.subject(unique, "relay.shop.lines") == (2, "BACKWARD")
        with closing(RegistrySchemas(schema_registry.url, shared=[only])) as earlier:
            earlier.register(only, other)
        assert alone.lacks([(only, other), (only, mine)]) == [False, True]
        table = TableSchema("shop", "orders", (KeyColumn("id", "S"),), 1)
        former = f"{unique}.debezium"
        alone.register(former, DebeziumEncoder(table, former, SourceInfo("dynamodb", "shop", "", "1")).value_schema)
        now = RegistrySchemas(schema_registry.url, shared=[former])
        with closing(now), pytest.raises(RelayError, match="records of a different `envelope`"):
            now.register(former, mine)


@pytest.mark.parametrize("kind", ["string", "decimal(10,4)"])
def test_another_type_is_refused_naming_the_topic_and_the_difference(
    registered: RegistrySchemas, unique: str, kind: str
) -> None:
    """I8: Avro would read decimal(10,4) as decimal(10,2), and move the point."""
    registered.register(unique, schema(unique, a="decimal(10,2)", gone="int"))
    with pytest.raises(RelayError) as refused:
        registered.register(unique, schema(unique, a=kind, new="long"))
    assert refused.value.exit_code == 1
    said = str(refused.value)
    assert f"refuses the new schema of the topic {unique}" in said
    assert f"version 1 of the subject {unique}-value (compatibility BACKWARD)" in said
    assert f"row a: decimal(10,2) -> {kind}; row gone: removed, was of type int; row new: added, of type long." in said
    assert "schema_registry: {on_incompatible: register}" in said
    assert registered.subject(unique) == (1, "BACKWARD")


@pytest.mark.parametrize("level", ["BACKWARD", "FULL_TRANSITIVE"])
def test_on_incompatible_register_registers_and_restores_the_compatibility(
    bold: RegistrySchemas, unique: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = bold.register(unique, schema(unique, a="int"))
    bold._client.set_compatibility(f"{unique}-value", level)
    with caplog.at_level(logging.WARNING):
        second = bold.register(unique, schema(unique, a="string"))
    assert second != first
    assert bold.subject(unique) == (2, level)
    (said,) = (record.getMessage() for record in caplog.records)
    assert "row a: int -> string" in said
    assert f"the compatibility of {unique}-value is NONE for that moment" in said


def test_a_compatibility_that_its_owner_set_is_never_changed(registered: RegistrySchemas, unique: str) -> None:
    registered._client.set_compatibility(f"{unique}-value", "FORWARD")  # before there is a version
    registered.register(unique, schema(unique, a="int"))
    assert registered.subject(unique) == (1, "FORWARD")
    registered._client.set_compatibility(f"{unique}-value", "NONE")
    registered.register(unique, schema(unique, a="string"))
    assert registered.subject(unique) == (2, "NONE")


def test_a_subject_of_others_keeps_its_default_compatibility(registered: RegistrySchemas, unique: str) -> None:
    registered._client.register_schema(f"{unique}-value", Schema('"string"', "AVRO"))
    before = registered.subject(unique)[1]
    registered.register(unique, schema(unique, a="int"))
    assert registered.subject(unique) == (2, before)


@pytest.fixture
def guarded(schema_registry: Registry) -> Iterator[Guarded]:
    with Guarded(schema_registry.url, basic("me", PASSWORD)) as server:
        yield server


def test_a_name_and_password_in_the_url_are_used_and_never_shown(guarded: Guarded, unique: str) -> None:
    schemas = RegistrySchemas(f"http://me:{IN_URL}@{guarded.address}")
    header = schemas.register(unique, schema(unique, a="int"))
    assert schemas.lookup(header) == schema(unique, a="int")
    with pytest.raises(RelayError) as refused:
        schemas.register(unique, schema(unique, a="string"))
    shown = f"{refused.value} {schemas!r} {schemas}"
    assert f"http://***@{guarded.address}" in shown
    assert "hunter2" not in shown
    schemas.close()


def test_an_error_about_a_wrong_password_does_not_show_it(guarded: Guarded, unique: str) -> None:
    schemas = RegistrySchemas(f"http://me:wrong-hunter2@{guarded.address}")
    with pytest.raises(Unavailable, match=rf"http://\*\*\*@{guarded.address} failed to .*Unauthorized") as refused:
        schemas.register(unique, schema(unique, a="int"))
    assert "hunter2" not in str(refused.value)
    schemas.close()
