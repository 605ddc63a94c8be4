from __future__ import annotations

from bench.groups import run


def test_a_short_run_counts_one_lock_call_per_broker_and_renewal() -> None:
    result = run(rounds=2, triggers=2, takeovers=1)
    figures = {row[0]: row[2] for row in result.rows}

    assert figures["lock calls per broker and renewal"] == "1.000"
    assert len(result.targets) == 4
    assert all(target.seen.median > 0 for target in result.targets)
