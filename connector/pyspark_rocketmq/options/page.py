"""``python -m pyspark_rocketmq.options.page`` prints ``docs/options.md``: every option, as it is declared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from pyspark_rocketmq.options.connection import ConnectionOptions
from pyspark_rocketmq.options.consumer import ConsumerOptions
from pyspark_rocketmq.options.declare import OptionSpec, specs_of
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.write import WriteOptions

_HEAD = (
    "Made from the options' declarations by `make docs`; do not edit. Keys are matched without regard to "
    "case. An option is used in a `stream` that is read, a `batch` that is read, or a `write` of either; "
    "where it would mean nothing it is refused."
)
_OF_A_CONSUMER = (
    "What a `PushConsumer` ([listeners](listeners.md)) takes as arguments in Python, and job `consume` as "
    "keys of `--option` and of its `--conf` file. Its other arguments are options of reading under their "
    "Python names, such as `allocate_message_queue_strategy`, and `options`, a map of those that have no "
    "argument."
)


def markdown() -> str:
    """The documentation page of the options."""
    common = specs_of(ConnectionOptions)
    lines = [
        '# Options of `format("rocketmq")`',
        "",
        _HEAD,
        "",
        "## Reading",
        "",
        *_options_table(spec for spec in specs_of(ReadOptions) if spec not in common),
        "",
        "## Writing",
        "",
        "What the columns are, and what keeps their order: [writing](how-to/writing.md).",
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
        ("option", "used in", "type", "default", "unit", "meaning"),
        (
            (f"`{spec.key}`", ", ".join(spec.used_in), spec.type, spec.default_text, spec.unit, spec.doc)
            for spec in specs
        ),
    )


def _consumer_table() -> list[str]:
    return _table(
        ("argument", "option of the job", "type", "default", "unit", "meaning"),
        (
            (f"`{field.name}`", f"`{spec.key}`", spec.type, spec.default_text, spec.unit, spec.doc)
            for field, spec in zip(
                dataclasses.fields(ConsumerOptions), specs_of(ConsumerOptions), strict=True
            )
        ),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in lines]


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())
