"""Frames and connections, below any particular request."""

from __future__ import annotations

import queue
import socket
from functools import partial
from typing import Any

import pytest

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, SerializeType, encode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields, to_ext_fields
from pyspark_rocketmq.wire.requests.headers import (
    GetRouteInfoRequestHeader,
    OffsetResponseHeader,
    QueueRequestHeader,
)
from pyspark_rocketmq.wire.requests.topics import decode_route
from tests.both.support import ANSWER_S
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import wait_until

BOTH_FORMS = pytest.mark.parametrize("form", list(SerializeType), ids=lambda form: form.name.lower())


def max_offset_request(topic: str, form: SerializeType = SerializeType.JSON) -> RemotingCommand:
    header = QueueRequestHeader(topic=topic, queue_id=0)
    return RemotingCommand(
        code=RequestCode.GET_MAX_OFFSET, ext_fields=to_ext_fields(header), serialize_type=form
    )


@BOTH_FORMS
def test_a_broker_reads_both_header_forms(
    cluster: ClusterUnderTest, broker: Channel, soon: Deadline, form: SerializeType
) -> None:
    """A1: the request's header may be JSON or binary; the answer is understood in whatever form it comes."""
    topic = cluster.create_topic(queues=1)

    answer = broker.request(max_offset_request(topic, form), soon)

    assert answer.code == ResponseCode.SUCCESS
    assert from_ext_fields(OffsetResponseHeader, answer.ext_fields).offset == 0


@BOTH_FORMS
def test_a_name_server_reads_both_header_forms(
    cluster: ClusterUnderTest, name_server: Channel, soon: Deadline, form: SerializeType
) -> None:
    """A1, A2: a route can be asked for in JSON and in binary."""
    topic = cluster.create_topic(queues=3, brokers=["broker-b"])
    header = GetRouteInfoRequestHeader(topic=topic)

    answer = name_server.request(
        RemotingCommand(
            code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=to_ext_fields(header), serialize_type=form
        ),
        soon,
    )

    route = decode_route(answer.body)
    assert [(data.broker_name, data.read_queue_nums) for data in route.queues] == [("broker-b", 3)]
    assert route.address_of("broker-b") == cluster.broker_addresses["broker-b"]


@pytest.mark.parametrize("version", [399, 409])
def test_a_route_is_understood_with_bare_and_with_quoted_broker_ids(
    cluster: ClusterUnderTest, name_server: Channel, soon: Deadline, version: int
) -> None:
    """A2: name servers write standard JSON only to clients from version 401 on."""
    topic = cluster.create_topic(queues=2)
    header = GetRouteInfoRequestHeader(topic=topic)

    answer = name_server.request(
        RemotingCommand(
            code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=to_ext_fields(header), version=version
        ),
        soon,
    )

    is_standard = b'{"0":' in answer.body
    assert is_standard == (version >= 401)
    addresses = {data.broker_name: data.master for data in decode_route(answer.body).brokers}
    assert addresses == cluster.broker_addresses


def test_answers_are_matched_by_opaque_when_many_requests_are_under_way(
    cluster: ClusterUnderTest, broker: Channel, soon: Deadline
) -> None:
    """A1: a hundred requests on one connection; each gets its own answer."""
    topics = [cluster.unique_name("absent") for _ in range(100)]
    outcomes: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    header_of = {
        topic: RemotingCommand(code=RequestCode.GET_TOPIC_STATS_INFO, ext_fields={"topic": topic})
        for topic in topics
    }

    for topic, request in header_of.items():
        broker.submit(request, partial(lambda of, outcome: outcomes.put((of, outcome)), topic))
    answers = [outcomes.get(timeout=soon.remaining_s()) for _ in topics]

    assert {topic for topic, _ in answers} == set(topics)
    for topic, answer in answers:
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert f"[{topic}]" in answer.remark


def test_an_unknown_request_is_refused_and_the_connection_stays(
    cluster: ClusterUnderTest, broker: Channel, soon: Deadline
) -> None:
    """A1: code 3, not a dropped connection."""
    refused = broker.request(RemotingCommand(code=9999), soon)
    after = broker.request(max_offset_request("no-such-topic"), soon)

    assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert refused.remark == " request type 9999 not supported"
    assert after.code == ResponseCode.SUCCESS


def test_a_server_names_itself_a_java_server(
    cluster: ClusterUnderTest, broker: Channel, soon: Deadline
) -> None:
    """A1: answers carry language and version of the server; a client must accept any."""
    answer = broker.request(max_offset_request("no-such-topic"), soon)

    assert answer.language == LanguageCode.JAVA
    assert answer.version > 0


def test_a_oneway_request_is_never_answered(
    cluster: ClusterUnderTest, broker: Channel, soon: Deadline
) -> None:
    """A1: flag bit 1; the next answer belongs to the next request."""
    broker.oneway(RemotingCommand(code=9999))

    answer = broker.request(max_offset_request("no-such-topic"), soon)

    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\x7f\xff\xff\xff" + b"x" * 64, id="a length beyond every limit"),
        pytest.param(b"\x00\x00\x00\x0c\x00\x00\x00\x08notjson!", id="a header that is not JSON"),
        pytest.param(b"\x00\x00\x00\x0c\x07\x00\x00\x08notjson!", id="an unknown header form"),
        pytest.param(b"\x00\x00\x00\x08\x00\xff\xff\xff1234", id="a header longer than its frame"),
    ],
)
def test_garbage_closes_only_the_connection_it_came_on(
    cluster: ClusterUnderTest, broker: Channel, soon: Deadline, garbage: bytes
) -> None:
    """A1: a server drops the connection without a word and serves the others."""
    host, _, port = cluster.broker_addresses["broker-a"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=soon.remaining_s()) as spoiled:
        spoiled.sendall(garbage)
        rest = _read_to_the_end(spoiled)

    assert rest == b""
    assert broker.request(max_offset_request("no-such-topic"), soon).code == ResponseCode.SUCCESS


def test_a_frame_cut_off_by_our_death_harms_no_other_client(
    cluster: ClusterUnderTest, broker: Channel, soon: Deadline
) -> None:
    """A1: half a request, then the end of the connection."""
    frame = encode_frame(max_offset_request("no-such-topic"))
    host, _, port = cluster.broker_addresses["broker-a"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=soon.remaining_s()) as dying:
        dying.sendall(frame[:-5])

    assert broker.request(max_offset_request("no-such-topic"), soon).code == ResponseCode.SUCCESS


def test_a_frame_may_come_in_pieces(cluster: ClusterUnderTest, soon: Deadline) -> None:
    """A1: TCP has no messages; two requests cut at every third byte are two requests."""
    frames = encode_frame(max_offset_request("no-such-topic")) * 2
    host, _, port = cluster.broker_addresses["broker-a"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=soon.remaining_s()) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(frames), 3):
            connection.sendall(frames[start : start + 3])
        answers = _read_commands(connection, 2)

    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2


def test_a_channel_pool_connects_again_after_a_broker_was_away(
    cluster: ClusterUnderTest, pool: ChannelPool, soon: Deadline
) -> None:
    """A1: the dead channel is replaced at the next request, not before and not never."""
    address = cluster.broker_addresses["broker-b"]
    before = pool.get(address, soon)
    cluster.stop_broker("broker-b")
    # The system notifies its own thread.
    wait_until(lambda: not before.is_open, reason="the end of the connection")
    cluster.start_broker("broker-b")
    later = Deadline.after(SystemClock(), ANSWER_S)

    after = pool.get(address, later)

    answer = after.request(max_offset_request("no-such-topic"), later)
    assert answer.code == ResponseCode.SUCCESS


def _read_to_the_end(connection: socket.socket) -> bytes:
    data = bytearray()
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return bytes(data)


def _read_commands(connection: socket.socket, count: int) -> list[RemotingCommand]:
    decoder = FrameDecoder()
    commands: list[RemotingCommand] = []
    while len(commands) < count and (chunk := connection.recv(65536)):
        commands += decoder.feed(chunk)
    return commands
