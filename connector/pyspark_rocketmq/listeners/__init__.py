"""Listeners that users register, and the code that calls them."""

from __future__ import annotations
