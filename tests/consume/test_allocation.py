"""Allocation against Java's results, and the promise that every queue has one owner."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.consume.allocation import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    allocation_strategy,
    room_of_client,
    sorted_members,
    sorted_queues,
)
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.allocation import allocate
from tests.helpers.golden import golden

CASES: Sequence[Mapping[str, Any]] = golden("allocation.json")["cases"]
SHARED: tuple[AllocationStrategy, ...] = (
    Averagely(),
    AveragelyByCircle(),
    ConsistentHash(),
    ConsistentHash(1),
    MachineRoomNearby(),
    MachineRoomNearby(ConsistentHash()),
)
"""Strategies that leave no queue out."""

ROOMS = st.sampled_from(("east", "west", "north"))
QUEUES = st.sets(
    st.builds(
        MessageQueue,
        st.sampled_from(("T", "U", "\ufffd", "\U0001f600")),
        st.builds("{}@{}".format, ROOMS, st.sampled_from(("broker-2", "broker-10"))),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=30,
)
MEMBERS = st.sets(st.builds("{}/{}@{}".format, ROOMS, st.integers(0, 9), st.text()), min_size=1, max_size=9)


def strategy_of(name: str, case: Mapping[str, Any]) -> AllocationStrategy:
    strategies: dict[str, AllocationStrategy] = {
        "averagely": Averagely(),
        "by_circle": AveragelyByCircle(),
        "consistent_hash": ConsistentHash(),
        "by_machine_room": ByMachineRoom(frozenset(case["idcs"])),
        "machine_room_nearby": MachineRoomNearby(),
    }
    return strategies[name]


def test_the_recorded_inputs_are_all_there() -> None:
    assert len(CASES) == 176
    assert sum(len(case["result"]) for case in CASES) == 5 * 176


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_every_strategy_gives_what_java_gives_in_javas_order(case: Mapping[str, Any]) -> None:
    """B2: equal to Java on the vectors in golden/."""
    queues = [MessageQueue(*queue) for queue in case["queues"] or ()]
    members = case["consumers"] or ()
    for name, expected in case["result"].items():
        strategy = strategy_of(name, case)
        if isinstance(expected, dict):
            assert expected["error"].startswith("java.lang.IllegalArgumentException")
            with pytest.raises(ValueError, match=r"\.$"):
                strategy.allocate(case["current"], queues, members)
        else:
            allocated = strategy.allocate(case["current"], queues, members)
            assert [queues.index(queue) for queue in allocated] == expected, name


def test_queues_sort_as_in_java() -> None:
    """B1: topic and broker name by UTF-16 units, queue id as a number."""
    in_order = [MessageQueue(*queue) for queue in golden("allocation.json")["messagequeue_compareTo_order"]]
    shuffled = random.Random(4).sample(in_order, len(in_order))
    assert sorted_queues(shuffled) == in_order


@pytest.mark.parametrize("strategy", SHARED, ids=lambda strategy: f"{strategy.name}-{strategy!r:.30}")
@settings(max_examples=25)
@given(queues=QUEUES, members=MEMBERS)
def test_every_queue_has_exactly_one_owner(
    strategy: AllocationStrategy, queues: set[MessageQueue], members: set[str]
) -> None:
    """B2: the members' shares are all queues, none of them twice."""
    shares = [queue for member in members for queue in allocate(strategy, member, queues, members)]
    assert Counter(shares) == Counter(queues)


@settings(max_examples=25)
@given(queues=QUEUES, members=MEMBERS, rooms=st.frozensets(ROOMS, min_size=1))
def test_by_machine_room_shares_the_queues_of_its_rooms_only(
    queues: set[MessageQueue], members: set[str], rooms: frozenset[str]
) -> None:
    """B2: queues of other rooms go to nobody."""
    shares = [
        queue for member in members for queue in allocate(ByMachineRoom(rooms), member, queues, members)
    ]
    assert Counter(shares) == Counter(queue for queue in queues if queue.broker_name.split("@")[0] in rooms)


@pytest.mark.parametrize(
    "strategy", [*SHARED, ByMachineRoom(frozenset({"east"}))], ids=lambda strategy: strategy.name
)
@settings(max_examples=25)
@given(queues=QUEUES, members=MEMBERS, order=st.randoms(use_true_random=False))
def test_the_order_in_which_queues_and_members_are_known_does_not_matter(
    strategy: AllocationStrategy, queues: set[MessageQueue], members: set[str], order: random.Random
) -> None:
    """B1: brokers list members in any order, yet all members come to the same shares."""
    for member in members:
        shuffled = (order.sample(list(queues), len(queues)), order.sample(list(members), len(members)))
        assert allocate(strategy, member, *shuffled) == allocate(strategy, member, queues, members)


@pytest.mark.parametrize("strategy", SHARED, ids=lambda strategy: strategy.name)
def test_a_member_that_is_not_listed_gets_no_queue(strategy: AllocationStrategy) -> None:
    """B4: own id absent from the list."""
    assert allocate(strategy, "east/me", [MessageQueue("T", "east@b", 0)], ["east/other"]) == ()


def test_consistent_hashing_moves_only_the_queues_of_the_member_that_left() -> None:
    """B2: what the ring is for."""
    queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(64)]
    before, after = ["a", "b", "c", "d"], ["a", "b", "d"]
    for member in after:
        kept = set(allocate(ConsistentHash(), member, queues, before))
        assert kept <= set(allocate(ConsistentHash(), member, queues, after))


def test_members_are_sorted_as_java_sorts_texts() -> None:
    """B1: by UTF-16 units, in which what lies beyond U+FFFF begins with a surrogate."""
    assert sorted_members(["b", "\uffe5", "\U0001f600", "a"]) == ["a", "b", "\U0001f600", "\uffe5"]


@pytest.mark.parametrize("strategy", [*SHARED, ByMachineRoom(frozenset({"east"}))], ids=lambda one: one.name)
@pytest.mark.parametrize("listed", ["aa", "aab", "abbb", "aabccc"])
def test_shares_of_a_member_listed_twice_are_its_own(strategy: AllocationStrategy, listed: str) -> None:
    """B1, A7: one entry for each connection, which others count so; no queue is left to nobody."""
    members = [f"east/{name}" for name in listed]
    queues = [MessageQueue("T", "east@b", queue_id) for queue_id in range(13)]
    shares = [allocate(strategy, member, queues, members) for member in sorted(set(members))]

    assert sorted(chain(*shares)) == queues


def test_a_member_listed_twice_counts_twice() -> None:
    """B1: one entry for each connection, as Java counts."""
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(6)]
    assert allocate(Averagely(), "a", queues, ["b", "a", "a"]) == tuple(queues[:4])
    assert allocate(Averagely(), "b", queues, ["b", "a", "a"]) == tuple(queues[4:])


def test_a_member_listed_without_end_costs_no_more_than_as_many_members() -> None:
    """H9: the list is a broker's; in quadratic time this would take hours."""
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(6)]

    assert set(allocate(ConsistentHash(), "a", queues, ["a"] * 50_000)) == set(queues)


def test_a_broker_name_has_a_room_only_if_it_has_two_parts() -> None:
    """B2: as Java's split counts them, trailing empty ones left out."""
    names = ("east@b", "east@b@", "east@", "east", "east@b@c", "@b", "west@b")
    queues = [MessageQueue("T", name, 0) for name in names]
    allocated = ByMachineRoom(frozenset({"east"})).allocate("c", queues, ["c"])
    assert [queue.broker_name for queue in allocated] == ["east@b", "east@b@"]


@pytest.mark.parametrize(
    ("client_id", "room"),
    [
        ("10.0.0.1@east/worker-1", "east"),
        ("east/1@worker/2", "east"),
        ("10.0.0.1@worker-1", "10.0.0.1@worker-1"),
        ("10.0.0.1@/w", ""),
    ],
)
def test_a_member_s_room_stands_before_the_slash(client_id: str, room: str) -> None:
    """B2: in the instance name, the only part of a client id that a user chooses,
    or at the front of the id.
    """
    assert room_of_client(client_id) == room


def test_members_get_the_queues_of_their_own_rooms() -> None:
    """B2: by client ids as this package and Java's client make them of instance names."""
    members = ["10.0.0.1@east/a", "10.0.0.2@east/b", "10.0.9.1@west/c"]
    queues = [
        MessageQueue("T", name, queue_id) for name in ("east@b", "west@b", "north@b") for queue_id in range(6)
    ]

    shares = {
        one: {queue.broker_name for queue in allocate(MachineRoomNearby(), one, queues, members)}
        for one in members
    }

    assert shares == {
        members[0]: {"east@b", "north@b"},
        members[1]: {"east@b", "north@b"},
        members[2]: {"west@b", "north@b"},
    }


@pytest.mark.parametrize(
    ("broker_name", "client_id"), [("@b", "east/c"), ("east@b", "/c"), ("east@b", "h@/c")]
)
def test_what_stands_in_no_room_is_refused_by_nearby(broker_name: str, client_id: str) -> None:
    """B2: Java raises too, rather than to leave a queue out."""
    with pytest.raises(ValueError, match="cannot be recognised from its name"):
        allocate(MachineRoomNearby(), client_id, [MessageQueue("T", broker_name, 0)], [client_id])


def test_by_config_ignores_the_member_list() -> None:
    """B2: the configured list, even for a consumer that no broker lists."""
    configured = (MessageQueue("T", "b", 7),)
    assert allocate(ByConfig(configured), "", [], []) == configured


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("averagely", Averagely()),
        (" averagelyByCircle ", AveragelyByCircle()),
        ("consistentHash", ConsistentHash(10)),
        ("consistentHash:100", ConsistentHash(100)),
        ("byMachineRoom:east, west", ByMachineRoom(frozenset({"east", "west"}))),
        ("machineRoomNearby", MachineRoomNearby(Averagely())),
        ("machineRoomNearby:consistentHash:3", MachineRoomNearby(ConsistentHash(3))),
        (
            "byConfig:T/b/0,T/room@b/11",
            ByConfig((MessageQueue("T", "b", 0), MessageQueue("T", "room@b", 11))),
        ),
        (f"{__name__}:Greedy", None),
    ],
)
def test_a_strategy_is_found_by_its_name(text: str, expected: AllocationStrategy | None) -> None:
    """B2: option allocateMessageQueueStrategy."""
    strategy = allocation_strategy(text)
    assert strategy == expected if expected is not None else strategy.name == "GREEDY"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no strategy"),
        ("average", "names no strategy"),
        (":Class", "names no strategy"),
        ("module:", "names no strategy"),
        ("averagely:2", "this strategy takes no value"),
        ("consistentHash:0", "a number of places"),
        ("consistentHash:99999", "a number of places"),
        ("byMachineRoom", "has an empty item instead of a machine room"),
        ("byMachineRoom:east,", "has an empty item instead of a machine room"),
        ("byConfig", "has an empty item instead of a queue (TOPIC/BROKER/QUEUE)"),
        ("byConfig:T/b", "instead of a queue (TOPIC/BROKER/QUEUE)"),
        ("byConfig:T/b/x", "instead of a queue (TOPIC/BROKER/QUEUE)"),
        ("machineRoomNearby:average", "names no strategy"),
        ("no_such_module:Class", "No module named 'no_such_module'"),
        (f"{__name__}:NoSuchClass", "names no class 'NoSuchClass'"),
        (f"{__name__}:allocate", "names no class 'allocate'"),
        (f"{__name__}:Counter", "without the method allocate"),
        (f"{__name__}:NeedsArguments", "NeedsArguments() failed: TypeError"),
    ],
)
def test_an_unknown_strategy_is_reported_with_its_option(text: str, problem: str) -> None:
    """B2: clear errors."""
    with pytest.raises(OptionError) as caught:
        allocation_strategy(text)
    assert problem in str(caught.value)
    assert "allocateMessageQueueStrategy=" in str(caught.value)
    assert str(caught.value).count("Use averagely,") == 1


class Greedy:
    """A user's own strategy: everything for everybody."""

    name = "GREEDY"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        return queues


class NeedsArguments:
    """A user's own strategy that cannot be made by name."""

    def __init__(self, argument: str) -> None:
        self.argument = argument

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        return ()
