"""Parses the options that users set: strings in, values out. Pure."""

from __future__ import annotations
