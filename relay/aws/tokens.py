"""The tokens that RDS and MSK take for a password: requests that are signed, but not sent.

RDS's are made by botocore. MSK's are made here, in the few lines of AWS's package aws-msk-iam-sasl-signer-python, which
the tests compare them with: that package asks STS again for a role's credentials for every token; the sessions of
`relay.aws.identity` keep them until they are old.
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
"""How many seconds a token can be used to log in. A connection that is open may stay open."""


class DatabaseTokens:
    """Makes tokens for RDS and Aurora. Thread-safe."""

    def __init__(self, identity: AwsIdentity) -> None:
        self._identity = identity
        # Made for the first token, by one thread.
        self._opening = threading.Lock()
        self._client: Any = None

    def make(self, host: str, port: int, user: str) -> str:
        """Return a token that ``user`` can log in with, only at this address, not at another name of it.

        Raises ``Refused``, ``ConfigError``, and ``Unavailable`` if AWS cannot be asked for credentials now.
        """
        with _translated("a token of RDS"):
            with self._opening:
                if self._client is None:
                    session = open_session(self._identity)
                    self._client = session.create_client("rds", region_name=region(session))
            return str(self._client.generate_db_auth_token(DBHostname=host, Port=port, DBUsername=user))


class BrokerTokens:
    """Makes tokens for MSK. Thread-safe. It is the ``oauth_cb`` of Kafka clients.

    librdkafka calls it in a thread of its own when a client is made, after four fifths of a token's lifetime, and every
    ten seconds where that fails.
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
            log.warning("Kafka: %s", error)  # librdkafka says only that it got none
            raise

    def make(self) -> tuple[str, float]:
        """Return a token, and when it expires, in seconds since the epoch. Raises what `DatabaseTokens.make` does."""
        with _translated("a token of MSK"):
            with self._opening:
                if self._credentials is None:
                    session = open_session(self._identity)
                    self._region = region(session)
                    self._credentials = session.get_credentials()
            if self._credentials is None:
                raise NoCredentialsError
            return broker_token(self._credentials.get_frozen_credentials(), self._region)


broker_tokens = lru_cache(BrokerTokens)
"""Returns what makes the tokens for MSK of all clients of this process: a role is assumed once."""


def broker_token(credentials: Any, where: str) -> tuple[str, float]:
    """Return a token for the brokers of MSK in a region, and when it expires, in seconds since the epoch."""
    request = AWSRequest("GET", f"https://kafka.{where}.amazonaws.com/", params={"Action": "kafka-cluster:Connect"})
    SigV4QueryAuth(credentials, "kafka-cluster", where, expires=LIFETIME).add_auth(request)
    signed_at = timegm(strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ"))
    # Not signed: shown in the logs of AWS.
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
        raise Refused(f"cannot make {what}: {error}") from error
