"""What a peer says comes back to it in answers, whatever it was."""

from __future__ import annotations

from broker_sim.cluster import SimCluster
from broker_sim.server import frame_of
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH, RemotingCommand, SerializeType, encode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder
from tests.broker_sim.exchange import request
from tests.broker_sim.raw_client import RawClient


def test_half_a_surrogate_pair_comes_back_as_a_question_mark() -> None:
    """A1: JSON can name a topic that UTF-8 cannot; the connection stays."""
    asked = encode_frame(request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "half"}))
    with SimCluster() as cluster, RawClient(cluster.broker_addresses["broker-a"]) as client:
        for topic in (b"whole", b"\\ud800"):
            client.socket.sendall(_with_topic(asked, topic))
        answers = [client.receive(), client.receive()]

    assert [answer.code for answer in answers] == [ResponseCode.TOPIC_NOT_EXIST] * 2
    assert "?" in (answers[1].remark or "")


def _with_topic(frame: bytes, topic: bytes) -> bytes:
    header = frame[8:].replace(b'"half"', b'"%s"' % topic)
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def test_an_answer_that_is_too_long_for_a_frame_is_an_error() -> None:
    """A1: never silence."""
    for serialize_type in SerializeType:
        answer = RemotingCommand(
            code=0, flag=1, opaque=5, body=bytes(MAX_FRAME_LENGTH), serialize_type=serialize_type
        )
        (sent,) = FrameDecoder().feed(frame_of(answer))
        assert (sent.code, sent.opaque, sent.flag) == (ResponseCode.SYSTEM_ERROR, 5, 1)
        assert "at most" in (sent.remark or "")
