"""The engines, which run in tasks: each reads ranges of queues, and returns rows and acks.

An *engine* decides how messages become rows: with an orderly or a concurrent listener, or without a listener.
"""

from __future__ import annotations
