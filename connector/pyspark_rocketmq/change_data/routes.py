"""Routes from a source's tables to those of the lake (the sink's folder): which table, columns and names.

This module is pure: with the same routes, a task and the driver find the same table for a change.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pyspark_rocketmq.change_data.change import SourceTable, SourceType
from pyspark_rocketmq.change_data.json_text import text_of

SHADOW_TABLES: Final = r"_(.*)_(gho|ghc|del|new|old)"
"""Pattern of the names of temporary tables, which gh-ost and pt-online-schema-change create."""
SOURCE_DATABASE: Final = "__source_database"
SOURCE_TABLE: Final = "__source_table"
"""Name of a column with the source's table, added to the key if several source tables become one.

:data:`SOURCE_DATABASE` is added, too.
"""
SEVERAL: Final = "*"
"""Value of :attr:`Routed.source` if several tables of the source are merged into one."""
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_NAMES: Final = ("database", "schema", "table")
_DEFAULT_DEPTHS: Final = frozenset({1, 2})
"""Numbers of slashes in folders of routes without a ``target``: 2 if the source has schemas, else 1."""
_PLAIN: Final = re.compile(r"[\w.-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRoute:
    """Folder and columns for the source's tables whose names match the pattern ``source``.

    Of several routes that match a table, the first one counts.
    """

    source: str = ".*"
    """Regular expression for a table's whole name: ``DATABASE.TABLE`` or ``DATABASE.SCHEMA.TABLE``."""
    target: str | None = None
    """Folder of the table below that of the sink.

    It may contain ``{database}``, ``{schema}``, ``{table}`` and named groups of the pattern, for example
    ``lake/{table}``. None: ``{database}/{table}``, or ``{database}/{schema}/{table}``.
    """
    merges: bool = False
    """Whether several source tables become one table of the lake.

    The key of that table then has the columns ``__source_database`` and ``__source_table``, too.
    """
    include: Sequence[str] | None = None
    """The source's columns to keep; None keeps all. Columns of the key are always kept."""
    exclude: Sequence[str] = ()
    """The source's columns to leave out. Columns of the key are always kept."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """Names of columns in the lake, by their names in the source."""
    mask: Sequence[str] = ()
    """The source's columns whose values are replaced by a salted hash, as text."""

    @property
    def hides_columns(self) -> bool:
        """Whether the values of some columns may be masked or left out."""
        return bool(self.mask or self.exclude) or self.include is not None

    def problems(self) -> list[str]:
        """Return what is wrong with the route, one text for each problem; empty if nothing is."""
        problems = [pattern_problem("source", self.source), self._rename_problem()]
        return [problem for problem in problems if problem is not None] or self._target_problems()

    def _rename_problem(self) -> str | None:
        counts = Counter(name.lower() for name in self.rename.values())
        twice = sorted({name for name in self.rename.values() if counts[name.lower()] > 1})
        if not twice:
            return None
        return (
            f"rename={dict(self.rename)!r} gives several columns the name {', '.join(twice)}; give each "
            "another"
        )

    def _target_problems(self) -> list[str]:
        if self.target is None:
            return []
        groups = re.compile(self.source).groupindex
        known = [*_NAMES, *groups]
        found = [
            f"target={self.target!r} has {{{name}}}, which is not a placeholder; the placeholders are "
            f"{', '.join(known)}"
            for name in _PLACEHOLDER.findall(self.target)
            if name not in known
        ]
        if not all(self.target.split("/")) or any(part[0] in "._" for part in self.target.split("/") if part):
            found.append(
                f"target={self.target!r} must be folders between single slashes, whose names begin with "
                "neither a point nor an underscore"
            )
        return found

    def match(self, table: SourceTable) -> str | None:
        """Return the folder for a table, below that of the sink; None if the pattern does not match."""
        found = re.fullmatch(self.source, str(table))
        if found is None:
            return None
        names = {
            **{name: value or "" for name, value in found.groupdict().items()},
            "database": table.database,
            "schema": table.schema or "",
            "table": table.name,
        }
        return "/".join(
            _folder(_PLACEHOLDER.sub(lambda place: names[place[1]], part))
            for part in self._target(table).split("/")
        )

    def _target(self, table: SourceTable) -> str:
        if self.target is not None:
            return self.target
        return "{database}/{schema}/{table}" if table.schema else "{database}/{table}"


def _folder(name: str) -> str:
    """Return a folder's name that every storage accepts; different names give different folders."""
    text = "".join(each if _PLAIN.match(each) else f"~{ord(each):x}~" for each in name)
    return f"~{ord(text[0]):x}~{text[1:]}" if text[:1] in (".", "_") else text


@dataclass(frozen=True)
class Routed:
    """A table of the source, and the route that gives it a folder, columns and names in the lake."""

    table: SourceTable
    route: TableRoute
    target: str
    """Folder of the table, below that of the sink."""
    salt: bytes = field(repr=False)

    @cached_property
    def source(self) -> str:
        """The source of the target's rows: this table as a JSON list, or :data:`SEVERAL` if it is merged."""
        names = [self.table.database, self.table.schema, self.table.name]
        return SEVERAL if self.route.merges else json.dumps(names, ensure_ascii=False)

    @cached_property
    def folder_problem(self) -> str | None:
        """Why the table cannot have its folder; None if it can."""
        if all(self.target.split("/")):
            return None
        return (
            f"The route with target={self.route.target!r} gives the table {self.table} the folder "
            f"'{self.target}', in which a name is empty. Give the table a route of its own, before this one."
        )

    def names_problem(self, columns: Iterable[str], key: Collection[str]) -> str | None:
        """Return why columns of the source cannot have their names in the lake; None if they can."""
        taken = {SOURCE_DATABASE: SOURCE_DATABASE, SOURCE_TABLE: SOURCE_TABLE} if self.route.merges else {}
        kept = dict.fromkeys([*key, *self.kept(columns)])
        for name in kept:
            new = self.route.rename.get(name, name)
            if new in taken:
                return (
                    f"Columns {taken[new]} and {name} of {self.table} would both be {new}. Give one of them "
                    "another name (rename=…), or leave it out (exclude=…)."
                )
            taken[new] = name
        return None

    def key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """Return a key with the names and values that it has in the lake."""
        names = self.route.rename
        found = {names.get(name, name): self._value(name, value) for name, value in key.items()}
        if self.route.merges:
            found |= {SOURCE_DATABASE: self.table.database, SOURCE_TABLE: self._name_in_database()}
        return found

    def kept(self, columns: Iterable[str]) -> list[str]:
        """Return those of ``columns`` that ``include`` and ``exclude`` keep, by their names in the source.

        The result may lack columns of the key. The table in the lake always has the key's columns.
        """
        return [name for name in columns if self._keeps(name)]

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``row`` as the lake has it.

        It has only the columns that ``include`` and ``exclude`` keep, under their names in the lake, and with
        masked values replaced.
        """
        names = self.route.rename
        return {
            names.get(name, name): self._value(name, value)
            for name, value in row.items()
            if self._keeps(name)
        }

    def types(self, types: Mapping[str, SourceType], key: Collection[str]) -> dict[str, SourceType]:
        """Return the types of the key's columns and of the other kept columns, by their names in the lake.

        Masked columns are left out, because they become text.
        """
        names = self.route.rename
        return {
            names.get(name, name): type_
            for name, type_ in types.items()
            if (name in key or self._keeps(name)) and name not in self.route.mask
        }

    def hides(self, name: str) -> bool:
        """Return whether the values of a column of the source are masked or left out in the lake."""
        return name in self.route.mask or not self._keeps(name)

    def names_of(self, columns: Iterable[str]) -> list[str]:
        """Return the names in the lake of those ``columns`` that the route keeps.

        ``columns`` are names in a statement of the source. Their case makes no difference, as in MySQL.
        """
        include, exclude = (_in_lower(names) for names in (self.route.include or (), self.route.exclude))
        names = {name.lower(): new for name, new in self.route.rename.items()}
        return [
            names.get(name.lower(), name)
            for name in columns
            if (self.route.include is None or name.lower() in include) and name.lower() not in exclude
        ]

    def _name_in_database(self) -> str:
        return ".".join(part for part in (self.table.schema, self.table.name) if part)

    def _keeps(self, name: str) -> bool:
        route = self.route
        return (route.include is None or name in route.include) and name not in route.exclude

    def _value(self, name: str, value: Any) -> Any:
        if value is None or name not in self.route.mask:
            return value
        data = value if isinstance(value, bytes) else text_of(value).encode()
        return hmac.new(self.salt, data, hashlib.sha256).hexdigest()


def _in_lower(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


class Router:
    """Finds the route of each table of the source; picklable."""

    def __init__(self, routes: Sequence[TableRoute], ignored: str | None, salt: str) -> None:
        """Take the routes, the pattern of the names of ignored tables, and the salt of masks."""
        self._routes = tuple(routes)
        self._ignored = ignored
        self._salt = salt.encode()
        self._known: dict[SourceTable, Routed | None] = {}
        self.hides_columns: Final = any(route.hides_columns for route in self._routes)
        """Whether one of the routes hides columns."""

    def route(self, table: SourceTable) -> Routed | None:
        """Return a table with its route; None if the table is ignored, or if no route matches it."""
        if table not in self._known:
            self._known[table] = self._find(table)
        return self._known[table]

    def _find(self, table: SourceTable) -> Routed | None:
        if self._ignored is not None and re.fullmatch(self._ignored, table.name):
            return None
        for route in self._routes:
            target = route.match(table)
            if target is not None:
                return Routed(table, route, target, self._salt)
        return None


def pattern_problem(setting: str, pattern: str) -> str | None:
    """Return why the pattern of a setting is not a regular expression; None if it is one."""
    try:
        re.compile(pattern)
    except re.error as error:
        return f"{setting}={pattern!r} is not a regular expression: {error}"
    return None


def route_problems(routes: Sequence[TableRoute], salt: str) -> list[str]:
    """Return what is wrong with routes and salt, one text for each problem; empty if nothing is."""
    problems = [problem for route in routes for problem in route.problems()]
    if not routes:
        problems.append("routes is an empty list; leave it out, and every table has a folder of its own")
    if not salt and any(route.mask for route in routes):
        problems.append("a route masks columns, but there is no salt for their hashes: give mask_salt")
    depths = {route.target.count("/") for route in routes if route.target is not None}
    has_default = any(route.target is None for route in routes)
    if len(depths) > 1 or (has_default and not depths <= _DEFAULT_DEPTHS):
        problems.append(
            "targets of routes have different numbers of folders, so one table could be within another; give "
            "all targets the same number of folders (a route without target has 2 of them, or 3 if the "
            "source has schemas)"
        )
    return problems
