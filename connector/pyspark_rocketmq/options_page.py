"""``python -m pyspark_rocketmq.options_page`` prints ``docs/options.md``: every option, as it is declared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pyspark_rocketmq.connection_options import ConnectionOptions
from pyspark_rocketmq.option_set import OptionSet, OptionSpec
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.write_options import WriteOptions


def markdown() -> str:
    """The documentation page of the options."""
    common = _specs(ConnectionOptions)
    lines = [
        '# Options of `format("rocketmq")`',
        "",
        "Made from the options' declarations by `make docs`; do not edit. Keys are matched without regard to case.",
        "",
        "## Reading",
        "",
        *_table(spec for spec in _specs(ReadOptions) if spec not in common),
        "",
        "## Writing",
        "",
        "What the columns are, and what keeps their order: [sink.md](sink.md).",
        "",
        *_table(spec for spec in _specs(WriteOptions) if spec not in common),
        "",
        "## The cluster, for both",
        "",
        *_table(common),
    ]
    return "\n".join(lines) + "\n"


def _specs(options: type[OptionSet]) -> list[OptionSpec]:
    return [field.metadata["spec"] for field in dataclasses.fields(options)]


def _table(specs: Iterable[OptionSpec]) -> list[str]:
    lines = ["| option | default | unit | meaning |", "|---|---|---|---|"]
    for spec in specs:
        doc = spec.doc.replace("|", "\\|")
        lines.append(f"| `{spec.key}` | {spec.default_text} | {spec.unit} | {doc} |")
    return lines


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())
