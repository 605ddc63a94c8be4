"""The code that runs in tasks: a range in, rows and acks out."""

from __future__ import annotations
