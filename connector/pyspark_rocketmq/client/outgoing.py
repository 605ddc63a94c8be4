"""What a channel sends: something that becomes a frame once its opaque is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame

Signer = Callable[[RemotingCommand], RemotingCommand]
"""Adds credentials to a request, after which its ext fields and body must not change."""

_PLACE_FIELDS = (
    ("consumerGroup", "consumerGroup"),
    ("group", "consumerGroup"),
    ("groupName", "consumerGroup"),
    ("clientId", "clientId"),
    ("a", "producerGroup"),
    ("producerGroup", "producerGroup"),
    ("topic", "topic"),
    ("b", "topic"),
    ("bname", "broker"),
    ("n", "broker"),
    ("queueId", "queue"),
    ("e", "queue"),
    ("queueOffset", "queueOffset"),
    ("commitOffset", "commitOffset"),
)


class Outgoing(Protocol):
    """A request without its opaque."""

    def encode(self, opaque: int) -> bytes:
        """The whole frame, length prefix included."""
        ...

    def command(self) -> RemotingCommand:
        """The same request as a command; used for signing and for error texts."""
        ...


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """Any command as :class:`Outgoing`."""

    plain: RemotingCommand

    def encode(self, opaque: int) -> bytes:
        """The whole frame, length prefix included."""
        return encode_frame(replace(self.plain, opaque=opaque))

    def command(self) -> RemotingCommand:
        """The command, opaque not set."""
        return self.plain


def describe_request(command: RemotingCommand) -> str:
    """Say what was asked, for an error text: the code's name, group, topic, broker, queue and offset."""
    fields = command.ext_fields
    # The one-letter names of SEND_MESSAGE_V2 mean this only there: no other header has a field "b" or "e".
    places = [f"{label}={fields[name]}" for name, label in _PLACE_FIELDS if name in fields]
    return " ".join([request_name(command.code), *places])


def request_name(code: int) -> str:
    """Java's name of a request code, or the number if it is unknown."""
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"
