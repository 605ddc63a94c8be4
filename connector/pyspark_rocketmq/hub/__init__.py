"""Communication between one query's driver, its planner and its tasks while a batch runs.

Tasks give up queues that another group member is to have, and the driver commits finished results early.
"""

from __future__ import annotations
