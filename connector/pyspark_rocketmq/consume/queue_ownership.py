"""One queue's way into this consumer's hands and out of them again: a table of transitions.

Owning a queue takes two grants.  *Allocation* says that the queue is this consumer's share; every member
computes it by itself, so two may differ for a while.  The *lock* at the queue's broker says that nobody else
has it now. Concurrent and broadcasting consumers need no lock; for them the grant comes with the allocation.

A queue is planned in HELD alone.  The way out leads through LEAVING while a micro-batch that holds the queue
is under way: it is planned no more, its lock is kept, and only when the batch is over is it given free.  That
wait is what keeps the order of a queue when it changes hands.

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
    """Not ours."""
    WANTED = "WANTED"
    """Allocated to us; its lock is not held."""
    HELD = "HELD"
    """Allocated and locked: may be planned."""
    LEAVING = "LEAVING"
    """Allocated to somebody else, locked by us until the batch under way is over."""


class Event(Enum):
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


class Effect(Enum):
    """What a transition asks for besides the new phase."""

    BEGIN_TENURE = "BEGIN_TENURE"
    """A new term begins: claim the queue in the offset store before it is planned (C3)."""
    UNLOCK = "UNLOCK"


class Transition(NamedTuple):
    """Where an event leads."""

    phase: Phase
    effects: tuple[Effect, ...] = ()


TRANSITIONS: Final[Mapping[tuple[Phase, Event], Transition]] = {
    (Phase.ABSENT, Event.ALLOCATED): Transition(Phase.WANTED),
    # A lock asked for while the queue was still wanted.
    (Phase.ABSENT, Event.GRANTED): Transition(Phase.ABSENT, (Effect.UNLOCK,)),
    (Phase.WANTED, Event.TAKEN_AWAY): Transition(Phase.ABSENT),
    # A batch from before the lock was lost: it is fenced off, and there is no lock to keep for it.
    (Phase.WANTED, Event.TAKEN_AWAY_IN_BATCH): Transition(Phase.ABSENT),
    (Phase.WANTED, Event.GRANTED): Transition(Phase.HELD, (Effect.BEGIN_TENURE,)),
    (Phase.HELD, Event.TAKEN_AWAY): Transition(Phase.ABSENT, (Effect.UNLOCK,)),
    (Phase.HELD, Event.TAKEN_AWAY_IN_BATCH): Transition(Phase.LEAVING),
    (Phase.HELD, Event.REFUSED): Transition(Phase.WANTED),
    (Phase.HELD, Event.EXPIRED): Transition(Phase.WANTED),
    (Phase.HELD, Event.CLAIMED_BY_OTHER): Transition(Phase.WANTED),
    # Back before it was gone: the same ownership goes on.
    (Phase.LEAVING, Event.ALLOCATED): Transition(Phase.HELD),
    (Phase.LEAVING, Event.BATCH_OVER): Transition(Phase.ABSENT, (Effect.UNLOCK,)),
    (Phase.LEAVING, Event.REFUSED): Transition(Phase.ABSENT),
    (Phase.LEAVING, Event.EXPIRED): Transition(Phase.ABSENT),
    (Phase.LEAVING, Event.CLAIMED_BY_OTHER): Transition(Phase.ABSENT, (Effect.UNLOCK,)),
}
"""Pairs that are not here change nothing: a renewal of a lock, a refusal of what is not held."""


def after(phase: Phase, event: Event) -> Transition:
    """Where ``event`` leads from ``phase``."""
    return TRANSITIONS.get((phase, event)) or Transition(phase)
