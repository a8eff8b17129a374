"""Describe a table and its stream, and say what to do if the relay, or ``relay check``, cannot read them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config as BotoConfig
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
)

from relay.aws import Refused
from relay.aws.identity import SET_CREDENTIALS, open_session, region
from relay.config.errors import nearest
from relay.dynamodb.account_pace import pace_of
from relay.dynamodb.batch import Item, Key, batch_load
from relay.dynamodb.lean_calls import make_calls_lean
from relay.dynamodb.raw_records import keep_records_raw
from relay.dynamodb.stream_calls import BAD_CREDENTIALS, AnswerDates, code_of, is_transient
from relay.errors import ConfigError, Unavailable
from relay.process.service_clock import ServiceClock
from relay.table import KeyColumn

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

    from relay.config import DynamoDBConfig

log = logging.getLogger(__name__)

T = TypeVar("T")

_NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError)
_ANY_CREDENTIALS = "DynamoDB Local accepts any credentials, such as AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local"
_TRIES = 3

CREATION_PATIENCE = 300.0
"""Seconds to wait for a table that is being created."""

# Seconds by which the time in a stream's label may precede the creation time of its table.
_LABEL_MARGIN = 5.0


class NotAllowed(Unavailable):
    """The credentials do not allow the call."""


class Missing(Unavailable):
    """The table or the stream does not exist."""


@dataclass(frozen=True, slots=True)
class Description:
    """A table with a stream. ``key``: hash column first. ``created_at``: see `birth`.

    ``attributes``: the types (``S``, ``N``, ``B``) of the key attributes of the table and its indexes, by name.
    """

    table: str
    table_arn: str
    stream_arn: str
    stream_label: str
    view_type: str
    key: tuple[KeyColumn, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)
    created_at: float = 0.0


class TableCalls:
    """The clients of one source, and the calls about its table and stream. Connects when first used. Thread-safe.

    ``probe``: give up after at most 11 seconds, for a check that a person waits for; otherwise after about a minute.
    ``clock``: receives the time of each answer. ``streams.get_records`` returns raw records, by lean calls.

    Raises ``ConfigError`` if the region or the profile is missing. All methods raise ``Unavailable`` where DynamoDB
    cannot be reached or refuses the call.
    """

    def __init__(self, source: DynamoDBConfig, *, probe: bool = False, clock: ServiceClock | None = None) -> None:
        self.source = source
        settings = BotoConfig(
            connect_timeout=3 if probe else 5,
            read_timeout=5 if probe else 20,
            retries={"mode": "standard", "total_max_attempts": 2 if probe else 3},
            # One connection for each shard that is read at the same time.
            max_pool_connections=64,
            tcp_keepalive=True,
            user_agent_extra="relay",
        )
        # Callers retry failed DynamoDB Streams calls themselves: the pool of readers, or the `Pace` of listings.
        once = settings.merge(BotoConfig(retries={"mode": "standard", "total_max_attempts": 1}))
        try:
            opened, url = open_session(source.identity(source.region_name)), source.endpoint_url
            session = boto3.session.Session(botocore_session=opened, region_name=region(opened))
            self.dynamodb: DynamoDBClient = session.client("dynamodb", endpoint_url=url, config=settings)
            self.streams: DynamoDBStreamsClient = session.client("dynamodbstreams", endpoint_url=url, config=once)
        except ConfigError as error:
            raise ConfigError(f"source {source.name}: {error}") from error
        dates = AnswerDates(clock or ServiceClock())
        dates.listen(self.dynamodb)
        dates.listen(self.streams)
        keep_records_raw(self.streams)
        make_calls_lean(self.streams, dates)
        self.at, self._streams_at = (
            f"in region {each.meta.region_name} at {each.meta.endpoint_url}" for each in (self.dynamodb, self.streams)
        )

    def close(self) -> None:
        self.dynamodb.close()
        self.streams.close()

    def describe(self, patience: float = CREATION_PATIENCE) -> Description:
        """Describe the table and its stream. ``patience``: seconds to wait for a table that is CREATING.

        Raises ``Unavailable`` also if the table or stream does not exist, or the stream is disabled.
        """
        source, where = self.source, f"source {self.source.name}: table {self.source.table_name!r}"
        table, deadline = self.table(), time.monotonic() + patience
        if table.get("TableStatus") == "CREATING" and patience:
            log.warning("%s is CREATING: waiting up to %.0f s for it", where, patience)
        while (status := table.get("TableStatus", "ACTIVE")) not in ("ACTIVE", "UPDATING"):
            left = deadline - time.monotonic()
            if status != "CREATING" or left <= 0:
                raise Unavailable(f"{where} {self.at} is {status}: start again when it is ACTIVE")
            time.sleep(min(1.0, left))
            table = self.table()
        stream = self._stream(
            source.stream_arn or self._current_stream(table),
            missing=f"does not exist, or no longer exists, {self._streams_at}: check `stream_arn` and `region`",
        )
        types = {column["AttributeName"]: column["AttributeType"] for column in table["AttributeDefinitions"]}
        key = sorted(table["KeySchema"], key=lambda column: column["KeyType"] != "HASH")
        return Description(
            table=table["TableName"],
            table_arn=table["TableArn"],
            stream_arn=stream["StreamArn"],
            stream_label=stream["StreamLabel"],
            view_type=stream["StreamViewType"],
            key=tuple(KeyColumn(column["AttributeName"], types[column["AttributeName"]]) for column in key),
            attributes=types,
            created_at=birth(table),
        )

    def table(self) -> Any:
        name = self.source.table_name
        doing = f"to describe the table {name}"
        try:
            return self.ask(doing, lambda: self.dynamodb.describe_table(TableName=name)["Table"])
        except Missing as error:
            with suppress(ClientError, BotoCoreError, Refused):  # only a hint, which needs no permission
                if like := nearest(name, self.dynamodb.list_tables()["TableNames"]):
                    raise Missing(f"{error}; did you mean `{like}`?") from error
            raise

    def stream_labels(self, table: Description) -> list[str]:
        """Return the labels of the streams of ``table`` that can be read, oldest first. Also raises ``NotAllowed``.

        A stream can be read for 24 hours after it was disabled, and may be listed for longer. Streams of an earlier
        table with the same name are left out.
        """
        arguments: dict[str, Any] = {"TableName": table.table}
        labels = {table.stream_label}
        while True:
            page = self.ask(
                f"to list the streams of table {table.table}",
                lambda: self.streams.list_streams(**arguments),
                stream=table.stream_arn,
            )
            labels |= {
                stream["StreamLabel"]
                for stream in page["Streams"]
                if created(stream["StreamLabel"]) >= table.created_at - _LABEL_MARGIN
            }
            if not page.get("LastEvaluatedStreamArn"):
                return [label for label in sorted(labels) if self._is_readable(table, label)]
            arguments["ExclusiveStartStreamArn"] = page["LastEvaluatedStreamArn"]

    def _is_readable(self, table: Description, label: str) -> bool:
        if label != table.stream_label:
            try:
                self._stream(f"{table.table_arn}/stream/{label}", missing="does not exist")
            except Missing:
                return False
            except NotAllowed:  # I1: if describing is not allowed, an error follows when the stream is read
                return True
        return True

    def _stream(self, arn: str, *, missing: str) -> Any:
        return self.ask(
            f"to describe the stream {arn}",
            lambda: self.streams.describe_stream(StreamArn=arn, Limit=1)["StreamDescription"],
            stream=arn,
            missing=f"stream {arn} {missing}",
        )

    @cached_property
    def first_names(self) -> frozenset[str]:
        """The attributes in about the first MB of the table's items, looked up once. Also raises ``NotAllowed``."""
        name = self.source.table_name
        items = self.ask(f"to look at items of the table {name}", lambda: self.dynamodb.scan(TableName=name)["Items"])
        return frozenset(attribute for item in items for attribute in item)

    def load(self, keys: Iterable[Key]) -> list[Item]:
        name = self.source.table_name
        return self.ask(
            f"to read items of the table {name}",
            lambda: batch_load(self.dynamodb, {name: keys}, consistent=True).items[name],
        )

    def _current_stream(self, table: Any) -> str:
        if table.get("StreamSpecification", {}).get("StreamEnabled") and (arn := table.get("LatestStreamArn")):
            return str(arn)
        name, url = table["TableName"], self.source.endpoint_url
        raise Unavailable(
            f"source {self.source.name}: table {name!r} {self.at} has no stream: enable it with "
            f"`aws dynamodb update-table --table-name {name} --region {self.dynamodb.meta.region_name} "
            f"{f'--endpoint-url {url} ' if url else ''}"
            "--stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES`"
        )

    def ask(self, doing: str, call: Callable[[], T], *, stream: str | None = None, missing: str = "") -> T:
        """Return the result of ``call``. ``doing``: what was tried, beginning with "to".

        ``stream``: the ARN of the stream that a call of DynamoDB Streams is about; the call is retried at the account's
        pace, at most twice. ``missing``: the message if something does not exist, by default about the table.
        """
        where, at = f"source {self.source.name}: ", self._streams_at if stream else self.at
        try:
            return call() if stream is None else pace_of(self.streams, stream).repeat(call, _TRIES, _is_passing)
        except Refused as error:
            raise Refused(f"{where}{error}") from error
        except _NO_CREDENTIALS as error:
            hint = _ANY_CREDENTIALS if self.source.endpoint_url else SET_CREDENTIALS
            raise Unavailable(f"{where}no AWS credentials {doing}: {error}; {hint}") from error
        except ClientError as error:
            code, message = code_of(error), error.response.get("Error", {}).get("Message", "")
            if code == "ResourceNotFoundException":
                check = "check `table`, `region` and `endpoint_url`"
                no_table = f"table {self.source.table_name!r} does not exist {at}: {check}"
                raise Missing(where + (missing or no_table)) from error
            if code in BAD_CREDENTIALS:
                raise Unavailable(f"{where}DynamoDB {at} refuses the AWS credentials: {message}") from error
            if code.startswith("AccessDenied"):
                raise NotAllowed(f"{where}not allowed {doing} {at}: {message}") from error
            if code.isdigit() and "<html" in message.lower():  # the answer does not come from DynamoDB
                raise Unavailable(
                    f"{where}the server {at} is not DynamoDB, or is a proxy in front of it: it answered {code} to a "
                    f"request {doing}: check `endpoint_url`"
                ) from error
            raise Unavailable(f"{where}DynamoDB {at} refuses {doing}: {code}: {message}") from error
        except BotoCoreError as error:
            raise Unavailable(f"{where}DynamoDB {at} cannot be reached: {error}") from error


def birth(table: Any) -> float:
    """Return when a table was created, in seconds since the epoch, 0 if unknown: it tells tables of one name apart."""
    return float(table["CreationDateTime"].timestamp()) if "CreationDateTime" in table else 0.0


def created(label: str) -> float:
    """Return when the stream with this ``label`` was created, in seconds since the epoch."""
    return datetime.fromisoformat(label).replace(tzinfo=UTC).timestamp()


def _is_passing(error: Exception) -> bool:
    if isinstance(error, ClientError):
        return is_transient(error)
    return isinstance(error, BotoCoreError) and not isinstance(error, _NO_CREDENTIALS)
