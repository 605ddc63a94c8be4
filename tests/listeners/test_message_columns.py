"""Messages made of Arrow columns, whatever their texts have in common (D1)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.listeners.messages import ArrivedMessages, ArrowMessages
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.wire.columnar.columns import END_TIMESTAMP_MS, FIRST_TIMESTAMP_MS
from pyspark_rocketmq.wire.columnar.decode import rows_of
from pyspark_rocketmq.wire.columnar.schema import MAP_TYPE
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.source_rows import batches_of, row_of

NAMES = ("KEYS", "TAGS", "WAIT", "é")
ALIKE = st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, st.sampled_from(["", "a", "bb"]))), max_size=9)
VARIOUS = st.lists(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["", "a", "é"])), max_size=9)


def large(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The batches as Spark passes them with ``spark.sql.execution.arrow.useLargeVarTypes``."""
    kinds = {
        pa.string(): pa.large_string(),
        pa.binary(): pa.large_binary(),
        MAP_TYPE: pa.map_(pa.large_string(), pa.large_string()),
    }
    return [
        pa.RecordBatch.from_pylist(
            each.to_pylist(),
            schema=pa.schema([(field.name, kinds.get(field.type, field.type)) for field in each.schema]),
        )
        for each in batches
    ]


def cut_at(batch: pa.RecordBatch, row: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    return batch.slice(0, row), batch.slice(row)


@given(properties=ALIKE | VARIOUS, texts=st.data(), cut=st.integers(0, 9))
def test_messages_are_what_their_columns_say(
    properties: list[dict[str, str]], texts: st.DataObject, cut: int
) -> None:
    """D1: texts that are the same in all messages are made once, and no other is taken for them;
    a property that the consumer adds replaces that of the producer.
    """
    text = st.sampled_from(["a", "aa", "", "b"])
    messages = [
        message_at(offset)._replace(
            properties=each,
            tags=texts.draw(st.none() | text),
            born_host=texts.draw(text),
            store_host="10.0.0.1:10911",
        )
        for offset, each in enumerate(properties)
    ]
    whole = batches_of([row_of(message) for message in messages], 9)
    batches = [piece for each in whole for piece in cut_at(each, cut)]
    in_large = [piece for each in large(whole) for piece in cut_at(each, cut)]

    assert list(ArrivedMessages(QUEUE, batches)) == messages
    assert list(ArrivedMessages(QUEUE, in_large)) == messages
    added = {"MIN_OFFSET": "3", "MAX_OFFSET": "90", "WAIT": "x"}
    assert list(ArrivedMessages(QUEUE, batches, added)) == [
        message._replace(properties={**message.properties, **added}) for message in messages
    ]


def test_texts_with_long_offsets_are_not_taken_for_repetitions() -> None:
    """D1: half of the memory of their offsets is 0."""
    messages = [message_at(offset)._replace(tags=tag) for offset, tag in enumerate(["", "", "x"])]

    assert list(ArrivedMessages(QUEUE, large(batches_of([row_of(each) for each in messages], 9)))) == messages


@pytest.mark.parametrize("count", [1, 2], ids=["all", "some"])
def test_a_time_that_columns_cannot_hold_is_0(count: int) -> None:
    """D1: whether or not other messages of the block have a time; a producer may claim any."""
    claimed = message_at(0)._replace(born_timestamp=END_TIMESTAMP_MS, store_timestamp=FIRST_TIMESTAMP_MS - 1)
    messages = [claimed, message_at(1)][:count]
    shown = claimed._replace(born_timestamp=0, store_timestamp=0)

    assert list(ArrivedMessages(QUEUE, [rows_of(messages)])) == [shown, *messages[1:]]


def test_a_time_that_columns_cannot_hold_is_null_in_a_batch_of_objects() -> None:
    """D1: as in a batch that was read in columns."""
    claimed = message_at(0)._replace(born_timestamp=2**63 - 1)

    assert ArrowMessages.of([claimed]).batch.equals(rows_of([claimed]))


KEYED = st.lists(st.none() | st.sampled_from(["", "a", "b", "é"]), min_size=1, max_size=12)


def arrived(messages: list[MessageExt], cut: int) -> ArrivedMessages:
    """The messages in pieces of rows, and one of objects."""
    whole = batches_of([row_of(message) for message in messages[:9]], 9)
    batches = [piece for each in whole for piece in (each.slice(0, cut), each.slice(cut))]
    return ArrivedMessages(QUEUE, [*batches, messages[9:]])


def keyed(keys: list[str | None]) -> list[MessageExt]:
    """Messages, some with a key, at offsets with gaps."""
    properties = [{"TAGS": "t", **({} if key is None else {"K": key}), "k": "a"} for key in keys]
    return [message_at(2 * at)._replace(properties=each) for at, each in enumerate(properties)]


@given(keys=KEYED, cut=st.integers(0, 9), start=st.integers(0, 12), forgotten=st.integers(0, 12))
def test_a_property_is_read_without_making_messages(
    keys: list[str | None], cut: int, start: int, forgotten: int
) -> None:
    """I8: messages without it too; an empty value is a value."""
    messages = arrived(keyed(keys), cut)

    assert messages.property_values("K") == keys
    messages.forget(min(start, forgotten))
    assert messages.property_values("K", start) == keys[start:]


@given(keys=KEYED, cut=st.integers(0, 9), forgotten=st.integers(0, 11), drawn=st.data())
def test_messages_are_picked_from_anywhere_in_their_range(
    keys: list[str | None], cut: int, forgotten: int, drawn: st.DataObject
) -> None:
    """I8: as objects or in Arrow, with the number of their attempts."""
    messages = keyed(keys)
    some = arrived(messages, cut)
    lowest = min(forgotten, len(keys) - 1)
    for pick in (some.objects_at, some.arrow_at):
        for _ in range(2):
            indexes = sorted(drawn.draw(st.sets(st.integers(lowest, len(keys) - 1), min_size=1)))
            times = drawn.draw(st.just(()) | st.just(tuple(range(len(indexes)))))
            found = pick(indexes, times)
            expected = [
                messages[index]._replace(reconsume_times=count)
                for index, count in zip(indexes, times or (0,) * len(indexes), strict=True)
            ]
            assert list(found) == expected
            if isinstance(found, ArrowMessages):
                assert found.queue_offsets.tolist() == [2 * index for index in indexes]
                assert found.batch.num_rows == len(indexes)
        some.forget(lowest)


def test_blocks_of_messages_are_made_once_for_deliveries_that_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I8: and of many blocks those used last are kept."""
    monkeypatch.setattr("pyspark_rocketmq.listeners.messages._MADE_AT_ONCE", 2)
    monkeypatch.setattr("pyspark_rocketmq.listeners.messages._BLOCKS_KEPT", 3)
    messages = keyed(["a"] * 9)
    some = arrived(messages, 3)
    made: list[int] = []
    make = some._made_of

    def noting(rows: pa.RecordBatch, at: int, extra: Mapping[str, str]) -> list[MessageExt]:
        block = make(rows, at, extra)
        made.append(block[0].queue_offset // 2)
        return block

    monkeypatch.setattr(some, "_made_of", noting)

    for index in (0, 4, 1, 2, 3, 0, 7, 4, 8, 2):
        assert some.objects_at([index]) == [messages[index]]
    assert made == [0, 3, 2, 7, 2]
