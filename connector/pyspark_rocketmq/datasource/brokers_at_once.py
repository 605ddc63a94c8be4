"""Calls to several brokers at the same time, so that one that does not answer costs its time-out once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from pyspark_rocketmq.model import MessageQueue

T = TypeVar("T")

_AT_ONCE: Final = 16


def at_brokers(names: Collection[str], ask: Callable[[str], T]) -> dict[str, T]:
    """What ``ask`` says of each broker; each call must end by a deadline of its own.

    Raises whatever a call raises, once all that were begun have ended.
    """
    if len(names) <= 1:
        return {name: ask(name) for name in names}
    with ThreadPoolExecutor(min(len(names), _AT_ONCE), "rocketmq-brokers") as executor:
        return dict(zip(names, executor.map(ask, names), strict=True))


def at_queues(queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], T]) -> dict[MessageQueue, T]:
    """What ``ask`` says of each queue: brokers at once, queues of a broker one after another.

    A broker is asked no further after a call that raised, which is then raised as by :func:`at_brokers`.
    """
    by_broker: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        by_broker.setdefault(queue.broker_name, []).append(queue)

    def ask_one_broker(name: str) -> dict[MessageQueue, T]:
        return {queue: ask(queue) for queue in by_broker[name]}

    answers = at_brokers(by_broker.keys(), ask_one_broker)
    return {queue: answer for each in answers.values() for queue, answer in each.items()}
