"""Which function answers which request of a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker_sim import (
    client_requests,
    config_requests,
    connection_requests,
    consumer_requests,
    group_requests,
    message_requests,
    progress_requests,
    queue_requests,
    topic_requests,
)
from broker_sim.peers import Peer
from broker_sim.pull import handle_pull
from broker_sim.replies import not_supported
from broker_sim.reset_requests import handle_reset
from broker_sim.send import handle_send
from broker_sim.send_back import handle_send_back
from broker_sim.state import BrokerState
from broker_sim.transactions import handle_end
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand

_HANDLERS: Mapping[int, Callable[[BrokerState, RemotingCommand], RemotingCommand]] = {
    RequestCode.QUERY_MESSAGE: message_requests.handle_query,
    RequestCode.QUERY_CONSUMER_OFFSET: consumer_requests.handle_query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: consumer_requests.handle_update_offset,
    RequestCode.UPDATE_AND_CREATE_TOPIC: topic_requests.handle_create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topic_requests.handle_create_topics,
    RequestCode.GET_ALL_TOPIC_CONFIG: topic_requests.handle_all_topics,
    RequestCode.UPDATE_BROKER_CONFIG: config_requests.handle_update_config,
    RequestCode.GET_BROKER_CONFIG: config_requests.handle_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: config_requests.handle_runtime_info,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: queue_requests.handle_search_offset,
    RequestCode.GET_MAX_OFFSET: queue_requests.handle_max_offset,
    RequestCode.GET_MIN_OFFSET: queue_requests.handle_min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: queue_requests.handle_earliest_store_time,
    RequestCode.VIEW_MESSAGE_BY_ID: message_requests.handle_view,
    RequestCode.CONSUMER_SEND_MSG_BACK: handle_send_back,
    RequestCode.END_TRANSACTION: handle_end,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_requests.handle_consumer_list,
    RequestCode.LOCK_BATCH_MQ: consumer_requests.handle_lock,
    RequestCode.UNLOCK_BATCH_MQ: consumer_requests.handle_unlock,
    RequestCode.GET_ALL_CONSUMER_OFFSET: progress_requests.handle_all_offsets,
    RequestCode.CHECK_CLIENT_CONFIG: consumer_requests.handle_check_client,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: group_requests.handle_put_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: group_requests.handle_all_groups,
    RequestCode.GET_TOPIC_STATS_INFO: queue_requests.handle_topic_stats,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: connection_requests.handle_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: connection_requests.handle_producer_connections,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: group_requests.handle_delete_group,
    RequestCode.GET_CONSUME_STATS: progress_requests.handle_consume_stats,
    RequestCode.DELETE_TOPIC_IN_BROKER: topic_requests.handle_delete_topic,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: handle_reset,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: group_requests.handle_put_groups,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: progress_requests.handle_groups_of_topic,
    RequestCode.QUERY_CONSUME_TIME_SPAN: progress_requests.handle_time_span,
    RequestCode.CLONE_GROUP_OFFSET: progress_requests.handle_clone_offsets,
    RequestCode.QUERY_CONSUME_QUEUE: message_requests.handle_query_queue,
    RequestCode.GET_ALL_PRODUCER_INFO: connection_requests.handle_all_producers,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: progress_requests.handle_topics_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: progress_requests.handle_subscription_of_group,
    RequestCode.GET_TOPIC_CONFIG: topic_requests.handle_topic,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: group_requests.handle_group,
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
    RequestCode.LITE_PULL_MESSAGE: handle_pull,
}
"""Requests whose meaning depends on the connection they came on, or that are answered later."""


def handle_request(state: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
    """The answer to ``command``, or None when it comes later.

    Raises:
        Refused: the answer is an error.
        RemoteProtocolError: the request is malformed.
    """
    peer_handler = _PEER_HANDLERS.get(command.code)
    if peer_handler is not None:
        return peer_handler(state, peer, command)
    handler = _HANDLERS.get(command.code)
    return not_supported(command) if handler is None else handler(state, command)
