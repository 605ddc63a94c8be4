"""URIs as they are shown: storage URIs may have keys or passwords in them, and stand in errors, logs and ``repr``."""

from __future__ import annotations

import re
from typing import Final

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
