"""Members of a group on either kind of cluster, without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

import pytest

from fuzz.reconnects import Held
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.errors import BrokerError
from pyspark_rocketmq.group.join import join_group
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from tests.helpers.retries import but_retries
from tests.helpers.wait import wait_until

SOON_S = 120.0
"""More than anything here needs, so that a slow machine fails no test."""

_numbers = itertools.count(1)


class Members:
    """Makes members of one group of one topic; all have left when the test ends."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.store = MemoryOffsetStore(group, clock=SystemClock())
        self._all: list[RunningMember] = []

    def join(
        self,
        name_servers: str,
        topic: str,
        name: str,
        *,
        timing: MembershipTiming | None = None,
        clock: Clock | None = None,
        calls_end: bool = True,
        **options: str,
    ) -> RunningMember:
        """Start a member called ``name``, whose calls end by their time-outs or wait for ever."""
        parsed = ReadOptions.parse(
            {
                "nameServers": name_servers,
                "topic": topic,
                "consumerGroup": self.group,
                "offsetStore": self.store.spec,
                **options,
            }
        )
        member = join_group(parsed, name, self.store, clock or SystemClock(), timing=timing)
        self._all.append(member)
        if not calls_end:
            wait_for_ever(member)
        member.start()
        return member

    def leave(self) -> None:
        """Stop whoever is still there."""
        for member in self._all:
            member.stop(SOON_S)


@pytest.fixture
def members() -> Iterator[Members]:
    """A group no other test has; nothing is left of its members."""
    before = Held.now()
    members = Members(f"members-{next(_numbers)}")
    yield members
    members.leave()
    wait_until(lambda: Held.now().is_at_most(before), SOON_S, reason=f"going back to {before}")


def plannable(member: RunningMember) -> set[MessageQueue]:
    """What the member's next plan may hold of the topics asked for;
    no plan is under way before and afterwards.
    """
    queues = but_retries(member.begin_plan())
    member.planned({})
    return queues


def await_plannable(member: RunningMember, queues: Collection[MessageQueue]) -> None:
    """Wait until the member may plan exactly these."""
    wait_until(
        lambda: plannable(member) == set(queues), SOON_S, reason=f"A member with exactly {sorted(queues)}"
    )


def await_listed(member: RunningMember, address: str) -> None:
    """Wait until the broker lists only this member: it hears of who comes and goes by itself."""

    def listed() -> tuple[str, ...]:
        with suppress(BrokerError):
            return tuple(member._calls.brokers.consumer_list(address, member._group))
        return ()

    wait_until(
        lambda: listed() == (member._client_id,), SOON_S, reason=f"{member._client_id} alone at {address}"
    )


def vanish(member: RunningMember) -> None:
    """End it as a crash of its process does: connections break, nobody is notified, no lock is given back."""
    member._calls.pool.close()
    member.stop(SOON_S)


def wait_for_ever(member: RunningMember) -> None:
    """Give its calls so much time that none ends by its time-out."""
    member._calls.brokers._calls.timeout_s = 10 * SOON_S


def let_calls_end(member: RunningMember, addresses: Iterable[str]) -> None:
    """Break the connections on which calls wait for ever; those that follow have a short time-out."""
    member._calls.brokers._calls.timeout_s = 1.0
    for address in addresses:
        member._calls.pool.get(address, Deadline.after(SystemClock(), SOON_S)).close()
