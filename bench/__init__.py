"""Benchmarks: ours next to a peer or a ceiling, in the same run, as ratios."""

from __future__ import annotations
