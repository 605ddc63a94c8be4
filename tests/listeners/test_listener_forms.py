"""Every form a listener may have, as engines use it: borrowed for a range, in the process of a task."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sqlite3
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial, partialmethod, wraps
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consumer.engine.direct import DirectEngine
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.pickling import PickledOnce, why_not_picklable
from pyspark_rocketmq.consumer.engine.task import BatchTask, Engine
from pyspark_rocketmq.errors import ListenerError, OptionError, SchemaError
from pyspark_rocketmq.listeners import errors as listener_errors
from pyspark_rocketmq.listeners import event_loop as listener_loop
from pyspark_rocketmq.listeners import forms as opened_listeners
from pyspark_rocketmq.listeners.arrow_listener import PandasListener
from pyspark_rocketmq.listeners.context import ConsumeHooks, ConsumeMessageContext, ConsumeOrderlyContext
from pyspark_rocketmq.listeners.errors import report_problem
from pyspark_rocketmq.listeners.event_loop import run_on_loop
from pyspark_rocketmq.listeners.forms import ListenerContext, form_of, lease_of_opened
from pyspark_rocketmq.listeners.row_buffer import tuples_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt, QueueRange
from tests.helpers.forked import begin_child
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.source_rows import rows_of, source_of
from tests.helpers.wait import PATIENCE_S, wait_until

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
OUTPUT = OutputColumns.of(StructType().add("name", "string").add("size", "integer"))


def called(listener: object, *offsets: int) -> tuple[object, list[Any]]:
    """What a listener answers to one delivery, on an executor, and the rows it emitted."""
    form = pickle.loads(cloudpickle.dumps(form_of(listener, "billing")))
    messages = [message_at(offset) for offset in offsets or (10, 11, 15)]
    context = ConsumeOrderlyContext(messages, OUTPUT)
    with form.borrow() as call:
        answer = call(context.follow(messages), context)
    return answer, [row for rows in tuples_of(context.take_emitted(), OUTPUT.rows) for row in rows]


def of_messages(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages:
        context.emit(name=message.keys)
    return SUCCESS


def test_a_function_gets_messages_and_a_context() -> None:
    """D2"""
    assert called(of_messages) == (
        SUCCESS,
        [(10, "key-10", None), (11, "key-11", None), (15, "key-15", None)],
    )
    assert called(partial(of_messages), 7) == (SUCCESS, [(7, "key-7", None)])


def yielding(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Iterator[Any]:
    for message in messages:
        yield {"name": message.keys}
    yield messages[0], {"name": "first again", "size": 1}


def test_a_generator_yields_rows_and_its_end_is_success() -> None:
    """H6: a row belongs to the message that the loop is at, or to the one it names."""
    assert called(yielding) == (
        SUCCESS,
        [(10, "key-10", None), (11, "key-11", None), (15, "key-15", None), (10, "first again", 1)],
    )


def test_a_generator_may_return_any_status() -> None:
    """D3"""

    def gives_back(
        messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> Generator[Any, None, ConsumeOrderlyStatus]:
        yield messages[0], {"name": "void"}
        return SUSPEND

    assert called(gives_back)[0] is SUSPEND


@pytest.mark.parametrize("row", ["text", ("a", {}), None, 7])
def test_the_error_of_a_generator_without_rows_says_what_a_row_is(row: object) -> None:
    """D5"""
    ended = []

    def wrong(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Iterator[Any]:
        try:
            yield row
        finally:
            ended.append(True)

    context = ConsumeOrderlyContext([message_at(1)], OUTPUT)
    with form_of(wrong).borrow() as call, pytest.raises(ListenerError, match="a row is a dict of columns"):
        call([message_at(1)], context)
    assert ended == [True]


def on_frame(frame: pd.DataFrame, context: ConsumeOrderlyContext) -> Any:
    rows = frame[frame["queueOffset"] != 11][["queueOffset"]].assign(name=frame["keys"])
    return SUCCESS, rows.assign(size=pd.array([1, None], dtype="Int32"))


def test_a_pandas_listener_gets_a_frame_and_returns_a_status_and_rows() -> None:
    """D2, H6: nulls stay nulls, and each row stays with its message."""
    assert called(PandasListener(on_frame)) == (SUCCESS, [(10, "key-10", 1), (15, "key-15", None)])


def test_the_frame_has_the_source_s_columns() -> None:
    """As ``format("rocketmq")`` gives them, times as instants."""
    seen: list[pd.DataFrame] = []

    def look(frame: pd.DataFrame, context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        seen.append(frame)
        return SUCCESS

    messages = [message_at(10), message_at(11)]
    assert PandasListener(look)(messages, ConsumeOrderlyContext(messages, OUTPUT)) is SUCCESS

    (frame,) = seen
    assert frame["queueOffset"].tolist() == [10, 11]
    assert frame["body"].tolist() == [b"body-10", b"body-11"]
    assert frame["bornTimestamp"][0] == pd.Timestamp(1_700_000_000_000, unit="ms", tz="UTC")
    assert {"topic", "brokerName", "queueId", "keys", "tags", "properties", "reconsumeTimes"} <= set(frame)


@pytest.mark.parametrize(
    ("rows", "error", "complaint"),
    [
        ({"name": ["a"]}, ListenerError, "rows without column 'queueOffset' for a delivery of 3 messages"),
        (
            {"queueOffset": [12], "name": ["a"]},
            ListenerError,
            "is not the offset of a delivered message: the delivery has the offsets 10 to 15",
        ),
        ({"queueOffset": [10], "nam": ["a"]}, SchemaError, "nam, which the output schema does not have"),
        ({"queueOffset": [10], "size": ["a"]}, SchemaError, "for column 'size'|column 'size'"),
    ],
)
def test_a_frame_of_ambiguous_or_unfitting_rows_is_refused(
    rows: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    """D5, H6"""
    with pytest.raises(error, match=complaint):
        called(PandasListener(lambda frame, context: (SUCCESS, pd.DataFrame(rows))))


def test_the_rows_of_a_delivery_of_one_message_are_its_own() -> None:
    """H6"""
    one = PandasListener(lambda frame, context: (SUCCESS, pd.DataFrame({"name": ["a", "b"]})))

    assert called(one, 7) == (SUCCESS, [(7, "a", None), (7, "b", None)])
    assert called(PandasListener(lambda frame, context: None), 7) == (None, [])


# ------------------------------------------------------------------------------------------------------- open

EVENTS: list[Any] = []


class Recording:
    """A listener with a connection."""

    def __init__(self) -> None:
        self.connection: sqlite3.Connection | None = None

    def open(self, context: ListenerContext) -> None:
        EVENTS.append(("open", context.consumer_group))
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)

    def consume_message(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        assert self.connection is not None
        (answer,) = self.connection.execute("SELECT 1").fetchone()
        context.emit(messages[0], size=answer)
        return SUCCESS

    def close(self) -> None:
        EVENTS.append("close")
        assert self.connection is not None
        self.connection.close()


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """What was opened is not closed during a later test, and notes nothing there."""
    EVENTS.clear()
    yield
    for opened in opened_listeners._opened.values():
        assert opened.closing is not None
        opened.closing.cancel()
    opened_listeners._opened.clear()


def test_a_listener_may_have_a_method_of_any_name() -> None:
    """Only the package's own forms are taken for forms."""

    class Library(Recording):
        def borrow(self, book: str) -> str:
            return book

    with form_of(Library(), "billing").borrow() as call:
        assert call([message_at(1)], ConsumeOrderlyContext([message_at(1)], OUTPUT)) is SUCCESS


@pytest.mark.parametrize("listener", [Recording, Recording()], ids=["class", "object"])
def test_a_listener_with_a_connection_is_opened_once_per_process(listener: object) -> None:
    """Not once per task: each of them gets a pickled copy,
    and the first one that was opened serves them all.
    """
    sent = cloudpickle.dumps(form_of(listener, "billing"))
    messages = [message_at(10)]
    for _ in range(3):
        context = ConsumeOrderlyContext(messages, OUTPUT)
        with pickle.loads(sent).borrow() as call:
            assert call(messages, context) is SUCCESS
        assert context.take_emitted() == [(10, None, 1)]

    assert EVENTS == [("open", "billing")]


def test_two_consumers_do_not_share_an_opened_listener() -> None:
    for group in ("one", "other"):
        with form_of(Recording, group).borrow():
            pass

    assert EVENTS == [("open", "one"), ("open", "other")]


def test_an_object_is_open_as_long_as_one_of_its_queries_uses_it() -> None:
    """A listener given as module:object is one object for all queries, and for a query that starts again."""
    listener, context = Recording(), ListenerContext("billing")

    def used(key: str, idle_s: float) -> None:
        with lease_of_opened(key, listener, context, idle_s) as call:
            assert call([message_at(1)], ConsumeOrderlyContext([message_at(1)], OUTPUT)) is SUCCESS

    used("first start", 0.01)
    with lease_of_opened("second start", listener, context, idle_s=0.01):
        wait_until(lambda: "first start" not in opened_listeners._opened, reason="the first start's end")
        used("second start", 3600)
        assert EVENTS == [("open", "billing")]
    wait_until(lambda: EVENTS[-1] == "close", reason="the idle listener's end")
    used("third start", 3600)
    assert EVENTS == [("open", "billing"), "close", ("open", "billing")]


def test_an_object_that_two_queries_need_at_the_same_time_is_opened_by_one_of_them() -> None:
    class Slow(Recording):
        def open(self, context: ListenerContext) -> None:
            wait_until(lambda: len(opened_listeners._opened) == 2, reason="the other query")
            super().open(context)

    listener, context = Slow(), ListenerContext("billing")

    def use(key: str) -> None:
        with lease_of_opened(key, listener, context) as call:
            assert call([message_at(1)], ConsumeOrderlyContext([message_at(1)], OUTPUT)) is SUCCESS

    with ThreadPoolExecutor(2) as queries:
        for done in [queries.submit(use, "one"), queries.submit(use, "other")]:
            done.result(PATIENCE_S)
    assert EVENTS == [("open", "billing")]


def test_an_object_that_two_queries_use_is_closed_once_at_the_process_s_end() -> None:
    listener, context = Recording(), ListenerContext("billing")
    for key in ("one", "other"):
        with lease_of_opened(key, listener, context):
            pass

    opened_listeners._close_all()

    assert EVENTS == [("open", "billing"), "close"]


def test_an_idle_listener_is_closed_and_opened_again_when_needed() -> None:
    """Spark ends an idle worker without letting it finish anything, so it is closed before that."""
    context = ListenerContext("billing")
    with lease_of_opened("k", Recording, context, idle_s=0.01):
        pass
    wait_until(lambda: EVENTS[-1] == "close", reason="The idle listener's end")
    with lease_of_opened("k", Recording, context, idle_s=3600):
        assert EVENTS == [("open", "billing"), "close", ("open", "billing")]


def test_a_listener_in_use_is_not_closed() -> None:
    """However short the idle time is: the timer of an earlier borrower means nothing."""
    context = ListenerContext("billing")
    with lease_of_opened("in use", Recording, context, idle_s=0.0):
        pass
    for _ in range(50):
        with lease_of_opened("in use", Recording, context, idle_s=0.0) as call:
            assert call([message_at(1)], ConsumeOrderlyContext([message_at(1)], OUTPUT)) is SUCCESS
    opened = EVENTS.count(("open", "billing"))
    wait_until(lambda: EVENTS.count("close") == opened, reason="The idle listener's end")


def test_a_child_of_fork_does_not_close_its_parent_s_listeners() -> None:
    """G8: it does not close them at its end, and opens its own; whoever held a lock in the parent."""
    context = ListenerContext("billing")
    modules = (opened_listeners, listener_loop, listener_errors)

    def use() -> list[object]:
        opened_listeners._close_all()
        with lease_of_opened("k", Recording, context) as call:
            call([message_at(1)], ConsumeOrderlyContext([message_at(1)], OUTPUT))
        run_on_loop(partial(asyncio.sleep, 0), PATIENCE_S)
        report_problem("The child has a problem.", "in the child")
        return EVENTS

    run_on_loop(partial(asyncio.sleep, 0), PATIENCE_S)
    with lease_of_opened("k", Recording, context):
        with ThreadPoolExecutor(1) as other, ExitStack() as held:
            for module in modules:
                other.submit(held.enter_context, module._guard).result()
            outcome = begin_child(use)
            other.submit(held.close).result()

        assert outcome() == [("open", "billing")] * 2


class SlowlyOpened(Recording):
    """Opened only when another thread wants it, too."""

    is_wanted = threading.Event()

    def open(self, context: ListenerContext) -> None:
        super().open(context)
        assert SlowlyOpened.is_wanted.wait(PATIENCE_S)


def test_threads_that_need_a_listener_at_the_same_time_share_what_one_of_them_opens() -> None:
    form = form_of(SlowlyOpened, "billing")
    calls = []

    def take() -> None:
        with form.borrow() as call:
            calls.append(call)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: [each.users for each in opened_listeners._opened.values()] == [3])
    SlowlyOpened.is_wanted.set()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert EVENTS == [("open", "billing")]
    assert len(set(calls)) == 1


class Unopened:
    """Has nothing to open the first time."""

    attempts = 0

    def open(self, context: ListenerContext) -> None:
        Unopened.attempts += 1
        if Unopened.attempts == 1:
            raise ConnectionError("the database is away")

    def consume_message(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        return SUCCESS


def test_a_listener_that_cannot_be_opened_fails_its_messages_and_is_tried_again() -> None:
    """D5: so its queues wait, and the query goes on."""
    form = form_of(Unopened)
    messages = [message_at(1)]
    context = ConsumeOrderlyContext(messages, OUTPUT)

    with form.borrow() as call, pytest.raises(ListenerError, match=r"open\(\) failed") as caught:
        call(messages, context)
    assert isinstance(caught.value.__cause__, ConnectionError)
    with form.borrow() as call:
        assert call(messages, context) is SUCCESS


def test_a_listener_without_open_and_close_needs_neither() -> None:
    class Bare:
        def consume_message(
            self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
        ) -> ConsumeOrderlyStatus:
            return SUCCESS

    assert called(Bare()) == (SUCCESS, [])


# --------------------------------------------------------------------------------------------------------- by


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module of a user's."""
    made = ModuleType("users_listeners")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


@pytest.mark.parametrize("listener", [of_messages, yielding, PandasListener(on_frame), Recording])
def test_any_form_can_be_named(module: ModuleType, listener: object) -> None:
    """It is imported by each process, so it need not be picklable."""
    module.listener = listener  # type: ignore[attr-defined]
    module.lock = threading.Lock()  # type: ignore[attr-defined]

    assert called("users_listeners:listener")[0] is SUCCESS


def test_a_named_class_is_opened_once(module: ModuleType) -> None:
    module.Recording = Recording  # type: ignore[attr-defined]
    form = form_of("users_listeners:Recording", "billing")
    for _ in range(2):
        with form.borrow():
            pass

    assert EVENTS == [("open", "billing")]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("no_module_at_all:on_order", "'no_module_at_all:on_order' cannot be imported: ModuleNotFoundError"),
        ("json:nothing_there", "cannot be imported: AttributeError"),
        ("json", "'json' is not written as module:name"),
        (":x", "is not written as module:name"),
    ],
)
def test_a_name_that_stands_for_nothing_is_an_error(name: str, complaint: str) -> None:
    with form_of_error(complaint):
        called(name)


def form_of_error(complaint: str) -> Any:
    return pytest.raises(OptionError, match=complaint)


async def asynchronous(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> None:
    """For concurrent consumers."""


class ByPart:
    def _consume(self, topic: str, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        """For one topic of several."""

    consume_message = partialmethod(_consume, "orders")


@pytest.mark.parametrize("listener", [ByPart, ByPart()])
def test_a_method_may_be_made_of_another(listener: object) -> None:
    called(listener)


class Unfit:
    def consume_message(self, messages: Sequence[MessageExt], context: Any, more: int) -> Any:
        """Wants too much."""


@pytest.mark.parametrize(
    ("listener", "complaint"),
    [
        (asynchronous, "asynchronous is an async def, which only a concurrent listener may be"),
        (7, "an object of type int is not a listener"),
        (int, "int is not a listener: it must be a function of messages and a context"),
        (
            lambda messages: SUCCESS,
            r"cannot be called with messages and a context \(too many positional arguments\)",
        ),
        (Unfit, "Unfit cannot be called with messages and a context .missing a required argument: 'more'"),
        (Unfit(), "an object of type Unfit cannot be called with messages and a context"),
    ],
)
def test_an_invalid_listener_is_refused_at_once(listener: object, complaint: str) -> None:
    with form_of_error(complaint):
        form_of(listener)


def test_any_callable_of_messages_and_context_is_a_listener() -> None:
    def with_retries(function: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(function)(lambda messages, context: function(messages, context, 3))

    @with_retries
    def decorated(messages: Sequence[MessageExt], context: ConsumeOrderlyContext, retries: int) -> Any:
        return SUCCESS

    class Static:
        @staticmethod
        def consume_message(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
            return SUCCESS

    for listener in (
        decorated,
        lambda *both: SUCCESS,
        lambda messages, context, more=0: SUCCESS,
        Static,
        Static(),
    ):
        assert called(listener) == (SUCCESS, [])


# ---------------------------------------------------------------------------------------------------- what is

LOCK = threading.Lock()


def with_a_global(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> None:
    with LOCK:
        pass


class Holder:
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")

    def consume_message(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> None:
        """Never called."""


def with_a_variable() -> Callable[..., None]:
    settings = {"target": [1, threading.Lock()]}

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> None:
        settings.clear()

    return listener


def with_a_later_variable() -> Callable[..., None]:
    later: object
    lock = threading.Lock()

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> None:
        with lock:
            EVENTS.append(later)

    if not EVENTS:
        return listener
    later = None
    return listener


@pytest.mark.parametrize(
    ("listener", "named"),
    [
        (with_a_later_variable(), "its variable 'lock' is a _thread.lock"),
        (with_a_variable(), "its variable 'settings' → entry 'target' → element 1 is a _thread.lock"),
        (Holder(), "its attribute 'connection' is a sqlite3.Connection"),
        (Holder().consume_message, "its object → attribute 'connection' is a sqlite3.Connection"),
        (
            partial(of_messages, connection=Holder()),  # type: ignore[call-arg]
            "its argument 'connection' → attribute 'connection' is a sqlite3",
        ),
        (threading.Lock(), "it is a _thread.lock"),
    ],
)
def test_the_part_that_cannot_be_pickled_is_named(listener: object, named: str) -> None:
    """Before the query starts, and by the name it has in the user's code."""
    reason = why_not_picklable(listener)

    assert reason is not None
    assert reason.startswith(named)
    assert "which cannot be pickled (" in reason


def test_a_function_of_the_main_program_takes_its_globals_along() -> None:
    """As in a notebook."""
    main = ModuleType("__main__")
    exec(  # a function that no module can be imported for
        "import threading\nLOCK = threading.Lock()\ndef listener(messages, context):\n    LOCK.acquire()",
        main.__dict__,
    )

    reason = why_not_picklable(main.listener)

    assert reason is not None
    assert reason.startswith("its global 'LOCK' is a _thread.lock")
    assert why_not_picklable(with_a_global) is None, "a module's function is imported, not pickled"


# ------------------------------------------------------------------------------------------------------------


def test_the_context_has_the_attempt_and_a_logger_with_its_position(caplog: pytest.LogCaptureFixture) -> None:
    """D3: the first delivery is attempt 1."""
    messages = [message_at(10)._replace(reconsume_times=2), message_at(11)]
    context = ConsumeOrderlyContext(messages, OUTPUT)
    with caplog.at_level(logging.INFO):
        context.logger.warning("it is %d%%", 50)
        for message in context.follow(messages):
            context.logger.info("at %s", message.keys)

    assert context.attempt == 3
    assert caplog.messages == [
        "topic=orders broker=broker-a queue=3 queueOffset=10 it is 50%",
        "topic=orders broker=broker-a queue=3 queueOffset=10 at key-10",
        "topic=orders broker=broker-a queue=3 queueOffset=11 at key-11",
    ]
    assert {record.name for record in caplog.records} == {"pyspark_rocketmq.listener"}


def test_the_name_of_a_retry_topic_is_no_format(caplog: pytest.LogCaptureFixture) -> None:
    message = message_at(10)._replace(topic="%RETRY%g")
    with caplog.at_level(logging.INFO):
        ConsumeOrderlyContext([message], OUTPUT).logger.info("no arguments: 100%")

    assert caplog.messages == ["topic=%RETRY%g broker=broker-a queue=3 queueOffset=10 no arguments: 100%"]


class Heavy:
    """Counts how often it is pickled, and is a hook, too."""

    pickled = 0

    def __reduce__(self) -> tuple[object, ...]:
        Heavy.pickled += 1
        return Heavy, ()

    def __call__(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        self.size = len(messages)
        return SUCCESS

    def hook_name(self) -> str:
        return "heavy"

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self.seen = len(context.msg_list)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        assert (self.seen, self.size) == (2, 2)
        EVENTS.append(context.status)


def _consumed_by(engine: Engine, planned: QueueRange) -> list[int]:
    """Return how many messages each result of the engine has."""
    results = list(engine(source_of(rows_of(planned), 9)))
    return [each.ack.consumed for each in results if isinstance(each, Consumed)]


def test_a_listener_is_pickled_once_for_all_micro_batches() -> None:
    """H12: it may hold a model. What listener and hooks share they share on the executors, too."""
    Heavy.pickled = 0
    both = Heavy()
    consumer = RangeConsumer(
        form_of(both, "billing"),
        OUTPUT,
        OrderlySettings(consume_message_batch_max_size=2),
        hooks=ConsumeHooks([both]),
    )
    engine = PickledOnce(DirectEngine(consumer))
    planned = QueueRange.between(QUEUE, 10, 12, epoch=1)
    for _ in range(3):
        sent = pickle.loads(cloudpickle.dumps(BatchTask(None, engine)))._engine
        assert isinstance(sent, DirectEngine)
        assert _consumed_by(sent, planned) == [2]
    assert _consumed_by(engine, planned) == [2]

    assert Heavy.pickled == 1
    assert EVENTS == ["SUCCESS"] * 4


def test_an_object_is_opened_again_only_when_its_close_has_ended() -> None:
    """Close would undo what open has done, and every call would fail."""
    context = ListenerContext("billing")
    may_end, done = threading.Event(), list[str]()

    class Slow:
        def open(self, _: ListenerContext) -> None:
            done.append("opened")

        def consume_message(self, messages: object, _: object) -> None:
            pass

        def close(self) -> None:
            done.append("closing")
            may_end.wait(PATIENCE_S)
            done.append("closed")

    listener = Slow()
    with lease_of_opened("slow", listener, context, idle_s=0.0):
        pass
    wait_until(lambda: "closing" in done, reason="the idle listener is being closed")
    threading.Timer(0.2, may_end.set).start()

    with lease_of_opened("slow", listener, context), lease_of_opened("other", listener, context):
        assert done == ["opened", "closing", "closed", "opened"]
