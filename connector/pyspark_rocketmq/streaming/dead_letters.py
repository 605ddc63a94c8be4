"""Where an orderly consumer's messages go that failed too often (row D6)."""

from __future__ import annotations

from pyspark_rocketmq.client.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.model import MessageExt


class DeadLetterSender:
    """Sends messages to the group's retry topic, whose broker keeps them as dead letters.

    Pickled to the executors, where it connects when there is a first message to send. A micro-batch that runs again
    sends its dead letters again: like everything a listener does, they are there at least once.
    """

    def __init__(self, settings: SendBackSettings, max_reconsume_times: int) -> None:
        self._settings = settings
        self._max_reconsume_times = max_reconsume_times
        self._send_back: SendBack | None = None

    def __call__(self, message: MessageExt) -> None:
        """Send ``message``, which was consumed with the reconsume times it has.

        Raises:
            RocketMQError: If it is not known to be stored.
        """
        if self._send_back is None:
            self._send_back = self._settings.open()
        self._send_back.send_as_retry(message, max_reconsume_times=self._max_reconsume_times)
