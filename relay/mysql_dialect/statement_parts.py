"""The parts of a statement's tokens: what follows the table's name, what is in parentheses, what is between commas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relay.mysql_dialect.statement_text import Token


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
    while at < len(words) and (words[at].is_word("WAIT", "NOWAIT") or words[at].text.isdigit()):
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
