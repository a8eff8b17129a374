"""The scenarios that are played: small ones with each run of the tests, and all by ``make model``."""

from __future__ import annotations

from dataclasses import replace

from tests.snapshots.model.world import Scenario

_DATABASE = {"truncate a": 1, "rename a to c": 1, "rename c to a": 1, "drop a": 1, "insert a": 1, "delete a": 1}
_PEOPLE = {"ask all": 1, "ask a": 1, "stop": 1}
_LOSSES = {"kill": 1, "gap a": 1, "reset": 1}
_CONFIG = {"config -b": 1, "config +b": 1, "config +c": 1}
_ALL = {**_DATABASE, **_PEOPLE, **_LOSSES}
_NAMED = frozenset("ab")

_TWO = {
    "the initial snapshot": Scenario(_ALL, 2, initial=True),
    "a snapshot of all tables": Scenario(_ALL, 2, requests=((),)),
    "a snapshot of one table": Scenario(_ALL, 2, requests=(("a",),)),
    "a snapshot of named tables": Scenario({**_ALL, **_CONFIG}, 2, initial=True, named=_NAMED),
}

SMALL = {
    **{f"{name}, and one thing happens": replace(scenario, most=1) for name, scenario in _TWO.items()},
    "the initial snapshot, and a table is emptied and renamed": Scenario(
        {"truncate a": 1, "rename a to c": 1, "kill": 1}, initial=True
    ),
    "a table is dropped, and its snapshot is replaced": Scenario(
        {"drop a": 1, "stop": 1, "ask all": 1, "kill": 1}, requests=(("a",),)
    ),
    "a gap, and a table is emptied": Scenario({"gap a": 1, "truncate a": 1, "insert a": 1}),
    "a reset, and a table is emptied": Scenario({"reset": 1, "truncate a": 1}, requests=(("a",),)),
    "a table is taken out of the config and comes back": Scenario(_CONFIG, initial=True, named=_NAMED),
}

LARGE = {
    **{f"{name}, and two things happen": scenario for name, scenario in _TWO.items()},
    "the initial snapshot, and the database changes": Scenario(_DATABASE, 3, initial=True),
    "all tables, while people and losses come between": Scenario({**_PEOPLE, **_LOSSES}, 3, requests=((),)),
    "one table is emptied, and its snapshot stopped": Scenario(
        {"truncate a": 2, "stop": 1, "ask a": 1, "ask all": 1}, 4, requests=(("a",),)
    ),
    "gaps that are repaired, and a table is emptied": Scenario(
        {"gap a": 2, "truncate a": 1, "kill": 1}, 3, initial=True, skew=60
    ),
    "gaps that are not repaired": Scenario({"gap a": 1, "delete a": 1, "ask all": 1}, repairs=False, requests=((),)),
}

_MANY = {**dict.fromkeys(_ALL, 2), "truncate b": 1, "drop b": 1, "rename b to c": 1, "insert b": 1, "ask b": 1}

RANDOM = {
    "an initial snapshot": Scenario(_MANY, initial=True),
    "requests": Scenario(_MANY),
    "named tables": Scenario({**_MANY, **_CONFIG, "config -a": 1, "config +a": 1}, initial=True, named=_NAMED),
    "gaps that are not repaired": Scenario(_MANY, repairs=False, skew=60),
}
