"""Requests and answers as bytes, with one module for each kind. Pure."""

from __future__ import annotations
