"""SQL92 conditions, which brokers are asked about before they are believed to filter by them."""

from __future__ import annotations

from pyspark_rocketmq.client.admin import AdminClient
from pyspark_rocketmq.errors import BrokerError, ExpressionInvalid
from pyspark_rocketmq.model import BrokerAddress
from pyspark_rocketmq.subscriptions import Subscription
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.subscription import SubscriptionData, build_subscription, expression_type

_CLIENT_ID = "pyspark-rocketmq"
"""A broker looks at none here."""


def subscription_data(wanted: Subscription, *, sub_version: int) -> SubscriptionData:
    """What a heartbeat or a check says of it."""
    kind = expression_type(is_sql92=wanted.is_sql92)
    return build_subscription(wanted.topic, wanted.expression, sub_version=sub_version, expression_type=kind)


class ExpressionCheck:
    """Asks each broker once whether it takes a condition.

    A broker that cannot read the condition of a pull gives all messages, and does not say so.
    """

    def __init__(self, admin: AdminClient, consumer_group: str) -> None:
        self._admin = admin
        self._group = consumer_group
        self._accepted: set[tuple[BrokerAddress, str]] = set()

    def ask(self, address: BrokerAddress, wanted: Subscription) -> None:
        """Return if the broker filters by it.

        Raises:
            ExpressionInvalid: If it cannot read the condition, or filters by none.
            RocketMQError: If it does not answer.
        """
        if not wanted.is_sql92 or (address, wanted.topic) in self._accepted:
            return
        try:
            data = subscription_data(wanted, sub_version=0)
            self._admin.check_subscription(address, _CLIENT_ID, self._group, data)
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            raise ExpressionInvalid(
                error.code, error.remark, request=error.request, address=error.address
            ) from error
        self._accepted.add((address, wanted.topic))
