"""Extras of the distribution: errors that name the extra to install when a package is missing."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

from relay.errors import MissingExtra

_DISTRIBUTIONS = {"google": "protobuf"}  # packages whose import name differs from the name of the distribution


def missing(extra: str, what: str, package: str) -> MissingExtra:
    """Return the error that says which extra installs the ``package`` that ``what`` needs."""
    return MissingExtra(f"{what} needs {package}: pip install 'change-relay[{extra}]'", name=package)


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Guard imports of packages from ``extra``. Raises ``MissingExtra`` with ``what`` as the subject of its message."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        is_missing = isinstance(error, ModuleNotFoundError)
        if package in ("", "relay", "spark_consumers") or not (is_missing or package == "pyspark"):
            raise  # our own bug, which no extra would repair
        # An old PySpark, or pyspark-client, which is for Spark Connect only, lacks some names.
        named = _DISTRIBUTIONS.get(package, package) if is_missing else "another pyspark"
        raise missing(extra, what, named) from error


def lazily(package: str, homes: Mapping[str, str], extra: str | None = None) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for ``package`` that imports its public names when they are first used.

    ``homes``: the names that each module defines. ``extra``: the extra that installs their packages, if any.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs(extra, f"{package}.{name}") if extra else nullcontext():
            value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # so that the next access does not come here
        return value

    return load
