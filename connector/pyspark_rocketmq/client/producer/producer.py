"""A producer: routes, queue choice, ids and compression around the broker calls.

Order. A message with a sharding key or a given queue is sent only to that queue. Another queue would break
the key's order, so an error is raised and the caller decides. Messages are stored in the order of sends only
if each send is answered before the next one for that queue begins, as in the methods that await answers.

A key's queue depends on the number of queues. So create a topic before its first ordered message. Otherwise
each broker creates the topic by itself, when it gets its first message. A producer that found no topic sends
as if all brokers had it, as Java's does, until its route expires. After that it uses only the brokers that
have the topic by then, and so do producers that start later.

Restarts. A topic's first route has the brokers that any name server lists. The last known route stays in use
while no living broker has the topic, so that no key moves when a broker or a name server restarts. Sends to a
broker that is away fail until it is back; they can be tried again.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Final, NoReturn

from pyspark_rocketmq.client.broker import BrokerClient, OnSend
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool, ConnectionSettings
from pyspark_rocketmq.client.producer.attempts import (
    AsyncAttempts,
    FaultTable,
    SendOutcome,
    next_outcome,
    round_robin_queue,
    route_to_create,
    select_message_queue_by_hash,
)
from pyspark_rocketmq.client.transport import Closing, local_ip, renew_in_children
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.errors import (
    BrokerError,
    ConnectFailed,
    LocalProtocolError,
    NoWritableQueue,
    RocketMQError,
    TopicAway,
    TopicNotFound,
    TransportError,
)
from pyspark_rocketmq.model import MAX_MESSAGE_BYTES, Message, MessageQueue, TopicRoute
from pyspark_rocketmq.options.connection import namespace_of, parsed_addresses
from pyspark_rocketmq.wire.codes import RETRIED_BY_PRODUCERS
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.message_ids import unique_key
from pyspark_rocketmq.wire.properties import UNIQ_KEY, WAIT
from pyspark_rocketmq.wire.requests.send import (
    AUTO_CREATE_TOPIC,
    Batch,
    EncodedBatch,
    SendResult,
    SendSettings,
    ShardingKey,
    check_body,
    settings_of,
    split_batch,
)

_TIME_AND_COUNTER_DIGITS = 12
_MORE_THAN_A_MONTH_S = 32 * 86_400.0
"""Seconds to add to the start of a month to reach a moment of the next month."""

_SIGNS_OF_AN_OLD_ROUTE: Final = (TransportError, TopicNotFound)
_ORDERED_CHUNK: Final = 4096
"""Number of messages that ``send_ordered`` collects before it forms batches from them."""


class UniqueKeys:
    """Creates values of UNIQ_KEY, unique among all producers for a month. Shared by any number of threads.

    Source: RocketMQ 5.3.3 ``MessageClientIDSetter``.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._month = (0.0, 0.0)
        """Start of the current month and of the next one, in seconds since the epoch."""
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``, and at the start: choose a new prefix for this process's keys."""
        # Java takes the class loader's hash, which also distinguishes two producers of one process.
        hash_code = random.SystemRandom().getrandbits(32)
        self._maker = unique_key(local_ip(), os.getpid(), hash_code, 0, 0)[:-_TIME_AND_COUNTER_DIGITS]
        self._counter = itertools.count()

    def next(self) -> str:
        """Return a new key."""
        now_s = self._clock.now_s()
        begin_s, end_s = self._month
        if not begin_s <= now_s < end_s:
            begin_s = month_start_s(now_s)
            self._month = (begin_s, month_start_s(begin_s + _MORE_THAN_A_MONTH_S))
        since_ms = int((now_s - begin_s) * 1000)
        return f"{self._maker}{since_ms & 0xFFFFFFFF:08X}{next(self._counter) & 0xFFFF:04X}"


def month_start_s(now_s: float) -> float:
    """Return the first instant of the current local month, in seconds since the epoch."""
    local = time.localtime(now_s)
    return time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))


class Producer(Closing):
    """Sends messages to the topics of a cluster. Shared by any number of threads.

    Source: RocketMQ 5.3.3 ``DefaultMQProducerImpl``.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        producer_group: str,
        *,
        send_timeout_s: float = 3.0,
        retry_times_when_send_failed: int = 2,
        retry_times_when_send_async_failed: int = 2,
        compress_over_bytes: int = 4096,
        compression_type: CompressionType | None = CompressionType.ZLIB,
        max_message_size: int = MAX_MESSAGE_BYTES,
        send_latency_fault_enable: bool = False,
        settings: ConnectionSettings | None = None,
        pool: ChannelPool | None = None,
        clock: Clock | None = None,
        namespace: str = "",
        batch_send: bool = True,
    ) -> None:
        """Prepare to send; nothing is connected yet.

        Args:
            name_servers: ``host:port`` of each, or all of them in one text, separated by ``;``; each may have
                the prefix ``http://``.
            producer_group: Name shown to brokers.
            send_timeout_s: Time-out of one send with all its attempts.
            retry_times_when_send_failed: Further attempts of a send without a key or queue.
            retry_times_when_send_async_failed: Further attempts of :meth:`send_async`.
            compress_over_bytes: Bodies of at least this size are compressed, except in batches.
            compression_type: Compression of bodies, or None for none; Java clients before 5.0 read only zlib.
            max_message_size: The largest body in bytes, before it is compressed. By default brokers take
                4 MiB as sent (their ``maxMessageSize``), and readers of this package 128 MiB.
            send_latency_fault_enable: Whether messages without a key or queue avoid brokers that were slow or
                failed, see :class:`FaultTable`.
            settings: Credentials and TLS of the producer's own connections, ``namespace_v2`` and
                ``broker_addresses`` (docs/how-to/clouds.md).
            pool: Connections to use instead of the producer's own; they stay open when the producer is
                closed. With a pool, ``namespace`` is used as given.
            clock: The system's if not given.
            namespace: Namespace of the topics and of the producer group, which are named without it
                everywhere. By default it is that of a host ``MQ_INST_…`` among ``name_servers``, or none if
                ``namespace_v2`` is set.
            batch_send: Whether :meth:`send_ordered` forms batches; False for clusters that accept none.

        Raises:
            OptionError: If an address or a file for TLS cannot be used, or if ``namespace`` and
                ``namespace_v2`` are both given.
        """
        self._clock = clock or SystemClock()
        self._own_pool = None if pool else (settings or ConnectionSettings()).open_pool(self._clock)
        shared = pool or self._own_pool
        assert shared is not None
        addresses = parsed_addresses(name_servers)
        if pool is None:
            namespace = namespace_of(
                namespace, addresses, None if settings is None else settings.namespace_v2
            )
        self._name_servers = NameServerClient(
            addresses,
            shared,
            self._clock,
            send_timeout_s,
            namespace=namespace,
        )
        self._brokers = BrokerClient(shared, self._clock, send_timeout_s, namespace=namespace)
        self._send_settings = SendSettings(producer_group=producer_group, max_message_bytes=max_message_size)
        self._send_timeout_s = send_timeout_s
        self._attempts = 1 + retry_times_when_send_failed
        self._async_retries = retry_times_when_send_async_failed
        self._repeats = _thread_for_repeats()
        self._batch_send = batch_send
        self._compress_over_bytes = compress_over_bytes
        self._compression_type = compression_type
        self._faults = FaultTable(self._clock) if send_latency_fault_enable else None
        self._unique_keys = UniqueKeys(self._clock)
        # As in Java, producers do not all begin with the first queue.
        self._turns = itertools.count(random.SystemRandom().getrandbits(16))
        self._is_closed = False
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: use a new thread for repeated attempts; the parent keeps its sends.

        Connections and message ids have a ``renew`` of their own.
        """
        if not self._is_closed:
            self._repeats = _thread_for_repeats()

    def queues(
        self, topic: str, *, may_create: bool = True, afresh: bool = False
    ) -> tuple[MessageQueue, ...]:
        """Return the topic's queues to send to; their order decides which queue a sharding key gets.

        If name servers do not answer or no longer list the topic, the last known route is used.

        Args:
            topic: The topic; it need not exist yet.
            may_create: Whether to return the queues that brokers will create, for a topic that no name server
                lists and whose route this producer never had. If False, such a topic raises TopicNotFound.
            afresh: Whether to ask the name server even if the known route is young.

        Raises:
            TopicNotFound: If no name server lists the topic and this producer never had its route, and
                brokers do not create topics or ``may_create`` is False.
            NoWritableQueue: If no living master has a queue to write to.
            RocketMQError: If this producer never had the topic's route, and no name server answers, or one
                answers with an error.
        """
        if afresh:
            self._name_servers.invalidate(topic)
        return self._publication(topic, self._deadline(), may_create=may_create)[1]

    def route(self, topic: str, *, may_create: bool = True) -> TopicRoute:
        """Return the topic's route; a producer in another process can take it over by :meth:`know`.

        Raises:
            RocketMQError: For the same reasons as :meth:`queues`.
        """
        return self._publication(topic, self._deadline(), may_create=may_create)[0]

    def know(self, topic: str, route: TopicRoute) -> None:
        """Use ``route``, which another process has seen, as if the name server had just sent it."""
        self._name_servers.know(topic, route)

    def avoid(self, broker_name: str) -> None:
        """Avoid a broker for 10 s, as after a failed send.

        Callers use this when the broker did not answer a request that the producer does not see. Without
        ``send_latency_fault_enable`` this does nothing.
        """
        if self._faults is not None:
            self._faults.note(broker_name, 0.0, SendOutcome.UNHEARD)

    def master_of(self, queue: MessageQueue) -> str:
        """Return the address of the master of the queue's broker, to which messages are sent.

        Raises:
            RocketMQError: If no route names a master, or for the same reasons as :meth:`queues`.
        """
        return self._master(self._publication(queue.topic, self._deadline())[0], queue)

    def send(
        self, message: Message, *, sharding_key: ShardingKey | None = None, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored.

        With ``queue`` or ``sharding_key`` there is one attempt, on that queue. Otherwise queues take turns.
        An attempt that gets no answer, or is refused for a reason that may pass, is repeated, on another
        broker if there is one. A repeated message may be stored twice, both times with the same UNIQ_KEY. A
        number as ``sharding_key`` counts as a Java Long, a ``JavaInteger`` as an Integer; negative numbers
        have different hashes in these two types.

        Raises:
            RocketMQError: If no attempt is known to have stored the message. An attempt that got no answer
                may have stored it all the same.
        """
        deadline = self._deadline()
        prepared, settings = self._prepare(message)
        if queue is None and sharding_key is None:
            return self._send_anywhere(prepared, settings, deadline)
        route, chosen = self._chosen(message.topic, sharding_key, queue, deadline)
        try:
            return self._brokers.send(self._master(route, chosen), prepared, chosen, settings, deadline)
        except _SIGNS_OF_AN_OLD_ROUTE as error:
            self._raise_explained(message.topic, error)

    def send_async(
        self,
        message: Message,
        on_result: OnSend,
        *,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Send one message without waiting for its answer; ``on_result`` is called exactly once.

        An attempt without an answer is repeated: with ``queue`` or ``sharding_key`` on the same queue,
        otherwise on another broker if there is one. A repeated message may be stored twice, both times with
        the same UNIQ_KEY. A message that a broker refuses is not sent again. If the outcome is an error, an
        earlier attempt that got no answer may have stored the message all the same. Two messages sent to one
        queue by this method may be stored in either order.

        Raises:
            RocketMQError: If the message is too large, or has no queue or master to go to; then ``on_result``
                is not called.

        Source: ``MQClientAPIImpl.onExceptionImpl``. Java's repeated request keeps the number of the first
        queue, which another broker may not have; here it has the number of its own queue.
        """
        prepared, settings = self._prepare(message)
        deadline = self._deadline()
        route, first = self._chosen(message.topic, sharding_key, queue, deadline)

        def attempt(chosen: MessageQueue, on_outcome: OnSend) -> None:
            on_outcome = self._watching_route(message.topic, on_outcome)
            master = self._master(route, chosen)
            self._brokers.send_async(master, prepared, chosen, settings, on_outcome, deadline=deadline)

        def next_queue(failed: MessageQueue) -> MessageQueue:
            nonlocal route
            route, queues = self._publication(message.topic, deadline)
            if queue is not None or sharding_key is not None:
                return failed
            return self._any_queue(queues, failed.broker_name)

        AsyncAttempts(
            send=attempt,
            next_queue=next_queue,
            note=self._note,
            later=self._later,
            on_result=on_result,
            deadline=deadline,
            retries=self._async_retries,
        ).begin(first)

    def send_oneway(
        self, message: Message, *, sharding_key: ShardingKey | None = None, queue: MessageQueue | None = None
    ) -> None:
        """Send one message without asking for an answer; nothing reports whether it was stored.

        Raises:
            RocketMQError: If it could not be sent.
        """
        prepared, settings = self._prepare(message)
        route, chosen = self._chosen(message.topic, sharding_key, queue, self._deadline())
        self._brokers.send_oneway(self._master(route, chosen), prepared, chosen, settings)

    def send_batch(self, messages: Sequence[Message], queue: MessageQueue) -> SendResult:
        """Send messages to one queue in one request, without compression; there is one attempt.

        Raises:
            LocalProtocolError: If the batch is empty, or larger than ``max_message_size`` (``split_batch``
                splits messages into batches). Also if a message is for another topic, delayed, transactional
                or empty, or has more properties than a message in a batch can have.
            RocketMQError: For the same reasons as :meth:`send`.
        """
        deadline = self._deadline()
        route = self._publication(queue.topic, deadline)[0]
        batch = self._batch(queue, messages)
        try:
            return self._brokers.send_batch(self._master(route, queue), batch, self._send_settings, deadline)
        except _SIGNS_OF_AN_OLD_ROUTE as error:
            self._raise_explained(queue.topic, error)

    def send_batches(
        self, batches: Mapping[MessageQueue, Sequence[Message]]
    ) -> dict[MessageQueue, SendResult | RocketMQError]:
        """Send one batch to each of several queues at the same time; return the outcome of each.

        A batch of one message is sent as a plain message. The call waits for all outcomes, so a queue
        stores the batches of successive calls in order. A batch whose outcome is an error may nevertheless be
        stored, even after this call.
        """
        outcomes: SimpleQueue[tuple[MessageQueue, SendResult | RocketMQError]] = SimpleQueue()

        def keep(queue: MessageQueue, outcome: SendResult | RocketMQError) -> None:
            outcomes.put((queue, outcome))

        for queue, messages in batches.items():
            self._begin(queue, partial(keep, queue), self._send_batch_async, queue, messages)
        return dict(next_outcome(outcomes, self._send_timeout_s) for _ in batches)

    def send_encoded(self, batch: EncodedBatch, on_result: OnSend) -> None:
        """Send a batch that is already encoded, in one attempt, without waiting for the answer.

        ``on_result`` is called exactly once, with the result or any RocketMQError; none is raised here.
        A queue keeps the order of requests only if each is answered before the next one begins.
        """
        self._begin(batch.queue, on_result, self._brokers.send_encoded, batch, self._send_settings)

    def send_as_stored(self, message: Message, queue: MessageQueue, sys_flag: int, on_result: OnSend) -> None:
        """Send a message whose body is already as a broker stores it, in one attempt, without waiting.

        ``on_result`` is called exactly once, with the result or any RocketMQError; none is raised here.

        Args:
            message: The message, with a UNIQ_KEY if it needs one: none is added.
            queue: The queue to send to.
            sys_flag: Bits of ``MessageSysFlag`` for the compression of the body; 0 if it is not compressed.
            on_result: Called with the outcome.
        """
        settings = replace(self._send_settings, sys_flag=sys_flag)
        self._begin(queue, on_result, self._brokers.send_async, message, queue, settings)

    def send_ordered(self, keyed_messages: Iterable[tuple[ShardingKey, Message]]) -> int:
        """Send messages by sharding key, many at a time; return their number.

        Messages of one key keep their order. Messages are sent in chunks of 4,096; in a chunk, batches for
        different queues are sent at the same time.

        Raises:
            RocketMQError: The first failure. All messages of earlier chunks are stored, and some of the
                failed chunk may be.
        """
        messages = iter(keyed_messages)
        sent = 0
        while chunk := list(itertools.islice(messages, _ORDERED_CHUNK)):
            self._send_chunk(chunk)
            sent += len(chunk)
        return sent

    def close(self) -> None:
        """Close the producer's own connections; no attempt is repeated any more. Idempotent."""
        self._is_closed = True
        self._repeats.shutdown(wait=False)
        if self._own_pool is not None:
            self._own_pool.close()

    def _deadline(self) -> Deadline:
        return Deadline.after(self._clock, self._send_timeout_s)

    def _publication(
        self, topic: str, deadline: Deadline, *, may_create: bool = True
    ) -> tuple[TopicRoute, tuple[MessageQueue, ...]]:
        try:
            route = self._name_servers.route(topic, deadline)
        except TopicNotFound as missing:
            if not may_create:
                raise
            route = self._expected_route(topic, missing, deadline)
        queues = route.publish_queues(topic)
        if not queues:
            # Java's producer also asks for the route again at the next call, however young this one is. All
            # name servers are asked: one of them may lack the masters.
            self._name_servers.invalidate(topic, is_doubted=True)
            raise NoWritableQueue(topic)
        return route, queues

    def _expected_route(self, topic: str, missing: TopicNotFound, deadline: Deadline) -> TopicRoute:
        """Return the route that a topic will have when brokers have created it at its first message.

        Raises:
            TopicNotFound: The error ``missing``, if brokers create no topics.
            NoWritableQueue: If no broker that creates topics has a master now.
        """
        try:
            default = self._name_servers.route(AUTO_CREATE_TOPIC, deadline)
        except TopicNotFound:
            raise missing from None
        route = route_to_create(default)
        if not route.publish_queues(topic):
            self._name_servers.invalidate(AUTO_CREATE_TOPIC, is_doubted=True)
            raise NoWritableQueue(topic) from missing
        # Java's producer also uses this route until it expires. Otherwise keys would move as soon as the
        # first broker has created its queues.
        self._name_servers.expect(topic, route)
        return route

    def _chosen(
        self, topic: str, sharding_key: ShardingKey | None, queue: MessageQueue | None, deadline: Deadline
    ) -> tuple[TopicRoute, MessageQueue]:
        if queue is not None:
            _check_topic(topic, queue)
        route, queues = self._publication(topic, deadline)
        if queue is not None:
            return route, queue
        if sharding_key is not None:
            return route, select_message_queue_by_hash(queues, sharding_key)
        return route, self._any_queue(queues)

    def _prepare(self, message: Message) -> tuple[Message, SendSettings]:
        """Return the message with a UNIQ_KEY, compressed if it is large, and the settings to send it with.

        All attempts of one send share both, and therefore the UNIQ_KEY.
        """
        check_body(message.body, f"topic {message.topic}", self._send_settings.max_message_bytes)
        prepared = replace(message, properties=self._with_key(message.properties))
        settings = settings_of(message, self._send_settings)
        if self._compression_type is None or len(message.body) < self._compress_over_bytes:
            return prepared, settings
        body, sys_flag = compress(message.body, self._compression_type)
        if len(body) > self._send_settings.max_message_bytes:
            # A body that cannot be compressed grows a little, perhaps beyond the limit.
            return prepared, settings
        return replace(prepared, body=body), replace(settings, sys_flag=settings.sys_flag | sys_flag)

    def _with_key(self, properties: Mapping[str, str]) -> dict[str, str]:
        return {WAIT: "true", **properties, UNIQ_KEY: properties.get(UNIQ_KEY) or self._unique_keys.next()}

    def _batch(self, queue: MessageQueue, messages: Sequence[Message]) -> Batch:
        keyed = [replace(message, properties=self._with_key(message.properties)) for message in messages]
        return Batch(queue=queue, messages=keyed, properties=self._with_key({}))

    def _send_anywhere(self, message: Message, settings: SendSettings, deadline: Deadline) -> SendResult:
        failed_broker: str | None = None
        for attempt in itertools.count(1):
            route, queues = self._publication(message.topic, deadline)
            queue = self._any_queue(queues, failed_broker)
            begun_s = self._clock.monotonic_s()
            try:
                result = self._brokers.send(self._master(route, queue), message, queue, settings, deadline)
            except (TransportError, BrokerError) as error:
                self._note(queue, begun_s, SendOutcome.of(error))
                is_hopeless = isinstance(error, BrokerError) and error.code not in RETRIED_BY_PRODUCERS
                if is_hopeless or attempt >= self._attempts or deadline.has_passed:
                    self._raise_explained(message.topic, error)
                if isinstance(error, _SIGNS_OF_AN_OLD_ROUTE):
                    self._name_servers.invalidate(message.topic)
                failed_broker = queue.broker_name
            else:
                self._note(queue, begun_s, SendOutcome.ANSWERED)
                return result
        raise AssertionError("count() does not end")

    def _any_queue(self, queues: Sequence[MessageQueue], failed_broker: str | None = None) -> MessageQueue:
        if self._faults is not None:
            queues = self._faults.preferred(queues, failed_broker)
        return round_robin_queue(queues, next(self._turns), failed_broker)

    def _note(self, queue: MessageQueue, begun_s: float, outcome: SendOutcome) -> None:
        if self._faults is not None:
            self._faults.note(queue.broker_name, (self._clock.monotonic_s() - begun_s) * 1000, outcome)

    def _later(self, repeat: Callable[[], None]) -> bool:
        """Call ``repeat`` on another thread, and return True; return False after :meth:`close`.

        Threads that read answers must not wait for a connection.
        """
        try:
            self._repeats.submit(repeat)
        except RuntimeError:
            return False
        return True

    def _begin(
        self, queue: MessageQueue, on_result: OnSend, send: Callable[..., None], *what: object
    ) -> None:
        """Call ``send`` with the address of the queue's master, the arguments ``what`` and a callback.

        The callback passes the outcome to ``on_result``. A RocketMQError of this call is passed to it, too,
        and not raised.
        """
        on_outcome = self._watching_route(queue.topic, on_result)
        try:
            route = self._publication(queue.topic, self._deadline())[0]
            send(self._master(route, queue), *what, on_outcome)
        except RocketMQError as error:
            on_outcome(error)

    def _send_batch_async(
        self, master: str, queue: MessageQueue, messages: Sequence[Message], on_outcome: OnSend
    ) -> None:
        if len(messages) == 1:
            # A batch of one would have no room for the largest body allowed.
            _check_topic(messages[0].topic, queue)
            message, settings = self._prepare(messages[0])
            self._brokers.send_async(master, message, queue, settings, on_outcome)
        else:
            batch = self._batch(queue, messages)
            self._brokers.send_batch_async(master, batch, self._send_settings, on_outcome)

    def _send_chunk(self, chunk: Sequence[tuple[ShardingKey, Message]]) -> None:
        waiting: dict[MessageQueue, list[Message]] = {}
        for sharding_key, message in chunk:
            _, queue = self._chosen(message.topic, sharding_key, None, self._deadline())
            waiting.setdefault(queue, []).append(message)
        rounds = {queue: self._batches(messages) for queue, messages in waiting.items()}
        while rounds:
            batches = {queue: batch for queue, parts in rounds.items() if (batch := next(parts, None))}
            for outcome in self.send_batches(batches).values():
                if isinstance(outcome, RocketMQError):
                    raise outcome
            rounds = {queue: rounds[queue] for queue in batches}

    def _batches(self, messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
        if not self._batch_send:
            return ((message,) for message in messages)
        # A higher limit is for single messages: brokers take batches of 4 MiB by default.
        return split_batch(messages, min(MAX_MESSAGE_BYTES, self._send_settings.max_message_bytes))

    def _master(self, route: TopicRoute, queue: MessageQueue) -> str:
        """Return the address of the queue's master, from the topic's route or else from another one."""
        master = route.master_of(queue.broker_name) or self._name_servers.known_master(queue.broker_name)
        if master is None:
            raise ConnectFailed(
                queue.broker_name,
                f"the route of topic {queue.topic} names no master for this broker; start its master",
            )
        return master

    def _watching_route(self, topic: str, on_result: OnSend) -> OnSend:
        """Wrap ``on_result``: an error that an outdated route may cause also invalidates the route."""

        def on_outcome(outcome: SendResult | RocketMQError) -> None:
            if isinstance(outcome, _SIGNS_OF_AN_OLD_ROUTE):
                self._name_servers.invalidate(topic)
                outcome = self._explained(topic, outcome)
            on_result(outcome)

        return on_outcome

    def _raise_explained(self, topic: str, error: RocketMQError) -> NoReturn:
        """Invalidate the route, and raise the error that :meth:`_explained` returns."""
        self._name_servers.invalidate(topic)
        explained = self._explained(topic, error)
        if explained is error:
            raise error
        raise explained from error

    def _explained(self, topic: str, error: RocketMQError) -> RocketMQError:
        """Return ``error``, or one that also names the brokers that had the topic.

        If a server denies a topic whose route was known, the result is a retryable ``TopicAway``. If name
        servers deny such a topic and the connection failed, the result is a ``ConnectFailed`` with more text.
        """
        known = self._name_servers.last_known(topic)
        if known is None or known.is_expected:
            return error
        was_on = known.route.brokers_shown()
        if isinstance(error, TopicNotFound) and not error.retryable:
            remark = f"{error.remark.rstrip('. ')}. The topic was on {was_on} before."
            return TopicAway(error.code, remark, request=error.request, address=error.address)
        if known.denial is not None and isinstance(error, ConnectFailed):
            detail = (
                f"{error.detail}; and the name server does not know topic {topic} for the moment, which was "
                f"on {was_on} before"
            )
            return type(error)(error.address, detail)
        return error


def _check_topic(topic: str, queue: MessageQueue) -> None:
    """Check that a message for ``topic`` is sent to a queue of this topic.

    Raises:
        LocalProtocolError: If the queue is another topic's, which would get the message.

    Source: RocketMQ 5.3.3 ``DefaultMQProducerImpl.send(Message, MessageQueue)``.
    """
    if topic != queue.topic:
        raise LocalProtocolError(
            f"A message for topic {topic} cannot be sent to {queue}; give a queue of topic {topic}."
        )


def _thread_for_repeats() -> ThreadPoolExecutor:
    """Return an executor whose thread starts with the first repeated attempt."""
    return ThreadPoolExecutor(1, "rocketmq-producer-repeats")
