"""The schemas in a Schema Registry that speaks Confluent's API, one subject a topic.

Before the first message of a table's next schema the registry is asked whether it may follow the one before. May be
changed here: what is done with its answer, and what is said about it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import SchemaRegistryError

from relay.avro.evolution import differences, following, same
from relay.avro.framing import confluent_header, schema_id
from relay.config.fields import redacted
from relay.errors import RelayError, Unavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

COMPATIBILITY = "BACKWARD"
"""Of the subjects that the relay creates: whoever has the newest schema can read what older ones wrote."""

_TIMEOUT = 10.0  # seconds for one request


@dataclass(frozen=True, slots=True)
class _Version:
    number: int
    id: int
    schema: dict[str, Any]


class RegistrySchemas:
    """The schemas in a registry that speaks Confluent's API, under the subject ``<topic>-value``.

    ``on_incompatible``: ``fail`` or ``register``, what to do when the registry refuses the next version of a subject.
    """

    def __init__(self, url: str, on_incompatible: str = "fail", *, timeout: float = _TIMEOUT, retries: int = 2) -> None:
        self._shown = redacted(url)
        self._on_incompatible = on_incompatible
        self._client = SchemaRegistryClient({"url": url, "timeout": timeout, "max.retries": retries})
        self._known: dict[bytes, dict[str, Any]] = {}

    def __repr__(self) -> str:
        return f"<RegistrySchemas[{self._shown}, {len(self._known)} known]>"

    def register(self, topic: str, schema: Mapping[str, Any]) -> bytes:
        """Register a schema, unless the subject has it, and give the header of its values.

        Raises `RelayError` if the registry refuses it, naming what is different from the version before, or gives
        back another schema under its id; `Unavailable` if the registry cannot be reached.
        """
        subject = f"{topic}-value"
        with self._asking(f"register a schema under {subject}"):
            versions = self._versions(subject)
            held = next((version for version in reversed(versions) if same(version.schema, schema)), None)
            if held is None:
                held = self._add(topic, subject, versions, schema)
        if not same(held.schema, schema):
            raise RelayError(  # I8
                f"the schema registry at {self._shown} holds another schema under id {held.id}, which it gave for"
                f" {subject}: values of the two could not be told apart"
            )
        header = confluent_header(held.id)
        self._known[header] = held.schema
        return header

    def subject(self, topic: str) -> tuple[int, str | None]:
        """Return how many versions the subject of ``topic`` has, and its compatibility. Raises `Unavailable`."""
        subject = f"{topic}-value"
        with self._asking(f"look up {subject}"):
            return len(self._numbers(subject)), self._level(subject)

    def subjects(self) -> list[str]:
        """Return the names of all subjects. Raises `Unavailable`."""
        with self._asking("list its subjects"):
            return self._client.get_subjects()

    def refusal(self, topic: str, schema: Mapping[str, Any]) -> str:
        """Say why `register` would be refused, empty if it would not. Changes nothing. Raises as it does."""
        subject = f"{topic}-value"
        with self._asking(f"compare a schema with {subject}"):
            versions = self._versions(subject)
            if not versions or any(same(version.schema, schema) for version in versions):
                return ""
            return self._refusal(topic, subject, versions, following(schema, [v.schema for v in versions]))

    def lookup(self, header: bytes) -> dict[str, Any] | None:
        """Give the schema of values with this header, from the registry the first time."""
        known = self._known.get(header)
        number = schema_id(header)
        if known is not None or number is None:
            return known
        with self._asking(f"look up schema id {number}"):
            try:
                text = self._client.get_schema(number).schema_str
            except SchemaRegistryError as fault:
                if fault.http_status_code == 404:
                    return None
                raise
        if text is None:
            return None
        schema: dict[str, Any] = orjson.loads(text)
        return self._known.setdefault(header, schema)

    def all(self) -> dict[bytes, dict[str, Any]]:
        """Give the schemas known so far, by header."""
        return dict(self._known)

    def refresh(self) -> None:
        """See that the registry answers. An id means one schema for ever, and `lookup` asks for those not known."""
        self.subjects()

    def close(self) -> None:
        self._client.close()

    def _add(self, topic: str, subject: str, versions: Sequence[_Version], schema: Mapping[str, Any]) -> _Version:
        """Register the next version of a subject, or its first."""
        mine = following(schema, [version.schema for version in versions])
        candidate = _avro(mine)
        level = self._level(subject)
        if not versions:
            if level is None:
                # Only where nobody has decided: what others said about a subject is left alone.
                self._client.set_compatibility(subject, COMPATIBILITY)
            number = self._client.register_schema(subject, candidate)
        elif not (problem := self._refusal(topic, subject, versions, mine)):
            number = self._client.register_schema(subject, candidate)
        elif self._on_incompatible == "fail":
            raise RelayError(f"{problem} Nothing was published with it.")
        else:
            number = self._register_all_the_same(subject, candidate, level, problem)
        # The client remembers what it sent; what counts is what readers will be given.
        self._client.clear_caches()  # type: ignore[no-untyped-call]
        return _Version(len(versions) + 1, number, _parsed(self._client.get_schema(number)))

    def _refusal(self, topic: str, subject: str, versions: Sequence[_Version], mine: Mapping[str, Any]) -> str:
        """Ask, before anything is published with it, whether a schema can be the next version; say why not."""
        level = self._level(subject)
        transitive = level is not None and level.endswith("_TRANSITIVE")
        ask = self._client.test_compatibility_all_versions if transitive else self._client.test_compatibility
        if ask(subject, _avro(mine)):
            return ""
        return (
            f"the schema of the topic {topic} has changed so that the registry at {self._shown} refuses it after"
            f" version {versions[-1].number} of the subject {subject}, compatibility {level or 'by default'}:"
            f" {'; '.join(differences(versions[-1].schema, mine))}. Readers that have one schema for all could not go"
            " on: undo the change; or, where they read each value with the schema that wrote it, as the Spark"
            " consumers do, set `schema_registry: {on_incompatible: register}`."
        )

    def _register_all_the_same(self, subject: str, candidate: Schema, level: str | None, problem: str) -> int:
        log.warning(
            "%s It is set: the compatibility of %s is NONE while the schema is registered, and as before after it",
            problem,
            subject,
        )
        self._client.set_compatibility(subject, "NONE")
        try:
            return self._client.register_schema(subject, candidate)
        finally:
            if level in (None, "NONE"):  # what refused it is not the subject's own, so it had none
                self._client.delete_config(subject)
            else:
                self._client.set_compatibility(subject, level)

    def _versions(self, subject: str) -> list[_Version]:
        """Return the versions of a subject, oldest first."""
        found = [self._client.get_version(subject, number) for number in self._numbers(subject)]
        return [
            _Version(one.version, one.schema_id, _parsed(one.schema))
            for one in found
            if one.version is not None and one.schema_id is not None
        ]

    def _numbers(self, subject: str) -> list[int]:
        return sorted(self._or_none(self._client.get_versions, subject) or [])

    def _level(self, subject: str) -> str | None:
        """Return the compatibility of a subject, None if it has none of its own."""
        return self._or_none(self._client.get_compatibility, subject)

    @staticmethod
    def _or_none(ask: Callable[[str], T], subject: str) -> T | None:
        try:
            return ask(subject)
        except SchemaRegistryError as fault:
            if fault.http_status_code == 404:
                return None
            raise

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except SchemaRegistryError as fault:
            if fault.http_status_code in (409, 422):
                raise RelayError(
                    f"the schema registry at {self._shown} refuses to {what}: {redacted(str(fault))}"
                ) from fault
            raise Unavailable(
                f"the schema registry at {self._shown} fails to {what}: {redacted(str(fault))}"
            ) from fault
        except httpx.HTTPError as fault:
            raise Unavailable(
                f"the schema registry at {self._shown} does not answer, to {what}: {redacted(repr(fault))}"
            ) from fault
        except (LookupError, TypeError, ValueError, OSError) as fault:
            # What the client makes of an answer that is not a registry's.
            raise Unavailable(
                f"the schema registry at {self._shown} does not answer as one, to {what}: {redacted(repr(fault))}"
            ) from fault


def _avro(schema: Mapping[str, Any]) -> Schema:
    return Schema(orjson.dumps(schema).decode(), "AVRO")


def _parsed(schema: Schema | None) -> dict[str, Any]:
    """Return a schema as it stands in the registry; of somebody else's there may be any under our subject."""
    found = orjson.loads((schema and schema.schema_str) or "null")
    return found if isinstance(found, dict) else {"type": found}
