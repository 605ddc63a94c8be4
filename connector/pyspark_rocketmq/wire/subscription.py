"""Tag expressions, SQL92 conditions, and Java's string hash, by which brokers filter tags.

The broker compares only hash codes; the client must then compare the tags themselves.

Source: RocketMQ 5.3.3 ``FilterAPI``, ``SubscriptionData``, ``ExpressionMessageFilter``, ``PullAPIWrapper``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.wire.fastjson import JsonObject, member

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000

ALL: Final = "*"
"""The expression that matches everything (``SubscriptionData.SUB_ALL``)."""
TAG: Final = "TAG"
SQL92: Final = "SQL92"
_SEPARATOR: Final = "||"
_TRIMMED: Final = "".join(map(chr, range(0x21)))
"""Characters that ``String.trim`` removes; Python's ``strip`` would remove more."""


def java_string_hash(text: str) -> int:
    """Return ``String.hashCode``, a signed 32-bit number, over UTF-16 units including lone surrogates."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = 31 * value + unit & _MASK
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            value = 31 * value + (units[at] << 8 | units[at + 1]) & _MASK
    return (value ^ _SIGN) - _SIGN


def expression_type(*, is_sql92: bool) -> str:
    """Return ``SQL92`` or ``TAG``, the kind of expression in requests (``ExpressionType``)."""
    return SQL92 if is_sql92 else TAG


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData:
    """One topic's subscription, as heartbeats contain it."""

    topic: str = member("topic", JsonObject.text)
    sub_string: str = member("subString", JsonObject.text)
    tags_set: frozenset[str] = member(
        "tagsSet", lambda owner, name, _: frozenset(owner.texts(name)), frozenset()
    )
    """The wanted tags; if empty, every message matches at the client."""
    code_set: frozenset[int] = member(
        "codeSet", lambda owner, name, _: frozenset(owner.integers(name)), frozenset()
    )
    """Hash codes of the tags; the broker looks only at these."""
    sub_version: int = member("subVersion", JsonObject.integer, 0)
    """Version in milliseconds of the client's clock; must grow with every change."""
    expression_type: str = member("expressionType", JsonObject.text, TAG)
    class_filter_mode: bool = member("classFilterMode", JsonObject.flag, False)


def build_subscription(
    topic: str, expression: str | None, *, sub_version: int, expression_type: str | None = TAG
) -> SubscriptionData:
    """Return the subscription to ``topic`` by an expression, for example ``TagA || TagB``.

    ``*``, the empty string and None match every message. A tag expression (``expression_type`` TAG or None)
    is parsed here; the broker parses any other one.

    Raises:
        OptionError: If a tag expression has nothing but ``||``, or another expression is empty.

    Source: ``FilterAPI.buildSubscriptionData``, ``FilterAPI.build``.
    """
    if expression_type not in (TAG, None):
        if not expression:
            raise OptionError((f"topic {topic}: a subscription by {expression_type} needs an expression",))
        return SubscriptionData(
            topic=topic, sub_string=expression, sub_version=sub_version, expression_type=str(expression_type)
        )
    if not expression or expression == ALL:
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=sub_version)
    parts = expression.split(_SEPARATOR)
    if not any(parts):
        raise OptionError(
            (f"topic {topic}: tag expression {expression!r} names no tag; use '*' to receive every message",)
        )
    tags = frozenset(tag for part in parts if (tag := part.strip(_TRIMMED)))
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set=frozenset(map(java_string_hash, tags)),
        sub_version=sub_version,
    )
