"""Where a consumer group's progress is kept; importing this package loads neither Arrow nor Delta."""

from __future__ import annotations
