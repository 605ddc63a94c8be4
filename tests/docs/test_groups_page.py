"""``docs/groups.md`` has the intervals as the code has them."""

from __future__ import annotations

import re

from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.consume.planning import LONGEST_LEFT_OUT_S
from tests.packaging.checkout import ROOT

TEXT = (ROOT / "docs" / "groups.md").read_text()


def test_the_page_has_the_intervals_of_a_member() -> None:
    """A3, B1, B4, B6, C2."""
    told = [float(seconds) for seconds in re.findall(r"^\| .* \| (\d+) \| member \|$", TEXT, re.MULTILINE)]
    timing = MembershipTiming()

    assert told == [
        timing.heartbeat_s,
        timing.rebalance_s,
        timing.second_look_s,
        timing.lock_renewal_s,
        timing.lock_valid_s,
        timing.lock_retry_s,
        LONGEST_LEFT_OUT_S,
    ]
