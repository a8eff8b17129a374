"""The config of the port with metrics, health and the status page: an address, or an address and who has access."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticKnownError

from relay.config.addresses import Address, RemoteAddress, host_port
from relay.config.model import ConfigModel
from relay.config.value_types import UserName

Secret = Annotated[str, Field(min_length=1)]


class HttpConfig(ConfigModel):
    """An address alone is the same as a mapping with only ``address``."""

    address: Address
    """Where `relay run` serves its metrics, health and status, such as `127.0.0.1:9400`. Worker *n* of several on one
    machine uses the *n*-th port above it."""

    user: UserName | None = None
    """Clients must send this name and `password` (HTTP basic authentication). Browsers ask the user for them."""

    password: Secret | None = None
    """The password of `user`, preferably as `${ENV}`."""

    bearer: Secret | None = None
    """Clients must send this token (HTTP bearer authentication), preferably as `${ENV}`. With `user` as well, either
    is enough."""

    certificate: Secret | None = None
    """A PEM file with the server's certificate and the chain to its authority. With it, the port answers TLS only."""

    key: Secret | None = None
    """The PEM file with the key of `certificate`, if the key is in a file of its own."""

    authorities: Secret | None = None
    """A PEM file with the authorities that signed the certificates of `peers`. Default: the system's."""

    peers: list[RemoteAddress] = Field(default_factory=list)
    """The ports of other workers and of consumers, such as `relay-2:9400`, which this status page also shows. They have
    the same `user`, `password` and `bearer`, and all use TLS or none does. The port's own address may be listed."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("`user` and `password` belong together: set both, or neither")
        if self.certificate is None and (self.key or self.authorities):
            raise ValueError("`key` and `authorities` need a port with TLS: set `certificate`")
        return self


def _with_address(value: Any) -> Any:
    if isinstance(value, (dict, HttpConfig)):
        return value
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    host_port(value)
    return {"address": value}


Http = Annotated[HttpConfig, BeforeValidator(_with_address, json_schema_input_type=Address | HttpConfig)]
