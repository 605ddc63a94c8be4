"""Showing a peer's value in an error text: short, and at a bounded cost.

``f"{value!r:.80}"`` would write all of it first, in four times the memory if it is text that must be escaped.
"""

from __future__ import annotations

from reprlib import Repr
from typing import Final

_MAX_CHARACTERS: Final = 80

_repr: Final = Repr()
_repr.maxlevel = 3
_repr.maxstring = _repr.maxother = _repr.maxlong = _MAX_CHARACTERS


def brief(value: object) -> str:
    """The beginning of ``repr(value)``, parts of it left out; at most 80 characters."""
    return _repr.repr(value)[:_MAX_CHARACTERS]
