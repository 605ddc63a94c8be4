"""Whether parameters are what their owner takes; Python, Spark or the JVM would tell later, one by one and in other words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.option_parsers import closest

EnumT = TypeVar("EnumT", bound=StrEnum)

_WORDS: Final[Mapping[type, str]] = {
    str: "a text",
    Integral: "a whole number",
    Real: "a number",
    bool: "True or False",
    type(None): "None",
}
_TRIGGERS: Final = ("processingTime", "availableNow")
"""Of ``DataStreamWriter.trigger``, those under which a consumer works."""
_REFUSED_TRIGGERS: Final = {
    "once": "runs a single micro-batch and would leave what is more than one or suspended; use {'availableNow': True}, "
    "which drains what is there and ends",
    "continuous": "is Spark's continuous processing, which takes no Python data source and no foreachBatch; use "
    "{'processingTime': '1 second'}",
    "realTime": "is Spark's real-time mode, which takes no Python data source and no foreachBatch; use "
    "{'processingTime': '1 second'}",
}
"""Of ``DataStreamWriter.trigger``, those under which it cannot, and what to use."""
_INTERVAL: Final = re.compile(
    r"\s*(interval\s+)?[+]?[\d.]+\s*(millisecond|second|minute|hour|day|week)s?\b.*", re.IGNORECASE
)
"""An interval of Spark's, such as ``5 minutes``; it is not negative, and parts behind the first are left to Spark."""


def kind_problem(name: str, value: object, kinds: tuple[type, ...]) -> str | None:
    """The sentence on a value of another kind than ``kinds``; None if it is of one of them."""
    # A boolean is a number to Python.
    is_fit = type(value) is bool if kinds == (bool,) else isinstance(value, kinds) and type(value) is not bool
    if is_fit:
        return None
    wanted = " or ".join(_WORDS[kind] for kind in kinds)
    return f"{name} must be {wanted}, not {shown(value)}"


def member_of(name: str, value: object, members: type[EnumT]) -> EnumT:
    """The member that ``value`` is, or is the text of.

    Raises:
        OptionError: If it is none.
    """
    if isinstance(value, str) and value in tuple(members):
        return members(value)
    close = closest(value, members) if isinstance(value, str) else None
    hint = f"; did you mean '{close}'?" if close else ""
    problem = f"{name} is {shown(value)}, which is none of {', '.join(members)}{hint}"
    raise OptionError((problem,), where="configuration of a consumer")


def start_problems(sink: object, checkpoint: object, trigger: object) -> list[str]:
    """What is wrong with the arguments of ``PushConsumer.start``."""
    problems = [*sink_problems(sink), *trigger_problems(trigger)]
    if not isinstance(checkpoint, str | Path) or not str(checkpoint):
        problems.append(f"checkpoint must be a folder's path or URI, not {shown(checkpoint)}")
    return problems


def sink_problems(sink: object) -> list[str]:
    """What of ``sink``, one or several, is no place for rows."""
    if sink is None:
        return []
    several = sink if isinstance(sink, Sequence) and not isinstance(sink, str) else (sink,)
    return [
        f"sink must be a DeltaSink, a DatabaseSink or another Sink, not {_shown_sink(one)}"
        for one in several
        if not hasattr(one, "begin") and not hasattr(getattr(one, "sink", None), "begin")
    ]


def _shown_sink(sink: object) -> str:
    if isinstance(sink, str) and "@" in sink:
        return "a text"  # a database's, perhaps, with its password
    if isinstance(sink, str | Path):
        return f"{shown(sink)}; for a Delta table write DeltaSink({str(sink)!r})"
    return shown(sink)


def trigger_problems(trigger: object) -> list[str]:
    """What of ``trigger`` the arguments of ``DataStreamWriter.trigger`` cannot be."""
    if trigger is None:
        return []
    if not isinstance(trigger, Mapping):
        example = "{'processingTime': '1 second'} or {'availableNow': True}"
        return [f"trigger must be a mapping such as {example}, not {shown(trigger)}"]
    if not trigger:
        return ["trigger is empty; leave it out for {'processingTime': '1 second'}"]
    problems = [problem for key, value in trigger.items() if (problem := _trigger_problem(str(key), value))]
    if not problems and len(trigger) > 1:
        problems.append(f"trigger has {' and '.join(map(str, trigger))}, of which a query takes one")
    return problems


def _trigger_problem(key: str, value: object) -> str | None:
    if key in _REFUSED_TRIGGERS:
        return f"trigger {{'{key}': …}} {_REFUSED_TRIGGERS[key]}"
    if key == "availableNow" and value is not True:
        return f"trigger {{'availableNow': …}} must be True, not {shown(value)}"
    if key == "processingTime" and not (isinstance(value, str) and _INTERVAL.fullmatch(value)):
        return f"trigger {{'processingTime': …}} must be an interval such as '1 second', not {shown(value)}"
    if key in _TRIGGERS:
        return None
    close = closest(key, (*_TRIGGERS, *_REFUSED_TRIGGERS))
    hint = f"did you mean '{close}'?" if close else f"known ones: {', '.join(_TRIGGERS)}"
    return f"trigger has the unknown key '{key}'; {hint}"


def shown(value: Any) -> str:
    """A value in a message to whoever gave it; of what may hold a secret its type alone."""
    if value is None:
        return "None"
    if isinstance(value, str | int | float | Path):
        return f"{value!r:.80}"
    return f"a {type(value).__name__}"
