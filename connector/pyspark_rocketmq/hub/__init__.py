"""Communication between one query's driver, its planner and its tasks while a batch runs.

It serves two purposes: tasks give up queues that another member of the group is to have, and the driver
commits results of tasks that still run.
"""

from __future__ import annotations
