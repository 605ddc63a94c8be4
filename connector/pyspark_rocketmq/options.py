"""Every option of ``format("rocketmq")``, declared once.

A field of :class:`ReadOptions` is the declaration: its key, parser, default, unit and text. Parsing (all problems
reported together), the unknown-key hint, redaction and ``docs/options.md`` come from it; nothing else in the
package sees a map of strings.  ``python -m pyspark_rocketmq.options`` prints the documentation.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.starting_offsets import StartingOffsets, parse_starting_offsets

T = TypeVar("T")
Parser = Callable[[str], T]

_REQUIRED = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """What is known of one option besides its value."""

    key: str
    """camelCase, as Spark users write it; matched without regard to case, as Spark does."""
    parse: Callable[[str], Any]
    """Raises ValueError with the end of the sentence ``key='value' …``."""
    doc: str
    default_text: str
    required: bool = False
    unit: str = ""
    secret: bool = False


def option(
    key: str,
    *,
    parse: Callable[[str], T],
    doc: str,
    default: Any = _REQUIRED,
    default_text: str | None = None,
    unit: str = "",
    secret: bool = False,
) -> Any:
    """Declare one option as a dataclass field."""
    required = default is _REQUIRED
    if default_text is None:
        default_text = "required" if required else "none" if default is None else str(default)
    spec = OptionSpec(
        key=key, parse=parse, doc=doc, default_text=default_text, required=required, unit=unit, secret=secret
    )
    if required:
        return dataclasses.field(metadata={"spec": spec})
    return dataclasses.field(default=default, metadata={"spec": spec})


def int_between(low: int, high: int) -> Parser[int]:
    """Parser of a whole number within inclusive bounds."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text.strip()):
            raise ValueError(f"is not a whole number between {low} and {high}")
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"is not between {low} and {high}")
        return value

    return parse


def boolean(text: str) -> bool:
    """Parser of true or false."""
    values = {"true": True, "false": False}
    if text.strip().lower() not in values:
        raise ValueError("is neither true nor false")
    return values[text.strip().lower()]


def text_value(text: str) -> str:
    """Parser of any text that is not blank."""
    if not text.strip():
        raise ValueError("is empty")
    return text.strip()


def resource_name(kind: str, max_length: int) -> Parser[str]:
    """Parser of a topic or group name (``Validators.checkTopic``, ``checkGroup``)."""

    def parse(text: str) -> str:
        name = text.strip()
        if not name:
            raise ValueError("is empty")
        if not re.fullmatch(r"[%|a-zA-Z0-9_-]+", name):
            raise ValueError(
                f"is not a {kind} name: only letters, digits and the characters % | _ - are allowed"
            )
        if len(name) > max_length:
            raise ValueError(f"is longer than the {max_length} characters RocketMQ allows for a {kind} name")
        return name

    return parse


def address_list(text: str) -> tuple[str, ...]:
    """Parser of ``host:port`` addresses separated by semicolons or commas; IPv6 hosts in brackets."""
    addresses = tuple(part.strip() for part in re.split(r"[;,]", text) if part.strip())
    if not addresses:
        raise ValueError("is empty; give host:port, several separated by ';'")
    for address in addresses:
        host, separator, port = address.rpartition(":")
        if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"holds '{address}', which is not host:port")
    return addresses


def tag_expression(text: str) -> str:
    """Parser of ``*`` or tags separated by ``||``."""
    expression = text.strip()
    if not any(tag.strip() for tag in expression.split("||")):
        raise ValueError("names no tag; give tags separated by '||', or '*' for every message")
    return expression


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OptionSet:
    """Base of a set of options: a frozen dataclass whose fields are made by :func:`option`."""

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> Self:
        """Parse a map of texts; keys are matched without regard to case.

        Raises:
            OptionError: With a sentence for every problem, not just the first.
        """
        specs: dict[str, tuple[str, OptionSpec]] = {}
        for field in dataclasses.fields(cls):
            spec: OptionSpec = field.metadata["spec"]
            specs[spec.key.lower()] = (field.name, spec)
        values, problems = _parse_values(raw, specs)
        if not problems:
            parsed = cls(**values)
            problems = parsed.cross_field_problems()
            if not problems:
                return parsed
        raise OptionError(tuple(problems))

    def cross_field_problems(self) -> list[str]:
        """Sentences on options that do not go together."""
        return []

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{field.metadata['spec'].key}={_shown(field.metadata['spec'], getattr(self, field.name))}"
            for field in dataclasses.fields(self)
        )
        return f"{type(self).__name__}({shown})"


def _shown(spec: OptionSpec, value: object) -> str:
    return "***" if spec.secret else repr(value)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReadOptions(OptionSet):
    """Options of the source, for batch and for streams."""

    name_servers: tuple[str, ...] = option(
        "nameServers",
        parse=address_list,
        doc="Addresses of the RocketMQ name servers, `host:port`, several separated by `;`.",
    )
    topic: str = option("topic", parse=resource_name("topic", 127), doc="The topic to read.")
    subscription: str = option(
        "subscription",
        parse=tag_expression,
        default="*",
        doc="Tags to read, such as `created || paid`; `*` reads every message. "
        "Filtered by the broker by hash code and again by exact tag in the task.",
    )
    starting_offsets: StartingOffsets | None = option(  # noqa: RUF009 - declares the field
        "startingOffsets",
        parse=parse_starting_offsets,
        default=None,
        default_text="latest (stream), earliest (batch)",
        doc="Where a new query, or a consumer group without a stored offset, begins: `earliest`, `latest` or JSON "
        '`{"topic": {"broker-a": {"0": 17, "1": -2}}}` (-2 earliest, -1 latest; queues not named: earliest). '
        "Queues that appear later begin at their earliest offset.",
    )
    starting_timestamp: int | None = option(
        "startingTimestamp",
        parse=int_between(0, 2**62),
        default=None,
        unit="ms since the epoch",
        doc="Begin at the first message stored at or after this time; not together with `startingOffsets`.",
    )
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        parse=int_between(1, 2**62),
        default=None,
        unit="messages",
        doc="Upper bound of one micro-batch, shared among the queues in proportion to their backlog; "
        "every queue with a backlog gets at least one.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        parse=boolean,
        default=True,
        doc="What to do when wanted messages are no longer on the broker: fail with an error that names the queue "
        "and the offsets, or go on at the first offset available and log the gap.",
    )
    consumer_group: str | None = option(
        "consumerGroup",
        parse=resource_name("consumer group", 255),
        default=None,
        doc="Read as this consumer group: ranges are planned from its offsets in `offsetStore`, and every range "
        "ends with a marker row. Used by `PushConsumer`; needs `offsetStore`.",
    )
    offset_store: str | None = option(
        "offsetStore",
        parse=text_value,
        default=None,
        doc="Where the group's offsets are: the path or URI of a Delta table.",
    )
    pull_batch_size: int = option(
        "pullBatchSize",
        parse=int_between(1, 1024),
        default=32,
        unit="messages",
        doc="Messages asked for in one pull. A broker gives at most 32 unless "
        "`maxTransferCountOnMessageInMemory` was raised there.",
    )
    pulls_in_flight: int = option(
        "pullsInFlight",
        parse=int_between(1, 256),
        default=16,
        unit="requests",
        doc="Pulls under way at once on a task's connection to its broker.",
    )
    request_timeout_ms: int = option(
        "requestTimeoutMs",
        parse=int_between(1, 600_000),
        default=5_000,
        unit="ms",
        doc="How long one request to a name server or broker may take.",
    )
    retry_timeout_ms: int = option(
        "retryTimeoutMs",
        parse=int_between(0, 86_400_000),
        default=120_000,
        unit="ms",
        doc="How long a task goes on trying a broker that cannot be reached or is busy before it fails.",
    )

    def cross_field_problems(self) -> list[str]:
        """Group and store go together; where to begin is said once, and of the topic that is read."""
        problems = []
        if self.consumer_group is not None and self.offset_store is None:
            problems.append(
                "option 'consumerGroup' needs 'offsetStore', the table that holds the group's offsets"
            )
        if self.offset_store is not None and self.consumer_group is None:
            problems.append("option 'offsetStore' needs 'consumerGroup', whose offsets are to be used")
        if self.starting_offsets is not None and self.starting_timestamp is not None:
            problems.append("options 'startingOffsets' and 'startingTimestamp' exclude each other; give one")
        return problems + self._other_topics()

    def _other_topics(self) -> list[str]:
        named = {queue.topic for queue in self.starting_offsets.by_queue} if self.starting_offsets else set()
        return [
            f"option 'startingOffsets' names queues of topic '{topic}', but option 'topic' is '{self.topic}'"
            for topic in sorted(named - {self.topic})
        ]


def _parse_values(
    raw: Mapping[str, str], specs: Mapping[str, tuple[str, OptionSpec]]
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, text in raw.items():
        known = specs.get(key.lower())
        if known is None:
            problems.append(_unknown_key(key, [spec.key for _, spec in specs.values()]))
            continue
        name, spec = known
        try:
            values[name] = spec.parse(text)
        except ValueError as problem:
            shown = "***" if spec.secret else text
            problems.append(f"option {spec.key}='{shown}' {problem}")
    given = {key.lower() for key in raw}
    problems += [
        f"option '{spec.key}' is required: {spec.doc}"
        for lower, (_, spec) in specs.items()
        if spec.required and lower not in given
    ]
    return values, problems


def _unknown_key(key: str, known: list[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
    hint = (
        f"; did you mean '{by_lower[close[0]]}'?" if close else f"; known options: {', '.join(sorted(known))}"
    )
    return f"unknown option '{key}'{hint}"


def markdown(options: type[OptionSet] = ReadOptions) -> str:
    """The documentation page of the options."""
    lines = [
        '# Options of `format("rocketmq")`',
        "",
        "Made from `options.py` by `make docs`; do not edit. Keys are matched without regard to case.",
        "",
        "| option | default | unit | meaning |",
        "|---|---|---|---|",
    ]
    for field in dataclasses.fields(options):
        spec: OptionSpec = field.metadata["spec"]
        doc = spec.doc.replace("|", "\\|")
        lines.append(f"| `{spec.key}` | {spec.default_text} | {spec.unit} | {doc} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())
