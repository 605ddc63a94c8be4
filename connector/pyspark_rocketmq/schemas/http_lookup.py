"""The HTTP requests to a schema registry, and the look-up that a process shares for equal settings."""

from __future__ import annotations

import base64
import http.client
import ssl
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import OptionError, SchemaRegistryDown, SchemaRegistryRefused
from pyspark_rocketmq.schemas.lookup import Answer, SchemaLookup

_MOST_BYTES: Final = 16 << 20
"""Maximum size of an answer."""
_PIECE_BYTES: Final = 1 << 16
_ACCEPTED: Final = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """Settings by which a registry is reached; pickled for the executors."""

    urls: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    wait_s: float = 10.0
    request_timeout_s: float = 5.0
    not_found_s: float = 10.0
    legacy_id_mode: bool = False
    """Whether the registry takes numbers for Apicurio's globalIds instead of contentIds."""

    def __post_init__(self) -> None:
        if problems := tuple(self._problems()):
            raise OptionError(problems, where="schema registry")

    def _problems(self) -> list[str]:
        found = [] if self.urls else ["url is empty; give the registry's base URL, such as http://host:8081"]
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                found.append(f"{url} is not the base URL of a registry; give one such as http://host:8081")
            elif parts.username is not None or parts.password is not None:
                found.append(f"{url} contains a user; give user and password as arguments")
            elif parts.query or parts.fragment:
                found.append(f"{url} has a query or a fragment; give the base URL without it")
        found += self._credential_problems()
        if not (self.wait_s > 0 and self.request_timeout_s > 0 and self.not_found_s >= 0):
            found.append("wait_s and request_timeout_s must be above 0, not_found_s 0 or more")
        return found

    def _credential_problems(self) -> list[str]:
        found = []
        if (self.user is None) != (self.password is None):
            found.append("user and password belong together; give both or neither")
        if self.user is not None and self.token is not None:
            found.append("token and user exclude each other; give one of them")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            # The HTTP library would show the token in its error.
            found.append(
                "token contains a line break or another character that no HTTP header may have; strip it"
            )
        return found

    @property
    def authorization(self) -> str | None:
        """Value of the header ``Authorization``; None without credentials."""
        if self.token is not None:
            return f"Bearer {self.token}"
        if self.user is None:
            return None
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@lru_cache(maxsize=64)
def lookup_of(settings: RegistrySettings) -> SchemaLookup:
    """Return the process's look-up of schemas for these settings; it keeps the schemas that it found."""
    return SchemaLookup(
        settings.urls,
        HttpGet(settings),
        SystemClock(),
        time.sleep,
        wait_s=settings.wait_s,
        request_timeout_s=settings.request_timeout_s,
        not_found_s=settings.not_found_s,
    )


class HttpGet:
    """Sends GET requests to a registry, with its credentials; implements ``lookup.Get``."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._opener = _opener(settings)
        self._headers = {"Accept": _ACCEPTED}
        if (authorization := settings.authorization) is not None:
            self._headers["Authorization"] = authorization

    def __call__(self, url: str, timeout_s: float) -> Answer:
        """Send a GET request, and return the answer, even if its status is an error.

        An answer with an error's status may be cut off: it has at most 64 KiB, and only what came in time.

        Raises:
            SchemaRegistryDown: If no complete answer came within ``timeout_s``.
            SchemaRegistryRefused: If the server's certificate is not trusted, or the answer is too large.
        """
        deadline = Deadline.after(SystemClock(), timeout_s)
        base = url.partition("/schemas/")[0].partition("/subjects/")[0]
        try:
            with self._opener.open(Request(url, headers=self._headers), timeout=timeout_s) as response:  # noqa: S310 - settings check the scheme
                return Answer(response.status, _read(response, base, deadline))
        except HTTPError as error:
            with error:
                return Answer(error.code, _read_some(error, deadline))
        except ssl.SSLCertVerificationError as error:
            raise SchemaRegistryRefused(base, _untrusted(error)) from error
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise SchemaRegistryRefused(base, _untrusted(error.reason)) from error
            raise SchemaRegistryDown(base, str(error.reason)) from error
        except (OSError, http.client.HTTPException) as error:
            raise SchemaRegistryDown(base, str(error) or type(error).__name__) from error


def _untrusted(error: ssl.SSLCertVerificationError) -> str:
    return (
        f"the registry's certificate is not trusted: {error.verify_message}. Set ca_file to the file of the "
        "authority that signed the certificate"
    )


def _read(response: http.client.HTTPResponse, base: str, deadline: Deadline) -> bytes:
    """Read the whole answer; end with an error if it comes too slowly or is too long."""
    pieces: list[bytes] = []
    size = 0
    while piece := response.read1(_PIECE_BYTES):
        size += len(piece)
        if size > _MOST_BYTES:
            raise SchemaRegistryRefused(base, f"the answer has more than {_MOST_BYTES >> 20} MiB")
        pieces.append(piece)
        if deadline.has_passed:
            raise TimeoutError("the answer comes too slowly")
    return b"".join(pieces)


def _read_some(error: HTTPError, deadline: Deadline) -> bytes:
    """Return the first bytes of an error's answer: only those that arrive before the deadline."""
    found = b""
    try:
        while not deadline.has_passed and (piece := error.read1(_PIECE_BYTES - len(found))):
            found += piece
    except (OSError, http.client.HTTPException):
        pass
    return found


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect, because the credentials would go to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None, so that the redirect is not followed but returned as the answer."""


def _opener(settings: RegistrySettings) -> OpenerDirector:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        # Not an OptionError, which would end a query: messages wait until the file is there.
        problem = f"{settings.ca_file} cannot be used: {error}. The file must be on every machine"
        raise SchemaRegistryRefused(settings.urls[0], problem) from error
    return build_opener(HTTPSHandler(context=context), _NoRedirects)
