"""Orders produced without end, keyed and in sequence, through every fault of the brokers."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from types import TracebackType
from typing import NamedTuple, Self

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import select_by_hash
from tests.helpers.orders import STEPS, Orders

_OPEN_ORDERS = 20
"""Open orders of one broker; their steps are interleaved."""
_RETRY_S = 0.2


class OrderFlow:
    """Sends orders of five steps, those of each broker on a thread; a context manager.

    An order's queue is chosen by its id among *all* queues, those of a broker that is away
    included: its steps wait for that broker, as an order must. A send whose outcome is unknown is
    repeated, so a step may be stored twice.
    """

    def __init__(self, name_servers: str, topic: str, *, per_second: float, is_keyed: bool = False) -> None:
        """Prepare; entered, it sends.

        Args:
            name_servers: Of the cluster.
            topic: Exists.
            per_second: Messages to each broker.
            is_keyed: Leave the choice of the queue to the producer, by sharding key. All queues of the topic
                must be one broker's: where the route loses a broker, keys move to the others, as with Java.
        """
        self._is_keyed = is_keyed
        self._producer = Producer(name_servers, "orders-producer", send_timeout_s=10.0)
        self._topic = topic
        self._queues = sorted(self._producer.queues(topic))
        self._pause_s = 1 / per_second
        self._ending = threading.Event()
        self._gates = {name: threading.Lock() for name in self._broker_names}
        """Held while a message to the broker is under way."""
        self._sent: dict[str, list[str]] = defaultdict(list)
        self._numbers = {name: itertools.count(1) for name in self._broker_names}
        self._threads = [
            threading.Thread(target=self._run, args=(name,), name=f"orders-{name}")
            for name in self._broker_names
        ]

    @property
    def queues(self) -> Sequence[MessageQueue]:
        """All queues of the topic."""
        return self._queues

    @property
    def sent(self) -> Orders:
        """The steps of every order so far, as they should be stored."""
        return self._sent

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> None:
        """Send the missing steps of open orders, waiting for brokers that are away, then end. Idempotent."""
        self._ending.set()
        for thread in self._threads:
            thread.join()
        self._producer.close()

    def paused(self, broker_name: str) -> threading.Lock:
        """Return the lock to hold while nothing may be sent to a broker."""
        return self._gates[broker_name]

    @property
    def _broker_names(self) -> list[str]:
        return sorted({queue.broker_name for queue in self._queues})

    def _run(self, broker_name: str) -> None:
        under_way: deque[tuple[str, MessageQueue, int]] = deque()
        while under_way or not self._ending.is_set():
            if len(under_way) < _OPEN_ORDERS and not self._ending.is_set():
                under_way.append((*self._new_order(broker_name), 0))
            order_id, queue, at = under_way.popleft()
            with self._gates[broker_name]:
                self._send(order_id, STEPS[at], queue)
            if at + 1 < len(STEPS):
                under_way.append((order_id, queue, at + 1))
            self._ending.wait(self._pause_s)

    def _new_order(self, broker_name: str) -> tuple[str, MessageQueue]:
        while True:
            order_id = f"{self._topic}-{broker_name}-{next(self._numbers[broker_name])}"
            queue = self._queues[select_by_hash(order_id, len(self._queues))]
            if queue.broker_name == broker_name:
                return order_id, queue

    def _send(self, order_id: str, step: str, queue: MessageQueue) -> None:
        self._sent[order_id].append(step)
        message = Message(
            topic=self._topic, body=f"{order_id}:{step}".encode(), properties={"KEYS": order_id}
        )
        pause = threading.Event()
        while True:
            try:
                if self._is_keyed:
                    self._producer.send(message, sharding_key=order_id)
                else:
                    self._producer.send(message, queue=queue)
            except RocketMQError:
                pause.wait(_RETRY_S)
            else:
                return


class Step(NamedTuple):
    """A message of an order and its place."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    order_id: str
    step: str


def stored_orders(
    broker_addresses: Mapping[str, str], queues: Sequence[MessageQueue]
) -> tuple[dict[str, list[str]], dict[MessageQueue, int]]:
    """Return what the brokers hold: the steps of each order, in the order of its queue,
    and the end of each queue.
    """
    steps, ends = stored_steps(broker_addresses, queues)
    orders: dict[str, list[str]] = defaultdict(list)
    for step in steps:
        orders[step.order_id].append(step.step)
    return orders, ends


def stored_steps(
    broker_addresses: Mapping[str, str], queues: Sequence[MessageQueue]
) -> tuple[list[Step], dict[MessageQueue, int]]:
    """Return all messages of queues, in their order, and the end of each queue."""
    steps: list[Step] = []
    ends: dict[MessageQueue, int] = {}
    with ChannelPool(SystemClock()) as pool:
        client = BrokerClient(pool, SystemClock(), request_timeout_s=60.0)
        for queue in queues:
            address = broker_addresses[queue.broker_name]
            ends[queue] = client.max_offset(address, queue)
            at = 0
            while at < ends[queue]:
                pulled = client.pull(
                    address, PullRequest(consumer_group="orders-check", queue=queue, queue_offset=at)
                )
                at = pulled.next_begin_offset
                for message in decode_messages(pulled.body, queue.broker_name):
                    order_id, _, step = message.body.decode().partition(":")
                    steps.append(Step(*queue, message.queue_offset, order_id, step))
    return steps, ends


def not_as_sent(sent: Orders, stored: Orders, lost: Collection[Step] = ()) -> list[str]:
    """Return orders whose stored steps, without repetitions, differ from those that were sent.

    A broker that ``lost`` steps with its tail need not have them.
    """
    excused = {(step.order_id, step.step) for step in lost}

    def left(order_id: str, steps: Sequence[str]) -> list[str]:
        found = set(stored.get(order_id, ()))
        return [step for step in steps if step in found or (order_id, step) not in excused]

    return [
        f"{order_id}: sent {list(steps)}, stored {list(stored.get(order_id, ()))}"
        for order_id, steps in sent.items()
        if [step for step, _ in groupby(stored.get(order_id, ()))] != left(order_id, steps)
    ]
