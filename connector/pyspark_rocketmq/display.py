"""Text as it is shown in logs, errors and ``repr``: without secrets, control characters or endless length.

Whoever may register a broker or join a group chooses texts that are shown: a remark, a name, an address, a
client id. Raw, they could begin new lines in a log, command a terminal or fill a disk. Storage URIs may hold
keys or passwords.
"""

from __future__ import annotations

import re
from typing import Final

MOST_CHARACTERS: Final = 2_000
"""Of one text."""


def peer_text(text: str) -> str:
    r"""``text`` on one line for logs, errors, tables and pages; at most ``MOST_CHARACTERS`` characters.

    Characters that cannot be printed (of control, of direction, line breaks, lone surrogates) are written as
    in Python's literals, such as ``\x1b``; a longer text ends with "…".
    """
    # Cut first: a text may be megabytes, and ten times as much with its characters escaped.
    short = text[: MOST_CHARACTERS + 1]
    if not short.isprintable():
        short = "".join(map(_printable, short))
    return short if len(short) <= MOST_CHARACTERS else short[: MOST_CHARACTERS - 1] + "…"


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def counted(number: int, what: str) -> str:
    """Such as "1 queue", "1,000 queues"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


_MASK: Final = "***"
_USER_INFO: Final = re.compile(
    # abfss://CONTAINER@ACCOUNT/… and wasbs:// have no secret there, but for a colon.
    r"(?P<scheme>(?<![A-Za-z0-9+.-])(?!(?:abfss?|wasbs?)://[^:/\s'\"@]*@)[A-Za-z][A-Za-z0-9+.-]*://)"
    # A key may have slashes in it; host:8020/a@b has none.
    r"(?:[^/?#\s'\"]*|[^/:\s'\"]+:(?!\d+/)[^?#\s'\"]*)@"
)
_QUERY: Final = re.compile(
    r"(?P<before>(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://[^?\s'\"]*\?)[^\s'\"]*[^\s'\".,;:)]"
)
_BARE_USER_INFO: Final = re.compile(r"(?<![^\s;,/='\"])[^\s;,/=:'\"]{1,200}:[^\s;,/'\"]{0,500}@")
"""As in ``user:password@host:9876``."""


def masked(text: str) -> str:
    """``text`` with the user information and the query of every URI in it as ``***``.

    Of ``user:password@`` without a scheme, too: who writes a list of servers may take it for one of URIs.
    """
    if "@" not in text and "?" not in text:
        return text
    text = _USER_INFO.sub(rf"\g<scheme>{_MASK}@", text)
    text = _QUERY.sub(rf"\g<before>{_MASK}", text)
    return _BARE_USER_INFO.sub(f"{_MASK}@", text)
