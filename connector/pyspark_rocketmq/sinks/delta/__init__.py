"""A sink in a Delta table: watermarks, and the ways to write, on top of the Delta client in ``delta/``."""

from __future__ import annotations
