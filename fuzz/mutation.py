"""Small changes of inputs that a coverage-guided engine does not find by itself in a binary protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

INFLATED_BYTES: Final = 1 << 20
"""Size of inputs that repeat a part many times: they reveal quadratic time, and memory allocated on announcement."""

_NUMBERS: Final = (
    0,
    1,
    2,
    3,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
)
_TEXT_NUMBERS: Final = (
    b"-1",
    b"0",
    b"00",
    b"1e9",
    b"-0",
    b"2147483648",
    b"9223372036854775808",
    b"9" * 5000,
    b"NaN",
)
_TOKENS: Final = (
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"{}", b"[[", b"null", b"true", b'{"a":', b"{0:", b"{{}:", b"\x00",
    b"\x01", b"\x02", b"\x01\x02", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\\ud800", b" ", b"||",
    b"(", b")", b" OR ", b" NOT ", b"'", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00",
    b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab",
)  # fmt: skip
_TEXT: Final = re.compile(rb'(?<=")[^"\\]*(?=")')
_DIGITS: Final = re.compile(rb"[0-9]+")


class Mutator:
    """Changes inputs by the numbers of one random generator, so a seed repeats them."""

    def __init__(self, random: Random, seeds: Sequence[bytes], inflated_bytes: int = INFLATED_BYTES) -> None:
        self._random = random
        self._inflated_bytes = inflated_bytes
        self._seeds = seeds or (b"",)
        self._changes: tuple[Callable[[bytearray], None], ...] = (
            self._flip_bit,
            self._set_byte,
            self._write_number,
            self._write_number,
            self._remove,
            self._repeat,
            self._insert_token,
            self._insert_token,
            self._cut,
            self._splice,
            self._replace_digits,
            self._replace_text,
        )

    def seed(self) -> bytes:
        """One of the inputs to begin with."""
        return self._random.choice(self._seeds)

    def changed(self, data: bytes) -> bytes:
        """``data`` after one to five small changes."""
        changed = bytearray(data)
        for _ in range(self._random.choice((1, 1, 1, 2, 3, 5))):
            self._random.choice(self._changes)(changed)
        return bytes(changed)

    def inflated(self, data: bytes) -> bytes:
        """Repeat a part of ``data`` in its place until the whole has ``inflated_bytes``."""
        start, end = self._range(bytearray(data), most=64)
        part = data[start:end] or b"["
        times = max(1, (self._inflated_bytes - len(data)) // len(part))
        return data[:start] + part * times + data[end:]

    def _range(self, data: bytearray, most: int) -> tuple[int, int]:
        start = self._random.randrange(len(data) + 1)
        return start, min(len(data), start + self._random.randint(1, most))

    def _flip_bit(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)

    def _set_byte(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] = self._random.randrange(256)

    def _write_number(self, data: bytearray) -> None:
        width = self._random.choice((1, 2, 4, 4, 8))
        number = self._random.choice((*_NUMBERS, len(data), len(data) - 4, -1 - self._random.randrange(8)))
        start = self._random.randrange(len(data) + 1)
        data[start : start + width] = (number % (1 << 8 * width)).to_bytes(width, "big")

    def _remove(self, data: bytearray) -> None:
        start, end = self._range(data, most=32)
        del data[start:end]

    def _repeat(self, data: bytearray) -> None:
        start, end = self._range(data, most=32)
        data[start:start] = data[start:end] * self._random.choice((1, 1, 2, 40))

    def _insert_token(self, data: bytearray) -> None:
        start = self._random.randrange(len(data) + 1)
        data[start:start] = self._random.choice(_TOKENS) * self._random.choice((1, 1, 1, 2, 1200))

    def _cut(self, data: bytearray) -> None:
        del data[self._random.randrange(len(data) + 1) :]

    def _splice(self, data: bytearray) -> None:
        other = self.seed()
        start, end = self._range(bytearray(other), most=len(other) + 1)
        at, to = self._range(data, most=len(data) + 1)
        data[at:to] = other[start:end]

    def _replace_digits(self, data: bytearray) -> None:
        found = list(_DIGITS.finditer(data))
        if found:
            start, end = self._random.choice(found).span()
            data[start:end] = self._random.choice(_TEXT_NUMBERS)

    def _replace_text(self, data: bytearray) -> None:
        found = list(_TEXT.finditer(data))
        if found:
            start, end = self._random.choice(found).span()
            data[start:end] = self._random.choice((*_TOKENS, *_TEXT_NUMBERS)) * self._random.choice(
                (1, 1, 300)
            )
