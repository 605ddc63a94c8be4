from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.client.pull_connection import ReceiveBuffer
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.command import RemotingCommand, SerializeType, encode_frame
from pyspark_rocketmq.wire.requests.pull import (
    PullHeaderPattern,
    PullRequest,
    PullResponseDecoder,
    PullResult,
    PullStatus,
    pull_result,
)
from tests.helpers.golden import recorded_command

REQUEST = PullRequest(consumer_group="g", queue=MessageQueue("orders", "broker-a", 3), queue_offset=17)
OFFSET = st.integers(0, 2**63 - 1)
JAVA = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"32","maxOffset":"64",'
    b'"minOffset":"0"},"flag":1,"language":"JAVA","opaque":7,"remark":"FOUND",'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
COMMAND = RemotingCommand(
    code=0,
    opaque=7,
    flag=1,
    ext_fields={
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "32",
        "maxOffset": "64",
        "minOffset": "0",
    },
)


def found(opaque: int, next_begin_offset: int, body: bytes = b"x", **changes: object) -> RemotingCommand:
    fields = {
        "nextBeginOffset": str(next_begin_offset),
        "minOffset": "0",
        "maxOffset": "64",
        "suggestWhichBrokerId": "0",
    }
    return RemotingCommand(code=0, opaque=opaque, flag=1, ext_fields=fields, body=body, **changes)  # type: ignore[arg-type]


def fed(
    decoder: PullResponseDecoder, data: bytes, *, chunk: int | None = None
) -> list[tuple[int, PullResult | RemotingCommand]]:
    """What comes out when ``data`` is received in chunks of at most so many bytes."""
    taken: list[tuple[int, PullResult | RemotingCommand]] = []
    buffer = ReceiveBuffer()
    while data:
        room = buffer.room()
        count = min(len(data), len(room), chunk or len(data))
        room[:count], data = data[:count], data[count:]
        taken += buffer.take_in(count, decoder.decode)
    return taken


def meaning(opaque: int, answer: PullResult | RemotingCommand) -> tuple[int, object]:
    """The same for an answer read either way."""
    return opaque, answer if isinstance(answer, PullResult) else pull_result(REQUEST, answer, "b:1")


@given(
    st.lists(
        st.builds(
            lambda opaque, offsets, body: RemotingCommand(
                code=0,
                opaque=opaque,
                flag=1,
                remark="FOUND",
                ext_fields=dict(
                    zip(
                        ("suggestWhichBrokerId", "nextBeginOffset", "maxOffset", "minOffset"),
                        map(str, offsets),
                        strict=True,
                    )
                ),
                body=body,
            ),
            st.integers(0, 2**31 - 1),
            st.tuples(OFFSET, OFFSET, OFFSET, OFFSET),
            st.binary(max_size=40),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 400),
)
def test_the_quick_way_reads_what_the_decoder_reads(commands: list[RemotingCommand], chunk: int) -> None:
    """A1: whatever the numbers, bodies and chunks."""
    taken = fed(PullResponseDecoder(), b"".join(map(encode_frame, commands)), chunk=chunk)

    assert [meaning(*each) for each in taken] == [meaning(each.opaque, each) for each in commands]


def test_the_second_answer_of_a_kind_is_read_quickly() -> None:
    (_, first), second = fed(
        PullResponseDecoder(), encode_frame(found(1, 32)) + encode_frame(found(2, 64, b"more"))
    )

    assert isinstance(first, RemotingCommand)
    assert second == (2, PullResult(PullStatus.FOUND, 64, 0, 64, 0, b"more"))


@pytest.mark.parametrize("pair_id", [31, 32, 33, 39, 40, 143])
def test_javas_answers_mean_the_same_twice(pair_id: int) -> None:
    """A1: golden frames of the Java broker, found and not found."""
    frame = recorded_command(pair_id, is_response=True).frame

    first, second = fed(PullResponseDecoder(), (len(frame).to_bytes(4, "big") + frame) * 2)

    assert meaning(*first) == meaning(*second)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(RemotingCommand(code=19, opaque=2, flag=1, ext_fields=COMMAND.ext_fields), id="code"),
        pytest.param(
            RemotingCommand(code=0, opaque=2, flag=0, ext_fields=COMMAND.ext_fields), id="a request"
        ),
        pytest.param(found(2, 64, remark="OTHER"), id="remark"),
        pytest.param(found(2, 64, serialize_type=SerializeType.ROCKETMQ), id="binary header"),
        pytest.param(found(2, 2**62), id="a number too large to be sure of"),
        pytest.param(found(2, -5), id="a negative number"),
    ],
)
def test_a_header_of_another_kind_goes_to_the_decoder(other: RemotingCommand) -> None:
    """A1: the pattern never guesses."""
    _, (opaque, taken) = fed(PullResponseDecoder(), encode_frame(found(1, 32)) + encode_frame(other))

    assert isinstance(taken, RemotingCommand)
    assert meaning(opaque, taken) == meaning(other.opaque, other)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(JAVA.replace(b'"remark":"FOUND"', b'"remark":"\\"opaque\\":7"'), id="escapes"),
        pytest.param(JAVA.replace(b'"remark"', b'"opaque":7,"remark"'), id="a number twice"),
        pytest.param(JAVA.replace(b'"minOffset":"0"', b'"minOffset":"00"'), id="another spelling"),
        pytest.param(JAVA.replace(b'"minOffset":"0"', b'"minOffset":0'), id="a bare number"),
        pytest.param(JAVA.replace(b'"opaque":7', b'"opaque": 7'), id="white space"),
    ],
)
def test_a_header_whose_numbers_may_be_elsewhere_makes_no_pattern(header: bytes) -> None:
    assert PullHeaderPattern.of(JAVA, COMMAND) is not None
    assert PullHeaderPattern.of(header, COMMAND) is None


def test_a_body_larger_than_the_buffer_arrives_whole() -> None:
    """A1: broker limits may be raised."""
    body = bytes(range(256)) * 4 * 3000
    frames = encode_frame(found(1, 32)) + encode_frame(found(2, 64, body)) + encode_frame(found(3, 96))

    taken = fed(PullResponseDecoder(), frames, chunk=100_000)

    assert [meaning(*each) for each in taken] == [
        meaning(1, found(1, 32)),
        meaning(2, found(2, 64, body)),
        meaning(3, found(3, 96)),
    ]


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x00\x00\x00\x02\x00\x00\x00\x00",
        b"\x00\x00\x00\x06\x00\x00\x00\x05{}",
    ],
    ids=["no frame", "too short", "header longer than the frame"],
)
def test_what_is_no_frame_is_refused(garbage: bytes) -> None:
    """A1: a frame that is announced too long is refused before it comes."""
    with pytest.raises(RemoteProtocolError):
        fed(PullResponseDecoder(), encode_frame(found(1, 32)) + encode_frame(found(2, 64)) + garbage)


def test_a_peer_whose_headers_always_differ_costs_few_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    learn = PullHeaderPattern.of

    def counted(*given: Any) -> PullHeaderPattern | None:
        made.append(1)
        return learn(*given)

    monkeypatch.setattr(PullHeaderPattern, "of", counted)

    fed(PullResponseDecoder(), b"".join(encode_frame(found(n, n, remark=f"r{n}")) for n in range(50)))

    assert len(made) == 8
