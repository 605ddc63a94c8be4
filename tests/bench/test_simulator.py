from __future__ import annotations

from bench.simulator import run


def test_a_short_run_counts_every_message_and_client() -> None:
    result = run(messages=2048, clients=20, rounds=1, requests=2, bound_mib=1)
    figures = {row[0]: row[2] for row in result.rows}
    targets = {target.what: target for target in result.targets}
    assert figures["clients answered"] == "20"
    assert float(figures["messages held / bound"]) > 0.5
    assert targets["messages held / bound of the commit log"].is_met
    assert targets["messages in and out"].seen.median > 0
