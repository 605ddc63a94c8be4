"""A blocking socket that speaks frames; it knows nothing of channels, retries or threads."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder
from tests.helpers.wait import PATIENCE_S

_TIMEOUT_S = PATIENCE_S


class RawClient:
    """Sends commands and takes whatever comes, in the order it comes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._decoder = FrameDecoder()
        self._received: list[RemotingCommand] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, command: RemotingCommand) -> None:
        self.socket.sendall(encode_frame(command))

    def receive(self) -> RemotingCommand:
        """The next command; EOFError when the server closed the connection."""
        while not self._received:
            data = self._read()
            if not data:
                raise EOFError
            self._received += self._decoder.feed(data)
        return self._received.pop(0)

    def call(self, command: RemotingCommand) -> RemotingCommand:
        self.send(command)
        return self.receive()

    def read_to_end(self) -> bytes:
        """All bytes until the server closes."""
        data = b""
        while piece := self._read():
            data += piece
        return data

    def _read(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except ConnectionResetError:
            return b""
