"""Answers to GetRecords as bytes, drawn from a seed: usual records, and among them all that JSON can have instead."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

from relay.table import KeyColumn, TableSchema

NOW = 1_700_000_100
"""Seconds: when the answers are read."""

VIEWS = ["NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY"]

_NAMES = ["id", "line", "order-id", "é", "_x", "_x0041_", "a b", "1st", "日本", 'q"\\', "x" * 255, "S", "N"]
_KINDS = ["S", "N", "B", "SN", "SS", "SB", "NN", "NS", "BN", "BB"]
_TEXTS = ["", "ada", "é", "\U0001f600", "\u2028", "\x00", "\x7f", 'a"b\\c/', "\n\t", "null", "\ufeff", "x" * 300]
_LONE = ["\ud800", "\udfff", "a\ud83d", "\ude00\ud83d"]
_NUMBERS = [
    *(
        "0",
        "-0",
        "1",
        "-1",
        "10",
        "100",
        "7.0",
        "1.50",
        "0.5",
        "-0.50",
        ".5",
        "5.",
        "00",
        "007",
        "+3",
        "--3",
        "",
        "-",
        ".",
    ),
    *(
        "1E3",
        "1e-3",
        "1E+125",
        "9.9E125",
        "-1E-130",
        "1E9999",
        "1E99999",
        "9" * 38,
        "0." + "0" * 120 + "1",
        "1" + "0" * 125,
    ),
    *("NaN", "Infinity", "1 ", " 1", "1_000", "0x10", "٣", "١٢", "²", "1e", "e1", "1.2.3", "1\n", "-00.00"),
]
_BINARY = ["", "AA==", "AP8=", "A", "AA=", "A A=", "AA==\n", "-_8=", "A" * 400, "é"]


class Token(str):
    """JSON as it is."""

    __slots__ = ()


class Members(list[tuple[Any, Any]]):
    """An object as pairs, which may have a name twice."""


_ODD_VALUES: list[Any] = [
    *(None, True, 0, -1, 1.5, "", "x", [], {}, {"S": "x"}, [None], "\ud800"),
    *map(Token, ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1E5", "-0.0", "1" + "0" * 40, "1e", "01", "nul")),
]
_ODD_TIMES: list[Any] = [
    *(None, 0, -1, -0.5, 0.999, True, "1700000000", 99_999_999_999, 100_000_000_000, 10**12, 9_223_372_036_854, 10**13),
    *(10**18, 10**19, 10**30, [], {}, ""),
    *map(Token, ("1.7E9", "1700000000.0", "17e8", "1e300", "1e308", "NaN", "Infinity", "-Infinity", "1e400", "-0.0")),
]
_ODD_SIZES: list[Any] = [None, 0, -5, 12.0, 12.5, 10**18, (1 << 63) - 1, 1 << 63, 10**30, "12", True, [], Token("1e2")]
_ODD_SEQUENCES: list[Any] = ["", "0", "x", "007", " 7", '"\\', "\n", "\x7f", "é", "\ud800", 7, None, 1.5, "1" * 400, []]
_IDENTITIES: list[Any] = [
    {"type": "Service", "principalId": "dynamodb.amazonaws.com"},
    {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"},
    {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"},
    *({}, None, {"Type": "Service"}, {"a": {"b": [1, None, {"c": 1.5}]}}, {"é": "\u2028"}, {"n": 1 << 62}),
]
_ODD_IDENTITIES: list[Any] = [{"a": "\ud800"}, {"\ud800": 1}, {"n": 1 << 80}, "x", 7, [], Token('{"n":1e400}')]


class OddAnswers:
    """The answers of one shard. ``oddity``: how probable it is at each place that something is not as usual."""

    def __init__(self, seed: str, name: str) -> None:
        self.random = random.Random(seed)
        draw = self.random
        self.oddity = draw.choice([0.0, 0.0, 0.002, 0.01, 0.05])
        kinds = draw.choice(_KINDS)
        names = draw.sample(_NAMES, len(kinds)) if draw.random() < 0.5 else _NAMES[: len(kinds)]
        columns = tuple(KeyColumn(column, kind) for column, kind in zip(names, kinds, strict=True))
        self.table = TableSchema(name, draw.choice(["orders", "örders", "a.b-c_d"]), columns, 1)
        self.view = draw.choice(VIEWS)
        self._sequence = draw.choice([10**20, 10**21 - 3, 10**39])
        self._created = NOW - draw.choice([5, 100, 86_000])
        last = draw.randint(0, 3)
        self.bodies = [self._body(number, last) for number in range(last + 1)]

    def _is_odd(self, factor: float = 1.0) -> bool:
        return self.random.random() < self.oddity * factor

    def _body(self, number: int, last: int) -> bytes:
        draw = self.random
        records = [self._record() for _ in range(draw.choice([0, 1, 2, 3, 5, 9, 14]))]
        answer = Members([("Records", records)])
        if number < last:
            answer.append(("NextShardIterator", str(number + 1)))
        elif draw.random() < 0.2:
            answer.append(("NextShardIterator", None))
        if draw.random() < 0.1:
            answer.insert(draw.randint(0, len(answer)), ("unheard", {"of": [None, 1.5]}))
        body = _Style(draw, self.oddity).written(answer).encode("utf-8", "surrogatepass")
        if self._is_odd(2):
            at = draw.randrange(len(body))
            body = body[:at] + draw.choice([b"", b"\xff", b"\\", b'"', b" ", b"\x00", b"\xed\xa0\x80"]) + body[at + 1 :]
        return body

    def _record(self) -> Any:
        draw = self.random
        self._sequence += draw.randint(1, 1000)
        self._created = max(1, self._created + draw.choice([0, 0, 0, 1, 1, 7, -1, -30]))
        event = draw.choice(["INSERT", "MODIFY", "REMOVE"])
        key = self._key()
        data = Members(
            [
                ("ApproximateCreationDateTime", self._time()),
                ("Keys", key),
                ("SequenceNumber", self._or_odd(str(self._sequence), _ODD_SEQUENCES)),
                ("StreamViewType", self._or_odd(self.view, ["SOME", "", None, "new_image", *VIEWS])),
            ]
        )
        if draw.random() < 0.8:
            data.append(("SizeBytes", self._or_odd(draw.randint(1, 400_000), _ODD_SIZES)))
        if self.view in ("NEW_AND_OLD_IMAGES", "OLD_IMAGE") and event != "INSERT":
            data.append(("OldImage", self._or_odd(self._item(key), _ODD_VALUES)))
        if self.view in ("NEW_AND_OLD_IMAGES", "NEW_IMAGE") and event != "REMOVE":
            data.append(("NewImage", self._or_odd(self._item(key), _ODD_VALUES)))
        record = Members(
            [
                ("eventID", "c4ca4238a0b923820dcc509a6f75849b"),
                ("eventName", self._or_odd(event, ["MODIFYED", "", None, "modify", 1])),
                ("eventSource", "aws:dynamodb"),
                ("awsRegion", "eu-west-1"),
                ("dynamodb", self._or_odd(self._altered(data), _ODD_VALUES, 0.2)),
            ]
        )
        if draw.random() < 0.9:
            record.append(("eventVersion", self._or_odd("1.1", ["1.0", "", "é", None, 1, True, "\ud800", "x" * 500])))
        if draw.random() < 0.3:
            record.append(("userIdentity", self._or_odd(draw.choice(_IDENTITIES), _ODD_IDENTITIES)))
        return self._or_odd(self._altered(record), [None, [], "x", {}, 7], 0.1)

    def _or_odd(self, usual: Any, odd: Sequence[Any], factor: float = 1.0) -> Any:
        return self.random.choice(odd) if self._is_odd(factor) else usual

    def _altered(self, members: Members) -> Members:
        """Return members in any order, seldom one less, one that nobody knows, or one twice."""
        draw = self.random
        if draw.random() < 0.2:
            draw.shuffle(members)
        if self._is_odd() and members:
            members.pop(draw.randrange(len(members)))
        if self._is_odd():
            members.append(("unheard", draw.choice(_ODD_VALUES)))
        if self._is_odd() and members:
            name, value = draw.choice(members)
            members.insert(draw.randint(0, len(members)), (name, draw.choice([value, value, *_ODD_VALUES])))
        return members

    def _time(self) -> Any:
        draw = self.random
        usual = draw.choice([self._created, float(self._created), self._created + draw.random()])
        return self._or_odd(usual, _ODD_TIMES)

    def _key(self) -> Members:
        members = Members()
        for column in self.table.key:
            value = Members([(column.type, self._key_text(column.type))])
            if self._is_odd():
                value[0] = (self.random.choice(["S", "N", "B", "BOOL", "NULL", "M", ""]), value[0][1])
            if self._is_odd():
                value.append((self.random.choice("SNB"), self._key_text("S")))
            members.append((column.name, self._or_odd(self._altered(value), _ODD_VALUES)))
        return self._altered(members)

    def _key_text(self, kind: str) -> Any:
        draw = self.random
        usual: dict[str, Callable[[], str]] = {
            "S": lambda: draw.choice(_TEXTS) if draw.random() < 0.2 else f"k{draw.randint(0, 9)}",
            "N": lambda: self._number(),
            "B": lambda: b64encode(draw.randbytes(draw.randint(0, 9))).decode(),
        }
        odd = {"S": _LONE, "N": [*_NUMBERS, *_LONE], "B": [*_BINARY, *_LONE]}
        return self._or_odd(self._or_odd(usual[kind](), odd[kind]), _ODD_VALUES)

    def _number(self) -> str:
        draw = self.random
        digits = str(draw.randint(0, 10 ** draw.choice([1, 5, 19, 38])))
        if draw.random() < 0.3:
            at = draw.randint(0, len(digits))
            digits = f"{digits[:at]}.{digits[at:]}"
        sign = draw.choice(["", "", "-", "+"])
        exponent = f"{draw.choice('eE')}{draw.choice(['', '+', '-'])}{draw.randint(0, 130)}"
        return f"{sign}{digits}{exponent if draw.random() < 0.2 else ''}"

    def _item(self, key: Members) -> Any:
        draw = self.random
        item = Members(key)
        for _ in range(draw.choice([0, 1, 2, 4])):
            name = draw.choice(["s", "n", "é", "", "a b", "_x", "1", "\u2028", "x" * 200])
            item.append((self._or_odd(name, _LONE), self._value(draw.choice([0, 1, 2, 30]))))
        return self._altered(item)

    def _value(self, depth: int) -> Any:
        draw = self.random
        if self._is_odd():
            return draw.choice([*_ODD_VALUES, {"X": {}}, {"S": "a", "N": "1"}, {"SS": []}, {"N": 1}, {"B": "="}])
        if depth and draw.random() < 0.9:
            inner = self._value(depth - 1)
            return draw.choice([{"L": [inner]}, {"M": Members([("", inner)])}, {"L": [{"NULL": True}, inner]}])
        size = draw.choice([1, 1, 1, 50, 700])
        return draw.choice(
            [
                {"S": self._or_odd(draw.choice(_TEXTS) * size, _LONE)},
                {"N": draw.choice([self._number(), *_NUMBERS])},
                {"B": b64encode(draw.randbytes(size)).decode()},
                {"BOOL": draw.random() < 0.5},
                {"NULL": True},
                {"SS": draw.sample(_TEXTS, 3)},
                {"NS": [self._number(), self._number()]},
                {"BS": ["", "AP8="]},
                {"L": []},
                {"M": {}},
            ]
        )


class _Style:
    """How one serialiser writes JSON."""

    def __init__(self, draw: random.Random, oddity: float) -> None:
        self._random = draw
        self._comma, self._colon = draw.choice([(",", ":"), (",", ":"), (", ", ": "), (" ,\n\t", "\r : ")])
        self._is_ascii = draw.random() < 0.4
        self._escapes = draw.random() < 0.2
        self._mixes = draw.random() < oddity * 5

    def written(self, value: Any) -> str:
        comma = ", " if self._mixes and self._random.random() < 0.1 else self._comma
        match value:
            case Token():
                return str(value)
            case str():
                return self._text(value)
            case Members():
                members = (f"{self._text(name)}{self._colon}{self.written(each)}" for name, each in value)
                return "{" + comma.join(members) + "}"
            case dict():
                return self.written(Members(value.items()))
            case list():
                return "[" + comma.join(map(self.written, value)) + "]"
        return json.dumps(value)

    def _text(self, text: str) -> str:
        written = json.dumps(text, ensure_ascii=self._is_ascii)
        if self._escapes and self._random.random() < 0.2:
            units = text.encode("utf-16-be", "surrogatepass")
            codes = (units[at : at + 2].hex() for at in range(0, len(units), 2))
            written = '"' + "".join(f"\\u{self._random.choice([code, code.upper()])}" for code in codes) + '"'
        return written.replace("/", "\\/") if self._escapes else written
