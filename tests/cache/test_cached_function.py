"""Functions whose results are read through the cache: keys, and the same for coroutines."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import orjson
import pytest

from relay.cache import AsyncTokenCache, Codec, Invalidator, MemoryStore, TokenCache, cached
from relay.errors import ConfigError
from tests.cache.cached_rows import Rows, asynchronous


@pytest.fixture
def cache() -> TokenCache:
    return TokenCache(MemoryStore(), "shop")


def test_a_result_is_read_once_until_its_key_is_invalidated(cache: TokenCache) -> None:
    rows = Rows(ada={"total": 7})

    @cached(cache, key="user:{name}")
    def user(name: str) -> dict[str, int] | None:
        """Read a user."""
        result: dict[str, int] | None = rows.read(name)
        return result

    assert [user("ada"), user(name="ada")] == [{"total": 7}] * 2
    assert rows.reads == 1
    rows.rows["ada"] = {"total": 8}
    Invalidator(cache.store, "shop").apply([("user:ada", None)])  # as the consumer does
    assert user("ada") == {"total": 8}
    rows.rows["ada"] = {"total": 9}
    assert user.invalidate("ada")  # as the application does after its own write
    assert user("ada") == {"total": 9}
    assert (user.__name__, user.__doc__) == ("user", "Read a user.")


def test_a_result_of_none_is_cached_too(cache: TokenCache) -> None:
    rows = Rows()
    user = cached(cache, key="user:{name}")(rows.read)
    assert [user("bob"), user("bob")] == [None, None]
    assert rows.reads == 1


def test_arguments_have_the_texts_that_the_consumer_invalidates(cache: TokenCache) -> None:
    @cached(cache, key="{day}/{total}/{flag}/{raw}/{shop}")
    def sales(day: date, total: Decimal, raw: bytes, flag: bool = True, *, shop: int = 3, note: str = "") -> int:
        return 1

    assert sales.key(date(2026, 11, 22), Decimal("7.50"), b"\xff") == "2026-11-22/7.5/true//w==/3"
    assert sales.key(date(2026, 11, 22), raw=b"", total=Decimal(7), flag=False, shop=4) == "2026-11-22/7/false//4"
    with pytest.raises(ValueError, match="without a value of `total`"):
        sales(date(2026, 11, 22), None, b"")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing a required argument"):
        sales()  # type: ignore[call-arg]


def test_a_function_may_make_the_key(cache: TokenCache) -> None:
    @cached(cache, key=lambda a, b: f"{a}-{b}")
    def total(a: int, b: int) -> int:
        return a + b

    assert total(1, 2) == 3
    assert total.key(1, 2) == "1-2"


def test_a_key_of_something_that_is_not_a_parameter_is_refused_at_once(cache: TokenCache) -> None:
    with pytest.raises(ValueError, match=r"'user:{nmae}' names 'nmae', which is not a parameter"):
        cached(cache, key="user:{nmae}")(lambda name: name)


def test_an_error_of_the_function_reaches_the_caller_and_is_not_cached(cache: TokenCache) -> None:
    outcomes: list[Any] = [OSError("database"), 7]

    @cached(cache, key="k:{n}")
    def function(n: int) -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return int(outcome)

    with pytest.raises(OSError, match="database"):
        function(1)
    assert function(1) == 7


def test_a_function_loads_its_own_keys_by_the_arguments_that_have_them(cache: TokenCache) -> None:
    """For ``relay verify``, which has only the keys."""
    asked: list[tuple[Any, ...]] = []

    @cached(cache, key="{day}/{total}/{flag}/{raw}/{shop}/{name}")
    def sales(day: date, total: Decimal, flag: bool, raw: bytes, shop: int, name: str, note: str = "") -> int:
        asked.append((day, total, flag, raw, shop, name, note))
        return len(asked)

    arguments = (date(2026, 11, 22), Decimal("7.5"), False, b"\xff", -3, "a/é")
    key = sales.key(*arguments)
    others = ["user:1", "2026-11-22/7.50/false//w==/-3/a", "2026-11-31/7.5/false//w==/-3/a", "x/x/x/x/x/x"]
    assert list(sales.load_many(dict.fromkeys([*others, key]))) == [key]
    assert asked == [(*arguments, "")]


def test_a_key_that_several_arguments_have_is_not_loaded(cache: TokenCache) -> None:
    @cached(cache, key="{a}:{b}")
    def pair(a: str, b: str) -> str:
        return a + b

    found = pair.load_many(dict.fromkeys(["x:y", "x:y:z"]))
    assert {key: loaded.value for key, loaded in found.items()} == {"x:y": b'"xy"'}


def test_a_key_that_cannot_be_read_back_is_an_error_that_says_why(cache: TokenCache) -> None:
    with pytest.raises(ConfigError, match=r"annotate its parameter name as one of str, int, float"):
        cached(cache, key="user:{name}")(lambda name: 1).load_many({"user:ada": None})
    with pytest.raises(ConfigError, match="computes its cache keys with a function"):
        cached(cache, key=lambda name: f"user:{name}")(lambda name: 1).load_many({"user:ada": None})


# -- one key in several spellings ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "spellings", "key"),
    [
        (int, ["007", "7.0", "+7", "70e-1", 7], "k:7"),
        (Decimal, ["1.50", "01.5", Decimal("1.500"), "15e-1"], "k:1.5"),
        (float, ["0.50", ".5", 0.5], "k:0.5"),
        (date, ["20240229", "2024-02-29", date(2024, 2, 29)], "k:2024-02-29"),
        (bytes, ["YQ==", "YR==", b"a"], "k:YQ=="),
        (bool, ["true", True], "k:true"),
        (int | None, ["007", 7], "k:7"),
        ("int", ["007", 7], "k:7"),
        ("datetime.date | None", ["20240229"], "k:2024-02-29"),
    ],
)
def test_texts_are_read_as_annotated_so_that_each_spelling_has_one_key_and_one_argument(
    cache: TokenCache, annotation: Any, spellings: list[Any], key: str
) -> None:
    """I6: `007` from a URL finds the item 7, whose changes invalidate the key of 7."""
    asked: list[Any] = []

    def function(of: Any) -> int:
        asked.append(of)
        return len(asked)

    function.__annotations__["of"] = annotation
    keyed = cached(cache, key="k:{of}")(function)
    assert {keyed.key(spelling) for spelling in spellings} == {key}
    assert {keyed(spelling) for spelling in spellings} == {1}
    assert keyed.invalidate(spellings[0])
    assert keyed(spellings[-1]) == 2
    assert asked[0] == asked[1]
    assert type(asked[0]) is type(asked[1])


@pytest.mark.parametrize(
    ("annotation", "argument"),
    [(int, "seven"), (int, "7.5"), (int, True), (Decimal, "nan"), (date, "0000-00-00"), (bool, "yes"), (int, "7 ")],
)
def test_what_cannot_be_read_as_annotated_is_passed_on_and_its_result_is_not_cached(
    cache: TokenCache, annotation: Any, argument: Any
) -> None:
    """I6: what the function makes of it is not known, nor the key that changes of it invalidate."""
    asked: list[Any] = []

    def function(of: Any) -> int:
        asked.append(of)
        return len(asked)

    function.__annotations__["of"] = annotation
    keyed = cached(cache, key="k:{of}")(function)
    assert [keyed(argument), keyed(argument)] == [1, 2]
    assert asked == [argument] * 2


@dataclass(slots=True)
class Row:
    name: str


@dataclass
class User:
    name: str
    age: int | None = None


@pytest.mark.parametrize(
    ("row", "is_cached"),
    [
        ({"name": "ada"}, True),
        ({"name": "Ada"}, False),
        ({"name": "ada "}, False),
        ({"name": {"S": "ada"}}, True),
        ({"name": {"S": "Ada"}}, False),
        ({"name": ["ada"]}, True),
        (Row("ada"), True),
        (Row("Ada"), False),
        ({"name": None}, True),
        ({"other": "Ada"}, True),
        (User("ada"), True),
        (User("Ada"), False),
        ("Ada", True),
        (None, True),
    ],
)
def test_a_row_is_cached_under_the_text_that_it_shows_and_under_no_other(
    cache: TokenCache, row: Any, is_cached: bool
) -> None:
    """I6: a collation finds `Ada` by `ada`, and a change of the row invalidates the key of `Ada`."""
    reads: list[str] = []

    @cached(cache, key="user:{name}", codec=Codec(orjson.dumps, orjson.loads))
    def user(name: str) -> Any:
        reads.append(name)
        return row

    user("ada")
    user("ada")
    assert reads == ["ada"] * (1 if is_cached else 2)
    assert user.load("ada").canonical is is_cached


@pytest.mark.parametrize("annotation", [None, Any, datetime])
def test_a_text_that_is_not_annotated_is_not_cached_unless_its_row_shows_it(cache: TokenCache, annotation: Any) -> None:
    """I6: that there is no item `007` was cached, and no change of the item 7 ever invalidated it."""
    rows: dict[int, Any] = {}

    def order(id: Any) -> Any:
        return rows.get(int(id))

    if annotation is not None:
        order.__annotations__["id"] = annotation
    cached_order = cached(cache, key="order:{id}")(order)
    assert cached_order("007") is None
    rows[7] = [{"id": 7}]
    cache.invalidate("order:7")
    assert cached_order("007") == [{"id": 7}]
    rows[7] = {"id": 7}
    assert [cached_order(id) for id in ("007", "7", 7)] == [{"id": 7}] * 3
    assert [cached_order.load(id).canonical for id in ("007", "7", 7)] == [False, True, True]


def test_a_number_that_is_not_annotated_is_cached_under_the_text_that_its_row_shows(cache: TokenCache) -> None:
    """I6"""
    rows = Rows(**{"7": {"id": {"N": "7"}}, "7.0": {"id": {"N": "7"}}})
    item = cached(cache, key="item:{id}")(lambda id: rows.read(id))
    assert [item(spelling) for spelling in ("7", "7", "7.0", "7.0")] == [{"id": {"N": "7"}}] * 4
    assert rows.reads == 3


@pytest.mark.parametrize("shown", [date(2024, 2, 9), "2024-02-09"])
def test_a_row_of_a_day_is_not_cached_under_a_time_of_that_day(cache: TokenCache, shown: Any) -> None:
    """I6: databases find the DATE by midnight, and its changes invalidate the key of the day."""
    rows = Rows(**{"2024-02-09 00:00:00+00:00": {"day": shown}})
    day = cached(cache, key="day:{day}")(lambda day: rows.read(str(day)))
    for _ in range(2):
        assert day(datetime(2024, 2, 9, tzinfo=UTC)) == {"day": "2024-02-09"}
    assert rows.reads == 2


# -- coroutines ---------------------------------------------------------------------------------------------


def test_a_coroutine_functions_results_are_cached_by_the_same_rules(cache: TokenCache) -> None:
    rows = Rows(ada={"total": 7})
    user = cached(AsyncTokenCache(cache), key="user:{name}")(asynchronous(rows.read))

    async def main() -> None:
        assert [await user("ada"), await user("ada"), await user("bob"), await user("bob")] == [
            *[{"total": 7}] * 2,
            *[None] * 2,
        ]
        assert rows.reads == 2
        rows.rows["ada"] = {"total": 8}
        assert await user.invalidate("ada")
        assert await user("ada") == {"total": 8}
        assert (await user.load("ada")).value == b'{"total":8}'
        rows.rows["Ada"] = {"name": "ada"}
        assert not (await user.load("Ada")).canonical  # I6
        assert {key: each.value for key, each in (await user.load_many({"user:ada": None, "x": None})).items()} == {
            "user:ada": b'{"total":8}'
        }

    asyncio.run(main())
    threads = cached(cache, key="user:{name}")(rows.read)
    reads = rows.reads
    assert threads("ada") == {"total": 8}  # threads and coroutines share the entries
    assert rows.reads == reads
