"""``python -m scripts.pages options`` prints ``docs/options.md``: every option, as it is declared.

``python -m scripts.pages errors`` prints ``docs/errors.md``: every error, as its docstring describes it.
``python -m scripts.pages answers`` prints ``docs/answers.md``: what happens at each answer of a broker.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable, Sequence

from pyspark_rocketmq import errors
from pyspark_rocketmq.consume.answers import Use, reaction
from pyspark_rocketmq.options.connection import ConnectionOptions
from pyspark_rocketmq.options.consumer import ConsumerOptions
from pyspark_rocketmq.options.declare import OptionSpec, specs_of
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.wire.codes import ResponseCode

_MADE = "<!-- Made from the code by `make docs`: change it there. -->"
_OPTIONS_HEAD = (
    "Upper and lower case make no difference in a key. Column *used in* names where an option counts: in a "
    "`stream` or a `batch` that is read, or in a `write` of either. Anywhere else it is refused."
)
_ERRORS_HEAD = (
    "Every error is a `pyspark_rocketmq.RocketMQError`. Its text says what happened, where, and what to do; "
    "`error.retryable` is True where trying again may help, and *later* marks errors that a query which has "
    "worked before waits for. In Spark's output look for the last line that begins with "
    "`pyspark_rocketmq.errors`."
)
_ANSWERS_HEAD = """\
How a query reacts when a broker answers a request with an error. *Has worked* means that this query, in this run or an earlier one,
has been served the same kind of request; *at first contact*, it has not. Each request has a table, with its code in the heading; *any other* is every answer that the table does not name.

| word | one such answer | if it continues |
|---|---|---|
| waits | a queue or broker that refused is asked again after 3 s, as Java's consumers do; the others go on | the same, for ever; a drain ends after `retryTimeoutMs` |
| tries | the request is sent again, with growing pauses | an error after `retryTimeoutMs` (in a consumer's first task after 10 s) |
| 3 tries | the request is sent again | an error within seconds |
| error | the query ends | |
| loss | `TopicDeleted` or `QueueRemoved`, or goes on without it: `failOnDataLoss` decides | the same |
| stored | goes on, or an error with `requireSendOk=true` | the same |
| left out | goes on without the topic, which the broker does not have | the same |
| queue by queue | asks for each queue's end by itself | the same |
| none stored | goes on: the group has no offset there | the same |
| no error | goes on: there is nothing to read yet | the same |

Name servers, membership and messages given back never end a query that runs: a known route stays in force, and heartbeats, lists of members, locks and
sends of failed messages are tried again in the next round. `Producer.send` without a queue tries two other brokers after codes 1, 2, 14, 16, 17, 204, 205
and 1500, and so does a write of rows without a key.
"""
_REMARKS = (
    (ResponseCode.SYSTEM_ERROR, "…AclException…", "access control of RocketMQ 4"),
    (ResponseCode.SYSTEM_ERROR, "…does not support consumer to filter message by…", "no SQL92 at the broker"),
    (ResponseCode.SYSTEM_ERROR, "check signature failed…", "a wrong secret at a proxy"),
    (ResponseCode.SYSTEM_ERROR, "queueId[…", "a queue that is gone (before 5.3.2)"),
    (ResponseCode.SYSTEM_ERROR, "[PC_SYNCHRONIZED]…", "a busy broker (before 5.3.0)"),
    (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough", "too few replicas after an election"),
    (ResponseCode.NO_PERMISSION, "subscription group no permission", "consumption is switched off"),
)
"""Answers that mean something else than their codes."""
_UNKNOWN_CODE = 4711
_NO_BREAK = "\N{NO-BREAK SPACE}"
_OF_A_CONSUMER = (
    "A `PushConsumer` ([listeners](listeners.md)) takes these as arguments in Python; `pyspark-rocketmq consume` "
    "takes them as keys of `--option` and of its `--conf` file. Its other arguments are options of reading "
    "under their Python names, such as `allocate_message_queue_strategy`, and `options`, a map of those that have "
    "no argument."
)


def options_page() -> str:
    """Return the documentation page of the options."""
    common = specs_of(ConnectionOptions)
    lines = [
        _MADE,
        "",
        '# Options of `format("rocketmq")`',
        "",
        _OPTIONS_HEAD,
        "",
        "## Reading",
        "",
        *_options_table(spec for spec in specs_of(ReadOptions) if spec not in common),
        "",
        "## Writing",
        "",
        "The columns, and how their order is kept: [writing](how-to/writing.md).",
        "",
        *_options_table(spec for spec in specs_of(WriteOptions) if spec not in common),
        "",
        "## The cluster, for both",
        "",
        *_options_table(common),
        "",
        "## A consumer",
        "",
        _OF_A_CONSUMER,
        "",
        *_consumer_table(),
    ]
    return "\n".join(lines) + "\n"


def _options_table(specs: Iterable[OptionSpec]) -> list[str]:
    return _table(
        ("option", "used in", "type", "default", "meaning"),
        (
            (f"`{spec.key}`", ", ".join(spec.used_in), _type_of(spec), spec.default_text, meaning_of(spec))
            for spec in specs
        ),
    )


def _consumer_table() -> list[str]:
    return _table(
        ("argument", "option of the command", "type", "default", "meaning"),
        (
            (f"`{field.name}`", f"`{spec.key}`", _type_of(spec), spec.default_text, meaning_of(spec))
            for field, spec in zip(
                dataclasses.fields(ConsumerOptions), specs_of(ConsumerOptions), strict=True
            )
        ),
    )


def _type_of(spec: OptionSpec) -> str:
    """Return the type of an option's value, with its unit."""
    return f"{spec.type}; {spec.unit}" if spec.unit else spec.type


def meaning_of(spec: OptionSpec) -> str:
    """Return an option's documentation, with the keys that it had before."""
    formerly = (
        f"Formerly `{former.key}`, which is refused from {former.until} on." for former in spec.formerly
    )
    return " ".join([spec.doc, *formerly])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in lines]


def answers_page() -> str:
    """Return the documentation page of the reactions to each answer of a broker."""
    lines = [_MADE, "", "# Answers of brokers", "", _ANSWERS_HEAD.strip()]
    for use in Use:
        title = use.title[0].upper() + use.title[1:]
        head = ("answer", "at first contact", "has worked")
        lines += ["", f"## {title} ({int(use.request)})", "", *_table(head, _answer_rows(use))]
    return "\n".join(lines) + "\n"


def _answer_rows(use: Use) -> list[tuple[str, ...]]:
    """Return a row for each reaction, with all answers that cause it.

    The last row is for all other answers, which cause the same reaction as an unknown code.
    """
    answers = [(int(code), "", code.name) for code in ResponseCode if code is not ResponseCode.SUCCESS]
    answers += [(int(code), remark, meaning) for code, remark, meaning in _REMARKS]
    alike: dict[tuple[str, ...], list[str]] = {}
    for code, remark, name in sorted(answers):
        alike.setdefault(_reactions(use, code, remark), []).append(f"{code}{_NO_BREAK}{name}")
    others = _reactions(use, _UNKNOWN_CODE, "")
    named = [(", ".join(names), *cells) for cells, names in alike.items() if cells != others]
    return [*named, ("any other", *others)]


def _reactions(use: Use, code: int, remark: str) -> tuple[str, ...]:
    return tuple(str(reaction(use, code, remark, has_worked=has_worked)) for has_worked in (False, True))


def _retried(cls: type[errors.RocketMQError]) -> str:
    if cls.retryable:
        return "yes"
    return "later" if cls.passes_later else "no"


def errors_page() -> str:
    """Return the documentation page of the errors: those whose docstring has a paragraph ``Do: …``."""
    classes = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.RocketMQError)
    ]
    described = {cls: _paragraphs(cls) for cls in classes}
    rows = [
        (f"`{cls.__name__}`", _retried(cls), when, do.removeprefix("Do: "))
        for cls, (when, *others) in described.items()
        for do in others
        if do.startswith("Do: ")
    ]
    listed = {name for name, *_ in rows}
    parents = [name for cls in classes[1:] if (name := f"`{cls.__name__}`") not in listed]
    lines = [
        _MADE,
        "",
        "# Errors",
        "",
        _ERRORS_HEAD,
        "",
        *_table(("error", "retried", "when", "do"), rows),
        "",
        f"Only parents of those above: {', '.join(parents)}.",
    ]
    return "\n".join(lines) + "\n"


def _paragraphs(cls: type) -> list[str]:
    text = inspect.getdoc(cls) or ""
    return [" ".join(paragraph.split()).replace("``", "`") for paragraph in text.split("\n\n")]


if __name__ == "__main__":
    sys.stdout.write({"options": options_page, "errors": errors_page, "answers": answers_page}[sys.argv[1]]())
