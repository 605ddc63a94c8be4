"""What options say of single topics and queues, as JSON: ``{"topic": X}`` or ``{"topic": {"brokerName": {"queueId": X}}}``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.option_parsers import closest, unique_members

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1

ParseValue = Callable[[object, str], int]
"""Makes a number of a JSON value; the text says of what. Raises ValueError with the end of a sentence."""
_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,8}")
_WORDS = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}


@dataclass(frozen=True, slots=True)
class QueuePositions:
    """A number for every queue: of its own, of its topic, or the default."""

    default: int = EARLIEST_OFFSET
    by_queue: Mapping[MessageQueue, int] = field(default_factory=dict)
    by_topic: Mapping[str, int] = field(default_factory=dict)

    def wanted(self, queue: MessageQueue) -> int:
        """What is asked for ``queue``; below 0: EARLIEST_OFFSET, LATEST_OFFSET."""
        known = self.by_queue.get(queue)
        return self.by_topic.get(queue.topic, self.default) if known is None else known

    @property
    def topics(self) -> set[str]:
        """Topics that are named."""
        return {queue.topic for queue in self.by_queue} | self.by_topic.keys()


class PositionsForm(NamedTuple):
    """How positions are written in one option."""

    shape: str
    parse_value: ParseValue
    words: tuple[str, ...] = ()
    """Allowed in the place of the JSON, and of a topic's value."""

    def parse(self, text: str, default: int) -> QueuePositions:
        """Parse the JSON; ``default`` is for queues it does not name.

        Raises:
            ValueError: With the end of the sentence ``option='…' …``, naming the wrong part and the right form.
        """
        by_queue: dict[MessageQueue, int] = {}
        by_topic: dict[str, int] = {}
        for topic, named in self._members(self._loaded(text), "the JSON"):
            if isinstance(named, dict):
                by_queue |= self._queues(topic, named)
            else:
                by_topic[topic] = self._of_topic(named, topic)
        return QueuePositions(default, by_queue, by_topic)

    def _loaded(self, text: str) -> object:
        try:
            return json.loads(text, object_pairs_hook=unique_members)
        except json.JSONDecodeError as error:
            words = "".join(
                f"neither {word} nor " if not at else f"{word} nor " for at, word in enumerate(self.words)
            )
            close = closest(text, self.words)
            raise ValueError(
                f"is {words or 'not '}JSON of the shape {self.shape}; "
                + (
                    f"did you mean '{close}'?"
                    if close
                    else f"reading it as JSON failed at character {error.pos}: {error.msg}"
                )
            ) from error
        except RecursionError:
            raise ValueError(f"is nested too deeply; the shape is {self.shape}") from None

    def _queues(self, topic: str, brokers: object) -> dict[MessageQueue, int]:
        return {
            MessageQueue(topic, broker_name, _parse_queue_id(queue_id, broker_name)): self.parse_value(
                value, f"{topic} / {broker_name} / {queue_id}"
            )
            for broker_name, queues in self._members(brokers, f"the value of topic {topic!r}")
            for queue_id, value in self._members(queues, f"the value of broker {broker_name!r}")
        }

    def _of_topic(self, value: object, topic: str) -> int:
        if isinstance(value, str) and value.strip().lower() in self.words:
            return _WORDS[value.strip().lower()]
        return self.parse_value(value, f"topic {topic}")

    def _members(self, value: object, where: str) -> list[tuple[str, object]]:
        if not isinstance(value, dict) or not value:
            raise ValueError(
                f"is of another shape than {self.shape}: {where} must be a non-empty JSON object"
            )
        return list(value.items())


def _parse_queue_id(text: str, broker_name: str) -> int:
    if not _QUEUE_ID.fullmatch(text):
        raise ValueError(
            f'has queue id {text!r} for broker {broker_name!r}, which must be a whole number such as "0"'
        )
    return int(text)


def whole_number(least: int, meaning: str) -> ParseValue:
    """Parser of whole numbers from ``least`` on, described as ``meaning``."""

    def parse(value: object, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
            raise ValueError(f"has a value for {where} that must be {meaning}, not {json.dumps(value)}")
        return value

    return parse
