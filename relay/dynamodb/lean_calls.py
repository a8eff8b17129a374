"""Calls GetRecords over botocore's connections but without botocore, which would take most of the CPU of a call.

Idle shards are polled all the time, so these calls are most of the work of a worker with many idle shards. Only a call
that succeeds at once is made this way, on a connection that botocore has opened, with its proxy, certificates and
timeouts. In all other cases botocore makes the call as if it were the first, so errors are botocore's.

This relies on botocore (client.py, httpsession.py) and urllib3 (connectionpool.py): before a call, a client emits
``before-call.<service>.<operation>`` with the request and the signer, and its ``_endpoint.http_session`` has a pool of
urllib3. Otherwise, botocore makes all calls.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson
from botocore.exceptions import BotoCoreError
from urllib3.exceptions import ClosedPoolError

from relay.dynamodb.raw_records import CHECKSUM, is_intact, read_answer
from relay.dynamodb.stream_calls import AnswerDates

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient


_DEFAULT_PORTS = {"http": 80, "https": 443}
_EVENT = "before-call.dynamodb-streams.GetRecords"


def make_calls_lean(client: DynamoDBStreamsClient, dates: AnswerDates) -> None:
    """Make ``client.get_records`` lean: it returns raw records without ``ResponseMetadata``. Threads may share it."""
    client.get_records = _LeanCalls(client, dates)  # type: ignore[method-assign]


_Way = tuple["RequestForm", Any, Any]
"""The way in which botocore makes a call: the request's form, the signer, and urllib3's pool."""


class _LeanCalls:
    def __init__(self, client: Any, dates: AnswerDates) -> None:
        self._call = client.get_records
        self._dates = dates
        self._http = getattr(getattr(client, "_endpoint", None), "http_session", None)
        # The way of botocore's last call; None before it, or if lean calls cannot use that way.
        self._way: _Way | None = None
        client.meta.events.register(_EVENT, self._learn, unique_id="relay-lean")

    def __call__(self, **arguments: Any) -> Any:
        way = self._way
        if way is not None and (body := _send(way, orjson.dumps(arguments), self._dates)) is not None:
            return read_answer(body)
        return self._call(**arguments)

    def _learn(self, params: dict[str, Any], request_signer: Any, **_: Any) -> None:
        url = urlsplit(params["url"])
        pool = _pool(self._http, params["url"])
        # By its name, because the signer is another class if botocore finds the package awscrt.
        if pool is None or request_signer.signature_version != "v4" or url.path not in ("", "/") or url.query:
            self._way = None
            return
        scope = {"region": request_signer.region_name, "service": request_signer.signing_name}
        self._way = RequestForm(params["url"], params["headers"], **scope), request_signer, pool


def _pool(http: Any, url: str) -> Any:
    """Return urllib3's pool of connections to ``url``; None if unknown, or if requests have another form there."""
    try:
        proxy = http._proxy_config.proxy_url_for(url)
        if proxy is not None and not url.startswith("https:"):
            return None
        return http._get_connection_manager(url, proxy).connection_from_url(url)
    except AttributeError:
        return None


def _send(way: _Way, body: bytes, dates: AnswerDates) -> bytes | None:
    """Return the body of a good answer, or None if only botocore can get or read it. Raises ``relay.aws.Refused``."""
    form, signer, pool = way
    try:
        # With new credentials if the present ones expire soon.
        credentials = signer.get_auth(signer.signing_name, signer.region_name).credentials
        connection = pool._get_conn() if credentials is not None else None  # not one that the server has closed
    except (ClosedPoolError, BotoCoreError):
        return None
    if connection is None:
        return None
    keep = connection.sock is None
    try:
        if keep:
            return None
        connection.sock.sendall(form.request(body, credentials))
        with HTTPResponse(connection.sock, method="POST") as answer:
            answer.begin()
            if answer.status != 200 or answer.length is None:
                return None
            content = answer.read()  # all of it, otherwise IncompleteRead (I1)
            if not is_intact(content, answer.getheader(CHECKSUM)):  # I8
                return None
            dates.note(answer.getheader("Date"))
            keep = not answer.will_close
        return content
    except (OSError, HTTPException):
        return None
    finally:
        if not keep:
            connection.close()
        pool._put_conn(connection)


class RequestForm:
    """Makes POST requests to a URL without a path, signed as by botocore's ``SigV4Auth``. Threads may share it.

    Rules: AWS, "Create a signed AWS API request". ``clock``: seconds since the epoch.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        region: str,
        service: str,
        clock: Callable[[], float] = time.time,  # as in botocore's own signatures
    ) -> None:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        self.host = host if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"{host}:{parts.port}"
        self._headers = {**headers, "Host": self.host, "Accept-Encoding": "identity"}
        self._scope = (region, service, "aws4_request")
        self._clock = clock

    def request(self, body: bytes, credentials: ReadOnlyCredentials) -> bytes:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        sent = {**self._headers, "X-Amz-Date": stamp}
        if credentials.token:
            sent["X-Amz-Security-Token"] = credentials.token
        signed = {name.lower(): " ".join(value.split()) for name, value in sent.items()}
        names = sorted(signed.keys() - {"user-agent", "accept-encoding"})  # proxies may change these
        lines = "".join(f"{name}:{signed[name]}\n" for name in names)
        canonical = f"POST\n/\n\n{lines}\n{';'.join(names)}\n{sha256(body).hexdigest()}"
        key = f"AWS4{credentials.secret_key}".encode()
        for part in (stamp[:8], *self._scope):
            key = _sign(key, part)
        scope = "/".join((stamp[:8], *self._scope))
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        sent["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={';'.join(names)}, Signature={_sign(key, text).hex()}"
        )
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        return f"POST / HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _sign(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
