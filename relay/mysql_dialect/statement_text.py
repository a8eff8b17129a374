"""The text of a statement: its tokens and their parts, and as much of it as may be shown.

A tokenizer, not a parser: it knows comments, quotes and names.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from relay.types.sql import TYPES, Form

_SHOWN = 200  # characters
_VALUE = re.compile(r"""['"]|(?<![\w$`])\.?[0-9]""")
MASKED = "***"
"""Stands for a literal in a statement that is shown without its values."""

# Bits of `sql_mode` that change how a statement is read, as both servers number them.
ANSI_QUOTES, BRACKETS, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 10, 1 << 20
_READ_BY = ANSI_QUOTES | BRACKETS | NO_BACKSLASH_ESCAPES
UNKNOWN_MODE = -1
"""Stands for the mode where it is not known how the session has read the statement."""


@cache
def _token(sql_mode: int) -> re.Pattern[str]:
    """Return the pattern of a token.

    As the servers have it: blanks are six characters of ASCII, and each character beyond ASCII is one of a name.
    """
    with_escapes, without = r"(?:[^%s\\]|\\.|%s)*", "(?:[^%s]|%s)*"
    literal = without if sql_mode & NO_BACKSLASH_ESCAPES else with_escapes
    double = without if sql_mode & ANSI_QUOTES else literal
    bracket = r"\[(?P<bracket>(?:[^\]]|\]\])*)\]" if sql_mode & BRACKETS else "(?P<bracket>(?!))"
    return re.compile(
        rf"""
          [\x09-\x0d\x20]+ | (?P<executed>/\*!M?[0-9]*\  ?  | /\*M!([0-9]*) | \*/)
        | (?P<comment>/\*.*?(?:\*/|\Z) | \#[^\n]* | --(?=[\x00-\x20]|\Z)[^\n]*)
        | `(?P<tick>(?:[^`]|``)*)`
        | "(?P<double>{double % ('"', '""')})"
        | (?P<single>'{literal % ("'", "''")}')
        | {bracket}
        | (?P<word>[0-9A-Za-z_$\x80-\U0010ffff]+)
        | (?P<sign>.)
        """,
        re.VERBOSE | re.DOTALL,
    )


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


END = Token("", False)


def tokens(sql: str, sql_mode: int, *, with_literals: bool = False) -> Iterator[Token]:
    """Return the tokens of a statement, without comments. ``sql_mode``: of its session.

    ``with_literals``: with its text literals, which are not names, in their quotes.
    """
    for found in _token(sql_mode & _READ_BY).finditer(sql):
        if found["tick"] is not None:
            yield Token(found["tick"].replace("``", "`"), True, True)
        elif found["bracket"] is not None:
            yield Token(found["bracket"].replace("]]", "]"), True, True)
        elif found["double"] is not None:
            if sql_mode & ANSI_QUOTES:
                yield Token(found["double"].replace('""', '"'), True, True)
            elif with_literals:
                yield Token(found[0], False, True)
        elif found["single"] is not None:
            if with_literals:
                yield Token(found[0], False, True)
        elif found["word"] is not None:
            yield Token(found["word"], True)
        elif found["sign"] is not None:
            yield Token(found["sign"], False)


def is_sign(word: Token, sign: str) -> bool:
    return word.text == sign and not word.is_name


def after_table(words: Sequence[Token], first: str) -> Sequence[Token]:
    """Return what follows the name of the table."""
    at = next((at for at, word in enumerate(words) if word.is_word(first)), len(words))
    while at < len(words) and not words[at].is_word("TABLE"):
        at += 1
    at += 1
    while at < len(words) and words[at].is_word("IF", "NOT", "EXISTS"):
        at += 1
    at += 2 if at < len(words) and is_sign(words[at], ".") else 1
    if at + 1 < len(words) and is_sign(words[at], "."):
        at += 2
    if at < len(words) and words[at].is_word("WAIT", "NOWAIT"):
        at += 1
        while at < len(words) and (is_sign(words[at], ".") or words[at].text[:1].isdigit()):
            at += 1
    return words[at:]


def closing(words: Sequence[Token], at: int) -> int:
    """Return the index of the parenthesis that closes the one at ``at``. Raises IndexError."""
    depth = 0
    while True:
        if is_sign(words[at], "("):
            depth += 1
        elif is_sign(words[at], ")"):
            depth -= 1
            if not depth:
                return at
        at += 1


def outside(words: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens that are not in parentheses. Raises IndexError."""
    at = 0
    while at < len(words):
        if is_sign(words[at], "("):
            at = closing(words, at)
        else:
            yield words[at]
        at += 1


def parts_of(words: Sequence[Token]) -> list[list[Token]]:
    """Split at the commas outside of parentheses. Raises IndexError."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for word in words:
        depth += is_sign(word, "(") - is_sign(word, ")")
        if is_sign(word, ";") and not depth:
            break
        if is_sign(word, ",") and not depth:
            parts.append([])
        else:
            parts[-1].append(word)
    if depth:
        raise IndexError
    return [part for part in parts if part]


def without_column(rest: Sequence[Token]) -> tuple[Sequence[Token], bool]:
    """Return what follows ``COLUMN`` and ``IF [NOT] EXISTS``, and whether ``IF`` was there."""
    at = 1 if rest[0].is_word("COLUMN") else 0
    start = at
    while rest[at].is_word("IF", "NOT", "EXISTS"):
        at += 1
    return rest[at:], at > start


def with_plain_blanks(sql: str, sql_mode: int) -> str:
    """Return a statement from a character set of single bytes, in which a no-break space separates words as well."""
    return "".join(
        found[0] if found["word"] is None else found[0].replace("\xa0", " ")
        for found in _token(sql_mode & _READ_BY).finditer(sql)
    )


def shown(sql: str) -> str:
    """Return a statement as a message may show it: up to its first value, which may be one that is not published."""
    value = _VALUE.search(sql)
    end = min(_SHOWN, len(sql) if value is None else value.start())
    return sql if end == len(sql) else f"{sql[:end]}..."


def without_values(sql: str, sql_mode: int = 0) -> str:
    """Return a statement without comments and with `MASKED` in place of each literal, even of a name in double quotes.

    Sizes of types stay. The statement ends before its first value where that is ambiguous: whether a backslash ends a
    literal depends on the session, and an unfinished literal or comment may hide another. So may the end of a comment
    that has not begun, whose slash may begin one.
    """
    parts: list[str] = []
    # The tokens before this one, the last at the end.
    before: tuple[str, ...] = ("", "", "")
    # How many comments that a server executes have begun and not ended.
    executed = at = 0
    token = _token(sql_mode & _READ_BY)
    while (found := token.match(sql, at)) is not None:
        text, at = found[0], found.end()
        if found["comment"] is not None:
            parts.append(" ")
            continue
        if found["executed"] is not None:
            executed += -1 if text == "*/" else 1
            if executed < 0:
                return _cut(parts)
        if found["double"] is not None or found["single"] is not None:
            if "\\" in text:
                return _cut(parts)
            shown_as = MASKED
        elif found["sign"] is not None and text in "'\"`":
            return _cut(parts)
        elif found["word"] is not None and text[0].isdigit():
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
    """Whether a word before numbers in parentheses is the type of a column, and not a function of values."""
    if text.lower() not in _SIZED or before[2] == "DEFAULT":
        return False
    return before[1] in _BEFORE_COLUMN or before[0] in ("CHANGE", "COLUMN", "EXISTS")


def _cut(parts: list[str]) -> str:
    """Return what comes before the first literal, with three dots."""
    return "".join(parts[: parts.index(MASKED)] if MASKED in parts else parts).strip() + "..."
