"""Describe a table and its stream, and say what to do if the relay cannot read them.

The relay uses this when it starts, and ``relay check`` prints the same messages. The calls that read the stream are in
``relay.dynamodb.session``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config as BotoConfig
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    TokenRetrievalError,
)

from relay.aws import Refused
from relay.aws.identity import SET_CREDENTIALS, open_session
from relay.config.declared import declared_table
from relay.dynamodb.answer_dates import AnswerDates
from relay.dynamodb.batch import Item, Key, batch_load
from relay.dynamodb.lean_calls import make_calls_lean
from relay.dynamodb.pace import Pace, pace_of
from relay.dynamodb.raw_records import keep_records_raw
from relay.dynamodb.session import BAD_CREDENTIALS, code_of, is_transient, time_to_live
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
_READABLE = {"ACTIVE", "UPDATING"}
_TRIES = 3

CREATION_PATIENCE = 300.0
"""Seconds to wait for a table that is being created."""

# Seconds by which the time in a stream's label may be before the creation time of its table.
_LABEL_MARGIN = 5.0


class NotAllowed(Unavailable):
    """The credentials do not allow the call."""


@dataclass(frozen=True, slots=True)
class Description:
    """A table with a stream. ``key``: hash column first. ``view_type``: a StreamViewType.

    ``created_at``: when the table was created, in seconds since the epoch, 0 if that is not known.

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


def clients(
    source: DynamoDBConfig, *, probe: bool = False, clock: ServiceClock | None = None
) -> tuple[DynamoDBClient, DynamoDBStreamsClient]:
    """Return the clients of DynamoDB and DynamoDB Streams, without connecting. Threads may share them.

    ``probe``: give up after at most 11 seconds, for a check that a person waits for; otherwise after about a minute.
    ``clock``: is told the time of each answer. ``get_records`` returns raw records (``relay.dynamodb.raw_records``), by
    lean calls (``relay.dynamodb.lean_calls``). Raises ``ConfigError`` if the region or the profile is missing.
    """
    settings = BotoConfig(
        connect_timeout=3 if probe else 5,
        read_timeout=5 if probe else 20,
        retries={"mode": "standard", "total_max_attempts": 2 if probe else 3},
        # One connection for each shard that is read at the same time.
        max_pool_connections=64,
        tcp_keepalive=True,
        user_agent_extra="relay",
    )
    # Callers repeat a failed call of DynamoDB Streams themselves: the pool of readers, or the `Pace` of listings.
    once = settings.merge(BotoConfig(retries={"mode": "standard", "total_max_attempts": 1}))
    try:
        session = boto3.session.Session(botocore_session=open_session(source.identity(source.region_name)))
        dynamodb = session.client("dynamodb", endpoint_url=source.endpoint_url, config=settings)
        streams = session.client("dynamodbstreams", endpoint_url=source.endpoint_url, config=once)
    except NoRegionError as error:
        raise ConfigError(f"source {source.name}: no region is given: set `region` or AWS_DEFAULT_REGION") from error
    except ConfigError as error:
        raise ConfigError(f"source {source.name}: {error}") from error
    dates = AnswerDates(clock or ServiceClock())
    dates.listen(dynamodb)
    dates.listen(streams)
    keep_records_raw(streams)
    make_calls_lean(streams, dates)
    return dynamodb, streams


def describe(
    client: DynamoDBClient,
    source: DynamoDBConfig,
    streams: DynamoDBStreamsClient,
    *,
    patience: float = CREATION_PATIENCE,
) -> Description:
    """Look up the table of ``source`` and its stream. ``patience``: seconds to wait for a table that is CREATING.

    Raises ``Unavailable``, saying what to do, if DynamoDB cannot be reached or refuses the call, if the table or the
    stream does not exist, and if the table's stream is disabled.
    """
    name = source.table_name
    where = f"source {source.name}: "
    at = f"in region {client.meta.region_name} at {client.meta.endpoint_url}"
    deadline = time.monotonic() + patience
    warned = False
    while True:
        table = _table(client, source)
        status = table.get("TableStatus", "ACTIVE")
        if status in _READABLE:
            break
        left = deadline - time.monotonic()
        if status != "CREATING" or left <= 0:
            raise Unavailable(f"{where}table {name!r} {at} is {status}: start again when it is ACTIVE")
        if not warned:
            log.warning("%stable %r is CREATING: waiting up to %.0f s for it", where, name, patience)
            warned = True
        time.sleep(min(1.0, left))
    stream_arn = source.stream_arn or _current_stream(table, source, client)
    answer = ask(
        source,
        streams,
        f"to describe the stream {stream_arn}",
        lambda: streams.describe_stream(StreamArn=stream_arn, Limit=1),
        missing=f"stream {stream_arn} does not exist, or no longer, {at}: check `stream_arn` and `region`",
        pace=pace_of(streams, stream_arn),
    )
    stream = answer["StreamDescription"]
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


def measure(client: DynamoDBClient, source: DynamoDBConfig) -> tuple[int, int, float]:
    """Return the table's size in bytes and its number of items, which DynamoDB counts every six hours, and its `birth`.

    Raises ``Unavailable``.
    """
    table = _table(client, source)
    return int(table.get("TableSizeBytes", 0)), int(table.get("ItemCount", 0)), birth(table)


def birth(table: Any) -> float:
    """Return when a described table was created, in seconds since the epoch, 0 if that is not known.

    This tells it from another table of the same name.
    """
    return float(table["CreationDateTime"].timestamp()) if "CreationDateTime" in table else 0.0


def newest(client: DynamoDBClient, source: DynamoDBConfig) -> str | None:
    """Return the label of the newest stream of the table, disabled or not. Raises ``Unavailable``."""
    label = _table(client, source).get("LatestStreamLabel")
    return None if label is None else str(label)


def stream_labels(client: DynamoDBStreamsClient, source: DynamoDBConfig, table: Description) -> list[str]:
    """Return the labels of the streams of ``table`` that can be read, oldest first.

    A stream can be read for 24 hours after it was disabled, and may be listed for longer. Streams of an earlier table
    with the same name are left out. Raises ``NotAllowed``, ``Unavailable``.
    """
    arguments: dict[str, Any] = {"TableName": table.table}
    labels = {table.stream_label}
    while True:
        page = ask(
            source,
            client,
            f"to list the streams of table {table.table}",
            lambda: client.list_streams(**arguments),
            missing=f"table {table.table!r} does not exist any longer",
            pace=pace_of(client, table.stream_arn),
        )
        labels |= {
            stream["StreamLabel"]
            for stream in page["Streams"]
            if created(stream["StreamLabel"]) >= table.created_at - _LABEL_MARGIN
        }
        if not page.get("LastEvaluatedStreamArn"):
            return [label for label in sorted(labels) if _is_readable(client, source, table, label)]
        arguments["ExclusiveStartStreamArn"] = page["LastEvaluatedStreamArn"]


def _is_readable(client: DynamoDBStreamsClient, source: DynamoDBConfig, table: Description, label: str) -> bool:
    """Whether a listed stream still exists. Whoever may not describe it hears that when it is read (I1)."""
    if label == table.stream_label:
        return True
    arn = f"{table.table_arn}/stream/{label}"

    def exists() -> bool:
        try:
            client.describe_stream(StreamArn=arn, Limit=1)
        except client.exceptions.ResourceNotFoundException:
            return False
        return True

    with suppress(NotAllowed):
        missing = f"stream {arn} does not exist"
        return ask(source, client, f"to describe the stream {arn}", exists, missing=missing, pace=pace_of(client, arn))
    return True


def created(label: str) -> float:
    """Return when the stream with this ``label`` was created, in seconds since the epoch."""
    return datetime.fromisoformat(label).replace(tzinfo=UTC).timestamp()


def _table(client: DynamoDBClient, source: DynamoDBConfig) -> Any:
    name = source.table_name
    at = f"in region {client.meta.region_name} at {client.meta.endpoint_url}"
    return ask(
        source,
        client,
        f"to describe the table {name}",
        lambda: client.describe_table(TableName=name)["Table"],
        missing=f"table {name!r} does not exist {at}: check `table`, `region` and `endpoint_url`",
    )


def first_items(client: DynamoDBClient, source: DynamoDBConfig) -> Sequence[Mapping[str, Any]]:
    """Return about the first MB of the items of the table. Raises ``NotAllowed``, ``Unavailable``."""
    table = source.table_name
    call, missing = (lambda: client.scan(TableName=table)["Items"]), f"table {table!r} does not exist any longer"
    return ask(source, client, f"to look at items of the table {table}", call, missing=missing)


def differences(client: DynamoDBClient, source: DynamoDBConfig, model: str) -> list[str]:
    """Return one message for each way in which the table of ``source`` is less than its class declares.

    ``model``: the path of the class. Raises ``Unavailable``.
    """
    table = _table(client, source)
    ttl = ask(
        source,
        client,
        f"to describe the time to live of table {source.table_name}",
        lambda: time_to_live(client, source.table_name),
        missing=f"table {source.table_name!r} does not exist any longer",
    )
    return list(declared_table(model).__differences__(table, ttl))


def load(client: DynamoDBClient, source: DynamoDBConfig, keys: Iterable[Key]) -> list[Item]:
    """Return the items of the keys that have one, read consistently. Raises ``Unavailable``."""
    table = source.table_name
    loaded = ask(
        source,
        client,
        f"to read items of the table {table}",
        lambda: batch_load(client, {table: keys}, consistent=True),
        missing=f"table {table!r} no longer exists",
    )
    return loaded.items[table]


def _current_stream(table: Any, source: DynamoDBConfig, client: DynamoDBClient) -> str:
    arn = table.get("LatestStreamArn")
    if not arn or not table.get("StreamSpecification", {}).get("StreamEnabled"):
        name, region = table["TableName"], client.meta.region_name
        endpoint = f"--endpoint-url {source.endpoint_url} " if source.endpoint_url else ""
        raise Unavailable(
            f"source {source.name}: table {name!r} in region {region} at {client.meta.endpoint_url} has no stream: "
            f"enable it with `aws dynamodb update-table --table-name {name} --region {region} {endpoint}"
            "--stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES`"
        )
    return str(arn)


def _is_passing(error: Exception) -> bool:
    if isinstance(error, ClientError):
        return is_transient(error)
    return isinstance(error, BotoCoreError) and not isinstance(error, _NO_CREDENTIALS)


def ask(
    source: DynamoDBConfig,
    client: DynamoDBClient | DynamoDBStreamsClient,
    doing: str,
    call: Callable[[], T],
    *,
    missing: str,
    pace: Pace | None = None,
) -> T:
    """Return what ``call`` returns. Raises ``Unavailable``, saying what to do, where DynamoDB refuses it.

    ``doing``: what was tried, beginning with "to". ``missing``: the message where something does not exist. ``pace``:
    if given, a call that is throttled or not answered is repeated at this pace, at most twice.
    """
    where = f"source {source.name}: "
    at = f"in region {client.meta.region_name} at {client.meta.endpoint_url}"
    try:
        return call() if pace is None else pace.repeat(call, _TRIES, _is_passing)
    except Refused as error:
        raise Refused(f"{where}{error}") from error
    except _NO_CREDENTIALS as error:
        hint = (
            "; DynamoDB Local accepts any, such as AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local"
            if source.endpoint_url
            else f"; {SET_CREDENTIALS}"
        )
        raise Unavailable(f"{where}no AWS credentials {doing}: {error}{hint}") from error
    except ClientError as error:
        code, message = code_of(error), error.response.get("Error", {}).get("Message", "")
        if code == "ResourceNotFoundException":
            raise Unavailable(where + missing) from error
        if code in BAD_CREDENTIALS:
            raise Unavailable(f"{where}DynamoDB {at} refuses the AWS credentials: {message}") from error
        if code.startswith("AccessDenied"):
            raise NotAllowed(f"{where}not allowed {doing} {at}: {message}") from error
        if code.isdigit() and "<html" in message.lower():  # not one of DynamoDB
            raise Unavailable(
                f"{where}what answers {at} is not DynamoDB, or a proxy before it: it answers {code} to a request "
                f"{doing}: check `endpoint_url`"
            ) from error
        raise Unavailable(f"{where}DynamoDB {at} refuses {doing}: {code}: {message}") from error
    except BotoCoreError as error:
        raise Unavailable(f"{where}DynamoDB {at} cannot be reached: {error}") from error
