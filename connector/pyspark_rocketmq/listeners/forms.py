"""The forms of a listener, and its lifecycle in a worker: opened once, closed when idle.

* a function ``(messages, context) -> status``
* a generator function: yields rows, each a dict of columns or ``(message, dict)``; its end is success, or it
  returns a status
* :class:`ArrowListener`: ``(record batch, context) -> status`` or ``(status, record batch of rows)``
* :class:`PandasListener`: ``(frame, context) -> status`` or ``(status, frame of rows)``
* a class, or an object, with ``consume_message(messages, context)``, and optionally ``open(context)`` and
  ``close()``: opened once per worker process, closed when idle
* ``"module:name"``: any of these, imported where it is needed and not pickled

For a concurrent listener, each of these may be an ``async def``. A form is pickled to the executors. There,
each range of offsets that a task consumes borrows the listener, and gives it back at its end.

Spark kills a Python worker that was idle for a minute. So a listener that was idle for half a minute is
closed here, and opened again when needed. If its process is killed, nothing can close it.
"""

from __future__ import annotations

import atexit
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final, NoReturn, Protocol
from uuid import uuid4

from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import ListenerError, OptionError
from pyspark_rocketmq.listeners.context import DeliveryContext
from pyspark_rocketmq.listeners.event_loop import is_async, run_on_loop
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageExt

logger = masking_logger(__name__)

IDLE_S: Final = 30.0
"""Time without a user after which a listener is closed, in seconds.

It is half of Spark's time-out for idle workers (``PythonWorkerFactory.IDLE_WORKER_TIMEOUT_NS``).
"""
_OPEN_S: Final = 60.0
_CLOSE_S: Final = 10.0
"""Time-out of an ``async def`` ``close``, in seconds."""

Call = Callable[[Sequence[MessageExt], Any], Any]
"""A listener as engines call it, with messages and their context."""

_opened: dict[str, _Opened] = {}
_closings: dict[str, tuple[_Opened, threading.Event]] = {}
"""Idle listeners that are being closed; the event is set when ``close`` has ended."""
_guard = threading.Lock()
"""Lock of ``_opened``, its values and ``_closings``; never held while a listener's code runs."""


@dataclass(frozen=True, slots=True)
class ListenerContext:
    """The argument of a listener's ``open``."""

    consumer_group: str
    """Group of the query; empty if it has none."""


class _Opened:
    """A listener that is opening, in use, or idle.

    Several queries may use one object, for example if it is given as ``module:name``. Each has an
    :class:`_Opened` of its own; the first of them opens the object, and the last one closes it.
    """

    def __init__(self, given: Any, first: _Opened | None) -> None:
        self.given = given
        """The user's object or class."""
        self.opened_elsewhere = None if first is None else first.listener
        """The ``listener`` of the query that opens the same object; None if this one does."""
        self.listener: Future[Any] = Future()
        """Done when the listener is open, or could not be opened; other users wait for that, without a
        time-out."""
        self.users = 0
        self.closing: threading.Timer | None = None


@contextmanager
def lease_of_opened(
    key: str, listener: Any, context: ListenerContext, idle_s: float = IDLE_S
) -> Iterator[Call]:
    """Open ``listener`` unless this process has it open under ``key``, and yield its ``consume_message``.

    ``listener`` is an object, or a class to instantiate. When nobody borrows it any longer, it stays open for
    ``idle_s`` seconds. If ``open`` fails, a :class:`FailedListener` is yielded. Its calls fail, so the queues
    are suspended, and the next borrower tries ``open`` again.
    """
    opened, is_new = _take(key, listener)
    if is_new:
        _open(key, opened, context)
    try:
        call = opened.listener.result().consume_message
    except Exception as error:  # noqa: BLE001 - its calls raise it
        yield FailedListener(error)
        return
    try:
        yield call
    finally:
        _give_back(key, opened, idle_s)


def _take(key: str, listener: Any) -> tuple[_Opened, bool]:
    """Add a user of the listener ``key``; return its ``_Opened``, and whether this user must open it."""
    with _guard:
        found = _opened.get(key)
        opened = _opened[key] = found or _Opened(listener, _entry_of(listener))
        opened.users += 1
        if opened.closing is not None:
            opened.closing.cancel()
        return opened, found is None


def _entry_of(listener: Any) -> _Opened | None:
    """Return an entry of the object ``listener``; None if there is none, or if it is a class."""
    if isinstance(listener, type):
        return None
    return next((opened for opened in _opened.values() if opened.given is listener), None)


def _open(key: str, opened: _Opened, context: ListenerContext) -> None:
    """Open the listener for all users that wait for it; after a failure, the next new user tries again.

    Each user gets a failure when it asks for the listener. This function itself raises only errors that end
    the process.
    """
    try:
        made = opened.given() if isinstance(opened.given, type) else _once_closed(key, opened.given)
        if opened.opened_elsewhere is not None:
            opened.opened_elsewhere.result()
        elif hasattr(made, "open"):
            _call(partial(made.open, context), _OPEN_S)
    except BaseException as error:
        with _guard:
            del _opened[key]
        opened.listener.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        opened.listener.set_result(made)


def _once_closed(key: str, listener: Any) -> Any:
    """Return the object ``listener`` once no ``close`` of it is running, or after 10 s with a warning.

    A ``close`` that still runs could undo what the next ``open`` of the same object does.
    """
    with _guard:
        closings = [
            ended
            for closed_key, (closed, ended) in _closings.items()
            if closed_key == key or closed.given is listener
        ]
    for ended in closings:
        if not ended.wait(_CLOSE_S):
            logger.warning(
                "listener is opened although its close() has not ended in time type=%s",
                type(listener).__name__,
            )
    return listener


def _give_back(key: str, opened: _Opened, idle_s: float) -> None:
    closing = threading.Timer(idle_s, _close_if_idle, (key, opened))
    closing.daemon = True
    with _guard:
        opened.users -= 1
        if opened.users:
            return
        opened.closing = closing
    closing.start()


def _close_if_idle(key: str, opened: _Opened) -> None:
    with _guard:
        # The timer may have fired just before a new borrower cancelled it.
        if opened.users or threading.current_thread() is not opened.closing:
            return
        _opened.pop(key, None)
        if _entry_of(opened.given) is not None:
            return
        closing = _closings[key] = opened, threading.Event()
    try:
        _close(opened)
    finally:
        with _guard:
            if _closings.get(key) is closing:
                del _closings[key]
        closing[1].set()


def _close(opened: _Opened) -> None:
    listener = opened.listener.result()
    if not hasattr(listener, "close"):
        return
    try:
        _call(listener.close, _CLOSE_S)
    except Exception:
        logger.exception("listener could not be closed type=%s", type(listener).__name__)


@atexit.register
def _close_all() -> None:
    with _guard:
        left = {id(opened.listener.result()): opened for opened in _opened.values() if opened.listener.done()}
        _opened.clear()
    for opened in left.values():
        _close(opened)


def _forget() -> None:
    """Forget open listeners in a child of ``fork()``, since the parent closes them; make a new lock."""
    global _guard  # noqa: PLW0603
    _guard = threading.Lock()
    _opened.clear()
    _closings.clear()


os.register_at_fork(after_in_child=_forget)


def _call(method: Callable[[], object], timeout_s: float) -> None:
    """Call ``open`` or ``close``; an ``async def`` on the event loop, for at most ``timeout_s``."""
    if inspect.iscoroutinefunction(method):
        run_on_loop(method, timeout_s)
    else:
        method()


class NotOpened(ListenerError):
    """A listener that could not be opened was called; that is no fault of its messages."""


class FailedListener:
    """Replaces a listener that could not be opened: its calls fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, messages: Sequence[MessageExt], context: object) -> NoReturn:  # noqa: ARG002
        """Raise the error that :meth:`error` returns."""
        raise self.error()

    def error(self) -> NotOpened:
        """Return the error that every call raises."""
        error = NotOpened(
            "The listener's open() failed, and is tried again. Correct the cause if it keeps failing."
        )
        error.__cause__ = self._error
        return error


class ListenerForm(Protocol):
    """A listener as it is pickled to the executors."""

    def borrow(self) -> AbstractContextManager[Call]:
        """Return a context manager that yields the listener as a function, open while the context lasts."""
        ...


def form_of(listener: object, consumer_group: str = "", *, orderly: bool = True) -> ListenerForm:
    """Return a user's listener in the form that is pickled; a ``ListenerForm`` is returned unchanged.

    A listener that is given as ``module:name`` is checked only where it is imported.

    Raises:
        OptionError: If ``listener`` is no listener, does not take messages and a context, or is an
            ``async def`` for consumption in order.
    """
    return _form(listener, _Origin(consumer_group, orderly, uuid4().hex))


@dataclass(frozen=True, slots=True)
class _Origin:
    """The consumer that a listener belongs to, and the listener's key."""

    consumer_group: str
    is_orderly: bool
    key: str
    """Unique id of the listener, the same in every process, by which each process opens it only once."""


def _form(listener: object, origin: _Origin) -> ListenerForm:
    if isinstance(listener, Plain | OpenedOnce | ByName):
        return listener
    if isinstance(listener, str):
        return ByName(listener, origin)
    consume_message = getattr(listener, "consume_message", None)
    is_async_listener = is_async(consume_message or listener) or inspect.isasyncgenfunction(listener)
    if is_async_listener and origin.is_orderly:
        raise _unusable(
            f"{named(listener)} is an async def, which only a concurrent listener may be: register it with "
            "orderly=False, or write a plain def"
        )
    if consume_message is not None:
        given = _parameters_given(listener)
        if given is not None:
            _check_parameters(listener, consume_message, given=given)
        return OpenedOnce(listener, ListenerContext(origin.consumer_group), origin.key)
    if not callable(listener) or isinstance(listener, type):
        raise _unusable(
            f"{named(listener)} is not a listener: it must be a function of messages and a context, or have "
            "a method consume_message(messages, context)"
        )
    _check_parameters(listener, listener, given=2)
    success = ConsumeOrderlyStatus.SUCCESS if origin.is_orderly else ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    if inspect.isgeneratorfunction(listener):
        return Plain(GeneratorListener(listener, success))
    return Plain(
        AsyncGeneratorListener(listener, success) if inspect.isasyncgenfunction(listener) else listener
    )


def _parameters_given(listener: object) -> int | None:
    """Return the number of arguments with which ``consume_message`` of a listener is called.

    An object's method gets two: messages and context. A plain function in a class gets the object, too, so
    the number is 3. None for a class whose attribute is neither a function nor a static or class method: only
    an instance shows the number.
    """
    if not isinstance(listener, type):
        return 2
    found = inspect.getattr_static(listener, "consume_message", None)
    if inspect.isfunction(found):
        return 3  # including the object
    return 2 if isinstance(found, staticmethod | classmethod) else None


def _check_parameters(listener: object, call: Callable[..., object], *, given: int) -> None:
    """Refuse a listener that does not take ``given`` arguments, since every delivery would fail.

    Raises:
        OptionError: If ``call`` has another number of parameters; a callable without a signature is accepted.
    """
    try:
        # Check a decorator's own signature, not its function's: it may pass on more arguments than it takes.
        inspect.signature(call, follow_wrapped=False).bind(*range(given))
    except TypeError as error:
        raise _unusable(
            f"{named(listener)} cannot be called with messages and a context ({error}); a listener takes both"
        ) from None
    except ValueError:
        return  # a callable in C, without a signature


def load(name: str) -> object:
    """Import the module of ``module:name``, and return its attribute of that name.

    Raises:
        OptionError: If ``name`` has another form, the import fails, or the module lacks the attribute.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise _unusable(f"'{name}' is not written as module:name")
    try:
        return getattr(import_module(module_name), attribute)
    except Exception as error:
        raise _unusable(f"'{name}' cannot be imported: {type(error).__name__}: {error}") from error


def named(listener: object) -> str:
    """Return the name of a listener for errors."""
    return getattr(listener, "__qualname__", None) or f"an object of type {type(listener).__name__}"


@dataclass(frozen=True, slots=True)
class Plain:
    """A listener that needs nothing before its first call."""

    call: Call

    def borrow(self) -> AbstractContextManager[Call]:
        """Return a context manager that yields the listener unchanged."""
        return nullcontext(self.call)


@dataclass(frozen=True, slots=True)
class OpenedOnce:
    """A listener with a method ``consume_message``; a process opens it once, so it can keep connections."""

    listener: Any
    """An object, or a class that each process instantiates."""
    context: ListenerContext
    key: str

    def borrow(self) -> AbstractContextManager[Call]:
        """Return a context manager that yields ``consume_message`` of the open listener.

        This process opens the listener if it is not open, and closes it when it was idle for 30 s.
        """
        return lease_of_opened(self.key, self.listener, self.context)


@dataclass(frozen=True, slots=True)
class ByName:
    """A listener that every process imports itself."""

    name: str
    origin: _Origin

    def borrow(self) -> AbstractContextManager[Call]:
        """Import the listener, and return a context manager that yields it as a function, open if necessary.

        Raises:
            OptionError: If the name cannot be imported, or is no listener.
        """
        return _form(load(self.name), self.origin).borrow()


class GeneratorListener:
    """Calls a generator function and emits the rows that it yields."""

    def __init__(
        self, function: Callable[[Sequence[MessageExt], Any], Iterator[Any]], success: object
    ) -> None:
        self._function = function
        self._success = success

    def __call__(self, messages: Sequence[MessageExt], context: DeliveryContext) -> object:
        """Emit the generator's rows; return its status, or success if it returns none."""
        rows = self._function(messages, context)
        try:
            while True:
                _emit(next(rows), context)
        except StopIteration as end:
            return self._success if end.value is None else end.value
        finally:
            rows.close()  # type: ignore[attr-defined]  # a generator's


class AsyncGeneratorListener:
    """Emits the rows that an asynchronous generator function yields; such a function returns no status."""

    def __init__(
        self, function: Callable[[Sequence[MessageExt], Any], AsyncGenerator[Any]], success: object
    ) -> None:
        self._function = function
        self._success = success

    async def __call__(self, messages: Sequence[MessageExt], context: DeliveryContext) -> object:
        """Emit the generator's rows; return success."""
        async with aclosing(self._function(messages, context)) as rows:
            async for row in rows:
                _emit(row, context)
        return self._success


def _emit(row: object, context: DeliveryContext) -> None:
    match row:
        case Mapping():
            context.emit(**row)
        case (MessageExt() as message, Mapping() as columns):
            context.emit(message, **columns)
        case _:
            raise ListenerError(
                f"The listener yielded an object of type {type(row).__name__}; a row is a dict of columns, "
                "or (message, dict) to say which message it belongs to."
            )


def _unusable(why: str) -> OptionError:
    return OptionError((why,), where="listener")
