"""Columns that the statements of a source take away: those that ALTER TABLE drops or renames.

Only programs that read MySQL send statements. It is unknown whether a row of another queue was written before
or after a statement. So a statement may be a reason to stop, but must not decide how rows are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

_TOKEN: Final = re.compile(
    r"/\*.*?\*/|--[^\n]*|#[^\n]*"
    r"|`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\"|'(?:[^'\\]|\\.|'')*'"
    r"|[(),.;]|[^\s(),.;`\"'#]+",
    re.DOTALL,
)
_COMMENTS: Final = ("/*", "--", "#")
_NO_COLUMN: Final = frozenset({"INDEX", "KEY", "PRIMARY", "FOREIGN", "CONSTRAINT", "CHECK", "PARTITION"})
"""Words after DROP that show that the clause is not about a column."""
_OPTIONAL: Final = ("COLUMN", "IF", "EXISTS")


def removed_columns(statement: str) -> tuple[str, ...]:
    """Return the names of the columns that a statement drops or renames, in the order of the statement."""
    tokens = [token for token in _TOKEN.findall(statement) if not token.startswith(_COMMENTS)]
    words = [token.upper() for token in tokens]
    if "TABLE" not in words or words[0] != "ALTER":
        return ()
    removed = (_removed_by(clause) for clause in _clauses(tokens[words.index("TABLE") + 1 :]))
    return tuple(name for name in removed if name is not None)


def _clauses(tokens: Sequence[str]) -> Iterator[list[str]]:
    """Yield the clauses of an ALTER TABLE, without the table's name.

    ``tokens`` are the words after TABLE; they begin with the table's name or with IF EXISTS.
    """
    start = 2 if [token.upper() for token in tokens[:2]] == ["IF", "EXISTS"] else 0
    start += 1
    while tokens[start : start + 1] == ["."]:
        start += 2
    depth, clause = 0, list[str]()
    for token in tokens[start:]:
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token in (",", ";") and depth == 0:
            yield clause
            clause = []
        else:
            clause.append(token)
    yield clause


def _removed_by(clause: Sequence[str]) -> str | None:
    kind, first = (*map(str.upper, clause), "", "")[:2]
    names = clause[1:]
    while names and names[0].upper() in _OPTIONAL:
        names = names[1:]
    if not names:
        return None
    name = _unquoted(names[0])
    match kind:
        case "DROP" if first not in _NO_COLUMN:
            return name
        # Without the word COLUMN, MySQL gives the table a new name, also if it lacks TO.
        case "RENAME" if first == "COLUMN":
            return name
        case "CHANGE" if len(names) > 1 and _unquoted(names[1]).lower() != name.lower():
            return name
        case _:
            return None


def _unquoted(name: str) -> str:
    quote = name[0]
    return name[1:-1].replace(quote * 2, quote) if quote in '`"' else name
