from __future__ import annotations

from collections import Counter

import pytest

from bench.raw_pull import pull_ranges, pull_together
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.scripted_server import Peer, Script, ScriptedServer


def answer_at_most(count: int, asked: Counter[tuple[int, int]]) -> Script:
    """A broker that gives ``count`` messages at most, and notes which it gave."""

    def answer(peer: Peer, request: RemotingCommand) -> None:
        fields = request.ext_fields
        queue_id, start = int(fields["queueId"]), int(fields["queueOffset"])
        end = start + min(count, int(fields["maxMsgNums"]))
        asked.update((queue_id, queue_offset) for queue_offset in range(start, end))
        peer.answer(request, 0, ext_fields={"nextBeginOffset": str(end)}, body=b"x" * 100)

    return answer


@pytest.mark.parametrize("at_most", [32, 8, 5])
@pytest.mark.parametrize(("lanes", "depth"), [(2, 16), (1, 1), (3, 2)])
def test_every_message_of_the_ranges_is_pulled_once_however_short_the_answers(
    at_most: int, lanes: int, depth: int
) -> None:
    asked: Counter[tuple[int, int]] = Counter()
    ranges = [(0, 0, 100), (1, 7, 71), (2, 5, 6)]
    with ScriptedServer(answer_at_most(at_most, asked)) as server:
        messages, seconds = pull_ranges(server.address, "orders", ranges, lanes=lanes, depth=depth)

    assert messages == 100 + 64 + 1
    assert seconds > 0
    assert asked == Counter((queue_id, at) for queue_id, start, end in ranges for at in range(start, end))


@pytest.mark.parametrize("depth", [1, 8])
def test_all_queues_together_take_turns_on_one_connection(depth: int) -> None:
    asked: Counter[tuple[int, int]] = Counter()
    ranges = [(0, 0, 100), (1, 7, 71), (2, 5, 6)]
    with ScriptedServer(answer_at_most(5, asked)) as server:
        messages, _ = pull_together(server.address, "orders", ranges, depth=depth)
        first_three = [int(server.next_request().ext_fields["queueId"]) for _ in range(3)]
        connections = server.connection_count

    assert messages == 100 + 64 + 1
    assert connections == 1
    assert asked == Counter((queue_id, at) for queue_id, start, end in ranges for at in range(start, end))
    assert depth == 1 or first_three == [0, 1, 2]


def test_a_refusal_is_an_error() -> None:
    with (
        ScriptedServer(
            lambda peer, request: peer.answer(request, 2, ext_fields={"nextBeginOffset": "0"})
        ) as server,
        pytest.raises(ConnectionError, match="answered"),
    ):
        pull_ranges(server.address, "orders", [(0, 0, 10)], lanes=1, depth=1)
