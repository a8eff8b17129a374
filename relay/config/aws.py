"""The AWS credentials that a config uses. The keys are a contract with users; AWS's own config file has them, too."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from relay.aws import AwsIdentity
from relay.config.errors import invalid
from relay.config.model import ConfigModel, TextForm

_ROLE = TextForm(
    r"arn:[\w-]+:iam::\d{12}:role/\S+", "{} is not the ARN of a role, such as arn:aws:iam::123456789012:role/relay"
)
_SESSION = TextForm("[A-Za-z0-9_+=,.@-]{2,64}", "{} must consist of 2 to 64 letters, digits and +=,.@_-")


class AwsConfig(ConfigModel):
    profile: str | None = Field(default=None, min_length=1)
    """The profile in AWS's config files that has the credentials. Default: the credentials of the environment,
    such as AWS_PROFILE, or the role of the machine or pod."""

    role_arn: Annotated[str, _ROLE] | None = None
    """The role to assume with these credentials, such as `arn:aws:iam::123456789012:role/relay`."""

    external_id: str | None = Field(default=None, min_length=2)
    """The external id that the role's trust policy requires."""

    role_session_name: Annotated[str, _SESSION] | None = None
    """The name of the session in CloudTrail. Default: `relay`."""

    @model_validator(mode="after")
    def _of_a_role(self) -> Self:
        for key in ("external_id", "role_session_name"):
            if self.role_arn is None and getattr(self, key) is not None:
                raise invalid(((key,), "only applies to a role: set `role_arn`"))
        return self

    def identity(self, region: str | None) -> AwsIdentity:
        return AwsIdentity(region, self.profile, self.role_arn, self.external_id, self.role_session_name)


class IamConfig(AwsConfig):
    """An empty mapping uses the credentials and the region of the environment."""

    region: str | None = Field(default=None, min_length=1)
    """The region of the servers. Default: the AWS environment's."""
