"""A MariaDB of the release before the embedded one. ``RELAY_TEST_MARIADB=10.11`` runs all tests of MariaDB on it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from relay.jvm.jars import JarSet
from relay.services import vitess
from relay.services.mariadb import MariaDB

_VERSION = "10.11.5"
_EMBEDDED = MariaDB.jar_set


class MariaDB10(MariaDB):
    jar_set: ClassVar[JarSet] = replace(
        _EMBEDDED,
        name="mariadb10",
        version=_VERSION,
        artifacts=tuple([replace(each, version=_VERSION) for each in _EMBEDDED.artifacts]),
    )


def use() -> None:
    """Make it the release of ``MariaDB``, except below the embedded Vitess, whose options it does not know."""
    vars(vitess)["MariaDB"] = type("MariaDB", (MariaDB,), {"jar_set": _EMBEDDED})
    MariaDB.jar_set = MariaDB10.jar_set
