"""Texts that servers and other members choose, wherever they are shown."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.display import MOST_CHARACTERS, peer_text
from pyspark_rocketmq.errors import (
    BrokerError,
    ChannelClosed,
    ConnectFailed,
    RemoteProtocolError,
    RequestTimeout,
)
from pyspark_rocketmq.model import BrokerAddress, BrokerData, MessageQueue, TopicRoute

EVIL = "b\n26/11/22 ERROR forged\r\x1b[2J\x1b]0;owned\x07\x9b2J\u2028\u202e"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("broker-a", "broker-a"),
        ("订单 é", "订单 é"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[2J\x07\x7f\x9b", "\\x1b[2J\\x07\\x7f\\x9b"),
        ("\u2028\u202e\ud800\U000e0001", "\\u2028\\u202e\\ud800\\U000e0001"),
        ("C:\\new", "C:\\new"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    assert peer_text(text) == shown


@given(st.text(st.characters()))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert peer_text(text).isprintable()


@pytest.mark.parametrize("character", ["x", "\x1b", "\U000e0001"])
@pytest.mark.parametrize("length", [MOST_CHARACTERS - 1, MOST_CHARACTERS, MOST_CHARACTERS + 1, 9 << 20])
def test_a_long_text_is_cut(character: str, length: int) -> None:
    shown = peer_text(character * length)

    assert len(shown) <= MOST_CHARACTERS
    assert shown.endswith("…") == (len(character.encode("unicode_escape")) * length > MOST_CHARACTERS)


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(1, EVIL, request=EVIL, address=EVIL),
        ConnectFailed(EVIL, EVIL),
        ChannelClosed(EVIL, EVIL),
        RequestTimeout(EVIL, EVIL, 1.0),
        RemoteProtocolError(EVIL),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_show_it_on_one_line(error: Exception) -> None:
    """F3."""
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert str(each).isprintable()
        assert "forged" in str(each)


def test_an_error_keeps_of_a_giant_remark_what_can_be_shown() -> None:
    """F3: Spark hands the error's text to the driver, and logs keep it."""
    error = BrokerError(1, "\n" + "x" * (9 << 20))

    assert len(str(error)) < MOST_CHARACTERS + 100
    assert len(repr(error)) < MOST_CHARACTERS + 100
    assert len(pickle.dumps(error)) < MOST_CHARACTERS + 200


def test_queues_and_brokers_show_it_on_one_line() -> None:
    broker = BrokerData(broker_name=EVIL, cluster="c", addresses={0: BrokerAddress("h:1")})

    assert str(MessageQueue(EVIL, EVIL, 0)).isprintable()
    assert TopicRoute(brokers=(broker,), queues=()).brokers_shown().isprintable()
