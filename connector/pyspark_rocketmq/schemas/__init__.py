"""Bodies whose schemas are in a registry: frames, the registry's client, decoders."""

from __future__ import annotations
