"""The same scripted listener as Java's (``ScriptedListener.java``) in a query of ours,
on a topic of the same cluster.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageExt,
)
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from tests.helpers.delivery_log import whole_lines
from tests.helpers.modes import Mode

_STOP_S = 120.0


@dataclass(frozen=True)
class Script:
    """Answers by the key of a batch's first message, the last one repeated;
    other batches succeed.
    """

    answers: Mapping[str, Sequence[str]]
    folder: str
    """Folder in which the workers note their calls."""
    auto_commit: bool = True

    def orderly(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus | None:
        """``ScriptedListener.orderly``."""
        words = self._answer(messages, "SUCCESS")
        context.auto_commit = self.auto_commit
        if words[1:2] == ["suspend"]:
            context.suspend_current_queue_time_millis = int(words[2])
        if words[0] == "throws":
            raise ValueError("the script says so")
        return None if words[0] == "null" else ConsumeOrderlyStatus[words[0]]

    def concurrent(
        self, messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus | None:
        """``ScriptedListener.concurrent``."""
        words = self._answer(messages, "CONSUME_SUCCESS")
        if words[1:2] == ["ackIndex"]:
            context.ack_index = int(words[2])
        if words[1:2] == ["delayLevel"]:
            context.delay_level_when_next_consume = int(words[2])
        if words[0] == "throws":
            raise ValueError("the script says so")
        return None if words[0] == "null" else ConsumeConcurrentlyStatus[words[0]]

    def events(self) -> list[dict[str, Any]]:
        """Return the calls so far, in their order."""
        files = Path(self.folder).glob("events-*")
        return sorted(
            (json.loads(line) for file in files for line in whole_lines(file)),
            key=lambda event: event["ns"],
        )

    def _answer(self, messages: Sequence[MessageExt], otherwise: str) -> list[str]:
        key = str(messages[0].keys)
        answers = self.answers.get(key, [otherwise])
        text = answers[min(self._count(key), len(answers) - 1)]
        shown = [
            {
                "topic": message.topic,
                "queueId": message.queue_id,
                "queueOffset": message.queue_offset,
                "key": message.keys,
                "reconsumeTimes": message.reconsume_times,
                "body": message.body.decode(),
            }
            for message in messages
        ]
        event = {"ns": time.time_ns(), "messages": shown, "result": text.split(" suspend ")[0]}
        self._append(f"events-{os.getpid()}", json.dumps(event).encode() + b"\n")
        return text.split()

    def _count(self, key: str) -> int:
        """Return how often a batch began with this key before; deliveries of one message never overlap."""
        return self._append(f"count-{key}", b".") - 1

    def _append(self, name: str, data: bytes) -> int:
        file = os.open(Path(self.folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, data)
            return os.fstat(file).st_size
        finally:
            os.close(file)


class SparkConsumer:
    """A query with such a listener; ends with its block."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        script: Script,
        *,
        name_servers: str,
        group: str,
        topic: str,
        mode: Mode,
        orderly: bool = True,
        **settings: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.script = script
        self.store = DeltaOffsetStore(str(folder / "offsets"))
        consumer = PushConsumer(
            consumer_group=group,
            name_servers=name_servers,
            offset_store=self.store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            **mode.settings,
            **settings,
        )
        consumer.subscribe(topic)
        consumer.register_message_listener(
            script.orderly if orderly else script.concurrent, orderly=orderly, output_schema="seen string"
        )
        self._query: StreamingQuery = consumer.start(
            spark, checkpoint=str(folder / "checkpoint"), trigger=mode.trigger
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._query.stop()
        self._query.awaitTermination(int(_STOP_S))

    def delivered(self) -> int:
        """Return how many messages the listener has got so far.

        Raises:
            AssertionError: If the query has failed.
        """
        failure = self._query.exception()
        assert failure is None, failure
        return sum(len(event["messages"]) for event in self.script.events())
