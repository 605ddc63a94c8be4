"""How driver, planner and tasks of one query talk: which queues to give up, what was committed early."""

from __future__ import annotations
