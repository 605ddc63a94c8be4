from __future__ import annotations

import pickle
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import (
    BadRecord,
    OptionError,
    SchemaNotFound,
    SchemaRegistryDown,
    SchemaRegistryRefused,
)
from pyspark_rocketmq.schemas.http_lookup import HttpGet, lookup_of
from pyspark_rocketmq.schemas.lookup import Answer, RegisteredSchema, SchemaLookup, SchemaReference
from pyspark_rocketmq.schemas.registry import SchemaRegistry
from tests.helpers.certificates import Authority
from tests.helpers.fake_clock import FakeClock
from tests.helpers.forked import in_child
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.schemas.fake_registry import FakeRegistry, Reaction, answers, drips, first, hangs_until
from tests.schemas.frames import GUID

SECRET = "open-sesame-4711"


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as running:
        running.add(7, "string")
        yield running


def lookup(registry: FakeRegistry, **settings: Any) -> SchemaLookup:
    return lookup_of(registry.client(**settings).settings)


def scripted(
    clock: FakeClock, get: Callable[[str], Answer], urls: tuple[str, ...] = ("http://a",)
) -> SchemaLookup:
    return SchemaLookup(
        urls,
        lambda url, _: get(url),
        clock,
        clock.advance,
        wait_s=10.0,
        request_timeout_s=5.0,
        not_found_s=10.0,
    )


FOUND = Answer(200, b'{"schema": "\\"string\\""}')
UNKNOWN = Answer(404, b'{"error_code": 40403, "message": "Schema 9 not found"}')


def test_a_schema_is_asked_for_once(registry: FakeRegistry) -> None:
    """K4: an id's schema never changes."""
    schemas = lookup(registry)

    assert [schemas.schema(7) for _ in range(3)] == [RegisteredSchema("string")] * 3
    assert registry.requests == ["/schemas/ids/7"]


def test_a_guid_and_a_descriptor_have_paths_of_their_own(registry: FakeRegistry) -> None:
    """K4: Confluent's second version, and protobuf."""
    registry.schemas[f"guids/{GUID}"] = {"schema": "guid"}
    schemas = lookup(registry)

    assert schemas.schema(UUID(str(GUID))).text == "guid"
    assert schemas.schema(7, serialized=True).text == "string"
    assert registry.requests == [f"/schemas/guids/{GUID}", "/schemas/ids/7?format=serialized"]


def test_a_base_url_may_have_a_path(registry: FakeRegistry) -> None:
    """K4: Apicurio serves Confluent's form below a path."""
    client = SchemaRegistry(registry.url + "/apis/ccompat/v7/", wait_s=PATIENCE_S)

    assert lookup_of(client.settings).schema(7).text == "string"
    assert registry.requests == ["/apis/ccompat/v7/schemas/ids/7"]


def test_references_come_used_ones_first(registry: FakeRegistry) -> None:
    """K4: a schema that uses others; a circle ends."""
    registry.add(8, "c", references=[{"name": "b", "subject": "s/b", "version": 2}])
    registry.schemas["subjects/s%2Fb/versions/2"] = {
        "schema": "b",
        "references": [{"name": "a", "subject": "a", "version": 1}],
    }
    registry.schemas["subjects/a/versions/1"] = {
        "schema": "a",
        "references": [{"name": "b", "subject": "s/b", "version": 2}],
    }
    schemas = lookup(registry)

    found = schemas.with_references(schemas.schema(8))

    assert [(name, schema.text) for name, schema in found.items()] == [("a", "a"), ("b", "b")]
    assert found["b"].references == (SchemaReference("a", "a", 1),)
    assert registry.requests[1] == "/subjects/s%2Fb/versions/2?deleted=true"


@pytest.mark.parametrize(
    ("credentials", "header"),
    [
        ({}, None),
        ({"user": "reader", "password": SECRET}, "Basic cmVhZGVyOm9wZW4tc2VzYW1lLTQ3MTE="),
        ({"token": SECRET}, f"Bearer {SECRET}"),
    ],
)
def test_credentials_are_sent_and_shown_nowhere(
    registry: FakeRegistry, credentials: dict[str, str], header: str | None
) -> None:
    """K4, A5: basic and bearer authentication."""
    client = registry.client(**credentials)
    registry.reaction = first(1, answers(403, {"message": "no"}))

    with pytest.raises(SchemaRegistryRefused) as refused:
        lookup_of(client.settings).schema(7)

    assert registry.authorizations == [header]
    assert SECRET not in f"{client!r} {client.settings!r} {refused.value} {refused.value!r}"


def test_a_redirect_is_not_followed(registry: FakeRegistry) -> None:
    """K4: credentials go to no other server."""

    def redirect(handler: Any) -> bool:
        handler.send_response(302)
        handler.send_header("Location", f"{registry.url}/schemas/ids/7")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    registry.reaction = first(1, redirect)

    with pytest.raises(SchemaRegistryRefused, match="status 302"):
        lookup(registry, token=SECRET).schema(7)

    assert len(registry.requests) == 1


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def secured(authority: Authority) -> Iterator[FakeRegistry]:
    issued = authority.issue("registry")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    with FakeRegistry(context) as running:
        running.add(7, "string")
        yield running


def test_tls_trusts_the_authority_of_ca_file_only(secured: FakeRegistry, authority: Authority) -> None:
    """K4: a certificate that is not trusted is no registry that is away."""
    assert lookup(secured, ca_file=str(authority.own.certificate)).schema(7).text == "string"
    with pytest.raises(SchemaRegistryRefused, match=r"not trusted.*ca_file"):
        lookup(secured).schema(7)


def test_a_missing_authority_makes_no_bad_record(registry: FakeRegistry, tmp_path: Path) -> None:
    """K4: the error names the file and the argument; on an executor the messages wait."""
    with pytest.raises(SchemaRegistryRefused, match=r"nowhere\.pem cannot be used.*ca_file"):
        lookup(registry, ca_file=str(tmp_path / "nowhere.pem")).schema(7)


@pytest.mark.parametrize(
    ("url", "settings", "problem"),
    [
        ("", {}, "not the base URL"),
        ([], {}, "url is empty"),
        ("ftp://a", {}, "ftp://a is not the base URL"),
        ("http://u:p@a", {}, "contains a user"),
        ("http://a?b=c", {}, "a query or a fragment"),
        ("http://a", {"user": "u"}, "belong together"),
        ("http://a", {"user": "u", "password": "p", "token": "t"}, "exclude each other"),
        ("http://a", {"wait_s": 0}, "above 0"),
        ("http://a", {"token": f"{SECRET}\n"}, "token contains"),
        ("http://a", {"token": f"{SECRET}\u4e00"}, "token contains"),
    ],
)
def test_wrong_settings_are_refused(url: str | list[str], settings: dict[str, Any], problem: str) -> None:
    """K4, A5: before anything is asked, and without a secret; a token of a file often ends with its line."""
    with pytest.raises(OptionError, match=problem) as refused:
        SchemaRegistry(url, **settings)

    assert "u:p@" not in str(refused.value)
    assert SECRET not in f"{refused.value} {refused.value!r}"


def test_a_registry_that_comes_back_is_waited_for(registry: FakeRegistry) -> None:
    """K4: refused connections, an overload, a proxy's page; then the schema."""
    clock = FakeClock()
    replies: Iterator[Answer | SchemaRegistryDown] = iter(
        [SchemaRegistryDown("a", "refused"), Answer(503, b""), Answer(200, b"<html>"), FOUND]
    )

    def get(_: str) -> Answer:
        reply: Answer | SchemaRegistryDown = next(replies)
        if isinstance(reply, SchemaRegistryDown):
            raise reply
        return reply

    assert scripted(clock, get).schema(7).text == '"string"'
    assert 0.5 < clock.monotonic_s() < 10


def impatient(registry: FakeRegistry) -> SchemaLookup:
    """Real requests, which have time; between them it passes only by the pauses."""
    clock = FakeClock()
    return SchemaLookup(
        (registry.url,),
        HttpGet(registry.client().settings),
        clock,
        clock.advance,
        wait_s=0.5,
        request_timeout_s=PATIENCE_S,
        not_found_s=0.0,
    )


@pytest.mark.parametrize(
    ("reaction", "detail"),
    [
        (answers(500, {"error_code": 50001, "message": "store down"}), "status 500.*store down"),
        (answers(200, b"<html>log in</html>"), "not a schema: <html>log in"),
        (answers(200, {"schema": 7}), "not a schema"),
        (answers(200, {"schema": "x", "references": [1]}), "not a schema"),
        (answers(200, b"[" * 100_000), "not a schema"),
        (answers(200, b"\xff\x00"), "not a schema"),
        (answers(429, {}), "status 429"),
    ],
)
def test_any_other_answer_means_that_the_registry_is_away(
    registry: FakeRegistry, reaction: Reaction, detail: str
) -> None:
    """K4: broken, or not a registry; never a bad record."""
    registry.reaction = reaction
    schemas = impatient(registry)

    with pytest.raises(SchemaRegistryDown, match=f"{registry.url}.*(?:{detail})") as caught:
        schemas.schema(7)

    assert caught.value.retryable
    assert not isinstance(caught.value, BadRecord)
    assert len(registry.requests) > 1
    registry.reaction = None
    assert schemas.schema(7).text == "string"


@pytest.mark.parametrize("reaction", [drips(200), hangs_until(threading.Event())])
def test_a_slow_answer_is_not_waited_for_beyond_its_time(registry: FakeRegistry, reaction: Reaction) -> None:
    """K4: a server that does not answer, and an answer that does not end."""
    registry.reaction = reaction

    with pytest.raises(SchemaRegistryDown, match=r"too slowly|timed out"):
        lookup(registry, wait_s=0.5, request_timeout_s=0.2).schema(7)


@pytest.mark.parametrize("status", [404, 503])
def test_a_slow_report_of_an_error_is_not_waited_for_beyond_its_time(
    registry: FakeRegistry, status: int
) -> None:
    """K4: its body is only for the error's text, and whether a schema is unknown stays open."""
    registry.reaction = drips(status)
    found: list[Exception] = []

    def look_up() -> None:
        with pytest.raises(SchemaRegistryDown, match=f"status {status}") as raised:
            lookup(registry, wait_s=0.5, request_timeout_s=0.2).schema(7)
        found.append(raised.value)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(10)
    assert len(found) == 1


def test_nobody_listens(registry: FakeRegistry) -> None:
    """K4: refused connections."""
    registry.stop()

    with pytest.raises(SchemaRegistryDown, match=f"{registry.url} is not available.*refused"):
        impatient(registry).schema(7)


def test_an_answer_without_end_is_refused(registry: FakeRegistry) -> None:
    """K4: no answer takes all memory."""
    registry.reaction = answers(200, b" " * ((16 << 20) + 1))

    with pytest.raises(SchemaRegistryRefused, match="more than 16 MiB"):
        lookup(registry).schema(7)


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_an_unknown_schema_makes_a_bad_record(registry: FakeRegistry, code: int) -> None:
    """K4: the registry's own word."""
    registry.reaction = answers(404, {"error_code": code, "message": "not found"})

    with pytest.raises(SchemaNotFound, match=f"{registry.url} has no schema id 9") as caught:
        lookup(registry).schema(9)

    assert isinstance(caught.value, BadRecord)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert set(registry.requests) == {"/schemas/ids/9"}


@pytest.mark.parametrize("body", [{"error_code": 404, "message": "HTTP 404 Not Found"}, b"<h1>404</h1>", []])
def test_a_404_of_something_else_makes_no_bad_record(registry: FakeRegistry, body: object) -> None:
    """K4: a wrong path would make all messages bad records."""
    registry.reaction = answers(404, body)

    with pytest.raises(SchemaRegistryRefused, match="status 404"):
        lookup(registry).schema(7)


def test_that_a_schema_is_unknown_is_believed_for_a_while() -> None:
    """K4: then it is asked for again, for it may have been registered meanwhile."""
    clock = FakeClock()
    asked: list[str] = []
    answer = UNKNOWN

    def get(url: str) -> Answer:
        asked.append(url)
        return answer

    schemas = scripted(clock, get)
    for _ in range(3):
        with pytest.raises(SchemaNotFound):
            schemas.schema(9)
    first = len(asked)
    clock.advance(10.1)
    for _ in range(2):
        with pytest.raises(SchemaNotFound):
            schemas.schema(9)
    assert len(asked) == first + 1
    clock.advance(10.1)
    answer = FOUND
    assert schemas.schema(9).text == '"string"'
    assert asked == ["http://a/schemas/ids/9"] * (first + 2)


@pytest.mark.parametrize("is_reference", [False, True])
def test_a_server_may_not_have_got_a_new_schema_yet(is_reference: bool) -> None:
    """K4: a message may be read before the registry's followers know its schema, also after an outage."""
    clock = FakeClock()
    began = clock.monotonic_s()

    def get(url: str) -> Answer:
        if clock.monotonic_s() < began + 4.0:
            raise SchemaRegistryDown(url, "refused")
        return UNKNOWN if clock.monotonic_s() < began + 6.0 else FOUND

    schemas = scripted(clock, get)
    if is_reference:
        user = RegisteredSchema("a", (SchemaReference("b", "b", 1),))
        assert [each.text for each in schemas.with_references(user).values()] == ['"string"']
    else:
        assert schemas.schema(9).text == '"string"'


def test_foreign_ids_make_nobody_wait_again_and_again() -> None:
    """K4: after a wait in vain, no unknown id is waited for in the next half minute."""
    clock = FakeClock()
    schemas = scripted(clock, lambda _: UNKNOWN)
    took: list[float] = []
    for number in range(1, 201):
        began = clock.monotonic_s()
        with pytest.raises(SchemaNotFound):
            schemas.schema(number)
        took.append(clock.monotonic_s() - began)
        clock.advance(0.5)

    waited = [each for each in took if each]
    assert len(waited) == 4
    assert max(waited) < 4.0


def test_an_id_that_stays_unknown_makes_a_look_up_wait_once() -> None:
    """K4: no follower lags for so long."""
    clock = FakeClock()
    schemas = scripted(clock, lambda _: UNKNOWN)
    took: list[float] = []
    for _ in range(10):
        began = clock.monotonic_s()
        with pytest.raises(SchemaNotFound):
            schemas.schema(9)
        took.append(clock.monotonic_s() - began)
        clock.advance(40.0)

    assert [each > 0 for each in took] == [True] + [False] * 9


def test_unknown_ids_do_not_fill_the_memory() -> None:
    """K4: ids come from foreign bytes."""
    schemas = scripted(FakeClock(), lambda _: UNKNOWN)

    for number in range(1, 10_102):
        with pytest.raises(SchemaNotFound):
            schemas.schema(number)

    assert len(schemas._missing) == 10_000


def test_another_server_of_the_registry_is_asked() -> None:
    """K4: one that is away, and one that lags behind; the one that answered is asked first afterwards."""
    asked: list[str] = []

    def get(url: str) -> Answer:
        asked.append(url.partition("/schemas")[0])
        if url.startswith("http://a"):
            raise SchemaRegistryDown(url, "refused")
        return UNKNOWN if url.startswith("http://b") else FOUND

    schemas = scripted(FakeClock(), get, ("http://a", "http://b", "http://c"))

    assert schemas.schema(7).text == '"string"'
    assert schemas.schema(8).text == '"string"'
    assert asked == ["http://a", "http://b", "http://c", "http://c"]


def test_a_schema_is_unknown_if_no_server_that_answers_has_it() -> None:
    """K4: servers that are away have no say."""

    def get(url: str) -> Answer:
        if url.startswith("http://b"):
            raise SchemaRegistryDown(url, "refused")
        return UNKNOWN

    with pytest.raises(SchemaNotFound):
        scripted(FakeClock(), get, ("http://b", "http://a")).schema(9)


def test_threads_share_one_request(registry: FakeRegistry) -> None:
    """K4: a batch's tasks begin with the same new schema."""
    release = threading.Event()
    registry.reaction = hangs_until(release)
    schemas = lookup(registry)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(schemas.schema, 7) for _ in range(8)]
        wait_until(lambda: registry.requests)
        release.set()

        assert [each.result(PATIENCE_S).text for each in waiting] == ["string"] * 8

    assert len(registry.requests) == 1


def test_threads_share_one_failure_and_each_raises_its_own(registry: FakeRegistry) -> None:
    """K4: an error's traceback belongs to one thread."""
    release = threading.Event()

    def react(_: Any) -> bool:
        assert release.wait(PATIENCE_S)
        return False

    registry.reaction = react
    schemas = lookup(registry, not_found_s=100.0)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(schemas.schema, 9) for _ in range(4)]
        wait_until(lambda: registry.requests)
        release.set()
        errors = [each.exception(PATIENCE_S) for each in waiting]

    assert {type(error) for error in errors} == {SchemaNotFound}
    assert len({id(error) for error in errors}) == 4


def test_a_thread_does_not_wait_for_another_beyond_its_time(registry: FakeRegistry) -> None:
    """K4: every wait has a deadline."""
    release = threading.Event()
    registry.reaction = hangs_until(release)
    schemas = lookup(registry, wait_s=0.3, request_timeout_s=PATIENCE_S)
    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(schemas.schema, 7)
        wait_until(lambda: registry.requests)
        with pytest.raises(SchemaRegistryDown, match=r"another thread asked|timed out"):
            schemas.schema(7)
        release.set()
        assert isinstance(asking.exception(PATIENCE_S), SchemaRegistryDown | None)


def test_a_child_of_fork_asks_for_itself(registry: FakeRegistry) -> None:
    """K4: the thread that asks is only in the parent, while what was found is in both."""
    schemas = lookup(registry)
    schemas.schema(7)
    registry.add(8, "long")
    release = threading.Event()
    registry.reaction = first(1, hangs_until(release))
    with ThreadPoolExecutor(1) as pool:
        parents = pool.submit(schemas.schema, 8)
        wait_until(lambda: len(registry.requests) == 2)

        assert in_child(lambda: (schemas.schema(7).text, schemas.schema(8).text)) == ("string", "long")

        release.set()
        assert parents.result(PATIENCE_S).text == "long"
    assert len(registry.requests) == 3


def test_a_process_keeps_what_it_found_from_batch_to_batch(registry: FakeRegistry) -> None:
    """K4: a listener is unpickled in each micro-batch."""
    client = registry.client(token=SECRET)
    lookup_of(pickle.loads(pickle.dumps(client)).settings).schema(7)
    lookup_of(pickle.loads(pickle.dumps(client)).settings).schema(7)

    assert registry.requests == ["/schemas/ids/7"]
    assert registry.authorizations == [f"Bearer {SECRET}"]


def test_a_schema_with_references_without_end_is_refused() -> None:
    """K4: a registry's answers are foreign bytes, too."""

    def get(url: str) -> Answer:
        number = int(url.rpartition("/")[2].partition("?")[0])
        body = f'{{"schema": "s", "references": [{{"name": "{number}", "subject": "s", "version": {number + 1}}}]}}'
        return Answer(200, body.encode())

    schemas = scripted(FakeClock(), get)

    with pytest.raises(SchemaRegistryRefused, match="over 200 references"):
        schemas.with_references(schemas.schema(1))


def test_a_version_that_came_again_with_another_schema_is_asked_for_again(registry: FakeRegistry) -> None:
    """K4: after a permanent deletion a subject's numbers begin again, while ids never do."""
    schemas = lookup(registry)
    found: list[str] = []
    for number, text in ((8, "old"), (9, "new")):
        registry.add(number, f"user of {text}", references=[{"name": "b", "subject": "b", "version": 1}])
        registry.schemas["subjects/b/versions/1"] = {"schema": text}
        found.append(schemas.with_references(schemas.schema(number))["b"].text)

    assert found == ["old", "new"]


def test_the_next_try_goes_on_from_the_references_that_were_found() -> None:
    """K4: else a slow registry with many references would never be through in time; one user's are no other's."""
    clock = FakeClock()
    answered: list[str] = []

    def get(url: str, timeout_s: float) -> Answer:
        clock.advance(max(0.0, min(4.0, timeout_s)))
        if timeout_s < 4.0:
            raise SchemaRegistryDown(url, "timed out")
        answered.append(url)
        return FOUND

    schemas = SchemaLookup(
        ("http://a",), get, clock, clock.advance, wait_s=10.0, request_timeout_s=5.0, not_found_s=10.0
    )
    references = tuple(SchemaReference(f"r{number}", f"r{number}", 1) for number in range(7))

    for text in ("a", "b"):
        for _ in range(3):
            with pytest.raises(SchemaRegistryDown):
                schemas.with_references(RegisteredSchema(text, references))
        found = schemas.with_references(RegisteredSchema(text, references))
        assert list(found) == [each.name for each in references]

    assert len(answered) == 2 * len(set(answered)) == 14
    assert schemas._unfinished == {}


def test_an_unknown_reference_does_not_make_each_message_ask_for_the_others() -> None:
    """K4: each message of its user tries again, and only the unknown one is asked for, once in a while."""
    clock = FakeClock()
    asked: list[str] = []

    def get(url: str) -> Answer:
        asked.append(url)
        return UNKNOWN if "/r9/" in url else FOUND

    schemas = scripted(clock, get)
    user = RegisteredSchema("user", tuple(SchemaReference(f"r{n}", f"r{n}", 1) for n in range(10)))
    with pytest.raises(SchemaNotFound):
        schemas.with_references(user)
    assert len({url for url in asked if "/r9/" not in url}) == 9
    for later in ([], ["/r9/"]):
        asked.clear()
        for _ in range(100):
            with pytest.raises(SchemaNotFound):
                schemas.with_references(user)
        assert [url.partition("/subjects")[2][:4] for url in asked] == later
        clock.advance(10.1)


@pytest.mark.parametrize("is_away", [False, True])
def test_references_of_many_schemas_do_not_fill_the_memory(is_away: bool) -> None:
    """K4: those of schemas that cannot be used yet, since one reference is unknown or the registry is away."""
    clock = FakeClock()

    def get(url: str) -> Answer:
        if "/b/" not in url:
            return FOUND
        if is_away:
            raise SchemaRegistryDown(url, "refused")
        return UNKNOWN

    schemas = scripted(clock, get)
    both = tuple(SchemaReference(name, name, 1) for name in "ab")
    for number in range(100):
        with pytest.raises(SchemaRegistryDown if is_away else SchemaNotFound):
            schemas.with_references(RegisteredSchema(f"user {number}", both))
    assert len(schemas._unfinished) == 64


def test_the_clock_of_production_is_the_systems(registry: FakeRegistry) -> None:
    """K4: deadlines of look-ups."""
    assert isinstance(lookup(registry)._clock, SystemClock)
