"""The fuzzer in short: every target a few inputs, and proof that it would find something.

``make fuzz`` goes on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fuzz import run, seeds
from fuzz.engine import CurrentInput, Session, run_blindly
from fuzz.judge import judge
from fuzz.large import Large, judge_large, large_inputs
from fuzz.run import run_target
from fuzz.target import Target, with_frame_lengths, with_total_sizes
from fuzz.targets import TARGETS
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.framing import FrameDecoder

SEED = 20_240_601
INPUTS = 1000
CONVERSATIONS = 60
LARGE = {
    "frame: one body", "frame: header of one text in JSON", "header: one field", "columns: one",
    "columns: of 100 bytes",
    "columns: ZSTD, 32 of 4 MiB", "messages: one", "batch: one member", "LZ4 of bomb",
    "properties of a request",
    "JSON of maps", "consumer list",
}  # fmt: skip
"""The quick ones."""


@contextmanager
def session_of(target: Target) -> Iterator[Session]:
    try:
        yield Session(target, SEED, inflated_bytes=1 << 14)
    finally:
        target.close()


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_give_a_value_or_a_protocol_error(name: str) -> None:
    """A1: never another exception, a hang,
    or more memory than the target may take (docs/how-to/security.md).
    """
    target = TARGETS[name]
    with session_of(target) as session:
        tried = len(session.seeds) + (CONVERSATIONS if target.is_conversation else INPUTS)
        if target.is_conversation:
            session.seeds = session.seeds[:CONVERSATIONS]
        run_blindly(session, goes_on=lambda inputs: inputs < tried)

        assert not session.findings, "\n".join(finding.trace for finding in session.findings.values())
        assert session.inputs >= CONVERSATIONS


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("expression", b" " * (1 << 20)),
        ("expression", b"a > " + b"9" * 5000),
        ("expression", b"a IN (" + b"'x'," * 200_000),
        ("json", b"[" + b"{}," * (1 << 22) + b"{}]"),
        ("json-header", b'{"extFields":{' + b'"a":{},' * (1 << 20) + b'"a":0}}'),
        ("topic-stats", b'{"offsetTable":{' + b'{"topic":"T","brokerName":"b","queueId":0}:{},' * 200_000),
        ("compression", b"\x02" + compress(bytes(1 << 28), CompressionType.ZSTD)[0]),
        ("compression", b"\x03" + compress(bytes(1 << 28), CompressionType.ZLIB)[0]),
        ("properties", b"\x02\xff" * (1 << 19)),
        ("properties", b"a\x01b\x02" * (1 << 18)),
        ("frames", b"\x00" + bytes.fromhex("00ffffff 00fffff0") + b"{"),
        ("messages", bytes.fromhex("7fffffff daa320a7") + bytes(100)),
    ],
)
def test_inputs_that_once_took_too_much_stay_within_bounds(name: str, data: bytes) -> None:
    """A1: findings, and what announces more than it brings."""
    target = TARGETS[name]
    for seed in target.seeds():
        judge(target, seed)
    finding = judge(target, data)
    assert finding is None, finding.trace


@pytest.mark.parametrize(
    "case", [case for case in large_inputs() if case.name in LARGE], ids=lambda case: case.name
)
def test_inputs_of_nearly_a_frame_stay_within_time_and_memory(case: Large) -> None:
    """A1: twice the frame limit, or what docs/how-to/security.md says in its place;
    ``make fuzz`` tries all of them.
    """
    finding = judge_large(case)
    assert finding is None, finding.trace


def test_a_broker_answers_a_topic_that_no_encoding_can_write() -> None:
    """A1: half a surrogate pair, in the request and in the remark of the answer."""
    target = TARGETS["broker-server"]
    header = (
        b'{"code":202,"extFields":{"topic":"\\ud800"},"flag":0,"language":"JAVA","opaque":1,"version":479}'
    )
    try:
        frame = with_frame_lengths(bytes(5) + len(header).to_bytes(3, "big") + header)
        assert judge(target, frame) is None
    finally:
        target.close()


def target_of(run: Callable[..., Any], **changes: Any) -> Target:
    return Target(**{"name": "made-up", "run": run, "seeds": lambda: [b"seed"], **changes})


def test_a_refusal_is_no_finding() -> None:
    def refuse(data: bytes) -> None:
        raise RemoteProtocolError("No.")

    assert judge(target_of(refuse), b"") is None


def test_another_exception_is_a_finding() -> None:
    finding = judge(target_of(lambda data: data[9]), b"x")
    assert finding is not None
    assert finding.data == b"x"
    assert "IndexError" in finding.place


def test_an_endless_loop_is_a_finding() -> None:
    def loop(data: bytes) -> None:
        while True:
            pass

    finding = judge(target_of(loop, max_seconds=0.01), b"")
    assert finding is not None
    assert "TookTooLong" in finding.trace


def test_memory_beyond_the_limit_is_a_finding() -> None:
    taken: list[bytes] = []
    small = target_of(lambda data: taken.append(b"x" * (8 << 20)), max_memory_bytes=16 << 20)
    large = target_of(lambda data: taken.append(b"x" * (64 << 20)), max_memory_bytes=16 << 20)

    assert judge(small, b"") is None
    finding = judge(large, b"")
    assert finding is not None
    assert "MemoryError" in finding.trace
    assert bytes(64 << 20)  # the limit is gone again


def test_a_defect_of_the_decoder_is_found_and_reported_once(tmp_path: Path) -> None:
    """A decoder that believes a length is what the fuzzer is there for."""

    def believing(data: bytes) -> None:
        header_length = int.from_bytes(data[5:8], "big")
        json.loads(data[8 : 8 + header_length] or b"0")

    frames = TARGETS["frames"]
    broken = target_of(believing, seeds=lambda: [data[1:] for data in frames.seeds()][:5])
    with session_of(broken) as session:
        run_blindly(session, goes_on=lambda inputs: inputs < 2000)

    errors = {finding.trace.strip().splitlines()[-1].split(":")[0] for finding in session.findings.values()}
    assert "json.decoder.JSONDecodeError" in errors
    assert len(session.findings) <= 10
    saved = next(iter(session.findings.values())).save(tmp_path)
    assert judge(broken, saved.read_bytes()) is not None
    assert "Error" in saved.with_suffix(".txt").read_text()


def test_a_seed_repeats_the_inputs() -> None:
    def inputs_of_a_run() -> list[bytes]:
        seen: list[bytes] = []
        run_blindly(
            Session(target_of(seen.append, seeds=lambda: [b'{"a":1}', b"TagA || TagB"]), SEED),
            goes_on=lambda inputs: inputs < 100,
        )
        return seen

    assert inputs_of_a_run() == inputs_of_a_run()


def test_repaired_lengths_let_a_changed_inside_be_reached() -> None:
    (frame, *_) = seeds.frames()
    repaired = with_frame_lengths(frame + b"body")
    (command,) = FrameDecoder().feed(repaired)
    assert command.body.endswith(b"body")
    assert (
        with_total_sizes(b"\x00\x00\x00\x06ab" + b"\x00\x00\x00\x09abc")
        == b"\x00\x00\x00\x06ab\x00\x00\x00\x07abc"
    )


def test_the_input_under_way_is_seen_from_outside(tmp_path: Path) -> None:
    """What crashes the process must not be lost with it."""
    writer = CurrentInput.create(tmp_path / "current")
    writer.write(7, b"bytes")
    assert CurrentInput(tmp_path / "current").read() == (7, b"bytes")


def test_a_target_runs_in_a_process_of_its_own() -> None:
    outcome = run_target("message-id", seconds=0.2, seed=SEED, is_blind=True)
    assert outcome.findings == ()
    assert outcome.inputs > 10
    assert outcome.engine == "blind"


def test_a_process_that_dies_is_a_finding_with_the_input_it_died_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    outcome = run_target("message-id", seconds=0.2, seed=SEED, is_blind=True)
    (saved,) = outcome.findings
    assert saved.parent == tmp_path
    assert "the process ended with 1" in saved.with_suffix(".txt").read_text()
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
