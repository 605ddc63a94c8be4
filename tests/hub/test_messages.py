"""Messages between driver, planner and tasks: their form as JSON, written and read."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from pyspark_rocketmq.consume.cuts import EndReason, Place
from pyspark_rocketmq.consume.recent_offsets import AgedOffset
from pyspark_rocketmq.errors import RemoteProtocolError, RocketMQError, SchemaError
from pyspark_rocketmq.hub.messages import (
    ArrivalsWanted,
    BatchAtWork,
    CallsEnded,
    CutWanted,
    EndSoon,
    EndTask,
    GiveUpQueues,
    Message,
    NothingToCut,
    OffsetsArrived,
    PartHandedOver,
    PartsCommitted,
    PartTaken,
    Ping,
    PlanMade,
    PlannerConnected,
    PlannerLeaving,
    PlanOver,
    QueryDrained,
    QueuesFree,
    QueuesHeldUp,
    QueuesLeaving,
    QueuesReleased,
    QueueStands,
    ReplanWanted,
    ResetFound,
    SlotsKnown,
    StorageRenewed,
    StorageWanted,
    StoreChanged,
    TaskBegins,
    TaskDirty,
    TaskDone,
    TaskError,
    TaskFailed,
    TaskIdle,
    TaskMayBegin,
    TaskMayGoOn,
    TaskResumes,
    ToDriver,
    ToPlanner,
    ToTask,
    decode_to_driver,
    decode_to_planner,
    decode_to_task,
    encode,
    queue_list,
)
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.parts import part_of

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))
BOTH = frozenset({B, A})
PART = part_of("p", A)
_PART = (
    '{"id":"p","queues":[["T","broker-a",0]],"result":' + json.dumps(PART.facts, separators=(",", ":")) + "}"
)
_BOTH = '[["T","broker-a",0],["T","broker-a",1]]'
_PLACES = '[["T","broker-a",0,3,9],["T","broker-a",1,4,8]]'

TO_DRIVER: tuple[tuple[ToDriver, str], ...] = (
    (PlannerConnected(), '{"type":"planner"}'),
    (PlanMade(1, BOTH), f'{{"type":"plan","plan":1,"queues":{_BOTH}}}'),
    (QueuesLeaving(1, BOTH), f'{{"type":"leaving","plan":1,"queues":{_BOTH}}}'),
    (ReplanWanted(1, "a queue more"), '{"type":"replan","plan":1,"reason":"a queue more"}'),
    (PlannerLeaving(1), '{"type":"bye","plan":1}'),
    (StoreChanged(BOTH), f'{{"type":"look","unfenced":{_BOTH}}}'),
    (StorageWanted(), '{"type":"storage"}'),
    (ArrivalsWanted(3, BOTH), f'{{"type":"arrivals","number":3,"queues":{_BOTH}}}'),
    (QueryDrained(), '{"type":"drained"}'),
    (
        TaskBegins(
            task="t", batch_id=7, partition=2, attempt=1, places={B: Place(4, 8), A: Place(3, 9)}, tasks=5
        ),
        (
            f'{{"type":"begin","task":"t","batch":7,"partition":2,"attempt":1,"queues":{_PLACES},"tasks":5,'
            '"for_s":null,"at_end":[],"connection":1}'
        ),
    ),
    (
        TaskBegins(
            task="t",
            batch_id=7,
            partition=2,
            attempt=0,
            places={},
            tasks=5,
            open_for_s=300.0,
            at_end=BOTH,
            connection=3,
        ),
        (
            '{"type":"begin","task":"t","batch":7,"partition":2,"attempt":0,"queues":[],"tasks":5,'
            f'"for_s":300.0,"at_end":{_BOTH},"connection":3}}'
        ),
    ),
    (
        TaskResumes(task="t", batch_id=7, in_doubt=frozenset({"q", "p"}), connection=2),
        '{"type":"resume","task":"t","batch":7,"in_doubt":["p","q"],"connection":2}',
    ),
    (TaskDirty("t"), '{"type":"dirty","task":"t"}'),
    (
        PartHandedOver("t", PART, cut=3, ends=BOTH),
        f'{{"type":"handed","task":"t","part":{_PART},"cut":3,"ends":{_BOTH}}}',
    ),
    (
        PartHandedOver("t", PART, cut=None, ends=frozenset()),
        f'{{"type":"handed","task":"t","part":{_PART},"cut":null,"ends":[]}}',
    ),
    (NothingToCut("t", 3), '{"type":"nothing","task":"t","cut":3}'),
    (QueuesReleased("t", BOTH), f'{{"type":"released","task":"t","queues":{_BOTH}}}'),
    (
        QueueStands("t", A, is_reset=True, reason="reset to 9"),
        '{"type":"stands","task":"t","queue":["T","broker-a",0],"reset":true,"reason":"reset to 9"}',
    ),
    (ResetFound(A, 9), '{"type":"reset","queue":["T","broker-a",0],"target":9}'),
    (CallsEnded("t"), '{"type":"callsEnded","task":"t"}'),
    (TaskIdle("t"), '{"type":"idle","task":"t"}'),
    (TaskFailed("t"), '{"type":"failed","task":"t","error":null}'),
    (
        TaskFailed("t", TaskError("SchemaError", "no column", is_fatal=True)),
        '{"type":"failed","task":"t","error":{"class":"SchemaError","text":"no column","fatal":true}}',
    ),
    (TaskDone("t", PART), f'{{"type":"done","task":"t","part":{_PART}}}'),
    (TaskDone("t", None), '{"type":"done","task":"t","part":null}'),
)
TO_PLANNER: tuple[tuple[ToPlanner, str], ...] = (
    (SlotsKnown(4, 5.0), '{"type":"slots","slots":4,"calls_end_s":5.0}'),
    (QueuesHeldUp("No permission."), '{"type":"held_up","reason":"No permission."}'),
    (PlanOver(1), '{"type":"over","plan":1}'),
    (QueuesFree(1, BOTH), f'{{"type":"free","plan":1,"queues":{_BOTH}}}'),
    (ResetFound(A, 9), '{"type":"reset","queue":["T","broker-a",0],"target":9}'),
    (StorageRenewed({"key": "value"}), '{"type":"storage","options":{"key":"value"}}'),
    (
        OffsetsArrived(3, {B: (), A: (AgedOffset(4.5, 7), AgedOffset(0.0, 9))}),
        '{"type":"arrivals","number":3,"ages":[["T","broker-a",0,[[4.5,7],[0.0,9]]],["T","broker-a",1,[]]]}',
    ),
)
TO_TASK: tuple[tuple[ToTask, str], ...] = (
    (
        TaskMayBegin("t", BOTH, is_stopped=False),
        f'{{"type":"go","task":"t","give_up":{_BOTH},"stop":false}}',
    ),
    (
        GiveUpQueues("t", BOTH, is_dropped=True),
        f'{{"type":"give_up","task":"t","queues":{_BOTH},"drop":true}}',
    ),
    (BatchAtWork("t", is_at_work=True), '{"type":"batch","task":"t","at_work":true}'),
    (PartTaken("t", "p"), '{"type":"taken","task":"t","part":"p"}'),
    (CutWanted("t", 3), '{"type":"cut","task":"t","number":3}'),
    (PartsCommitted("t", frozenset({"q", "p"})), '{"type":"committed","task":"t","parts":["p","q"]}'),
    (EndSoon("t"), '{"type":"endSoon","task":"t"}'),
    (EndTask("t", EndReason.TIME), '{"type":"end","task":"t","reason":"time"}'),
    (
        TaskMayGoOn(
            task="t",
            is_stopped=False,
            known=frozenset({"p"}),
            uncommitted=frozenset({"o", "p"}),
            given_up=BOTH,
            dropped=frozenset({A}),
        ),
        (
            '{"type":"go_on","task":"t","stop":false,"known":["p"],"uncommitted":["o","p"],'
            f'"give_up":{_BOTH},"drop":[["T","broker-a",0]]}}'
        ),
    ),
)


def text_of(message: Message) -> str:
    return json.dumps(encode(message), separators=(",", ":"))


@pytest.mark.parametrize(("message", "text"), TO_DRIVER, ids=lambda value: type(value).__name__)
def test_messages_to_the_driver_keep_their_form(message: ToDriver, text: str) -> None:
    """B5"""
    assert text_of(message) == text
    assert decode_to_driver(json.loads(text), "peer") == message


@pytest.mark.parametrize(("message", "text"), TO_PLANNER, ids=lambda value: type(value).__name__)
def test_messages_to_the_planner_keep_their_form(message: ToPlanner, text: str) -> None:
    """B5"""
    assert text_of(message) == text
    assert decode_to_planner(json.loads(text), "hub") == message


@pytest.mark.parametrize(("message", "text"), TO_TASK, ids=lambda value: type(value).__name__)
def test_messages_to_a_task_keep_their_form(message: ToTask, text: str) -> None:
    """B5"""
    assert text_of(message) == text
    assert decode_to_task(json.loads(text), "hub") == message


def test_each_kind_of_message_has_a_case_here() -> None:
    assert {type(message) for message, _ in TO_DRIVER} == set(get_args(ToDriver))
    assert {type(message) for message, _ in TO_PLANNER} == set(get_args(ToPlanner))
    assert {type(message) for message, _ in TO_TASK} == set(get_args(ToTask))
    assert text_of(Ping()) == '{"type":"ping"}'


@pytest.mark.parametrize(("message", "text"), TO_DRIVER, ids=lambda value: type(value).__name__)
def test_a_message_without_one_of_its_fields_is_refused(message: ToDriver, text: str) -> None:
    """H9"""
    facts = json.loads(text)
    for key in facts:
        rest = {name: value for name, value in facts.items() if name != key}
        with pytest.raises(RemoteProtocolError, match="a message of type"):
            decode_to_driver(rest, "peer")


def test_the_driver_refuses_unknown_messages_and_the_others_ignore_them() -> None:
    """H9"""
    with pytest.raises(RemoteProtocolError, match="peer: a message of type 'new' is not known"):
        decode_to_driver({"type": "new"}, "peer")
    assert decode_to_planner({"type": "new"}, "hub") is None
    assert decode_to_task({"type": "over", "plan": 1}, "hub") is None
    with pytest.raises(RemoteProtocolError, match="hub: the driver's message 'over' is not complete"):
        decode_to_planner({"type": "over"}, "hub")


def test_an_error_of_a_task_keeps_its_name_and_its_text() -> None:
    """D1"""
    error = TaskError.of(SchemaError("There is no column of that name."), is_fatal=True).to_error()

    assert isinstance(error, RocketMQError)
    assert (type(error).__name__, str(error)) == ("SchemaError", "There is no column of that name.")


class _Unreadable(Exception):
    def __str__(self) -> str:
        raise KeyError("text")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left"), "OSError: [Errno 28] No space left"),
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (ValueError(), "ValueError"),
        (ValueError("no jdbc:pg://me:secret@db/t"), "ValueError: no jdbc:pg://***@db/t"),
        (_Unreadable(), "_Unreadable: its message cannot be read"),
    ],
)
def test_any_error_of_a_task_is_one_line_without_secrets(error: Exception, line: str) -> None:
    """A5, D1"""
    assert TaskError.of(error).to_line() == line


@pytest.mark.parametrize("text", ["\x01" * (9 << 20), "x" * 9_985 + " s3://me:secret@b"])
def test_an_error_of_a_task_fits_in_a_line_of_the_connection(text: str) -> None:
    """A5, D1: and shows no secret at whose end it would be cut."""
    reported = TaskError.of(ValueError(text))

    assert len(reported.text) <= 10_000
    assert len(json.dumps(encode(TaskFailed("t", reported)))) < 1 << 17
    assert len(reported.to_line()) <= 2_000
    assert "secret" not in reported.text


def test_storage_options_are_not_shown() -> None:
    """A5"""
    assert "secret" not in repr(StorageRenewed({"key": "secret"}))


@pytest.mark.parametrize("queues", [None, 3, "text", [["T", "b"]], [["T", "b", "x"]], [[1, 2, 3, 4]]])
def test_an_invalid_list_of_queues_is_refused(queues: object) -> None:
    """H9"""
    with pytest.raises(RemoteProtocolError):
        queue_list(queues)
