"""Groups in small, explored: every order of events up to a depth, and long random ones."""

from __future__ import annotations

import os
import random
import sys
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.consume.group_model import BROKER_LOCK_S, TIMING, GroupModel, Move, Violation

_SETTLES_WITHIN_S = BROKER_LOCK_S + TIMING.rebalance_s + 10
"""The last lock of a member that is gone expires, the next look at the group follows, and a few calls."""
_SETTLES_IN_GOOD_ORDER_S = 5
"""When nobody crashed, slept, or lost a call: batch over, unlock, second look, lock."""
_SETTLES_WITHOUT_LOCKS_S = TIMING.rebalance_s + 5
"""Whose queue was claimed by a member that left again at once takes it back then;
there is no lock to wait for.
"""
_SHARE = float(os.environ.get("EXPLORE_SHARE", "0.4"))
"""A larger share explores more: ``EXPLORE_SHARE=20 pytest tests/consume/test_membership_explored.py -s``."""
_SHARES = [pytest.param(_SHARE, id="short"), pytest.param(1.0, marks=pytest.mark.long, id="long")]


Tell = Callable[[str], None]

_CALM = {"work", "begin plan", "finish plan", "commit", "resume", "start"}


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Print a line in any case: how much was explored is part of the result."""

    def write(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {line} ")

    return write


def nobody_registered(_model: GroupModel) -> None:
    """All begin at once."""


def settled(model: GroupModel) -> None:
    """Each member has its share."""
    model.settle(5.0)


def first_has_all(model: GroupModel) -> None:
    """The first member holds every queue in a batch under way; the others have not begun."""
    for what in ("work", "begin plan", "finish plan"):
        model.make(Move(what, "a"))


def one_is_leaving(model: GroupModel) -> None:
    """As before, and the second has come and was seen:
    the first is to give queues up when its batch is over.
    """
    first_has_all(model)
    model.make(Move("work", "b"))
    model.make(Move("wait", amount=1.0))
    model.make(Move("work", "a"))


def all_have_batches(model: GroupModel) -> None:
    """Every member has a batch under way."""
    settled(model)
    for name in model.members:
        for what in ("commit", "begin plan", "finish plan"):
            if Move(what, name) in set(model.moves()):
                model.make(Move(what, name))


BEGINNINGS = (nobody_registered, settled, first_has_all, one_is_leaving, all_have_batches)


def explore(first: GroupModel, most_states: int) -> tuple[int, int]:
    """All states reached from ``first``, breadth first; how many, and how deep."""
    seen = {first.key()}
    waiting: deque[tuple[GroupModel, tuple[Move, ...]]] = deque([(first, ())])
    depth = 0
    while waiting and len(seen) < most_states:
        model, path = waiting.popleft()
        depth = len(path)
        for move in model.moves():
            following = model.clone()
            try:
                following.make(move)
                if len(seen) % 20 == 0:
                    following.clone().settle(_settle_time_s(following, first))
            except Violation as violation:
                raise AssertionError(f"{violation} After {[*path, move]}") from violation
            key = following.key()
            if key not in seen:
                seen.add(key)
                waiting.append((following, (*path, move)))
    return len(seen), depth


def _settle_time_s(model: GroupModel, first: GroupModel) -> float:
    if model.faults_left != first.faults_left:
        return _SETTLES_WITHIN_S
    return _SETTLES_IN_GOOD_ORDER_S if model.needs_locks else _SETTLES_WITHOUT_LOCKS_S


class Scope(NamedTuple):
    """How large a group, and how much may go wrong in it."""

    members: int
    queues: int
    faults: int
    stops: int
    starts: int
    states: int


SCOPES = (
    Scope(2, 1, 2, 1, 1, 2_500),
    Scope(2, 2, 1, 1, 1, 2_000),
    Scope(3, 2, 1, 1, 0, 1_500),
    Scope(3, 3, 2, 0, 0, 1_200),
)


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: f"{scope.members} members {scope.queues} queues")
@pytest.mark.parametrize("begin", BEGINNINGS, ids=lambda begin: begin.__name__)
@pytest.mark.parametrize("share", _SHARES)
def test_no_order_of_events_lets_two_members_have_a_queue_or_leaves_one_with_nobody(
    scope: Scope, begin: Callable[[GroupModel], None], share: float, tell: Tell
) -> None:
    """B1, B4, B5, B7, C1, C2, C5, H5."""
    _explore_all(GroupModel(scope.members, scope.queues, faults=0), scope, begin, share, tell)


@pytest.mark.parametrize(
    "scope", SCOPES[::2], ids=lambda scope: f"{scope.members} members {scope.queues} queues"
)
@pytest.mark.parametrize("begin", BEGINNINGS, ids=lambda begin: begin.__name__)
@pytest.mark.parametrize("share", _SHARES)
def test_without_locks_no_order_of_events_leaves_a_queue_with_nobody_or_with_one_who_cannot_commit(
    scope: Scope, begin: Callable[[GroupModel], None], share: float, tell: Tell
) -> None:
    """B1, B4, B5, B7, C5: a concurrent group, whose members may plan a queue together, but not commit it."""
    _explore_all(
        GroupModel(scope.members, scope.queues, faults=0, needs_locks=False), scope, begin, share, tell
    )


def _explore_all(
    model: GroupModel, scope: Scope, begin: Callable[[GroupModel], None], share: float, tell: Tell
) -> None:
    begin(model)
    model.faults_left, model.stops_left, model.starts_left = scope.faults, scope.stops, scope.starts

    most_states = int(scope.states * share)
    explored, depth = explore(model, most_states)

    tell(
        f"{scope.members} members, {scope.queues} queues, {begin.__name__}: {explored} states, {depth} "
        f"moves deep"
    )
    assert explored >= min(1000, most_states)


@pytest.mark.parametrize("needs_locks", [True, False], ids=["orderly", "concurrent"])
@pytest.mark.parametrize("share", _SHARES)
def test_long_random_lives_of_a_group_end_settled(share: float, needs_locks: bool, tell: Tell) -> None:
    """B1, B4, B5, B7, C1, C2, C5, H5: hundreds of moves, far deeper than exploring all of them can go."""
    seed = int(os.environ.get("GROUP_SEED", "20240229"))
    chance = random.Random(seed)
    lives, moves = int(60 * share), 0
    for _ in range(lives):
        model = GroupModel(
            3,
            chance.randrange(1, 4),
            faults=chance.randrange(8),
            stops=chance.randrange(4),
            starts=chance.randrange(9),
            needs_locks=needs_locks,
        )
        path: list[Move] = []
        try:
            for _ in range(120):
                # Time passes in one move of three, or nothing but calls would happen.
                choices = list(model.moves())
                calm = [move for move in choices if move.what in _CALM]
                waits = [move for move in choices if move.what == "wait"]
                move = chance.choice(chance.choice([choices, calm or waits, waits[:1]]))
                path.append(move)
                model.make(move)
            model.settle(_SETTLES_WITHIN_S)
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation} After {path}") from violation
        moves += len(path)
    tell(f"{lives} random lives, {moves} moves, seed {seed}")
