"""Pickles an engine once, and finds what in a user's object cannot be pickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from pyspark import cloudpickle

from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine.arrivals import Source
from pyspark_rocketmq.consumer.engine.output import Consumed, CutTogether
from pyspark_rocketmq.consumer.engine.task import Engine

_DEEPEST: Final = 6
"""Maximum number of levels, from an object into its parts, that are searched. If the part that cannot be
pickled is deeper, the error names the object on the last level that contains it."""


class PickledOnce:
    """An engine with its listener and hooks, pickled now: Spark would pickle it again for each micro-batch.

    A listener may hold a model of hundreds of megabytes. Unpickling gives the engine itself.
    """

    def __init__(self, engine: Engine) -> None:
        self._pickled: bytes = cloudpickle.dumps(engine)

    def __reduce__(self) -> tuple[object, ...]:
        return pickle.loads, (self._pickled,)

    def __call__(
        self, source: Source, instructions: RangeInstructions = NO_INSTRUCTIONS
    ) -> Iterator[Consumed | CutTogether]:
        """Consume as ``Engine`` does; for a caller in this process."""
        engine: Engine = pickle.loads(self._pickled)  # noqa: S301 - its own
        return engine(source, instructions)


def why_not_picklable(value: object) -> str | None:
    """Return a phrase with the part of ``value`` that cannot be pickled, and its type; None if all can."""
    error = _error_of(value)
    if error is None:
        return None
    path, culprit, error = _innermost([], value, error)
    where = f"its {' → '.join(path)}" if path else "it"
    return (
        f"{where} is a {type(culprit).__module__}.{type(culprit).__qualname__}, which cannot be pickled "
        f"({error})"
    )


def _innermost(path: list[str], value: object, error: Exception) -> tuple[list[str], object, Exception]:
    if len(path) < _DEEPEST:
        for name, part in _parts(value):
            of_part = _error_of(part)
            if of_part is not None:
                return _innermost([*path, name], part, of_part)
    return path, value, error


def _error_of(value: object) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001 - any object may refuse in any way
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the objects that are pickled with ``value``, with their names."""
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
        try:
            value = cell.cell_contents
        except ValueError:
            continue  # a variable that has no value yet
        yield f"variable '{name}'", value
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"global '{name}'", function.__globals__[name]
    for part in function.__defaults__ or ():
        yield "default value", part
