"""``PushConsumer`` and its query."""

from __future__ import annotations
