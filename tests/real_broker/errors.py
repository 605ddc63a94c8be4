"""What goes wrong outside the code under test."""

from __future__ import annotations


class HarnessError(Exception):
    """The real broker could not be provided; the text is one sentence saying why and what to do."""
