"""Event tokens whose texts are alike in all ways that matter to what compares them as texts."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import strategies as st

from relay.token import EventToken, OriginToken
from spark_consumers.plain_tokens import PLAIN_TOKEN

UUIDS = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "9e11fa47-71ca-11e1-9e33-c80aa9429562")
SHARDS = ("", "s/k/-80", 's/k/"\\,', 's/k/","position":"DynamoDB/', "t/k/80-")

numbers = st.integers(0, 30) | st.integers(0, 10**45) | st.integers(2**63 - 4, 2**63 + 2)
runs = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 8)), min_size=1, max_size=3).map(
    lambda pairs: ":".join(f"{first}-{first + more}" if more else str(first) for first, more in pairs)
)
positions = st.one_of(
    numbers.map("DynamoDB/{}".format),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2), numbers), min_size=1, max_size=3).map(
        lambda gtids: "MariaDB/" + ",".join(f"{domain}-{server}-{number}" for domain, server, number in sorted(gtids))
    ),
    st.lists(st.tuples(st.sampled_from(UUIDS), runs), min_size=1, max_size=2).map(
        lambda servers: "MySQL56/" + ",".join(f"{server}:{run}" for server, run in servers)
    ),
    st.sampled_from(
        ["DynamoDB/007", "DynamoDB/x", "MariaDB/0-1", "MySQL56/", "", f"MySQL56/{UUIDS[0]}:1-9223372036854775807"]
    ),
)
origins = st.none() | st.just(OriginToken(5, "s/k/-", "MariaDB/0-1-1"))
tokens = st.builds(EventToken, st.integers(0, 3), st.sampled_from(SHARDS), positions, origins)


def plain_parts(token: str) -> tuple[str, int] | None:
    """Return what a token's JSON text shares with those that it compares with, and its number; None for others."""
    found = re.fullmatch(PLAIN_TOKEN, token)
    return None if found is None else (found[1], int(found[2]))


def like_plain_tokens() -> tuple[list[str | None], list[tuple[str, int]]]:
    """Return plain tokens and texts that are nearly ones, and the parts of some plain tokens."""
    changed = [
        EventToken(1, shard, position)
        for shard in ("s/k/-80", 's/k/"\\,', "s/\u00c4\U0001f600/-")
        for position in (
            "DynamoDB/9",
            "DynamoDB/10",
            f"DynamoDB/{10**40}",
            "MariaDB/0-1-9,1-2-30",
            f"MySQL56/{UUIDS[0]}:1-9",
        )
    ]
    stored = [*changed, EventToken(0, "s/k/-80", "DynamoDB/9"), EventToken(7, "s/k/-80", "DynamoDB/11")]
    stored += [replace(token, origin=OriginToken(1, "s/k/-80", "DynamoDB/4")) for token in changed]
    texts = [None, "", "{}", *(token.to_json() for token in stored)]
    plain = [found for token in changed if (found := plain_parts(token.to_json())) is not None]
    assert len(plain) == len(changed)
    for stem, _ in plain:
        numbers = ("1", "8", "9", "11", "07", "0", "", "x", "-9", "9" * 18, "9" * 19, "9" * 100, "9" * 101, "9\n")
        for time, end in (
            ("1", '","origin":null}'),
            ("0", '","origin":null}'),
            ("01", "}"),
            ("1", '","origin":null} '),
        ):
            texts += [f'{{"timestamp":{time},{stem}{number}{end}' for number in numbers]
    return texts, plain
