"""Java's clients make the same requests of the simulator, in the same order, as recorded on a real broker.

The comparison leaves out requests of timers and of other clients of the recording: route
updates, and offsets except at a shutdown; also pulls refused for a while because a heartbeat under
way kept the client from sending one with its newer subscription. A pull that is held and one that
was held in vain count as the same request. On a busy machine a timer may do anything that
it does at all between any two requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from tests.both.support import ANSWER_S
from tests.helpers.wait import wait_until
from tests.java.clients import JavaError
from tests.java.push import await_shares
from tests.java.request_log import ONEWAY
from tests.java.stage import (
    NOISE,
    PRODUCER,
    PULLS,
    Row,
    Stage,
    facts,
    in_turn,
    new_stage,
    observed,
    order,
    queue_of,
    recorded,
    unlike,
)

pytestmark = [pytest.mark.sim, pytest.mark.java, pytest.mark.timeout(900)]

_OF_RETRIES = frozenset({"%RETRY%FrOrderG", "GET_ROUTEINFO_BY_TOPIC"})
"""The retry topic has an offset only once a pull of it was held for its whole time."""
_FIRST_PERSIST_S = 10.0
"""Seconds after which a client's timer first sends its offsets."""
_POLL_MILLIS = 60_000
_UNKNOWN, _COMMIT, _ROLLBACK = "0", "8", "12"
"""``MessageSysFlag.TRANSACTION_*_TYPE``, as END_TRANSACTION has them."""
_UNTIL_THEN = PULLS | {"HEART_BEAT"}
"""Requests of a member until it is stopped; here it has a heartbeat every second."""


@pytest.fixture(scope="module")
def reset_story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[tuple[list[Row], list[Row]]]]:
    """Return the requests of a reset at the next pull, and of one pushed to members, in a separate cluster.

    It begins before the tests that judge it: Java waits ten seconds
    between the notice of a reset and its execution.
    """
    home = tmp_path_factory.mktemp("reset")
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(_live_through_resets, home)


def _live_through_resets(home: Path) -> tuple[list[Row], list[Row]]:
    with new_stage(home) as stage:
        for queue_id in (0, 1):
            stage.put("FrReset", queue_id, 3, KEYS="k")
        address = stage.cluster.broker_addresses["broker-a"]
        consumer = stage.push("reset", "FrResetG", "FrReset", isOrderly=True)
        consumer.delivered(6)
        consumer.persist()
        at_first = stage.log.taken()
        stage.java.mqadmin("resetOffsetByTime", "-g", "FrResetG", "-t", "FrReset", "-s", "0")
        for queue_id in (0, 1):
            stage.put("FrReset", queue_id, KEYS="k")  # ends the held pull
        consumer.delivered(6 + 8, timeout_s=4 * ANSWER_S)
        later = stage.log.taken()
        pulls_until_then = [row for row in observed(at_first) if row[1] == "PULL_MESSAGE"]
        server_side = pulls_until_then + observed(later)

        stage.java.mqadmin(
            "updateBrokerConfig", "-b", address, "-k", "useServerSideResetOffset", "-v", "false"
        )
        stage.java.mqadmin("resetOffsetByTime", "-g", "FrResetG", "-t", "FrReset", "-s", "0")
        consumer.delivered(6 + 8 + 8, timeout_s=4 * ANSWER_S)
        return server_side, observed(stage.log.taken())


_SENDS: dict[str, Callable[[Stage], None]] = {
    "send_sync": lambda stage: stage.send("sync"),
    "send_oneway": lambda stage: stage.send("oneway"),
    "send_async": lambda stage: stage.send("async"),
    "send_batch": lambda stage: stage.send("batch", count=3),
    "send_selector": lambda stage: stage.send("hash"),
    "send_delay": lambda stage: stage.send("sync", delayLevel=1),
    "send_timer": lambda stage: stage.send("sync", delayMillis=1000),
    "send_compressed": lambda stage: stage.send("sync", body="x" * 10_000),
    "send_autocreate_topic": lambda stage: stage.send("sync", topic="FrAutoCreated"),
    "send_to_queue": lambda stage: stage.send("queue"),
}


def _without_timers(rows: Iterable[Row]) -> list[Row]:
    """Leave out heartbeats, and a route that is requested again right after the same answer."""
    told = [row for row in rows if row[1] != "HEART_BEAT"]
    return [
        row
        for before, row in pairwise([None, *told])
        if row is not None and not (row == before and row[1] == "GET_ROUTEINFO_BY_TOPIC")
    ]


@pytest.mark.parametrize("scenario", _SENDS)
def test_a_producer_sends_as_recorded(scenario: str, stage: Stage) -> None:
    """G1, G2: the route is requested once, and twice for a topic that is to be created."""
    without = frozenset({"HEART_BEAT"})
    stage.log.taken()

    _SENDS[scenario](stage)
    rows = stage.await_rows(scenario, without)

    assert facts(rows, without) == facts(recorded(scenario), without)
    assert _without_timers(rows) == _without_timers(recorded(scenario))


def test_a_producer_asks_as_recorded(stage: Stage) -> None:
    """F5, G1: bounds, times, messages by key, a new topic."""
    stage.log.taken()
    asked = stage.java.call(
        "producer.ask", group=PRODUCER, queue=queue_of("FrA"), key="k", newTopic="FrCreated"
    )
    rows = stage.await_rows("producer_admin_calls")

    assert asked["minOffset"] == asked["searchOffset"] == 0
    assert asked["found"]
    assert not unlike(facts(rows), facts(recorded("producer_admin_calls")))
    assert ("client->namesrv", "GET_ROUTEINFO_BY_TOPIC", "TBW102", 0) in rows


@pytest.mark.usefixtures("reset_story")
def test_a_lite_pull_consumer_lives_as_recorded(stage: Stage) -> None:
    """A1, F6: start, poll, commit, seek, shutdown."""
    java = stage.java
    for queue_id in (0, 1):
        stage.put("FrA", queue_id, 20)
    stage.log.taken()

    java.call("lite.start", name="lite", group="FrLiteG", topic="FrA", tags="*")
    java.call("lite.poll", name="lite", count=20, timeoutMillis=_POLL_MILLIS)
    heartbeat = stage.heartbeats("FrLiteG")[0]
    polled = stage.await_rows("litepull_poll", frozenset({"GET_ROUTEINFO_BY_TOPIC"}))
    essential = ["HEART_BEAT", "NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    essential += ["QUERY_CONSUMER_OFFSET", "LITE_PULL_MESSAGE"]
    assert order(polled, essential) == order(recorded("litepull_poll"), essential) == essential
    assert next(row for row in polled if row[2] == "FrA") == recorded("litepull_start")[0]
    assert heartbeat.client_id.endswith("@lite@STREAM")  # golden fact 24
    assert heartbeat.producers == ("CLIENT_INNER_PRODUCER",)

    java.call("lite.seek", name="lite", queue=queue_of("FrA"), to="begin")
    timestamp = java.call("lite.offsetForTimestamp", name="lite", queue=queue_of("FrA"), timestamp=0)
    assert timestamp == 0
    sought = stage.await_rows("litepull_seek")
    assert not unlike(facts(sought) | facts(polled), facts(recorded("litepull_seek")) | facts(polled))

    java.call("lite.commit", name="lite")
    java.call("lite.stop", name="lite")
    # Offsets are sent without waiting, so goodbye may overtake them.
    stopped = stage.await_rows("litepull_shutdown", PULLS)
    assert facts(recorded("litepull_commit"), PULLS) <= facts(stopped, PULLS)


def test_an_orderly_group_lives_as_recorded(stage: Stage) -> None:
    """B1, B3, C1, C4, D1: start, second member, which leaves, shutdown."""
    for queue_id in (0, 1):
        stage.put("FrOrder", queue_id, 2, KEYS="k")
    stage.log.taken()

    first = stage.push("order-1", "FrOrderG", "FrOrder", isOrderly=True)
    started = stage.await_rows("orderly_start", NOISE | {"SEND_MESSAGE_V2"})
    essential = ["HEART_BEAT", "NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    essential += ["LOCK_BATCH_MQ", "QUERY_CONSUMER_OFFSET", "PULL_MESSAGE"]
    assert order(started, essential) == order(recorded("orderly_start"), essential) == essential
    assert not unlike(facts(started), facts(recorded("orderly_start"), NOISE | {"SEND_MESSAGE_V2"}))

    second = stage.push("order-2", "FrOrderG", "FrOrder", isOrderly=True)
    await_shares("FrOrder", {0, 1}, first, second, is_orderly=True)
    joined = stage.await_rows("orderly_second_member", frozenset({"GET_ROUTEINFO_BY_TOPIC"}))
    handed_over = ["NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    handed_over += ["UPDATE_CONSUMER_OFFSET", "UNLOCK_BATCH_MQ", "LOCK_BATCH_MQ", "QUERY_CONSUMER_OFFSET"]
    assert in_turn(recorded("orderly_second_member"), handed_over) == handed_over
    assert in_turn(joined, handed_over) == handed_over

    second.stop().result(2 * ANSWER_S)
    await_shares("FrOrder", {0, 1}, first, is_orderly=True)
    left = stage.await_rows("orderly_second_member_leaves")
    taken_over = ["UNLOCK_BATCH_MQ", "UNREGISTER_CLIENT", "NOTIFY_CONSUMER_IDS_CHANGED"]
    taken_over += ["GET_CONSUMER_LIST_BY_GROUP", "LOCK_BATCH_MQ", "QUERY_CONSUMER_OFFSET"]
    assert in_turn(recorded("orderly_second_member_leaves"), taken_over) == taken_over
    assert in_turn(left, taken_over) == taken_over
    (unlock,) = {row for row in left if row[1] == "UNLOCK_BATCH_MQ"}
    assert unlock[3] == 0  # at a shutdown it waits for the answer; a rebalance unlocks with a oneway

    first.persist()
    first.stop().result(2 * ANSWER_S)
    ended = stage.await_rows("orderly_shutdown")
    goodbye = ["UNLOCK_BATCH_MQ", "UNREGISTER_CLIENT"]
    assert order(ended, goodbye) == order(recorded("orderly_shutdown"), goodbye) == goodbye
    wanted = facts(recorded("orderly_shutdown"), _OF_RETRIES)
    assert not unlike(facts(ended, _OF_RETRIES | _UNTIL_THEN), wanted)


def test_a_concurrent_group_lives_as_recorded(stage: Stage) -> None:
    """E1, E3: no locks; failed messages are sent back, and come again from the retry topic."""
    stage.put("FrConc", 0, KEYS="bad")
    stage.put("FrConc", 1, KEYS="good")
    stage.log.taken()

    consumer = stage.push(
        "conc",
        "FrConcG",
        "FrConc",
        answers={"bad": ["RECONSUME_LATER", "RECONSUME_LATER", "CONSUME_SUCCESS"]},
    )
    consumer.delivered(4)
    started = stage.await_rows("concurrent_start", NOISE | {"SEND_MESSAGE_V2"})
    essential = ["HEART_BEAT", "NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    essential += ["QUERY_CONSUMER_OFFSET", "PULL_MESSAGE", "CONSUMER_SEND_MSG_BACK"]
    assert order(started, essential) == order(recorded("concurrent_start"), essential) == essential
    assert not unlike(facts(started), facts(recorded("concurrent_start"), NOISE | {"SEND_MESSAGE_V2"}))

    stage.java.call("push.suspend", name="conc")
    stage.java.call("push.resume", name="conc")
    stage.await_rows("concurrent_suspend_resume")
    consumer.persist()
    stage.await_rows("concurrent_sendback_explicit", frozenset())
    consumer.stop().result(2 * ANSWER_S)
    ended = stage.await_rows("concurrent_shutdown", frozenset())
    assert not unlike(facts(ended, _UNTIL_THEN), facts(recorded("concurrent_shutdown"), frozenset()))


def test_a_transactional_producer_lives_as_recorded(stage: Stage) -> None:
    """G1: each transaction is ended at once; the broker asks for the open one, which is committed then.

    The recorded broker checked before it had noted the ends of the others, and asked for all three;
    this one may do so, too.
    """
    stage.log.taken()
    states = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
    assert stage.java.call("transaction.send", group="FrTxG", topic="FrTx", states=states) == states
    heartbeats = frozenset({"HEART_BEAT"})

    def ends(*, when_asked: bool) -> dict[str, str]:
        """Return how each transaction was ended."""
        commands = [seen.command for seen in stage.log.so_far() if seen.request == "END_TRANSACTION"]
        return {
            each.ext_fields["transactionId"]: each.ext_fields["commitOrRollback"]
            for each in commands
            if each.ext_fields["fromTransactionCheck"] == str(when_asked).lower()
        }

    def is_over() -> bool:
        at_once, when_asked = ends(when_asked=False), ends(when_asked=True)
        left_open = [one for one, how in at_once.items() if how == _UNKNOWN]
        return len(at_once) == len(states) and all(when_asked.get(one) == _COMMIT for one in left_open)

    wait_until(is_over, 2 * ANSWER_S, reason="The end of the open transaction")
    assert sorted(ends(when_asked=False).values()) == sorted((_COMMIT, _ROLLBACK, _UNKNOWN))
    rows = stage.await_rows("transaction", heartbeats)
    essential = ["SEND_MESSAGE_V2", "END_TRANSACTION", "CHECK_TRANSACTION_STATE", "END_TRANSACTION"]
    assert in_turn(rows, essential) == in_turn(recorded("transaction"), essential) == essential
    assert not unlike(facts(rows), facts(recorded("transaction"), NOISE | heartbeats))

    stage.java.submit("transaction.stop", group="FrTxG")
    stage.await_goodbyes()
    of_next_scenario = frozenset({"SEND_MESSAGE_V2"})
    ended = stage.await_rows("transaction_shutdown", of_next_scenario)
    of_checks = {"CHECK_TRANSACTION_STATE", "END_TRANSACTION"}
    wanted = facts(recorded("transaction_shutdown"), of_next_scenario)
    assert not unlike(facts(ended, NOISE | _UNTIL_THEN | of_checks), wanted)


def test_a_pull_consumer_lives_as_recorded(stage: Stage) -> None:
    """A1: DefaultMQPullConsumer, request by request: a pull, the group's offset, no match,
    an offset beyond the end.
    """
    for queue_id in (0, 1):
        stage.put("FrA", queue_id, 20)
    stage.log.taken()
    stage.java.call("pull.start", name="pull", group="FrPullG", topic="FrA")
    for queue_id in (0, 1):
        of_queue = {"name": "pull", "queue": queue_of("FrA", queue_id)}
        assert stage.java.call("pull.pull", **of_queue, pulls=[["*", 0]]) == ["FOUND"]
        assert stage.java.call("pull.committed", **of_queue) == 0
        others = stage.java.call("pull.pull", **of_queue, pulls=[["TagNone", 0], ["*", 1000]])
        assert others == ["NO_MATCHED_MSG", "OFFSET_ILLEGAL"]
    rows = stage.await_rows("pullconsumer", frozenset())
    asked = PULLS | {"QUERY_CONSUMER_OFFSET"}
    assert not unlike(facts(rows), facts(recorded("pullconsumer")))
    assert [row for row in rows if row[1] in asked] == [r for r in recorded("pullconsumer") if r[1] in asked]

    stage.java.submit("pull.stop", name="pull")
    stage.await_goodbyes()
    stage.await_rows("pullconsumer_shutdown")


def test_a_lite_pull_consumer_of_assigned_queues_lives_as_recorded(stage: Stage) -> None:
    """A1, F6: no rebalance: the offset is requested at once; a seek requests the bounds."""
    java, of_queue = stage.java, {"name": "assign", "queue": queue_of("FrA")}
    stage.put("FrA", 0, 20)
    stage.log.taken()
    began_s = time.monotonic()
    java.call("lite.start", name="assign", group="FrAssignG", assign=[queue_of("FrA")])
    java.call("lite.poll", name="assign", count=20, timeoutMillis=_POLL_MILLIS)
    java.call("lite.seek", **of_queue, to="5")
    java.call("lite.poll", name="assign", count=5, timeoutMillis=_POLL_MILLIS)
    rows = stage.await_rows("litepull_assign", frozenset())
    essential = ["GET_ROUTEINFO_BY_TOPIC", "QUERY_CONSUMER_OFFSET", "LITE_PULL_MESSAGE"]
    essential += ["GET_MIN_OFFSET", "GET_MAX_OFFSET"]
    assert order(rows, essential) == order(recorded("litepull_assign"), essential) == essential
    assert not unlike(facts(rows), facts(recorded("litepull_assign")))

    java.call("lite.commit", name="assign")
    so_far = {seen.request for seen in stage.log.so_far()}
    if time.monotonic() - began_s < _FIRST_PERSIST_S:
        assert "UPDATE_CONSUMER_OFFSET" not in so_far  # golden fact 14
    java.submit("lite.stop", name="assign")
    stage.await_goodbyes()
    ended = stage.await_rows("litepull_assign_shutdown", PULLS)
    assert not unlike(facts(ended, _UNTIL_THEN), facts(recorded("litepull_assign_shutdown"), PULLS))


def test_a_member_with_short_heartbeats_lives_as_recorded(stage: Stage) -> None:
    """B1: once the broker has confirmed them, a heartbeat has the
    fingerprint in place of the subscriptions.
    """
    stage.put("FrA", 1, TAGS="TagB")
    stage.log.taken()
    consumer = stage.push("hb", "FrHbG", "FrA", tags="TagB", useHeartbeatV2=True)
    stage.java.call("push.rebalance", name="hb")
    consumer.delivered(1)
    wait_until(lambda: not stage.heartbeats("FrHbG")[-1].consumers[0].subscriptions, 2 * ANSWER_S)
    heartbeats = stage.heartbeats("FrHbG")
    assert heartbeats[0].consumers[0].subscriptions
    assert {heartbeat.fingerprint for heartbeat in heartbeats} == {-1736518207}  # as in frame 97
    consumer.persist()
    consumer.stop()
    stage.await_goodbyes()
    of_retries = frozenset({"%RETRY%FrHbG"})
    rows = stage.await_rows("heartbeat_v2", of_retries)
    essential = ["HEART_BEAT", "NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    essential += ["QUERY_CONSUMER_OFFSET", "PULL_MESSAGE", "UPDATE_CONSUMER_OFFSET", "UNREGISTER_CLIENT"]
    assert order(rows, essential) == order(recorded("heartbeat_v2"), essential) == essential
    without = NOISE | of_retries
    assert not unlike(facts(rows, without), facts(recorded("heartbeat_v2"), without))


def test_a_member_in_a_namespace_lives_as_recorded(stage: Stage) -> None:
    """A6: one of version 2 is sent beside the bare names, one of version 1 is part of them."""
    stage.put("FrA", 1, TAGS="TagB")
    stage.log.taken()
    consumer = stage.push("ns", "FrNsG", "FrA", tags="TagB", isOrderly=True, namespaceV2="ns1")
    consumer.delivered(1)
    consumer.persist()
    bystander = stage.push("ns1", "FrNsG1", "FrA", isOrderly=True, namespace="inst1")

    def routes() -> list[Row]:
        return [row for row in observed(stage.log.so_far()) if "inst1" in str(row[2])]

    wanted = set(recorded("namespace_v1"))
    wait_until(lambda: wanted <= set(routes()), 2 * ANSWER_S)
    assert set(routes()) == wanted
    asked = [seen.command for seen in stage.log.so_far() if seen.path.startswith("client")]
    of_member = [
        each.ext_fields for each in asked if "FrNsG'" in f"{each.ext_fields}" or b'"FrNsG"' in each.body
    ]
    assert {(fields["ns"], fields["nsd"]) for fields in of_member} == {("ns1", "true")}
    consumer.stop()
    stage.await_goodbyes()
    without = frozenset({"SEND_MESSAGE_V2", "%RETRY%FrNsG"})
    rows = stage.await_rows("namespace_v2", without)
    essential = ["HEART_BEAT", "NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    essential += ["LOCK_BATCH_MQ", "QUERY_CONSUMER_OFFSET", "PULL_MESSAGE", "UNLOCK_BATCH_MQ"]
    essential += ["UNREGISTER_CLIENT"]
    assert order(rows, essential) == order(recorded("namespace_v2"), essential) == essential
    assert not unlike(facts(rows, NOISE | without), facts(recorded("namespace_v2"), NOISE | without))
    # It has no route, and so no broker to unregister from.
    bystander.stop()


def test_a_broadcasting_member_lives_as_recorded(stage: Stage) -> None:
    """B7: no list of members, no offsets at the broker, one pull after the other."""
    stage.log.taken()
    consumer = stage.push("bcast", "FrBcastG", "FrBcast", isBroadcasting=True)
    wait_until(lambda: set(consumer.queues("FrBcast")) == {0, 1}, 2 * ANSWER_S)
    stage.put("FrBcast", 0)
    consumer.delivered(1)
    rows = observed(stage.log.taken())
    names = {row[1] for row in rows}

    assert names <= {row[1] for row in recorded("broadcast")} | {"NOTIFY_CONSUMER_IDS_CHANGED"}
    consumer.stop().result(2 * ANSWER_S)
    ended = stage.await_rows("broadcast_shutdown")
    assert not unlike(facts(ended, NOISE | _UNTIL_THEN), facts(recorded("broadcast_shutdown")))


def test_a_sql92_subscriber_lives_as_recorded(stage: Stage) -> None:
    """A4: the expression is checked; a bad one ends the start.

    As recorded it is checked before the first heartbeat,
    but a timer sends that one where a start takes over a second.
    """
    stage.put("FrSql", 0, color="red", n="1")
    stage.put("FrSql", 1, color="blue", n="7")
    stage.log.taken()
    consumer = stage.push("sql", "FrSqlG", "FrSql", sql="n > 5")
    consumer.delivered(1)
    passed = ("client->broker", "PULL_MESSAGE", "FrSql", 20)
    # Else the other queue may not have been pulled when the consumer stops.
    wait_until(
        lambda: passed in observed(stage.log.so_far()), ANSWER_S, reason="The message that does not match"
    )
    consumer.persist()
    consumer.stop().result(2 * ANSWER_S)
    rows = stage.await_rows("sql92", NOISE | {"SEND_MESSAGE_V2"})
    essential = ["HEART_BEAT", "NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    essential += ["QUERY_CONSUMER_OFFSET", "PULL_MESSAGE", "UNREGISTER_CLIENT"]
    assert order(rows, essential) == order(recorded("sql92"), essential) == essential
    checked = ["CHECK_CLIENT_CONFIG", "UNREGISTER_CLIENT"]
    assert order(rows, checked) == order(recorded("sql92"), checked) == checked

    with pytest.raises(JavaError, match="CODE: 23"):
        stage.push("sql-bad", "FrSqlG2", "FrSql", sql="n > > 5")
    bad = stage.await_rows("sql92_bad_expression", NOISE | {"HEART_BEAT", "UNREGISTER_CLIENT"})
    assert ("client->broker", "CHECK_CLIENT_CONFIG", None, 23) in bad


def test_producers_say_goodbye_as_recorded(stage: Stage) -> None:
    """G1: the producer's group and the client's internal one are unregistered."""
    stage.send("sync")
    stage.log.taken()
    stage.java.call("producer.stop", group=PRODUCER)
    rows = stage.await_rows("producer_shutdown")
    assert not unlike(facts(rows), facts(recorded("producer_shutdown")))


def test_a_reset_is_obeyed_as_recorded(reset_story: Future[tuple[list[Row], list[Row]]]) -> None:
    """F4: as configured, the broker answers the next pull with 21, or notifies the members at once."""
    server_side, client_side = reset_story.result(8 * ANSWER_S)

    told = ["INVOKE_BROKER_TO_RESET_OFFSET", "UNLOCK_BATCH_MQ", "LOCK_BATCH_MQ", "QUERY_CONSUMER_OFFSET"]
    of_reset = recorded("reset_server_side")
    start = next(at for at, row in enumerate(of_reset) if row[1] == told[0])
    assert in_turn(of_reset[start:], told) == in_turn(server_side, told) == told
    assert ("client->broker", "PULL_MESSAGE", "FrReset", 21) in server_side

    pushed = ["UPDATE_BROKER_CONFIG", "INVOKE_BROKER_TO_RESET_OFFSET", "RESET_CONSUMER_CLIENT_OFFSET"]
    assert order(client_side, pushed) == order(recorded("reset_client_side_push"), pushed) == pushed
    assert ("broker->client", "RESET_CONSUMER_CLIENT_OFFSET", "FrReset", ONEWAY) in client_side


def test_an_idle_orderly_member_does_what_was_recorded(
    reset_story: Future[tuple[list[Row], list[Row]]],
) -> None:
    """C2, B1, F1: the requests of its timers were recorded with another group;
    their order depends on the periods.

    Of the retry topic only the pull: its offset and its route were sent
    and requested later than this member lives.
    """
    lived = {row for rows in reset_story.result(8 * ANSWER_S) for row in rows}
    periodic = {
        (path, request, topic and topic.replace("FrOrder", "FrReset"), answer)
        for path, request, topic, answer in recorded("orderly_periodic")
        if topic != "%RETRY%FrOrderG" or request in PULLS
    }
    assert len(periodic) == 7
    assert periodic <= lived
