"""PushConsumer: the query."""

from __future__ import annotations
