"""GTID sets of both flavours, MySQL's and MariaDB's, as immutable values.

The texts are described in MySQL's "GTID Format and Storage" and MariaDB's "Global Transaction ID"::

    >>> executed = parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3:5") | parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:4")
    >>> str(executed), executed.count
    ('3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5', 5)
    >>> parse("0-1-7").contains(parse("0-2-5"))
    True

Checkpoints and event tokens hold the canonical text, and other programs compare it: change ``__str__`` only together
with the golden files.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

Runs = tuple[tuple[int, int], ...]
"""Sequence numbers as (first, last) pairs: sorted, disjoint and not adjacent."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RUN = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_MARIADB = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})")
_LARGEST_NUMBER = 2**63 - 2  # the highest number that MySQL assigns


class GtidError(ValueError):
    """The text is not a GTID set, or an operation mixes the two flavours."""


class GtidSet(ABC):
    """The transactions that a server has executed. Immutable and hashable; `parse` makes one.

    ``str(set)`` is the canonical text without the flavour. ``set | other`` and ``set - other`` are union and
    difference; they raise `GtidError` for sets of two flavours unless one of them is empty. ``bool(set)``: not empty.
    """

    __slots__ = ()

    flavour: ClassVar[str]
    """``MySQL56`` or ``MariaDB``, Vitess' names for the two formats."""

    @property
    def position(self) -> str:
        """The canonical text with the flavour as a prefix, as in an event token: ``MariaDB/0-1-5``."""
        return f"{self.flavour}/{self}"

    @property
    @abstractmethod
    def last(self) -> str:
        """The last GTID of the canonical text, "" if the set is empty."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of transactions in the set."""

    def contains(self, other: GtidSet) -> bool:
        """Whether every transaction of ``other`` is in this set. False for another flavour, unless it is empty."""
        return self._contains(other) if isinstance(other, type(self)) else not other

    def diverges(self, other: GtidSet) -> bool:
        """Whether the sets hold transactions that two servers gave the same sequence number in a domain.

        Always False for MySQL, where a server's UUID is part of a GTID.
        """
        return False

    def same_servers(self, other: GtidSet) -> bool:
        """Whether each domain was last written by the same server in both sets. Always True for MySQL."""
        return True

    # Of two sets of one flavour.
    @abstractmethod
    def _contains(self, other: Self) -> bool: ...
    @abstractmethod
    def _union(self, other: Self) -> Self: ...
    @abstractmethod
    def _difference(self, other: Self) -> Self: ...

    def __repr__(self) -> str:
        return f"<GtidSet {self.position}>"

    def __or__(self, other: GtidSet) -> GtidSet:
        if isinstance(other, type(self)):
            return self._union(other)
        if self and other:
            sets = f"{_short(str(self))} and {_short(str(other))}"
            raise GtidError(f"cannot join a {self.flavour} and a {other.flavour} GTID set: {sets}")
        if not self and not other:
            return self if isinstance(self, MariaDBSet) else other  # so that the union commutes
        return self or other

    def __sub__(self, other: GtidSet) -> GtidSet:
        if isinstance(other, type(self)):
            return self._difference(other)
        if self and other:
            sets = f"{_short(str(other))}, {_short(str(self))}"
            raise GtidError(f"cannot subtract a {other.flavour} GTID set from a {self.flavour} one: {sets}")
        return self


@dataclass(frozen=True, slots=True, repr=False)
class MySQL56Set(GtidSet):
    """``<uuid>:1-5:7,<uuid>:3``: ranges of sequence numbers by server UUID, in lower case."""

    flavour: ClassVar[str] = "MySQL56"

    _servers: Mapping[str, Runs]  # a server without any run is not listed

    @property
    def last(self) -> str:
        if not self._servers:
            return ""
        server = max(self._servers)
        return f"{server}:{self._servers[server][-1][1]}"

    @property
    def count(self) -> int:
        return sum(last - first + 1 for runs in self._servers.values() for first, last in runs)

    def _contains(self, other: Self) -> bool:
        mine = self._servers
        return not any(_without(runs, mine.get(server, ())) for server, runs in other._servers.items())

    def _union(self, other: Self) -> Self:
        servers = dict(self._servers)
        for server, runs in other._servers.items():
            mine = servers.get(server)
            servers[server] = runs if mine is None else _merged(sorted((*mine, *runs)))
        return type(self)(servers)

    def _difference(self, other: Self) -> Self:
        rest = {server: _without(runs, other._servers.get(server, ())) for server, runs in self._servers.items()}
        return type(self)({server: runs for server, runs in rest.items() if runs})

    def __bool__(self) -> bool:
        return bool(self._servers)

    def __hash__(self) -> int:
        return hash(frozenset(self._servers.items()))

    def __str__(self) -> str:
        return ",".join(
            ":".join((server, *(f"{first}-{last}" if first != last else f"{first}" for first, last in runs)))
            for server, runs in sorted(self._servers.items())
        )


@dataclass(frozen=True, slots=True, repr=False)
class MariaDBSet(GtidSet):
    """``<domain>-<server>-<sequence>,...``: the last GTID of each domain, which stands for all before it.

    ``contains`` ignores the server. The difference contains each GTID that is later than the one in ``other``: this
    format cannot express only the transactions between the two.
    """

    flavour: ClassVar[str] = "MariaDB"

    _domains: Mapping[int, tuple[int, int]]  # domain -> (sequence, server)

    @property
    def last(self) -> str:
        if not self._domains:
            return ""
        domain = max(self._domains)
        sequence, server = self._domains[domain]
        return f"{domain}-{server}-{sequence}"

    @property
    def count(self) -> int:
        return sum(sequence for sequence, _ in self._domains.values())

    def _contains(self, other: Self) -> bool:
        mine = self._domains
        return all(domain in mine and mine[domain][0] >= sequence for domain, (sequence, _) in other._domains.items())

    def diverges(self, other: GtidSet) -> bool:
        return any(mine[0] == theirs[0] and mine[1] != theirs[1] for mine, theirs in self._shared(other))

    def same_servers(self, other: GtidSet) -> bool:
        return all(mine[1] == theirs[1] for mine, theirs in self._shared(other))

    def _shared(self, other: GtidSet) -> Iterable[tuple[tuple[int, int], tuple[int, int]]]:
        theirs = other._domains if isinstance(other, MariaDBSet) else {}
        return ((gtid, theirs[domain]) for domain, gtid in self._domains.items() if domain in theirs)

    def _union(self, other: Self) -> Self:
        domains = dict(self._domains)
        for domain, gtid in other._domains.items():
            domains[domain] = max(gtid, domains.get(domain, gtid))
        return type(self)(domains)

    def _difference(self, other: Self) -> Self:
        theirs = {domain: sequence for domain, (sequence, _) in other._domains.items()}
        return type(self)({domain: gtid for domain, gtid in self._domains.items() if gtid[0] > theirs.get(domain, -1)})

    def __bool__(self) -> bool:
        return bool(self._domains)

    def __hash__(self) -> int:
        return hash(frozenset(self._domains.items()))

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{sequence}" for domain, (sequence, server) in sorted(self._domains.items()))


def parse(text: str) -> GtidSet:
    """Read a GTID set, with or without its flavour as a prefix: ``MySQL56/<uuid>:1-5``, ``0-1-5``.

    A single GTID is read as a set. MySQL's ranges may overlap and be in any order. The empty text is the empty MySQL
    set, ``MariaDB/`` the empty set of MariaDB. Raises `GtidError` for anything else, also for MySQL's tagged GTIDs.
    """
    flavour, slash, body = text.partition("/")
    if not slash:
        flavour, body = "", text
    body = body.strip()
    match flavour:
        case "MySQL56":
            return _parse_mysql56(body)
        case "MariaDB":
            return _parse_mariadb(body)
        case "" if not slash:
            is_mariadb = body and ":" not in body and not _UUID.match(body)
            return _parse_mariadb(body) if is_mariadb else _parse_mysql56(body)
    raise GtidError(f"unknown GTID flavour {_short(flavour)}: use MySQL56/... or MariaDB/...")


def _parse_mysql56(text: str) -> MySQL56Set:
    found: dict[str, list[tuple[int, int]]] = {}
    for member in text.split(","):
        member = member.strip()
        if not member:
            continue  # MySQL itself allows empty members
        uuid, *numbers = member.split(":")
        if not _UUID.fullmatch(uuid):
            raise GtidError(f"{_short(uuid)} is not a server UUID (8-4-4-4-12 hex digits) in {_short(text)}")
        if not numbers:
            raise GtidError(f"no sequence numbers after the server UUID {uuid}: write {uuid}:1-5")
        runs = found.setdefault(uuid.lower(), [])
        for number in numbers:
            matched = _RUN.fullmatch(number)
            if not matched:
                raise GtidError(
                    f"{_short(number)} after {uuid} is not a sequence number or a range like 1-5"
                    + (" (tagged GTIDs are not supported)" if number[:1].isalpha() else "")
                )
            first = int(matched[1])
            last = int(matched[2]) if matched[2] else first
            if not first or max(first, last) > _LARGEST_NUMBER:
                raise GtidError(f"{number} after {uuid} is out of range: sequence numbers are 1 to {_LARGEST_NUMBER}")
            if first <= last:
                runs.append((first, last))
    return MySQL56Set({uuid: _merged(sorted(runs)) for uuid, runs in found.items() if runs})


def _parse_mariadb(text: str) -> MariaDBSet:
    domains: dict[int, tuple[int, int]] = {}
    for member in text.split(",") if text else ():
        matched = _MARIADB.fullmatch(member.strip())
        if not matched:
            raise GtidError(f"{_short(member)} is neither UUID:1-5 (MySQL) nor domain-server-sequence (MariaDB)")
        domain, server, sequence = map(int, matched.groups())
        if domain >= 2**32 or server >= 2**32 or sequence >= 2**64:
            raise GtidError(
                f"{member.strip()} is out of range: domain and server have 32 bits, the sequence number has 64"
            )
        # A server's binlog state lists a domain once for each server; the newest GTID is the position of the domain.
        domains[domain] = max((sequence, server), domains.get(domain, (0, 0)))
    return MariaDBSet(domains)


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _merged(runs: Iterable[tuple[int, int]]) -> Runs:
    """Join overlapping and adjacent runs, given in order."""
    merged: list[tuple[int, int]] = []
    for first, last in runs:
        if merged and first <= merged[-1][1] + 1:
            if last > merged[-1][1]:
                merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def _without(runs: Runs, others: Runs) -> Runs:
    """Return the parts of ``runs`` outside ``others``, in linear time."""
    if runs is others:
        return ()
    rest: list[tuple[int, int]] = []
    at = 0
    for first, last in runs:
        while at < len(others) and others[at][1] < first:
            at += 1
        ahead = at
        while first <= last and ahead < len(others) and others[ahead][0] <= last:
            if others[ahead][0] > first:
                rest.append((first, others[ahead][0] - 1))
            first = others[ahead][1] + 1
            ahead += 1
        if first <= last:
            rest.append((first, last))
    return tuple(rest)
