"""Access control and TLS for the HTTP port."""

import base64
import hmac
import ssl
from collections.abc import Mapping

from relay.config import HttpConfig
from relay.errors import ConfigError

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Hosts with which a port listens at all addresses of its machine, and the address to ask it at from there."""


class Access:
    """The access rules of ``http`` in a config. Without a config, everybody is answered, in clear text.

    ``tls``: the TLS context of the port; None means clear text. Raises ``ConfigError`` for files that cannot be used.
    """

    def __init__(self, http: HttpConfig | None = None) -> None:
        self.tls = _server_side(http) if http is not None and http.certificate is not None else None
        self._credentials: dict[str, bytes] = {}
        if http is not None and http.user is not None:
            self._credentials["Basic"] = base64.b64encode(f"{http.user}:{http.password}".encode())
        if http is not None and http.bearer is not None:
            self._credentials["Bearer"] = http.bearer.encode()

    def allows(self, authorization: str) -> bool:
        """Whether a request with this ``Authorization`` header may see everything."""
        if not self._credentials:
            return True
        scheme, _, given = authorization.partition(" ")
        expected = self._credentials.get(scheme.capitalize())
        return expected is not None and hmac.compare_digest(expected, given.strip().encode("latin-1", "replace"))

    @property
    def challenges(self) -> list[str]:
        return [f'{scheme} realm="relay", charset="UTF-8"' for scheme in self._credentials]

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that a peer with the same config requires."""
        credentials = [f"{scheme} {text.decode()}" for scheme, text in self._credentials.items()]
        return {"Authorization": credentials[0]} if credentials else {}


def client_side(http: HttpConfig, *, own: bool = False) -> ssl.SSLContext | None:
    """Return the TLS context for the peers of ``http``; None means clear text. Raises ``ConfigError``.

    ``own``: whether the peer is a port of this machine that listens `EVERYWHERE`. It has the certificate of ``http``,
    which need not have the address.
    """
    if http.certificate is None:
        return None
    key, file = ("certificate", http.certificate) if own else ("authorities", http.authorities)
    try:
        context = ssl.create_default_context(cafile=file)
    except OSError as error:
        raise ConfigError(f"http.{key}: cannot use {file}: {error.strerror or error}") from error
    if own:
        context.verify_flags = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
    return context


def _server_side(http: HttpConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(http.certificate or "", http.key)
    except OSError as error:  # also ssl.SSLError
        files = " and ".join(name for name in (http.certificate, http.key) if name)
        raise ConfigError(
            f"http.certificate: cannot use {files}: {error.strerror or error}; it must be PEM with the key that "
            "belongs to the certificate"
        ) from error
    return context
