"""Which columns are not published: what the file may say, and that it shows no salt."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from relay.config.protection import ColumnRule
from relay.errors import ConfigError
from tests.config.configs import change, only, read, refused, two_sources

MYSQL = 'type: mysql, shards: {"-": ["db:3306"]}, database: d'
FORMS = "use `exclude`, `mask`, `{hash: {salt: ...}}`, or `{absent: ...}` around one of these"


def test_rules_are_by_table_and_column_and_their_salts_are_not_shown(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEPPER", "s3cret")
    rules = "{orders: {a: exclude, b: mask, c: {hash: {salt: '${PEPPER}'}}, d: {absent: mask}}}"
    config = read(file, change("key: hash", f"protect: {rules}"))
    source = only(config)
    assert source.rules("orders") == {
        "a": ColumnRule("exclude"),
        "b": ColumnRule("mask"),
        "c": ColumnRule("hash", "s3cret"),
        "d": ColumnRule("mask", may_be_absent=True),
    }
    assert source.rules("others") == {}
    assert source.rules("orders")["c"].hashed(b"ada") == hmac.digest(b"s3cret", b"ada", "sha256").hex()
    assert "s3cret" not in repr(config)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("[a]", f"protect`: must be {{table: {{column: rule}}}}; for a rule {FORMS}"),
        ("{orders: a}", f"protect.orders`: must be {{column: rule}}; for a rule {FORMS}"),
        ("{orders: {a: drop}}", f"protect.orders.a`: is not a rule: {FORMS}"),
        ("{orders: {a: {salt: s3cret}}}", f"protect.orders.a`: is not a rule: {FORMS}"),
        ("{orders: {a: {hash: s3cret}}}",
         "protect.orders.a`: `hash` needs only a `salt`: {hash: {salt: ...}}"),
        ("{orders: {a: {hash: {salt: ''}}}}",
         "protect.orders.a`: the salt must be non-empty text, best given as `${NAME}`"),
        ("{orders: {a: {hash: {salt: 12345}}}}",
         "protect.orders.a`: the salt must be non-empty text, best given as `${NAME}`"),
        ("{other: {a: mask}}", "protect.other`: is not a table of this source; did you mean `orders`?"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_refused_with_its_place_and_without_the_salt(file: Path, rules: str, said: str) -> None:
    (problem,) = refused(file, change("key: hash", f"protect: {rules}"))
    assert problem.startswith("13:")
    assert problem.endswith(f" `sources[0].{said}")
    assert "s3cret" not in problem
    assert "12345" not in problem


def test_columns_of_the_key_that_the_file_names_have_no_rule(file: Path) -> None:
    entry = f"{{name: legacy, {MYSQL}, tables: [t], key: {{t: [id]}}, protect: {{t: {{id: mask}}}}}}"
    (problem,) = refused(file, two_sources(entry))
    assert "`sources[1].protect.t.id`: it is part of the key" in problem


def test_an_attribute_cannot_be_declared_and_excluded(file: Path) -> None:
    entry = "columns: {order_id: string, a: long}, protect: {orders: {a: exclude}}"
    (problem,) = refused(file, change("key: hash", entry.replace(", protect", "\n        protect")))
    assert problem.endswith("`sources[0].protect.orders.a`: is also declared in `columns`: remove one of them")


def test_each_of_several_tables_gets_its_own_rules(file: Path) -> None:
    entry = "{name: more, type: dynamodb, tables: [left, right], protect: {left: {a: mask}}}"
    _, left, right = read(file, two_sources(entry)).sources
    assert (dict(left.protect), dict(right.protect)) == ({"left": {"a": ColumnRule("mask")}}, {})
    tagged = read(file, two_sources(entry.replace("tables: [left, right]", "tags: {a: b}")))
    found = [source.protect for source in tagged.with_tables(lambda _: ["left", "right"]).sources]
    assert found == [{}, {"left": {"a": ColumnRule("mask")}}, {}]
    with pytest.raises(ConfigError, match=r"source more: `protect\.left` is not a table of this source.* reads right"):
        tagged.with_tables(lambda _: ["right"])
    (problem,) = refused(file, two_sources(entry.replace("{left:", "{middle:")))
    assert "`sources[1].protect.middle`: is not a table of this source; it reads left, right" in problem


@pytest.mark.parametrize("rule", ["exclude", "mask", "{hash: {salt: s}}"])
def test_a_cache_key_cannot_be_made_of_a_protected_column(file: Path, rule: str) -> None:
    """I6: no change would say which entry holds its row."""
    text = change("key: hash", f"protect: {{orders: {{email: {rule}}}}}").replace(
        '["order:{order_id}"]', '["order:{order_id}", "by:{email}"]'
    )
    (problem,) = refused(file, text)
    assert "`cache.keys.orders[1]`: source orders protects `email`" in problem
    entry = f"{{name: legacy, {MYSQL}, tables: [t], protect: {{t: {{EMail: {rule}}}}}}}"
    text = two_sources(entry).replace('keys: {orders: ["order:{order_id}"]', 'keys: {t: ["by:{email}"]')
    assert "source legacy protects `email`" in refused(file, text)[0]
