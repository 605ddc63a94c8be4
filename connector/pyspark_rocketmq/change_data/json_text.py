"""JSON whose numbers stay exact.

``orjson`` silently turns integers above 2^64 - 1 and all decimals into floats, and ``json`` does so with all
decimals. Here a number with a fraction or an exponent is a ``Decimal``.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import date
from decimal import Decimal
from math import isfinite
from typing import Any, Final, NoReturn

from pyspark_rocketmq.change_data.times import Unreadable, utc_text

_TOO_DEEP: Final = "the JSON is nested too deeply"
_MOST_PLACES: Final = 16_383
"""Maximum number of digits behind the point that PostgreSQL's numeric may have; MySQL's decimal has 30."""


def parse(text: bytes | str) -> Any:
    """Parse one JSON value.

    Raises:
        ValueError: If the text is no JSON, not UTF-8 or nested too deeply, or has a string that UTF-8 cannot
            hold (half a surrogate pair) or a number whose exponent is out of bounds.
    """
    decoded = text if isinstance(text, str) else text.decode("utf-8")
    try:
        value = _DECODER.decode(decoded)
        if "\\ud" in decoded or "\\uD" in decoded:
            show(value).encode("utf-8")
    except RecursionError:
        raise Unreadable(_TOO_DEEP) from None
    except ArithmeticError:
        raise Unreadable("the JSON has a number whose exponent is out of bounds") from None
    return value


def _refuse(name: str) -> NoReturn:
    raise Unreadable(f"{name} is not a JSON number")


_DECODER: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse)


def show(value: Any) -> str:
    """Return a value of a change as JSON: all digits of a number, bytes in base64, times in ISO 8601.

    Raises:
        ValueError: If the value is nested too deeply.
    """
    try:
        return _shown(value)
    except RecursionError:
        raise Unreadable(_TOO_DEEP) from None


def _shown(value: Any) -> str:
    match value:
        case float() if not isfinite(value):
            # JSON has no such number; Java writes it like this, and Spark reads it.
            return json.dumps({"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)])
        case None | bool() | str() | float():
            return json.dumps(value, ensure_ascii=False)
        case int() | Decimal():
            return str(value)
        case bytes() | date():
            return f'"{b64encode(value).decode() if isinstance(value, bytes) else utc_text(value)}"'
        case dict():
            members = (
                f"{json.dumps(name, ensure_ascii=False)}:{_shown(item)}" for name, item in value.items()
            )
            return f"{{{','.join(members)}}}"
        case list() | tuple():
            return f"[{','.join(map(_shown, value))}]"
        case _:
            raise TypeError(f"a change has no values of type {type(value).__name__}")


def text_of(value: Any) -> str:
    """Return a value of a change as text: a string as it is, any other value as in JSON, without quotes.

    A decimal has its digits behind the point as databases show them, without an exponent: ``0.00``, not
    ``0E-2``. The text does not show the type: the number 1 and the string "1" have the same text.

    Raises:
        ValueError: If the value is bytes, which have no text, or is nested too deeply.
    """
    if isinstance(value, bytes):
        raise Unreadable("the value is bytes, not a text")
    if (
        isinstance(value, Decimal)
        and value.is_finite()
        and -_MOST_PLACES <= int(value.as_tuple().exponent) < 0
    ):
        return f"{value:f}"
    return value if isinstance(value, str) else show(value).strip('"')
