"""The text of a statement: its tokens, its parts, and the text that may be shown. A tokenizer, not a parser."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile

from relay.mysql_dialect.charsets import lowered
from relay.types.sql import TYPES, Form

# Database and table. A name without a database gets the one in which the statement was executed.
Name = tuple[str, str]

_SHOWN = 200  # characters
_VALUE = re.compile(r"""['"]|(?<![\w$`])\.?[0-9]""")
MASKED = "***"  # replaces a literal in a statement that is shown without its values

# Bits of `sql_mode` that change how a statement is read, as both servers number them.
ANSI_QUOTES, BRACKETS, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 10, 1 << 20
MARIADB = 1 << 62  # not a bit of a server: the relay adds it to the mode of a statement of MariaDB
_READ_BY = ANSI_QUOTES | BRACKETS | NO_BACKSLASH_ESCAPES | MARIADB
# A flag, and all that may be in the mode, for statements whose session's mode is unknown.
UNKNOWN_MODE = 1 << 63 | ANSI_QUOTES | BRACKETS | NO_BACKSLASH_ESCAPES


@cache
def _token(sql_mode: int, is_open: bool = True) -> re.Pattern[str]:
    """Return the pattern of a token. ``is_open``: whether it is in a comment whose text is executed, which ``*/`` ends.

    As for the servers, blanks are six ASCII characters, and every character beyond ASCII belongs to a name. The text of
    each comment with ``!`` is executed, since a server logs a blank instead if it has not executed it: for MySQL,
    ``/*M!`` begins any comment, and a version has a sixth digit only before a blank.
    """
    opening = r"/\*M?!(?:[0-9]{5,6})?" if sql_mode & MARIADB else r"/\*!(?:[0-9]{5}(?:[0-9](?=[\x09-\x0d\x20]))?)?"
    ending = r"| \*/" if is_open else ""
    with_escapes, without = r"(?:[^%s\\]|\\.|%s)*", "(?:[^%s]|%s)*"
    literal = without if sql_mode & NO_BACKSLASH_ESCAPES else with_escapes
    double = without if sql_mode & ANSI_QUOTES else literal
    bracket = r"\[(?P<bracket>(?:[^\]]|\]\])*)\]" if sql_mode & BRACKETS else "(?P<bracket>(?!))"
    return re.compile(
        rf"""
          [\x09-\x0d\x20]+ | (?P<executed>{opening}\  ? {ending})
        | (?P<comment>/\*.*?(?:\*/|\Z) | \#[^\n]* | --(?=[\x00-\x20\x7f]|\Z)[^\n]*)
        | `(?P<tick>(?:[^`]|``)*)`
        | "(?P<double>{double % ('"', '""')})"
        | (?P<single>'{literal % ("'", "''")}')
        | {bracket}
        | (?P<word>[0-9A-Za-z_$\x80-\U0010ffff]+)
        | (?P<sign>.)
        """,
        re.VERBOSE | re.DOTALL,
    )


def _found(sql: str, sql_mode: int) -> Iterator[re.Match[str]]:
    """Yield each token, with blanks and comments."""
    at, is_open = 0, False
    while (found := _token(sql_mode & _READ_BY, is_open).match(sql, at)) is not None:
        yield found
        at = found.end()
        if found["executed"] is not None:
            is_open = found[0] != "*/"  # I1: else it is two signs, and the second may begin a comment


# The words whose numbers in parentheses are sizes, not values.
_SIZED = {"precision", "real", "varying", "vector"} | {
    name
    for name, each in TYPES.items()
    if name != "date" and each.form not in (Form.ENUM, Form.SET, Form.JSON, Form.ADDRESS, Form.OPAQUE)
}
_BEFORE_COLUMN = ("(", ",", "ADD", "COLUMN", "MODIFY", "CHANGE", "EXISTS")
_SIZE = re.compile(r"\s*\(\s*[0-9]+\s*(?:,\s*[0-9]+\s*)?\)")


@dataclass(frozen=True, slots=True)
class Token:
    """A word as written, a name without its quotes, or one sign."""

    text: str
    is_name: bool
    is_quoted: bool = False

    def is_word(self, *words: str) -> bool:
        return not self.is_quoted and self.text.upper() in words

    def is_sign(self, sign: str) -> bool:
        return self.text == sign and not self.is_name


END = Token("", False)


def tokens(sql: str, sql_mode: int, *, with_literals: bool = False) -> Iterator[Token]:
    """Return the tokens, without comments. ``with_literals``: include text literals, in their quotes."""
    for found in _found(sql, sql_mode):
        kind, text = found.lastgroup, found[0]
        if kind in ("tick", "bracket") or (kind == "double" and sql_mode & ANSI_QUOTES):
            yield Token(text[1:-1].replace(text[-1] * 2, text[-1]), True, True)
        elif kind in ("double", "single"):
            if with_literals:
                yield Token(text, False, True)
        elif kind in ("word", "sign"):
            yield Token(text, kind == "word")


def after_table(words: Sequence[Token], first: str) -> Sequence[Token]:
    """Return the words after the name of the table."""
    following = dropwhile(lambda word: not word.is_word(first), words)
    rest = list(dropwhile(lambda word: not word.is_word("TABLE"), following))[1:]
    rest = list(dropwhile(lambda word: word.is_word("IF", "NOT", "EXISTS"), rest))
    rest = rest[2 if rest and rest[0].is_sign(".") else 1 :]
    rest = rest[2:] if len(rest) > 1 and rest[0].is_sign(".") else rest
    if rest and rest[0].is_word("WAIT", "NOWAIT"):
        rest = list(dropwhile(lambda word: word.is_sign(".") or word.text[:1].isdigit(), rest[1:]))
    return rest


def closing(words: Sequence[Token], at: int) -> int:
    """Return the index of the parenthesis that closes the one at ``at``. Raises IndexError."""
    depth = 0
    while True:
        depth += words[at].is_sign("(") - words[at].is_sign(")")
        if not depth:
            return at
        at += 1


def outside(words: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens that are not in parentheses. Raises IndexError."""
    at = 0
    while at < len(words):
        if words[at].is_sign("("):
            at = closing(words, at)
        else:
            yield words[at]
        at += 1


def parts_of(words: Sequence[Token]) -> list[list[Token]]:
    """Split at the commas outside of parentheses. Raises IndexError."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for word in words:
        depth += word.is_sign("(") - word.is_sign(")")
        if word.is_sign(";") and not depth:
            break
        if word.is_sign(",") and not depth:
            parts.append([])
        else:
            parts[-1].append(word)
    if depth:
        raise IndexError
    return [part for part in parts if part]


def without_column(rest: Sequence[Token]) -> tuple[Sequence[Token], bool]:
    """Return the words after ``COLUMN`` and ``IF [NOT] EXISTS``, and whether ``IF`` was there."""
    at = 1 if rest[0].is_word("COLUMN") else 0
    start = at
    while rest[at].is_word("IF", "NOT", "EXISTS"):
        at += 1
    return rest[at:], at > start


def with_plain_blanks(sql: str, sql_mode: int) -> str:
    """Return a statement from a character set of single bytes, in which a no-break space separates words as well."""
    return "".join(
        found[0] if found["word"] is None else found[0].replace("\xa0", " ") for found in _found(sql, sql_mode)
    )


def shown(sql: str) -> str:
    """Return a statement for a message: up to its first value, which may be one that is not published."""
    value = _VALUE.search(sql)
    end = min(_SHOWN, len(sql) if value is None else value.start())
    return sql if end == len(sql) else f"{sql[:end]}..."


def without_values(sql: str, sql_mode: int = 0) -> str:
    """Return a statement without comments, with `MASKED` in place of each literal, even of a name in double quotes.

    Sizes of types stay. The statement ends before its first value where that is ambiguous: whether a backslash ends a
    literal depends on the session, and an unfinished literal or comment may hide another. The same holds for a ``*/``
    outside a comment, because its slash may begin one.
    """
    parts: list[str] = []
    before: tuple[str, ...] = ("", "", "")  # the tokens before this one, the latest last
    at, is_open = 0, False
    token = _token(sql_mode & _READ_BY)
    while (found := token.match(sql, at)) is not None:
        kind, text, at = found.lastgroup, found[0], found.end()
        if kind == "comment":
            parts.append(" ")
            continue
        if kind == "executed":
            if text == "*/" and not is_open:
                return _cut(parts)
            is_open = text != "*/"
        if kind in ("double", "single"):
            if "\\" in text:
                return _cut(parts)
            shown_as = MASKED
        elif kind == "sign" and text in "'\"`":
            return _cut(parts)
        elif kind == "word" and text[0].isdigit():
            shown_as = MASKED
        elif (size := _SIZE.match(sql, at)) is not None and _is_type(text, before):
            shown_as = text + size[0]
            at = size.end()
        else:
            shown_as = text
        parts.append(shown_as)
        if not text.isspace():
            before = (*before[1:], text.upper())
    return "".join(parts).strip()


def _is_type(text: str, before: tuple[str, ...]) -> bool:
    """Whether a word before numbers in parentheses is a column type, and not a function of values."""
    if text.lower() not in _SIZED or before[2] == "DEFAULT":
        return False
    return before[1] in _BEFORE_COLUMN or before[0] in ("CHANGE", "COLUMN", "EXISTS")


def _cut(parts: list[str]) -> str:
    """Return the text before the first literal, with three dots."""
    return "".join(parts[: parts.index(MASKED)] if MASKED in parts else parts).strip() + "..."


# Common words of statements that change rows. They are names only if they are quoted.
# fmt: off
_RESERVED = (
    "AND", "AS", "BETWEEN", "BY", "CASE", "DELAYED", "DELETE", "FROM", "GROUP", "HAVING", "HIGH_PRIORITY",
    "IGNORE", "IN", "INNER", "INSERT", "INTERVAL", "INTO", "IS", "JOIN", "KEY", "LEFT", "LIKE", "LIMIT",
    "LOAD", "LOW_PRIORITY", "NOT", "NULL", "ON", "OR", "ORDER", "REPLACE", "RETURNING", "RIGHT", "SELECT",
    "SET", "TABLE", "THEN", "UPDATE", "USING", "VALUES", "WHEN", "WHERE", "WITH",
)
# fmt: on


class StatementScanner:
    """Reads a statement token by token. ``now``: the next token."""

    def __init__(self, sql: str, database: str, sql_mode: int, lower_case: bool = False) -> None:
        self._tokens = tokens(sql, sql_mode, with_literals=True)
        self._lower_case = lower_case
        self._database = self._stored(database)
        self.now = next(self._tokens, END)

    def step(self) -> Token:
        passed, self.now = self.now, next(self._tokens, END)
        return passed

    def at(self, sign: str) -> bool:
        return self.now.is_sign(sign)

    def skip(self, *words: str) -> bool:
        """Skip the next word if it is one of these, and return whether it was."""
        if self.now.is_word(*words):
            self.step()
            return True
        return False

    def skip_if_exists(self) -> bool:
        found = self.skip("IF")
        if found:
            self.skip("NOT")
            self.skip("EXISTS")
        return found

    def skip_wait(self) -> None:
        if not self.skip("NOWAIT") and self.skip("WAIT"):
            while self.at(".") or self.now.text[:1].isdigit():  # any number
                self.step()

    @property
    def is_at_end(self) -> bool:
        return self.now is END or self.at(";")

    def name(self) -> Name | None:
        """Read ``table``, ``database.table``, or ``.table``, which servers take for ``table``."""
        database = None if self.at(".") or not self.now.is_name else self.named()
        if not self.at("."):
            return None if database is None else (self._database, database)
        self.step()
        if database is None and not self.now.is_quoted and self.now.text[:1].isdigit():
            return None  # a number
        return (self._database if database is None else database, self.named()) if self.now.is_name else None

    def named(self) -> str:
        """Skip a name, and return it as the server stores it."""
        return self._stored(self.step().text)

    def _stored(self, name: str) -> str:
        return lowered(name) if self._lower_case else name  # I1

    def names(self) -> list[Name]:
        found = []
        while (name := self.name()) is not None:
            found.append(name)
            self.skip_wait()
            if not self.at(","):
                break
            self.step()
        return found

    def all_names(self) -> tuple[Name, ...]:
        found: dict[Name, None] = {}
        while self.now is not END:
            is_number = not self.now.is_quoted and self.now.text.isascii() and self.now.text.isdigit()
            name = None if is_number or self.now.is_word(*_RESERVED) else self.name()
            if name is None:
                self.step()
            else:
                found[name] = None
        return tuple(found)
