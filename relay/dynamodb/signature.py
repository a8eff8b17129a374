"""Makes signed requests that differ in their bodies, with the signature of botocore's ``SigV4Auth``.

What the requests of one day have in common is made once: the key, and the text before and after the time. Rules: AWS,
"Create a signed AWS API request".
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

_DEFAULT_PORTS = {"http": 80, "https": 443}


class _Day(NamedTuple):
    """What the requests of one day have in common."""

    date: str
    credentials: ReadOnlyCredentials
    scope: str
    key: bytes
    before: str
    """The canonical request up to the time."""
    after: str
    """The canonical request from the time to the digest of the body."""
    head: str
    """The part of the header that stays the same, up to the signature."""


class RequestForm:
    """Makes POST requests to a URL without a path. ``headers``: each one's. ``clock``: seconds since the epoch.

    Threads may share it.
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
        self.host = _host(url)
        self.headers = dict(headers)
        self._scope = (region, service, "aws4_request")
        self._clock = clock
        # Replaced in one step.
        self._day: _Day | None = None

    def request(self, body: bytes, credentials: ReadOnlyCredentials) -> bytes:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        day = self._day
        if day is None or day.date != stamp[:8] or day.credentials != credentials:
            day = self._day = self._begin(stamp[:8], credentials)
        canonical = f"{day.before}{stamp}{day.after}{sha256(body).hexdigest()}"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{day.scope}\n{sha256(canonical.encode()).hexdigest()}"
        signature = _sign(day.key, text).hex()
        head = f"{day.head}{signature}\r\nX-Amz-Date: {stamp}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def _begin(self, date: str, credentials: ReadOnlyCredentials) -> _Day:
        sent = {**self.headers, "Host": self.host, "Accept-Encoding": "identity"}
        if credentials.token:
            sent["X-Amz-Security-Token"] = credentials.token
        signed = {name.lower(): " ".join(value.split()) for name, value in sent.items()} | {"x-amz-date": "\0"}
        names = sorted(signed.keys() - {"user-agent", "accept-encoding"})  # proxies may change these
        lines = "".join(f"{name}:{signed[name]}\n" for name in names)
        before, after = f"POST\n/\n\n{lines}\n{';'.join(names)}\n".split("\0")
        key = f"AWS4{credentials.secret_key}".encode()
        for part in (date, *self._scope):
            key = _sign(key, part)
        scope = "/".join((date, *self._scope))
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        head = f"POST / HTTP/1.1\r\n{head}Authorization: AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
        return _Day(date, credentials, scope, key, before, after, f"{head}SignedHeaders={';'.join(names)}, Signature=")


def _sign(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _host(url: str) -> str:
    """Return the value of the header ``Host``."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    return host if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"{host}:{parts.port}"
