"""Messages made of Arrow columns, whatever their texts have in common (D1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.listeners.messages import ArrivedMessages
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.source_rows import batches_of, row_of

NAMES = ("KEYS", "TAGS", "WAIT", "é")
ALIKE = st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, st.sampled_from(["", "a", "bb"]))), max_size=9)
VARIOUS = st.lists(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["", "a", "é"])), max_size=9)


@given(properties=ALIKE | VARIOUS, texts=st.data(), cut=st.integers(0, 9))
def test_messages_are_what_their_columns_say(
    properties: list[dict[str, str]], texts: st.DataObject, cut: int
) -> None:
    """D1: texts that are the same in all messages are made once, and no other is taken for them."""
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
    batches = [piece for each in whole for piece in (each.slice(0, cut), each.slice(cut))]

    assert list(ArrivedMessages(QUEUE, batches)) == messages
    told = {"MIN_OFFSET": "3", "MAX_OFFSET": "90"}
    assert list(ArrivedMessages(QUEUE, batches, told)) == [
        message._replace(properties={**message.properties, **told}) for message in messages
    ]
