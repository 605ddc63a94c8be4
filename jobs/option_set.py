"""A job's options as a frozen dataclass, parsed and described from its own declarations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options import OptionSpec, ReadOptions, _parse_values, option


class OptionSet:
    """Base of dataclasses whose fields are made by :func:`pyspark_rocketmq.options.option`."""

    __slots__ = ()

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Self:
        """Parse texts by key; keys are matched without regard to case.

        Raises:
            OptionError: With a sentence for every problem, not just the first.
        """
        values, problems = _parse_values(
            texts, {spec.key.lower(): (name, spec) for name, spec in cls._declared()}
        )
        if problems:
            raise OptionError(tuple(problems))
        return cls(**values)

    @classmethod
    def specs(cls) -> tuple[OptionSpec, ...]:
        """What can be set, in the order of declaration."""
        return tuple(spec for _, spec in cls._declared())

    @classmethod
    def _declared(cls) -> Iterator[tuple[str, OptionSpec]]:
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # subclasses are dataclasses
            yield field.name, field.metadata["spec"]


def like_source(
    name: str, *, default: Any = dataclasses.MISSING, default_text: str | None = None, doc: str | None = None
) -> Any:
    """Declare an option of the data source, by its field's ``name``, for a job; required without a default.

    Key, parser and unit are the source's; so is the text, unless it means something else in the job.
    """
    spec: OptionSpec = next(
        field.metadata["spec"] for field in dataclasses.fields(ReadOptions) if field.name == name
    )
    given = {} if default is dataclasses.MISSING else {"default": default, "default_text": default_text}
    return option(
        spec.key, parse=spec.parse, doc=doc or spec.doc, unit=spec.unit, secret=spec.secret, **given
    )
