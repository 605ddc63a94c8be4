"""A fact with two witnesses is judged by both: one is changed between every two steps of a batch.

``docs/reliability.md`` has the table.  Steps: a group consumes a first batch, and of a second one the plan is made,
the rows are written, the data are committed, the offsets are committed, the broker is shown them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from pyspark_rocketmq.errors import LostBehindSink
from tests.helpers.queue_history import GROUP, History, Killed
from tests.source.test_planner import A0


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


STEPS = ("after the plan", "before data", "before offsets", "behind offsets", "")
"""Where the second batch is killed; at its end without a word."""


def _lost_end(history: History) -> None:
    history.log.lose_end(3)
    history.log.append(5)


def _topic_made_again(history: History) -> None:
    history.log.make_again(9)


def _topic_made_again_under_a_clock_set_back(history: History) -> None:
    history.log.set_clock_back(900)
    history.log.make_again(9)


def _offsets_lost(history: History) -> None:
    history.store.put_back({})


def _offsets_put_back(history: History) -> None:
    history.store.put_back(history.backups[0])


def _offsets_lost_and_the_end(history: History) -> None:
    _offsets_lost(history)
    _lost_end(history)


def _offsets_put_back_and_the_topic(history: History) -> None:
    _offsets_put_back(history)
    _topic_made_again(history)


def _broker_forgets_the_group(history: History) -> None:
    history.brokers.offsets.pop(A0, None)


def _broker_has_an_old_offset(history: History) -> None:
    history.brokers.offsets[A0] = 2


def _broker_has_an_old_offset_and_lost_the_end(history: History) -> None:
    _broker_has_an_old_offset(history)
    _lost_end(history)


CHANGES = (
    _lost_end,
    _topic_made_again,
    _topic_made_again_under_a_clock_set_back,
    _offsets_lost,
    _offsets_put_back,
    _offsets_lost_and_the_end,
    _offsets_put_back_and_the_topic,
    _broker_forgets_the_group,
    _broker_has_an_old_offset,
    _broker_has_an_old_offset_and_lost_the_end,
)


@pytest.mark.parametrize("killed", STEPS, ids=[step or "at its end" for step in STEPS])
@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__.strip("_") for change in CHANGES])
def test_sink_offsets_and_broker_are_asked_whatever_one_of_them_has_lost(
    change: Callable[[History], None], killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H10, F4: every message that is still there reaches the sink, and none twice."""
    history = History(1, monkeypatch)
    history.log.append(4)
    history._batch(4, "")
    history.backups.append(history.store.state())
    history.log.append(4)
    with suppress(Killed):
        history._batch(4, killed)
    change(history)
    history.start()

    history.check()


@pytest.mark.parametrize("killed", STEPS, ids=[step or "at its end" for step in STEPS])
@pytest.mark.parametrize("change", [_lost_end, _topic_made_again], ids=["end lost", "topic made again"])
def test_a_sink_that_keeps_no_messages_is_not_believed_beyond_the_brokers_end(
    change: Callable[[History], None], killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H10: rows of an earlier release; the offset row's own message shows what it can."""
    history = History(1, monkeypatch)
    history.log.append(4)
    history._batch(4, "")
    history.log.append(4)
    with suppress(Killed):
        history._batch(4, killed)
    history.sink.newest_by.clear()
    change(history)
    history.start()

    if killed == "before offsets" and change is _lost_end:
        # The end of the log has grown past the sink's: nothing shows what came since.
        assert history.store.read(GROUP)[A0].state.last_message.to_text().startswith("[7,0,-1,")
        return
    history.check()


def test_what_only_such_a_sink_shows_to_be_lost_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """F4, H10: until an operator resets the group, and nothing is passed over in silence."""
    history = History(1, monkeypatch)
    history.log.append(4)
    history._batch(4, "")
    history.log.append(4)
    with suppress(Killed):
        history._batch(4, "before offsets")
    history.sink.newest_by.clear()
    history.log.lose_end(3)
    history.start()

    with pytest.raises(LostBehindSink, match="rows up to offset 7, and the broker has offsets 0 to 5"):
        history._plan()

    history.log.append(1)
    history.store.reset(GROUP, {A0: 5})
    history.check()
