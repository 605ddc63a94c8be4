"""What goes over a connection within a query: proofs first, then lines that nobody else can have written."""

from __future__ import annotations

import json

import pytest

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.hub.session import (
    LONGEST_GREETING,
    Greeting,
    HubAddress,
    Introduction,
    LineBuffer,
    Session,
    queue_list,
)

KEY = b"k" * 32


def sessions() -> tuple[Session, Session]:
    """The hub's and the other's."""
    greeting, introduction = Greeting("task", KEY), Introduction("hub", KEY)
    answer, none = introduction.receive(greeting.first_line())
    assert none is None
    proof, of_hub = greeting.receive(answer)
    _, of_task = introduction.receive(proof)
    assert of_task is not None
    return of_hub, of_task


def test_both_directions_carry_messages() -> None:
    hub, task = sessions()

    for number in range(3):
        assert task.open(hub.seal({"is": "go", "n": number}).rstrip(b"\n")) == {"is": "go", "n": number}
        assert hub.open(task.seal({"n": number}).rstrip(b"\n")) == {"n": number}


def test_a_peer_without_the_key_is_refused_on_either_side() -> None:
    """H9"""
    greeting = Greeting("stranger", KEY)
    answer, _ = Introduction("hub", b"another").receive(greeting.first_line())
    with pytest.raises(RemoteProtocolError, match="does not know the query's key"):
        greeting.receive(answer)

    false_hub, introduction = Greeting("task", b"another"), Introduction("hub", KEY)
    introduction.receive(false_hub.first_line())
    with pytest.raises(RemoteProtocolError, match="is not the query's hub"):
        introduction.receive(json.dumps({"proof": "0" * 64}).encode())


def test_the_key_does_not_travel() -> None:
    """A5"""
    greeting, introduction = Greeting("task", KEY), Introduction("hub", KEY)
    first = greeting.first_line()
    answer, _ = introduction.receive(first)
    proof, session = greeting.receive(answer)
    everything = first + answer + proof + session.seal({"is": "go"})

    assert KEY not in everything
    assert KEY.hex().encode() not in everything


@pytest.mark.parametrize("change", ["again", "altered", "reflected", "of another connection"])
def test_a_line_that_the_other_side_did_not_write_next_is_refused(change: str) -> None:
    """H9"""
    hub, task = sessions()
    line = hub.seal({"is": "give_up"}).rstrip(b"\n")
    task.open(line)
    wrong = {
        "again": line,
        "altered": hub.seal({"is": "go"}).rstrip(b"\n").replace(b"go", b"no"),
        "reflected": task.seal({"is": "go"}).rstrip(b"\n"),
        "of another connection": sessions()[0].seal({"is": "go"}).rstrip(b"\n"),
    }[change]

    with pytest.raises(RemoteProtocolError, match="was not written by"):
        task.open(wrong)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"nonsense", b'{"nonce": 1, "proof": "x"}', b"[" * 400, b'{"proof": "\xc3\xa4"}'],
)
def test_whatever_a_stranger_sends_is_refused(line: bytes) -> None:
    """H9"""
    with pytest.raises(RemoteProtocolError):
        Greeting("stranger", KEY).receive(line)
    with pytest.raises(RemoteProtocolError):
        Introduction("hub", KEY).receive(line)


def test_lines_are_cut_wherever_bytes_come_in_pieces() -> None:
    buffer = LineBuffer("peer")
    assert [buffer.feed(bytes([byte])) for byte in b"one\ntwo\n"].count([]) == 6
    assert buffer.feed(b"three\nfour\nfi") == [b"three", b"four"]
    assert buffer.feed(b"ve\n") == [b"five"]


def test_a_line_without_an_end_is_refused_before_it_is_long() -> None:
    """H9"""
    buffer = LineBuffer("peer")
    buffer.feed(b"x" * LONGEST_GREETING)
    with pytest.raises(RemoteProtocolError, match="has more than 512 bytes"):
        buffer.feed(b"x")


@pytest.mark.parametrize("queues", [None, 3, "text", [["T", "b"]], [["T", "b", "x"]], [[1, 2, 3, 4]]])
def test_an_invalid_list_of_queues_is_refused(queues: object) -> None:
    """H9"""
    with pytest.raises(RemoteProtocolError):
        queue_list(queues)


def test_an_address_is_what_was_written_and_shows_no_key() -> None:
    """A5"""
    address = HubAddress.new("::1", 4711)

    assert HubAddress.parse(address.to_text()) == address
    assert address.key.hex() not in repr(address)
    assert repr(address.key) not in repr(address)
    with pytest.raises(LocalProtocolError) as told:
        HubAddress.parse("host:port/secret")
    assert "secret" not in str(told.value)
