"""The config of Kafka and the schema registry. Its keys are a contract with users."""

from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from relay.config.addresses import Brokers, Url
from relay.config.aws import IamConfig
from relay.config.errors import invalid, refuse, wrong_settings
from relay.config.model import SETTINGS, ConfigModel
from relay.config.tls import Tls
from relay.config.value_types import UserName
from relay.extras import needs

# Settings that every kind of client needs to connect to a broker and to trust it.
_CONNECTION = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.", "broker.address.")


class KafkaConfig(ConfigModel):
    bootstrap_servers: Brokers
    """Brokers to connect to first, as `host:port`, separated by commas."""

    partitions: int = Field(default=6, ge=1, le=10_000)
    """The number of partitions of a topic of changes, unless `topic_settings` says another. Never change it: the order
    per key depends on it."""

    producer: dict[str, Any] = Field(default_factory=dict, json_schema_extra=SETTINGS)
    """Settings of librdkafka. Settings of the connection (`security.*`, `sasl.*`, `ssl.*`) apply to every client."""

    iam: IamConfig | None = None
    """Log in to MSK with AWS tokens, over TLS. Every client then uses `security.protocol: sasl_ssl` and
    `sasl.mechanism: OAUTHBEARER`."""

    @field_validator("producer")
    @classmethod
    def _settings(cls, value: dict[str, Any]) -> dict[str, Any]:
        fixed = {
            "bootstrap.servers": "use `kafka.bootstrap_servers`",
            "transactional.id": "the relay chooses it",  # I3
            "partitioner": "the relay chooses every partition itself",  # I2
            "log.connection.close": "the relay learns from the log which connections have failed",  # I3
            "log_level": "the relay learns from the log which connections have failed",  # I3
        }
        if str(value.get("enable.idempotence", "true")).lower() != "true":
            fixed["enable.idempotence"] = "transactions require it to be true"  # I3
        if str(value.get("acks", "all")).lower() not in ("all", "-1"):
            fixed["acks"] = "transactions require `acks: all`"  # I3
        refuse(wrong_settings(value, fixed))
        return value

    @model_validator(mode="after")
    def _check_iam(self) -> Self:
        for key, value in self.producer.items() if self.iam else ():
            if key.startswith(("sasl.", "enable.sasl.")):
                raise invalid((("producer", key), "conflicts with `kafka.iam`, which logs in with tokens: remove it"))
            if key == "security.protocol" and str(value).lower() != "sasl_ssl":
                raise invalid((("producer", key), "must be sasl_ssl, since `kafka.iam` sends tokens in clear text"))
        return self

    def connection(self) -> dict[str, Any]:
        """Return the brokers and the file's connection settings for any client."""
        settings = {key: value for key, value in self.producer.items() if key.startswith(_CONNECTION)}
        return {"bootstrap.servers": self.bootstrap_servers, **settings}

    def client(self) -> dict[str, Any]:
        """Return the settings with which any librdkafka client connects: brokers, security, and a source of tokens."""
        if self.iam is None:
            return self.connection()
        with needs("aws", "`kafka.iam`"):
            from relay.aws.tokens import broker_tokens
        return {
            **self.connection(),
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": broker_tokens(self.iam.identity(self.iam.region)),
        }


class SchemaRegistryConfig(ConfigModel):
    url: Annotated[str, Url(("http", "https"))]
    """The URL of a registry with Confluent's API."""

    user: UserName | None = None
    """The name to log in with (HTTP basic authentication), such as an API key. It may also be in the URL."""

    password: str | None = Field(default=None, min_length=1)
    """The password of `user`, preferably as `${ENV}`."""

    bearer: str | None = Field(default=None, min_length=1)
    """The token to log in with (HTTP bearer authentication), preferably as `${ENV}`."""

    tls: Tls | None = None
    """Files for a URL with https: `ca`, the authorities to trust instead of the usual ones; `cert` and `key`, the
    client's own certificate."""

    on_incompatible: Literal["fail", "register"] = "fail"
    """What to do when the registry refuses the changed schema of a table: stop, or register it anyway by briefly
    setting the subject's compatibility to NONE."""

    @model_validator(mode="after")
    def _check_access(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("`user` and `password` belong together: set both, or neither")
        in_url = urlsplit(self.url).username is not None
        if [self.user is not None, self.bearer is not None, in_url].count(True) > 1:
            raise ValueError("set only one of: `user` and `password`; `bearer`; a name and password in `url`")
        if self.tls is not None and not self.url.startswith("https:"):
            raise invalid((("tls",), "needs a `url` that begins with https"))
        return self

    def access(self) -> dict[str, Any]:
        """Return the settings with which Confluent's client logs in."""
        names = {"ca": "ssl.ca.location", "cert": "ssl.certificate.location", "key": "ssl.key.location"}
        settings: dict[str, Any] = {names[key]: file for key, file in (self.tls or {}).items()}
        if self.user is not None:
            settings["basic.auth.user.info"] = f"{self.user}:{self.password}"
        if self.bearer is not None:
            settings["bearer.auth.credentials.source"] = "STATIC_TOKEN"
            settings["bearer.auth.token"] = self.bearer
            settings["bearer.auth.logical.cluster"] = ""  # only Confluent Cloud needs one, but the client requires it
        return settings
