"""JSON shapes that several administrators' answers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker_sim.state import BrokerState
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.bodies import queue_to_json
from pyspark_rocketmq.wire.json_quirks import ObjectMap


def queue_map(values: Mapping[MessageQueue, object] | Iterable[tuple[MessageQueue, object]]) -> ObjectMap:
    """A map with message queues as keys."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return ObjectMap((queue_to_json(queue), value) for queue, value in pairs)


def data_version(state: BrokerState) -> dict[str, object]:
    """The version of a configuration table; the simulator counts no changes."""
    return {"counter": 0, "stateVersion": 0, "timestamp": state.now_ms()}
