"""Extras of the distribution: the error that names the extra when one of its packages is not installed."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

from relay.errors import MissingExtra

_DISTRIBUTIONS = {"google": "protobuf"}  # of packages whose name says nothing


def missing(extra: str, what: str, package: str) -> MissingExtra:
    """Return the error that says which extra brings the ``package`` that ``what`` needs."""
    return MissingExtra(f"{what} needs {package}: pip install 'change-relay[{extra}]'", name=package)


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Guard the imports of what ``extra`` installs. Raises ``MissingExtra``; ``what`` is the subject of its message."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "relay", "spark_consumers"):
            raise  # a mistake of ours, which no extra repairs
        raise missing(extra, what, _DISTRIBUTIONS.get(package, package)) from error


def lazily(package: str, homes: Mapping[str, str], extra: str | None = None) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for ``package`` that imports its public names when they are first used.

    ``homes``: by module the names that it defines. ``extra``: the one that their packages belong to, if any.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs(extra, f"{package}.{name}") if extra else nullcontext():
            value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # so that the next use does not come here
        return value

    return load
