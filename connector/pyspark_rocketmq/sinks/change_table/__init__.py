"""A Delta table that equals a database's table, whatever the order in which its changes come."""

from __future__ import annotations
