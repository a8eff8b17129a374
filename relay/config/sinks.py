"""The keys ``log`` and ``copy`` of the config file: where the consumers keep tables."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from relay.config.addresses import POSTGRES, Url
from relay.config.errors import invalid
from relay.config.fields import ConfigModel, Seconds
from relay.config.locations import WITHOUT_COLON, misread, path_of
from relay.config.schema_forms import like


class TablesConfig(ConfigModel):
    """What the log and the copy have in common; a copy in PostgreSQL has no upkeep."""

    apply_every: Seconds = Field(default="2s", validate_default=True)
    """How long a change may wait to be written together with later ones. 50,000 are written at once."""

    maintain_every: Seconds = Field(default="1d", validate_default=True)
    """How often the consumer merges small files, and deletes files that no kept version needs."""

    keep_versions: Seconds = Field(default="7d", validate_default=True)
    """For how long an earlier version can be read, also by a query that has begun with it."""


_OF_DELTA = {"maintain_every", "keep_versions"}


def _in_delta(location: str) -> str:
    """Refuse a folder of this machine that would be taken for another one, or for one of another store."""
    if location.startswith("~"):
        raise ValueError("~ is not replaced by a home folder: write the folder in full")
    bare = location.removeprefix("delta+")
    if (problem := misread(bare)) is not None:
        raise ValueError(problem)
    if bare != location and path_of(bare) is not None:
        raise ValueError(f"is a folder of this machine: write delta://{bare.partition(':')[2].removeprefix('//')}")
    return location


class LogConfig(TablesConfig):
    path: Annotated[
        str,
        Field(min_length=1),
        AfterValidator(_in_delta),
        like(rf"(?!(?:file|delta):(?!///|/(?!/))|~|delta\+(?:file|delta):|(?:delta\+)?{WITHOUT_COLON}).+"),
    ]
    """Where to keep the change log, such as `file:///var/lib/relay/log` or `s3a://bucket/log`."""


def in_database(url: str) -> bool:
    """Whether a copy with this URL is kept in a database, which keeps its tables small by itself."""
    return url.partition(":")[0] in POSTGRES


class CopyConfig(TablesConfig):
    url: Annotated[str, AfterValidator(_in_delta), Url(("delta", *POSTGRES), prefix="delta+")]
    """Where to keep the copy, such as `delta:///var/lib/relay/copy`, `delta+s3a://bucket/copy` or
    `postgresql://user:password@host:5432/db`."""

    tombstone_retention: Seconds = Field(default="30d", validate_default=True)
    """How long the copy remembers a deleted row. A change older than this, applied again, may bring the row back."""

    items: Literal["json", "variant"] = "json"
    """How the copy keeps DynamoDB's items and other JSON: as text, or as VARIANT in Delta and `jsonb` in PostgreSQL."""

    @property
    def location(self) -> str | None:
        """The location of the files of its tables, which are in Delta; None if they are in a database."""
        return None if in_database(self.url) else self.url

    @model_validator(mode="after")
    def _upkeep_of_delta(self) -> Self:
        given = sorted(self.model_fields_set & _OF_DELTA)
        if given and self.location is None:
            raise invalid(((given[0],), "is for a copy in Delta; PostgreSQL vacuums by itself: remove it"))
        return self

    @model_serializer(mode="wrap", when_used="json")
    def _without_upkeep(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what a file may not have."""
        found: dict[str, Any] = serialize(self)
        return {key: each for key, each in found.items() if self.location is not None or key not in _OF_DELTA}
