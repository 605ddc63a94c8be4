"""Parses the options that users set: texts in, values out. Pure."""

from __future__ import annotations
