"""What a user may write for a moment: a time, or a version of the offset store. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pyspark_rocketmq.options.parsers import iso_time

_FORMS: Final = "a time such as 2026-11-20T10:00 (UTC unless it says otherwise) or a version such as v120"


@dataclass(frozen=True, slots=True)
class AtTime:
    """Wall-clock seconds."""

    at_s: float


@dataclass(frozen=True, slots=True)
class AtVersion:
    """A version of the offset table."""

    version: int


def parse_moment(text: str) -> AtTime | AtVersion:
    """Read ``v120`` or a time.

    Raises:
        ValueError: With the end of a sentence.
    """
    version = re.fullmatch(r"[vV](\d+)", text.strip())
    if version:
        return AtVersion(int(version[1]))
    try:
        return AtTime(parse_time(text))
    except ValueError:
        raise ValueError(f"is neither {_FORMS}") from None


def parse_time(text: str) -> float:
    """Read ISO 8601 as wall-clock seconds; UTC without a zone.

    Raises:
        ValueError: If it is none.
    """
    return iso_time(text).timestamp()
