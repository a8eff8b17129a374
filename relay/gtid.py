"""GTID sets of both flavours, MySQL56 and MariaDB, as immutable values.

The canonical text is written to checkpoints and event tokens and compared by other programs: change
``__str__`` only together with the golden files. Message texts and the inner representation are free.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

Runs = tuple[tuple[int, int], ...]
"""Sequence numbers as (first, last) pairs: sorted, disjoint and not adjacent."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RUN = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_MARIADB = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})")
_LARGEST_NUMBER = 2**63 - 2  # what MySQL hands out at most


class GtidError(ValueError):
    """A text is no GTID set, or sets of two flavours were mixed."""


class GtidSet(ABC):
    """The transactions a server has executed: immutable and hashable. ``parse`` makes one.

    Operators on sets of two flavours raise GtidError, unless one of them is empty.
    """

    __slots__ = ()

    flavour: ClassVar[str]

    @property
    def position(self) -> str:
        """The canonical text with the flavour in front, as an event token carries it."""
        return f"{self.flavour}/{self}"

    @property
    @abstractmethod
    def last(self) -> str:
        """The last GTID in canonical order, "" if the set is empty."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many transactions the set stands for."""

    @abstractmethod
    def contains(self, other: GtidSet) -> bool:
        """Whether every transaction of ``other`` is in this set; False for another flavour, unless empty."""

    @abstractmethod
    def diverges(self, other: GtidSet) -> bool:
        """Whether one sequence number of one domain was given out by two servers, one in each set."""

    @abstractmethod
    def same_servers(self, other: GtidSet) -> bool:
        """Whether no domain was last written by one server in this set and by another in ``other``."""

    @abstractmethod
    def __or__(self, other: GtidSet) -> GtidSet: ...

    @abstractmethod
    def __sub__(self, other: GtidSet) -> GtidSet: ...

    @abstractmethod
    def __bool__(self) -> bool: ...

    @abstractmethod
    def __str__(self) -> str: ...

    def __repr__(self) -> str:
        return f"<GtidSet {self.position}>"

    def _union_of_flavours(self, other: GtidSet) -> GtidSet:
        if self and other:
            raise GtidError(f"cannot unite {self.flavour} and {other.flavour} GTID sets: {self}, {other}")
        if not self and not other:
            return self if isinstance(self, MariaDBSet) else other  # either, as long as it commutes
        return self or other

    def _difference_of_flavours(self, other: GtidSet) -> GtidSet:
        if self and other:
            raise GtidError(f"cannot subtract {other.flavour} from {self.flavour} GTID sets: {other}, {self}")
        return self


@dataclass(frozen=True, slots=True, repr=False)
class MySQL56Set(GtidSet):
    """Runs of sequence numbers per server UUID (lower case); no UUID without a run."""

    flavour: ClassVar[str] = "MySQL56"

    _servers: Mapping[str, Runs]

    @property
    def last(self) -> str:
        if not self._servers:
            return ""
        server = max(self._servers)
        return f"{server}:{self._servers[server][-1][1]}"

    @property
    def count(self) -> int:
        return sum(last - first + 1 for runs in self._servers.values() for first, last in runs)

    def contains(self, other: GtidSet) -> bool:
        if not isinstance(other, MySQL56Set):
            return not other
        mine = self._servers
        return all(_covers(mine.get(server, ()), runs) for server, runs in other._servers.items())

    def diverges(self, other: GtidSet) -> bool:
        return False  # a UUID and number name one transaction for good

    def same_servers(self, other: GtidSet) -> bool:
        return True

    def __or__(self, other: GtidSet) -> GtidSet:
        if not isinstance(other, MySQL56Set):
            return self._union_of_flavours(other)
        servers = dict(self._servers)
        for server, runs in other._servers.items():
            mine = servers.get(server)
            servers[server] = runs if mine is None else _merged(sorted((*mine, *runs)))
        return MySQL56Set(servers)

    def __sub__(self, other: GtidSet) -> GtidSet:
        if not isinstance(other, MySQL56Set):
            return self._difference_of_flavours(other)
        rest = {server: _without(runs, other._servers.get(server, ())) for server, runs in self._servers.items()}
        return MySQL56Set({server: runs for server, runs in rest.items() if runs})

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
    """One GTID per domain, (sequence, server): it stands for all of its domain up to that sequence.

    The server plays no part in ``contains``. The difference keeps the GTIDs that go past ``other``: what
    lies between cannot be written in this flavour.
    """

    flavour: ClassVar[str] = "MariaDB"

    _domains: Mapping[int, tuple[int, int]]

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

    def contains(self, other: GtidSet) -> bool:
        if not isinstance(other, MariaDBSet):
            return not other
        mine = self._domains
        return all(domain in mine and mine[domain][0] >= sequence for domain, (sequence, _) in other._domains.items())

    def diverges(self, other: GtidSet) -> bool:
        return any(mine[0] == theirs[0] and mine[1] != theirs[1] for mine, theirs in self._shared(other))

    def same_servers(self, other: GtidSet) -> bool:
        return all(mine[1] == theirs[1] for mine, theirs in self._shared(other))

    def _shared(self, other: GtidSet) -> Iterable[tuple[tuple[int, int], tuple[int, int]]]:
        theirs = other._domains if isinstance(other, MariaDBSet) else {}
        return ((gtid, theirs[domain]) for domain, gtid in self._domains.items() if domain in theirs)

    def __or__(self, other: GtidSet) -> GtidSet:
        if not isinstance(other, MariaDBSet):
            return self._union_of_flavours(other)
        domains = dict(self._domains)
        for domain, gtid in other._domains.items():
            domains[domain] = max(gtid, domains.get(domain, gtid))
        return MariaDBSet(domains)

    def __sub__(self, other: GtidSet) -> GtidSet:
        if not isinstance(other, MariaDBSet):
            return self._difference_of_flavours(other)
        theirs = other._domains
        return MariaDBSet(
            {
                domain: gtid
                for domain, gtid in self._domains.items()
                if domain not in theirs or gtid[0] > theirs[domain][0]
            }
        )

    def __bool__(self) -> bool:
        return bool(self._domains)

    def __hash__(self) -> int:
        return hash(frozenset(self._domains.items()))

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{sequence}" for domain, (sequence, server) in sorted(self._domains.items()))


def parse(text: str) -> GtidSet:
    """Read a GTID set, or a single GTID as the set of it, with or without its flavour in front.

    The empty text is the empty MySQL56 set. GtidError on anything that is not a GTID set.
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
    raise GtidError(f"unknown GTID flavour {_short(flavour)}: expected MySQL56/... or MariaDB/...")


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
            raise GtidError(f"no sequence numbers after server UUID {uuid}: expected {uuid}:1-5")
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
                raise GtidError(f"{number} after {uuid}: sequence numbers run from 1 to {_LARGEST_NUMBER}")
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
            raise GtidError(f"{member.strip()}: domain and server have 32 bits, the sequence has 64")
        # A server's binlog state lists a domain once per server; the newest is where the domain stands.
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


def _covers(runs: Runs, others: Runs) -> bool:
    """Whether each of ``others`` lies in one of ``runs``. Linear."""
    if runs is others:
        return True
    candidates = iter(runs)
    run = next(candidates, None)
    for first, last in others:
        while run is not None and run[1] < first:
            run = next(candidates, None)
        if run is None or run[0] > first or run[1] < last:
            return False
    return True


def _without(runs: Runs, others: Runs) -> Runs:
    """Return what is left of ``runs`` outside ``others``. Linear."""
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
