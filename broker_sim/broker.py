"""One broker without its sockets: passes requests to their handlers and collects the commands to send."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from broker_sim import client_requests, config_requests, consumer_requests, progress_requests, topic_requests
from broker_sim.consumer_requests import notify_members
from broker_sim.layout import UNKNOWN_HOST, Host
from broker_sim.progress_requests import handle_reset
from broker_sim.pull import handle_pull, release_held_pull
from broker_sim.replies import Outgoing, Peer, Refused, in_json, not_supported, reply
from broker_sim.send import handle_reply, handle_send, handle_send_back
from broker_sim.settings import BrokerSettings
from broker_sim.state import BrokerState
from broker_sim.storing import as_run, deliver_due, store_run
from broker_sim.transactions import check_due, handle_end
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand

_logger = logging.getLogger(__name__)

_HANDLERS: Mapping[int, Callable[[BrokerState, RemotingCommand], RemotingCommand]] = {
    RequestCode.QUERY_MESSAGE: topic_requests.handle_query,
    RequestCode.QUERY_CONSUMER_OFFSET: consumer_requests.handle_query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: consumer_requests.handle_update_offset,
    RequestCode.UPDATE_AND_CREATE_TOPIC: topic_requests.handle_create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topic_requests.handle_create_topics,
    RequestCode.GET_ALL_TOPIC_CONFIG: topic_requests.handle_all_topics,
    RequestCode.UPDATE_BROKER_CONFIG: config_requests.handle_update_config,
    RequestCode.GET_BROKER_CONFIG: config_requests.handle_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: config_requests.handle_runtime_info,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: topic_requests.handle_search_offset,
    RequestCode.GET_MAX_OFFSET: topic_requests.handle_max_offset,
    RequestCode.GET_MIN_OFFSET: topic_requests.handle_min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: topic_requests.handle_earliest_store_time,
    RequestCode.VIEW_MESSAGE_BY_ID: topic_requests.handle_view,
    RequestCode.CONSUMER_SEND_MSG_BACK: handle_send_back,
    RequestCode.END_TRANSACTION: handle_end,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_requests.handle_consumer_list,
    RequestCode.LOCK_BATCH_MQ: consumer_requests.handle_lock,
    RequestCode.UNLOCK_BATCH_MQ: consumer_requests.handle_unlock,
    RequestCode.GET_ALL_CONSUMER_OFFSET: progress_requests.handle_all_offsets,
    RequestCode.CHECK_CLIENT_CONFIG: consumer_requests.handle_check_client,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: config_requests.handle_put_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: config_requests.handle_all_groups,
    RequestCode.GET_TOPIC_STATS_INFO: topic_requests.handle_topic_stats,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: client_requests.handle_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: client_requests.handle_producer_connections,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: config_requests.handle_delete_group,
    RequestCode.GET_CONSUME_STATS: progress_requests.handle_consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: progress_requests.handle_stats_of_broker,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topic_requests.handle_system_topics,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: topic_requests.handle_clean_queues,
    RequestCode.CLEAN_UNUSED_TOPIC: topic_requests.handle_clean_up,
    RequestCode.DELETE_EXPIRED_COMMITLOG: topic_requests.handle_clean_up,
    RequestCode.GET_BROKER_HA_STATUS: config_requests.handle_replicas,
    RequestCode.DELETE_TOPIC_IN_BROKER: topic_requests.handle_delete_topic,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: handle_reset,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: config_requests.handle_put_groups,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: progress_requests.handle_groups_of_topic,
    RequestCode.QUERY_CONSUME_TIME_SPAN: progress_requests.handle_time_span,
    RequestCode.CLONE_GROUP_OFFSET: progress_requests.handle_clone_offsets,
    RequestCode.QUERY_CONSUME_QUEUE: topic_requests.handle_query_queue,
    RequestCode.GET_ALL_PRODUCER_INFO: client_requests.handle_all_producers,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: progress_requests.handle_topics_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: progress_requests.handle_subscription_of_group,
    RequestCode.GET_TOPIC_CONFIG: topic_requests.handle_topic,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: config_requests.handle_group,
}
_PEER_HANDLERS: Mapping[int, Callable[[BrokerState, Peer, RemotingCommand], RemotingCommand | None]] = {
    RequestCode.SEND_MESSAGE: handle_send,
    RequestCode.PULL_MESSAGE: handle_pull,
    RequestCode.HEART_BEAT: consumer_requests.handle_heartbeat,
    RequestCode.UNREGISTER_CLIENT: consumer_requests.handle_unregister,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: client_requests.handle_consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: client_requests.handle_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: client_requests.handle_consume_directly,
    RequestCode.SEND_MESSAGE_V2: handle_send,
    RequestCode.SEND_BATCH_MESSAGE: handle_send,
    RequestCode.SEND_REPLY_MESSAGE: handle_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: handle_reply,
    RequestCode.LITE_PULL_MESSAGE: handle_pull,
}
"""Handlers of requests that depend on their connection, or that are answered later."""


def handle_request(state: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
    """Return a broker's answer to ``command``; None if a later event sends it.

    Raises:
        Refused: the answer is an error.
        RemoteProtocolError: the request is malformed.
    """
    peer_handler = _PEER_HANDLERS.get(command.code)
    if peer_handler is not None:
        return peer_handler(state, peer, command)
    handler = _HANDLERS.get(command.code)
    return not_supported(command) if handler is None else handler(state, command)


class Broker:
    """One broker without sockets, which decides every answer.

    The owner of the sockets calls it from one thread, and sends the commands that it returns.
    """

    def __init__(self, name: str, clock: Clock, settings: BrokerSettings | None = None) -> None:
        self.state = BrokerState.create(name, clock, settings or BrokerSettings(), UNKNOWN_HOST)

    @property
    def name(self) -> str:
        """Broker name, which a master shares with its replicas; part of every message queue."""
        return self.state.name

    def listening_at(self, host: Host) -> None:
        """Set the address that is written into messages from now on."""
        self.state.host = host

    def put(self, queue: MessageQueue, messages: Sequence[Message]) -> int:
        """Store messages as if a producer had sent them; return the first message's queue offset.

        Pulls that wait for them are answered by the next call that returns commands.
        """
        run = as_run(queue, messages, born_timestamp=int(self.state.clock.now_s() * 1000))
        return store_run(self.state, run).queue_offset

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Handle one command; return all commands to send now, to any connection.

        A pull that is held until there are messages is answered by a later call of this or another method.
        """
        if command.is_response:
            self.state.client_calls.answered(peer, command)
            return [self._in_allowed_form(each) for each in self._drain()]
        answer = self._answer(peer, command)
        outgoing = self._drain()
        if answer is not None and not command.is_oneway:
            outgoing.insert(0, Outgoing(peer, answer, command.code))
        return [self._in_allowed_form(each) for each in outgoing]

    def connection_closed(self, peer: Peer) -> list[Outgoing]:
        """Forget the connection and its memberships, but not its locks; return the commands to send.

        Its held pulls stay: each is run again when its time is up or a message arrives, although nobody gets
        the answer. So such a pull may use up an operator's reset of its queue (``PullRequestHoldService``).
        """
        self.state.producers.connection_closed(peer)
        self.state.client_calls.connection_closed(peer)
        for group in self.state.membership.connection_closed(peer):
            notify_members(self.state, group)
        return [self._in_allowed_form(each) for each in self._drain()]

    def look_at_clock(self) -> list[Outgoing]:
        """Do the work whose time has come; return the commands to send.

        Deliver delayed messages, ask about open transactions, end expired pulls, and drop silent members and
        old messages.
        """
        state = self.state
        deliver_due(state)
        check_due(state)
        if state.settings.retention_s is not None:
            state.store.drop_stored_before(state.now_ms() - int(state.settings.retention_s * 1000))
        for pull in state.held_pulls.expired(state.clock.monotonic_s()):
            state.outbox.append(release_held_pull(state, pull))
        for group in state.membership.expire():
            notify_members(state, group)
        state.producers.expire()
        state.client_calls.expire(state.clock.monotonic_s())
        return [self._in_allowed_form(each) for each in self._drain()]

    def next_deadline_s(self) -> float | None:
        """Return the monotonic time at which :meth:`look_at_clock` next has work; None if no time is known.

        The expiry of members and of old messages does not count: the server's regular scan takes care of it.
        """
        state = self.state
        deadlines_s = (
            state.held_pulls.next_deadline_s(),
            state.delayed.next_due_s(),
            state.timers.next_due_s(),
            min((half.due_s for half in state.half_messages.values()), default=None),
            state.client_calls.next_deadline_s(),
        )
        return min((each for each in deadlines_s if each is not None), default=None)

    def restarted(self) -> None:
        """Lose everything that a real broker keeps only in memory; messages, topics and offsets stay."""
        self.state.locks.clear()
        self.state.membership.clear()
        self.state.producers.clear()
        self.state.client_calls.clear()
        self.state.held_pulls.clear()

    def _answer(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        try:
            return handle_request(self.state, peer, command)
        except Refused as refused:
            return reply(command, refused.code, refused.remark, ext_fields=refused.ext_fields)
        except RemoteProtocolError as error:
            return reply(command, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:
            _logger.exception("%s could not handle request code %d.", self.name, command.code)
            return reply(command, ResponseCode.SYSTEM_ERROR, repr(error))

    def _drain(self) -> list[Outgoing]:
        outgoing = self.state.outbox
        self.state.outbox = []
        return outgoing

    def _in_allowed_form(self, outgoing: Outgoing) -> Outgoing:
        if self.state.settings.mirror_header_form:
            return outgoing
        return outgoing._replace(command=in_json(outgoing.command))
