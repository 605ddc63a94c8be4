"""Java's push consumer with scripted listeners behaves on any cluster as recorded on a real broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from tests.both.support import ANSWER_S
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.java.clients import JavaClients
from tests.java.traces import (
    CONCURRENT,
    MOST_S,
    ORDERLY,
    Scenario,
    TraceRun,
    assert_waits_as_recorded,
    by_queue,
    without_ids,
)

pytestmark = pytest.mark.timeout(900)


def _do(run: TraceRun, client: BrokerClient) -> dict[str, Any]:
    run.begin().result(MOST_S + ANSWER_S)
    run.await_effects(client)
    run.end().result(2 * ANSWER_S)
    return {
        "events": run.all_calls(),
        "committed_after_shutdown": run.committed(client),
        "committed_retry_topic": run.committed_retry(client),
        "retry_topic_content": run.retries(client),
        "dlq_content": run.dead_letters(client),
    }


@pytest.fixture(scope="module")
def observed(java: JavaClients, backend: tuple[str, Backend]) -> dict[str, dict[str, Any] | BaseException]:
    """Return what each scenario left, by its topic; all run at the same time."""
    kind, running = backend
    cluster = ClusterUnderTest(running, kind)
    runs = [TraceRun(scenario, java, cluster) for scenario in (*ORDERLY, *CONCURRENT)]
    for run in runs:
        run.prepare()
    with ChannelPool(SystemClock()) as pool, ThreadPoolExecutor(len(runs)) as threads:
        client = BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)
        futures = {run.topic: threads.submit(_do, run, client) for run in runs}
        return {topic: future.exception() or future.result() for topic, future in futures.items()}


def _left_by(observed: dict[str, dict[str, Any] | BaseException], scenario: Scenario) -> dict[str, Any]:
    outcome = observed[TraceRun.topic_of(scenario)]
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


@pytest.mark.parametrize("scenario", ORDERLY, ids=lambda scenario: scenario["scenario"])
def test_an_orderly_listener_sees_and_leaves_what_was_recorded(
    scenario: Scenario, observed: dict[str, dict[str, Any] | BaseException]
) -> None:
    """D1-D6, B6: per queue each offset, reconsumeTimes and answer in their order; offsets; dead letters."""
    left = _left_by(observed, scenario)

    assert by_queue(left["events"], is_ordered=True) == by_queue(scenario["events"], is_ordered=True)
    _assert_left_as_recorded(left, scenario)


@pytest.mark.parametrize("scenario", CONCURRENT, ids=lambda scenario: scenario["scenario"])
def test_a_concurrent_listener_sees_and_leaves_what_was_recorded(
    scenario: Scenario, observed: dict[str, dict[str, Any] | BaseException]
) -> None:
    """E1-E6: each offset, reconsumeTimes, delay level and answer; the retry and dead-letter topics."""
    left = _left_by(observed, scenario)

    assert by_queue(left["events"], is_ordered=False) == by_queue(scenario["events"], is_ordered=False)
    _assert_left_as_recorded(left, scenario)


def _assert_left_as_recorded(left: dict[str, Any], scenario: Scenario) -> None:
    for name in ("committed_after_shutdown", "committed_retry_topic"):
        assert left[name] == scenario[name], name
    for name in ("retry_topic_content", "dlq_content"):
        assert left[name] == without_ids(scenario[name]), name
    assert_waits_as_recorded(left["events"], scenario)
