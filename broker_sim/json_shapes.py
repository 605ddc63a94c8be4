"""JSON shapes that several administrators' answers share."""

from __future__ import annotations

from broker_sim.state import BrokerState


def data_version(state: BrokerState) -> dict[str, object]:
    """The version of a configuration table; the simulator counts no changes."""
    return {"counter": 0, "stateVersion": 0, "timestamp": state.now_ms()}
