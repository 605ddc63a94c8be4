"""Facts about the programs that write change data, by number: each has a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FACTS = {
    1: "Canal sends an update of the key to the new key's queue",
    2: "Canal resends a batch after a failure",
    3: "flat JSON has no position but a set of GTIDs",
    4: "a broker more or less re-maps every key to other queues",
    5: "statements are not ordered against rows",
    6: "old names columns that a row has not changed",
    7: "a message has several rows, the same key twice, equal rows",
    8: "transactions have no begin and end in flat JSON",
    9: "Debezium Server stores neighbours of a key swapped",
    10: "LSNs are not in the order of commits",
    11: "files of the binary log begin again on another server",
    12: "rows of one event share their place, milliseconds are no order",
    13: "snapshot rows come after later changes",
    14: "a delete does not win by its time",
    15: "Debezium's key change is two messages",
    16: "a tombstone has an empty body",
    17: "tables without a key, and hidden keys",
    18: "TRUNCATE has no key and its own queue",
    19: "heartbeats, marks of transactions, schema changes",
    20: "the topic does not name the table",
    21: "shadow tables of gh-ost and pt-osc",
    22: "neither KEYS nor topic are needed for Canal",
    23: "bodies with the text null",
    24: "flattened messages",
    25: "values that the source has left out",
    26: "deletes whose key is only in KEYS",
    27: "unsigned numbers, typed by the column",
    28: "negative unsigned numbers",
    29: "decimals never pass through a float",
    30: "whole numbers above 2^53",
    31: "zero dates",
    32: "TIMESTAMP has a zone, DATETIME none",
    33: "units of times differ by column",
    34: "infinity, years before Christ",
    35: "BIT and tinyint(1)",
    36: "ENUM by index, SET by mask",
    37: "bytes as text, hex, base64",
    38: "partial JSON documents",
    39: "NULL, JSON's null, absent",
    40: "text in UTF-8",
    41: "rows with other columns than their types",
    42: "names of every kind",
    43: "Maxwell's bootstraps and times",
}
_NAMED = re.compile(r"K6: facts? ([0-9, ]+):")


def test_every_fact_has_a_test() -> None:
    """K6: the page of facts is kept by tests."""
    named = {
        int(number)
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and (found := _NAMED.match(ast.get_docstring(node) or ""))
        for number in found[1].split(",")
    }

    assert named == FACTS.keys()
