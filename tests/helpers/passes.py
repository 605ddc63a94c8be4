"""Counts that last as long as their process.

Spark sends the classes and values of a driver's main module with each task, so that such counts would begin
again in each task. It sends only the name of this module.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

PASSES: Final[Counter[tuple[int, str]]] = Counter()
"""How often this process has passed a point since a death, by the number of that death and the point."""
