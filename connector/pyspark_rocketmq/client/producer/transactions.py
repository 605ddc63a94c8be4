"""Messages that consumers see only if their sender's local transaction has succeeded.

A message is sent as a *half message*, the local transaction is run, and its outcome is sent to the broker,
one-way. If the outcome is lost or unknown, or the sender has died, the broker asks a member of the producer
group. So a transaction producer is a member, with heartbeats, and any member must be able to answer.

A separate thread sends heartbeats to every broker of the topics that the producer was given or has sent to,
immediately and every 30 s. So a restarted producer answers for transactions of its earlier process, and a
broker that is down does not hold up transactions at other brokers. If a broker takes a message before it has
got a heartbeat, the sender's thread sends it one.

Rule 1: a half message that is not stored as durably as it should be is rolled back, and the transaction is
not run.
Rule 2: after an error in the transaction or in a check the outcome counts as unknown: the broker asks again.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.client.transport import Closing, renew_in_children
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import RemoteProtocolError, RocketMQError
from pyspark_rocketmq.model import (
    MAX_MESSAGE_BYTES,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    SendStatus,
)
from pyspark_rocketmq.options.connection import namespace_of, parsed_addresses
from pyspark_rocketmq.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.namespace import with_namespace, without_namespace
from pyspark_rocketmq.wire.properties import DELAY, PGROUP, TRAN_MSG, UNIQ_KEY
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from pyspark_rocketmq.wire.requests.send import SendResult

logger = masking_logger(__name__)

_HEARTBEAT_S: Final = 30.0
"""Pause between two heartbeats (``ClientConfig.heartbeatBrokerInterval``)."""
_FLAGS: Final = {
    LocalTransactionState.COMMIT_MESSAGE: int(MessageSysFlag.TRANSACTION_COMMIT),
    LocalTransactionState.ROLLBACK_MESSAGE: int(MessageSysFlag.TRANSACTION_ROLLBACK),
    LocalTransactionState.UNKNOW: 0,
}

LocalTransaction = Callable[[Message], LocalTransactionState]
"""Runs the local transaction of a message. The message's ``msg_id`` is the transaction's id, by which a check
asks for it later (``TransactionListener.executeLocalTransaction``)."""
TransactionCheck = Callable[[MessageExt], LocalTransactionState]
"""Returns the outcome of the transaction whose id is the message's ``msg_id``, even after a restart
(``TransactionListener.checkLocalTransaction``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSendResult:
    """Where the half message is stored, and the outcome of its transaction."""

    sent: SendResult
    state: LocalTransactionState


class TransactionProducer(Closing):
    """Sends messages in transactions and answers brokers' checks. Shared by any number of threads.

    Source: RocketMQ 5.3.3 ``TransactionMQProducer``, ``DefaultMQProducerImpl.sendMessageInTransaction``,
    ``checkTransactionState``.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        producer_group: str,
        check: TransactionCheck,
        *,
        topics: Sequence[str],
        send_timeout_s: float = 3.0,
        max_message_size: int = MAX_MESSAGE_BYTES,
        settings: ConnectionSettings | None = None,
        clock: Clock | None = None,
        namespace: str = "",
    ) -> None:
        """Start registering with the brokers of ``topics`` in the background.

        Args:
            name_servers: See :class:`Producer`.
            producer_group: Group whose members all know the outcomes of transactions.
            check: Called on a thread of a connection, one call at a time for each broker.
            topics: Topics whose brokers may ask for outcomes immediately, even of an earlier process's
                transactions. Another topic's brokers may ask after its first message.
            send_timeout_s: Time-out of one send.
            max_message_size: See :class:`Producer`.
            settings: Credentials and TLS.
            clock: The system's if not given.
            namespace: See :class:`Producer`.
        """
        self._clock = clock or SystemClock()
        self._producer_group = producer_group
        self._check = check
        addresses = parsed_addresses(name_servers)
        self._namespace = namespace_of(
            namespace, addresses, None if settings is None else settings.namespace_v2
        )
        self._client_id = self._new_client_id()
        self._pool = (settings or ConnectionSettings()).open_pool(
            self._clock, lambda address: partial(self._asked, address)
        )
        self._producer = Producer(
            addresses,
            producer_group,
            send_timeout_s=send_timeout_s,
            max_message_size=max_message_size,
            pool=self._pool,
            clock=self._clock,
            namespace=self._namespace,
        )
        self._brokers = BrokerClient(self._pool, self._clock, send_timeout_s, namespace=self._namespace)
        self._lock = threading.Lock()
        self._masters: dict[str, dict[str, str]] = {topic: {} for topic in topics}
        """Names of brokers by address, for each topic as last seen."""
        self._known: set[str] = set()
        """Addresses of brokers at which this member is registered."""
        self._is_over = False
        self._wake = threading.Event()
        self._beating: threading.Thread | None = None
        renew_in_children(self)
        self._begin_beating()

    def renew(self) -> None:
        """In a child of ``fork()``: become another member, which is not registered before its first send."""
        self._client_id = self._new_client_id()
        self._lock = threading.Lock()
        self._known = set()
        self._wake = threading.Event()
        self._beating = None

    def send(self, message: Message, execute: LocalTransaction) -> TransactionSendResult:
        """Send a half message, run the local transaction, and send the broker its outcome.

        ``execute`` gets the message with its ``msg_id``. If it raises, the exception is passed on, and the
        broker asks for the outcome later. A delay of the message is dropped, as in Java. Only the broker that
        takes the message has to be up. A half message whose status is not SEND_OK is rolled back without
        calling ``execute``; the returned state is then ROLLBACK_MESSAGE.

        Raises:
            RocketMQError: If the half message could not be sent, or its broker does not return where it is
                stored; then ``execute`` was not called.
            ValueError: If ``execute`` returns no state; the broker asks for the outcome later.
        """
        own = {TRAN_MSG: "true", PGROUP: with_namespace(self._namespace, self._producer_group)}
        properties = {name: text for name, text in message.properties.items() if name != DELAY}
        half = replace(message, properties={**properties, **own})
        sent = self._producer.send(half)
        # Read this before the transaction: without it the outcome could not be sent.
        commit_log_offset = _place_of(sent)
        self._be_known_at(sent.queue)
        state = LocalTransactionState.ROLLBACK_MESSAGE
        if sent.status is SendStatus.SEND_OK:
            known = replace(message, properties={**message.properties, UNIQ_KEY: sent.msg_id})
            state = LocalTransactionState(execute(known))
        header = EndTransactionRequestHeader(
            producer_group=self._producer_group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=commit_log_offset,
            commit_or_rollback=_FLAGS[state],
            from_transaction_check=False,
            msg_id=sent.msg_id,
            transaction_id=sent.msg_id,
            topic=message.topic,
            broker_name=sent.queue.broker_name,
        )
        self._end(lambda: self._producer.master_of(sent.queue), header)
        return TransactionSendResult(sent=sent, state=state)

    def close(self) -> None:
        """Leave the producer group and close the connections. Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        self._wake.set()
        if self._beating is not None:
            self._beating.join()
        for address in sorted(self._known):
            try:
                self._brokers.unregister(address, self._client_id, producer_group=self._producer_group)
            except RocketMQError as error:
                logger.warning(
                    "producer could not be unregistered, its broker forgets it later address=%s: %s",
                    address,
                    error,
                )
        self._pool.close()

    # --- membership -----------------------------------------------------------------------------------------

    def _new_client_id(self) -> str:
        return f"{socket.gethostname()}@{os.getpid()}#{id(self):x}"

    def _begin_beating(self) -> None:
        with self._lock:
            if self._beating is None and not self._is_over:
                self._beating = threading.Thread(target=self._beat, name="rocketmq-transactions", daemon=True)
                self._beating.start()

    def _be_known_at(self, queue: MessageQueue) -> None:
        """Register with the broker that took a message, unless this is done already.

        If the message's topic is new, wake the heartbeat thread, which registers with its other brokers.
        """
        self._begin_beating()
        try:
            address = self._producer.master_of(queue)
        except RocketMQError as error:
            logger.warning(
                "no heartbeat sent, since the broker has no known address broker=%s: %s",
                queue.broker_name,
                error,
            )
            return
        with self._lock:
            is_known = address in self._known
            is_new_topic = queue.topic not in self._masters
            self._masters.setdefault(queue.topic, {})[address] = queue.broker_name
        if not is_known:
            self._heartbeat(address)
        if is_new_topic:
            self._wake.set()

    def _beat(self) -> None:
        while not self._is_over:
            self._wake.clear()
            with self._lock:
                topics = list(self._masters)
            for topic in topics:
                self._look_up(topic)
            with self._lock:
                addresses = {address for masters in self._masters.values() for address in masters}
            for address in sorted(addresses):
                if not self._is_over:
                    self._heartbeat(address)
            if not self._is_over:
                self._wake.wait(_HEARTBEAT_S)

    def _look_up(self, topic: str) -> None:
        try:
            route = self._producer.route(topic, may_create=False)
        except RocketMQError as error:
            logger.warning(
                "brokers of a topic could not be looked up, keeping the known ones topic=%s: %s", topic, error
            )
            return
        found = {str(each.master): each.broker_name for each in route.brokers if each.master is not None}
        with self._lock:
            self._masters[topic] = found

    def _heartbeat(self, address: str) -> None:
        data = HeartbeatData(client_id=self._client_id, producers=(self._producer_group,))
        try:
            self._brokers.heartbeat(address, data)
        except RocketMQError as error:
            logger.warning("heartbeat failed address=%s: %s", address, error)
            with self._lock:
                self._known.discard(address)
        else:
            with self._lock:
                self._known.add(address)

    def _name_of(self, address: str) -> str:
        with self._lock:
            return next((masters[address] for masters in self._masters.values() if address in masters), "")

    def _end(self, address_of: Callable[[], str], header: EndTransactionRequestHeader) -> None:
        try:
            self._brokers.end_transaction(address_of(), header)
        except RocketMQError as error:
            # The broker will ask.
            logger.warning(
                "end of a transaction not sent, the broker will ask for it msgId=%s: %s", header.msg_id, error
            )

    # --- requests from brokers ------------------------------------------------------------------------------

    def _asked(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        """Answer a broker's check; return None for any other request.

        The outcome is sent to the address that the check came from: brokers before 5.2.0 do not send their
        name with it.
        """
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return None
        header = from_ext_fields(CheckTransactionStateRequestHeader, request.ext_fields)
        messages = decode_messages(request.body, header.broker_name or self._name_of(address))
        if len(messages) != 1:
            raise RemoteProtocolError(
                f"A transaction check from broker {address} has {len(messages)} messages; it must have one."
            )
        bare = without_namespace(self._namespace, messages[0].topic)
        message = messages[0]._replace(topic=bare)
        answer = EndTransactionRequestHeader(
            producer_group=self._producer_group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=_FLAGS[self._checked(message)],
            from_transaction_check=True,
            msg_id=message.properties.get(UNIQ_KEY) or message.msg_id,
            transaction_id=header.transaction_id,
            topic=bare,
            broker_name=header.broker_name,
        )
        self._end(lambda: address, answer)
        return request.response(ResponseCode.SUCCESS)

    def _checked(self, message: MessageExt) -> LocalTransactionState:
        try:
            return LocalTransactionState(self._check(message))
        except Exception:
            logger.exception("transaction check failed msgId=%s; the broker will ask again", message.msg_id)
            return LocalTransactionState.UNKNOW


def _place_of(sent: SendResult) -> int:
    """Return where the broker has stored a half message, as an offset in its log.

    Raises:
        RemoteProtocolError: If the broker's answer does not contain it.
    """
    try:
        return decode_offset_message_id(sent.offset_msg_id)[1]
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"{sent.queue}: the broker has stored a half message, but its answer does not contain where: "
            f"{error} The local transaction was not run, and the broker may ask for its outcome. "
            "Transactions need servers whose answers contain offsetMsgId."
        ) from error
