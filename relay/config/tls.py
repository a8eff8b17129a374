"""The files of a connection with TLS. The keys are a contract with users."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from relay.config.errors import invalid


def _checked(value: dict[str, str]) -> dict[str, str]:
    unknown = value.keys() - {"ca", "cert", "key"}
    if problems := [((key,), "unknown key; use ca, cert or key") for key in unknown]:
        raise invalid(*problems)
    if ("cert" in value) != ("key" in value):
        raise invalid("set both `cert` and `key`, or neither")
    return value


Tls = Annotated[
    dict[str, str],
    AfterValidator(_checked),
    Field(
        json_schema_extra={
            "propertyNames": {"enum": ["ca", "cert", "key"]},
            "dependentRequired": {"cert": ["key"], "key": ["cert"]},
        }
    ),
]
"""`ca`: the authorities to trust. `cert` and `key`: the client's own certificate. All are PEM files."""
