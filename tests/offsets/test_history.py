"""Which of the past is kept, and which moment of it somebody means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.offsets.history import StoredChange, change_at, change_of_version, worth_keeping


def change(version: int, at_s: float, group: str = "g", action: str = "commit of batch") -> StoredChange:
    return StoredChange(version, at_s, group, action)


def versions(changes: list[StoredChange]) -> list[int]:
    return [each.version for each in changes]


def test_of_each_minute_the_last_change_of_a_group_is_kept() -> None:
    changes = [change(1, 0), change(2, 59), change(3, 60), change(4, 61), change(5, 300)]

    assert versions(worth_keeping(changes)) == [2, 4, 5]


def test_groups_are_thinned_each_for_itself() -> None:
    changes = [change(1, 0, "a"), change(2, 1, "b"), change(3, 2, "a")]

    assert versions(worth_keeping(changes)) == [2, 3]


def test_a_reset_is_kept_and_so_is_what_was_before_it() -> None:
    """F5: a mistake can be undone days later."""
    changes = [change(1, 0), change(2, 1), change(3, 2, action="reset"), change(4, 3), change(5, 4)]

    assert versions(worth_keeping(changes)) == [2, 3, 5]


def test_a_reset_is_distinguished_from_a_batch() -> None:
    assert change(1, 0, action="reset").is_reset
    assert not change(1, 0, action="commit of batch 3 of query reset").is_reset


@given(st.lists(st.tuples(st.floats(0, 600), st.sampled_from("ab"), st.booleans())))
def test_the_newest_state_of_each_group_and_every_reset_survive_in_order(
    steps: list[tuple[float, str, bool]],
) -> None:
    steps.sort(key=lambda step: step[0])
    changes = [
        change(version, at_s, group, "reset" if is_reset else "commit")
        for version, (at_s, group, is_reset) in enumerate(steps)
    ]

    kept = worth_keeping(changes)

    assert versions(kept) == sorted(set(versions(kept)))
    assert {each for each in changes if each.action == "reset"} <= set(kept)
    for group in "ab":
        mine = [each for each in changes if each.consumer_group == group]
        assert not mine or mine[-1] in kept
        for each in mine:
            # Whoever asks for a time gets a state that is at most a minute older.
            there = change_at([k for k in kept if k.consumer_group == group] or mine, group, 1e9)
            assert there.at_s >= each.at_s - 60


def test_a_time_means_the_last_change_before_it() -> None:
    """F5: a time after the last change is "now", which Delta itself would refuse."""
    changes = [change(3, 10.0), change(7, 20.0)]

    assert [change_at(changes, "g", at).version for at in (10.0, 19.9, 20.0, 1e9)] == [3, 3, 7, 7]
    with pytest.raises(
        OffsetError,
        match=r"no offsets of group g at that time: the group's oldest kept change is version 3, the newest is version 7",
    ):
        change_at(changes, "g", 9.9)
    with pytest.raises(OffsetError, match="no change of this group is kept"):
        change_at([], "g", 9.9)


def test_a_version_means_the_group_s_last_change_up_to_it() -> None:
    """F5: the versions in between are other groups'."""
    changes = [change(3, 10.0), change(7, 20.0)]

    assert [change_of_version(changes, "g", at).version for at in (3, 6, 7, 99)] == [3, 3, 7, 7]
    with pytest.raises(OffsetError, match="no offsets of group g at version 2"):
        change_of_version(changes, "g", 2)
