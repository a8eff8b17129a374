"""The schemas in a Schema Registry with Confluent's API, one subject for each topic, or table of a shared topic."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import orjson
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import SchemaRegistryError

from relay.avro.evolution import differences, following, is_envelope, is_of_changes, refused_envelope, same, table_of
from relay.avro.framing import confluent_header, schema_id
from relay.config.hidden import redacted
from relay.errors import ConfigError, NoAnswer, RelayError, Unavailable
from relay.process.slow_call import call_all

if TYPE_CHECKING:
    from relay.avro.topic_schemas import TopicSchemas

log = logging.getLogger(__name__)
K = TypeVar("K")
T = TypeVar("T")

COMPATIBILITY = "BACKWARD"
"""The compatibility of subjects that the relay creates: a reader with the newest schema can read all older values."""

_TIMEOUT = 10.0  # seconds for one request
_OF_TABLE = re.compile(r"(.+)-relay\.\w+\.\w+")  # the subject of a table on a shared topic, see `namespace_of`
_OF_ANOTHER_SERVER = (400, 405, 406, 415, 501)  # statuses of a server that does not know a registry's requests
_MISSING = range(40401, 40500)  # the registry's codes for an unknown subject, version or schema
_LATER = (404, 408, 425, 429)  # a proxy, or a registry that is starting, answers 404 without such a code


@dataclass(frozen=True, slots=True)
class _Version:
    number: int
    id: int
    schema: dict[str, Any]


class RegistrySchemas:
    """The schemas in a registry with Confluent's API, under subjects as `name_of` says. Thread-safe.

    ``access``: how to log in, as ``SchemaRegistryConfig.access`` says. ``on_incompatible``: ``fail`` or ``register``,
    what to do when the registry refuses the next version of a subject. ``shared``: the topics of several tables, each
    of which has its own subject there; ``common``: these, and others that had or may get several. ``earlier``: opens
    the schemas of values from before there was a registry, when the first such value comes. ``kept``: returns the
    schemas that an earlier process got from this registry; called only while the registry does not answer. ``timeout``:
    seconds for one request. ``retries``: how often a failed request is repeated.
    """

    def __init__(
        self,
        url: str,
        on_incompatible: str = "fail",
        *,
        shared: Collection[str] = (),
        common: Collection[str] = (),
        access: Mapping[str, Any] | None = None,
        earlier: Callable[[], TopicSchemas] | None = None,
        kept: Callable[[], Mapping[bytes, dict[str, Any]]] = dict,
        timeout: float = _TIMEOUT,
        retries: int = 2,
    ) -> None:
        self._shown = redacted(url)
        self.place = f"the schema registry at {self._shown}"
        self._on_incompatible = on_incompatible
        self._shared, self._common = frozenset(shared), frozenset((*shared, *common))
        self._open_earlier = earlier
        self._kept = kept
        # Set once, by the first thread that needs it.
        self._opening = threading.Lock()
        self._earlier: TopicSchemas | None = None
        settings = {**(access or {}), "url": url, "timeout": timeout, "max.retries": retries}
        try:
            self._client = SchemaRegistryClient(settings)
        except OSError as fault:
            files = ", ".join(str(each) for key, each in settings.items() if key.startswith("ssl."))
            raise ConfigError(f"`schema_registry.tls`: cannot load {fault.filename or files}: {fault}") from fault
        # Shared by the threads: entries are only added, each in one step.
        self._known: dict[bytes, dict[str, Any]] = {}
        # By subject, the compatibility that could not be restored yet, empty if it had none of its own.
        self._levels: dict[str, str] = {}

    def register(self, topic: str, schema: Mapping[str, Any], part: Literal["key", "value"] = "value") -> bytes:
        """Register a schema, unless the subject has it, and return the header of its values, or keys.

        Raises `RelayError` if the registry refuses it, naming the differences from the version before, or returns
        another schema for its id; `NoAnswer` if it does not answer now, `Unavailable` if a retry would not help.
        """
        subject = self.name_of(topic, table_of(schema)) if part == "value" else f"{topic}-{part}"
        with self._asking(f"register a schema under {subject}"):
            if (level := self._levels.get(subject)) is not None:
                self._restore(subject, level)
            versions = self._versions(subject)
            found = next((version for version in reversed(versions) if same(version.schema, schema)), None)
            if problem := self._other_envelope(topic, versions, schema):  # I8
                raise RelayError(problem)
            if found is None:
                found = self._add(topic, subject, versions, schema)
        if not same(found.schema, schema):
            raise RelayError(  # I8
                f"{self.place} assigned id {found.id} to the schema of {subject}, but returns a different schema for "
                "this id, so readers would misread the values. Check the registry's data."
            )
        header = confluent_header(found.id)
        self._known[header] = found.schema
        return header

    def lacks(self, wanted: Sequence[tuple[str, Mapping[str, Any]]]) -> list[bool]:
        """Return, for each topic and schema, whether its table has no schema: neither a version of the subject, nor one
        from before there was a registry. Raises `Unavailable`.
        """
        with self._asking("list the versions of its subjects"):
            empty = call_all("versions", [partial(self._lacks, topic, table_of(schema)) for topic, schema in wanted])
        if not any(empty) or (earlier := self._from_before()) is None:
            return empty
        return [is_empty and lacks for is_empty, lacks in zip(empty, earlier.lacks(wanted), strict=True)]

    def name_of(self, topic: str, table: str | None) -> str:
        """Return the subject of the schemas of a table on ``topic``. ``table``: the table's `namespace_of`.

        A subject of two tables would refuse the second one's schema, as one that is not compatible. A table keeps its
        own subject when it has the topic for itself again. Raises `Unavailable`.
        """
        if table is None or topic not in self._common:
            return f"{topic}-value"
        own = f"{topic}-{table}"
        with self._asking(f"look up {own}"):
            return own if topic in self._shared or self._has(own, topic) else f"{topic}-value"

    def newest_envelope(self, topic: str) -> bytes | None:
        """Return the header of the newest values of ``topic`` if they are in Debezium's envelope, otherwise None."""
        subject = f"{topic}-value"
        with self._asking(f"look up {subject}"):
            newest = self._versions(subject)[-1:]
        return next((confluent_header(each.id) for each in newest if is_envelope(each.schema)), None)

    def subject(self, topic: str, table: str | None = None) -> tuple[int, str | None]:
        """Return the number of versions of a table's subject, and its own compatibility. Raises `Unavailable`."""
        subject = self.name_of(topic, table)
        with self._asking(f"look up {subject}"):
            return len(self._numbers(subject)), self._compatibility(subject)

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """Return the names of all subjects. ``deleted``: include deleted ones. Raises `Unavailable`."""
        with self._asking("list its subjects"):
            try:
                found = self._client.get_subjects(deleted=deleted)
            except SchemaRegistryError as fault:
                if fault.http_status_code == 404:
                    raise LookupError("it has no list of subjects") from fault
                raise
            if not isinstance(found, list) or not all(isinstance(subject, str) for subject in found):
                raise TypeError(f"the answer is {type(found).__name__}, not a list of names")
            return found

    def refusal(self, topic: str, schema: Mapping[str, Any]) -> str:
        """Return why the registry would refuse to `register` a schema, "" if it would accept it. Changes nothing."""
        subject = self.name_of(topic, table_of(schema))
        with self._asking(f"compare a schema with {subject}"):
            versions = self._versions(subject)
            if problem := self._other_envelope(topic, versions, schema):
                return problem
            if not versions or any(same(version.schema, schema) for version in versions):
                return ""
            return self._refusal(topic, subject, versions, following(schema, [v.schema for v in versions]))

    def lookup(self, header: bytes) -> dict[str, Any] | None:
        """Return the schema of values with this header, or None if the relay has none. Asks the registry only once.

        While the registry does not answer, schemas stored by an earlier process are used. Raises `Unavailable`.
        """
        known = self._known.get(header)
        number = schema_id(header)
        if number is None and (earlier := self._from_before()) is not None:
            return earlier.lookup(header)
        if known is not None or number is None:
            return known
        try:
            with self._asking(f"look up schema id {number}"):
                answer = self._none_if_missing(self._client.get_schema, number)
                if answer is None or answer.schema_type != "AVRO" or not is_of_changes(found := _parsed(answer)):
                    return None
            return self._known.setdefault(header, found)
        except NoAnswer as error:
            for each, schema in self._kept().items():
                self._known.setdefault(each, schema)
            if header not in self._known:
                raise
            log.warning("%s. Values whose schemas an earlier process stored are still read", error)
            return self._known[header]

    def learn(self, topics: Iterable[str]) -> None:
        """Look up the schemas of all values now on ``topics``, even from before the registry. Raises `Unavailable`."""
        if (earlier := self._from_before()) is not None:
            earlier.refresh()
        topics = list(topics)
        # Also from before other tables shared a topic, and from while they did.
        for subject in [*(f"{topic}-value" for topic in topics), *self._of_tables(self._common.intersection(topics))]:
            with self._asking(f"look up {subject}"):
                for version in self._versions(subject, deleted=True):  # I1: values with this schema may still be there
                    if is_of_changes(version.schema):
                        self._known.setdefault(confluent_header(version.id), version.schema)

    def _from_before(self) -> TopicSchemas | None:
        with self._opening:
            if self._earlier is None and self._open_earlier is not None:
                self._earlier = self._open_earlier()
            return self._earlier

    def all(self) -> dict[bytes, dict[str, Any]]:
        return {**(self._earlier.all() if self._earlier is not None else {}), **self._known}

    def refresh(self) -> None:
        """Do nothing: the schema of an id never changes, and is looked up with the first value that has it."""

    def close(self) -> None:
        self._client.close()
        if self._earlier is not None:
            self._earlier.close()

    def _add(self, topic: str, subject: str, versions: Sequence[_Version], schema: Mapping[str, Any]) -> _Version:
        mine = following(schema, [version.schema for version in versions])
        candidate = _avro(mine)
        level = self._compatibility(subject)
        if not versions:
            if level is None:
                # Only if the subject's owner has not set one.
                self._client.set_compatibility(subject, COMPATIBILITY)
            number = self._client.register_schema(subject, candidate)
        elif not (problem := self._refusal(topic, subject, versions, mine)):
            number = self._client.register_schema(subject, candidate)
        elif self._on_incompatible == "fail":
            raise RelayError(f"{problem} Nothing was published with the new schema.")
        else:
            number = self._register_incompatible(subject, candidate, level, problem)
        # The client caches the schema that it sent. What matters is the schema that the registry returns to readers.
        self._client.clear_caches()  # type: ignore[no-untyped-call]
        return _Version(len(versions) + 1, number, _parsed(self._client.get_schema(number)))

    def _refusal(self, topic: str, subject: str, versions: Sequence[_Version], mine: Mapping[str, Any]) -> str:
        """Ask whether a schema can be the next version. Return why not, "" if it can."""
        level = self._compatibility(subject)
        transitive = level is not None and level.endswith("_TRANSITIVE")
        ask = self._client.test_compatibility_all_versions if transitive else self._client.test_compatibility
        if ask(subject, _avro(mine)):
            return ""
        return (
            f"the registry at {self._shown} refuses the new schema of the topic {topic}: it is not compatible with"
            f" version {versions[-1].number} of the subject {subject} (compatibility {level or 'by default'}):"
            f" {'; '.join(differences(versions[-1].schema, mine))}. Undo the change of the table; or, if all readers"
            " decode each value with the schema that wrote it, as the Spark consumers do, set"
            " `schema_registry: {on_incompatible: register}`."
        )

    def _register_incompatible(self, subject: str, candidate: Schema, level: str | None, problem: str) -> int:
        log.warning(
            "%s This is set, so the schema is registered: the compatibility of %s is NONE for that moment, and then "
            "restored",
            problem,
            subject,
        )
        try:
            self._client.set_compatibility(subject, "NONE")
            return self._client.register_schema(subject, candidate)
        finally:
            # If the registry's default refused the schema, the subject had no level of its own.
            self._restore(subject, "" if level in (None, "NONE") else level)

    def _other_envelope(self, topic: str, versions: Sequence[_Version], schema: Mapping[str, Any]) -> str:
        """Return why a schema cannot follow on ``topic`` if its newest one is for another envelope; otherwise ""."""
        before = versions or (self._versions(f"{topic}-value") if topic in self._shared else [])
        kinds = [(is_of_changes(each), is_envelope(each)) for each in (schema, *(each.schema for each in before[-1:]))]
        return refused_envelope(topic) if {*kinds} == {(True, False), (False, True)} else ""

    def _restore(self, subject: str, level: str) -> None:
        self._levels[subject] = level  # in case the registry does not answer
        if level:
            self._client.set_compatibility(subject, level)
        else:
            self._client.delete_config(subject)
        self._levels.pop(subject, None)

    def _versions(self, subject: str, *, deleted: bool = False) -> list[_Version]:
        """Return the versions of a subject, oldest first. ``deleted``: include deleted ones, while they are kept."""
        numbers = self._numbers(subject, deleted=deleted)
        found = [self._client.get_version(subject, number, deleted=deleted) for number in numbers]
        return [
            _Version(one.version, one.schema_id, _parsed(one.schema))
            for one in found
            if one.version is not None and one.schema_id is not None
        ]

    def _lacks(self, topic: str, table: str | None) -> bool:
        """Whether there is no schema of a table, not even from before other tables shared its topic."""
        if topic not in self._common:
            return not self._numbers(f"{topic}-value", deleted=True)
        if self._has(f"{topic}-{table}", topic):
            return False
        return all(table_of(each.schema) != table for each in self._versions(f"{topic}-value", deleted=True))

    def _has(self, subject: str, topic: str) -> bool:
        """Whether there is a subject of one table of ``topic``. A topic of one table needs no right to ask for it."""
        try:
            return bool(self._numbers(subject, deleted=True))
        except SchemaRegistryError as fault:
            if fault.http_status_code != 403 or topic in self._shared:
                raise
            return False

    def _of_tables(self, topics: Collection[str]) -> list[str]:
        """Return the subjects of tables that share, or have shared, one of the ``topics``."""
        if not topics:
            return []
        try:
            found = self.subjects(deleted=True)
        except NoAnswer:
            raise
        except Unavailable as error:
            if not self._shared.isdisjoint(topics):
                raise
            log.info("schemas from while a topic had several tables are not looked up: %s", error)
            return []
        matches = ((each, _OF_TABLE.fullmatch(each)) for each in found)
        return [each for each, match in matches if match is not None and match[1] in topics]

    def _numbers(self, subject: str, *, deleted: bool = False) -> list[int]:
        return sorted(self._none_if_missing(partial(self._client.get_versions, deleted=deleted), subject) or [])

    def _compatibility(self, subject: str) -> str | None:
        """Return the compatibility of a subject, or None if it has none of its own."""
        return self._none_if_missing(self._client.get_compatibility, subject)

    @staticmethod
    def _none_if_missing(ask: Callable[[K], T], wanted: K) -> T | None:
        try:
            return ask(wanted)
        except SchemaRegistryError as fault:
            if fault.http_status_code == 404 and fault.error_code in _MISSING:
                return None
            raise

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except SchemaRegistryError as fault:
            failed = f"{self.place} failed to {what}: {redacted(str(fault))}"
            if fault.http_status_code in (409, 422):
                raise RelayError(f"{self.place} refuses to {what}: {redacted(str(fault))}") from fault
            if fault.http_status_code in _OF_ANOTHER_SERVER and fault.error_code in (None, fault.UNKNOWN):
                raise self._no_registry(what, f"HTTP status {fault.http_status_code}") from fault
            if fault.http_status_code >= 500 or fault.http_status_code in _LATER:
                raise NoAnswer(failed) from fault
            hint = ": check `user` and `password`, `bearer`, or `tls`" if fault.http_status_code in (401, 403) else ""
            raise Unavailable(f"{failed}{hint}") from fault
        except httpx.HTTPError as fault:
            raise NoAnswer(f"{self.place} does not answer the request to {what}: {_shown(fault)}") from fault
        except (LookupError, TypeError, ValueError, OSError) as fault:
            # The client raises these if the answer does not come from a registry.
            raise self._no_registry(what, _shown(fault)) from fault

    def _no_registry(self, what: str, why: str) -> Unavailable:
        return Unavailable(
            f"{self._shown} did not answer like a schema registry to the request to {what}: check the URL ({why})"
        )


def _shown(fault: Exception) -> str:
    return str(redacted(str(fault) or type(fault).__name__))


def _avro(schema: Mapping[str, Any]) -> Schema:
    return Schema(orjson.dumps(schema).decode(), "AVRO")


def _parsed(schema: Schema | None) -> dict[str, Any]:
    """Return a schema from the registry as an object: somebody else may have registered any type under the subject."""
    found = orjson.loads((schema and schema.schema_str) or "null")
    return found if isinstance(found, dict) else {"type": found}
