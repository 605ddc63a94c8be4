"""Where a claimed queue goes on, when both the offset store and the queue's broker know something of the group.

In a group of Spark queries alone the store is the whole truth.  In a mixed group a Java consumer may have had the queue
meanwhile; it knows nothing of the store, and what it consumed is known to the broker alone.

Rule 1: an offset says "everything before is consumed", so the larger of two is the later one: whoever wrote it had
the queue last.  Taking it skips nothing; whoever could not write its last offset has its messages consumed again.
Rule 2: only consumers move offsets that way.  An operator's reset goes anywhere, and back above all; it stands until
a batch has begun there, whatever an earlier member left at the broker.
"""

from __future__ import annotations


def go_on_at(stored: int | None, at_broker: int | None, *, was_reset: bool) -> int | None:
    """The next offset to consume.

    Args:
        stored: The offset store's; None when it has no row.
        at_broker: The broker's; None when it has none. An error is not None: it must not come here.
        was_reset: Whether an operator moved the row last.

    Returns:
        None when neither knows the queue: it begins where the options say.
    """
    if stored is None or at_broker is None:
        return at_broker if stored is None else stored
    return stored if was_reset else max(stored, at_broker)
