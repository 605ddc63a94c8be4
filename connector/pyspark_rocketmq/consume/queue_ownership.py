"""A queue's way into this consumer's hands and out again: a table of transitions.

A queue is granted in two steps. *Allocation* says that the queue is this consumer's share; every member
computes it itself, so two may differ for a while. The *lock* at the queue's broker says that nobody else has
it now. Concurrent and broadcasting consumers need no lock; for them the grant comes with the allocation.

A queue is planned only in HELD. While a micro-batch that holds it is under way, it leaves through LEAVING:
it is planned no more, its lock is kept, and it is given free when the batch is over. That wait keeps the
order of a queue that changes hands.

Source: ``RebalanceImpl.updateProcessQueueTableInRebalance``,
``RebalancePushImpl.removeUnnecessaryMessageQueue``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class Phase(Enum):
    """How far this consumer has a queue."""

    ABSENT = "ABSENT"
    WANTED = "WANTED"
    """Allocated to us; its lock is not held."""
    HELD = "HELD"
    """Allocated and locked: may be planned."""
    LEAVING = "LEAVING"
    """Allocated to somebody else, locked by us until the batch under way is over."""


class OwnershipEvent(Enum):
    """What happens to a queue."""

    ALLOCATED = "ALLOCATED"
    TAKEN_AWAY = "TAKEN_AWAY"
    """No longer our share, and no batch under way holds it."""
    TAKEN_AWAY_IN_BATCH = "TAKEN_AWAY_IN_BATCH"
    GRANTED = "GRANTED"
    """The broker locked the queue for us, or renewed our lock."""
    REFUSED = "REFUSED"
    """The broker's answer lacks the queue: somebody else has it."""
    EXPIRED = "EXPIRED"
    """Our lock was not renewed for so long that it no longer counts (C2)."""
    BATCH_OVER = "BATCH_OVER"
    CLAIMED_BY_OTHER = "CLAIMED_BY_OTHER"
    """The offset store names another owner: our epoch is fenced off."""


class OwnershipEffect(Enum):
    """What a transition asks for besides the new phase."""

    NEW_GRANT = "NEW_GRANT"
    """Claim the queue in the offset store before it is planned (C3)."""
    UNLOCK = "UNLOCK"


class Transition(NamedTuple):
    """Where an event leads."""

    phase: Phase
    effects: tuple[OwnershipEffect, ...] = ()


TRANSITIONS: Final[Mapping[tuple[Phase, OwnershipEvent], Transition]] = {
    (Phase.ABSENT, OwnershipEvent.ALLOCATED): Transition(Phase.WANTED),
    # A lock asked for while the queue was still wanted.
    (Phase.ABSENT, OwnershipEvent.GRANTED): Transition(Phase.ABSENT, (OwnershipEffect.UNLOCK,)),
    (Phase.WANTED, OwnershipEvent.TAKEN_AWAY): Transition(Phase.ABSENT),
    # A batch from before the lock was lost: it is fenced off, and there is no lock to keep for it.
    (Phase.WANTED, OwnershipEvent.TAKEN_AWAY_IN_BATCH): Transition(Phase.ABSENT),
    (Phase.WANTED, OwnershipEvent.GRANTED): Transition(Phase.HELD, (OwnershipEffect.NEW_GRANT,)),
    (Phase.HELD, OwnershipEvent.TAKEN_AWAY): Transition(Phase.ABSENT, (OwnershipEffect.UNLOCK,)),
    (Phase.HELD, OwnershipEvent.TAKEN_AWAY_IN_BATCH): Transition(Phase.LEAVING),
    (Phase.HELD, OwnershipEvent.REFUSED): Transition(Phase.WANTED),
    (Phase.HELD, OwnershipEvent.EXPIRED): Transition(Phase.WANTED),
    (Phase.HELD, OwnershipEvent.CLAIMED_BY_OTHER): Transition(Phase.WANTED),
    # Back before it was gone: the same ownership goes on.
    (Phase.LEAVING, OwnershipEvent.ALLOCATED): Transition(Phase.HELD),
    (Phase.LEAVING, OwnershipEvent.BATCH_OVER): Transition(Phase.ABSENT, (OwnershipEffect.UNLOCK,)),
    (Phase.LEAVING, OwnershipEvent.REFUSED): Transition(Phase.ABSENT),
    (Phase.LEAVING, OwnershipEvent.EXPIRED): Transition(Phase.ABSENT),
    (Phase.LEAVING, OwnershipEvent.CLAIMED_BY_OTHER): Transition(Phase.ABSENT, (OwnershipEffect.UNLOCK,)),
}
"""All other pairs change nothing: a renewal of a lock, a refusal of what is not held."""


def after(phase: Phase, event: OwnershipEvent) -> Transition:
    """Where ``event`` leads from ``phase``."""
    return TRANSITIONS.get((phase, event)) or Transition(phase)
