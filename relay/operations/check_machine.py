"""What a config needs of this machine: the files of its port, and what the consumers run on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from relay.config import Config, HttpConfig
from relay.errors import Unavailable
from relay.extras import missing
from relay.jvm.java import find_java
from relay.observe.access import Access, client_side

Check = Callable[[], str]
"""Returns a message if all is well; raises a ``RelayError`` for a problem."""


def checks_of_machine(config: Config) -> list[tuple[str, Check]]:
    """Return the checks with their names."""
    found: list[tuple[str, Check]] = []
    if config.http and config.http.certificate:
        found.append((f"http {config.http.address}", partial(_check_certificates, config.http)))
    if config.log or config.copy_:
        found += [("java", _check_java), ("pyspark", _check_spark)]
    elif config.cache:
        found += [("java", partial(_or_python, _check_java)), ("pyspark", partial(_or_python, _check_spark))]
    return found


def _check_certificates(http: HttpConfig) -> str:
    Access(http)
    client_side(http)
    return "its certificate can be used"


def _or_python(check: Check) -> str:
    """Run the check of something that the cache can do without."""
    try:
        return check()
    except Unavailable as error:
        return f"{error}, or use `relay consume cache --engine python`"


def _check_java() -> str:
    return str(find_java())


def _check_spark() -> str:
    """Check that PySpark is installed. Raises ``Unavailable``."""
    if find_spec("pyspark") is None:
        raise missing("spark", "`relay consume`", "pyspark")
    return "installed"
