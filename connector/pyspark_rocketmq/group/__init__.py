"""Who of a consumer group owns which queues while a query runs."""

from __future__ import annotations
