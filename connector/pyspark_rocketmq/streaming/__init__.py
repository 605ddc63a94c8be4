"""The consumer as a streaming query: listener, engines, committer, sinks."""

from __future__ import annotations
