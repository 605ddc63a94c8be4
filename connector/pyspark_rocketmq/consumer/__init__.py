"""``PushConsumer``, and the code of its query: checks before the start, micro-batches, engines in tasks."""

from __future__ import annotations
