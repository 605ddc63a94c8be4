"""The machine of one queue in order of its sharding keys: rule by rule, and against a model of each key.

``KEYED_SEED`` repeats an earlier run; a failure names its seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

import pytest

from pyspark_rocketmq.consume.keyed import MOST_AHEAD, DueLetters, KeyedConsumption, KeyedDelivery
from pyspark_rocketmq.consume.orderly import Effect, NoStatus, OrderlyFinish, OrderlySettings, Outcome
from pyspark_rocketmq.model import ConsumeOrderlyStatus

SUCCESS = ConsumeOrderlyStatus.SUCCESS
COMMIT = ConsumeOrderlyStatus.COMMIT
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
RAISES = NoStatus.RAISED
START_S = 100.0
SEED = int(os.environ.get("KEYED_SEED", random.SystemRandom().getrandbits(32)))


def run_of(
    keys: str,
    *,
    batch: int = 1,
    retry_counts: Mapping[int, int] | None = None,
    stored_times: Callable[[int], int] = lambda _: 0,
    is_whole: bool = True,
    **more: Any,
) -> KeyedConsumption:
    """A run over one message for each letter, which is its key."""
    return KeyedConsumption(
        keys=[None if key == "-" else key for key in keys],
        settings=OrderlySettings(consume_message_batch_max_size=batch, **more),
        started_s=START_S,
        retry_counts=retry_counts or {},
        stored_times=stored_times,
        is_whole=is_whole,
    )


def deliver(run: KeyedConsumption, now_s: float = START_S) -> KeyedDelivery:
    work = run.next_work(now_s)
    assert isinstance(work, KeyedDelivery)
    return work


def all_of(run: KeyedConsumption, now_s: float = START_S) -> list[KeyedDelivery]:
    """Everything that can be delivered at the same time."""
    found = []
    while (work := run.next_work(now_s)) is not None:
        assert isinstance(work, KeyedDelivery)
        found.append(work)
    return found


def answer(
    run: KeyedConsumption,
    delivery: KeyedDelivery,
    status: object = SUCCESS,
    *,
    auto_commit: bool = True,
    suspend_millis: int = 1_000,
    now_s: float = START_S,
) -> Outcome:
    return run.answered(
        delivery.key, status, auto_commit=auto_commit, suspend_millis=suspend_millis, now_s=now_s
    )


def indexes(deliveries: Iterable[KeyedDelivery]) -> list[list[int]]:
    return [list(each.indexes) for each in deliveries]


def test_messages_of_different_keys_are_out_at_the_same_time_those_of_one_key_are_not() -> None:
    """I8"""
    run = run_of("aabca")
    out = all_of(run)

    assert indexes(out) == [[0], [2], [3]]
    answer(run, out[0])
    assert indexes(all_of(run)) == [[1]]


def test_the_offset_passes_no_unfinished_message() -> None:
    """I8: however many above it are finished."""
    run = run_of("abcd")
    first, *others = all_of(run)
    for each in others:
        answer(run, each)

    assert run.committed == 0
    answer(run, first)
    assert run.committed == 4
    assert run.next_work(START_S) is None
    assert run.finished is OrderlyFinish.EXHAUSTED


def test_a_batch_has_the_messages_of_one_key() -> None:
    """D2, I8"""
    run = run_of("abaabab", batch=3)

    assert indexes(all_of(run)) == [[0, 2, 3], [1, 4, 6]]


def test_a_suspension_holds_up_its_key_only() -> None:
    """D3, I8"""
    run = run_of("abab")
    first = deliver(run)
    answer(run, first, SUSPEND, suspend_millis=500)
    answer(run, deliver(run))
    answer(run, deliver(run))

    assert run.next_work(START_S) is None
    assert (run.finished, run.goes_on_at_s, run.wakes_at_s) == (
        OrderlyFinish.SUSPENDED,
        START_S + 0.5,
        START_S + 0.5,
    )
    assert (run.committed, run.retry_counts) == (0, {0: 1})
    run.go_on(START_S + 0.5)
    again = deliver(run, START_S + 0.5)
    assert (list(again.indexes), again.retry_counts) == ([0], (1,))
    answer(run, again)
    answer(run, deliver(run, START_S + 0.5))
    assert run.committed == 4


def test_a_run_that_would_lose_what_it_finished_is_worth_waiting_for() -> None:
    """I8: for 60 s after its beginning."""
    run = run_of("ab")
    answer(run, deliver(run), SUSPEND)
    assert not run.leads(START_S)
    answer(run, deliver(run))
    run.next_work(START_S)

    assert run.leads(START_S + 59)
    assert not run.leads(START_S + 60)


def test_a_run_with_nothing_finished_above_its_suspended_key_is_not_worth_waiting_for() -> None:
    """D3"""
    run = run_of("ba")
    answer(run, deliver(run))
    answer(run, deliver(run), SUSPEND)
    run.next_work(START_S)

    assert run.finished is OrderlyFinish.SUSPENDED
    assert not run.leads(START_S)


def test_a_range_that_begins_with_a_failed_message_delivers_its_key_only() -> None:
    """I8: others would be delivered again with every range as long as it fails."""
    run = run_of("abab", retry_counts={0: 3})
    [first] = all_of(run)

    assert (list(first.indexes), first.retry_counts) == ([0], (3,))
    assert run.due_s(START_S) == inf
    answer(run, first, SUSPEND)
    assert run.next_work(START_S) is None
    assert run.finished is OrderlyFinish.SUSPENDED
    run.go_on(START_S + 1)
    answer(run, deliver(run, START_S + 1))
    assert indexes(all_of(run, START_S + 1)) == [[1], [2]]


def test_a_failed_message_that_waits_for_a_commit_does_not_keep_its_key_from_it() -> None:
    """D4, I8"""
    run = run_of("abaa", retry_counts={0: 1})
    answer(run, deliver(run), auto_commit=False)
    second = deliver(run)

    assert (list(second.indexes), second.accumulated) == ([2], 1)
    answer(run, second, COMMIT)
    assert run.committed == 1
    assert indexes(all_of(run)) == [[1], [3]]


def test_no_delivery_is_further_ahead_than_java_allows() -> None:
    """I8: ``consumeConcurrentlyMaxSpan``."""
    run = run_of("a" + "b" * (MOST_AHEAD + 5), batch=1024)
    first = deliver(run)
    last = [0]
    while (work := run.next_work(START_S)) is not None:
        assert isinstance(work, KeyedDelivery)
        last = list(work.indexes)
        answer(run, work)

    assert last[-1] == MOST_AHEAD - 1
    answer(run, first)
    assert indexes(all_of(run)) == [list(range(MOST_AHEAD, MOST_AHEAD + 6))]


def test_the_first_key_gets_its_messages_however_far_above_they_are() -> None:
    """D4, I8: it may need them to commit."""
    run = run_of("a" + "b" * MOST_AHEAD + "a")
    answer(run, deliver(run), auto_commit=False)
    for _ in range(MOST_AHEAD):
        answer(run, deliver(run))
    last = deliver(run)

    assert list(last.indexes) == [MOST_AHEAD + 1]
    answer(run, last, COMMIT)
    assert run.committed == MOST_AHEAD + 2


@pytest.mark.parametrize("status", [SUSPEND, RAISES, None, 7])
def test_dead_letters_above_an_unfinished_message_wait_until_their_key_is_the_first(status: object) -> None:
    """D6, I8: so that none is sent twice because the offset stayed below."""
    run = run_of("abb", max_reconsume_times=0)
    first, second = all_of(run)
    outcome = answer(run, second, status)

    assert (outcome.effect, outcome.dead_letters) == (Effect.SEND_BACK, ())
    assert run.next_work(START_S) is None
    assert (run.finished, run.retry_counts) == (None, {})
    answer(run, first)
    letters = run.next_work(START_S)
    assert letters == DueLetters("b", (1,))
    assert isinstance(letters, DueLetters)
    assert run.next_work(START_S) is None
    assert run.sent_back(letters.key, letters.indexes, START_S).effect is Effect.COMMIT
    assert (run.committed, indexes(all_of(run))) == (2, [[2]])


def test_dead_letters_of_the_first_key_are_sent_at_once() -> None:
    """D6"""
    run = run_of("aba", batch=2, max_reconsume_times=1, stored_times=lambda index: index)
    first, second = all_of(run)
    assert answer(run, first, SUSPEND).dead_letters == (2,)
    assert run.sent_back(first.key, [2], START_S).effect is Effect.PUT_BACK
    assert (run.committed, run.retry_counts) == (0, {0: 1})
    assert answer(run, second, SUSPEND).dead_letters == ()


def test_a_rollback_gives_back_the_messages_of_its_key() -> None:
    """D4"""
    run = run_of("abab")
    answer(run, deliver(run), auto_commit=False)
    second = deliver(run)
    third = deliver(run)
    assert (list(third.indexes), third.accumulated) == ([2], 1)
    answer(run, second)
    assert answer(run, third, ROLLBACK, auto_commit=False).effect is Effect.ROLL_BACK
    answer(run, deliver(run))
    assert run.next_work(START_S) is None
    run.go_on(START_S + 1)

    assert indexes(all_of(run, START_S + 1)) == [[0]]
    assert run.committed == 0


def test_a_range_whose_first_key_waits_for_more_before_it_commits() -> None:
    """D4: is longer the next time."""
    run = run_of("ab")
    answer(run, deliver(run), auto_commit=False)
    answer(run, deliver(run), SUSPEND)
    assert run.next_work(START_S) is None

    assert (run.finished, run.goes_on_at_s, run.accumulated, run.has_had_all) == (
        OrderlyFinish.SUSPENDED,
        None,
        1,
        True,
    )


def test_after_sixty_seconds_only_messages_without_a_commit_go_on() -> None:
    """D7"""
    run = run_of("abaab")
    answer(run, deliver(run), auto_commit=False)
    late_s = START_S + 61
    third = deliver(run, late_s)

    assert list(third.indexes) == [2]
    assert run.due_s(late_s) == inf
    answer(run, third, COMMIT)
    assert run.next_work(late_s) is None
    assert (run.finished, run.committed) == (OrderlyFinish.SLICE_USED, 1)


def test_a_run_that_begins_late_makes_a_delivery() -> None:
    """D7"""
    run = run_of("ab")
    answer(run, deliver(run, START_S + 100), now_s=START_S + 100)

    assert run.next_work(START_S + 100) is None
    assert (run.finished, run.committed) == (OrderlyFinish.SLICE_USED, 1)


def test_a_suspended_run_that_goes_on_has_sixty_seconds_again() -> None:
    """D7"""
    run = run_of("ab")
    answer(run, deliver(run), SUSPEND)
    answer(run, deliver(run), SUSPEND)
    assert run.next_work(START_S) is None
    assert run.finished is OrderlyFinish.SUSPENDED
    run.go_on(START_S + 90)

    assert indexes(all_of(run, START_S + 90)) == [[0], [1]]


def test_a_run_that_is_given_up_ends_after_the_deliveries_that_are_out() -> None:
    """D7, I8"""
    run = run_of("abc")
    first, second, _ = all_of(run)
    run.give_up()
    answer(run, first)
    assert (run.next_work(START_S), run.finished) == (None, None)
    answer(run, second, SUSPEND)
    answer(run, KeyedDelivery("c", [2]))

    assert run.next_work(START_S) is None
    assert (run.finished, run.committed) == (OrderlyFinish.GIVEN_UP, 1)


@pytest.mark.parametrize("end", [KeyedConsumption.give_up, KeyedConsumption.stop])
def test_a_run_that_ends_early_keeps_the_pause_of_its_first_key(
    end: Callable[[KeyedConsumption], None],
) -> None:
    """D3, I8: the next range begins with it."""
    run = run_of("abb")
    answer(run, deliver(run), SUSPEND, suspend_millis=700)
    answer(run, deliver(run))
    end(run)

    assert run.finished in {OrderlyFinish.GIVEN_UP, OrderlyFinish.SLICE_USED}
    assert (run.committed, run.goes_on_at_s) == (0, START_S + 0.7)


def test_a_run_is_stopped_only_when_nothing_is_with_the_listener() -> None:
    """I8"""
    run = run_of("ab")
    first = deliver(run)
    with pytest.raises(RuntimeError, match="1 keys are still with the listener"):
        run.stop()
    answer(run, first)
    run.stop()

    assert run.finished is OrderlyFinish.SLICE_USED
    assert run.next_work(START_S) is None


def test_another_worker_is_wanted_when_another_key_is_due() -> None:
    """I8"""
    run = run_of("abb")
    first = deliver(run)
    assert run.due_s(START_S) == START_S
    second = deliver(run)
    assert run.due_s(START_S) == inf
    answer(run, second, SUSPEND, suspend_millis=2_000)

    assert run.due_s(START_S) == START_S + 2
    assert run.due_s(START_S + 2) == START_S + 2
    answer(run, first)


def test_a_run_without_anything_left_is_dry_until_more_arrives() -> None:
    """I8: and its 60 s begin again."""
    run = run_of("a", is_whole=False)
    answer(run, deliver(run))
    assert run.next_work(START_S + 30) is None
    assert (run.is_dry, run.finished) == (True, None)
    run.extend(["b", "a"], START_S + 100)
    assert not run.is_dry
    assert run.lead_ends_s == START_S + 160
    late = all_of(run, START_S + 100)
    for each in late:
        answer(run, each, now_s=START_S + 100)
    assert run.next_work(START_S + 100) is None
    run.extend([], START_S + 101, is_last=True)

    assert indexes(late) == [[1], [2]]
    assert run.next_work(START_S + 101) is None
    assert (run.finished, run.committed) == (OrderlyFinish.EXHAUSTED, 3)


def test_a_long_run_keeps_nothing_of_what_is_passed() -> None:
    """I8: a range that is open has no end."""
    run = run_of("", is_whole=False)
    for number in range(100):
        run.extend(["a", f"{number}"] * 100, START_S)
        while isinstance(work := run.next_work(START_S), KeyedDelivery):
            answer(run, work)

    assert run.committed == 20_000
    assert len(run._keys) <= MOST_AHEAD + 1
    assert sum(len(lane._indexes) for lane in run._lanes.values()) <= MOST_AHEAD + 1
    assert not run._ready
    assert not run._above


def test_a_range_without_messages_is_exhausted() -> None:
    run = run_of("")

    assert run.next_work(START_S) is None
    assert (run.finished, run.committed, run.accumulated) == (OrderlyFinish.EXHAUSTED, 0, 0)


class KeyModel:
    """One key's messages by RocketMQ's rules: what its next delivery is, and what an answer does."""

    def __init__(self, waiting: Mapping[int, int], most: int) -> None:
        self.waiting, self.consuming, self.batch = dict(waiting), dict[int, int](), list[int]()
        self.done, self.dead, self.most = set[int](), list[int](), most

    def take(self, indexes: list[int]) -> None:
        assert indexes == sorted(self.waiting)[: len(indexes)], "not the lowest of its key"
        assert not self.batch, "two deliveries of one key"
        self.batch = indexes
        self.consuming |= {index: self.waiting.pop(index) for index in indexes}

    def answer(self, status: object, *, auto_commit: bool) -> list[int]:
        """Return the dead letters to send."""
        if status is ROLLBACK and not auto_commit:
            self.waiting, self.consuming, self.batch = self.waiting | self.consuming, {}, []
            return []
        if status in {SUCCESS, COMMIT, ROLLBACK}:
            self._passed(commits=auto_commit or status is COMMIT)
            return []
        spent = [index for index in self.batch if 0 <= self.most <= self.consuming[index]]
        if not spent:
            self.sent([], auto_commit=auto_commit)
        return spent

    def sent(self, stored: list[int], *, auto_commit: bool) -> None:
        self.dead += stored
        if stored == self.batch:
            self._passed(commits=auto_commit)
            return
        for index in self.batch:
            self.waiting[index] = self.consuming.pop(index) + (index not in stored)
        self.batch = []

    def _passed(self, *, commits: bool) -> None:
        self.batch = []
        if commits:
            self.done |= self.consuming.keys()
            self.consuming = {}


class Drawn:
    """A queue with any keys and answers, whose deliveries end in any order; consumed range after range."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        self.count = draw.randint(0, 40)
        most_keys = draw.choice([1, 3, 10])
        self.keys = [draw.choice([None, *"abcdefghi"][:most_keys]) for _ in range(self.count)]
        self.most = draw.choice([-1, -1, 0, 1, 2])
        self.failures = draw.choice([0.0, 0.2, 0.6])
        self.commits = draw.choice([1.0, 1.0, 0.6])
        self.is_committing = self.commits == 1.0
        self.is_hasty = draw.random() < 0.5
        self.batch = draw.randint(1, 4)
        self.now_s = START_S
        self.ranges, self.most_out = 0, 0
        self.dead: list[int] = []
        self._begin(0, {})

    def _begin(self, base: int, times: Mapping[int, int]) -> None:
        """Plan the range from ``base`` on; ``times`` has how often messages of it were put back."""
        self.base, self.ranges = base, self.ranges + 1
        self.is_probing = times.get(base, 0) > 0
        self.models = {
            key: KeyModel(
                {at: times.get(at, 0) for at in range(base, self.count) if self.keys[at] == key}, self.most
            )
            for key in set(self.keys)
        }
        self.times = times
        self.arrived = self.count if self.draw.random() < 0.5 else self.draw.randint(base, self.count)
        self.is_whole = self.arrived == self.count and self.draw.random() < 0.8
        self.run = KeyedConsumption(
            keys=self.keys[base : self.arrived],
            settings=OrderlySettings(
                consume_message_batch_max_size=self.batch, max_reconsume_times=self.most
            ),
            started_s=self.now_s,
            retry_counts=self._times(base, self.arrived),
            is_whole=self.is_whole,
        )
        self.out: dict[str | None, KeyedDelivery] = {}
        self.letters: dict[str | None, tuple[list[int], bool]] = {}
        """Dead letters that wait, and whether a commit follows, by key."""
        self.due_s: dict[str | None, float] = {}

    def _times(self, start: int, stop: int) -> dict[int, int]:
        """Return how often messages were put back before, by index in the range."""
        return {at - self.base: number for at, number in self.times.items() if start <= at < stop}

    def _arrive(self) -> None:
        """Let the next piece of the range arrive, perhaps with its end."""
        start, self.arrived = self.arrived, self.draw.randint(self.arrived, self.count)
        self.is_whole = self.arrived == self.count and self.draw.random() < 0.5
        was_suspended = self.run.finished is OrderlyFinish.SUSPENDED
        self.run.extend(
            self.keys[start : self.arrived],
            self.now_s,
            retry_counts=self._times(start, self.arrived),
            is_last=self.is_whole,
        )
        if was_suspended and start < self.arrived:
            assert self.run.wakes_at_s == self.now_s, "new messages wait for a suspended key"

    def consume(self) -> None:
        """Consume the whole queue; after a while everything succeeds."""
        for step in range(5_000):
            if step == 300:
                self.failures, self.commits, self.is_hasty = 0.0, 1.0, False
            if not self.is_whole and self.draw.random() < 0.1:
                self._arrive()
            elif self.out and self.draw.random() < 0.5:
                self._answer(self.out.pop(self.draw.choice(list(self.out))))
            else:
                self._work()
            self._check()
            if self.run.finished not in {None, OrderlyFinish.SUSPENDED} or self._is_left():
                if self.base + self.run.committed == self.count:
                    return
                times = {at: number for at, number in self.times.items() if at >= self.arrived}
                times |= {self.base + at: number for at, number in self.run.retry_counts.items()}
                self._begin(self.base + self.run.committed, times)
        raise AssertionError("it never ends")

    def _is_left(self) -> bool:
        """Whether the task of a suspended run ends."""
        return self.run.finished is OrderlyFinish.SUSPENDED and self.is_hasty and self.draw.random() < 0.2

    def _work(self) -> None:
        self.now_s += self.draw.choice([0.0, 0.1, 2.0])
        if self.is_hasty and self.draw.random() < 0.01:
            self.run.give_up()
        self.run.go_on(self.now_s)
        is_due = self.run.due_s(self.now_s) <= self.now_s
        work = self.run.next_work(self.now_s)
        assert is_due == (work is not None), "a worker was asked in vain, or not at all"
        if not self.out and work is None:
            assert self.run.is_dry == (self.run.finished is None), "the run waits for nothing"
            assert not (self.run.is_dry and self.is_whole)
        if isinstance(work, DueLetters):
            self._send(work.key, [self.base + at for at in work.indexes])
        elif work is not None:
            self._deliver(work)

    def _deliver(self, work: KeyedDelivery) -> None:
        model, found = self.models[work.key], [self.base + at for at in work.indexes]
        assert work.accumulated == len(model.consuming)
        assert self.due_s.pop(work.key, 0.0) <= self.now_s, "a key came before its pause was over"
        if self.is_probing and not self.run.committed:
            assert work.key == self.keys[self.base], "another key than that of the failed message"
        model.take(found)
        assert (work.retry_counts or (0,) * len(found)) == tuple(model.consuming[at] for at in found)
        self.out[work.key] = work
        self.most_out = max(self.most_out, len(self.out))

    def _answer(self, work: KeyedDelivery) -> None:
        auto_commit = self.draw.random() < self.commits
        fails = self.draw.random() < self.failures
        status = self.draw.choice([SUSPEND, None, RAISES, ROLLBACK] if fails else [SUCCESS, SUCCESS, COMMIT])
        is_first = self.keys[self.base + self.run.committed] == work.key
        outcome = answer(self.run, work, status, auto_commit=auto_commit, now_s=self.now_s)
        spent = self.models[work.key].answer(status, auto_commit=auto_commit)
        if outcome.effect in {Effect.PUT_BACK, Effect.ROLL_BACK}:
            self.due_s[work.key] = self.now_s + 1
        if spent:
            self.letters[work.key] = spent, auto_commit
            assert [self.base + at for at in outcome.dead_letters] == (spent if is_first else [])
            if is_first:
                self._send(work.key, spent)

    def _send(self, key: str | None, letters: list[int]) -> None:
        spent, auto_commit = self.letters.pop(key)
        assert letters == spent
        assert self.keys[self.base + self.run.committed] == key, "a dead letter above the gap"
        stored = [index for index in letters if self.draw.random() < 0.8]
        outcome = self.run.sent_back(key, [at - self.base for at in stored], self.now_s)
        self.models[key].sent(stored, auto_commit=auto_commit)
        self.dead += stored if auto_commit and outcome.effect is Effect.COMMIT else []
        if outcome.effect is Effect.PUT_BACK:
            self.due_s[key] = self.now_s + 1

    def _check(self) -> None:
        done = {index for model in self.models.values() for index in model.done}
        lowest = next((at for at in range(self.base, self.count) if at not in done), self.count)
        assert self.base + self.run.committed == lowest
        counts = {
            index - self.base: times
            for model in self.models.values()
            for index, times in (model.waiting | model.consuming).items()
            if times and index < self.arrived
        }
        assert {at: times for at, times in self.run.retry_counts.items() if times} == counts
        assert self.run.finished is None or not self.out


@pytest.mark.parametrize("count", [400, pytest.param(40_000, marks=pytest.mark.long)])
def test_whatever_happens_each_key_is_consumed_as_a_queue_would_be(count: int) -> None:
    """D1-D7, I8: in any interleaving, with any failures, commits and pauses, range after range."""
    most_out = ranges = dead = 0
    for seed in range(SEED, SEED + count):
        drawn = Drawn(seed)
        try:
            drawn.consume()
            # Messages of one delivery or one commit are sent together, even those above the gap.
            if drawn.batch == 1 and drawn.is_committing:
                assert len(drawn.dead) == len(set(drawn.dead)), "a dead letter came twice"
        except AssertionError as error:
            raise AssertionError(f"KEYED_SEED={seed}: {error}") from error
        most_out, ranges = max(most_out, drawn.most_out), ranges + drawn.ranges
        dead += len(drawn.dead)
    assert most_out > 3
    assert ranges > count * 1.5
    assert dead


def test_a_run_without_failures_delivers_as_many_keys_at_a_time_as_there_are_workers() -> None:
    """I8"""
    draw = random.Random(3)
    keys = "".join(draw.choice("abcdefgh") for _ in range(200))
    run, out, calls = run_of(keys), [deliver(run_of("a"))][:0], 0
    while run.committed < len(keys):
        while len(out) < 4 and isinstance(work := run.next_work(START_S), KeyedDelivery):
            out.append(work)
            calls += 1
        assert len(out) == 4 or calls > 180
        answer(run, out.pop(draw.randrange(len(out))))

    assert calls == 200
