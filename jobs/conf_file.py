"""A job's settings as text: from a TOML file and from ``--option key=value``, the latter winning.

Tables of the file only group: ``[listener] outputSchema = …`` is the option ``outputSchema``.  Nothing here knows
which options exist.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def gather_texts(conf: Path | None, pairs: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Read and merge both sources; return the texts by key, and a sentence for every problem.

    Keys are merged without regard to case, as Spark treats them.
    """
    problems: list[str] = []
    texts: dict[str, str] = {}
    for source in (_file_entries(conf, problems), _pair_entries(pairs, problems)):
        entries = dict(source)
        overridden = {key.lower() for key in entries}
        texts = {key: text for key, text in texts.items() if key.lower() not in overridden} | entries
    return texts, problems


def _pair_entries(pairs: Sequence[str], problems: list[str]) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if separator and key.strip():
            yield key.strip(), text
        else:
            # What stands behind may be a secret.
            begin = re.match(r"\w*", pair)
            assert begin is not None
            problems.append(f"--option '{begin[0]}{'…' * (begin.end() < len(pair))}' is not key=value")


def _file_entries(conf: Path | None, problems: list[str]) -> Iterator[tuple[str, str]]:
    if conf is None:
        return
    try:
        document = tomllib.loads(conf.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"--conf {conf} cannot be read: {error.strerror}")
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"--conf {conf} is not TOML: {error}")
        return
    seen: set[str] = set()
    for key, value in _flatten(document):
        if key.lower() in seen:
            problems.append(f"--conf {conf} sets '{key}' twice")
            continue
        seen.add(key.lower())
        text = _to_text(value)
        if text is None:
            problems.append(f"--conf {conf}: '{key}' is neither text, number, true/false nor a list of these")
        else:
            yield key, text


def _flatten(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value)
        else:
            yield key, value


def _to_text(value: Any) -> str | None:
    """What a user would have typed after ``key=``; None for what cannot be typed."""
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case list():
            parts = [_to_text(part) for part in value]
            return None if None in parts else ",".join(part for part in parts if part is not None)
        case _:
            return None
