"""Compiles strings to SQL92 expressions (``SelectorParser.jj``).

The grammar has its own precedence: NOT and the signs bind tightest, then < <= > >= BETWEEN IN CONTAINS and so
on, then = <> IS, then AND, then OR. Text after a complete expression is ignored, as in Java.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from broker_sim import sql92
from broker_sim.sql92 import Node, Sql92Error

_MAX_CHARACTERS = 32767
"""Maximum length of an expression, which bounds its time and memory; Java has no such limit."""
# The alternatives are ordered so that the first match is the longest.
_TOKEN = re.compile(
    r"""(?:[\x20\t\n\r\f]|--[^\n\r]*[\n\r]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*
    (?:(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<integer>0|[1-9][0-9]*[lL]?)
    |(?P<text>'(?:''|[^'])*')
    |(?P<word>[a-zA-Z_$][a-zA-Z0-9_$]*)
    |(?P<sign><>|<=|>=|[=<>(),+-])
    |(?P<end>\Z))""",
    re.VERBOSE,
)
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_ORDERINGS: dict[str, Callable[[int], bool]] = {
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, search: search in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_RESERVED = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "IS", *_TEXT_TESTS, *_CONSTANTS})


@lru_cache(maxsize=256)
def compile_expression(text: str) -> sql92.Expression:
    """Compile an SQL92 expression over message properties.

    Raises:
        Sql92Error: If the text does not begin with an expression, or is too long or nested too deeply.
    """
    if len(text) > _MAX_CHARACTERS:
        raise Sql92Error(f"an expression of {len(text)} characters exceeds {_MAX_CHARACTERS}")
    try:
        return sql92.Expression(sql92.condition(_Parser(text).disjunction()))
    except RecursionError:
        raise Sql92Error("the expression is nested too deeply") from None


class _Token(NamedTuple):
    kind: str
    """Name of a group of ``_TOKEN``, or ``reserved``."""
    text: str
    """Reserved words in upper case."""


class _Parser:
    """Recursive descent with one token of look-ahead; a token is read only when it is needed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ahead: _Token | None = None

    def disjunction(self) -> Node:
        left = self._conjunction()
        operands = [left]
        while self._take("OR"):
            operands.append(self._conjunction())
        return left if len(operands) == 1 else sql92.either(operands)

    def _conjunction(self) -> Node:
        left = self._equality()
        operands = [left]
        while self._take("AND"):
            operands.append(self._equality())
        return left if len(operands) == 1 else sql92.both(operands)

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            if self._take("="):
                left = sql92.equal(left, self._comparison())
            elif self._take("<>"):
                left = sql92.negation(sql92.equal(left, self._comparison()))
            elif self._take("IS"):
                is_negated = self._take("NOT")
                self._expect("NULL")
                left = sql92.is_null(left)
                left = sql92.negation(left) if is_negated else left
            else:
                return left

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            sign = self._peek().text if self._peek().kind == "sign" else ""
            if sign in _ORDERINGS:
                self._next()
                left = sql92.ordering(left, self._unary(), _ORDERINGS[sign])
                continue
            is_negated = self._take("NOT")
            following = self._predicate(left, is_negated=is_negated)
            if following is None:
                if is_negated:
                    self._unexpected()
                return left
            left = following

    def _predicate(self, left: Node, *, is_negated: bool) -> Node | None:
        """Parse BETWEEN, IN or a string test whose left side is ``left``; None if none of them follows.

        With ``is_negated``, return the condition with NOT, which was read before.
        """
        if self._take("BETWEEN"):
            low = self._unary()
            self._expect("AND")
            high = self._unary()
            return sql92.not_between(left, low, high) if is_negated else sql92.between(left, low, high)
        if self._take("IN"):
            return sql92.one_of(left, self._texts(), is_in=not is_negated)
        for word, test in _TEXT_TESTS.items():
            if self._take(word):
                return sql92.text_test(left, self._literal_text(), test, holds=not is_negated)
        return None

    def _unary(self) -> Node:
        if self._take("+"):
            return self._unary()
        if self._take("-"):
            return sql92.negate(self._unary())
        if self._take("NOT"):
            return sql92.negation(self._unary())
        return self._primary()

    def _primary(self) -> Node:
        if self._take("("):
            inner = self.disjunction()
            self._expect(")")
            return inner
        token = self._next()
        makers: dict[str, Callable[[str], Node]] = {
            "text": lambda text: sql92.constant(_unquoted(text)),
            "integer": lambda text: sql92.integer_literal(text.rstrip("lL")),
            "float": sql92.float_literal,
            "word": sql92.property_value,
        }
        if token.kind in makers:
            return makers[token.kind](token.text)
        if token.kind == "reserved" and token.text in _CONSTANTS:
            return sql92.constant(_CONSTANTS[token.text])
        raise Sql92Error(f"Encountered {token.text!r} where a value was expected, before column {self._at}.")

    def _texts(self) -> list[str]:
        self._expect("(")
        texts = [self._literal_text()]
        while self._take(","):
            texts.append(self._literal_text())
        self._expect(")")
        return texts

    def _literal_text(self) -> str:
        if self._peek().kind != "text":
            self._unexpected()
        return _unquoted(self._next().text)

    def _take(self, text: str) -> bool:
        """Read the sign or reserved word ``text`` if it is next."""
        token = self._peek()
        if token.kind not in {"sign", "reserved"} or token.text != text:
            return False
        self._next()
        return True

    def _expect(self, text: str) -> None:
        if not self._take(text):
            self._unexpected()

    def _unexpected(self) -> None:
        raise Sql92Error(f"Encountered {self._peek().text!r}, before column {self._at}.")

    def _peek(self) -> _Token:
        if self._ahead is None:
            self._ahead = self._read()
        return self._ahead

    def _next(self) -> _Token:
        token = self._peek()
        self._ahead = None
        return token

    def _read(self) -> _Token:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise Sql92Error(f"Lexical error behind column {self._at}.")
        self._at = match.end()
        kind = str(match.lastgroup)
        text = match[kind]
        if kind == "word" and text.upper() in _RESERVED:
            return _Token("reserved", text.upper())
        return _Token(kind, text)


def _unquoted(literal: str) -> str:
    return literal[1:-1].replace("''", "'")
