"""What a network does to the requests of Kafka's clients, drawn from a seed: a rule for a `KafkaProxy`."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter, defaultdict

from tests.kafka.proxy import Api, Cut, Late, Pass, Request, Verdict

_TRANSACTIONAL = {
    Api.INIT_PRODUCER_ID,
    Api.ADD_PARTITIONS_TO_TXN,
    Api.ADD_OFFSETS_TO_TXN,
    Api.TXN_OFFSET_COMMIT,
    Api.END_TXN,
}
_WEIGHTS: dict[int, float] = {
    Api.METADATA: 0.3,
    Api.FETCH: 0.3,
    Api.API_VERSIONS: 0.3,
    Api.OFFSET_FOR_LEADER_EPOCH: 0.3,
    **dict.fromkeys(_TRANSACTIONAL, 2.0),
    Api.END_TXN: 15.0,
}
_KINDS = ("slow request", "slow answer", "cut request", "cut answer", "late", "narrow", "outage")
_LATEST = 40  # requests
_SHORTEST = 0.001  # seconds
_MOST = 0.3  # of the requests of a kind


class DrawnFaults:
    """What becomes of the n-th request of a kind follows from the seed; which one that is, from how threads take turns.

    It does nothing before `begin` and, so that whoever was disturbed can recover, after ``most`` faults. Clients
    without a name of their own are spared: those of the tests. ``requests`` counts those of the others, ``done`` the
    faults.
    """

    def __init__(self, seed: object) -> None:
        traits = random.Random(f"network/{seed}")
        # Few kinds at a time: else each hides what only another one, done often, would show.
        self.kinds = traits.sample(_KINDS, traits.randint(1, 3))
        self.rate = traits.choice((0.005, 0.02))
        self.most = traits.choice((10, 40, 160))
        self.longest = traits.choice((0.05, 0.5, 3.0))
        self.requests: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._chances = defaultdict[int, random.Random](random.Random)
        self._seed = seed
        self._lock = threading.Lock()
        # Requests that are under way for long: after how many more of its client each arrives.
        self._late: list[tuple[str, int, threading.Event]] = []
        # How many faults are left.
        self._left = 0
        # How many requests the network breaks off before it is well again.
        self._outage = 0

    def __repr__(self) -> str:
        return f"<DrawnFaults[{self._seed}: {', '.join(self.kinds)}; {self.rate:g} of requests, {self.longest:g} s]>"

    def __call__(self, request: Request) -> Verdict:
        if request.client == "rdkafka":
            return Verdict.PASS
        with self._lock:
            self.requests[_name(request.api)] += 1
            self._deliver(request)
            if self._outage:
                self._outage -= 1
                return Verdict(request=Cut(0))
            chance = self._chance(request.api)
            if chance.random() >= min(_MOST, self.rate * _WEIGHTS.get(request.api, 1.0)) or not self._left:
                return Verdict.PASS
            self._left -= 1
            kind = chance.choice(self.kinds)
            self.done[f"{kind} {_name(request.api)}"] += 1
            return self._drawn(kind, request, chance)

    def begin(self) -> None:
        """Begin to disturb."""
        self._left = self.most

    def end(self) -> None:
        """Disturb no more, and let all that is under way arrive."""
        with self._lock:
            self._left = 0
            self._outage = 0
            for _, _, arrival in self._late:
                arrival.set()
            self._late.clear()

    def _drawn(self, kind: str, request: Request, chance: random.Random) -> Verdict:
        match kind:
            case "slow request":
                return Verdict(request=Pass(self._seconds(chance)))
            case "slow answer":
                return Verdict(answer=Pass(self._seconds(chance)))
            case "narrow":
                return Verdict(request=Pass(rate=10 ** chance.uniform(4, 6)))
            case "cut request":
                return Verdict(request=Cut(_byte(request.size, chance)))
            case "cut answer":
                return Verdict(answer=Cut(_byte(chance.choice((4, 20, 200, 5000)), chance)))
            case "late" if not request.client.startswith("broker-"):
                arrival = threading.Event()
                self._late.append((request.client, int(_LATEST ** chance.random()), arrival))
                return Verdict(request=Late(arrival))
            case "outage":
                self._outage = chance.randint(1, 20)
                return Verdict(request=Cut(0))
        return Verdict.PASS

    def _deliver(self, request: Request) -> None:
        """Let those arrive whose time has come, if this request is one by which it is measured."""
        if request.api not in _TRANSACTIONAL and request.api != Api.PRODUCE:
            return
        waiting = []
        for client, left, arrival in self._late:
            left -= client == request.client
            if left > 0:
                waiting.append((client, left, arrival))
            else:
                arrival.set()
        self._late = waiting

    def _chance(self, api: int) -> random.Random:
        if api not in self._chances:
            self._chances[api] = random.Random(f"network/{self._seed}/{api}")
        return self._chances[api]

    def _seconds(self, chance: random.Random) -> float:
        return math.exp(chance.uniform(math.log(_SHORTEST), math.log(self.longest)))


def _byte(size: int, chance: random.Random) -> int:
    """Return where to cut: as often at a border of what is special as anywhere within."""
    return chance.choice((0, 4, size, chance.randint(0, size)))


def _name(api: int) -> str:
    return Api(api).name if api in set(Api) else str(api)
