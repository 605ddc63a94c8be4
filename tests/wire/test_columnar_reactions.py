"""Whatever the bytes and the options: the columns are the plain decoder's, or the error is."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.wire.columnar import property_columns as columnar_properties
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA
from tests.helpers.stored_messages import decode_columns
from tests.wire.columnar_cases import (
    PROPERTIES,
    REGULAR_PROPERTIES,
    assert_same_reaction,
    encoded,
    inner_batches,
    is_decoded_vectorised,
    stored_message,
    stored_messages,
)
from tests.wire.golden_messages import CORRUPT, PULLS, pull_body

ANY_MESSAGES = st.one_of(
    stored_messages(), stored_messages(REGULAR_PROPERTIES), stored_messages(PROPERTIES, inner_batches())
)
BODIES = st.lists(ANY_MESSAGES, max_size=5).map(lambda messages: encoded(*messages))
OPTIONS = st.fixed_dictionaries(
    {
        "tags": st.one_of(st.none(), st.frozensets(st.sampled_from(["a", "TagB", ""]))),
        "columns": st.one_of(
            st.none(), st.lists(st.sampled_from(MESSAGE_SCHEMA.names), unique=True, max_size=6)
        ),
        "properties": st.lists(st.sampled_from(["UNIQ_KEY", "KEYS", "a", "none has it"]), unique=True),
    }
)
HEAD_BYTES = 88
HOSTS = ["127.0.0.1:65535", "[2001:db8::1]:65535"]
COLUMNS = [[name] for name in MESSAGE_SCHEMA.names] + [["flag", "msgId"], ["tags", "keys", "queueOffset"], []]


@st.composite
def damaged(draw: st.DrawFn, bodies: st.SearchStrategy[bytes] = BODIES) -> bytes:
    """A body with up to three bytes or slices changed, cut out, doubled or put in."""
    data = draw(bodies)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        until = min(len(data), at + draw(st.sampled_from([0, 1, 1, 1, 2, 4, 90])))
        put = draw(st.one_of(st.binary(max_size=4), st.just(data[at:until] * 2), st.just(b"")))
        data = data[:at] + put + data[until:]
    return data


@settings(max_examples=300, deadline=None)
@given(BODIES, OPTIONS)
def test_any_messages_with_any_options_give_what_the_plain_decoder_gives(
    data: bytes, options: dict[str, Any]
) -> None:
    """A4: the broker filters tags by their hash code, the client by the tag itself."""
    assert_same_reaction(data, **options)


@settings(max_examples=400, deadline=None)
@given(damaged(), OPTIONS)
def test_damaged_bytes_give_the_rows_or_the_error_of_the_plain_decoder(
    data: bytes, options: dict[str, Any]
) -> None:
    assert_same_reaction(data, **options)


@settings(max_examples=200, deadline=None)
@given(damaged(st.sampled_from([pull_body(name) for name in PULLS])), OPTIONS)
def test_damaged_golden_bodies_give_the_rows_or_the_error_of_the_plain_decoder(
    data: bytes, options: dict[str, Any]
) -> None:
    assert_same_reaction(data, **options)


@pytest.mark.parametrize("columns", COLUMNS, ids=" ".join)
def test_a_projection_gives_just_these_columns_of_every_golden_body(columns: list[str]) -> None:
    for name in PULLS:
        assert_same_reaction(pull_body(name), columns=columns)
    for entry in CORRUPT.values():
        assert_same_reaction(bytes.fromhex(entry["bytes_hex"]), columns=columns)


@pytest.mark.parametrize("columns", [["body", "queueoffset"], ["body", "body"]])
def test_columns_that_are_not_there_or_there_twice_are_refused_with_the_names_there_are(
    columns: list[str],
) -> None:
    with pytest.raises(LocalProtocolError, match=r"body, (queueoffset|body): .* topic, brokerName, queueId"):
        decode_columns(encoded(stored_message()), "b", columns=columns)


def test_properties_become_columns_behind_the_others_of_every_golden_body() -> None:
    """includeColumns, propertyColumns."""
    for name in PULLS:
        assert_same_reaction(
            pull_body(name), columns=["queueOffset"], properties=["UNIQ_KEY", "no", "colour"]
        )
        assert_same_reaction(pull_body(name), columns=[], properties=["UNIQ_KEY"], tags=frozenset({"BB"}))


def test_a_tag_filter_needs_no_tags_column() -> None:
    data = encoded(
        *(stored_message(queue_offset=at, properties_data=b"TAGS\x01%d\x02" % (at % 2)) for at in range(4))
    )

    batch = decode_columns(data, "b", tags=frozenset({"1"}), columns=["queueOffset"])

    assert batch.schema.names == ["queueOffset"]
    assert batch.column("queueOffset").to_pylist() == [1, 3]
    assert decode_columns(data, "b", tags=frozenset({"1"}), columns=[]).num_rows == 2


def test_a_body_that_is_not_selected_is_not_decompressed() -> None:
    data = encoded(stored_message(body=b"not zlib", sys_flag=0x301))

    assert decode_columns(data, "b", columns=["queueOffset"]).num_rows == 1


def test_every_short_properties_string_is_read_as_the_plain_decoder_reads_it() -> None:
    strings = ["".join(symbols) for length in range(7) for symbols in product("a\x01\x02", repeat=length)]
    for text in strings:
        assert_same_reaction(encoded(stored_message(properties_data=text.encode())), columns=["properties"])
    for first, second in product(strings[:13], repeat=2):
        messages = (stored_message(properties_data=text.encode()) for text in (first, second))
        assert_same_reaction(encoded(*messages), columns=["properties"])


@pytest.mark.parametrize(("born_host", "store_host"), [*product(HOSTS, repeat=2)])
def test_an_impossible_port_is_malformed_even_if_the_host_is_not_selected(
    born_host: str, store_host: str
) -> None:
    data = encoded(stored_message(queue_offset=1, born_host=born_host, store_host=store_host))
    ports = [at for at in range(len(data)) if data[at : at + 4] == b"\0\0\xff\xff"]

    assert len(ports) == 2
    for at in ports:
        changed = data[: at + 1] + b"\x01" + data[at + 2 :]
        with pytest.raises(RemoteProtocolError, match="impossible port"):
            decode_columns(changed, "b", columns=["flag"])
        assert_same_reaction(changed, columns=["flag"])


@pytest.mark.parametrize("topic_bytes", [32767, 32768, 65535])
def test_a_topic_length_of_layout_v2_is_a_signed_short(topic_bytes: int) -> None:
    head = bytearray(encoded(stored_message(topic="t" * 128, body=b""))[:HEAD_BYTES])
    head[:4] = (HEAD_BYTES + 2 + topic_bytes + 2).to_bytes(4, "big")

    assert_same_reaction(bytes(head) + topic_bytes.to_bytes(2, "big") + b"t" * topic_bytes + b"\0\0")


@pytest.mark.parametrize("seed", range(6))
def test_hundreds_of_messages_of_many_lengths_are_found_and_odd_ones_among_them_decoded(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some have bodies that hold messages, whose magic numbers lead astray those who look for them."""
    monkeypatch.setattr(columnar_properties, "_PIECE", 1000)
    chance = random.Random(seed)
    data = many_messages(chance, odd_share=[0, 0, 0.01, 0.2, 1, 0.01][seed], decoys=seed % 2 == 0)

    assert_same_reaction(data)
    assert_same_reaction(data, columns=["body", "properties"])
    for _ in range(4):
        at = chance.randrange(len(data))
        assert_same_reaction(data[:at] + bytes([chance.randrange(256)]) + data[at + chance.randrange(2) :])


def many_messages(chance: random.Random, *, odd_share: float, decoys: bool) -> bytes:
    """Some bodies end with the head of a message,
    to which the topic and the properties behind it belong too.
    """
    messages = []
    for at in range(700):
        properties = b"KEYS\x01%d\x02TAGS\x01TagA\x02" % chance.randrange(1 << chance.randrange(1, 40))
        body = chance.randbytes(chance.randrange(300))
        if decoys and chance.random() < 0.2:
            body += encoded(stored_message(body=b"", properties_data=properties))[:HEAD_BYTES]
        if chance.random() < odd_share:
            properties += chance.choice([b"\x01\x01\x02", b"\xff\x01v\x02", b"no separator\x02"])
        messages.append(stored_message(queue_offset=at, body=body, properties_data=properties))
    return encoded(*messages)


def test_hundreds_of_messages_of_one_length_with_properties_of_many_shapes_are_decoded_vectorised() -> None:
    shapes = [
        b"KEYS\x01k\x02TAGS\x01TagA\x02user\x01abcdefgh\x02",
        b"TAGS\x01TagA\x02TAGS\x01TagB\x02user\x01abcdefg\x02",
        b"KEYS\x01\x02TAGS\x01TagA\x02user\x01abcdefghi\x02",
        b"KEYS\x01k\x02TAGS\x01TagA\x02\x01abcdefghijklmnopq",
    ]
    padded = [shape + b"pad\x01" + b"p" * (60 - len(shape)) for shape in shapes[:3]] + [shapes[3]]
    data = encoded(
        *(stored_message(queue_offset=at, properties_data=padded[at % 3]) for at in range(600)),
        *(stored_message(properties_data=padded[3]) for _ in range(2)),
    )

    assert is_decoded_vectorised(data)
    assert_same_reaction(data)
    assert_same_reaction(data, columns=["keys", "tags"])
