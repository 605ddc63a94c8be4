"""Orderly consumption of one range by sharding key: messages of different keys at the same time.

See row I8 of ``docs/semantics.md``.

A queue's progress is stored as one offset, but with several keys messages finish in another order than they
have in the queue. So a message may be finished while an earlier one is not. The earlier one is then a *gap*.

1. The messages of one key are a *lane*. A lane is consumed by the rules of
   :mod:`~pyspark_rocketmq.consume.orderly` as if it were a queue: a delivery has only messages of the lane,
   in ascending order; deliveries of a lane do not overlap; and each lane has its own suspension, attempts and
   commits. All messages without a key are one lane.
2. ``committed`` is the lowest unfinished message, and never goes back. Only messages below it are
   acknowledged. Messages finished above it wait until the gap is closed. If the run ends before, they are
   delivered again.
3. The lowest message comes first. The first 2,000 messages from ``committed`` on are *admitted*, that is, may
   be delivered (Java's ``consumeConcurrentlyMaxSpan``). The *first lane* is the lane of ``committed``. If the
   listener has had all messages of the first lane without a commit, further messages are admitted until one
   of them is in this lane.
4. Only the first lane sends dead letters; another lane waits until it is the first. A listener call may have
   several messages of a lane, with a gap between them. A dead letter above that gap is sent again if the run
   ends before the gap is closed.
5. If the range's first message was given back by the listener in an earlier run, only its lane is delivered
   until that message is committed. Otherwise a message that always fails would have all other messages
   delivered again with each range.
6. A run that has lasted 60 s makes no new delivery. The first lane is an exception while the listener has had
   messages of it without a commit.
7. If the first lane is suspended and messages above it are finished, the task waits for the run (``leads``),
   until 60 s after the run's beginning.
8. A suspended run goes on when the suspension of any lane is over. If the run ends before that, the queue
   stays suspended for as long as its first lane, with which the next range begins. Suspensions of other lanes
   end with the run.
9. A range may arrive piece by piece. A run is *dry* when it has delivered all that has arrived and more is to
   arrive; the next messages begin its 60 s again. A delivery has only messages that have arrived by then.

A message is named by its index in the range, ``0 … count-1``, in queue order; indexes stay the same when more
messages arrive. The machine keeps an object for each lane with admitted messages, so rule 3 bounds its
memory.

Source: rocketmq-clients da8271b (Java) ``FifoConsumeService.consume`` with ``enableFifoConsumeAccelerator``.
Java groups messages by ``getMessageGroup().orElse(null)`` and consumes the groups at the same time, one
message after the other in each. By ``ProcessQueueImpl.eraseFifoMessage`` a failed message delays only its
group. Java acknowledges each message separately; here only one offset is stored for a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

from pyspark_rocketmq.consume.orderly import (
    Effect,
    OrderlyConsumption,
    OrderlyFinish,
    OrderlySettings,
    Outcome,
)

MOST_AHEAD: Final = 2_000
"""Number of messages that may be delivered, from the lowest unfinished one on (rule 3)."""

Key = str | None
"""A message's sharding key; None for a message without one."""


class KeyedDelivery(NamedTuple):
    """Messages of one key for one listener call."""

    key: Key
    indexes: Sequence[int]
    """Indexes of the messages in the range, ascending."""
    retry_counts: tuple[int, ...] = ()
    """For each message, how often the listener gave it back before; empty if all counts are 0."""
    accumulated: int = 0
    """Number of the key's messages directly before these that the listener has had and not committed."""


class DueLetters(NamedTuple):
    """Messages to send as dead letters now.

    They have waited until the lowest unfinished message of the range was one with their key (rule 4). Report
    the result with ``sent_back``.
    """

    key: Key
    indexes: Sequence[int]
    retry_counts: tuple[int, ...] = ()
    """For each message, how often the listener gave it back before; empty if all counts are 0."""


class _Lane(OrderlyConsumption):
    """The admitted messages of one key, numbered 0, 1, … within the lane; such a number is a *place*."""

    def __init__(self, settings: OrderlySettings, stored_times: Callable[[int], int]) -> None:
        super().__init__(
            count=0,
            settings=settings,
            started_s=0.0,
            stored_times=lambda place: stored_times(self.index_at(place)),
        )
        self._indexes: list[int] = []
        self._dropped = 0
        """Number of places at the front that were removed from ``_indexes``."""
        self.letters: tuple[int, ...] | None = None
        """Indexes of dead letters that wait until this lane is the first one; None if none wait."""

    @property
    def next_index(self) -> int:
        """Index of the lane's next message, if it may be delivered now; otherwise -1."""
        is_free = self._next < self._count and not self._stop and self.finished is None
        return self._indexes[self._next - self._dropped] if is_free else -1

    @property
    def is_through(self) -> bool:
        """Whether all admitted messages are committed."""
        return self.committed == self._count

    @property
    def has_had_all(self) -> bool:
        """Whether the listener has had all admitted messages of the lane, the last ones without a commit."""
        return self.accumulated > 0 and self._next == self._count and not self._stop

    @property
    def retry_counts(self) -> Mapping[int, int]:
        """How often the listener gave messages back, by index."""
        return {self.index_at(place): times for place, times in self._retry_counts.items()}

    def admit(self, index: int, retries: int) -> None:
        """Add the key's next message; ``retries`` is how often the listener gave it back before."""
        if retries:
            self._retry_counts[self._count] = retries
        self._indexes.append(index)
        self._count += 1

    def indexes(self, start: int, stop: int) -> Sequence[int]:
        """Return the indexes of the messages at these places."""
        return self._indexes[start - self._dropped : stop - self._dropped]

    def index_at(self, place: int) -> int:
        """Return the index of the message at a place."""
        return self._indexes[place - self._dropped]

    def stored_letters(self, stored: Collection[int], now_s: float) -> Outcome:
        """Note which dead letters of the lane's delivery a broker has stored; ``stored`` has their indexes.

        Return the outcome of the delivery, as ``OrderlyConsumption.sent_back`` does.
        """
        places = range(self._next, self._stop)
        return self.sent_back([place for place in places if self.index_at(place) in stored], now_s)

    def forget_committed(self) -> None:
        """Free the memory of committed messages when there are many."""
        if self.committed - self._dropped > MOST_AHEAD:
            del self._indexes[: self.committed - self._dropped]
            self._dropped = self.committed


class KeyedConsumption:
    """One run over the messages of one planned queue range, with deliveries of several keys at the same time.

    The messages of one key are a *lane*; the *first lane* is that of the lowest unfinished message. A message
    that may be delivered is *admitted*.

    Guarantee: deliveries of one key ascend and do not overlap. Every message below ``committed`` is finished,
    and each message is finished only once. Not thread-safe; no method blocks.
    """

    def __init__(
        self,
        *,
        keys: Sequence[Key],
        settings: OrderlySettings,
        started_s: float,
        retry_counts: Mapping[int, int] = MappingProxyType({}),
        stored_times: Callable[[int], int] = lambda _: 0,
        is_whole: bool = True,
    ) -> None:
        """Begin a run.

        Args:
            keys: The key of each message that has arrived, in queue order.
            settings: The consumer's settings.
            started_s: Now, by the clock that also gives every ``now_s``, in seconds.
            retry_counts: How often the listener gave messages back before, by index; 0 for missing ones.
            stored_times: Returns, for an index, the number of reconsumptions that the broker has stored with
                the message.
            is_whole: Whether these are all messages of the range; if not, ``extend`` adds the others.
        """
        self._keys = list(keys)
        """Keys of messages; the first entry belongs to the message with index ``_dropped``."""
        self._dropped = 0
        """Number of messages whose keys were removed from the front of ``_keys``."""
        self._count = len(keys)
        self._is_whole = is_whole
        self._was_dry = not keys and not is_whole
        """Whether the run is dry: all messages that have arrived are consumed, and more are to arrive."""
        self._slice_s = settings.max_time_consume_continuously_s
        # The run has a time slice (rule 6), so its lanes have none.
        self._settings = replace(settings, max_time_consume_continuously_s=inf)
        self._stored_times = stored_times
        self._earlier = dict(retry_counts)
        """How often the listener gave messages back that are not admitted yet, by index."""
        self._lanes: dict[Key, _Lane] = {}
        """Lanes that have admitted messages which are not committed."""
        self._admitted = 0
        """Number of messages admitted so far; all messages below this index are admitted."""
        self.committed = 0
        """Number of messages finished without a gap from the first on; also the lowest unfinished index."""
        self._above: set[int] = set()
        """Indexes of finished messages above ``committed``."""
        self._out: set[Key] = set()
        """Keys whose messages are with the listener now, or are being sent as dead letters."""
        self._ready: list[int] = []
        """Heap with the index of the next message of each lane that may be delivered.

        Outdated entries are skipped.
        """
        self._suspended: list[tuple[float, int, Key]] = []
        """Heap of suspended lanes: the end of the pause, a number that breaks ties, and the key."""
        self._suspensions = 0
        self._is_probing = self._earlier.get(0, 0) > 0
        self.lead_ends_s = self._slice_ends_s = started_s + self._slice_s
        """Time from which the task does not wait for this run any more if it is suspended (rule 7)."""
        self._has_begun = False
        """Whether a delivery was made in the current time slice."""
        self._is_given_up = False
        self.goes_on_at_s: float | None = None
        """When the suspension ends of the key that the lowest unfinished message has.

        None unless the run has stopped during this suspension.
        """
        self.wakes_at_s: float | None = None
        """Time at which a suspended run may go on: the earliest end of a lane's suspension, or the arrival of
        more messages; None unless the run is suspended."""
        self.finished: OrderlyFinish | None = None
        """Reason why the run makes no more deliveries; None while it does. A suspended run may go on."""

    # --- facts for an ack -----------------------------------------------------------------------------------

    @property
    def accumulated(self) -> int:
        """Number of messages of the first lane that the listener has had and not committed.

        The *first lane* has the messages with the key of the lowest unfinished message.
        """
        first = self._first_lane()
        return 0 if first is None else first.accumulated

    @property
    def has_had_all(self) -> bool:
        """Whether the listener has had all messages with the lowest unfinished message's key.

        The last ones of these messages had no commit, and no more messages of the range are to arrive.
        """
        first = self._first_lane()
        is_all_there = self._is_whole and self._admitted >= self._count
        return is_all_there and first is not None and first.has_had_all

    @property
    def retry_counts(self) -> Mapping[int, int]:
        """How often the listener gave unfinished messages back, by ascending index; 0 for missing ones."""
        found = dict(self._earlier)
        for lane in self._lanes.values():
            found |= lane.retry_counts
        return dict(sorted(found.items()))

    # --- messages -------------------------------------------------------------------------------------------

    def extend(
        self,
        keys: Sequence[Key],
        now_s: float,
        *,
        retry_counts: Mapping[int, int] = MappingProxyType({}),
        is_last: bool = False,
    ) -> None:
        """Add the next messages; possible also while others are with the listener.

        If the run is suspended, it may go on with the new messages immediately.

        Args:
            keys: The keys of the messages, in queue order; may be empty.
            now_s: Time at which the messages arrived.
            retry_counts: How often the listener gave them back before, by index in the range.
            is_last: Whether no more messages of the range follow.
        """
        self._keys += keys
        self._count += len(keys)
        self._earlier.update(retry_counts)
        self._is_probing |= not self.committed and self._earlier.get(0, 0) > 0
        self._is_whole |= is_last
        if self._was_dry:
            self._was_dry = False
            self._begin_slice(now_s)
            self.lead_ends_s = self._slice_ends_s
        if self.wakes_at_s is not None and keys:
            self.wakes_at_s = now_s

    @property
    def is_dry(self) -> bool:
        """Whether there is nothing to deliver until more messages arrive."""
        return self._was_dry and self.finished is None

    def _key_of(self, index: int) -> Key:
        return self._keys[index - self._dropped]

    # --- deliveries -----------------------------------------------------------------------------------------

    def next_work(self, now_s: float) -> KeyedDelivery | DueLetters | None:
        """Return the next delivery, or dead letters to send; None if there is neither now.

        After None, ``finished`` is set if the run is over or suspended.
        """
        if self.finished is not None:
            return None
        if not self._is_given_up:
            if (letters := self._letters_of_first()) is not None:
                return letters
            if (index := self._next_index(now_s)) >= 0:
                return self._deliver(self._key_of(index), now_s)
        if not self._out:
            self._end(now_s)
        return None

    def due_s(self, now_s: float) -> float:
        """Return the time from which on ``next_work`` has work for one more worker; ``now_s`` if it has some.

        The time is infinite if only an answer or more messages can bring work, or if the run is suspended,
        over or given up.
        """
        if self.finished is not None or self._is_given_up:
            return inf
        first = self._first_lane()
        if (first is not None and first.letters is not None) or self._next_index(now_s) >= 0:
            return now_s
        is_held = self._is_probing or self._is_slice_over(now_s)
        return inf if is_held or not self._suspended else self._suspended[0][0]

    def leads(self, now_s: float) -> bool:
        """Return whether the task should wait for this suspended run, because finished messages wait in it.

        The task waits while the key of the lowest unfinished message is suspended, until ``lead_ends_s``. The
        result means nothing for a run that is not suspended.
        """
        return self.goes_on_at_s is not None and bool(self._above) and now_s < self.lead_ends_s

    def go_on(self, now_s: float) -> None:
        """Continue the run if it is suspended, else do nothing. If the 60 s are over, they begin again."""
        if self.finished is not OrderlyFinish.SUSPENDED:
            return
        self.finished = self.goes_on_at_s = self.wakes_at_s = None
        if now_s > self._slice_ends_s:
            self._begin_slice(now_s)

    def give_up(self) -> None:
        """Make no further delivery, because the queue is taken away or the query stops.

        A run that is over or suspended does not change.
        """
        if self.finished is None:
            self._is_given_up = True
            if not self._out:
                self._finish(OrderlyFinish.EXHAUSTED if self._is_over else OrderlyFinish.GIVEN_UP)

    def stop(self) -> None:
        """End the run now. If ``finished`` is None, it becomes EXHAUSTED or SLICE_USED.

        It becomes EXHAUSTED if all messages of the range are finished.

        Raises:
            RuntimeError: If messages are with the listener.
        """
        if self._out:
            raise RuntimeError(f"Messages of {len(self._out)} keys are still with the listener.")
        if self.finished is None:
            self._finish(OrderlyFinish.EXHAUSTED if self._is_over else OrderlyFinish.SLICE_USED)

    def answered(
        self, key: Key, answer: object, *, auto_commit: bool, suspend_millis: object, now_s: float
    ) -> Outcome:
        """Apply the listener's answer to the delivery of ``key``; see ``OrderlyConsumption.answered``.

        An outcome SEND_BACK without dead letters means that they must wait: ``next_work`` returns them later,
        as :class:`DueLetters` (rule 4).
        """
        lane = self._lanes[key]
        before = lane.committed
        outcome = lane.answered(answer, auto_commit=auto_commit, suspend_millis=suspend_millis, now_s=now_s)
        if outcome.effect is not Effect.SEND_BACK:
            self._settle(key, lane, before)
            return outcome
        letters = tuple(map(lane.index_at, outcome.dead_letters))
        if lane is self._first_lane():
            return outcome._replace(dead_letters=letters)
        lane.letters = letters
        self._out.remove(key)
        return outcome._replace(dead_letters=())

    def sent_back(self, key: Key, stored: Collection[int], now_s: float) -> Outcome:
        """Note that dead letters of a key were sent; ``stored`` has the indexes that a broker has stored.

        The effect of the returned outcome is COMMIT (ACCUMULATE without autoCommit) if each message of the
        delivery is now stored as a dead letter. Otherwise the effect is PUT_BACK, and only this key is
        suspended. See row D6 of ``docs/semantics.md``.
        """
        lane = self._lanes[key]
        before = lane.committed
        outcome = lane.stored_letters(set(stored), now_s)
        self._settle(key, lane, before)
        return outcome

    # --- choosing messages ----------------------------------------------------------------------------------

    def _next_index(self, now_s: float) -> int:
        """Return the index of the first message of the next delivery; -1 if there is none now."""
        while self._suspended and self._suspended[0][0] <= now_s:
            lane = self._lanes[heappop(self._suspended)[2]]
            lane.go_on(now_s)
            self._release(lane)
        self._admit(self.committed + MOST_AHEAD)
        first = self._first_lane()
        if first is not None and first.has_had_all:
            self._admit_for(first)
        if self._is_slice_over(now_s):
            return -1 if first is None or not first.accumulated else first.next_index
        if self._is_probing:
            return -1 if first is None else first.next_index
        ready = self._ready
        while ready:
            # An outdated entry below ``committed`` may have no key any more, so do not look the key up.
            is_old = ready[0] < self.committed
            of_key = None if is_old else self._lanes.get(self._key_of(ready[0]))
            if of_key is not None and of_key.next_index == ready[0]:
                return ready[0]
            heappop(ready)
        return -1

    def _admit(self, stop: int) -> None:
        """Admit the messages with indexes below ``stop``, each into the lane of its key."""
        stop = min(stop, self._count)
        for index in range(self._admitted, stop):
            key = self._key_of(index)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane(self._settings, self._stored_times)
            lane.admit(index, self._earlier.pop(index, 0) if self._earlier else 0)
            if lane.next_index == index:
                heappush(self._ready, index)
        self._admitted = max(self._admitted, stop)

    def _admit_for(self, first: _Lane) -> None:
        """Admit messages until the first lane, which has no message left, gets one."""
        while first.has_had_all and self._admitted < self._count:
            self._admit(self._admitted + 1)

    def _is_slice_over(self, now_s: float) -> bool:
        return self._has_begun and now_s > self._slice_ends_s

    def _first_lane(self) -> _Lane | None:
        """Return the lane of the lowest unfinished message; None if that message is not admitted."""
        is_admitted = self.committed < self._admitted
        return self._lanes.get(self._key_of(self.committed)) if is_admitted else None

    def _letters_of_first(self) -> DueLetters | None:
        first = self._first_lane()
        if first is None or first.letters is None:
            return None
        letters, first.letters = first.letters, None
        key = self._key_of(self.committed)
        self._out.add(key)
        counts = first.retry_counts
        return DueLetters(key, letters, tuple(counts.get(at, 0) for at in letters) if counts else ())

    def _deliver(self, key: Key, now_s: float) -> KeyedDelivery:
        lane = self._lanes[key]
        accumulated = lane.accumulated
        delivery = lane.next_delivery(now_s)
        assert delivery is not None
        start, stop, retry_counts = delivery
        self._out.add(key)
        self._has_begun = True
        return KeyedDelivery(key, lane.indexes(start, stop), retry_counts, accumulated)

    # --- settling messages ----------------------------------------------------------------------------------

    def _settle(self, key: Key, lane: _Lane, before: int) -> None:
        """Update the run after a lane's answer; ``before`` is the lane's ``committed`` before the answer."""
        self._out.discard(key)
        above, done = self._above, self.committed
        above.update(lane.indexes(before, lane.committed))
        while done in above:
            above.remove(done)
            done += 1
        self.committed = done
        self._is_probing = self._is_probing and not done
        lane.forget_committed()
        if done - self._dropped > MOST_AHEAD:
            del self._keys[: done - self._dropped]
            self._dropped = done
        if lane.finished is OrderlyFinish.SUSPENDED:
            assert lane.goes_on_at_s is not None
            self._suspensions += 1
            heappush(self._suspended, (lane.goes_on_at_s, self._suspensions, key))
        elif lane.is_through:
            del self._lanes[key]
        else:
            self._release(lane)

    def _release(self, lane: _Lane) -> None:
        """Make a lane's next message available for a delivery."""
        if (index := lane.next_index) >= 0:
            heappush(self._ready, index)

    def _begin_slice(self, now_s: float) -> None:
        self._slice_ends_s, self._has_begun = now_s + self._slice_s, False

    @property
    def _is_over(self) -> bool:
        return self._is_whole and self.committed >= self._count

    def _end(self, now_s: float) -> None:
        """Set ``finished``, or note that the run is dry, when there is nothing to deliver."""
        is_slice_over, first = self._is_slice_over(now_s), self._first_lane()
        if self._is_given_up and not self._is_over:
            self._finish(OrderlyFinish.GIVEN_UP)
        elif self._suspended and not (is_slice_over and (first is None or first.goes_on_at_s is None)):
            self._finish(OrderlyFinish.SUSPENDED)
            self.wakes_at_s = self._suspended[0][0]
        elif is_slice_over and self.committed < self._count and (self._is_whole or not self.accumulated):
            self._finish(OrderlyFinish.SLICE_USED)
        elif self._is_whole:
            self._finish(OrderlyFinish.EXHAUSTED)
        else:
            self._was_dry = True

    def _finish(self, finish: OrderlyFinish) -> None:
        first = self._first_lane()
        self.finished = finish
        self.goes_on_at_s = None if first is None else first.goes_on_at_s
