"""Whether something can be sent to the executors, and if not, which part of it is to blame; and how it is sent many times.

Asked before a query starts: Spark would say the same after it, without saying which variable it was.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle

from pyspark_rocketmq.consume.range_orders import NO_ORDERS, RangeOrders
from pyspark_rocketmq.streaming.batch_task import ArrowEngine

_DEEPEST: Final = 6
"""Levels looked through; deeper ones are blamed on the last."""


class PickledOnce:
    """An engine as it is now, with its listener and hooks: Spark pickles what a job calls for each micro-batch anew.

    A listener may hold a model of hundreds of megabytes. Unpickled it is the engine.
    """

    def __init__(self, engine: ArrowEngine) -> None:
        self._pickled: bytes = cloudpickle.dumps(engine)  # type: ignore[no-untyped-call]

    def __reduce__(self) -> tuple[object, ...]:
        return pickle.loads, (self._pickled,)

    def __call__(
        self, batches: Iterable[pa.RecordBatch], orders: RangeOrders = NO_ORDERS
    ) -> Iterator[pa.RecordBatch]:
        """See ``ArrowEngine``; where it was not sent anywhere."""
        engine: ArrowEngine = pickle.loads(self._pickled)  # noqa: S301 - its own
        return engine(batches, orders)


def why_not_picklable(value: object) -> str | None:
    """None if ``value`` can be pickled, else a phrase that names the part that cannot be, and its type."""
    error = _error_of(value)
    if error is None:
        return None
    path, culprit, error = _innermost([], value, error)
    where = f"its {' → '.join(path)}" if path else "it"
    return f"{where} is a {type(culprit).__module__}.{type(culprit).__qualname__}, which cannot be pickled ({error})"


def _innermost(path: list[str], value: object, error: Exception) -> tuple[list[str], object, Exception]:
    if len(path) < _DEEPEST:
        for name, part in _parts(value):
            of_part = _error_of(part)
            if of_part is not None:
                return _innermost([*path, name], part, of_part)
    return path, value, error


def _error_of(value: object) -> Exception | None:
    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - any object may refuse in any way
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """What pickling ``value`` takes along."""
    match value:
        case FunctionType():
            yield from _parts_of_function(value)
        case MethodType():
            yield "object", value.__self__
        case partial():
            yield from ((f"argument {at}", part) for at, part in enumerate((value.func, *value.args)))
            yield from ((f"argument '{name}'", part) for name, part in value.keywords.items())
        case dict():
            yield from ((f"entry {key!r:.40}", part) for key, part in value.items())
        case list() | tuple() | set() | frozenset():
            yield from ((f"element {at}", part) for at, part in enumerate(value))
        case type():
            yield from ((f"attribute '{name}'", part) for name, part in vars(value).items() if callable(part))
        case _:
            yield from (
                (f"attribute '{name}'", part) for name, part in getattr(value, "__dict__", {}).items()
            )
            yield from (
                (f"attribute '{name}'", getattr(value, name))
                for name in getattr(type(value), "__slots__", ())
                if hasattr(value, name)
            )


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"variable '{name}'", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"global '{name}'", function.__globals__[name]
    for part in function.__defaults__ or ():
        yield "default value", part
