"""fastjson's odd keys: read in any mixture with standard JSON, written as Java writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.bodies import dumps_standard
from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.wire.fastjson import ObjectMap, dumps_java, loads
from tests.helpers.golden import RecordedCommand, recorded_commands

JSON_BODIES = [
    command for command in recorded_commands() if command.is_body_whole and command.body[:1] in (b"{", b"[")
]
QUEUE = {"brokerName": "b", "queueId": 3, "topic": "T"}

texts = st.text() | st.sampled_from(
    ['{"a":1}:', "}:{", "{{", '"', "\\", '\\"', "{0:", ",1:", "[{", "}}", "\n"]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
flat_maps = st.dictionaries(texts, scalars, min_size=1, max_size=3)


def object_maps(inner: st.SearchStrategy) -> st.SearchStrategy:
    keys = flat_maps | st.lists(scalars, max_size=2) | texts
    return st.builds(
        lambda first, rest: ObjectMap([first, *rest]),
        st.tuples(flat_maps, inner),
        st.lists(st.tuples(keys, inner), max_size=3),
    )


values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3) | object_maps(inner)
    ),
    max_leaves=15,
)


@given(values)
def test_what_is_written_as_java_does_is_read_back(value: ObjectMap | None) -> None:
    assert loads(dumps_java(value)) == value


@given(st.dictionaries(st.integers(-(1 << 63), (1 << 63) - 1), values, max_size=4))
def test_bare_integer_keys_read_like_quoted_ones(members: dict[int, Any]) -> None:
    as_text = {str(key): value for key, value in members.items()}

    assert loads(dumps_java(members)) == as_text
    assert loads(dumps_java([{"a": members}])) == [{"a": as_text}]


@given(st.recursive(scalars, lambda i: st.lists(i) | st.dictionaries(texts, i), max_leaves=20))
def test_standard_json_is_read_as_json_loads_does(value: Any) -> None:
    assert loads(json.dumps(value, indent=2).encode()) == value
    assert loads(dumps_standard(value)) == value


@given(values, st.data())
def test_space_between_the_tokens_does_not_matter(value: Any, data: st.DataObject) -> None:
    """The tokens are found by the JSON scanner itself, so that this test shares no rule with the reader."""
    written = dumps_java(value).decode()
    spaced, at = "", 0
    while at < len(written):
        try:
            _, end = json.JSONDecoder().raw_decode(written, at)
            if written[at] in "{[":
                end = at + 1
        except json.JSONDecodeError:
            end = at + 1
        spaced += written[at:end] + data.draw(st.sampled_from(["", " ", "\n\t", "\r\n "]))
        at = end

    assert loads(spaced.encode()) == value


@pytest.mark.parametrize("command", JSON_BODIES, ids=str)
def test_every_recorded_json_body_is_read_and_no_part_of_it_is(command: RecordedCommand) -> None:
    """A2: whatever Java sends; every truncation raises."""
    value = loads(command.body)

    assert value == loads(b" " + command.body + b"\n")
    for end in range(len(command.body)):
        with pytest.raises(RemoteProtocolError):
            loads(command.body[:end])


def test_the_recorded_bodies_hold_both_kinds_of_odd_keys() -> None:
    bodies = b"".join(command.body for command in JSON_BODIES)

    assert b'{0:"' in bodies
    assert b'{{"brokerName"' in bodies


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{0:"a"}', {"0": "a"}),
        ('{"0":"a"}', {"0": "a"}),
        ("{-1:1,12:2}", {"-1": 1, "12": 2}),
        (' { 0 : "a" , "1" : 2 } ', {"0": "a", "1": 2}),
        ('{"1":2,0:"a"}', {"1": 2, "0": "a"}),
        ("{0:1,0:2}", {"0": 2}),
        ('{0:1,"0":2}', {"0": 2}),
        ("{}", {}),
        ("[{},{0:[]}]", [{}, {"0": []}]),
        ('{{"q":1}:2}', ObjectMap([({"q": 1}, 2)])),
        ('{{"q":1}:2,{"q":1}:3}', ObjectMap([({"q": 1}, 2), ({"q": 1}, 3)])),
        ("{[1,2]:3}", ObjectMap([([1, 2], 3)])),
        ("{{}:1}", ObjectMap([({}, 1)])),
        ("{{0:1}:{1:2}}", ObjectMap([({"0": 1}, {"1": 2})])),
        ("{{{}:1}:2}", ObjectMap([(ObjectMap([({}, 1)]), 2)])),
        ('{"a":1,{"q":1}:2,5:6}', ObjectMap([("a", 1), ({"q": 1}, 2), ("5", 6)])),
        ('{{"q":"}:{"}:"{0:1}"}', ObjectMap([({"q": "}:{"}, "{0:1}")])),
        ('{{"q":"\\"}:"}:1}', ObjectMap([({"q": '"}:'}, 1)])),
        ('"{0:1}"', "{0:1}"),
        ('{"a\tb":1}', {"a\tb": 1}),
        ("7", 7),
    ],
)
def test_odd_keys_are_read(text: str, expected: Any) -> None:
    value = loads(text.encode())

    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{0:1",
        b"{0:1}}",
        b"{0:1} 2",
        b"{0:1,}",
        b"{,}",
        b"{0}",
        b"{0:}",
        b"{:1}",
        b"{1.5:1}",
        b"{1e3:1}",
        b"{+1:1}",
        b"{- 1:1}",
        b"{true:1}",
        b"{null:1}",
        b"{abc:1}",
        b"{'a':1}",
        b"{0 1:1}",
        b"[{0:1},]",
        b"[{0:1} {0:1}]",
        b"{{}}",
        b"{{}:1]",
        b"{{}:1",
        b"[{{}:1}",
        b'{"a":NaN}',
        b"{0:Infinity}",
        b"{0:-Infinity}",
        b'{0:"a}',
        b'{"a":1}\0',
        b"{0:1}\0",
        b"\xff",
        b'{0:"\xe8\xae"}',
        b"\xef\xbb\xbf{}",
        b'{"a":' + b"9" * 5000 + b"}",
        b"{" + b"9" * 5000 + b":1}",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_what_is_no_json_even_in_the_wider_sense_raises(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"A body of {len(body)} bytes is not JSON"):
        loads(body)


@given(st.binary(max_size=60) | st.text('{}[]:,"\\01-a \n', max_size=40).map(str.encode))
def test_random_bytes_raise_nothing_but_remote_protocol_errors(body: bytes) -> None:
    try:
        loads(body)
    except RemoteProtocolError as exc:
        assert str(exc)  # noqa: PT017 - most inputs raise, some do not


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b"{" * 1_000_000,
        b"{0:" * 1_000_000,
        b"[{0:" * 500_000,
        b"{{0:1}:" * 500_000,
        b"[" + b'{"a":[1,{0:1}]},' * 300_000 + b"1]",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_hostile_body_costs_little_time(body: bytes) -> None:
    """Without its bounds the last one would take hours, which pytest does not wait for."""
    with pytest.raises(RemoteProtocolError):
        loads(body)


def test_java_s_spelling_of_odd_keys_is_written() -> None:
    value = {"t": ObjectMap([(QUEUE, {"maxOffset": 1})]), "a": {0: "x", -1: "订单"}, "e": ObjectMap()}

    assert dumps_java(value).decode() == (
        '{"t":{{"brokerName":"b","queueId":3,"topic":"T"}:{"maxOffset":1}},"a":{0:"x",-1:"订单"},"e":{}}'
    )


def test_standard_json_is_sorted_quoted_and_ascii() -> None:
    assert dumps_standard({"b": {10: 1, 9: "订"}, "a": True}) == b'{"a":true,"b":{"9":"\\u8ba2","10":1}}'


@pytest.mark.parametrize(
    "value",
    [{1.5: 1}, {None: 1}, {True: 1}, {(1, 2): 1}, b"x", object(), float("nan"), "half \ud800", {"\udc00": 1}],
    ids=ascii,
)
def test_a_value_without_a_json_form_raises(value: Any) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be written as JSON"):
        dumps_java([value])
