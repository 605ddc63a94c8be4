"""Orderly consumption of one range by sharding key: messages of different keys at the same time (D14).

1. The messages of one key are a *lane*. A lane is consumed by the rules of
   :mod:`~pyspark_rocketmq.consume.orderly` as if it were a queue: its deliveries have only its messages,
   ascending, one delivery at a time, and suspension, attempts and commits are its own. Messages without a key
   are one lane.
2. ``committed`` is the lowest unfinished message, and never goes back. Only messages below it are
   acknowledged. Those finished above it wait until the gap is closed; if the run ends before, they are
   delivered again.
3. The lowest message comes first. Messages are admitted up to 2,000 above ``committed`` (Java's
   ``consumeConcurrentlyMaxSpan``), further ones only if the first lane, that of ``committed``, has messages
   consumed without a commit and needs more.
4. Dead letters are sent only by the first lane; another lane waits until it is the first. A dead letter sent
   above the gap is sent again if the run ends before the gap is closed. That is possible only if it was
   delivered or accumulated together with others.
5. If the range's first message was put back before, nothing but its lane is delivered until a message is
   committed. Otherwise a message that always fails would have all others delivered again with each range.
6. A run that has lasted 60 s makes no new delivery, except for the first lane while it has messages consumed
   without a commit.
7. A run whose first lane is suspended and that has finished messages above it is worth waiting for
   (``leads``), until 60 s after its beginning.
8. A suspended run goes on when its first suspended lane is due. If it ends before, the queue waits as long as
   the first lane: the next range begins with it. The pauses of other lanes end with the run.
9. A range may arrive piece by piece. A run that has nothing left to deliver, while more is to arrive, is
   *dry*; the next messages begin its 60 s again. A delivery has what has arrived of its key until then.

Messages are indexes ``0 … count-1`` in queue order, also when more arrive. The machine keeps an object for
each lane with admitted messages, so memory depends on rule 3.

Source: rocketmq-clients da8271b (Java) ``FifoConsumeService.consume`` with ``enableFifoConsumeAccelerator``:
it groups messages by ``getMessageGroup().orElse(null)`` and consumes the groups side by side, each message by
message. By ``ProcessQueueImpl.eraseFifoMessage`` a message that failed holds up only its group. Java
acknowledges each message by itself; here the offset of a queue is all that is stored.
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
"""How far above the lowest unfinished message a message is admitted, in messages of the range."""

Key = str | None
"""A message's sharding key; None without one."""


class KeyedDelivery(NamedTuple):
    """Messages of one key for one listener call."""

    key: Key
    indexes: Sequence[int]
    """Ascending indexes of the messages."""
    retry_counts: tuple[int, ...] = ()
    """How often each of them was put back before; empty if none was."""
    accumulated: int = 0
    """Number of the key's messages right before them that were consumed and wait for a COMMIT."""


class DueLetters(NamedTuple):
    """Dead letters that had to wait until their lane was the first one; report them with ``sent_back``."""

    key: Key
    indexes: Sequence[int]
    retry_counts: tuple[int, ...] = ()
    """How often each of them was put back before; empty if none was."""


class _Lane(OrderlyConsumption):
    """The admitted messages of one key, by their place in the lane: 0, 1, …."""

    def __init__(self, settings: OrderlySettings, stored_times: Callable[[int], int]) -> None:
        super().__init__(
            count=0,
            settings=settings,
            started_s=0.0,
            stored_times=lambda place: stored_times(self.index_at(place)),
        )
        self._indexes: list[int] = []
        self._dropped = 0
        """Number of places at the front that are not in ``_indexes`` any more."""
        self.letters: tuple[int, ...] | None = None
        """Dead letters that wait until the lane is the first one, as indexes."""

    @property
    def next_index(self) -> int:
        """First message not consumed, if it may be delivered now; else -1."""
        is_free = self._next < self._count and not self._stop and self.finished is None
        return self._indexes[self._next - self._dropped] if is_free else -1

    @property
    def is_through(self) -> bool:
        """Whether all admitted messages are committed."""
        return self.committed == self._count

    @property
    def has_had_all(self) -> bool:
        """Whether the listener has had all admitted messages and has not committed them."""
        return self.accumulated > 0 and self._next == self._count and not self._stop

    @property
    def retry_counts(self) -> Mapping[int, int]:
        """How often messages were put back, by index."""
        return {self.index_at(place): times for place, times in self._retry_counts.items()}

    def admit(self, index: int, retries: int) -> None:
        """Add the key's next message, which was put back so often."""
        if retries:
            self._retry_counts[self._count] = retries
        self._indexes.append(index)
        self._count += 1

    def indexes(self, start: int, stop: int) -> Sequence[int]:
        """Return the messages at these places."""
        return self._indexes[start - self._dropped : stop - self._dropped]

    def index_at(self, place: int) -> int:
        """Return the message at a place."""
        return self._indexes[place - self._dropped]

    def stored_letters(self, stored: Collection[int], now_s: float) -> Outcome:
        """Apply ``sent_back`` to indexes."""
        places = range(self._next, self._stop)
        return self.sent_back([place for place in places if self.index_at(place) in stored], now_s)

    def drop_committed(self) -> None:
        """Release what is committed, now and then."""
        if self.committed - self._dropped > MOST_AHEAD:
            del self._indexes[: self.committed - self._dropped]
            self._dropped = self.committed


class KeyedConsumption:
    """One run over the messages of one planned queue range, several deliveries at a time.

    Guarantee: deliveries of one key are ascending, one at a time; every message below ``committed`` is
    finished, and a message is finished once. Not thread-safe; no method blocks.
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
            keys: Keys of the messages that have arrived.
            settings: The consumer's settings.
            started_s: Now, by the clock that also gives every ``now_s``, in seconds.
            retry_counts: How often messages were put back before, by index; 0 for missing ones.
            stored_times: Returns the reconsumptions that the broker has stored with a message.
            is_whole: Whether these are all messages of the range; if not, ``extend`` adds the others.
        """
        self._keys = list(keys)
        """Keys from the lowest unfinished message on, or from some before it."""
        self._dropped = 0
        """Number of messages before ``_keys``."""
        self._count = len(keys)
        self._is_whole = is_whole
        self._was_dry = not keys and not is_whole
        """Whether the run has had nothing to deliver since the last messages arrived."""
        self._slice_s = settings.max_time_consume_continuously_s
        # The slice is the run's.
        self._settings = replace(settings, max_time_consume_continuously_s=inf)
        self._stored_times = stored_times
        self._earlier = dict(retry_counts)
        """How often messages that are not admitted were put back."""
        self._lanes: dict[Key, _Lane] = {}
        """Lanes with admitted messages that are not committed."""
        self._admitted = 0
        """Number of messages admitted, from the first on."""
        self.committed = 0
        """Number of messages done for good, from the first on: the index of the lowest unfinished one."""
        self._above: set[int] = set()
        """Messages finished above ``committed``."""
        self._out: set[Key] = set()
        """Keys whose messages are with the listener, or on their way as dead letters."""
        self._ready: list[int] = []
        """Heap of next messages of lanes; entries that are outdated are skipped."""
        self._suspended: list[tuple[float, int, Key]] = []
        """Heap of the suspended lanes: when they go on, a number, and their key."""
        self._suspensions = 0
        self._is_probing = self._earlier.get(0, 0) > 0
        self.lead_ends_s = self._slice_ends_s = started_s + self._slice_s
        """When this run, suspended, is no longer worth waiting for."""
        self._has_begun = False
        """Whether a delivery was made in the time slice."""
        self._is_given_up = False
        self.goes_on_at_s: float | None = None
        """When the next range may begin with the first lane; None unless this run ended with it suspended."""
        self.wakes_at_s: float | None = None
        """When this run may go on if it is suspended."""
        self.finished: OrderlyFinish | None = None
        """Why the run makes no more deliveries, for now if it is suspended; None while it goes on."""

    # --- what an ack is made of -----------------------------------------------------------------------------

    @property
    def accumulated(self) -> int:
        """Number of messages of the first lane that were consumed without a commit."""
        first = self._first_lane()
        return 0 if first is None else first.accumulated

    @property
    def has_had_all(self) -> bool:
        """Whether the listener has had all messages of the first key, and waits for more to commit."""
        first = self._first_lane()
        is_all_there = self._is_whole and self._admitted >= self._count
        return is_all_there and first is not None and first.has_had_all

    @property
    def retry_counts(self) -> Mapping[int, int]:
        """How often unfinished messages were put back, by ascending index; 0 for missing ones."""
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
        """Add the next messages, also while others are with the listener.

        A suspended run may go on with them immediately.

        Args:
            keys: Their keys; may be empty.
            now_s: When they arrived.
            retry_counts: How often they were put back before, by index in the range.
            is_last: Whether the range has no others.
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
        """Whether the next delivery needs messages that have not arrived."""
        return self._was_dry and self.finished is None

    def _key_of(self, index: int) -> Key:
        return self._keys[index - self._dropped]

    # --- deliveries -----------------------------------------------------------------------------------------

    def next_work(self, now_s: float) -> KeyedDelivery | DueLetters | None:
        """Return work for a worker; None if there is none, for now or for the reason in ``finished``."""
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
        """Return when ``next_work`` has work for another worker; infinite if only answers can bring some."""
        if self.finished is not None or self._is_given_up:
            return inf
        first = self._first_lane()
        if (first is not None and first.letters is not None) or self._next_index(now_s) >= 0:
            return now_s
        is_held = self._is_probing or self._is_slice_over(now_s)
        return inf if is_held or not self._suspended else self._suspended[0][0]

    def leads(self, now_s: float) -> bool:
        """Return whether a suspended run is worth waiting for (rule 7)."""
        return self.goes_on_at_s is not None and bool(self._above) and now_s < self.lead_ends_s

    def go_on(self, now_s: float) -> None:
        """Continue a run that was suspended; if its time was over, it begins again."""
        if self.finished is not OrderlyFinish.SUSPENDED:
            return
        self.finished = self.goes_on_at_s = self.wakes_at_s = None
        if now_s > self._slice_ends_s:
            self._begin_slice(now_s)

    def give_up(self) -> None:
        """Make no further delivery; nothing changes for a run that is over or suspended."""
        if self.finished is None:
            self._is_given_up = True
            if not self._out:
                self._finish(OrderlyFinish.EXHAUSTED if self._is_over else OrderlyFinish.GIVEN_UP)

    def stop(self) -> None:
        """End like :meth:`give_up`, but report that the run's time or its range is used up.

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
        """Apply the answer to the delivery of ``key``; see ``OrderlyConsumption.answered``.

        An outcome SEND_BACK without dead letters means that ``next_work`` returns them later (rule 4).
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
        """Apply the sending of a key's dead letters, of which a broker has ``stored`` these indexes (D6)."""
        lane = self._lanes[key]
        before = lane.committed
        outcome = lane.stored_letters(set(stored), now_s)
        self._settle(key, lane, before)
        return outcome

    # --- choosing messages ----------------------------------------------------------------------------------

    def _next_index(self, now_s: float) -> int:
        """Return the first message of the next delivery; -1 if there is none now."""
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
            # The message of an outdated entry may be committed, and its key dropped.
            is_old = ready[0] < self.committed
            of_key = None if is_old else self._lanes.get(self._key_of(ready[0]))
            if of_key is not None and of_key.next_index == ready[0]:
                return ready[0]
            heappop(ready)
        return -1

    def _admit(self, stop: int) -> None:
        """Admit the messages below ``stop``."""
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
        """Admit messages until the first lane, which has had all, has one more."""
        while first.has_had_all and self._admitted < self._count:
            self._admit(self._admitted + 1)

    def _is_slice_over(self, now_s: float) -> bool:
        return self._has_begun and now_s > self._slice_ends_s

    def _first_lane(self) -> _Lane | None:
        """Return the lane of the lowest unfinished message, if that is admitted."""
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
        """Take in the answer to a lane's delivery; ``before`` it the lane had committed so much."""
        self._out.discard(key)
        above, done = self._above, self.committed
        above.update(lane.indexes(before, lane.committed))
        while done in above:
            above.remove(done)
            done += 1
        self.committed = done
        self._is_probing = self._is_probing and not done
        lane.drop_committed()
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
        """Let a lane be delivered again."""
        if (index := lane.next_index) >= 0:
            heappush(self._ready, index)

    def _begin_slice(self, now_s: float) -> None:
        self._slice_ends_s, self._has_begun = now_s + self._slice_s, False

    @property
    def _is_over(self) -> bool:
        return self._is_whole and self.committed >= self._count

    def _end(self, now_s: float) -> None:
        """Note why there is nothing to deliver."""
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
