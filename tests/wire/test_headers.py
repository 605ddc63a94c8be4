"""Ext fields against recorded headers, and what happens to values that are missing or wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import given
from hypothesis import strategies as st

from broker_sim import request_headers as broker_headers
from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.wire.codes import PullSysFlag
from pyspark_rocketmq.wire.command import decode_frame
from pyspark_rocketmq.wire.requests import admin as admin_headers
from pyspark_rocketmq.wire.requests import headers
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields, to_ext_fields
from tests.helpers.golden import recorded_commands

REQUESTS = {
    12: broker_headers.QueryMessageRequestHeader,
    33: broker_headers.ViewMessageRequestHeader,
    203: headers.GroupRequestHeader,
    207: broker_headers.DeleteSubscriptionGroupRequestHeader,
    208: broker_headers.GetConsumeStatsRequestHeader,
    215: headers.TopicRequestHeader,
    221: admin_headers.GetConsumerStatusRequestHeader,
    223: admin_headers.GetConsumerStatusRequestHeader,
    300: headers.TopicRequestHeader,
    307: admin_headers.GetConsumerRunningInfoRequestHeader,
    309: admin_headers.ConsumeMessageDirectlyRequestHeader,
    351: headers.TopicRequestHeader,
    10: broker_headers.SendMessageRequestHeader,
    11: headers.PullMessageRequestHeader,
    14: headers.QueryConsumerOffsetRequestHeader,
    15: headers.UpdateConsumerOffsetRequestHeader,
    17: headers.CreateTopicRequestHeader,
    29: headers.SearchOffsetRequestHeader,
    30: headers.QueueRequestHeader,
    31: headers.QueueRequestHeader,
    32: headers.QueueRequestHeader,
    35: headers.UnregisterClientRequestHeader,
    36: headers.ConsumerSendMsgBackRequestHeader,
    37: headers.EndTransactionRequestHeader,
    38: headers.GroupRequestHeader,
    39: headers.CheckTransactionStateRequestHeader,
    40: headers.GroupRequestHeader,
    105: headers.GetRouteInfoRequestHeader,
    202: headers.TopicRequestHeader,
    220: headers.ResetOffsetRequestHeader,
    222: headers.ResetOffsetRequestHeader,
    310: headers.SendMessageRequestHeaderV2,
    320: headers.SendMessageRequestHeaderV2,
    361: headers.PullMessageRequestHeader,
}
PULLED = (0, 19, 20, 21)
STORED = (0, 10, 11, 12)
RESPONSES = {
    10: (headers.SendMessageResponseHeader, STORED),
    11: (headers.PullMessageResponseHeader, PULLED),
    14: (headers.OffsetResponseHeader, (0,)),
    29: (headers.OffsetResponseHeader, (0,)),
    30: (headers.OffsetResponseHeader, (0,)),
    31: (headers.OffsetResponseHeader, (0,)),
    310: (headers.SendMessageResponseHeader, STORED),
    320: (headers.SendMessageResponseHeader, STORED),
    361: (headers.PullMessageResponseHeader, PULLED),
}
HEADER_CLASSES = [
    value
    for module in (headers, admin_headers, broker_headers)
    for value in vars(module).values()
    if is_dataclass(value)
    and value.__module__ == module.__name__
    and all("java_name" in field.metadata for field in fields(value))
]
"""The others of these modules are bodies."""
UNKNOWN = {"ReqT"}
"""Request type of the Java client's accounting; nothing reads it."""
NO_HEADER = 188
"""A pull without any ext field, recorded to see the broker's reaction."""
SENT_TO_A_BROKER = {headers.GroupConfigRequestHeader}
"""Not in the recordings: ``tests/both/test_send_back.py`` sends these to a real broker, which answers them."""


def recorded_requests() -> list[ParameterSet]:
    return [
        pytest.param(REQUESTS[command.request_code], decode_frame(command.frame).ext_fields, id=str(command))
        for command in recorded_commands()
        if not command.is_response and command.request_code in REQUESTS and command.pair_id != NO_HEADER
    ]


def recorded_responses() -> Iterator[ParameterSet]:
    for command in recorded_commands():
        header_class, good_codes = RESPONSES.get(command.request_code, (None, ()))
        if command.is_response and command.code in good_codes:
            yield pytest.param(header_class, decode_frame(command.frame).ext_fields, id=str(command))


def values_of(header_class: type[Any]) -> st.SearchStrategy[Any]:
    """A strategy for headers of one class, from the wire types of its fields."""
    by_annotation = {
        "str": st.text(min_size=1),
        "bool": st.booleans(),
        "int": st.integers(-(1 << 31), (1 << 31) - 1),
    }
    return st.builds(
        header_class,
        **{
            spec.name: by_annotation[spec.type.removesuffix(" | None")]
            | (st.none() if spec.type.endswith("| None") else st.nothing())
            for spec in fields(header_class)
        },
    )


@pytest.mark.parametrize(("header_class", "ext_fields"), [*recorded_requests(), *recorded_responses()])
def test_a_recorded_header_comes_back_unchanged(header_class: type[Any], ext_fields: dict[str, str]) -> None:
    """A1: reading and writing loses no field of Java's clients and servers and adds none."""
    header = from_ext_fields(header_class, ext_fields)

    known = {name: value for name, value in ext_fields.items() if name not in UNKNOWN}
    assert to_ext_fields(header) == known


def test_the_recorded_traffic_covers_every_header_class() -> None:
    covered = {*REQUESTS.values(), *(header_class for header_class, _ in RESPONSES.values())}

    ours = {each for each in HEADER_CLASSES if each.__module__ != broker_headers.__name__}

    assert ours - SENT_TO_A_BROKER <= covered


@given(st.data())
@pytest.mark.parametrize("header_class", HEADER_CLASSES, ids=lambda c: c.__name__)
def test_any_header_is_read_back_as_it_was_written(header_class: type[Any], data: st.DataObject) -> None:
    header = data.draw(values_of(header_class))

    ext_fields = to_ext_fields(header)

    assert all(type(text) is str for text in ext_fields.values())
    assert from_ext_fields(header_class, ext_fields) == header
    assert from_ext_fields(header_class, {**ext_fields, "somethingNew": "1"}) == header


@pytest.mark.parametrize("header_class", HEADER_CLASSES, ids=lambda c: c.__name__)
def test_a_missing_required_field_is_named(header_class: type[Any]) -> None:
    required = [spec for spec in fields(header_class) if spec.default is MISSING]
    everything = {spec.metadata["java_name"]: "1" for spec in required}

    for spec in required:
        name = spec.metadata["java_name"]
        rest = {key: text for key, text in everything.items() if key != name}
        with pytest.raises(RemoteProtocolError, match=f"{header_class.__name__}.*'{name}' is missing"):
            from_ext_fields(header_class, rest)


@pytest.mark.parametrize("header_class", HEADER_CLASSES, ids=lambda c: c.__name__)
def test_no_two_fields_share_a_name_on_the_wire(header_class: type[Any]) -> None:
    names = [spec.metadata["java_name"] for spec in fields(header_class)]

    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x",
        "1.0",
        "1e3",
        "0x10",
        " 1",
        "1 ",
        "1_0",
        "--1",
        "+",
        "-",
        "\u0661",
        "²",
        "1\n",
        "9" * 19 + "0",
        "9" * 5000,
    ],
    ids=ascii,
)
def test_a_text_that_java_does_not_parse_as_a_number_raises(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="OffsetResponseHeader: ext field 'offset' cannot be read"):
        from_ext_fields(headers.OffsetResponseHeader, {"offset": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        ("+7", 7),
        ("-0", 0),
        ("007", 7),
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63)), -(2**63)),
    ],
)
def test_a_long_is_parsed_as_in_java(text: str, value: int) -> None:
    assert from_ext_fields(headers.OffsetResponseHeader, {"offset": text}).offset == value


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_long_beyond_64_bits_raises_on_either_side(value: int) -> None:
    with pytest.raises(RemoteProtocolError, match="64 bits"):
        from_ext_fields(headers.OffsetResponseHeader, {"offset": str(value)})
    with pytest.raises(LocalProtocolError, match="64 bits"):
        to_ext_fields(headers.OffsetResponseHeader(offset=value))


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_an_int_beyond_32_bits_raises_on_either_side(value: int) -> None:
    with pytest.raises(RemoteProtocolError, match=r"'queueId' cannot be read.*32 bits"):
        from_ext_fields(headers.QueueRequestHeader, {"topic": "T", "queueId": str(value)})
    with pytest.raises(LocalProtocolError, match=r"queue_id cannot be sent.*32 bits"):
        to_ext_fields(headers.QueueRequestHeader(topic="T", queue_id=value))


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": None, "queue_id": 1},
        {"topic": "T", "queue_id": None},
        {"topic": "T", "queue_id": "1"},
        {"topic": "T", "queue_id": 1.0},
        {"topic": "T", "queue_id": True},
        {"topic": b"T", "queue_id": 1},
        {"topic": "T", "queue_id": 1, "lo": "true"},
        {"topic": "T", "queue_id": 1, "lo": 1},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_type_is_our_bug(wrong: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError, match=r"QueueRequestHeader\.\w+ cannot be sent"):
        to_ext_fields(headers.QueueRequestHeader(**wrong))


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("yes", False), ("", False)]
)
def test_a_boolean_is_parsed_as_in_java(text: str, value: bool) -> None:
    ext_fields = {"topic": "T", "queueId": "0", "committed": text}

    assert from_ext_fields(headers.QueueRequestHeader, ext_fields).committed is value


def test_enum_members_travel_as_their_numbers() -> None:
    header = headers.PullMessageRequestHeader(
        consumer_group="G",
        topic="T",
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
    )

    assert to_ext_fields(header)["sysFlag"] == "6"
