"""Administrative requests that only tests make."""

from __future__ import annotations

import json
from typing import Any

from broker_sim.bodies import SubscriptionGroupConfig
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java


class Administrator(BrokerClient):
    """An administrator that also changes topics and groups."""

    def delete_topic(self, address: str, topic: str) -> None:
        self._request(address, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)

    def put_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        self._calls.call(address, RemotingCommand(code=code, body=dumps_java(config)))

    def reset_back(self, address: str, group: str, topic: str, time_ms: int) -> None:
        """Reset the group to the first messages stored at or after a time; never move it forward."""
        self._request(
            address,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            topic=topic,
            group=group,
            queueId="-1",
            offset="-1",
            timestamp=str(time_ms),
            isForce="false",
        )

    def consume_directly(
        self, address: str, group: str, topic: str, client_id: str, offset_msg_id: str
    ) -> dict[str, Any]:
        """Have one member consume one stored message now, and return its answer."""
        answer = self._request(
            address,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            topic=topic,
            consumerGroup=group,
            clientId=client_id,
            msgId=offset_msg_id,
            brokerName="broker-a",
        )
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def _request(self, address: str, code: RequestCode, **fields: str) -> RemotingCommand:
        return self._calls.call(address, RemotingCommand(code=code, ext_fields=fields))
