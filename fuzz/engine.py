"""Choice of inputs: by coverage with Atheris if it is installed, otherwise blindly.

Both run every input through :func:`fuzz.judge.judge` and keep the findings of different causes.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Final

from fuzz.judge import Finding, judge
from fuzz.mutation import INFLATED_BYTES, Mutator
from fuzz.target import Target

MAX_FINDINGS: Final = 10
_MAX_BYTES: Final = 1 << 16
_INFLATE_EVERY: Final = 2000
_INFLATED_SEEDS: Final = 5
_REPAIR_SHARE: Final = 0.5
_OWN_MUTATION_SHARE: Final = 0.6


class CurrentInput:
    """The input that is being run, where another process can read it: number of the run, length, bytes."""

    _HEAD: Final = struct.Struct("QI")
    SIZE: Final = _HEAD.size + 2 * INFLATED_BYTES

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self.SIZE)

    @classmethod
    def create(cls, path: Path) -> CurrentInput:
        """Make the file first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        os.truncate(path, cls.SIZE)
        return cls(path)

    def write(self, number: int, data: bytes) -> None:
        """Record the next input."""
        self._HEAD.pack_into(self._map, 0, number, len(data))
        self._map[self._HEAD.size : self._HEAD.size + len(data)] = data

    def read(self) -> tuple[int, bytes]:
        """Number and bytes of the input that is being run."""
        number, length = self._HEAD.unpack_from(self._map)
        return number, bytes(self._map[self._HEAD.size : self._HEAD.size + length])


class Session:
    """The runs of one target in this process."""

    def __init__(
        self,
        target: Target,
        seed: int,
        current: CurrentInput | None = None,
        *,
        inflated_bytes: int = INFLATED_BYTES,
    ) -> None:
        self.target = target
        self.random = Random(seed)
        self.seeds = list(target.seeds())
        self.mutator = Mutator(self.random, self.seeds, inflated_bytes)
        self.inputs = 0
        self.findings: dict[str, Finding] = {}
        self._current = current

    @property
    def is_over(self) -> bool:
        """Whether enough findings were collected."""
        return len(self.findings) >= MAX_FINDINGS

    def run(self, data: bytes) -> None:
        """Judge one input."""
        self.inputs += 1
        if self._current is not None:
            self._current.write(self.inputs, data)
        finding = judge(self.target, data)
        if finding is not None:
            self.findings.setdefault(finding.place, finding)

    def run_inflated_sometimes(self, data: bytes) -> None:
        """Every so often, run an inflated input."""
        if self.inputs % _INFLATE_EVERY == 0:
            self.run_inflated(data)

    def run_inflated(self, data: bytes) -> None:
        """Run a large input made of ``data``; conversations would only wait for each other."""
        if not self.target.is_conversation:
            inflated = self.mutator.inflated(data)
            self.run(inflated)
            self.run(self.target.repair(inflated))

    def mutated(self, data: bytes) -> bytes:
        """Return ``data`` changed, possibly with its outer lengths corrected."""
        changed = self.mutator.changed(data)[:_MAX_BYTES]
        return self.target.repair(changed) if self.random.random() < _REPAIR_SHARE else changed

    def run_seeds(self) -> None:
        """The valid inputs as they are, and some with a part of them inflated."""
        for data in self.seeds:
            with suppress(Exception):  # once without a verdict: modules are imported, caches filled
                self.target.run(data)
        for data in self.seeds:
            self.run(data)
        for data in self.random.sample(self.seeds, min(_INFLATED_SEEDS, len(self.seeds))):
            self.run_inflated(data)


def run_blindly(session: Session, *, goes_on: Callable[[int], bool]) -> None:
    """Mutate seeds and their mutants while ``goes_on`` accepts the number of inputs, until enough is found."""
    session.run_seeds()
    data = session.mutator.seed()
    while goes_on(session.inputs) and not session.is_over:
        data = session.mutator.seed() if session.random.random() < 0.5 else data
        data = session.mutated(data)
        session.run(data)
        session.run_inflated_sometimes(data)


def has_coverage_engine() -> bool:
    """Whether Atheris is installed; it has wheels for Linux on x86-64 only."""
    return find_spec("atheris") is not None


def run_by_coverage(
    session: Session, *, seed: int, seconds: float, corpus: Path, done: Callable[[], None]
) -> None:
    """Let libFuzzer choose until ``seconds`` are over or enough is found; it never returns: ``done`` ends the process."""
    import atheris

    ends_s = time.monotonic() + seconds
    session.run_seeds()
    _write_seeds(session, corpus)

    def run_one(data: bytes) -> None:
        session.run(data)
        session.run_inflated_sometimes(data)
        if session.is_over or time.monotonic() > ends_s:
            done()

    def mutate(data: bytes, max_size: int, number: int) -> bytes:
        session.random.seed(number)
        if session.random.random() < _OWN_MUTATION_SHARE:
            return session.mutated(data)[:max_size]
        changed: bytes = atheris.Mutate(data, max_size)
        return (
            session.target.repair(changed)[:max_size] if session.random.random() < _REPAIR_SHARE else changed
        )

    # Our own judge limits time and memory; libFuzzer's limits must not apply first.
    limits = ["-timeout=100000", "-rss_limit_mb=0", f"-artifact_prefix={corpus.parent}/"]
    options = [f"-seed={seed}", f"-max_len={_MAX_BYTES}", "-len_control=20", *limits]
    atheris.Setup([sys.argv[0], str(corpus), *options], run_one, custom_mutator=mutate)
    atheris.Fuzz()


def _write_seeds(session: Session, corpus: Path) -> None:
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(session.seeds):
        if len(data) <= _MAX_BYTES:
            (corpus / f"seed-{number}").write_bytes(data)
