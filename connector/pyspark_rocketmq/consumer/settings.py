"""Checks the arguments of a ``PushConsumer``, and converts them for the source and the engines.

Problems are reported together where possible; Python, Spark or the JVM would report them later, one by one.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar

from pyspark_rocketmq.consume.allocation import allocation_strategy
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.delta.paths import expanded_uri
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import (
    ConsumeFromWhere,
    MessageModel,
    OrderlyBy,
    OrderlyEngineKind,
    UndecodableMessages,
)
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.options.consumer import (
    DEFAULT_MAX_RECONSUME_TIMES,
    UNLIMITED,
    ConsumerOptions,
    commit_interval_ms,
    consume_time,
    real_time_ms,
)
from pyspark_rocketmq.options.parsers import closest
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.store_spec import StoreKind, StoreSpec
from pyspark_rocketmq.wire.namespace import with_namespace

logger = logging.getLogger(__name__)

EnumT = TypeVar("EnumT", bound=StrEnum)
P = ParamSpec("P")
R = TypeVar("R")

_WORDS: Final[Mapping[type, str]] = {
    str: "a string",
    Integral: "a whole number",
    Real: "a number",
    bool: "True or False",
    type(None): "None",
}
REAL_TIME: Final = "realTime"
_TRIGGERS: Final = ("processingTime", "availableNow", REAL_TIME)
"""Triggers that a consumer accepts: two of ``DataStreamWriter.trigger``, and this package's real time."""
_REFUSED_TRIGGERS: Final = {
    "once": "runs a single micro-batch and would leave suspended messages and those of further batches; use "
    "{'availableNow': True}, which consumes all present messages and ends",
    "continuous": "is Spark's continuous processing, which takes no Python data source and no foreachBatch; "
    "use {'processingTime': '1 second'}",
}
"""Spark's triggers that a consumer refuses, each with the reason and the alternative."""
_INTERVAL: Final = re.compile(
    r"\s*(interval\s+)?[+]?[\d.]+\s*(millisecond|second|minute|hour|day|week)s?\b.*", re.IGNORECASE
)
"""A Spark interval such as ``5 minutes``, not negative. Spark checks the parts after the first."""

_REAL_TIME_COMMIT_INTERVAL_S: Final = 0.5
"""Default time between two commits of a batch in real time, in seconds."""
_SAFE_NAME: Final = 120
"""Maximum length of a group's name, in characters: brokers accept names of topics up to 127 characters, and
the name of the group's retry topic is 7 characters longer (``%RETRY%``)."""
_EPOCH_YEAR: Final = 1970
_DEFAULT_LOOK_BACK: Final = timedelta(minutes=30)
"""How far before now a group begins if it is to begin at a time, and none is given, as in Java."""
SET_BY = {
    "nameServers": "parameter name_servers",
    "topic": "subscribe()",
    "topics": "subscribe()",
    "subscription": "subscribe()",
    "subscriptions": "subscribe()",
    "sqlFilter": "subscribe(sql=…)",
    "consumerGroup": "parameter consumer_group",
    "offsetStore": "parameter offset_store",
    "startingOffsets": "parameter consume_from_where",
    "startingTimestamp": "parameters consume_from_where and consume_timestamp",
    "maxOffsetsPerTrigger": "parameter max_offsets_per_trigger",
    "undecodableMessages": "parameter undecodable_messages",
    "messageModel": "parameter message_model",
    "consumeOrderly": "parameter orderly of register_message_listener()",
    "handOverRanges": "parameter orderly_engine",
    "listener": "register_message_listener()",
    "allocateMessageQueueStrategy": "parameter allocate_message_queue_strategy",
    "instanceName": "parameter instance_name",
    "realTime": "parameter trigger of start()",
}
"""Options of the source that a consumer sets itself, and how the user can set them."""
_DECLARED: Final[Mapping[str, Field[Any]]] = {
    each.name: each for options in (ReadOptions, ConsumerOptions) for each in fields(options)
}
"""Field that declares each argument, by the argument's name. If both classes declare a name, the field is
that of ``ConsumerOptions``."""
_REQUIRED: Final = ("consumer_group", "name_servers")


def _kind_problem(name: str, value: object) -> str | None:
    """Return the problem if ``value`` has no type that argument ``name`` takes; None if it has one."""
    declared = _DECLARED[name]
    kinds: tuple[type, ...] = declared.metadata["spec"].argument.kinds
    if declared.default is None and name not in _REQUIRED:
        kinds = (*kinds, type(None))
    # A boolean is a number to Python.
    is_fit = type(value) is bool if kinds == (bool,) else isinstance(value, kinds) and type(value) is not bool
    if is_fit:
        return None
    wanted = " or ".join(_WORDS[kind] for kind in kinds)
    return f"{name} must be {wanted}, not {_shown(value)}"


def member_of(name: str, value: object, members: type[EnumT]) -> EnumT:
    """Return the member of an enumeration that ``value`` is or names.

    ``name`` is the argument's name, for the error.

    Raises:
        OptionError: If there is no such member.
    """
    if isinstance(value, str) and value in tuple(members):
        return members(value)
    close = closest(value, members) if isinstance(value, str) else None
    hint = f"; did you mean '{close}'?" if close else ""
    problem = f"{name} is {_shown(value)}, which is none of {', '.join(members)}{hint}"
    raise OptionError((problem,), where="configuration of a consumer")


def _as_member(name: str, value: object) -> object:
    """Return ``value``, converted to a member if argument ``name`` takes members of an enumeration.

    Raises:
        OptionError: If ``value`` is or names none of these members.
    """
    kinds = _DECLARED[name].metadata["spec"].argument.kinds if name in _DECLARED else ()
    return member_of(name, value, kinds[0]) if kinds and issubclass(kinds[0], StrEnum) else value


def suggesting(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with a check: an unknown parameter raises a TypeError with the one probably meant.

    The parameters of ``function`` must be keyword-only. If none has a similar name, the error lists all.
    """
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    called = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        unknown = [name for name in given if name not in known]
        if unknown:
            raise TypeError(f"{called}() has {'; '.join(_no_parameter(name, known) for name in unknown)}")
        return function(*args, **given)

    return checked


def _no_parameter(name: str, known: Sequence[str]) -> str:
    close = closest(name, known)
    hint = f", did you mean '{close}'?" if close else f"; those are {', '.join(known)}"
    return f"no parameter '{name}'{hint}"


def warn_of_long_name(consumer_group: str, namespace: str | None, *, has_letters: bool) -> None:
    """Log a warning if a group's name is so long that dead letters cannot be sent to its retry topic.

    The topic's name contains the group's, namespace included. ``has_letters``: whether the group makes dead
    letters; if not, nothing is logged.
    """
    name = with_namespace(namespace or "", consumer_group)
    if has_letters and len(name) > _SAFE_NAME:
        logger.warning(
            "the name of group %s has %d characters, which is too long for some of its topics: producers may "
            "send to topics of at most 127 characters, and brokers store nothing in a longer one. With more "
            "than 120 characters, only the broker that stores a message can make it a dead letter. With more "
            "than 122, no broker can, and a message that always fails holds its queue up. Use a name of at "
            "most 120 characters",
            consumer_group,
            len(name),
        )


def start_problems(sink: object, checkpoint: object, trigger: object) -> list[str]:
    """Return the problems of the arguments of ``PushConsumer.start``."""
    problems = [*_sink_problems(sink), *_trigger_problems(trigger)]
    if not isinstance(checkpoint, str | Path) or not str(checkpoint):
        problems.append(f"checkpoint must be a folder's path or URI, not {_shown(checkpoint)}")
    return problems


def _sink_problems(sink: object) -> list[str]:
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
        return "a string"  # a database's, perhaps, with its password
    if isinstance(sink, str | Path):
        return f"{_shown(sink)}; for a Delta table write DeltaSink({str(sink)!r})"
    return _shown(sink)


def _trigger_problems(trigger: object) -> list[str]:
    if trigger is None:
        return []
    if not isinstance(trigger, Mapping):
        example = "{'processingTime': '1 second'} or {'realTime': '5 minutes'}"
        return [f"trigger must be a mapping such as {example}, not {_shown(trigger)}"]
    if not trigger:
        return ["trigger is empty; leave it out for {'processingTime': '1 second'}"]
    problems = [problem for key, value in trigger.items() if (problem := _trigger_problem(str(key), value))]
    if not problems and len(trigger) > 1:
        problems.append(f"trigger has {' and '.join(map(str, trigger))}, but a query takes only one")
    return problems


def _trigger_problem(key: str, value: object) -> str | None:
    if key in _REFUSED_TRIGGERS:
        return f"trigger {{'{key}': …}} {_REFUSED_TRIGGERS[key]}"
    if key == "availableNow" and value is not True:
        return f"trigger {{'availableNow': …}} must be True, not {_shown(value)}"
    if key == "processingTime" and not (isinstance(value, str) and _INTERVAL.fullmatch(value)):
        wanted = "an interval such as '1 second'"
        return f"trigger {{'processingTime': …}} must be {wanted}, not {_shown(value)}"
    if key == REAL_TIME:
        return _real_time_problem(value)
    if key in _TRIGGERS:
        return None
    close = closest(key, (*_TRIGGERS, *_REFUSED_TRIGGERS))
    hint = f"did you mean '{close}'?" if close else f"known ones: {', '.join(_TRIGGERS)}"
    return f"trigger has the unknown key '{key}'; {hint}"


def _real_time_problem(value: object) -> str | None:
    if not isinstance(value, str):
        return f"trigger {{'{REAL_TIME}': …}} must be a duration such as '5 minutes', not {_shown(value)}"
    try:
        real_time_ms(value)
    except ValueError as error:
        return f"trigger {{'{REAL_TIME}': {_shown(value)}}} {error}"
    return None


def _shown(value: Any) -> str:
    """Return a value as text for an error: 80 characters of a string, number or path, else its type."""
    if value is None:
        return "None"
    if isinstance(value, str | int | float | Path):
        return f"{value!r:.80}"
    return f"a {type(value).__name__}"


_SETTER_OF = {key.lower(): setter for key, setter in SET_BY.items()}
"""``SET_BY`` with keys in lower case: Spark ignores the case of keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The arguments of a ``PushConsumer``, with the same names and meanings."""

    own: ConsumerOptions
    """Arguments that are no options of the source ``format("rocketmq")``."""
    consumer_group: str
    name_servers: str
    offset_store: OffsetStore | str = field(repr=False)
    message_model: MessageModel
    allocate_message_queue_strategy: str
    instance_name: str | None
    undecodable_messages: UndecodableMessages
    options: Mapping[str, str] = field(repr=False)
    """Further options of the source, which may include secrets."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the settings in the arguments of a ``PushConsumer``.

        Raises:
            OptionError: With all values of a wrong type, or with the first value that should be a member of
                an enumeration and is not.
        """
        values: dict[str, Any] = {name: _as_member(name, value) for name, value in arguments.items()}
        store = values["offset_store"]
        checked = values.keys() - {"offset_store", "options"}
        found = (_kind_problem(name, value) for name, value in values.items() if name in checked)
        problems = [problem for problem in found if problem is not None]
        if not isinstance(store, str) and not hasattr(store, "spec"):
            problems.append(
                f"offset_store must be a store or a string, not {_shown(store)}; use DeltaOffsetStore(path)"
            )
        if problems:
            raise OptionError(
                tuple(problems), where=f"configuration of consumer group {_shown(values['consumer_group'])}"
            )
        values["options"] = dict(values["options"] or {})
        own = {each.name: values.pop(each.name) for each in fields(ConsumerOptions)}
        return cls(own=ConsumerOptions(**own), **values)

    @property
    def store_spec(self) -> str:
        """Value of option ``offsetStore``; a relative path in it is made absolute, as in this process."""
        if not isinstance(self.offset_store, str):
            return self.offset_store.spec
        with suppress(ValueError):
            spec = StoreSpec.parse(self.offset_store)
            if spec.kind in {StoreKind.DELTA, StoreKind.FILE} and "://" not in spec.place:
                return f"{spec.kind}:{expanded_uri(spec.place)}"
        return self.offset_store

    @property
    def store_kind(self) -> StoreKind | None:
        """Kind of the offset store; None if the string names no store, which another check reports."""
        try:
            return StoreSpec.parse(self.store_spec).kind
        except ValueError:
            return None

    def source_options(
        self,
        subscriptions: Mapping[str, str | dict[str, str]],
        listener: object,
        *,
        orderly: bool,
        problems: list[str],
    ) -> dict[str, str]:
        """Return the options of ``format("rocketmq")``.

        ``subscriptions`` contains tags, or ``{"sql": condition}``, by topic. ``problems`` are those found
        before, for example of listener and hooks; they are reported together with those of the settings.

        Raises:
            OptionError: With all problems, if there are any.
        """
        problems = [*problems, *self._problems(), *self._overridden()]
        options = {
            "nameServers": self.name_servers,
            "consumerGroup": self.consumer_group,
            "offsetStore": self.store_spec,
            "maxOffsetsPerTrigger": str(self.own.max_offsets_per_trigger),
            "messageModel": self.message_model.value,
            "undecodableMessages": self.undecodable_messages.value,
            "consumeOrderly": str(orderly).lower(),
            "handOverRanges": str(self.reads_in_engine(orderly=orderly)).lower(),
            "allocateMessageQueueStrategy": self.allocate_message_queue_strategy,
            **({"listener": listener} if isinstance(listener, str) else {}),
            **({} if self.instance_name is None else {"instanceName": self.instance_name}),
            **({"subscriptions": json.dumps(dict(subscriptions))} if subscriptions else {}),
            **self._start_option(problems),
            **{key: text for key, text in self.options.items() if key.lower() not in _SETTER_OF},
        }
        for check in (
            lambda: ReadOptions.parse(options),
            lambda: allocation_strategy(self.allocate_message_queue_strategy),
        ):
            try:
                check()
            except OptionError as error:
                problems += error.problems
        if problems:
            raise OptionError(
                tuple(problems), where=f"configuration of consumer group '{self.consumer_group}'"
            )
        return options

    def reads_in_engine(self, *, orderly: bool) -> bool:
        """Return whether the tasks that call the listener read the messages themselves.

        If not (``orderly_engine='state'``), messages reach the listener through a shuffle of Spark.
        """
        return not orderly or self.own.orderly_engine == OrderlyEngineKind.DIRECT

    @property
    def is_by_key(self) -> bool:
        """Whether an orderly listener's messages are in order only among those with the same sharding key."""
        return self.own.orderly_by == OrderlyBy.SHARDING_KEY

    def gives_up(self, *, orderly: bool) -> bool:
        """Return whether a message that always fails is given up.

        It becomes a dead letter; in broadcasting, a concurrent listener's message is dropped.
        """
        return not orderly or self.own.max_reconsume_times != UNLIMITED

    def makes_dead_letters(self, *, orderly: bool) -> bool:
        """Return whether a message that always fails becomes a dead letter."""
        is_dropped = not orderly and self.message_model is MessageModel.BROADCASTING
        return self.gives_up(orderly=orderly) and not is_dropped

    def commit_interval_s(self, *, in_real_time: bool) -> float | None:
        """Return the shortest time between two commits of a batch, in seconds.

        None means that a batch is committed only at its end.
        """
        text = self.own.commit_interval
        if text is None:
            return _REAL_TIME_COMMIT_INTERVAL_S if in_real_time else None
        return commit_interval_ms(text) / 1000

    def orderly(self) -> OrderlySettings:
        """Return the settings of an orderly listener's engine."""
        return OrderlySettings(**self._of_engine(OrderlySettings))

    def concurrent(self) -> ConcurrentSettings:
        """Return the settings of a concurrent listener's engine."""
        values = self._of_engine(ConcurrentSettings)
        if self.own.max_reconsume_times == UNLIMITED:
            values["max_reconsume_times"] = DEFAULT_MAX_RECONSUME_TIMES
        return ConcurrentSettings(**values, message_model=self.message_model)

    def _of_engine(self, settings: type[OrderlySettings | ConcurrentSettings]) -> dict[str, Any]:
        """Return this consumer's values for the fields of an engine's settings that have the same names."""
        own = {each.name for each in fields(ConsumerOptions)}
        return {each.name: getattr(self.own, each.name) for each in fields(settings) if each.name in own}

    def _problems(self) -> list[str]:
        problems = []
        if self.store_kind is StoreKind.MEMORY:
            problems.append(
                f"offset_store is '{self.store_spec}': progress kept in this process cannot be seen by "
                "Spark's planner process; use DeltaOffsetStore"
            )
        if self.own.commit_interval is not None:
            try:
                commit_interval_ms(self.own.commit_interval)
            except ValueError as error:
                problems.append(f"commit_interval='{self.own.commit_interval}' {error}")
        for each in fields(ConsumerOptions):
            rule, value = each.metadata["spec"].argument, getattr(self.own, each.name)
            if value is not None and not rule.is_allowed(value):
                shown = repr(value) if isinstance(value, str) else value
                problems.append(f"{each.name}={shown} {rule.problem}")
        return problems

    def _overridden(self) -> list[str]:
        return [
            f"options={{'{key}': …}} would override what this consumer sets itself; use "
            f"{_SETTER_OF[key.lower()]}"
            for key in self.options
            if key.lower() in _SETTER_OF
        ]

    def _start_option(self, problems: list[str]) -> dict[str, str]:
        match self.own.consume_from_where:
            case ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
                return {"startingOffsets": "earliest"}
            case ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
                return {"startingOffsets": "latest"}
            case ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
                return {"startingTimestamp": str(self._timestamp_ms(problems))}

    def _timestamp_ms(self, problems: list[str]) -> int:
        at = datetime.now(UTC) - _DEFAULT_LOOK_BACK
        if self.own.consume_timestamp is not None:
            try:
                at = consume_time(self.own.consume_timestamp)
            except ValueError as exc:
                problems.append(f"consume_timestamp='{self.own.consume_timestamp}' {exc}")
        # A time in 1970 means the beginning, as no message is that old. Its milliseconds are so few that
        # option startingTimestamp would take them for seconds.
        return int(at.timestamp() * 1000) if at.year > _EPOCH_YEAR else 0
