"""A sink in a Delta table: its watermarks, and its ways to write. The Delta client is in ``delta/``."""

from __future__ import annotations
