"""The config of Spark for the consumers. Its keys are a contract with users."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator

from relay.config.addresses import PORT
from relay.config.errors import problems_in, refuse, wrong_settings
from relay.config.model import SETTINGS, ConfigModel, TextForm
from relay.errors import ConfigError

LOCAL = "local[*]"

_SPARK = rf"[^\s:/,]+:{PORT}"
_MASTER = TextForm(
    rf"local(\[[^]]+\])?|local-cluster\[[^]]+\]|yarn|k8s://\S+|spark://{_SPARK}(,{_SPARK})*",
    "{} is not a Spark master, such as local[*], spark://host:7077, yarn or k8s://URL",
)
_SETTING = re.compile(r"spark\.[^\s=]+")
_FIXED = {
    "spark.master": "use `spark.master`, or --master",
    "spark.submit.deployMode": "the driver is `relay consume` itself",
    "spark.remote": "the consumers do not run on Spark Connect: name the cluster in `spark.master`",
    "spark.api.mode": "the consumers run in the classic mode only",
}


class SparkConfig(ConfigModel):
    """Without ``master``, Spark runs in a process on this machine."""

    master: Annotated[str, _MASTER] = LOCAL
    """The cluster to run on, such as `spark://host:7077`, `yarn` or `k8s://https://host:443`."""

    conf: dict[str, Any] = Field(
        default_factory=dict, json_schema_extra={**SETTINGS, "propertyNames": {"pattern": f"^{_SETTING.pattern}$"}}
    )
    """Settings of Spark, such as `spark.executor.memory: 2g`."""

    connectors: str | None = Field(default=None, min_length=1)
    """Where the jars of Spark's connectors come from: the URL of a Maven repository, a folder with the jars, or
    `installed` if every machine has them among Spark's own jars. Default: Maven Central."""

    shared_folders: bool = False
    """Whether all machines of the cluster share local folders, such as by NFS. Otherwise a cluster refuses checkpoints
    and Delta tables in local folders."""

    @field_validator("conf")
    @classmethod
    def _settings(cls, value: dict[str, Any]) -> dict[str, str]:
        problems = wrong_settings(value, _FIXED)
        others = [key for key in value if not _SETTING.fullmatch(key)]
        refuse([*problems, *(((key,), "is not a Spark setting: their names begin with `spark.`") for key in others)])
        return {key: str(each).lower() if isinstance(each, bool) else str(each) for key, each in value.items()}

    def overridden(self, master: str | None, conf: Sequence[str]) -> Self:
        """Apply options. ``conf``: texts ``key=value``. Raises ``ConfigError``, which names the option."""
        settings: dict[str, str] = {}
        for text in conf:
            key, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"--conf {text}: must be key=value, such as spark.executor.memory=2g")
            settings[key] = value
        given: Mapping[str, Any] = {"conf": {**self.conf, **settings}} | ({"master": master} if master else {})
        try:
            return type(self).model_validate({**self.model_dump(exclude_unset=True), **given})
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            option = "--conf" if "conf" in detail["loc"] else "--master"
            path, problem = problems_in(detail)[0]
            raise ConfigError(f"{option} {' '.join((*map(str, path), problem))}") from None
