"""AWS's side of a presigned request, version 4: says who signed it, or refuses it. It shares no code with botocore."""

from __future__ import annotations

import hashlib
import hmac
import time
from calendar import timegm
from collections.abc import Callable
from urllib.parse import parse_qsl, quote, urlsplit


def signer_of(
    url: str, service: str, region: str, secret_of: Callable[[str], tuple[str, str]], *, unsigned: tuple[str, ...] = ()
) -> str:
    """Return the access key that signed ``url``. Raises ``PermissionError``, which says why the request is refused.

    ``secret_of``: the secret and the session token, or "", of an access key. ``unsigned``: parameters added later.
    """
    parts = urlsplit(url)
    given = [(name, value) for name, value in parse_qsl(parts.query, strict_parsing=True) if name not in unsigned]
    asked = dict(given)
    access_key, day, of_region, of_service, end = asked["X-Amz-Credential"].split("/")
    secret, token = secret_of(access_key)
    if (of_region, of_service, end) != (region, service, "aws4_request"):
        raise PermissionError(f"signed for {of_service} in {of_region}, not for {service} in {region}")
    if asked.get("X-Amz-Security-Token", "") != token:
        raise PermissionError("signed with another session's token")
    signed_at = timegm(time.strptime(asked["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))
    if not -60 < time.time() - signed_at < int(asked["X-Amz-Expires"]):
        raise PermissionError("expired")
    query = "&".join(f"{_coded(n)}={_coded(v)}" for n, v in sorted(given) if n != "X-Amz-Signature")
    nothing = hashlib.sha256(b"").hexdigest()
    canonical = f"GET\n{parts.path}\n{query}\nhost:{parts.netloc}\n\nhost\n{nothing}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    scope = f"{day}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{asked['X-Amz-Date']}\n{scope}\n{digest}"
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    if not hmac.compare_digest(hmac.new(key, text.encode(), "sha256").hexdigest(), asked["X-Amz-Signature"]):
        raise PermissionError("the signature is wrong")
    return access_key


def _coded(text: str) -> str:
    return quote(text, safe="-_.~")
