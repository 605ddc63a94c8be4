"""Every scenario of sequences.json: each request of it is recorded as a frame,
and answered by the simulator or not.

What the simulator answers to each recorded frame is in the two tests beside this one. That Java's own
clients and mqadmin make these requests of it in this order is shown in
``tests/java/test_sequences*.py`` for the scenarios that are theirs; the others, which
``NOT_OF_CLIENTS`` lists, have no order but that of their recorder.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker_sim.nameserver import NameServer
from pyspark_rocketmq.wire.codes import RequestCode
from tests.broker_sim.exchange import ask, make_broker, request
from tests.broker_sim.recorded import PAIRS
from tests.helpers.fake_clock import FakeClock
from tests.helpers.golden import golden

SEQUENCES = {
    name: rows for name, rows in golden("sequences.json").items() if name not in ("made_by", "columns")
}
_NOT_SUPPORTED = 3

NOT_SIMULATED = {
    "SET_MESSAGE_REQUEST_MODE": {"pop_mode"},
    "QUERY_ASSIGNMENT": {"pop_mode"},
    "POP_MESSAGE": {"pop_mode"},
    "ACK_MESSAGE": {"pop_mode"},
    "9999": {"err_unknown_code", "err_namesrv"},
}
"""POP is no part of the simulator; 9999 is no request at all. With the scenarios they occur in."""

NOT_OF_CLIENTS = {
    "pop_mode": "POP is no part of the simulator",
    **{
        name: "requests made one by one, by no client; test_golden_replay.py makes all of them in their order"
        for name in SEQUENCES
        if name.startswith("err_") or name == "binary_header"
    },
}
"""Scenarios that no Java client lives through again, with the reason."""


def _pairs_of(scenario: str, path: str, name: str, answer: int | str) -> list[dict[str, Any]]:
    initiator = "server" if path.startswith("broker->") else "client"
    return [
        pair
        for pair in PAIRS
        if scenario in (pair["scenario"], *pair["also_in"])
        and pair["initiator"] == initiator
        and name in (pair["name"], str(pair["code"]))
        and (isinstance(answer, str) or (pair["response"] and pair["response"]["code"] == answer))
    ]


@pytest.mark.parametrize("scenario", SEQUENCES)
def test_every_request_of_a_recorded_scenario_is_a_recorded_frame_the_simulator_knows(scenario: str) -> None:
    """A1: what it does not know is refused with code 3, and is POP only."""
    broker, name_server = make_broker(FakeClock()), NameServer(mirror_header_form=False)
    for _, path, name, _, answer, times in SEQUENCES[scenario]:
        pairs = _pairs_of(scenario, path, str(name), answer)
        assert pairs, (path, name, answer)
        assert times >= 1
        if path.startswith("broker->"):
            continue
        endpoint = name_server if path.endswith("namesrv") else broker
        # Without fields most are answered with an error of their own.
        is_known = ask(endpoint, request(pairs[0]["code"])).code != _NOT_SUPPORTED
        assert is_known != (scenario in NOT_SIMULATED.get(str(name), ())), (path, name)


def test_all_recorded_frames_belong_to_a_scenario() -> None:
    """A1: none of the 236 pairs is left over."""
    assert len(PAIRS) == 236
    assert {name for pair in PAIRS for name in (pair["scenario"], *pair["also_in"])} <= SEQUENCES.keys()
    assert {pair["code"] for pair in PAIRS} - {9999} <= set(map(int, RequestCode))


@pytest.mark.parametrize("scenario", sorted(NOT_OF_CLIENTS.keys() - {"pop_mode"}))
def test_requests_of_no_client_are_recorded_as_frames_in_their_order(scenario: str) -> None:
    """A1: so replaying those frames one after another replays the scenario."""
    told = [(str(name), answer) for _, _, name, _, answer, times in SEQUENCES[scenario] for _ in range(times)]
    frames = [pair for pair in PAIRS if pair["scenario"] == scenario]

    assert told == [
        (
            str(RequestCode(pair["code"]).name if pair["code"] != 9999 else 9999),
            pair["response"]["code"] if pair["response"] else "oneway",
        )
        for pair in frames
    ]
