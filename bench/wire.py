"""Speed of converting pulled messages to Arrow columns, next to the plain decoder on the same bytes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.measure import Result, Spread, Target, load_average
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.message_ids import unique_key
from pyspark_rocketmq.wire.messages import (
    INNER_BATCH_FLAGS,
    StoredMessage,
    body_crc,
    decode_messages,
    encode_batch,
)
from pyspark_rocketmq.wire.properties import encode_properties
from tests.helpers.stored_messages import decode_columns, encode_stored_message

_BROKER = "broker-a"
_RATIO = 8.0
_MILLIONS_PER_SECOND = 1.5
_PROJECTION = ("queueOffset", "tags", "body")
_MEMBERS = 32
_PULLED = 32
_COLUMNAR_PER_PLAIN = 5
"""Runs of the columnar decoder per round, of which the fastest counts; the plain one is slow enough for one."""
_METHOD = """\
`decode_columns` (all 17 columns of the source, the map of properties among them) and `decode_messages`, the *plain*
decoder that makes an object of each message, on the same stored messages: {bytes:.0f} MiB at once
or one pull of {pulled}. Bodies are half to one and a half times as long as said, and keys vary in length too.
A sent message has six properties as a broker stores them; one sent in a producer batch has nine entries, two of its own
repeated by the batch. *Three columns* are {projection}. *Compressed* are text bodies of 8 KiB by zlib. *Inner
batches* have {members} members. Rates are millions of messages per second of CPU time of one core; {rounds} rounds, and
in each the best of {repeated} columnar decodings next to a plain one. The ratio is that of the round."""


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    data: bytes
    messages: int
    columns: tuple[str, ...] | None = None
    ratio_wanted: float | None = None
    rate_wanted: float | None = None


@dataclass(frozen=True, slots=True)
class _Figures:
    columnar: Spread
    """Millions of messages per second, as is ``plain``."""
    plain: Spread
    ratio: Spread


def run(*, rounds: int = 5, mebibytes: float = 4) -> Result:
    """Measure ``rounds`` rounds of each kind of messages."""
    before = load_average()
    cases = list(_cases(int(mebibytes * (1 << 20))))
    figures = [_measure(case, rounds) for case in cases]
    return Result(
        name="wire",
        title="Columnar decode",
        method=_METHOD.format(
            bytes=mebibytes,
            pulled=_PULLED,
            projection=", ".join(f"`{name}`" for name in _PROJECTION),
            members=_MEMBERS,
            rounds=rounds,
            repeated=_COLUMNAR_PER_PLAIN,
        ),
        columns=("messages", "M/s min", "median", "max", "plain M/s", "ratio min", "median", "max"),
        rows=tuple(
            (case.name, *seen.columnar.cells(".2f"), f"{seen.plain.median:.3f}", *seen.ratio.cells(".1f"))
            for case, seen in zip(cases, figures, strict=True)
        ),
        targets=tuple(
            target for case, seen in zip(cases, figures, strict=True) for target in _targets(case, seen)
        ),
        load=(before, load_average()),
    )


def _targets(case: _Case, seen: _Figures) -> Iterator[Target]:
    if case.ratio_wanted is not None:
        yield Target(
            what=f"columnar / plain, {case.name}", seen=seen.ratio, bound=case.ratio_wanted, at_most=False
        )
    if case.rate_wanted is not None:
        yield Target(
            what=f"columnar, {case.name}",
            seen=seen.columnar,
            bound=case.rate_wanted,
            at_most=False,
            unit="M messages/s/core",
        )


def _measure(case: _Case, rounds: int) -> _Figures:
    def columnar() -> object:
        return decode_columns(case.data, _BROKER, columns=case.columns)

    columnar()
    columnar_s, plain_s = [], []
    for _ in range(rounds):
        plain_s.append(_cpu_seconds(lambda: decode_messages(case.data, _BROKER)))
        columnar_s.append(min(_cpu_seconds(columnar) for _ in range(_COLUMNAR_PER_PLAIN)))
    return _Figures(
        columnar=Spread.of(case.messages / seconds / 1e6 for seconds in columnar_s),
        plain=Spread.of(case.messages / seconds / 1e6 for seconds in plain_s),
        ratio=Spread.of(plain / ours for plain, ours in zip(plain_s, columnar_s, strict=True)),
    )


def _cpu_seconds(action: Callable[[], object]) -> float:
    started_s = time.thread_time()
    action()
    return time.thread_time() - started_s


def _cases(size: int) -> Iterator[_Case]:
    chance = random.Random(5)
    for body_bytes, name in ((100, "100 B"), (1024, "1 KiB")):
        messages = [_sent(chance, at, body_bytes) for at in range(size // (body_bytes + 220))]
        data = b"".join(messages)
        rate = _MILLIONS_PER_SECOND if body_bytes == 100 else None
        yield _Case(name, data, len(messages), ratio_wanted=_RATIO, rate_wanted=rate)
        yield _Case(f"{name}, three columns", data, len(messages), columns=_PROJECTION)
        messages = [_batch_sent(chance, at, body_bytes) for at in range(size // (body_bytes + 300))]
        yield _Case(f"{name}, sent in batches", b"".join(messages), len(messages))
    pull = [_sent(chance, at, 100) for at in range(_PULLED)]
    yield _Case("100 B, one pull", b"".join(pull), len(pull))
    messages = [_compressed(chance, at) for at in range(size // (8 << 10))]
    yield _Case("8 KiB, compressed", b"".join(messages), len(messages))
    batches = [_inner_batch(chance, at) for at in range(size // (_MEMBERS * 220))]
    yield _Case("100 B, inner batches", b"".join(batches), len(batches) * _MEMBERS)


def _sent(chance: random.Random, at: int, body_bytes: int) -> bytes:
    """Make a message as the broker stores it after a single send."""
    own = _own_properties(chance, at)
    appended = {"CLUSTER": "DefaultCluster", "TRACE_ON": "true"}
    return _stored(at, _body(chance, body_bytes), encode_properties({**appended, **own}))


def _batch_sent(chance: random.Random, at: int, body_bytes: int) -> bytes:
    """A broker appends the properties of the whole batch to those of each of its messages."""
    of_batch = {
        "MSG_REGION": "DefaultRegion",
        "UNIQ_KEY": _unique_key(at // _MEMBERS),
        "CLUSTER": "DefaultCluster",
        "WAIT": "true",
        "TRACE_ON": "true",
    }
    properties = encode_properties(_own_properties(chance, at)) + encode_properties(of_batch)
    return _stored(at, _body(chance, body_bytes), properties)


def _compressed(chance: random.Random, at: int) -> bytes:
    text = " ".join(str(chance.randrange(1 << 20)) for _ in range(1200)).encode()[: 8 << 10]
    body, sys_flag = compress(text, CompressionType.ZLIB)
    return _stored(at, body, encode_properties(_own_properties(chance, at)), sys_flag)


def _inner_batch(chance: random.Random, at: int) -> bytes:
    first = at * _MEMBERS
    members = [
        Message(topic="orders", body=_body(chance, 100), properties=_own_properties(chance, first + number))
        for number in range(_MEMBERS)
    ]
    properties = encode_properties({"INNER_BASE": str(first), "INNER_NUM": str(_MEMBERS)})
    return _stored(first, encode_batch(members), properties, INNER_BATCH_FLAGS)


def _own_properties(chance: random.Random, at: int) -> dict[str, str]:
    return {
        "KEYS": f"order-{at}",
        "UNIQ_KEY": _unique_key(at),
        "WAIT": "true",
        "TAGS": chance.choice(["created", "paid", "delivered"]),
    }


def _unique_key(at: int) -> str:
    return unique_key(bytes([10, 0, 0, 7]), 3942, 0x2F2A663B, at >> 16, at)


def _body(chance: random.Random, body_bytes: int) -> bytes:
    return chance.randbytes(chance.randrange(body_bytes // 2, body_bytes * 3 // 2))


def _stored(at: int, body: bytes, properties_data: bytes, sys_flag: int = 0) -> bytes:
    return encode_stored_message(
        StoredMessage(
            topic="orders",
            queue_id=3,
            queue_offset=at,
            commit_log_offset=at * 320,
            body=body,
            properties_data=properties_data,
            sys_flag=sys_flag,
            born_timestamp=1700000000000 + at,
            born_host=f"10.0.0.{at % 3}:50000",
            store_timestamp=1700000000002 + at,
            store_host="10.0.0.9:10911",
            body_crc=body_crc(body),
        )
    )
