"""One module for each kind of request and answer, as bytes. Pure."""

from __future__ import annotations
