"""SQL92 expressions over message properties, evaluated as RocketMQ's filter module does.

A property is a string, or null if the message lacks it. A comparison with null is null, and a message matches
only if the whole expression is true. A string is converted to the type with which it is compared. If a string
cannot be converted, the whole expression fails and the message does not match, even if the other side of an
OR is true.

Source: ``ComparisonExpression``, ``LogicExpression``, ``UnaryExpression``, ``ExpressionMessageFilter``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NoReturn

Value = str | int | float | bool | None
Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]

_INT32_END = 1 << 31
_INT64_END = 1 << 63
_MAX_INT64_DIGITS = 19
_JAVA_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_JAVA_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)", re.ASCII
)
_JAVA_SPACE = "".join(map(chr, range(0x21)))


class Sql92Error(Exception):
    """An expression that the broker does not compile, or one that fails on a message."""


class Kind(Enum):
    """Kinds of operands that the grammar's rules distinguish."""

    CONSTANT = auto()
    PROPERTY = auto()
    BOOLEAN = auto()
    """A condition. The constants TRUE, FALSE and NULL are of kind CONSTANT, and also count as conditions."""
    VALUE = auto()
    """A value with a minus sign, which is the only other operand."""


@dataclass(frozen=True, slots=True)
class Node:
    """One compiled operand of an expression, with the function that computes its value for a message."""

    kind: Kind
    evaluate: Evaluate
    constant: Value = None
    """The value of a constant; None for other kinds."""

    @property
    def is_condition(self) -> bool:
        """Whether the operand is a condition: of kind BOOLEAN, or one of the constants TRUE, FALSE and NULL.

        Java's class is then a ``BooleanExpression``.
        """
        is_boolean_constant = self.constant is None or isinstance(self.constant, bool)
        return self.kind is Kind.BOOLEAN or (self.kind is Kind.CONSTANT and is_boolean_constant)


class Expression:
    """A compiled SQL92 expression that selects messages by their properties."""

    def __init__(self, condition: Node) -> None:
        self._evaluate = condition.evaluate

    def matches(self, properties: Properties) -> bool:
        """Whether the expression is true for these properties of a message; False if it fails or is null."""
        try:
            return self._evaluate(properties) is True
        except (Sql92Error, RecursionError):
            return False


# --- operands -----------------------------------------------------------------------------------------------


def constant(value: Value) -> Node:
    """Return the operand of a literal."""
    return Node(Kind.CONSTANT, lambda _: value, value)


def integer_literal(digits: str) -> Node:
    """Return the operand of a decimal integer literal, without its suffix L.

    Raises:
        Sql92Error: If it exceeds 64 bits.
    """
    number = _integer(digits)
    if number >= _INT64_END:
        raise Sql92Error(f"{digits} exceeds 64 bits")
    return constant(number)


def float_literal(text: str) -> Node:
    """Return the operand of a floating point literal.

    Raises:
        Sql92Error: If it is 0, or too small or too large for a double, as in Java.
    """
    number = float(text)
    if math.isinf(number) or number <= 0:
        raise Sql92Error(f"{text} is 0, or too small or too large for a double")
    return constant(number)


def property_value(name: str) -> Node:
    """Return the operand whose value is the message's property ``name``; null if it has none."""
    return Node(Kind.PROPERTY, lambda properties: properties.get(name))


def negate(operand: Node) -> Node:
    """Return the operand with a minus sign; its value is null if the operand's value is not a number.

    So it is null for every property, since these are strings.
    """

    def evaluate(properties: Properties) -> Value:
        value = operand.evaluate(properties)
        return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    return Node(Kind.VALUE, evaluate)


# --- conditions ---------------------------------------------------------------------------------------------


def condition(operand: Node) -> Node:
    """Return the operand as a condition; a property becomes false, or null if the message lacks it.

    Raises:
        Sql92Error: If the operand is another value, such as a number.
    """
    if operand.is_condition:
        return operand
    if operand.kind is Kind.PROPERTY:
        return Node(
            Kind.BOOLEAN,
            lambda properties: None if operand.evaluate(properties) is None else False,
        )
    raise Sql92Error(f"{operand.constant!r} will not result in a boolean value")


def negation(operand: Node) -> Node:
    """Return the condition ``NOT operand``; null stays null."""
    inner = condition(operand)

    def evaluate(properties: Properties) -> Value:
        value = inner.evaluate(properties)
        return None if value is None else not value

    return Node(Kind.BOOLEAN, evaluate)


def either(operands: Iterable[Node]) -> Node:
    """Return the OR of the operands, evaluated from left to right until one is true.

    If none is true, the value is null if one is null, else false. A long chain needs no deep stack.
    """
    return _chain(operands, decisive=True)


def both(operands: Iterable[Node]) -> Node:
    """Return the AND of the operands, evaluated from left to right until one is false.

    If none is false, the value is null if one is null, else true.
    """
    return _chain(operands, decisive=False)


def _chain(operands: Iterable[Node], *, decisive: bool) -> Node:
    parts = [condition(operand).evaluate for operand in operands]

    def evaluate(properties: Properties) -> Value:
        has_null = False
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            has_null = has_null or value is None
        return None if has_null else not decisive

    return Node(Kind.BOOLEAN, evaluate)


def equal(left: Node, right: Node) -> Node:
    """Return the condition ``left = right``.

    It is true if both values are null, null if only ``left`` is null, and false if only ``right`` is null.

    Raises:
        Sql92Error: If a side is the constant NULL, or two constants cannot be compared.
    """
    for side in (left, right):
        if side.kind is Kind.CONSTANT and side.constant is None:
            raise Sql92Error("NULL cannot be compared")
    if left.kind is right.kind is Kind.CONSTANT and left.is_condition and not right.is_condition:
        raise Sql92Error(f"{left.constant!r} cannot be compared with {right.constant!r}")
    return _equal(left, right)


def is_null(operand: Node) -> Node:
    """Return the condition ``operand IS NULL``: true if the value is null, otherwise false."""
    return _equal(operand, constant(None))


def _equal(left: Node, right: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        left_value, right_value = left.evaluate(properties), right.evaluate(properties)
        if left_value is None:
            return True if right_value is None else None
        return right_value is not None and compare(left_value, right_value) == 0

    return Node(Kind.BOOLEAN, evaluate)


def ordering(left: Node, right: Node, holds: Callable[[int], bool]) -> Node:
    """Return the condition ``<``, ``<=``, ``>`` or ``>=``, which is null if a side is null.

    ``holds`` gets a negative number, 0 or a positive number for left less than, equal to or greater than
    right. Two strings are compared as doubles.

    Raises:
        Sql92Error: If a side is a condition, or a constant that is not a number.
    """
    for side in (left, right):
        _check_order_operand(side)

    def evaluate(properties: Properties) -> Value:
        left_value = left.evaluate(properties)
        right_value = None if left_value is None else right.evaluate(properties)
        if left_value is None or right_value is None:
            return None
        if isinstance(left_value, str) and isinstance(right_value, str):
            return holds(_order(_to_double(left_value), _to_double(right_value)))
        return holds(compare(left_value, right_value))

    return Node(Kind.BOOLEAN, evaluate)


def between(operand: Node, low: Node, high: Node) -> Node:
    """Return the condition ``operand BETWEEN low AND high``, both ends included.

    Raises:
        Sql92Error: If two constants are not in order, or cannot be compared by order.
    """
    inside = both(
        (ordering(operand, low, lambda order: order >= 0), ordering(operand, high, lambda order: order <= 0))
    )
    if low.kind is high.kind is Kind.CONSTANT and compare(high.constant, low.constant) < 0:
        raise Sql92Error(f"BETWEEN {low.constant!r} AND {high.constant!r} is the wrong way round")
    return inside


def not_between(operand: Node, low: Node, high: Node) -> Node:
    """Return the condition ``operand NOT BETWEEN low AND high``: below ``low`` or above ``high``."""
    return either(
        (ordering(operand, low, lambda order: order < 0), ordering(operand, high, lambda order: order > 0))
    )


def one_of(operand: Node, texts: Sequence[str], *, is_in: bool) -> Node:
    """Return the condition ``operand IN (texts)``, or NOT IN; null if the message lacks the property.

    Raises:
        Sql92Error: If the operand is not a property.
    """
    if operand.kind is not Kind.PROPERTY:
        raise Sql92Error("IN needs a property on its left")
    accepted = frozenset(texts)

    def evaluate(properties: Properties) -> Value:
        value = operand.evaluate(properties)
        return None if value is None else (value in accepted) is is_in

    return Node(Kind.BOOLEAN, evaluate)


def text_test(operand: Node, search: str, test: Callable[[str, str], bool], *, holds: bool) -> Node:
    """Return the condition CONTAINS, STARTSWITH or ENDSWITH, or with ``holds=False`` its opposite.

    Both are false if ``search`` is empty or the operand's value is not a string.
    """

    def evaluate(properties: Properties) -> Value:
        value = operand.evaluate(properties)
        return bool(search) and isinstance(value, str) and test(value, search) is holds

    return Node(Kind.BOOLEAN, evaluate)


def _check_order_operand(operand: Node) -> None:
    is_number = isinstance(operand.constant, (int, float)) and not isinstance(operand.constant, bool)
    if operand.kind is Kind.BOOLEAN or (operand.kind is Kind.CONSTANT and not is_number):
        raise Sql92Error(f"{operand.constant!r} cannot be compared by order")


# --- comparing values ---------------------------------------------------------------------------------------


def compare(left: Value, right: Value) -> int:
    """Return a negative number, 0 or a positive number if ``left`` is below, equal to or above ``right``.

    Two strings are compared as text. A string beside a number or a boolean is converted to that type. The
    result is -1 for a number beside a boolean, and if a side is null.

    Raises:
        Sql92Error: If a string does not convert, or ``left`` is a boolean and ``right`` a string.

    Source: ``ComparisonExpression.__compare``.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        return _compare(_converted(left, right), right)
    if isinstance(right, str):
        if isinstance(left, bool):
            raise Sql92Error("Java casts the boolean to a string, and fails")
        return _compare(left, _converted(right, left))
    return _compare(left, right)


def _compare(left: bool | int | float | None, right: bool | int | float | None) -> int:
    """Compare two numbers or two booleans; return -1 for one of each, and if a side is null."""
    if left is None or right is None or isinstance(left, bool) is not isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return _order(float(left), float(right))
    return (left > right) - (left < right)


def _converted(text: str, like: bool | int | float | None) -> bool | int | float:
    if isinstance(like, bool):
        return text.lower() == "true"
    if isinstance(like, int):
        return _to_integer(text, _INT32_END if -_INT32_END <= like < _INT32_END else _INT64_END)
    return _to_double(text)


def _to_integer(text: str, end: int) -> int:
    """Convert as ``Integer.valueOf`` or ``Long.valueOf``: the number must be from ``-end`` to below ``end``.

    Raises:
        Sql92Error: If it is not such a number.
    """
    if _JAVA_INTEGER.fullmatch(text) is None or not -end <= _integer(text) < end:
        _fail(text)
    return _integer(text)


def _integer(text: str) -> int:
    """Convert decimal digits with an optional sign.

    A number with too many digits becomes one just outside 64 bits, since Python refuses to convert thousands
    of digits.
    """
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > _MAX_INT64_DIGITS:
        return -_INT64_END - 1 if text.startswith("-") else _INT64_END
    return int(digits or "0") * (-1 if text.startswith("-") else 1)


def _to_double(text: str) -> float:
    """Convert as ``Double.valueOf``: surrounding white space and a suffix f or d are allowed.

    Raises:
        Sql92Error: If the text is not a number.
    """
    trimmed = text.strip(_JAVA_SPACE)
    if _JAVA_DOUBLE.fullmatch(trimmed) is None:
        _fail(text)
    return float(trimmed if trimmed.endswith(("y", "N")) else trimmed.rstrip("fFdD"))


def _order(left: float, right: float) -> int:
    """Compare as ``Double.compareTo``: NaN is the largest and equals itself; -0.0 is below 0.0."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    keys = [(each, math.copysign(1, each)) for each in (left, right)]
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


def _fail(text: str) -> NoReturn:
    raise Sql92Error(f"{text!r} is not a number")
