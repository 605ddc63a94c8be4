"""The connection between driver, planner and tasks of one query: who has to give up which queue, and what was committed early."""

from __future__ import annotations
