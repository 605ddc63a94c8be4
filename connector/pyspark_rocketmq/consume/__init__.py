"""Pure state machines and decisions of consuming: values and times in, decisions out.

No I/O, no clock, no thread, no randomness; the callers of these modules send, wait and store.
"""

from __future__ import annotations
