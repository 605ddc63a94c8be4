"""Who may begin the next call: cases, and random lives of a task's ranges."""

from __future__ import annotations

import random

import pytest

from pyspark_rocketmq.consume.call_slots import CallSlots


def slots_of(most: int, *runs: str) -> CallSlots[str]:
    slots: CallSlots[str] = CallSlots(most)
    for run in runs:
        slots.join(run)
    return slots


def test_a_run_that_finds_no_slot_is_woken_once_when_there_is_one() -> None:
    """E1, E9: nothing is dropped, and nobody asks again and again."""
    slots = slots_of(1, "a", "b")
    assert (slots.take("a"), slots.take("b"), slots.wake()) == (True, False, None)

    slots.give("a")

    assert (slots.wake(), slots.wake()) == ("b", None)
    assert slots.take("b")
    assert not slots.is_somebody_waiting


def test_a_run_without_a_call_comes_before_one_that_has_some() -> None:
    """E1: a queue with many messages leaves room for the others."""
    slots = slots_of(2, "a", "b")
    assert [slots.take("a") for _ in range(3)] == [True, True, False]
    assert not slots.take("b")
    assert not slots.may_keep("a")

    slots.give("a")

    assert not slots.take("a")
    assert slots.wake() == "b"
    assert slots.take("b")
    assert slots.may_keep("b")


def test_two_runs_with_equal_parts_keep_their_slots() -> None:
    """E1: each handover wakes a thread."""
    slots = slots_of(3, "a", "b")
    assert [slots.take(run) for run in ("a", "b", "a", "b")] == [True, True, True, False]

    assert slots.may_keep("a")
    assert slots.may_keep("b")


def test_lost_slots_wake_everybody_who_waits() -> None:
    """E7: calls that never return; the task ends."""
    slots = slots_of(2, "a", "b", "c")
    assert [slots.take(run) for run in ("a", "a", "b", "c")] == [True, True, False, False]
    slots.hang("a", 1)
    assert [slots.are_lost, slots.wake()] == [False, None]

    slots.hang("a", 2)
    slots.leave("a")

    assert [slots.are_lost, slots.wake(), slots.wake(), slots.wake()] == [True, "b", "c", None]

    slots.hang("a", 1)
    slots.give("a")

    assert (slots.are_lost, slots.take("c"), slots.take("b")) == (False, False, True)


class World:
    """Ranges with messages whose calls last as drawn; runs look for slots only when they are to."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = draw = random.Random(seed)
        self.most = draw.randint(1, 5)
        self.slots: CallSlots[int] = CallSlots(self.most)
        self.left: dict[int, int] = {}
        self.out: dict[int, int] = {}
        self.number = 0
        self.begun = 0
        self.longest_wait = 0
        self._waits_since: dict[int, int] = {}

    def arrive(self) -> None:
        self.number += 1
        self.left[self.number], self.out[self.number] = self.draw.randint(1, 12), 0
        self.slots.join(self.number)
        self._look(self.number)
        self._wake()

    def end_call(self) -> None:
        run = self.draw.choice([run for run, out in self.out.items() if out])
        self.out[run] -= 1
        if self.left[run] and self.slots.may_keep(run):
            self._begin(run)
        else:
            self.slots.give(run)
        self._look(run)
        if not self.left[run] and not self.out[run]:
            self.slots.leave(run)
            del self.left[run], self.out[run]
            self._waits_since.pop(run, None)
        self._wake()

    def _look(self, run: int) -> None:
        while self.left[run]:
            if not self.slots.take(run):
                if not self.out[run]:
                    self._waits_since.setdefault(run, self.begun)
                return
            self._begin(run)
        self.slots.rest(run)

    def _begin(self, run: int) -> None:
        self.left[run] -= 1
        self.out[run] += 1
        self.begun += 1
        if (since := self._waits_since.pop(run, None)) is not None:
            self.longest_wait = max(self.longest_wait, self.begun - since)

    def _wake(self) -> None:
        while (run := self.slots.wake()) is not None:
            self._look(run)

    def check(self) -> None:
        taken = sum(self.out.values())
        assert taken <= self.most, f"seed={self.seed}: more calls than slots"
        is_all_out = not any(self.left.values())
        assert taken == self.most or is_all_out, f"seed={self.seed}: a free slot, and somebody waits"


@pytest.mark.parametrize("_", range(40))
def test_in_random_lives_no_slot_is_free_while_a_message_waits(_: int) -> None:
    """E1, E9: nor does a range without a call wait for longer than the others that came before it."""
    world = World(random.randrange(1 << 32))
    for _ in range(400):
        if world.draw.random() < 0.15 or not any(world.out.values()):
            world.arrive()
        else:
            world.end_call()
        world.check()
    while any(world.out.values()):
        world.end_call()
        world.check()

    assert not world.left, f"seed={world.seed}"
    assert not world.slots.is_somebody_waiting, f"seed={world.seed}"
    assert world.longest_wait <= world.number + world.most, f"seed={world.seed}"
