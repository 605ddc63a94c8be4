from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.wire import properties as names
from pyspark_rocketmq.wire.properties import (
    MAX_PROPERTIES_BYTES,
    decode_properties,
    decode_text,
    encode_properties,
)
from tests.helpers.golden import golden

NUMBERS = golden("numbers.json")
PARSED = NUMBERS["MessageDecoder_string2messageProperties"]
WRITTEN = NUMBERS["MessageDecoder_messageProperties2String"]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)


@pytest.mark.parametrize("case", PARSED, ids=lambda case: ascii(case["string"]))
def test_a_properties_string_is_parsed_as_java_does(case: dict[str, Any]) -> None:
    assert decode_properties((case["string"] or "").encode()) == case["map"]


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: ascii(case["encoded"]))
def test_what_java_writes_is_read_as_java_reads_it(case: dict[str, Any]) -> None:
    assert decode_properties(case["encoded"].encode()) == case["decoded_again"]


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: ascii(case["encoded"]))
def test_properties_are_written_as_java_does_unless_a_consumer_would_misread_them(
    case: dict[str, Any],
) -> None:
    properties = {name: value for name, value in case["map"].items() if value is not None}

    if "" in {*properties, *properties.values()} or any(
        separator in text for text in properties.values() for separator in "\x01\x02"
    ):
        with pytest.raises(LocalProtocolError):
            encode_properties(properties)
    else:
        assert encode_properties(properties) == case["encoded"].encode()


@settings(deadline=None)
@given(st.dictionaries(TEXT, TEXT))
def test_properties_survive_encoding_and_decoding(properties: dict[str, Any]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_stored_properties_fail_to_parse(data: bytes) -> None:
    properties = decode_properties(data)

    assert all(name and value for name, value in properties.items())


@pytest.mark.parametrize("name", ["", "a\x01b", "a\x02b"])
def test_a_name_that_would_be_misread_is_not_written(name: str) -> None:
    with pytest.raises(LocalProtocolError):
        encode_properties({name: "value"})


def test_an_empty_value_is_not_written_since_no_consumer_would_get_it() -> None:
    """G1: as ``Message.putUserProperty`` refuses it."""
    with pytest.raises(LocalProtocolError, match="'region' has an empty value"):
        encode_properties({"region": "", "x": "1"})
    assert decode_properties(b"region\x01\x02x\x011\x02") == {"x": "1"}


@pytest.mark.parametrize("value", [3, 0, float("nan"), None, np.int64(3), b"3", pd.NA], ids=repr)
def test_a_property_that_is_no_string_is_named(value: Any) -> None:
    """G2: as a row of pandas has them, for example."""
    with pytest.raises(LocalProtocolError, match=r"property 'DELAY' has the value .*must be strings"):
        encode_properties({"x": "1", "DELAY": value})
    with pytest.raises(LocalProtocolError, match="must be strings"):
        encode_properties({value: "1"})


def test_a_lone_surrogate_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="half of a surrogate pair"):
        encode_properties({"a": "\ud800"})


def test_properties_over_the_short_length_are_not_written() -> None:
    assert len(encode_properties({"a": "x" * 32764})) == 32767
    with pytest.raises(LocalProtocolError, match="32768 bytes"):
        encode_properties({"a": "x" * 32765})


@pytest.mark.parametrize(
    ("data", "replacements"),
    [
        (b"\xff", 1),
        (b"\xed\xa0\x80", 1),
        (b"\xed\xa0", 1),
        (b"\xed\xa0\x80\xed\xb0\x80", 2),
        (b"\xe2\x82", 1),
        (b"\xf0\x9f\x98", 1),
        (b"\xc0\x80", 2),
        (b"\xe0\x80\x80", 3),
        (b"\xf4\x90\x80\x80", 4),
    ],
)
def test_malformed_utf8_becomes_as_many_replacement_characters_as_in_java(
    data: bytes, replacements: int
) -> None:
    assert decode_text(b"<" + data + b">") == "<" + "\ufffd" * replacements + ">"


def test_malformed_text_costs_no_object_for_each_of_its_errors() -> None:
    data = b"\xed\xa0\x80" * 100_000
    tracemalloc.start()
    try:
        text = decode_text(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(text) == 100_000
    assert peak <= 5 * len(data)


def test_named_properties_are_spelt_as_in_java() -> None:
    spelt_otherwise = {"SHARDING_KEY"}
    constants = {
        name: value
        for name, value in vars(names).items()
        if name[0].isalpha()
        and name.isupper()
        and isinstance(value, str)
        and len(value) > 1
        and name not in spelt_otherwise
    }

    assert constants
    assert all(name == value for name, value in constants.items())


def test_more_than_can_be_stored_is_read_alike() -> None:
    """A1: a request's header may carry any length."""
    entries = b"KEYS\x01k\x02\x02x\x01y\x01z\x02=\x02\x01v\x02e\x01\x02"
    longer = entries * 3000 + b"tail\x01v"

    assert len(longer) > MAX_PROPERTIES_BYTES
    assert decode_properties(longer) == decode_properties(entries + b"tail\x01v")


def test_far_more_than_can_be_stored_is_refused() -> None:
    """A1: a million entries would take three hundred megabytes."""
    with pytest.raises(RemoteProtocolError, match=r"take 600000 bytes; 32767 can be stored"):
        decode_properties(b"a\x01b\x02ab" * 100_000)
