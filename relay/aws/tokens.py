"""The tokens that RDS and MSK accept as passwords: requests that are signed, but never sent.

Botocore makes RDS's tokens. MSK's are made here as by AWS's package aws-msk-iam-sasl-signer-python, which would ask STS
for a role's credentials for every token.
"""

import base64
import logging
import threading
from calendar import timegm
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from time import strptime
from typing import Any

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, CredentialRetrievalError, NoCredentialsError, PartialCredentialsError

from relay.aws import AwsIdentity, Refused
from relay.aws.identity import SET_CREDENTIALS, open_session, region
from relay.errors import RelayError, Unavailable

log = logging.getLogger(__name__)

LIFETIME = 900
"""How many seconds a token can be used to log in. An open connection may stay open longer."""


class DatabaseTokens:
    """Makes tokens for RDS and Aurora. Thread-safe."""

    def __init__(self, identity: AwsIdentity) -> None:
        self._identity = identity
        # Created for the first token, by one thread.
        self._opening = threading.Lock()
        self._client: Any = None

    def make(self, host: str, port: int, user: str) -> str:
        """Return a token with which ``user`` can log in only at this address, not at another name for it.

        Raises ``Refused``, ``ConfigError``, and ``Unavailable`` if AWS cannot be asked for credentials now.
        """
        with _translated("an RDS token"):
            with self._opening:
                if self._client is None:
                    session = open_session(self._identity)
                    self._client = session.create_client("rds", region_name=region(session))
            return str(self._client.generate_db_auth_token(DBHostname=host, Port=port, DBUsername=user))


class BrokerTokens:
    """Makes tokens for MSK. Thread-safe. It is the ``oauth_cb`` of Kafka clients.

    librdkafka calls it in its own thread when a client is created, after four fifths of a token's lifetime, and every
    ten seconds after a failure.
    """

    def __init__(self, identity: AwsIdentity) -> None:
        self._identity = identity
        # Set for the first token, by one thread.
        self._opening = threading.Lock()
        self._credentials: Any = None
        self._region = ""

    def __call__(self, _: str) -> tuple[str, float]:
        try:
            return self.make()
        except RelayError as error:
            log.warning("Kafka: %s", error)  # librdkafka only reports that it got no token
            raise

    def make(self) -> tuple[str, float]:
        """Return a token, and its expiry in seconds since the epoch. Raises as `DatabaseTokens.make` does."""
        with _translated("an MSK token"):
            with self._opening:
                if self._credentials is None:
                    session = open_session(self._identity)
                    self._region = region(session)
                    self._credentials = session.get_credentials()
            if self._credentials is None:
                raise NoCredentialsError
            return broker_token(self._credentials.get_frozen_credentials(), self._region)


broker_tokens = lru_cache(BrokerTokens)
"""Returns the object that makes MSK tokens for all clients of this process, so that a role is assumed only once."""


def broker_token(credentials: Any, where: str) -> tuple[str, float]:
    """Return a token for the MSK brokers in a region, and its expiry in seconds since the epoch."""
    request = AWSRequest("GET", f"https://kafka.{where}.amazonaws.com/", params={"Action": "kafka-cluster:Connect"})
    SigV4QueryAuth(credentials, "kafka-cluster", where, expires=LIFETIME).add_auth(request)
    signed_at = timegm(strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ"))
    # Not signed: AWS shows it in its logs.
    url = f"{request.url}&User-Agent=change-relay"
    return base64.urlsafe_b64encode(url.encode()).decode().rstrip("="), float(signed_at + LIFETIME)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise Refused(f"no AWS credentials for {what}: {error}; {SET_CREDENTIALS}") from error
    except CredentialRetrievalError as error:
        raise Unavailable(f"no AWS credentials for {what} now: {error}") from error
    except BotoCoreError as error:
        raise Refused(f"cannot create {what}: {error}") from error
