"""A connection within a query: proofs first, then lines that nobody else can have written."""

from __future__ import annotations

import json

import pytest

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.hub.messages import JsonObject
from pyspark_rocketmq.hub.session import LONGEST_GREETING, HubAddress, Session, line_bytes

KEY = b"k" * 32


def sessions(*, hub_key: bytes = KEY, task_key: bytes = KEY) -> tuple[Session, Session]:
    """The hub's and the other's, not yet open."""
    return Session("task", hub_key, is_hub=True), Session("hub", task_key, is_hub=False)


def opened() -> tuple[Session, Session]:
    hub, task = sessions()
    introduction, _ = task.receive(hub.greeting())
    proof, _ = hub.receive(introduction)
    assert (hub.is_open, task.is_open) == (True, False)
    assert task.receive(proof) == (b"", None)
    return hub, task


def carried(line: bytes, to: Session) -> JsonObject | None:
    return to.receive(line.rstrip(b"\n"))[1]


def test_both_directions_carry_messages() -> None:
    hub, task = opened()

    for number in range(3):
        assert carried(hub.seal({"type": "go", "n": number}), task) == {"type": "go", "n": number}
        assert carried(task.seal({"n": number}), hub) == {"n": number}


def test_a_line_is_in_utf_8_and_carries_any_text() -> None:
    hub, task = opened()
    message = {"text": "订单 é 😀 \x00 \u2028 \n \ud800"}

    line = task.seal(message)

    assert "订单 é 😀".encode() in line
    assert len(line) == 32 + line_bytes(message) + len(b"\n")
    assert [carried(each, hub) for each in hub.lines(line)] == [message]


def test_a_peer_without_the_key_is_refused_on_either_side() -> None:
    """H9"""
    hub, stranger = sessions(task_key=b"another")
    introduction, _ = stranger.receive(hub.greeting())
    with pytest.raises(RemoteProtocolError, match="does not have the query's key"):
        hub.receive(introduction)

    false_hub, task = sessions(hub_key=b"another")
    task.receive(false_hub.greeting())
    with pytest.raises(RemoteProtocolError, match="another one than the query's driver"):
        task.receive(json.dumps({"proof": "0" * 64}).encode())


def test_the_key_does_not_travel() -> None:
    """A5"""
    hub, task = sessions()
    greeting = hub.greeting()
    introduction, _ = task.receive(greeting)
    proof, _ = hub.receive(introduction)
    everything = greeting + introduction + proof + hub.seal({"type": "go"})

    assert KEY not in everything
    assert KEY.hex().encode() not in everything


@pytest.mark.parametrize("change", ["again", "altered", "reflected", "of another connection"])
def test_a_line_that_the_other_side_did_not_write_next_is_refused(change: str) -> None:
    """H9"""
    hub, task = opened()
    line = hub.seal({"type": "give_up"}).rstrip(b"\n")
    carried(line, task)
    wrong = {
        "again": line,
        "altered": hub.seal({"type": "go"}).rstrip(b"\n").replace(b"go", b"no"),
        "reflected": task.seal({"type": "go"}).rstrip(b"\n"),
        "of another connection": opened()[0].seal({"type": "go"}).rstrip(b"\n"),
    }[change]

    with pytest.raises(RemoteProtocolError, match="was not written by"):
        task.receive(wrong)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"nonsense", b'{"nonce": 1, "proof": "x"}', b"[" * 400, b'{"proof": "\xc3\xa4"}'],
)
def test_whatever_a_stranger_sends_is_refused(line: bytes) -> None:
    """H9"""
    for session in sessions():
        with pytest.raises(RemoteProtocolError):
            session.receive(line)


def test_lines_are_cut_wherever_bytes_come_in_pieces() -> None:
    buffer, _ = sessions()
    assert [buffer.lines(bytes([byte])) for byte in b"one\ntwo\n"].count([]) == 6
    assert buffer.lines(b"three\nfour\nfi") == [b"three", b"four"]
    assert buffer.lines(b"ve\n") == [b"five"]


def test_a_line_without_an_end_is_refused_before_it_is_long() -> None:
    """H9"""
    buffer, _ = sessions()
    buffer.lines(b"x" * LONGEST_GREETING)
    with pytest.raises(RemoteProtocolError, match="a line of more than 512 bytes"):
        buffer.lines(b"x")


def test_a_peer_that_encrypts_is_refused_with_the_reason() -> None:
    """A5: its first bytes have no line's end."""
    hub, _ = sessions()
    with pytest.raises(RemoteProtocolError, match="the process there encrypts, but this query does not"):
        hub.lines(b"\x16\x03\x01\x00\xdc\x01\x00")


def test_an_address_is_what_was_written_and_shows_no_key() -> None:
    """A5"""
    address = HubAddress.new("::1", 4711)

    assert HubAddress.parse(address.to_text()) == address
    assert address.key.hex() not in repr(address)
    assert repr(address.key) not in repr(address)
    encrypted = HubAddress.new("::1", 4711, b"f" * 32)
    assert HubAddress.parse(encrypted.to_text()) == encrypted
    with pytest.raises(LocalProtocolError) as told:
        HubAddress.parse("host:port/secret")
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("lost", [1, 2, 64])
def test_an_address_that_was_cut_off_does_not_turn_encryption_off(lost: int) -> None:
    """A5"""
    address = HubAddress.new("::1", 4711, b"f" * 32)
    with pytest.raises(LocalProtocolError, match="is not HOST:PORT/KEY"):
        HubAddress.parse(address.to_text()[:-lost])
