"""AWS credentials: from the environment, from a profile, or from a role that is assumed with those."""

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from typing import Any

from botocore import credentials
from botocore.config import Config as BotoConfig
from botocore.credentials import CredentialProvider, CredentialResolver, DeferredRefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.loaders import Loader
from botocore.session import Session

from relay.aws import SESSION_NAME, AwsIdentity, Refused
from relay.errors import ConfigError

SET_CREDENTIALS = "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
"""What to do if there are no credentials."""

# botocore accepts a name with a newline at its end, and raises its own error for other bad names.
_REGION = re.compile("[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
# A person may be waiting for the answer in `relay check`.
_STS = BotoConfig(connect_timeout=3, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 2})
# Shared by all clients, because reading the descriptions of services is most of the time it takes to make a client. Its
# cache only grows; two threads that load an entry at the same time load the same one.
_LOADER: Any = Loader()


def open_session(identity: AwsIdentity, *, now: Callable[[], datetime] | None = None) -> Session:
    """Return a session of botocore, without connecting. Its clients may be shared by threads, but not the session.

    Making a client, or its first call, raises ``Refused`` if the role may not be assumed, and botocore's
    ``CredentialRetrievalError`` if AWS cannot be asked now. Raises ``ConfigError`` for a missing profile or a malformed
    region. ``now``: the clock that decides when credentials are old.
    """
    base = _session(identity)
    if identity.role_arn is None:
        return base
    session = _session(identity)
    assumed = CredentialResolver([_AssumedRole(base, identity, now)])
    session.register_component("credential_provider", assumed)
    return session


def region(session: Session) -> str:
    """Return the region of a session. Raises ``ConfigError`` if neither the config nor the environment has one."""
    found = session.get_config_variable("region")
    if not found:
        raise ConfigError("no region is given: set `region` or AWS_DEFAULT_REGION")
    return str(found)


def _session(identity: AwsIdentity) -> Session:
    session = Session(profile=identity.profile)
    session.register_component("data_loader", _LOADER)
    if identity.region is not None:
        session.set_config_variable("region", identity.region)
    try:
        session.get_scoped_config()
    except ProfileNotFound as error:
        raise ConfigError(f"{error}: correct {'`profile`' if identity.profile else 'AWS_PROFILE'}") from error
    named = session.get_config_variable("region")
    if named and not _REGION.fullmatch(named):
        where = "`region`" if identity.region is not None else "AWS_DEFAULT_REGION, or the profile"
        raise ConfigError(f"{named!r} is not an AWS region such as eu-west-1: correct {where}")
    return session


class _AssumedRole(CredentialProvider):
    """Provides the credentials of a role to a session. ``base``: the session whose credentials may assume it."""

    METHOD = "assume-role"

    def __init__(self, base: Session, identity: AwsIdentity, now: Callable[[], datetime] | None) -> None:
        super().__init__()
        self._base = base
        self._identity = identity
        self._clock = {} if now is None else {"time_fetcher": now}

    def load(self) -> DeferredRefreshableCredentials:
        return DeferredRefreshableCredentials(self._assume, self.METHOD, **self._clock)

    def _assume(self) -> Mapping[str, str]:
        """Assume the role. botocore calls this in one thread at a time."""
        role = str(self._identity.role_arn)
        arguments = {"RoleSessionName": self._identity.role_session_name or SESSION_NAME}
        if self._identity.external_id is not None:
            arguments["ExternalId"] = self._identity.external_id
        try:
            client: Any = self._base.create_client("sts", region_name=region(self._base), config=_STS)
            with closing(client):
                answer = client.assume_role(RoleArn=role, **arguments)["Credentials"]
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise Refused(f"cannot assume role {role}: no AWS credentials: {error}; {SET_CREDENTIALS}") from error
        except ClientError as error:
            code, message = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
            status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
            if status >= 500 or "Throttl" in code:
                raise CredentialRetrievalError(provider=role, error_msg=str(error)) from error
            raise Refused(
                f"AWS does not let the relay assume the role {role}: {code}: {message}: check `role_arn`, "
                "`external_id`, the role's trust policy, and that the relay's own credentials allow sts:AssumeRole"
            ) from error
        except BotoCoreError as error:
            raise CredentialRetrievalError(provider=role, error_msg=str(error)) from error
        return {
            "access_key": answer["AccessKeyId"],
            "secret_key": answer["SecretAccessKey"],
            "token": answer["SessionToken"],
            "expiry_time": answer["Expiration"].isoformat(),
        }


def _in_one_line(record: logging.LogRecord) -> bool:
    """Filter botocore's warnings of a failed refresh: without a traceback, and without errors also raised."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, (Refused, CredentialRetrievalError)):
        if record.args == ("mandatory",):
            return False
        record.msg, record.args = "the AWS credentials soon expire, and requesting new ones failed: %s", (error,)
        record.exc_info = None
    return True


logging.getLogger(credentials.__name__).addFilter(_in_one_line)
