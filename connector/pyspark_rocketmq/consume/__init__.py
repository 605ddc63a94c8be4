"""Pure state machines and decisions of consuming: values and times in, decisions out.

No I/O, no clock, no thread, no randomness; whoever calls these modules sends, waits and stores.
"""

from __future__ import annotations
