"""Stores of consumer groups' progress; importing this package loads neither Arrow nor Delta."""

from __future__ import annotations
