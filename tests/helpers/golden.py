"""Vectors in tests/golden, recorded from the real Java code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parents[1] / "golden"


@cache
def golden(name: str) -> Any:
    """Return a JSON file of vectors; do not change the returned value."""
    return json.loads((_FOLDER / name).read_text())


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """One request or response as it was on the wire between Java programs."""

    pair_id: int
    is_response: bool
    request_code: int
    code: int
    header: bytes
    """JSON text, or the binary form."""
    is_binary: bool
    body: bytes
    is_body_whole: bool

    def __str__(self) -> str:
        return f"{self.pair_id}-{'response' if self.is_response else 'request'}-{self.request_code}"

    @property
    def frame(self) -> bytes:
        """The frame without its length word, with as much body as was recorded."""
        return (self.is_binary << 24 | len(self.header)).to_bytes(4, "big") + self.header + self.body


def recorded_commands(request_code: int | None = None) -> tuple[RecordedCommand, ...]:
    """Return all commands of frames.jsonl, or those of one request code and their answers."""
    return tuple(_commands(request_code))


def _commands(request_code: int | None) -> Iterator[RecordedCommand]:
    for pair in _pairs():
        if request_code in (None, pair["code"]):
            yield _command(pair, pair["request"], is_response=False)
            if pair["response"] is not None:
                yield _command(pair, pair["response"], is_response=True)


def recorded_command(pair_id: int, *, is_response: bool = False) -> RecordedCommand:
    """One command of frames.jsonl."""
    return next(
        command
        for command in recorded_commands()
        if command.pair_id == pair_id and command.is_response == is_response
    )


@cache
def _pairs() -> tuple[dict[str, Any], ...]:
    lines = (_FOLDER / "frames.jsonl").read_text().splitlines()
    return tuple(json.loads(line) for line in lines[1:])


def _command(pair: dict[str, Any], side: dict[str, Any], *, is_response: bool) -> RecordedCommand:
    is_binary = side["header"] is None
    body = bytes.fromhex(side["body_hex"]) if side.get("body_hex") else b""
    return RecordedCommand(
        pair_id=pair["id"],
        is_response=is_response,
        request_code=pair["code"],
        code=side["code"] if is_response else pair["code"],
        header=bytes.fromhex(side["header_hex"]) if is_binary else side["header"].encode(),
        is_binary=is_binary,
        body=body,
        is_body_whole=len(body) == side["body_len"],
    )
