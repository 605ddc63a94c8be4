"""A group's offsets as its brokers keep them: numbers, at brokers that a test may take away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pyspark_rocketmq.errors import BrokerOffsetUnavailable, RocketMQError
from pyspark_rocketmq.group.broker_offsets import Addresses
from pyspark_rocketmq.model import MessageQueue


class OffsetsAtBrokers:
    """Implements ``GroupAtBrokers``; ``of_claims`` reads and writes the same numbers."""

    def __init__(self, consumer_group: str = "g") -> None:
        self.consumer_group = consumer_group
        self.offsets: dict[MessageQueue, int] = {}
        self.written: list[dict[MessageQueue, int]] = []
        self.down: set[str] = set()
        """Names of the brokers that do not answer."""
        self.lost: set[MessageQueue] = set()
        """Queues of which brokers report that they have no offset."""

    def read(
        self, queues: Collection[MessageQueue] | None = None
    ) -> dict[MessageQueue, int | RocketMQError | None]:
        asked = self.offsets.keys() | self.lost if queues is None else queues
        return {
            queue: _away(queue) if queue.broker_name in self.down else self.offsets.get(queue)
            for queue in asked
        }

    def write(self, next_offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, RocketMQError]:
        away = {queue: _away(queue) for queue in next_offsets if queue.broker_name in self.down}
        taken = {queue: offset for queue, offset in next_offsets.items() if queue not in away}
        self.written.append(taken)
        self.offsets |= taken
        return away

    def forget(self) -> None:
        """Brokers lose the offsets, as by ``mqadmin deleteSubGroup -r true``."""
        self.lost |= self.offsets.keys()
        self.offsets.clear()

    @property
    def of_claims(self) -> AtAddresses:
        """The same offsets as ``BrokerOffsets``."""
        return AtAddresses(self)


class AtAddresses:
    """Implements ``BrokerOffsets``."""

    def __init__(self, group: OffsetsAtBrokers) -> None:
        self._group = group

    def read(self, queues: Iterable[MessageQueue], addresses: Addresses) -> dict[MessageQueue, int]:
        answers = self._group.read(list(queues))
        _check(answers.values())
        return {queue: answer for queue, answer in answers.items() if isinstance(answer, int)}

    def write(self, next_offsets: Mapping[MessageQueue, int], addresses: Addresses) -> None:
        _check(self._group.write(next_offsets).values())


def _away(queue: MessageQueue) -> RocketMQError:
    return BrokerOffsetUnavailable(f"{queue.broker_name} does not answer")


def _check(answers: Iterable[object]) -> None:
    for answer in answers:
        if isinstance(answer, RocketMQError):
            raise answer
