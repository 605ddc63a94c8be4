"""Text that somebody else chose, as it is shown: a broker's remark or name, an address, another member's client id.

Whoever may register a broker or join a group chooses such texts. Raw, they could begin new lines in a log, command a
terminal or fill a disk.
"""

from __future__ import annotations

from typing import Final

MOST_CHARACTERS: Final = 2_000
"""Of one text."""


def peer_text(text: str) -> str:
    r"""``text`` on one line for logs, errors, tables and pages; at most ``MOST_CHARACTERS`` characters.

    Characters that cannot be printed (of control, of direction, line breaks, lone surrogates) are written as in
    Python's literals, such as ``\x1b``; a longer text ends with "…".
    """
    # Cut first: a text may be megabytes, and ten times as much with its characters escaped.
    short = text[: MOST_CHARACTERS + 1]
    if not short.isprintable():
        short = "".join(map(_printable, short))
    return short if len(short) <= MOST_CHARACTERS else short[: MOST_CHARACTERS - 1] + "…"


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
