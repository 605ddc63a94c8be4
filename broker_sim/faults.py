"""Scripted failures, for tests of clients.

Each line of the script is used once, by the first connection, request or answer that it matches, in the order
of the script; unused lines stay. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame

_NEWEST_WITHOUT_GO_AWAY = 475  # V5_3_1


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with an error code instead of doing the work."""

    response_code: int
    remark: str = "a scripted failure"


@dataclass(frozen=True, slots=True)
class GoAway:
    """Answer 1500 like a server shutting down, only to clients newer than 5.3.1; serve the others."""


@dataclass(frozen=True, slots=True)
class DropConnection:
    """Close the connection instead of doing the work, or as soon as it is open."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Read and send nothing more on the connection; it stays open.

    A server closes it after 120 s of silence, and its members leave their groups only then.
    """


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """Forget the connection without informing the peer, as after a crash."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Do the work, send the first bytes of the answer's frame, close the connection."""

    keep_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Lose:
    """Do the work and never answer; the connection stays."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Do the work and answer ``seconds`` later by the cluster's clock; other answers are not delayed."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Split:
    """Do the work and write the answer byte by byte."""


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Do the work and flip all bits of ``size`` bytes of the answer's frame, from byte ``at`` on.

    A negative ``at`` counts from the end. Byte 4 is the serialize type; inverted, it is one
    that every client refuses.
    """

    at: int = 4
    size: int = 1

    def inverted(self, frame: bytes) -> bytes:
        """Return the frame with the chosen bytes inverted, as it is sent."""
        start = self.at if self.at >= 0 else max(0, len(frame) + self.at)
        end = start + self.size
        return frame[:start] + bytes(255 - byte for byte in frame[start:end]) + frame[end:]


@dataclass(frozen=True, slots=True)
class Twice:
    """Do the work once and send the answer two times."""


@dataclass(frozen=True, slots=True)
class Recode:
    """Do the work and answer with another code, such as 10: the message was stored, but not flushed."""

    response_code: int


ConnectionFault = DropConnection | Stall | HalfOpen
"""Faults of a new connection."""
RequestFault = Fail | GoAway | DropConnection | Stall | HalfOpen
"""Faults that replace the handling of a request."""
AnswerFault = Cut | Lose | Delay | Split | Corrupt | Twice | Recode
"""Faults of an answer, after the work was done."""
Fault = RequestFault | AnswerFault


def spoiled(fault: AnswerFault, answer: RemotingCommand) -> list[bytes]:
    """Return the pieces of bytes to write one after the other in place of ``answer``'s frame.

    For ``Delay`` that is the whole frame; the caller waits.
    """
    frame = encode_frame(answer)
    pieces = [frame]
    match fault:
        case Cut():
            pieces = [frame[: fault.keep_bytes]]
        case Lose():
            pieces = []
        case Split():
            pieces = [frame[at : at + 1] for at in range(len(frame))]
        case Corrupt():
            pieces = [fault.inverted(frame)]
        case Twice():
            pieces = [frame, frame]
        case Recode():
            pieces = [encode_frame(replace(answer, code=fault.response_code))]
        case Delay():
            pass
    return pieces


FAULTS: Mapping[str, Callable[..., Fault]] = MappingProxyType(
    {
        "refuse": DropConnection,
        "drop-before": DropConnection,
        "drop-after": Cut,
        "cut": Cut,
        "delay": Delay,
        "split": Split,
        "corrupt": Corrupt,
        "answer-code": Fail,
        "recode": Recode,
        "twice": Twice,
        "stall": Stall,
        "half-open": HalfOpen,
        "lose": Lose,
        "go-away": GoAway,
        "flow-control": lambda: Fail(ResponseCode.FLOW_CONTROL, "a scripted flow control"),
    }
)
"""Classes of faults by the names that a script uses; a fault's options are the fields of its class."""


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    fault: Fault
    on: int | None
    where: str | None


class FaultScript:
    """A script of failures; each happens once, to the first connection, request or answer that it matches.

    Add a line before the request that it is meant for: the script is read on another thread.
    """

    def __init__(self) -> None:
        self._lines: list[_Line] = []

    @property
    def pending(self) -> int:
        """Number of failures that have not happened yet."""
        return len(self._lines)

    def add(
        self, name: str, *, on: int | None = None, times: int = 1, where: str | None = None, **options: object
    ) -> None:
        """Add a failure that is to happen ``times`` times.

        Args:
            name: one of :data:`FAULTS`.
            on: code of the request that it is meant for; None means a new connection.
            times: how often it happens.
            where: a broker name, ``broker-a:1`` for a replica, or ``namesrv``; None means anywhere.
            **options: ``response_code`` of answer-code and recode, ``remark`` of answer-code, ``seconds`` of
                delay, ``keep_bytes`` of cut, ``at`` and ``size`` of corrupt.

        Raises:
            ValueError: If there is no such fault, an option is wrong, or the fault cannot happen there.
        """
        make = FAULTS.get(name)
        if make is None:
            raise ValueError(f"There is no fault {name!r}; the names are {', '.join(sorted(FAULTS))}.")
        try:
            fault = make(**options)
        except TypeError as error:
            raise ValueError(f"Fault {name!r} does not take these options: {error}.") from None
        if on is None and not isinstance(fault, ConnectionFault):
            raise ValueError(f"Fault {name!r} happens to a request: name its code with 'on'.")
        if on is not None and name == "refuse":
            raise ValueError(
                "Fault 'refuse' happens to a new connection: leave 'on' out, or use 'drop-before'."
            )
        self._lines += [_Line(fault, on, where) for _ in range(times)]

    def clear(self) -> None:
        """Remove all failures that have not happened yet."""
        self._lines.clear()

    def take_for_connection(self, where: str) -> ConnectionFault | None:
        """Remove and return the fault of a new connection to server ``where``; None if there is none."""
        fault = self._take(where, None, lambda _: True)
        return fault if isinstance(fault, ConnectionFault) else None

    def take_for_request(self, where: str, request_code: int, version: int) -> RequestFault | None:
        """Remove and return the fault that replaces the handling of a request at server ``where``.

        None if there is none. ``version`` is the client's; a GoAway is only for clients newer than 5.3.1.
        """

        def fits(fault: Fault) -> bool:
            if isinstance(fault, GoAway):
                return version > _NEWEST_WITHOUT_GO_AWAY
            return isinstance(fault, RequestFault)

        fault = self._take(where, request_code, fits)
        return fault if isinstance(fault, RequestFault) else None

    def take_for_answer(self, where: str, request_code: int) -> AnswerFault | None:
        """Remove and return the fault of an answer that server ``where`` sends; None if there is none.

        ``request_code`` is the code of the request that is answered.
        """
        fault = self._take(where, request_code, lambda fault: isinstance(fault, AnswerFault))
        return fault if isinstance(fault, AnswerFault) else None

    def _take(self, where: str, on: int | None, fits: Callable[[Fault], bool]) -> Fault | None:
        for line in self._lines:
            if line.on == on and line.where in {None, where} and fits(line.fault):
                self._lines.remove(line)
                return line.fault
        return None
