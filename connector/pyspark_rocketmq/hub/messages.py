"""The messages between a query's driver, its planner and its tasks, and their form as JSON.

A message is a frozen value. Its class has the attribute ``kind``, which is ``type`` in the JSON object. Each
other field has the same name in JSON as its attribute, except where an annotation gives another name. In all
messages ``plan`` is the number of a plan, and ``task`` the id of one attempt of a task.

Words of these messages: a *part* is a piece of a task's result that is committed or dropped as a whole. A
*cut* is the moment at which the driver asks all tasks for a part. Ranges are *open* in real time: they have
no end, so tasks run until the driver ends them.

| from | to | messages |
|---|---|---|
| planner | driver | :data:`FromPlanner` |
| task | driver | :data:`FromTask` |
| driver | planner | :data:`ToPlanner` |
| driver | task | :data:`ToTask` |

No I/O, and no decision: :mod:`~pyspark_rocketmq.hub.state` decides what the driver sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Protocol, TypeVar, get_args, get_type_hints

from pyspark_rocketmq.consume.cuts import EndReason, Place
from pyspark_rocketmq.consume.part import Part
from pyspark_rocketmq.consume.recent_offsets import AgedOffset
from pyspark_rocketmq.display import masked, peer_text
from pyspark_rocketmq.errors import RemoteProtocolError, RocketMQError, named_error
from pyspark_rocketmq.model import MessageQueue

JsonObject = dict[str, Any]
_LONGEST_ERROR: Final = 10_000
"""Maximum length of a task's error, in characters: it must fit in a line of the connection."""


class _Form(NamedTuple):
    """Functions that turn a field's value into JSON, and JSON into the value.

    ``from_json`` also gets the peer's name, for errors.
    """

    to_json: Callable[[Any], object]
    from_json: Callable[[Any, str], object]


class _Key(NamedTuple):
    """Name of a field in JSON, where it differs from the attribute's name."""

    name: str


def listed(queues: Iterable[MessageQueue]) -> list[list[str | int]]:
    """Return queues sorted, each as a list of topic, broker name and queue id: their form in messages.

    :func:`queue_list` is the reverse.
    """
    return [[queue.topic, queue.broker_name, queue.queue_id] for queue in sorted(queues)]


def queue_list(queues: object, peer: str = "hub") -> frozenset[MessageQueue]:
    """Return the queues of a list in a message, which has topic, broker name and queue id of each queue.

    Raises:
        RemoteProtocolError: If the value is not a list of queues.
    """
    try:
        return frozenset(
            MessageQueue(str(topic), str(broker_name), int(queue_id))
            for topic, broker_name, queue_id in queues  # type: ignore[attr-defined]
        )
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(
            f"{peer}: a list of queues from there cannot be read: {error}. Install the driver's version of "
            "pyspark-rocketmq on every machine."
        ) from error


def _listed_places(places: Mapping[MessageQueue, Place]) -> list[list[str | int]]:
    return [[*queue, *place] for queue, place in sorted(places.items())]


def _places(listed_places: Any, _: str) -> dict[MessageQueue, Place]:
    return {
        MessageQueue(str(topic), str(broker_name), int(queue_id)): Place(int(epoch), int(start))
        for topic, broker_name, queue_id, epoch, start in listed_places
    }


def _listed_ages(ages: Mapping[MessageQueue, Sequence[AgedOffset]]) -> list[list[Any]]:
    return [[*queue, [list(each) for each in some]] for queue, some in sorted(ages.items())]


def _ages(listed_ages: Any, _: str) -> dict[MessageQueue, tuple[AgedOffset, ...]]:
    return {
        MessageQueue(str(topic), str(broker_name), int(queue_id)): tuple(
            AgedOffset(float(age_s), int(offset)) for age_s, offset in some
        )
        for topic, broker_name, queue_id, some in listed_ages
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
Ages = Annotated[Mapping[MessageQueue, Sequence[AgedOffset]], _Form(_listed_ages, _ages)]
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
    # The result contains id and queues as well.
    return Part.from_facts(facts["result"])


def _part_if_any(facts: Any, peer: str) -> Part | None:
    return None if facts is None else _part(facts, peer)


@dataclass(frozen=True, slots=True)
class TaskError:
    """Class and text of the error with which an attempt of a task has failed."""

    kind: str
    """Name of the error's class."""
    text: str
    is_fatal: bool = False
    """Whether the error would occur again in another attempt, so that the driver must fail the batch."""

    @classmethod
    def of(cls, error: BaseException, *, is_fatal: bool = False) -> TaskError:
        """Return an error as the name of its class and the beginning of its text, without secrets in URIs."""
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - a user's class
            text = "its message cannot be read"
        # Cut first: a text may have megabytes. Cut again after masking, so that no half of a secret remains.
        text = masked(text[: 4 * _LONGEST_ERROR])
        if len(text) > _LONGEST_ERROR:
            text = text[: _LONGEST_ERROR - 1] + "…"
        return cls(type(error).__name__, text, is_fatal)

    def to_error(self) -> RocketMQError:
        """Return an error with this class name and text, with which the driver fails the batch."""
        return named_error(self.kind, self.text)

    def to_line(self) -> str:
        """Return class and text on one line, at most 2,000 characters."""
        text = " ".join(self.text.split())
        return peer_text(f"{self.kind}: {text}" if text else self.kind)


def _error_object(error: TaskError | None) -> JsonObject | None:
    return None if error is None else {"class": error.kind, "text": error.text, "fatal": error.is_fatal}


def _error_if_any(facts: Any, _: str) -> TaskError | None:
    return None if facts is None else TaskError(str(facts["class"]), str(facts["text"]), bool(facts["fatal"]))


AnyError = Annotated[TaskError | None, _Form(_error_object, _error_if_any)]
SentPart = Annotated[Part, _Form(_part_object, _part)]
PartCopy = Annotated[Part | None, _Form(_part_object, _part_if_any)]


class Message(Protocol):
    """Any message between driver, planner and tasks: a dataclass that has its type's name in ``kind``."""

    kind: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


# --- planner to driver ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannerConnected:
    """Report that the sender is the query's planner; first message of its connection."""

    kind: ClassVar[str] = "planner"


@dataclass(frozen=True, slots=True)
class PlanMade:
    """Report that a plan was made, with its number and its queues; sent again on a new connection."""

    kind: ClassVar[str] = "plan"
    plan: int
    queues: Queues


@dataclass(frozen=True, slots=True)
class QueuesLeaving:
    """All queues of a plan that the planner must give up by now, because other members are to have them.

    Each such message replaces the one before.
    """

    kind: ClassVar[str] = "leaving"
    plan: int
    queues: Queues


@dataclass(frozen=True, slots=True)
class ReplanWanted:
    """The planner wants to replace a plan, for example because it has gained a queue.

    If the plan's ranges are open, its batch is ended. Otherwise nothing happens: the batch ends soon anyway.
    """

    kind: ClassVar[str] = "replan"
    plan: int
    reason: str
    """The reason in words, for the log."""


@dataclass(frozen=True, slots=True)
class PlannerLeaving:
    """The planner ends, and waits until nothing of ``plan`` is delivered any more."""

    kind: ClassVar[str] = "bye"
    plan: int


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """Queues were reset in the offset store, so the driver must compare the epochs there with the batch's."""

    kind: ClassVar[str] = "look"
    unfenced: Queues
    """The reset queues if the store has no epochs: nothing more of them may be committed in this batch.

    Empty if the store has epochs, by which the driver finds these queues itself."""


@dataclass(frozen=True, slots=True)
class StorageWanted:
    """The planner asks for current storage options (such as credentials) of the offset store.

    The answer is :class:`StorageRenewed`.
    """

    kind: ClassVar[str] = "storage"


@dataclass(frozen=True, slots=True)
class ArrivalsWanted:
    """The planner asks which offsets of these queues have lately arrived at their brokers.

    The answer is :class:`OffsetsArrived` with the same number.
    """

    kind: ClassVar[str] = "arrivals"
    number: int
    queues: Queues


@dataclass(frozen=True, slots=True)
class QueryDrained:
    """An ``availableNow`` query has consumed everything, so the driver must stop it."""

    kind: ClassVar[str] = "drained"


# --- task to driver -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBegins:
    """A task's report of its queues, before it delivers anything; answered by :class:`TaskMayBegin`.

    A task with open ranges sends it again if the connection breaks before the answer.
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
    """Epoch and first offset of the task's ranges, by queue."""
    tasks: int
    """Number of tasks of the batch."""
    open_for_s: Annotated[Seconds, _Key("for_s")] = None
    """Length of the batch in seconds if its ranges are open; None for closed ranges."""
    at_end: Queues = frozenset()
    """Queues that had no message at their first offset when they were planned; empty for closed ranges."""
    connection: int = 1
    """Number of this connection, counted from 1 by the task's process.

    The driver ignores this message if the task has sent one on this connection or a newer one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResumes:
    """Report that a task with open ranges (real time) is connected again after a break.

    It is answered by :class:`TaskMayGoOn`.
    """

    kind: ClassVar[str] = "resume"
    task: str
    batch_id: Annotated[int, _Key("batch")]
    in_doubt: PartIds
    """Ids of the parts that the task has sent and the driver has not confirmed."""
    connection: int
    """Number of this connection, as in :class:`TaskBegins`."""


@dataclass(frozen=True, slots=True)
class PartHandedOver:
    """A part of the task's result, to commit before the batch ends; answered by :class:`PartTaken`.

    If the driver has the part already, it confirms the part again and ignores this copy.
    """

    kind: ClassVar[str] = "handed"
    task: str
    part: SentPart
    cut: CutNumber
    """Number of the driver's :class:`CutWanted` that the part answers; None if the task sends it without
    being asked."""
    ends: Queues
    """Queues from which the task delivers nothing more."""


@dataclass(frozen=True, slots=True)
class TaskDirty:
    """Report that the task has results which it has not sent yet.

    It is sent at most once between two requests for results (:class:`CutWanted`), and again after a new
    connection.
    """

    kind: ClassVar[str] = "dirty"
    task: str


@dataclass(frozen=True, slots=True)
class NothingToCut:
    """Answer of a task that has nothing to send for the driver's :class:`CutWanted`.

    The task has no new results, two of the parts that it has sent are not committed yet, or it could not send
    an earlier part.
    """

    kind: ClassVar[str] = "nothing"
    task: str
    cut: int


@dataclass(frozen=True, slots=True)
class QueuesReleased:
    """Report that the task delivers nothing more from these queues, and has no results of them to commit."""

    kind: ClassVar[str] = "released"
    task: str
    queues: Queues


@dataclass(frozen=True, slots=True)
class QueueStands:
    """Report that an open range (real time) cannot go on, for example after a reset.

    Only another plan can continue its queue.
    """

    kind: ClassVar[str] = "stands"
    task: str
    queue: Queue
    is_reset: Annotated[bool, _Key("reset")]
    """Whether the queue was reset; then the driver ends the batch without delay."""
    reason: str
    """The reason in words, for the log."""


@dataclass(frozen=True, slots=True)
class ResetFound:
    """Report that an operator has reset a queue's offset of the group; the planner's next plan begins there.

    A broker reports a reset only once, in the answer to a pull. The task normally reports it when it ends the
    pull's range. This message replaces that report if the range had ended before the answer came, for example
    with its batch. The driver passes the message on to the planner.
    """

    kind: ClassVar[str] = "reset"
    queue: Queue
    target: int
    """The offset to go on from."""


@dataclass(frozen=True, slots=True)
class CallsEnded:
    """Report that no listener call is left that was running when the batch's end was announced.

    The announcement is :class:`EndSoon`.
    """

    kind: ClassVar[str] = "callsEnded"
    task: str


@dataclass(frozen=True, slots=True)
class TaskIdle:
    """Report that the task has only suspended queues left, which wait before they are delivered again.

    It is answered by :class:`BatchAtWork`.
    """

    kind: ClassVar[str] = "idle"
    task: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """Report that an attempt of a task has failed: only results that it has already sent count."""

    kind: ClassVar[str] = "failed"
    task: str
    error: AnyError = None
    """The error; None if the attempt has delivered nothing, because it does not begin."""


@dataclass(frozen=True, slots=True)
class TaskDone:
    """Report that the task has ended without an error."""

    kind: ClassVar[str] = "done"
    task: str
    part: PartCopy
    """Copy of the last part, which comes with the job's result; None if there is none, or it is too large.

    With the copy, the driver can commit the part and give up its queues before the job ends."""


# --- driver to planner ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotsKnown:
    """Limits from the driver's Spark session: for tasks of a batch, and for calls after the query's end."""

    kind: ClassVar[str] = "slots"
    slots: int
    """Maximum number of tasks that a batch should have; 0 for any number."""
    calls_end_s: float
    """Time in seconds for which listener calls may go on after the query's end."""


@dataclass(frozen=True, slots=True)
class QueuesHeldUp:
    """Report of what keeps queues from being consumed, or that nothing does."""

    kind: ClassVar[str] = "held_up"
    reason: str
    """The reason in words; empty if the queues can be consumed."""


@dataclass(frozen=True, slots=True)
class PlanOver:
    """Report that other members may have all queues of a plan.

    The plan's batch is committed, or dropped for good.
    """

    kind: ClassVar[str] = "over"
    plan: int


@dataclass(frozen=True, slots=True)
class QueuesFree:
    """Report of queues that another member of the group may have.

    No task delivers them any more, and all their results are committed or dropped.
    """

    kind: ClassVar[str] = "free"
    plan: int
    queues: Queues


@dataclass(frozen=True, slots=True)
class StorageRenewed:
    """Storage options for the offset store; answers :class:`StorageWanted`."""

    kind: ClassVar[str] = "storage"
    options: Options = field(repr=False)
    """Names and values; they may be secrets."""


@dataclass(frozen=True, slots=True)
class OffsetsArrived:
    """Offsets that have lately arrived at queues' brokers, oldest first; answers :class:`ArrivalsWanted`.

    Queues of which none has arrived are left out. Times are ages in seconds: the reader has its own clock.
    """

    kind: ClassVar[str] = "arrivals"
    number: int
    ages: Ages


# --- driver to task -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskMayBegin:
    """Answer to :class:`TaskBegins`: the task may begin with its queues, except those in ``left_out``.

    If ``is_stopped``, the task must deliver nothing.
    """

    kind: ClassVar[str] = "go"
    task: str
    left_out: Annotated[Queues, _Key("give_up")]
    is_stopped: Annotated[bool, _Key("stop")]
    """Whether the task must deliver nothing, and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMayGoOn:
    """Answer to :class:`TaskResumes`: the task may deliver again, unless ``is_stopped``.

    If it may, it first sends again the parts of its result that have not arrived.
    """

    kind: ClassVar[str] = "go_on"
    task: str
    is_stopped: Annotated[bool, _Key("stop")]
    """Whether the task must deliver nothing more; none of its further results will be committed."""
    known: PartIds = frozenset()
    """Ids of unconfirmed parts that have arrived at the driver, so that the task need not send them again."""
    uncommitted: PartIds = frozenset()
    """Ids of parts that have arrived at the driver and are neither committed nor dropped yet."""
    given_up: Annotated[Queues, _Key("give_up")] = frozenset()
    """All queues from which the task must deliver nothing more."""
    dropped: Annotated[Queues, _Key("drop")] = frozenset()
    """All queues of which the task must also drop the results that it has not sent."""


@dataclass(frozen=True, slots=True)
class GiveUpQueues:
    """Instruction to deliver nothing more from these queues, and to send their results so far.

    If ``is_dropped``, the task drops these results instead.
    """

    kind: ClassVar[str] = "give_up"
    task: str
    queues: Queues
    is_dropped: Annotated[bool, _Key("drop")]
    """Whether to drop the results instead, for example because the queues were claimed or reset."""


@dataclass(frozen=True, slots=True)
class BatchAtWork:
    """Answer to :class:`TaskIdle`: whether a task that has only suspended queues left is to wait for them."""

    kind: ClassVar[str] = "batch"
    task: str
    is_at_work: Annotated[bool, _Key("at_work")]
    """True while other tasks of the batch have work; after False the task ends."""


@dataclass(frozen=True, slots=True)
class PartTaken:
    """Confirmation that a part of the task's result has arrived at the driver."""

    kind: ClassVar[str] = "taken"
    task: str
    part_id: Annotated[str, _Key("part")]


@dataclass(frozen=True, slots=True)
class CutWanted:
    """Request (a *cut*) to send all results since the last cut as one part, with :class:`PartHandedOver`.

    A task without such a part answers :class:`NothingToCut`. After this request, the task sends
    :class:`TaskDirty` again when it has new results.
    """

    kind: ClassVar[str] = "cut"
    task: str
    number: int


@dataclass(frozen=True, slots=True)
class PartsCommitted:
    """Report that parts of the task's result were committed or dropped, so it may send others."""

    kind: ClassVar[str] = "committed"
    task: str
    part_ids: Annotated[PartIds, _Key("parts")]


@dataclass(frozen=True, slots=True)
class EndSoon:
    """Announcement in real time that the batch will end.

    The task answers :class:`CallsEnded` when the listener calls that are running now have ended.
    """

    kind: ClassVar[str] = "endSoon"
    task: str


@dataclass(frozen=True, slots=True)
class EndTask:
    """Instruction to end after the running listener call.

    The results so far become the task's result, or its last part if it has sent parts before.
    """

    kind: ClassVar[str] = "end"
    task: str
    reason: Reason


# --- either way -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ping:
    """Sign that the sender is alive, sent every three seconds; it is not passed on."""

    kind: ClassVar[str] = "ping"


FromPlanner = (
    PlannerConnected
    | PlanMade
    | QueuesLeaving
    | ReplanWanted
    | PlannerLeaving
    | StoreChanged
    | StorageWanted
    | ArrivalsWanted
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
    | ResetFound
    | CallsEnded
    | TaskIdle
    | TaskFailed
    | TaskDone
)
ToDriver = FromPlanner | FromTask
ToPlanner = SlotsKnown | QueuesHeldUp | PlanOver | QueuesFree | ResetFound | StorageRenewed | OffsetsArrived
ToTask = (
    TaskMayBegin
    | TaskMayGoOn
    | GiveUpQueues
    | BatchAtWork
    | CutWanted
    | PartTaken
    | PartsCommitted
    | EndSoon
    | EndTask
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
        RemoteProtocolError: If the message is not complete, or its type is not known.
    """
    message = _decoded(_TO_DRIVER, facts, peer, "a message of type")
    if message is None:
        raise RemoteProtocolError(
            f"{peer}: a message of type {facts['type']!r} is not known. Install the driver's version of "
            "pyspark-rocketmq on every machine."
        )
    return message


def decode_to_planner(facts: JsonObject, peer: str) -> ToPlanner | None:
    """Read a message that the planner has received; return None if its type is not known.

    Raises:
        RemoteProtocolError: If the message is not complete.
    """
    return _decoded(_TO_PLANNER, facts, peer, "the driver's message")


def decode_to_task(facts: JsonObject, peer: str) -> ToTask | None:
    """Read a message that a worker has received; return None if its type is not known.

    Raises:
        RemoteProtocolError: If the message is not complete.
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
            f"{peer}: {noun} {facts.get('type')!r} is not complete: {error!r}. Install the driver's version "
            "of pyspark-rocketmq on every machine."
        ) from error


@cache
def _entries(kind: type[Message]) -> tuple[tuple[str, str, _Form], ...]:
    """Return attribute, name in JSON and form of each field."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_entry(each.name, hints[each.name]) for each in fields(kind))


def _entry(name: str, hint: Any) -> tuple[str, str, _Form]:
    """Return attribute, name in JSON and form of a field with the annotation ``hint``.

    A field of a plain type, such as int, is written as it is and read by calling the type.
    """
    kind, *notes = get_args(hint) or (hint,)
    key, form = name, _Form(lambda value: value, lambda value, _: kind(value))
    for note in notes:
        if isinstance(note, _Key):
            key = note.name
        else:
            form = note
    return name, key, form
