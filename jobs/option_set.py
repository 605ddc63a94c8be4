"""What jobs add to the package's way of declaring options."""

from __future__ import annotations

import dataclasses
from typing import Any

from pyspark_rocketmq.options.consumer import ConsumerOptions
from pyspark_rocketmq.options.declare import OptionSet, OptionSpec, option
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.write import WriteOptions


def like_source(name: str, **given: Any) -> Any:
    """Declare an option of the data source, by its field's ``name``, for a job; ``given`` as of :func:`_like`."""
    return _like(ReadOptions, name, **given)


def like_sink(name: str, **given: Any) -> Any:
    """The same of an option of writing."""
    return _like(WriteOptions, name, **given)


def like_consumer(name: str, **given: Any) -> Any:
    """The same of a consumer's setting, whose own default holds if none is given."""
    field = next(field for field in dataclasses.fields(ConsumerOptions) if field.name == name)
    own = {"default": field.default, "default_text": field.metadata["spec"].default_text}
    return _like(ConsumerOptions, name, **(given or own))


def _like(
    options: type[OptionSet],
    name: str,
    *,
    default: Any = dataclasses.MISSING,
    default_text: str | None = None,
    doc: str | None = None,
) -> Any:
    """Declare an option as ``options`` does; required without a default.

    Key, parser and unit are those; so is the text, unless it means something else in the job.
    """
    spec: OptionSpec = next(
        field.metadata["spec"] for field in dataclasses.fields(options) if field.name == name
    )
    given = {} if default is dataclasses.MISSING else {"default": default, "default_text": default_text}
    instead = () if given else spec.instead
    return option(
        spec.key,
        parse=spec.parse,
        doc=doc or spec.doc,
        unit=spec.unit,
        secret=spec.secret,
        instead=instead,
        **given,
    )
