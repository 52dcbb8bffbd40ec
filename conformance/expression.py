"""The -k expression: words joined by `and`, `or`, `not` and parentheses, as in pytest.

A word matches the ids that contain it; a word that is a whole id matches that id alone, so that
the id of a failure selects exactly its case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

__all__ = ["compile_expression"]

Predicate = Callable[[str], bool]
_TOKEN = re.compile(r"\s*([()]|[^\s()]+)")


def compile_expression(text: str, ids: Collection[str]) -> Predicate:
    """Whether an id is selected. Raises ValueError with the place of a mistake."""
    tokens = _TOKEN.findall(text)
    if not tokens:
        raise ValueError("the expression is empty")
    known = frozenset(ids)
    parsed, rest = _either(tokens, known, text)
    if rest:
        raise ValueError(f"{text!r}: {rest[0]!r} was not expected here")
    return parsed


def _either(tokens: list[str], ids: frozenset[str], text: str) -> tuple[Predicate, list[str]]:
    left, tokens = _both(tokens, ids, text)
    while tokens and tokens[0] == "or":
        right, tokens = _both(tokens[1:], ids, text)
        left = _or(left, right)
    return left, tokens


def _both(tokens: list[str], ids: frozenset[str], text: str) -> tuple[Predicate, list[str]]:
    left, tokens = _one(tokens, ids, text)
    while tokens and tokens[0] == "and":
        right, tokens = _one(tokens[1:], ids, text)
        left = _and(left, right)
    return left, tokens


def _one(tokens: list[str], ids: frozenset[str], text: str) -> tuple[Predicate, list[str]]:
    if not tokens or tokens[0] in ("and", "or", ")"):
        found = f"before {tokens[0]!r}" if tokens else "at the end"
        raise ValueError(f"{text!r}: a word is missing {found}")
    word, rest = tokens[0], tokens[1:]
    if word == "not":
        inner, rest = _one(rest, ids, text)
        return lambda id: not inner(id), rest
    if word == "(":
        inner, rest = _either(rest, ids, text)
        if not rest or rest[0] != ")":
            raise ValueError(f"{text!r}: a closing parenthesis is missing")
        return inner, rest[1:]
    if word in ids:
        return lambda id: id == word, rest
    return lambda id: word.lower() in id.lower(), rest


def _or(left: Predicate, right: Predicate) -> Predicate:
    return lambda id: left(id) or right(id)


def _and(left: Predicate, right: Predicate) -> Predicate:
    return lambda id: left(id) and right(id)
