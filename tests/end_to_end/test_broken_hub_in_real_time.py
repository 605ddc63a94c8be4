"""A query in real time behind a gate that breaks the connections between its tasks and its driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import cycle, product
from operator import itemgetter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.hub.driver_end import DriverControl, MakeCommit
from pyspark_rocketmq.hub.task_end import ControlEndpoint
from tests.end_to_end.test_real_time import LiveQuery
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.wait import wait_until
from tests.hub.gate import At, Fault, HubGate

pytestmark = [pytest.mark.spark, SIM_ONLY]

_PATIENCE_S = 120.0
_EVERY_S = 0.02
_BREAK_AGAIN_S = 5.0
BREAKS = (Fault.LOSE, Fault.CUT, Fault.RESET)
OF_COMMITS = ("dirty", "cut", "handed", "taken", "committed", "resume", "go_on")
"""Types of messages; the last two, ``OF_RESUMING``, come on another connection."""
OF_RESUMING = OF_COMMITS[-2:]
OF_BATCHES = ("begin", "go", "end", "done")


class Gated:
    """A query whose tasks reach their driver through a gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, start: Callable[[], LiveQuery]) -> None:
        self._gates: list[HubGate] = []
        self._open = ExitStack()
        begin = DriverControl.begin

        def through_gate(control: DriverControl, batch_id: int, make: MakeCommit) -> ControlEndpoint | None:
            terms = begin(control, batch_id, make)
            if terms is None:
                return None
            if not self._gates:
                self._gates.append(self._open.enter_context(HubGate(terms.address)))
            return terms._replace(address=self._gates[0].address)

        monkeypatch.setattr(DriverControl, "begin", through_gate)
        self.live = start()

    @property
    def connections(self) -> int:
        return self._gates[0].connections

    def close(self) -> None:
        self.live.close()
        self._open.close()

    def break_at(self, *faults: At) -> None:
        """Send messages until all of the faults have happened, one after the other.

        A task resumes only if its batch goes on after a break. If the batch was about to end, because a queue
        came, its connection is broken again in the next batch.
        """
        live = self.live
        gate = self._gates[0]
        gate.faults.extend(faults)
        deadline_s = time.monotonic() + _PATIENCE_S
        break_again_s = time.monotonic() + _BREAK_AGAIN_S
        while (fault := _next_of(gate)) is not None:
            now_s = time.monotonic()
            assert live.query.exception() is None
            assert now_s < deadline_s, f"{fault} does not happen"
            if fault.kind not in OF_RESUMING:
                break_again_s = now_s + _BREAK_AGAIN_S
            elif now_s >= break_again_s:
                gate.break_connections()
                break_again_s = now_s + _BREAK_AGAIN_S
            live.send(0)
            live.send(1)
            time.sleep(_EVERY_S)

    def check(self) -> None:
        """Check that each message was delivered once, in the order of its queue, and has one row."""
        self.live.await_rows()
        delivered = self.live.delivered()
        assert sorted(delivered) == self.live.wanted()
        if self.live.is_orderly:
            # Sorted by queue only, so in the order of the calls.
            assert sorted(delivered, key=itemgetter(0)) == self.live.wanted()


def _next_of(gate: HubGate) -> At | None:
    """Return the fault that is to happen next; the gate's thread removes it when it has happened."""
    with suppress(IndexError):
        return gate.faults[0]
    return None


IN_ONE_BATCH = [
    pytest.param((True, "5 minutes"), id="orderly"),
    pytest.param((False, "5 minutes"), id="concurrent"),
]
IN_SHORT_BATCHES = [
    pytest.param((True, "5 seconds"), id="orderly"),
    pytest.param((False, "5 seconds"), id="concurrent"),
]


@pytest.fixture
def gated(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    cluster: ClusterUnderTest,
    tmp_path: Path,
) -> Iterator[Gated]:
    is_orderly, lasts = request.param

    def start() -> LiveQuery:
        return LiveQuery(spark, cluster, tmp_path, orderly=is_orderly, lasts=lasts)

    running = Gated(monkeypatch, start)
    running.live.send(0)
    running.live.await_rows()
    # A batch is reported after its rows are committed.
    wait_until(lambda: running.live.reports, _PATIENCE_S, reason="The first report")
    yield running
    running.close()


@pytest.mark.parametrize("gated", IN_ONE_BATCH, indirect=True)
def test_a_batch_goes_on_after_its_connections_break(gated: Gated) -> None:
    """D1, H1, I1: at each message of a commit, and on the next connection, too; tasks pause and resume."""
    before = gated.connections
    batch_id = gated.live.reports[-1].batch_id
    faults = [At(kind, fault) for kind, fault in zip(OF_COMMITS, cycle(BREAKS), strict=False)]
    gated.break_at(*faults)
    gated.check()

    assert gated.connections >= before + len(faults)
    # The queue of the retry topic may have come after the first plan.
    assert gated.live.reports[-1].batch_id <= max(batch_id, 1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gated", IN_SHORT_BATCHES, indirect=True)
def test_batches_follow_each_other_while_connections_break(gated: Gated) -> None:
    """D1, H1, I1, I4: also when a task begins, is to end, and ends."""
    for kind, fault in product(OF_COMMITS + OF_BATCHES, BREAKS):
        gated.break_at(At(kind, fault))
    gated.check()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gated", IN_SHORT_BATCHES, indirect=True)
def test_a_query_goes_on_after_its_connections_fall_silent(gated: Gated) -> None:
    """D1, H1, I1: nothing closes them, so both ends notice by their own clocks after 20 s."""
    for kind in OF_COMMITS + OF_BATCHES:
        first = [At("cut", Fault.LOSE)] if kind in OF_RESUMING else []
        gated.break_at(*first, At(kind, Fault.STALL))
        gated.check()
