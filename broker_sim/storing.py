"""Stores messages: immediately, or first where they wait for their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker_sim.delay import Postponement
from broker_sim.layout import Member, MessageRun, StoredRun
from broker_sim.pull import release_held_pull
from broker_sim.state import CLUSTER_NAME, BrokerState
from pyspark_rocketmq.model import Message, MessageQueue

ADDED_TO_EVERY_MESSAGE: Mapping[str, str] = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""Properties of every sent message, which are also in every answer to a send."""


def as_run(queue: MessageQueue, messages: Sequence[Message], *, born_timestamp: int) -> MessageRun:
    """Create a run (messages that are stored together) as if a producer had sent ``messages`` to ``queue``.

    The properties that a broker adds are included. ``born_timestamp`` is in milliseconds.
    """
    added = {**ADDED_TO_EVERY_MESSAGE, "CLUSTER": CLUSTER_NAME}
    return MessageRun(
        topic=queue.topic,
        queue_id=queue.queue_id,
        members=tuple(
            Member(each.flag, each.body, encode_properties({**each.properties, **added})) for each in messages
        ),
        born_timestamp=born_timestamp,
    )


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties as they are stored: name, U+0001, value, U+0002 for each."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode(
        "utf-8", "replace"
    )


def store_run(state: BrokerState, run: MessageRun) -> StoredRun:
    """Append messages to their queue, and put the answers to pulls that wait for them into the outbox.

    Without long polling, no pull is answered here: each waits for its deadline.
    """
    stored = state.store.append(run, state.host)
    if not state.settings.long_polling_enable:
        return stored
    woken = state.held_pulls.arrived(run, stored.tag_hashes)
    state.outbox.extend(release_held_pull(state, pull) for pull in woken)
    return stored


def postpone(state: BrokerState, run: MessageRun, postponement: Postponement) -> StoredRun:
    """Store delayed messages in the queue where they wait, and schedule their delivery.

    ``run`` names the queue of the delivery, and has the properties of ``postponement`` already. Return where
    the messages wait.
    """
    due_s = state.clock.monotonic_s() + postponement.wait_s
    if postponement.timer_out_ms is None:
        state.topics.ensure(postponement.topic, len(state.settings.delay_levels_s))
        state.delayed.put(due_s, run)
    else:
        state.topics.ensure(postponement.topic, 1)
        enqueued_ms = state.now_ms() // 1000 * 1000
        state.timers.put(due_s, _with_property(run, "TIMER_ENQUEUE_MS", enqueued_ms))
    return store_run(state, replace(run, topic=postponement.topic, queue_id=postponement.queue_id))


def deliver_due(state: BrokerState) -> None:
    """Store the delayed messages whose time has come in the queues to which they were sent."""
    now_s = state.clock.monotonic_s()
    for run in state.delayed.take_due(now_s):
        store_run(state, run)
    for run in state.timers.take_due(now_s):
        store_run(state, _with_property(run, "TIMER_DEQUEUE_MS", state.now_ms()))


def _with_property(run: MessageRun, name: str, value: int) -> MessageRun:
    added = encode_properties({name: str(value)})
    return replace(run, members=tuple(m._replace(properties=m.properties + added) for m in run.members))
