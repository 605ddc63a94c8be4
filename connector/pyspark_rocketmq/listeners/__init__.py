"""What a user registers, and how it is called."""

from __future__ import annotations
