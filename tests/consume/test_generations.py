"""Whether a queue's offsets began again."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.positions import Beginning, LastMessage, Standing, newer, next_generation
from pyspark_rocketmq.model import QueueBounds

LAST = LastMessage(99, 5_000, 12_345)
OTHER = LastMessage(99, 9_000, 77_777)


@pytest.mark.parametrize(
    ("standing", "bounds", "there", "expected"),
    [
        (Standing(100, LAST, False), (0, 100), LAST, None),
        (Standing(100, LAST, False), (0, 300), LAST, None),
        (Standing(100, LAST, False), (0, 300), OTHER, Beginning.STORED_LATER),
        (Standing(100, LAST, False), (0, 300), LAST._replace(commit_log_offset=1), Beginning.STORED_LATER),
        (Standing(100, LAST, False), (0, 5), None, Beginning.STORED_LATER),
        (Standing(100, LAST, False), (0, 0), None, Beginning.STORED_LATER),
        (Standing(100, LAST, False), (200, 300), None, None),
        (Standing(120, LAST, False), (0, 110), LAST, Beginning.BEHIND_LAST),
        (Standing(120, LAST, False), (105, 110), None, Beginning.STORED_LATER),
        (Standing(100, None, False), (0, 100), None, None),
        (Standing(100, None, False), (0, 20), None, Beginning.AT_END),
        (Standing(10, LAST, False), (0, 60), None, Beginning.STORED_LATER),
        (Standing(10, LAST, True), (0, 300), LAST, None),
        (Standing(10, LAST, True), (0, 300), OTHER, Beginning.AT_NEXT_OFFSET),
        (Standing(10, LAST, True), (0, 60), None, Beginning.AT_NEXT_OFFSET),
        (Standing(900, LAST, True), (0, 300), LAST, None),
        (Standing(900, None, True), (0, 300), None, None),
    ],
    ids=[
        "nothing new",
        "new messages",
        "made anew, and longer",
        "stored in the same millisecond",
        "made anew, and shorter",
        "made anew, and empty",
        "all that was consumed has expired",
        "the end of the log was lost, where a filter passed over messages",
        "the same, and the last message has expired",
        "nothing consumed yet",
        "nothing consumed yet, and lost",
        "went back, then the end was lost",
        "an operator went back",
        "an operator went back in a topic made anew",
        "the same, and it is shorter",
        "an operator went beyond the end",
        "the same, and nothing was consumed",
    ],
)
def test_a_queue_begins_a_new_life_where_other_messages_have_its_offsets(
    standing: Standing,
    bounds: tuple[int, int],
    there: LastMessage | None,
    expected: Beginning | None,
) -> None:
    """F4, F5: and an operator's reset is none."""
    assert next_generation(standing, QueueBounds(*bounds), there) is expected


def test_a_message_is_kept_as_text() -> None:
    """F4"""
    assert LastMessage.from_text(LAST.to_text()) == LAST
    assert LastMessage.from_text("") is None


def test_the_newest_message_is_remembered_however_far_a_group_went_back() -> None:
    """F4, F5: else the end of the log could be lost unnoticed behind the place it went back to."""
    older = LastMessage(7, 100, 5).to_text()

    assert newer(LAST.to_text(), older) == newer(older, LAST.to_text()) == LAST.to_text()
    assert newer("", older) == newer(older, "") == older
    assert newer("", "") == ""


class Log:
    """A queue at its broker: messages by number, each other than all before."""

    def __init__(self) -> None:
        self._numbers = count()
        self.first = 0
        self.messages: list[int] = []

    @property
    def bounds(self) -> QueueBounds:
        return QueueBounds(self.first, self.first + len(self.messages))

    def at(self, offset: int) -> int | None:
        is_there = self.first <= offset < self.bounds.max_offset
        return self.messages[offset - self.first] if is_there else None

    def append(self, how_many: int) -> None:
        self.messages += [next(self._numbers) for _ in range(how_many)]

    def lose_end(self, how_many: int) -> None:
        del self.messages[max(0, len(self.messages) - how_many) :]

    def expire(self, how_many: int) -> None:
        self.first += len(self.messages[:how_many])
        del self.messages[:how_many]

    def make_anew(self, how_many: int) -> None:
        self.first, self.messages = 0, []
        self.append(how_many)

    def seen_at(self, offset: int) -> LastMessage | None:
        number = self.at(offset)
        return None if number is None else LastMessage(offset, number, number)

    def stored_later(self, than: int) -> int:
        return next(
            (self.first + at for at, number in enumerate(self.messages) if number > than),
            self.bounds.max_offset,
        )


class Group:
    """A group with a sink: rows by (generation, offset), and the watermark of each generation."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.next_offset = self.generation = 0
        self.last: LastMessage | None = None
        self.was_reset = False
        self.rows: list[int] = []
        self.watermarks: dict[int, int] = {}

    def look(self) -> None:
        """As at a claim or a reset."""
        standing = Standing(self.next_offset, self.last, self.was_reset)
        bounds = self.log.bounds
        beginning = next_generation(standing, bounds, self.log.seen_at(standing.place_to_look_at()))
        if beginning is not None:
            self.next_offset = {
                Beginning.STORED_LATER: lambda: self.log.stored_later(
                    self.last.store_timestamp if self.last else -1
                ),
                Beginning.BEHIND_LAST: lambda: self.last.queue_offset + 1 if self.last else 0,
                Beginning.AT_NEXT_OFFSET: lambda: self.next_offset,
                Beginning.AT_END: lambda: bounds.max_offset,
            }[beginning]()
            self.next_offset = min(max(self.next_offset, bounds.min_offset), bounds.max_offset)
            self.generation += 1
            self.last = self.log.seen_at(self.next_offset - 1)
        self.next_offset = min(max(self.next_offset, bounds.min_offset), bounds.max_offset)

    def consume(self, how_many: int) -> None:
        self.look()
        end = min(self.next_offset + how_many, self.log.bounds.max_offset)
        for offset in range(self.next_offset, end):
            number = self.log.at(offset)
            assert number is not None
            if offset >= self.watermarks.get(self.generation, 0):
                self.rows.append(number)
            if self.last is None or offset >= self.last.queue_offset:
                self.last = LastMessage(offset, number, number)
        self.watermarks[self.generation] = max(end, self.watermarks.get(self.generation, 0))
        if end > self.next_offset:
            self.was_reset = False
        self.next_offset = end

    def reset(self, to: int) -> None:
        bounds = self.log.bounds
        self.next_offset = min(max(to, bounds.min_offset), bounds.max_offset)
        self.was_reset = True


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "consume", "consume", "lose_end", "make_anew", "expire"]),
        st.integers(0, 6),
    ),
    max_size=20,
)


@given(_STEPS)
@example([("append", 2), ("consume", 2), ("lose_end", 1), ("consume", 0), ("lose_end", 1)])
def test_whatever_the_log_does_each_message_still_there_reaches_the_sink_once(
    steps: list[tuple[str, int]],
) -> None:
    """F4, H1: topics made anew, shorter or longer, ends lost and grown over, messages expired."""
    log = Log()
    group = Group(log)
    for step, number in steps:
        getattr(group if step == "consume" else log, step)(number)
    log.append(3)
    group.consume(1_000)

    assert len(group.rows) == len(set(group.rows)), "none twice"
    if all(step != "expire" for step, _ in steps):
        assert set(log.messages) <= set(group.rows)


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "consume", "reset", "expire"]), st.integers(0, 9)), max_size=20
    )
)
def test_whatever_an_operator_does_within_a_life_doubles_no_row(steps: list[tuple[str, int]]) -> None:
    """F5, H1: back and forth; the sink goes on dropping what it has."""
    log = Log()
    group = Group(log)
    for step, number in steps:
        getattr(log if step in {"append", "expire"} else group, step)(number)

    assert group.generation == 0
    assert len(group.rows) == len(set(group.rows))
