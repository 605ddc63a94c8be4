"""Every target by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuzz.live_targets import LIVE_TARGETS
from fuzz.target import Target
from fuzz.wire_targets import WIRE_TARGETS

TARGETS: Final[Mapping[str, Target]] = {target.name: target for target in (*WIRE_TARGETS, *LIVE_TARGETS)}
