"""Expressions with messages that match them or not, for the simulator and the real broker alike."""

from __future__ import annotations

_ABSENT: dict[str, str] = {}

CASES: list[tuple[str, dict[str, str], bool]] = [
    # numbers
    ("a > 5", {"a": "6"}, True),
    ("a > 5", {"a": "5"}, False),
    ("a >= 5", {"a": "5"}, True),
    ("a < 5", {"a": "-7"}, True),
    ("a <= 5", {"a": "6"}, False),
    ("a > -3", {"a": "-2"}, True),
    ("a = 5", {"a": "05"}, True),
    ("a = 5", {"a": "5.0"}, False),
    ("a = 5.0", {"a": "5"}, True),
    ("a = 5.0", {"a": " 5 "}, True),
    ("a > 1e3", {"a": "1001"}, True),
    ("a > .5", {"a": "0.6"}, True),
    ("a = 5L", {"a": "5"}, True),
    ("a > 1", {"a": "9999999999"}, False),  # no int
    ("a > 3000000000", {"a": "9999999999"}, True),
    ("5 < a", {"a": "6"}, True),
    ("a > b", {"a": "10", "b": "9"}, True),
    ("a > b", {"a": "x", "b": "9"}, False),
    ("-a < 0", {"a": "5"}, False),  # a property is a text, and has no negative
    # texts and booleans
    ("a = 'x'", {"a": "x"}, True),
    ("a = 'it''s'", {"a": "it's"}, True),
    ("a <> 'x'", {"a": "y"}, True),
    ("a <> 'x'", _ABSENT, False),
    ("a = b", {"a": "x", "b": "x"}, True),
    ("a = b", {"a": "x"}, False),
    ("a = b", _ABSENT, True),
    ("a = TRUE", {"a": "true"}, True),
    ("a = TRUE", {"a": "yes"}, False),
    ("a = FALSE", {"a": "yes"}, True),
    ("TRUE = a", {"a": "true"}, False),  # Java fails on it
    ("TRUE", _ABSENT, True),
    ("a", {"a": "true"}, False),
    ("NOT a", {"a": "true"}, True),
    ("NOT a", _ABSENT, False),
    # sets and ranges
    ("a IN ('x', 'y')", {"a": "y"}, True),
    ("a IN ('x', 'y')", {"a": "z"}, False),
    ("a NOT IN ('x', 'y')", {"a": "z"}, True),
    ("a NOT IN ('x', 'y')", _ABSENT, False),
    ("a BETWEEN 2 AND 4", {"a": "4"}, True),
    ("a BETWEEN 2 AND 4", {"a": "5"}, False),
    ("a NOT BETWEEN 2 AND 4", {"a": "5"}, True),
    ("a NOT BETWEEN 2 AND 4", _ABSENT, False),
    ("a CONTAINS 'b'", {"a": "abc"}, True),
    ("a NOT CONTAINS 'b'", {"a": "abc"}, False),
    ("a NOT CONTAINS 'b'", _ABSENT, False),
    ("a STARTSWITH 'ab'", {"a": "abc"}, True),
    ("a ENDSWITH 'bc'", {"a": "abc"}, True),
    # null
    ("a IS NULL", _ABSENT, True),
    ("a IS NULL", {"a": "1"}, False),
    ("a IS NOT NULL", {"a": "1"}, True),
    ("a > 5 OR b = 'x'", {"b": "x"}, True),
    ("NOT (a > 5)", _ABSENT, False),
    ("a > 5 AND b = 'x'", {"b": "x"}, False),
    # a text that is not a number fails the whole expression
    ("a > 5 OR b = 'x'", {"a": "much", "b": "x"}, False),
    ("b = 'x' OR a > 5", {"a": "much", "b": "x"}, True),
    ("NOT (a > 5)", {"a": "much"}, False),
    # precedence and form
    ("a = 1 OR b = 1 AND c = 1", {"a": "1"}, True),
    ("(a = 1 OR b = 1) AND c = 1", {"a": "1"}, False),
    ("not a is null and b between 1 and 2", {"a": "1", "b": "2"}, False),
    ("NOT (a IS NULL) AND b BETWEEN 1 AND 2", {"a": "1", "b": "2"}, True),
    ("a /* any */ = -- so\n 1", {"a": "1"}, True),
    ("a = 1 whatever follows", {"a": "1"}, True),
    ("TAGS = 'TagA' AND a = 1", {"TAGS": "TagA", "a": "1"}, True),
]
ILLEGAL: list[str] = [
    "a >>> 5",
    "a >",
    "a = NULL",
    "a > 'x'",
    "a > TRUE",
    "a BETWEEN 5 AND 1",
    "a BETWEEN 'x' AND 'y'",
    "a IN (1, 2)",
    "5 IN ('x')",
    "5",
    "'x'",
    "a = 99999999999999999999",
    "a > 0.0",
    "a > 1 > 2",
    "TRUE = 5",
    "a IS 5",
    "a NOT 5",
    "(a = 1",
    "a = #",
]
