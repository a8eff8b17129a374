"""The files for a TLS connection. The keys are a contract with users."""

import ssl
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from relay.config.errors import refuse
from relay.errors import ConfigError

_KEYS = ["ca", "cert", "key"]


def _checked(value: dict[str, str]) -> dict[str, str]:
    unknown = value.keys() - set(_KEYS)
    refuse([((key,), "unknown key; use ca, cert or key") for key in unknown])
    if ("cert" in value) != ("key" in value):
        raise ValueError("set both `cert` and `key`, or neither")
    return value


Tls = Annotated[dict[str, str], AfterValidator(_checked), Field(json_schema_extra={"propertyNames": {"enum": _KEYS}})]
"""`ca`: the authorities to trust. `cert` and `key`: the client's own certificate. All are PEM files."""


def tls_context(tls: Mapping[str, str] | None) -> ssl.SSLContext | None:
    """Return a TLS context, or None without ``tls``. Raises ``ConfigError`` if a file cannot be loaded."""
    if tls is None:
        return None
    files = tls.get("ca", "")
    try:
        context = ssl.create_default_context(cafile=files or None)
        if "cert" in tls:
            files = f"{tls['cert']} with {tls['key']}"
            context.load_cert_chain(tls["cert"], tls["key"])
    except ssl.SSLError as error:
        raise ConfigError(f"`tls`: {files} is not PEM, or has the wrong content: {error.reason}") from error
    except OSError as error:
        raise ConfigError(f"`tls`: cannot load {files}: {error.strerror}") from error
    return context
