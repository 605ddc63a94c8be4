"""Capacity of the simulator: messages in and out per second of its own CPU, clients, memory.

The simulator runs in its own process, so its CPU time can be measured.
The other side uses bare sockets: frames made beforehand, answers split but not decoded.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Result, Spread, Target, load_average
from bench.processor_time import TICK_S, processor_s
from bench.raw_pull import pull_ranges
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder
from pyspark_rocketmq.wire.messages import encode_batch

_ROOT = Path(__file__).parent.parent
_TOPIC = "bench"
_QUEUES = 8
_BATCH = 64
_BODY = b"x" * 1024
_IN_FLIGHT = 8
_SEND_BATCH = 320
_PULL = 11
_MIN_OFFSET, _MAX_OFFSET = 31, 30
_ANSWER_S = 60.0
_WANTED_PER_S = 60_000
_WANTED_CLIENTS = 1_000
_WANTED_MEMORY = 1.0
_METHOD = """\
`python -m broker_sim` with one broker, driven over loopback by bare sockets: {messages} messages of 1 KiB with 6
properties (as a Java producer's) in batches of {batch} to {queues} queues, {in_flight} batches in flight, then pulled by
{queues} connections with 4 pulls of 32 in flight each. Rates are messages per second of the *simulator's* CPU time
(user and system): what one core would carry if it were not shared with the driving program; `in and out` counts a
message that was both sent and pulled. *Clients* connect, send a pull each, {requests} times, and all wait for their
answer. *Memory* is the commit log's bound ({bound_mib} MiB), {overfill} times of which is sent: messages held (counted
at their size, from minimum and maximum offsets) and growth of the process, each divided by the bound. {rounds} rounds,
each with a new simulator."""


@dataclass(frozen=True, slots=True)
class _Simulator:
    process: subprocess.Popen[str]
    address: tuple[str, int]

    def cpu_s(self) -> float:
        """User and system time since its start."""
        return processor_s(self.process.pid)

    def cpu_s_since(self, began_s: float) -> float:
        """Return the CPU time used since it was ``began_s``; at least half a tick,
        since less cannot be measured.
        """
        return max(self.cpu_s() - began_s, 0.5 * TICK_S)

    def resident_bytes(self) -> int:
        """Memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _simulator(retention_bytes: int) -> Iterator[_Simulator]:
    command = [sys.executable, "-m", "broker_sim", "--exit-with-parent", "--queues", str(_QUEUES)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "connector"), str(_ROOT)])}
    with subprocess.Popen(
        [*command, "--retention-bytes", str(retention_bytes)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            host, _, port = json.loads(process.stdout.readline())["brokers"]["broker-a"].rpartition(":")
            yield _Simulator(process, (host, int(port)))
        finally:
            process.kill()


def run(
    *, messages: int = 400_000, clients: int = 1_000, rounds: int = 5, requests: int = 10, bound_mib: int = 64
) -> Result:
    """Measure ``rounds`` times: messages in and out, ``clients`` with answers, memory against a bound."""
    before = load_average()
    figures: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, figure in _one_round(messages, clients, requests, bound_mib << 20).items():
            figures.setdefault(name, []).append(figure)
    spreads = {name: Spread.of(values) for name, values in figures.items()}
    return Result(
        name="simulator",
        title="Simulator",
        method=_METHOD.format(
            messages=f"{messages:,}",
            batch=_BATCH,
            queues=_QUEUES,
            in_flight=_IN_FLIGHT,
            requests=requests,
            bound_mib=bound_mib,
            overfill=_OVERFILL,
            rounds=rounds,
        ),
        columns=("what", "min", "median", "max"),
        rows=tuple((name, *spread.cells(_form(name))) for name, spread in spreads.items()),
        targets=(
            _target("messages in and out", spreads[_BOTH], _WANTED_PER_S, unit="per CPU second"),
            _target("messages in", spreads[_IN], _WANTED_PER_S, unit="per CPU second"),
            _target("messages out", spreads[_OUT], _WANTED_PER_S, unit="per CPU second"),
            _target("clients connected and answered", spreads[_CLIENTS], _WANTED_CLIENTS),
            Target(
                what="messages held / bound of the commit log",
                seen=spreads[_HELD],
                bound=_WANTED_MEMORY,
                at_most=True,
            ),
        ),
        load=(before, load_average()),
    )


_IN, _OUT, _BOTH = "in, per CPU second", "out, per CPU second", "in and out, per CPU second"
_CPU_IN, _CPU_OUT = "CPU per message in, µs", "CPU per message out, µs"
_WALL_IN, _WALL_OUT = "in, per second", "out, per second"
_CLIENTS, _ANSWERS = "clients answered", "answers to clients, per CPU second"
_HELD, _GROWTH = "messages held / bound", "growth of the process / bound"
_OVERFILL = 4


def _form(name: str) -> str:
    return ".2f" if "/" in name or "µs" in name else ",.0f"


def _target(what: str, seen: Spread, bound: float, unit: str = "") -> Target:
    return Target(what=what, seen=seen, bound=bound, at_most=False, unit=unit)


def _one_round(messages: int, clients: int, requests: int, bound: int) -> dict[str, float]:
    with _simulator(2 * messages * 2048) as simulator:
        figures = _carry(simulator, messages) | _serve(simulator, clients, requests)
    with _simulator(bound) as simulator:
        return figures | _fill(simulator, bound)


def _carry(simulator: _Simulator, messages: int) -> dict[str, float]:
    with _connected(simulator.address) as sending:
        _send_batches(sending, _QUEUES)  # warms up; makes the topic
        count = messages // (_BATCH * _QUEUES) * _BATCH * _QUEUES
        cpu_s, started_s = simulator.cpu_s(), time.perf_counter()
        _send_batches(sending, count // _BATCH)
        in_cpu_s, in_s = simulator.cpu_s_since(cpu_s), time.perf_counter() - started_s
    per_queue = count // _QUEUES
    address = f"{simulator.address[0]}:{simulator.address[1]}"
    cpu_s = simulator.cpu_s()
    pulled, out_s = pull_ranges(
        address, _TOPIC, [(queue_id, 0, per_queue) for queue_id in range(_QUEUES)], lanes=_QUEUES, depth=4
    )
    out_cpu_s = simulator.cpu_s_since(cpu_s)
    return {
        _BOTH: count / (in_cpu_s + out_cpu_s * count / pulled),
        _IN: count / in_cpu_s,
        _OUT: pulled / out_cpu_s,
        _CPU_IN: in_cpu_s / count * 1e6,
        _CPU_OUT: out_cpu_s / pulled * 1e6,
        _WALL_IN: count / in_s,
        _WALL_OUT: pulled / out_s,
    }


def _serve(simulator: _Simulator, clients: int, requests: int) -> dict[str, float]:
    """Each client pulls one message ``requests`` times, all at once."""
    frame = encode_frame(RemotingCommand(code=_PULL, opaque=1, ext_fields=_pull_fields()))
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        decoders = {}
        for _ in range(clients):
            client = stack.enter_context(_connected(simulator.address))
            decoders[client] = FrameDecoder()
            selector.register(client, selectors.EVENT_READ)
        cpu_s = simulator.cpu_s()
        answered = [_ask_all(selector, decoders, frame) for _ in range(requests)]
        used_s = simulator.cpu_s_since(cpu_s)
    return {_CLIENTS: float(min(answered)), _ANSWERS: sum(answered) / max(used_s, 0.01)}


def _ask_all(
    selector: selectors.BaseSelector, decoders: dict[socket.socket, FrameDecoder], frame: bytes
) -> int:
    """Return the number of clients that got a message."""
    for client in decoders:
        client.sendall(frame)
    waiting = set(decoders)
    answered = 0
    while waiting:
        ready = selector.select(_ANSWER_S)
        if not ready:
            break
        for key, _ in ready:
            woken = key.fileobj
            assert isinstance(woken, socket.socket)
            for answer in decoders[woken].feed(woken.recv(1 << 16)):
                waiting.discard(woken)
                answered += answer.code == 0
    return answered


def _fill(simulator: _Simulator, bound: int) -> dict[str, float]:
    """Send more than is kept, and measure what is kept."""
    with _connected(simulator.address) as sending:
        _send_batches(sending, _QUEUES)
        before = simulator.resident_bytes()
        _send_batches(sending, bound * _OVERFILL // (len(_BODY) * _BATCH))
        held = sum(
            _offset(sending, _MAX_OFFSET, queue_id) - _offset(sending, _MIN_OFFSET, queue_id)
            for queue_id in range(_QUEUES)
        )
        size = len(_pull_one(sending))
    return {
        _HELD: held * size / bound,
        _GROWTH: (simulator.resident_bytes() - before) / bound,
    }


@contextmanager
def _connected(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=_ANSWER_S) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connected


def _send_batches(connected: socket.socket, batches: int) -> None:
    """Send batches to the queues in turn, some in flight."""
    frames = [_batch_frame(queue_id) for queue_id in range(_QUEUES)]
    decoder = FrameDecoder()
    in_flight = 0
    for number in range(batches):
        connected.sendall(frames[number % _QUEUES])
        in_flight += 1
        while in_flight >= _IN_FLIGHT:
            in_flight -= _accepted(decoder.feed(connected.recv(1 << 16)))
    while in_flight:
        in_flight -= _accepted(decoder.feed(connected.recv(1 << 16)))


def _accepted(answers: Sequence[RemotingCommand]) -> int:
    for answer in answers:
        if answer.code != 0:
            raise RuntimeError(f"A batch was refused with {answer.code}: {answer.remark}.")
    return len(answers)


def _batch_frame(queue_id: int) -> bytes:
    messages = [
        Message(
            topic=_TOPIC,
            body=_BODY,
            properties={
                "KEYS": f"order-{number}",
                "TAGS": "TagA",
                "UNIQ_KEY": f"{number:032X}",
                "WAIT": "true",
                "region": "north",
                "attempt": "1",
            },
        )
        for number in range(_BATCH)
    ]
    fields = {
        "a": "bench",
        "b": _TOPIC,
        "c": "TBW102",
        "d": str(_QUEUES),
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "true",
    }
    return encode_frame(
        RemotingCommand(code=_SEND_BATCH, opaque=queue_id, ext_fields=fields, body=encode_batch(messages))
    )


def _pull_fields(queue_offset: int = 0) -> dict[str, str]:
    return {
        "consumerGroup": "bench",
        "topic": _TOPIC,
        "queueId": "0",
        "queueOffset": str(queue_offset),
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "1",
        "subscription": "*",
        "expressionType": "TAG",
    }


def _pull_one(connected: socket.socket) -> bytes:
    """The oldest message of the first queue, as it is stored."""
    fields = _pull_fields(_offset(connected, _MIN_OFFSET, 0))
    return _call(connected, RemotingCommand(code=_PULL, ext_fields=fields)).body


def _offset(connected: socket.socket, code: int, queue_id: int) -> int:
    fields = {"topic": _TOPIC, "queueId": str(queue_id)}
    return int(_call(connected, RemotingCommand(code=code, ext_fields=fields)).ext_fields["offset"])


def _call(connected: socket.socket, command: RemotingCommand) -> RemotingCommand:
    connected.sendall(encode_frame(command))
    decoder = FrameDecoder()
    while not (answers := decoder.feed(connected.recv(1 << 16))):
        pass
    return answers[0]
