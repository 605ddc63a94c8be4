"""Declaration, parsing and redaction shared by all options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, Self

from pyspark_rocketmq.deprecation import Deprecation
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options.parsers import ArgumentRule, Parser, closest

_NAMES_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    "kafka.bootstrap.servers": ("Kafka's", "nameServers"),
    "kafka.group.id": ("Kafka's", "consumerGroup"),
    "subscribe": ("Kafka's", "topic"),
    "subscribepattern": ("Kafka's", "topicPattern"),
    "assign": ("Kafka's", "startingOffsets"),
    "includeheaders": ("Kafka's", "decodeProperties"),
    "startingoffsets": ("the data source's", "consumeFromWhere"),
    "startingtimestamp": ("the data source's", "consumeTimestamp"),
}
"""Options of other connectors in lower case, with their origin and the corresponding key here."""
_MASKED_BY_SPARK: Final = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
"""Keys whose values Spark does not show (default of ``spark.redaction.regex``)."""


class Use(StrEnum):
    """Uses of the data source; an option has a meaning for some of them."""

    STREAM = "stream"
    BATCH = "batch"
    WRITE = "write"


class FormerKey(NamedTuple):
    """A key that an option had before; it still works, and warns (``deprecation.py``)."""

    key: str
    since: str
    """First release that has the new key."""
    until: str
    """First release that refuses the old key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """Declaration of one option: its key, parser, documentation and uses, without a value."""

    key: str
    """camelCase, as Spark users write it; matched without regard to case, as Spark does."""
    parse: Parser[Any]
    argument: ArgumentRule
    """Rule for the Python values that a ``PushConsumer`` accepts as this argument, in place of a text."""
    doc: str = ""
    default_text: str
    required: bool
    unit: str
    secret: bool
    internal: bool
    """Whether only other code of this package sets it."""
    instead: tuple[str, ...]
    """Keys of options that may be given instead of this one, if it is required."""
    used_in: tuple[Use, ...]
    """Uses of the data source (streaming read, batch read, write) in which the option has a meaning.

    Empty if the data source does not have the option.
    """
    formerly: tuple[FormerKey, ...] = ()

    @property
    def type(self) -> str:
        """Description of the form of the option's text, such as ``integer, 1 to 1024``."""
        return self.parse.type_name


class Declared(NamedTuple):
    """A declared option that still lacks its documentation."""

    spec: OptionSpec
    default: Any

    def doc(self, text: str) -> Any:
        """Return a dataclass field of the option; ``text`` is its documentation."""
        spec = dataclasses.replace(self.spec, doc=text)
        return dataclasses.field(default=self.default, metadata={"spec": spec})


def option(
    key: str,
    parse: Parser[Any],
    default: Any = dataclasses.MISSING,
    *,
    default_text: str | None = None,
    unit: str = "",
    secret: bool = False,
    internal: bool = False,
    instead: tuple[str, ...] = (),
    used_in: tuple[Use, ...] = (),
    formerly: tuple[FormerKey, ...] = (),
    argument: ArgumentRule | None = None,
) -> Declared:
    """Declare an option; call ``doc`` of the result to get its dataclass field.

    Without a default the option is required, unless one of the options ``instead`` is given in its place; the
    value is then None. Without ``argument``, the parser's rule for arguments applies.
    """
    required = default is dataclasses.MISSING
    if default_text is None:
        default_text = "required" if required else _shown_default(default)
    spec = OptionSpec(
        key=key, parse=parse, argument=argument or parse.argument, default_text=default_text,
        required=required, unit=unit, secret=secret, internal=internal, instead=instead, used_in=used_in,
        formerly=formerly,
    )  # fmt: skip
    return Declared(spec, None if required and instead else default)


everywhere_option = partial(option, used_in=tuple(Use))
"""Declares an option of reading and writing, as :func:`option` does."""
read_option = partial(option, used_in=(Use.STREAM, Use.BATCH))
stream_option = partial(option, used_in=(Use.STREAM,))
batch_option = partial(option, used_in=(Use.BATCH,))
write_option = partial(option, used_in=(Use.WRITE,))


def _shown_default(value: object) -> str:
    if value is None or value == ():
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def specs_of(options: type[OptionSet]) -> tuple[OptionSpec, ...]:
    """Return the declarations of the options that users can set, in order; internal ones are left out."""
    specs = (field.metadata["spec"] for field in dataclasses.fields(options))
    return tuple(spec for spec in specs if not spec.internal)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OptionSet:
    """Base of a set of options: a frozen dataclass whose fields are created by :func:`option`."""

    @classmethod
    def parse(cls, raw: Mapping[str, object]) -> Self:
        """Parse options; the case of keys does not matter.

        A value is a text, or a number or boolean, which counts as the text that Spark makes of it.

        Raises:
            OptionError: With a sentence for every problem, not just the first. Problems of combinations are
                among them only if each option is valid by itself.
        """
        specs: dict[str, tuple[str, OptionSpec]] = {}
        for field in dataclasses.fields(cls):
            spec: OptionSpec = field.metadata["spec"]
            specs[spec.key.lower()] = (field.name, spec)
        raw, problems = _with_current_keys(raw, [spec for _, spec in specs.values()])
        values, more_problems = _parse_values(raw, specs)
        problems += more_problems
        if not problems:
            parsed = cls(**values | cls.implied(values))
            problems = parsed.cross_field_problems()
            if not problems:
                return parsed
        raise OptionError(tuple(problems))

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values that follow from the given ``values``, by field. This class implies none."""
        del values
        return {}

    def cross_field_problems(self) -> list[str]:
        """Return a sentence for each problem of options that cannot be combined. This class has none."""
        return []

    def given(self) -> dict[str, OptionSpec]:
        """Return the options whose values differ from their defaults, by key."""
        return {
            field.metadata["spec"].key: field.metadata["spec"]
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    def given_but_not_for(self, use: Use) -> list[str]:
        """Return the keys of options that have another value than the default, but no meaning for ``use``."""
        return [key for key, spec in self.given().items() if spec.used_in and use not in spec.used_in]

    def said_twice(self, *keys: str) -> list[str]:
        """Return a list with one problem if more than one of these options is given, else an empty list."""
        given = self.given()
        found = [f"'{key}'" for key in keys if key in given]
        return [f"options {' and '.join(found)} exclude each other; give one"] if len(found) > 1 else []

    def __repr__(self) -> str:
        values = {field.metadata["spec"]: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown = (
            f"{spec.key}={'***' if spec.secret else masked(repr(value))}" for spec, value in values.items()
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def _with_current_keys(
    raw: Mapping[str, object], specs: Iterable[OptionSpec]
) -> tuple[Mapping[str, object], list[str]]:
    """Replace each former key by the current one, with a warning; return the options and any problems.

    It is a problem if an option is given under both keys.
    """
    former_keys = {former.key.lower(): (former, spec.key) for spec in specs for former in spec.formerly}
    given = {key.lower() for key in raw}
    found: dict[str, object] = {}
    problems: list[str] = []
    for key, value in raw.items():
        former, current = former_keys.get(key.lower(), (None, key))
        if former is None:
            found[key] = value
        elif current.lower() in given:
            problems.append(
                f"option '{key}' is the former name of '{current}', which is given too; remove '{key}'"
            )
        else:
            Deprecation(
                name=f"option '{former.key}'", instead=f"'{current}'", since=former.since, until=former.until
            ).warn(stacklevel=3)
            found[current] = value
            given.add(current.lower())
    return found, problems


def _parse_values(
    raw: Mapping[str, object], specs: Mapping[str, tuple[str, OptionSpec]]
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    problems: list[str] = []
    given = {key.lower() for key in raw}
    for key, given_value in raw.items():
        known = specs.get(key.lower())
        if known is None:
            problem, meant = _unknown_key(key, [spec for _, spec in specs.values() if not spec.internal])
            problems.append(problem)
            given.add(meant.lower())
            continue
        name, spec = known
        text = _text_of(given_value)
        if text is None:
            problems.append(
                f"option '{spec.key}' is of type {type(given_value).__name__}; give it as a string"
            )
            continue
        try:
            values[name] = spec.parse(text)
        except ValueError as problem:
            shown = "***" if spec.secret else text
            problems.append(f"option {spec.key}='{shown}' {problem}")
    problems += [
        f"option '{spec.key}' is required{_instead_of(spec, specs)}: {spec.doc}"
        for lower, (_, spec) in specs.items()
        if spec.required and given.isdisjoint((lower, *map(str.lower, spec.instead)))
    ]
    return values, problems


def _text_of(value: object) -> str | None:
    """Return the text that Spark's ``option()`` makes of a text, boolean or number; None for other types."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return str.__str__(value)  # a member of a string enumeration is its text
    return str(value) if isinstance(value, int | float) else None


def _instead_of(spec: OptionSpec, known: Container[str]) -> str:
    """Return words that name the alternatives of a required option that are ``known``; '' without any."""
    others = [key for key in spec.instead if key.lower() in known]
    return "".join(f", or '{key}'" for key in others) + " in its place" * bool(others)


def _unknown_key(key: str, specs: list[OptionSpec]) -> tuple[str, str]:
    """Return the problem with a key, and the key that was probably meant; empty if that is unclear.

    The caller counts the meant key as given, so that it is not reported as missing, too.
    """
    known = [spec.key for spec in specs]
    # In secretKey:VALUE, the text after the colon is a secret.
    begin = re.match(r"\w?[\w.-]*", key)
    if begin is not None and begin.end() < len(key):
        return f"unknown option '{begin[0]}…'", ""
    owner, here = _NAMES_ELSEWHERE.get(key.lower(), ("", ""))
    if here in known:
        return f"unknown option '{key}', which is {owner}; here it is '{here}'", here
    close = closest(key, known)
    hint = f"; did you mean '{close}'?" if close else f"; known options: {', '.join(sorted(known))}"
    if close in {spec.key for spec in specs if spec.secret} and not _MASKED_BY_SPARK.search(key):
        hint += (
            " Spark does not mask the value of an option of this name in SQL text and plans: if the secret "
            "was shown there, replace it"
        )
    return f"unknown option '{key}'{hint}", close or ""
