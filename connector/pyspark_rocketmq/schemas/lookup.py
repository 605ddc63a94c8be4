"""Looks schemas up in a registry that speaks Confluent's REST form, once for each id in a process.

Rule 1: the schema of an id never changes, so a schema that was found is kept for ever.  An unknown id is
asked for again, but only after some seconds (``not_found_s``).  A subject's version may come again with
another schema, after a permanent deletion.  So schemas that another one refers to are kept only until all of
its references are found: the next try goes on from there, be it after an outage or while one is unknown.
Rule 2: threads that want the same schema wait for one request; nothing waits under the lock.
Rule 3: a schema counts as unknown only if the answer has a registry's own error code for this.  After any
other answer without a schema, of a server or a proxy, the registry counts as down.
Rule 4: one server of a registry may get a new schema after the schema's first messages are read.  So a
look-up asks again for some seconds before an id counts as unknown; it waits like this only once for each id.
For half a minute after a wait in vain, no look-up waits: foreign bytes may contain any ids.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from uuid import UUID

from pyspark_rocketmq.client.transport import renew_in_children
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import RocketMQError, SchemaNotFound, SchemaRegistryDown, SchemaRegistryRefused
from pyspark_rocketmq.retry import RetryPolicy, call_with_retry

logger = logging.getLogger(__name__)

_RETRIES: Final = RetryPolicy(attempts=2**31, first_pause_s=0.1, max_pause_s=2.0)
_MOST_MISSING: Final = 10_000
"""Maximum number of unknown ids that are remembered, since foreign bytes may contain any ids."""
_MOST_REFERENCES: Final = 200
_MOST_UNFINISHED: Final = 64
"""Maximum number of schemas of which some references are kept, since others were not found yet."""
_UNKNOWN: Final = range(40400, 40500)
"""Confluent's error codes for a subject, a version or a schema that is not there."""
_LAG_S: Final = 3.0
"""Seconds for which a server that has not got a schema yet is asked again."""
_NO_WAIT_S: Final = 30.0
"""Seconds after a wait in vain (rule 4) during which no look-up waits."""
_MAY_PASS: Final = frozenset({408, 425, 429})


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes


Get = Callable[[str, float], Answer]
"""Gets a URL within so many seconds; raises ``SchemaRegistryDown`` if there is no answer."""


class SchemaReference(NamedTuple):
    """Another schema that a schema uses: the name by which it is used, and its subject and version."""

    name: str
    subject: str
    version: int


class RegisteredSchema(NamedTuple):
    """A schema as a registry returns it."""

    text: str
    """The schema: JSON, or a protobuf file as base64 of its descriptor."""
    references: tuple[SchemaReference, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaPath:
    """Path of a request for a schema, below a registry's base URL, and the schema's name for errors."""

    path: str
    shown: str
    """Name of the schema for errors, such as ``id 7``."""
    is_fixed: bool
    """Whether the path always leads to the same schema, as an id does."""

    @classmethod
    def of_id(cls, schema_id: int | UUID, *, serialized: bool) -> SchemaPath:
        """Return the path for a schema by its id or GUID; ``serialized`` asks for a protobuf descriptor."""
        kind = "guids" if isinstance(schema_id, UUID) else "ids"
        return cls(
            f"/schemas/{kind}/{schema_id}" + _query(serialized=serialized),
            f"{kind.rstrip('s')} {schema_id}",
            is_fixed=True,
        )

    @classmethod
    def of_reference(cls, reference: SchemaReference, *, serialized: bool) -> SchemaPath:
        """Return the path for the version of a subject that ``reference`` names, even if it was deleted.

        ``serialized`` asks for a protobuf descriptor.
        """
        path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
        query = _query(serialized=serialized)
        return cls(
            f"{path}{query}{'&' if query else '?'}deleted=true",
            f"version {reference.version} of subject {peer_text(reference.subject)}",
            is_fixed=False,
        )


def _query(*, serialized: bool) -> str:
    return "?format=serialized" if serialized else ""


class SchemaLookup:
    """Looks up schemas in one registry and keeps those that it found; used by any number of threads."""

    def __init__(
        self,
        urls: tuple[str, ...],
        get: Get,
        clock: Clock,
        sleep: Callable[[float], object],
        *,
        wait_s: float,
        request_timeout_s: float,
        not_found_s: float,
    ) -> None:
        """Set the registry and the time limits; no request is sent yet.

        Args:
            urls: Base URLs of one registry; the one that last returned a schema is asked first.
            get: Sends a request.
            clock: Clock of deadlines.
            sleep: Waits before another try.
            wait_s: Maximum time of one look-up in seconds, with its repetitions.
            request_timeout_s: Maximum time of one request in seconds.
            not_found_s: Seconds for which an id counts as unknown, without a new request, after a look-up in
                vain.
        """
        self._urls = urls
        self._get = get
        self._clock = clock
        self._sleep = sleep
        self._wait_s = wait_s
        self._request_timeout_s = request_timeout_s
        self._not_found_s = not_found_s
        self._lock = threading.Lock()
        self._found: dict[SchemaPath, RegisteredSchema] = {}
        """Schemas by paths that are fixed."""
        self._unfinished: dict[RegisteredSchema, dict[SchemaPath, RegisteredSchema]] = {}
        """Schemas that were found for one that refers to them, while others of its references are missing."""
        self._missing: dict[SchemaPath, float] = {}
        """Moments, on the monotonic clock, until which schemas count as unknown; the oldest comes first."""
        self._waits_from = 0.0
        """Moment, on the monotonic clock, from which look-ups wait again for a schema that is unknown."""
        self._asked: dict[SchemaPath, Future[RegisteredSchema]] = {}
        """Results of the requests under way, for which other threads wait."""
        renew_in_children(self)

    def renew(self) -> None:
        """Prepare for use in a child of ``fork()``: keep found schemas, forget requests under way.

        The parent's threads send those requests, so the child would get no answer.
        """
        self._lock = threading.Lock()
        self._asked = {}

    def schema(self, schema_id: int | UUID, *, serialized: bool = False) -> RegisteredSchema:
        """Return a schema by its id; ``serialized`` asks for a protobuf file's descriptor.

        Raises:
            SchemaNotFound: If the registry has no such schema.
            SchemaRegistryDown: If no answer with a schema came within ``wait_s``, or the request was refused.
        """
        return self._look_up(SchemaPath.of_id(schema_id, serialized=serialized), self._deadline())

    def with_references(
        self, schema: RegisteredSchema, *, serialized: bool = False
    ) -> Mapping[str, RegisteredSchema]:
        """Return the schemas that a schema uses, directly or through others, by name.

        In the result, a schema comes after those that it uses itself. ``serialized`` asks for descriptors of
        protobuf files.

        Raises:
            SchemaNotFound: If the registry lacks one of them.
            SchemaRegistryDown: If no answer with a schema came within ``wait_s``, or a request was refused.
        """
        deadline = self._deadline()
        kept = self._begun(schema)

        def look_up(reference: SchemaReference) -> RegisteredSchema:
            place = SchemaPath.of_reference(reference, serialized=serialized)
            if (known := kept.get(place)) is None:
                known = kept[place] = self._look_up(place, deadline)
            return known

        found: dict[str, RegisteredSchema] = {}
        try:
            self._add_references(schema, found, frozenset(), look_up)
        except (SchemaNotFound, SchemaRegistryDown):
            raise
        except BaseException:
            self._end(schema)
            raise
        self._end(schema)
        return found

    def _begun(self, schema: RegisteredSchema) -> dict[SchemaPath, RegisteredSchema]:
        """Return the schemas that earlier tries have found for ``schema``; the caller adds others."""
        with self._lock:
            kept = self._unfinished.setdefault(schema, {})
            if len(self._unfinished) > _MOST_UNFINISHED:
                del self._unfinished[next(iter(self._unfinished))]
            return kept

    def _end(self, schema: RegisteredSchema) -> None:
        with self._lock:
            self._unfinished.pop(schema, None)

    def _add_references(
        self,
        schema: RegisteredSchema,
        found: dict[str, RegisteredSchema],
        users: frozenset[str],
        look_up: Callable[[SchemaReference], RegisteredSchema],
    ) -> None:
        for reference in schema.references:
            if reference.name in found or reference.name in users:
                continue
            if len(found) + len(users) >= _MOST_REFERENCES:
                raise SchemaRegistryRefused(self._urls[0], f"a schema has over {_MOST_REFERENCES} references")
            used = look_up(reference)
            self._add_references(used, found, users | {reference.name}, look_up)
            found[reference.name] = used

    def _deadline(self) -> Deadline:
        return Deadline.after(self._clock, self._wait_s)

    def _look_up(self, place: SchemaPath, deadline: Deadline) -> RegisteredSchema:
        with self._lock:
            if (known := self._found.get(place)) is not None:
                return known
            if self._clock.monotonic_s() < self._missing.get(place, 0.0):
                raise SchemaNotFound(self._urls[0], place.shown)
            future = self._asked.get(place)
            is_ours = future is None
            if future is None:
                future = self._asked[place] = Future()
        return self._ask(place, future, deadline) if is_ours else self._wait_for(future, place, deadline)

    def _wait_for(
        self, future: Future[RegisteredSchema], place: SchemaPath, deadline: Deadline
    ) -> RegisteredSchema:
        try:
            return future.result(deadline.remaining_s())
        except FutureTimeout:
            raise SchemaRegistryDown(
                self._urls[0], f"the time limit passed while another thread asked for {place.shown}"
            ) from None
        except (SchemaNotFound, SchemaRegistryDown) as error:
            # Each thread raises its own copy, since raising an error changes it.
            raise copy(error) from error

    def _ask(
        self, place: SchemaPath, future: Future[RegisteredSchema], deadline: Deadline
    ) -> RegisteredSchema:
        """Ask the registry for a schema, and give the result to the threads that wait for ``future``."""
        with self._lock:
            waits = place not in self._missing and self._clock.monotonic_s() >= self._waits_from
        unknown_since: float | None = None

        def is_tried_again(error: RocketMQError) -> bool:
            nonlocal unknown_since
            if not isinstance(error, SchemaNotFound):
                return error.retryable
            now = self._clock.monotonic_s()
            unknown_since = now if unknown_since is None else unknown_since
            return waits and now - unknown_since < _LAG_S

        try:
            schema = call_with_retry(
                lambda: self._ask_all(place, deadline),
                _RETRIES,
                deadline,
                self._sleep,
                is_tried_again=is_tried_again,
            )
        except BaseException as error:
            with self._lock:
                self._asked.pop(place, None)
                if isinstance(error, SchemaNotFound):
                    self._note_missing(place, waited=waits)
            future.set_exception(
                error if isinstance(error, Exception) else SchemaRegistryDown(self._urls[0], "interrupted")
            )
            raise
        with self._lock:
            if place.is_fixed:
                self._found[place] = schema
            self._asked.pop(place, None)
        future.set_result(schema)
        return schema

    def _note_missing(self, place: SchemaPath, *, waited: bool) -> None:
        now = self._clock.monotonic_s()
        if waited:
            self._waits_from = now + _NO_WAIT_S
        self._missing.pop(place, None)
        self._missing[place] = now + self._not_found_s
        if len(self._missing) > _MOST_MISSING:
            del self._missing[next(iter(self._missing))]

    def _ask_all(self, place: SchemaPath, deadline: Deadline) -> RegisteredSchema:
        """Ask one server after the other, and return the first schema.

        Raises:
            SchemaNotFound: If no server returns the schema, and at least one answers that it has none.
            SchemaRegistryDown: If no server returns the schema; this is the error of the first server.
        """
        problem: SchemaNotFound | SchemaRegistryDown | None = None
        for url in self._urls:
            timeout_s = min(self._request_timeout_s, deadline.remaining_s())
            if timeout_s <= 0 and problem is not None:
                break
            try:
                schema = _schema_in(url, place, self._get(url + place.path, timeout_s))
            except SchemaNotFound as unknown:
                problem = unknown
            except SchemaRegistryDown as down:
                logger.debug("! schema registry url=%s error=%s", url, down)
                problem = problem or down
            else:
                if url != self._urls[0]:
                    self._urls = (url, *(each for each in self._urls if each != url))
                return schema
        assert problem is not None
        raise problem


def _schema_in(url: str, place: SchemaPath, answer: Answer) -> RegisteredSchema:
    """Return the schema in a registry's answer.

    Raises:
        SchemaNotFound: If the registry itself answers that it has no such schema.
        SchemaRegistryRefused: If only an operator can change the answer.
        SchemaRegistryDown: For all other answers without a schema.
    """
    status = answer.status
    value = _json(answer.body)
    if status == 200:
        schema = _registered(value)
        if schema is None:
            raise SchemaRegistryDown(
                url, f"the answer for {place.shown} is not a schema: {_shown(answer.body)}"
            )
        return schema
    if status == 404 and value.get("error_code") in _UNKNOWN:
        raise SchemaNotFound(url, place.shown)
    detail = f"HTTP status {status} for {place.shown}: {_shown(answer.body)}"
    if status >= 500 or status in _MAY_PASS:
        raise SchemaRegistryDown(url, detail)
    raise SchemaRegistryRefused(url, detail)


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _registered(value: Mapping[str, Any]) -> RegisteredSchema | None:
    """Return the schema in an answer; None if there is none."""
    text = value.get("schema")
    listed = value.get("references") or []
    if not isinstance(text, str) or not isinstance(listed, list):
        return None
    references = [_reference(each) for each in listed]
    if None in references:
        return None
    return RegisteredSchema(text, tuple(each for each in references if each is not None))


def _reference(value: object) -> SchemaReference | None:
    match value:
        case {"name": str(name), "subject": str(subject), "version": int(version)}:
            return SchemaReference(name, subject, version)
        case _:
            return None


def _shown(body: bytes) -> str:
    return peer_text(body[:200].decode("utf-8", "replace"))
