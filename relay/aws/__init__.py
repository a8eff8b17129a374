"""Access to AWS: credentials, and the tokens that RDS and MSK accept as passwords. The modules here need boto3."""

from dataclasses import dataclass

from relay.errors import Unavailable

SESSION_NAME = "relay"
"""The name of a role's session, unless the config gives another."""


class Refused(Unavailable):
    """AWS refuses the credentials, or there are none."""


@dataclass(frozen=True, slots=True)
class AwsIdentity:
    """Keys have the names and meanings of AWS's own config file. ``region``: None for the environment's."""

    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    role_session_name: str | None = None
