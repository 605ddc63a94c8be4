"""Communication of one query's driver, planner and tasks: queues to give up, and parts committed early."""

from __future__ import annotations
