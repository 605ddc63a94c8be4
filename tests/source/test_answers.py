"""Planner, tasks and writes react to each answer of a broker as docs/answers.md says (A8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.faults import FaultScript
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.answers import Reaction, Use, reaction
from pyspark_rocketmq.errors import BrokerError, DataLoss, RocketMQError, RowNotSent
from pyspark_rocketmq.group.broker_offsets import RemoteBrokerOffsets
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.positions import EARLIEST, LATEST, QueuePositions
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import ClusterView
from pyspark_rocketmq.source.message_lookup import Found, MessageLookup
from pyspark_rocketmq.source.planner import MicroBatchPlanner
from pyspark_rocketmq.source.progress import GroupProgress
from pyspark_rocketmq.source.ranges import Offset, QueuePartition, offset_to_plan
from pyspark_rocketmq.source.reader import read_queue
from pyspark_rocketmq.source.start_positions import OptionPositions
from pyspark_rocketmq.stored_values import LastMessage, RememberedMessages
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.responses import error_of
from scripts.pages import answers_page
from tests.helpers.fake_clock import FakeClock
from tests.helpers.ownership import OneMember
from tests.helpers.partitions import changed, partition_of
from tests.helpers.scripted_server import ScriptedServer
from tests.helpers.wait import PATIENCE_S
from tests.publish.test_sender import Brokers, batch_of, send_all, sender_of, stored_at
from tests.source.conftest import Topics
from tests.source.test_queue_reader import QUEUE, Log

_LASTING = 40
"""How often an answer is given that lasts for a while."""


class Answer(NamedTuple):
    """Answer of a broker in place of doing the work."""

    code: int
    remark: str = "a scripted failure"

    def __str__(self) -> str:
        return f"{self.code} {self.remark}"


ANSWERS = [
    *(Answer(int(code)) for code in ResponseCode if code is not ResponseCode.SUCCESS),
    Answer(4711),
    Answer(1, "org.apache.rocketmq.acl.common.AclException: no"),
    Answer(1, "The broker does not support consumer to filter message by SQL92"),
    Answer(1, "check signature failed."),
    Answer(1, "queueId[3] is illegal, topic:[t] topicConfig.readQueueNums:[2] consumer:[c]"),
    Answer(1, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"),
    Answer(1, "in-sync replicas not enough"),
    Answer(16, "subscription group no permission, g"),
]
every_answer = pytest.mark.parametrize("answer", ANSWERS, ids=str)
contact = pytest.mark.parametrize("has_worked", [False, True], ids=["first contact", "has worked"])


def test_the_page_is_what_the_code_says() -> None:
    """A8"""
    page = Path(__file__).parents[2] / "docs/answers.md"

    assert page.read_text(encoding="utf-8") == answers_page(), "run make docs"


class Group:
    """A consumer group on the simulator, planned without Spark; pauses move its clock."""

    def __init__(self, sim: SimCluster, topic: str, pool: ChannelPool, start: QueuePositions) -> None:
        self.clock = FakeClock()
        self.queue = MessageQueue(topic, "broker-a", 0)
        self._pool = pool
        self._start = start
        self._options = ReadOptions.parse(
            {
                "nameServers": sim.name_servers,
                "topic": topic,
                "consumerGroup": f"g-{topic}",
                "offsetStore": "delta:/unused",
                "requestTimeoutMs": f"{PATIENCE_S * 1000:.0f}",
            }
        )
        self.store = MemoryOffsetStore("test", clock=self.clock)
        self.ownership = OneMember(lambda: [self.queue])
        self.lookup = MessageLookup(self._options, pool, self.clock)
        self.address = BrokerAddress(sim.broker_addresses["broker-a"])
        self.restart()

    def restart(self) -> None:
        """A new process; the rows stay."""
        view = ClusterView(self._options, self._pool, self.clock)
        progress = GroupProgress(
            consumer_group="g",
            client_id="me",
            store=self.store,
            ownership=self.ownership,
            starts=OptionPositions.of(self._options, self._pool, self.clock, self._start).starts,
            clock=self.clock,
            broker_offsets=RemoteBrokerOffsets.of(self._options, self.clock, pool=self._pool),
            message_lookup=MessageLookup(self._options, self._pool, self.clock),
        )
        self.planner = MicroBatchPlanner(self._options, view, progress, self.clock, self.clock.advance)
        self.offset: Offset | None = None

    def next(self) -> tuple[int, int] | None:
        """The next range; None without one."""
        if self.offset is None:
            self.offset = self.planner.initial()
        latest = self.planner.latest(self.offset)
        if latest == self.offset:
            self.clock.advance(3.0)
            return None
        self.offset = latest
        self.planner.runnable(latest)
        [planned] = offset_to_plan(latest)[1]
        return planned.start, planned.end

    def consume(self) -> None:
        """Plan and commit what is there."""
        planned = self.next()
        assert planned is not None
        end = planned[1]
        found = self.lookup.look({self.queue: end - 1}, {"broker-a": self.address})[self.queue]
        assert isinstance(found, Found)
        assert isinstance(found.message, LastMessage)
        state = QueueState(end, self._epoch(), last_message=RememberedMessages.of(found.message))
        self.store.commit("g", [QueueCommit(queue=self.queue, state=state)], query_id="q", batch_id=1)

    def _epoch(self) -> int:
        return self.store.read("g")[self.queue].epoch


def error_in(action: Callable[[], object]) -> RocketMQError | None:
    """Return the error that the action raised."""
    try:
        action()
    except RocketMQError as error:
        return error
    return None


@pytest.fixture
def log() -> Log:
    """A broker's queue."""
    return Log()


@pytest.fixture
def partition(log: Log) -> Iterator[QueuePartition]:
    """Offsets 10 to 60 of ``log``, pulled one after another."""
    with ScriptedServer(log) as server:
        yield partition_of(QueueRange(QUEUE, QueueState(10), 60), server.address, pulls_in_flight=1)
        close_idle_connections()


class World(NamedTuple):
    """The simulator, connections to it, and its script."""

    topics: Topics
    pool: ChannelPool
    faults: FaultScript


@pytest.fixture
def world(topics: Topics) -> Iterator[World]:
    """The simulator; its script is empty again in the end."""
    with ChannelPool(SystemClock()) as pool:
        yield World(topics, pool, topics.sim.faults)
    topics.sim.faults.clear()


def given(faults: FaultScript, use: Use, answer: Answer, times: int) -> None:
    faults.clear()
    faults.add(
        "answer-code", on=int(use.request), times=times, response_code=answer.code, remark=answer.remark
    )


def group_before(use: Use, topics: Topics, pool: ChannelPool, *, has_worked: bool) -> Group:
    """A group whose next plan sends ``use`` to a broker with a message for it."""
    topic = topics.make(2)
    group = Group(topics.sim, topic, pool, LATEST if use is Use.LOOK and not has_worked else EARLIEST)
    if has_worked:
        group.consume()
        if use is Use.BOUNDS:
            pass
        elif use is Use.LOOK:
            group.restart()
        else:
            group.ownership.give(group.queue)
        topics.put(topic, 0, 1)
    return group


def goes_on(group: Group, topics: Topics) -> bool:
    """Whether a message that comes now is planned in the end."""
    topics.put(group.queue.topic, 0, 1)
    return any(group.next() is not None for _ in range(3))


@every_answer
@contact
@pytest.mark.parametrize("use", [Use.BOUNDS, Use.GROUP_OFFSETS, Use.LOOK], ids=lambda use: use.name)
def test_a_plan_does_what_the_page_says(world: World, use: Use, has_worked: bool, answer: Answer) -> None:
    """A8: at an answer that is given once, and at one that is given for a while."""
    topics, pool, faults = world
    expected = reaction(use, answer.code, answer.remark, has_worked=has_worked)
    if expected in {Reaction.LEFT_OUT, Reaction.NO_ERROR}:
        return  # these have tests of their own: deleted topics, pulls that bring nothing
    for times in (1, _LASTING):
        group = group_before(use, topics, pool, has_worked=has_worked)
        given(faults, use, answer, times)
        is_error = expected is Reaction.ENDS or (expected is Reaction.FEW_TRIES and times > 1)

        error = error_in(lambda: [group.next() for _ in range(3)])  # noqa: B023 - called in this turn

        assert (error is not None) == is_error, f"{answer} {times} times: {error}"
        faults.clear()
        assert error is not None or goes_on(group, topics)


def test_a_topic_that_a_broker_refuses_holds_up_none_of_its_other_topics(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A8, D3: in a group; the topic is asked for again after 3 s."""
    topics, pool, _ = world
    refused, other = topics.make(2), topics.make(3)
    clock, asked = FakeClock(), list[str]()
    options = {"nameServers": topics.sim.name_servers, "topics": f"{refused},{other}", "consumerGroup": "g"}
    view = ClusterView(ReadOptions.parse(options | {"offsetStore": "delta:/unused"}), pool, clock)
    assert {queue.topic for queue in view.snapshot().bounds} == {refused, other}
    stats = BrokerClient.topic_stats

    def answer(brokers: BrokerClient, address: BrokerAddress, topic: str, **more: str) -> Any:
        asked.append(topic)
        if topic == refused:
            raise BrokerError(1, "a scripted failure")
        return stats(brokers, address, topic, **more)

    with monkeypatch.context() as patch:
        patch.setattr(BrokerClient, "topic_stats", answer)
        for _ in range(2):
            snapshot = view.snapshot()
            assert {queue.topic for queue in snapshot.bounds} == {other}
            assert isinstance(snapshot.unreachable["broker-a"], BrokerError)
    assert asked.count(refused) == 1

    clock.advance(3.0)
    assert {queue.topic for queue in view.snapshot().bounds} == {refused, other}


@every_answer
@contact
@pytest.mark.parametrize("use", [Use.GROUP_TASK, Use.TASK], ids=lambda use: use.name)
def test_a_task_does_what_the_page_says(
    partition: QueuePartition,
    log: Log,
    use: Use,
    has_worked: bool,
    answer: Answer,
) -> None:
    """A8: at an answer that is given once, and at one that is given for a while."""
    expected = reaction(use, answer.code, answer.remark, has_worked=has_worked)
    if expected is Reaction.NO_ERROR:
        return
    log.refusal, log.remark = answer.code, answer.remark
    for times in (1, _LASTING):
        left = iter(range(times))
        log.is_busy = lambda _: next(left, None) is not None  # noqa: B023 - called in this turn
        part = changed(
            partition,
            is_group_read=use is Use.GROUP_TASK,
            has_worked=has_worked,
            retry_timeout_s=PATIENCE_S if times == 1 else 0.01,
        )
        is_error = expected in {Reaction.ENDS, Reaction.LOSS} or (expected is Reaction.TRIES and times > 1)

        error = error_in(lambda: list(read_queue(part)))  # noqa: B023 - called in this turn

        assert (error is not None) == is_error, f"{answer} {times} times: {error}"
        assert isinstance(error, DataLoss) == (expected is Reaction.LOSS)


@every_answer
@contact
def test_a_write_does_what_the_page_says(has_worked: bool, answer: Answer) -> None:
    """A8: at an answer that is given once, and at one that is given for a while."""
    expected = reaction(Use.SEND, answer.code, answer.remark, has_worked=has_worked)
    if expected is Reaction.STORED or answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return  # decided by the producer, before a write sees it
    request = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2)
    error = error_of(request, RemotingCommand(code=answer.code, remark=answer.remark), "broker-a:1")
    for times in (1, 5, 10_000):
        brokers = Brokers(FakeClock())
        sender = sender_of(brokers)
        if has_worked:
            send_all(sender, batch_of(0))
        left = iter(range(times))
        brokers.script = lambda queue: stored_at(queue) if next(left, None) is None else error  # noqa: B023
        is_error = (
            expected is Reaction.ENDS
            or (expected is Reaction.FEW_TRIES and times > 1)
            or (expected is Reaction.TRIES and times == 10_000)
        )

        failure = error_in(lambda: send_all(sender, batch_of(1)))  # noqa: B023 - called in this turn

        assert isinstance(failure, RowNotSent) == is_error, f"{answer} {times} times: {failure}"
