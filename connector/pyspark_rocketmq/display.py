"""Safe text for logs, errors and ``repr``: without secrets or control characters, and of limited length.

Anyone who can register a broker or join a group chooses strings that are shown: a remark, a name, an address,
a client id. Unescaped, they could begin new lines in a log, control a terminal or fill a disk. Storage URIs
may contain keys or passwords, and so may the errors of users' code and of database drivers.
"""

from __future__ import annotations

import logging
import re
import traceback
from contextlib import suppress
from typing import Final

MOST_CHARACTERS: Final = 2_000
"""Maximum length of a string that is shown, in characters."""

_MASK: Final = "***"
_USER_INFO: Final = re.compile(
    # In abfss://CONTAINER@ACCOUNT/… and wasbs:// the part before @ is secret only if it has a colon.
    r"(?P<scheme>(?<![A-Za-z0-9+.-])(?!(?:abfss?|wasbs?)://[^:/\s'\"@]*@)[A-Za-z][A-Za-z0-9+.-]*://)"
    # A key may contain slashes; host:8020/a@b is a host, a port and a path, without a key.
    r"(?:[^/?#\s'\"]*|[^/:\s'\"]+:(?!\d+/)[^?#\s'\"]*)@"
)
_QUERY: Final = re.compile(
    r"(?P<before>(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://[^?\s'\"]*\?)[^\s'\"]*[^\s'\".,;:)]"
)
_BARE_USER_INFO: Final = re.compile(r"(?<![^\s;,/='\"])[^\s;,/=:'\"]{1,200}:[^\s;,/'\"]{0,500}@")
"""User information without a scheme, as in ``user:password@host:9876``."""
_PASSWORD: Final = re.compile(
    # A text may be masked again within another one.
    r"(?i)(?P<name>(?:password|passwd|pwd)\s*=\s*)(?!\*\*\*)"
    r"(?:'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|[^\s,;]+)"
)
"""A password in a connection string, which the error of a database driver may repeat."""


def peer_text(text: str) -> str:
    r"""Return ``text`` on one line for logs, errors, tables and pages, at most ``MOST_CHARACTERS`` long.

    Characters that cannot be printed (control and direction characters, line breaks, lone surrogates) are
    escaped as in Python's literals, such as ``\x1b``. A text that is cut ends with "…".
    """
    # Cut first: a string may have megabytes, and escaping may make it ten times as long.
    short = text[: MOST_CHARACTERS + 1]
    if not short.isprintable():
        short = "".join(map(_printable, short))
    return short if len(short) <= MOST_CHARACTERS else short[: MOST_CHARACTERS - 1] + "…"


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def counted(number: int, what: str) -> str:
    """Return the number with its noun, ``what`` in the singular: "1 queue" or "1,000 queues"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def masked(text: str) -> str:
    """Replace passwords, and the user information and the query of every URI, in ``text`` by ``***``.

    A ``user:password@`` without a scheme is replaced, too: users may write it in a list of servers. The
    container in ``abfss://CONTAINER@ACCOUNT`` stays.
    """
    if "@" in text or "?" in text:
        text = _USER_INFO.sub(rf"\g<scheme>{_MASK}@", text)
        text = _QUERY.sub(rf"\g<before>{_MASK}", text)
        text = _BARE_USER_INFO.sub(f"{_MASK}@", text)
    return _PASSWORD.sub(rf"\g<name>{_MASK}", text) if "=" in text else text


def masking_logger(name: str) -> logging.Logger:
    """Return the logger of this name, after making it mask messages and tracebacks as :func:`masked` does.

    A module needs this logger if it logs errors of users' code, of a database driver or of storage. Such an
    error may also be the cause of one of this package's errors: a traceback then shows the texts of both.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_mask_record)
    return logger


def _mask_record(record: logging.LogRecord) -> bool:
    # The text of a user's error may be impossible to make; logging itself then reports it.
    with suppress(Exception):
        text = record.getMessage()
        if (shown := masked(text)) != text:
            record.msg, record.args = shown, None
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        text = "".join(traceback.format_exception(error)).rstrip()
        if (shown := masked(text)) != text:
            # A handler that formats the error by itself would show it again.
            record.exc_text, record.exc_info = shown, None
    return True
