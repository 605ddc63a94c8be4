"""The messages between a query's driver, its planner and its tasks, and their form as JSON.

A message is a frozen value; its class has the attribute ``kind``, which the JSON object has as ``type``. The
other fields have their attribute's name there, except where an annotation gives another one.

| from | to | messages |
|---|---|---|
| planner | driver | :data:`FromPlanner` |
| task | driver | :data:`FromTask` |
| driver | planner | :data:`ToPlanner` |
| driver | task | :data:`ToTask` |

No I/O, and no decision: ``state`` decides what is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Protocol, TypeVar, get_args, get_type_hints

from pyspark_rocketmq.consume.cuts import EndReason, Place
from pyspark_rocketmq.consume.part import Part
from pyspark_rocketmq.errors import RemoteProtocolError, RocketMQError, named_error
from pyspark_rocketmq.model import MessageQueue

JsonObject = dict[str, Any]


class _Form(NamedTuple):
    """Writes and reads one type of value; the reader also gets the peer's name, for errors."""

    to_json: Callable[[Any], object]
    from_json: Callable[[Any, str], object]


class _Key(NamedTuple):
    """Name of a field in JSON."""

    name: str


def listed(queues: Iterable[MessageQueue]) -> list[list[str | int]]:
    """Return queues in the form of a message; the reverse of :func:`queue_list`."""
    return [[queue.topic, queue.broker_name, queue.queue_id] for queue in sorted(queues)]


def queue_list(queues: object, peer: str = "hub") -> frozenset[MessageQueue]:
    """Return the queues in a message.

    Raises:
        RemoteProtocolError: If it is not a list of queues.
    """
    try:
        return frozenset(
            MessageQueue(str(topic), str(broker_name), int(queue_id))
            for topic, broker_name, queue_id in queues  # type: ignore[attr-defined]
        )
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"{peer}: a list of queues is none: {error}.") from error


def _listed_places(places: Mapping[MessageQueue, Place]) -> list[list[str | int]]:
    return [[*queue, *place] for queue, place in sorted(places.items())]


def _places(listed_places: Any, _: str) -> dict[MessageQueue, Place]:
    return {
        MessageQueue(str(topic), str(broker_name), int(queue_id)): Place(int(epoch), int(start))
        for topic, broker_name, queue_id, epoch, start in listed_places
    }


def _number_if_any(number: Any, _: str) -> int | None:
    return None if number is None else int(number)


def _seconds_if_any(seconds: Any, _: str) -> float | None:
    return None if seconds is None else float(seconds)


def _queue(listed_queue: Any, peer: str) -> MessageQueue:
    [queue] = queue_list([listed_queue], peer)
    return queue


Queues = Annotated[frozenset[MessageQueue], _Form(listed, queue_list)]
Places = Annotated[Mapping[MessageQueue, Place], _Form(_listed_places, _places)]
Queue = Annotated[MessageQueue, _Form(list, _queue)]
Seconds = Annotated[float | None, _Form(lambda seconds: seconds, _seconds_if_any)]
Reason = Annotated[EndReason, _Form(lambda reason: reason.value, lambda value, _: EndReason(value))]
CutNumber = Annotated[int | None, _Form(lambda number: number, _number_if_any)]
PartIds = Annotated[frozenset[str], _Form(sorted, lambda part_ids, _: frozenset(map(str, part_ids)))]
Options = Annotated[
    Mapping[str, str], _Form(dict, lambda options, _: {str(key): str(options[key]) for key in options})
]


def _part_object(part: Part | None) -> JsonObject | None:
    if part is None:
        return None
    return {"id": part.id, "queues": listed(part.queues), "result": part.facts}


def _part(facts: Any, _: str) -> Part:
    # Id and queues are given beside it once more.
    return Part.from_facts(facts["result"])


def _part_if_any(facts: Any, peer: str) -> Part | None:
    return None if facts is None else _part(facts, peer)


@dataclass(frozen=True, slots=True)
class FatalError:
    """An error of a task that another attempt of it would meet again."""

    kind: str
    """Name of its class, one of this package's errors."""
    text: str

    @classmethod
    def of(cls, error: RocketMQError) -> FatalError:
        """Return the facts of an error."""
        return cls(type(error).__name__, str(error))

    def to_error(self) -> RocketMQError:
        """Return the error with which the driver fails the batch."""
        return named_error(self.kind, self.text)


def _fatal_object(error: FatalError | None) -> JsonObject | None:
    return None if error is None else {"class": error.kind, "text": error.text}


def _fatal_if_any(facts: Any, _: str) -> FatalError | None:
    return None if facts is None else FatalError(str(facts["class"]), str(facts["text"]))


Fatal = Annotated[FatalError | None, _Form(_fatal_object, _fatal_if_any)]
SentPart = Annotated[Part, _Form(_part_object, _part)]
PartCopy = Annotated[Part | None, _Form(_part_object, _part_if_any)]


class Message(Protocol):
    """Any of the classes below."""

    kind: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


# --- planner to driver ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannerConnected:
    """The peer is the query's planner; first message of its connection."""

    kind: ClassVar[str] = "planner"


@dataclass(frozen=True, slots=True)
class PlanMade:
    """A plan was made; sent again after a new connection."""

    kind: ClassVar[str] = "plan"
    plan: int
    queues: Queues


@dataclass(frozen=True, slots=True)
class QueuesLeaving:
    """All queues of a plan that are to be given up, as of now; replaces the message before."""

    kind: ClassVar[str] = "leaving"
    plan: int
    queues: Queues


@dataclass(frozen=True, slots=True)
class ReplanWanted:
    """The plan is another one by now, as when a queue was gained; ends its batch if its ranges are open."""

    kind: ClassVar[str] = "replan"
    plan: int
    reason: str
    """For the log."""


@dataclass(frozen=True, slots=True)
class PlannerLeaving:
    """The planner ends, and waits until nothing of ``plan`` is delivered any more."""

    kind: ClassVar[str] = "bye"
    plan: int


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """Queues were reset in the offset store, so the driver must compare it with the batch."""

    kind: ClassVar[str] = "look"


@dataclass(frozen=True, slots=True)
class StorageWanted:
    """The planner asks for the offset store's renewed storage options: :class:`StorageRenewed`."""

    kind: ClassVar[str] = "storage"


@dataclass(frozen=True, slots=True)
class QueryDrained:
    """An ``availableNow`` query has consumed everything, so the driver must stop it."""

    kind: ClassVar[str] = "drained"


# --- task to driver -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBegins:
    """A task's report about itself before it delivers anything; answered by :class:`TaskMayBegin`.

    Sent again if the connection broke before the answer.
    """

    kind: ClassVar[str] = "begin"
    task: str
    """Unique id of the attempt, also among other batches and queries."""
    batch_id: Annotated[int, _Key("batch")]
    partition: int
    """Number of the task, the same for all attempts."""
    attempt: int
    """Number of the attempt, from 0."""
    places: Annotated[Places, _Key("queues")]
    """Epoch and first offset of its ranges, by queue."""
    tasks: int
    """Number of tasks of the batch."""
    open_for_s: Annotated[Seconds, _Key("for_s")] = None
    """How long the batch may last whose ranges are open, so that its driver ends it; None for closed ones."""
    connection: int = 1
    """Number of the connection among those of its process to this driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResumes:
    """A task with open ranges is connected again; answered by :class:`TaskMayGoOn`."""

    kind: ClassVar[str] = "resume"
    task: str
    batch_id: Annotated[int, _Key("batch")]
    in_doubt: PartIds
    """Ids of parts of which the task does not know whether the driver has them."""
    connection: int
    """Number of the connection among those of its process to this driver."""


@dataclass(frozen=True, slots=True)
class PartHandedOver:
    """A part of the task's result for the driver to commit early; answered by :class:`PartTaken`.

    A part that the driver has already is confirmed again, and not counted again.
    """

    kind: ClassVar[str] = "handed"
    task: str
    part: SentPart
    cut: CutNumber
    """Number of the cut that it answers; None if it was not asked for."""
    ends: Queues
    """Queues from which the task delivers nothing more."""


@dataclass(frozen=True, slots=True)
class TaskDirty:
    """The task has settled something since its last cut; sent once per cut."""

    kind: ClassVar[str] = "dirty"
    task: str


@dataclass(frozen=True, slots=True)
class NothingToCut:
    """The task has no part for a cut: nothing is settled, or too many of its parts are not committed."""

    kind: ClassVar[str] = "nothing"
    task: str
    cut: int


@dataclass(frozen=True, slots=True)
class QueuesReleased:
    """The task has delivered nothing that counts from these queues, and will not."""

    kind: ClassVar[str] = "released"
    task: str
    queues: Queues


@dataclass(frozen=True, slots=True)
class QueueStands:
    """An open range cannot go on, so that its queue must be planned again."""

    kind: ClassVar[str] = "stands"
    task: str
    queue: Queue
    is_reset: Annotated[bool, _Key("reset")]
    """Whether the queue was reset; then the batch ends without delay."""
    reason: str
    """For the log."""


@dataclass(frozen=True, slots=True)
class TaskIdle:
    """The task has only suspended queues left; answered by :class:`BatchAtWork`."""

    kind: ClassVar[str] = "idle"
    task: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """The attempt has failed: only the parts that it has handed over count."""

    kind: ClassVar[str] = "failed"
    task: str
    fatal: Fatal = None
    """Error with which the driver is to fail the batch; None if another attempt may do better."""


@dataclass(frozen=True, slots=True)
class TaskDone:
    """The task has ended."""

    kind: ClassVar[str] = "done"
    task: str
    part: PartCopy
    """Copy of the last part of its result; None if there is none, or it is too large."""


# --- driver to planner ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotsKnown:
    """Limits of the executors, from the driver's Spark session."""

    kind: ClassVar[str] = "slots"
    slots: int
    """Maximum number of tasks that a batch should have; 0 for any number."""
    calls_end_s: float
    """How long a listener may be called after its query's end."""


@dataclass(frozen=True, slots=True)
class QueuesHeldUp:
    """Queues are held up, or no longer."""

    kind: ClassVar[str] = "held_up"
    reason: str
    """Reason; empty if no queue is held up."""


@dataclass(frozen=True, slots=True)
class PlanOver:
    """All queues of a plan are free: its batch is committed, or dropped for good."""

    kind: ClassVar[str] = "over"
    plan: int


@dataclass(frozen=True, slots=True)
class QueuesFree:
    """Nobody delivers these queues, and all that was delivered is committed or never will be."""

    kind: ClassVar[str] = "free"
    plan: int
    queues: Queues


@dataclass(frozen=True, slots=True)
class StorageRenewed:
    """Storage options for the offset store; answers :class:`StorageWanted`."""

    kind: ClassVar[str] = "storage"
    options: Options = field(repr=False)
    """May be secrets."""


# --- driver to task -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskMayBegin:
    """The task may begin with its queues, except some."""

    kind: ClassVar[str] = "go"
    task: str
    left_out: Annotated[Queues, _Key("give_up")]
    is_stopped: Annotated[bool, _Key("stop")]
    """Whether the task must deliver nothing at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMayGoOn:
    """A task with open ranges may deliver again; it first sends the parts in doubt that are not known."""

    kind: ClassVar[str] = "go_on"
    task: str
    is_stopped: Annotated[bool, _Key("stop")]
    """Whether the task must deliver nothing more, and nothing of it counts any more."""
    known: PartIds = frozenset()
    """Ids of parts in doubt that the driver has."""
    uncommitted: PartIds = frozenset()
    """Ids of parts that the driver has, and that are neither committed nor dropped."""
    given_up: Annotated[Queues, _Key("give_up")] = frozenset()
    """All queues that the task was instructed to give up."""
    dropped: Annotated[Queues, _Key("drop")] = frozenset()
    """All queues that it was instructed to drop."""


@dataclass(frozen=True, slots=True)
class GiveUpQueues:
    """Deliver nothing more from these queues, and hand over their finished messages."""

    kind: ClassVar[str] = "give_up"
    task: str
    queues: Queues
    is_dropped: Annotated[bool, _Key("drop")]
    """Whether to drop it instead: the queues were claimed or reset."""


@dataclass(frozen=True, slots=True)
class BatchAtWork:
    """Whether an idle task is to wait for its suspended queues."""

    kind: ClassVar[str] = "batch"
    task: str
    is_at_work: Annotated[bool, _Key("at_work")]
    """Once False, the task must end."""


@dataclass(frozen=True, slots=True)
class PartTaken:
    """The driver has a part that the task has handed over."""

    kind: ClassVar[str] = "taken"
    task: str
    part_id: Annotated[str, _Key("part")]


@dataclass(frozen=True, slots=True)
class CutWanted:
    """Hand over what is settled; answered by :class:`PartHandedOver` or :class:`NothingToCut`.

    A task that settles something from then on is dirty again.
    """

    kind: ClassVar[str] = "cut"
    task: str
    number: int


@dataclass(frozen=True, slots=True)
class PartsCommitted:
    """Parts of the task are committed, or never will be; it may hand over others."""

    kind: ClassVar[str] = "committed"
    task: str
    part_ids: Annotated[PartIds, _Key("parts")]


@dataclass(frozen=True, slots=True)
class EndTask:
    """End after the running call; messages delivered so far remain in the task's result, or its last part."""

    kind: ClassVar[str] = "end"
    task: str
    reason: Reason


# --- either way -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ping:
    """The sender is alive; every connection handles it itself."""

    kind: ClassVar[str] = "ping"


FromPlanner = (
    PlannerConnected
    | PlanMade
    | QueuesLeaving
    | ReplanWanted
    | PlannerLeaving
    | StoreChanged
    | StorageWanted
    | QueryDrained
)
FromTask = (
    TaskBegins
    | TaskResumes
    | TaskDirty
    | PartHandedOver
    | NothingToCut
    | QueuesReleased
    | QueueStands
    | TaskIdle
    | TaskFailed
    | TaskDone
)
ToDriver = FromPlanner | FromTask
ToPlanner = SlotsKnown | QueuesHeldUp | PlanOver | QueuesFree | StorageRenewed
ToTask = (
    TaskMayBegin | TaskMayGoOn | GiveUpQueues | BatchAtWork | CutWanted | PartTaken | PartsCommitted | EndTask
)
FromDriver = ToPlanner | ToTask

_TO_DRIVER: Final[Mapping[str, type[ToDriver]]] = {each.kind: each for each in get_args(ToDriver)}
_TO_PLANNER: Final[Mapping[str, type[ToPlanner]]] = {each.kind: each for each in get_args(ToPlanner)}
_TO_TASK: Final[Mapping[str, type[ToTask]]] = {each.kind: each for each in get_args(ToTask)}


def encode(message: Message) -> JsonObject:
    """Return a message as a JSON object."""
    facts = {key: form.to_json(getattr(message, name)) for name, key, form in _entries(type(message))}
    return {"type": message.kind, **facts}


def decode_to_driver(facts: JsonObject, peer: str) -> ToDriver:
    """Read a message that the driver has received.

    Raises:
        RemoteProtocolError: If it is not complete, or its type is not known.
    """
    message = _decoded(_TO_DRIVER, facts, peer, "a message of type")
    if message is None:
        raise RemoteProtocolError(f"{peer}: a message of type {facts['type']!r} is not known.")
    return message


def decode_to_planner(facts: JsonObject, peer: str) -> ToPlanner | None:
    """Read a message that the planner has received; return None if its type is not known.

    Raises:
        RemoteProtocolError: If it is not complete.
    """
    return _decoded(_TO_PLANNER, facts, peer, "the driver's message")


def decode_to_task(facts: JsonObject, peer: str) -> ToTask | None:
    """Read a message that a worker has received; return None if its type is not known.

    Raises:
        RemoteProtocolError: If it is not complete.
    """
    return _decoded(_TO_TASK, facts, peer, "the driver's message")


_MessageT = TypeVar("_MessageT", bound=Message)


def _decoded(
    kinds: Mapping[str, type[_MessageT]], facts: JsonObject, peer: str, noun: str
) -> _MessageT | None:
    try:
        found = kinds.get(facts["type"])
        if found is None:
            return None
        return found(**{name: form.from_json(facts[key], peer) for name, key, form in _entries(found)})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(
            f"{peer}: {noun} {facts.get('type')!r} is not complete: {error!r}."
        ) from error


@cache
def _entries(kind: type[Message]) -> tuple[tuple[str, str, _Form], ...]:
    """Return attribute, name in JSON and form of each field."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_entry(each.name, hints[each.name]) for each in fields(kind))


def _entry(name: str, hint: Any) -> tuple[str, str, _Form]:
    """Return the entry of a field from its annotation; a plain type is its own reader."""
    kind, *notes = get_args(hint) or (hint,)
    key, form = name, _Form(lambda value: value, lambda value, _: kind(value))
    for note in notes:
        if isinstance(note, _Key):
            key = note.name
        else:
            form = note
    return name, key, form
