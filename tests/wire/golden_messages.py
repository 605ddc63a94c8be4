"""The golden messages and how to compare a decoded message with what Java shows of it."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from pyspark_rocketmq.model import MessageExt
from tests.helpers.golden import golden

MESSAGES = golden("messages.json")
PULLS = {f"{pull['name']}-{at}": pull for at, pull in enumerate(MESSAGES["pulls"])}
ENCODED = {
    f"{at}: {entry['how'].rpartition('.')[2]}": entry
    for at, entry in enumerate(MESSAGES["encoded_in_process"])
}
CORRUPT = {entry["case"]: entry for entry in MESSAGES["corrupt"]}
WHOLE_PULLS = [name for name in PULLS if not name.startswith("raw")]
"""The raw pull holds a body that says zlib and is not; Java drops it and the message after it."""


def pull_body(name: str) -> bytes:
    return base64.b64decode(PULLS[name]["body_b64"])


def java_host(host: str) -> str:
    """Spell ``host:port`` as the golden files do: IPv6 without brackets."""
    return host.replace("[", "").replace("]", "")


def assert_shown_as(message: MessageExt, expected: dict[str, Any]) -> None:
    """Compare a MessageExt with Java's view; a member of an inner batch lacks some of the fields."""
    shown = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": java_host(message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": java_host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
        "tags": message.tags,
        "keys": message.keys,
        "msgId": message.msg_id,
    }
    wanted = {name: expected[name] for name in shown if name in expected}
    wanted["properties"] = wanted.get("properties") or {}
    assert {name: shown[name] for name in wanted} == wanted
    if "body_sha256" in expected:
        assert len(message.body) == expected["body_len"]
        assert hashlib.sha256(message.body).hexdigest() == expected["body_sha256"]
    else:
        assert message.body == base64.b64decode(expected.get("body_b64") or "")


def expected_messages(name: str) -> list[dict[str, Any]]:
    """What a Java listener gets of a pull, inner batches expanded."""
    return [shown for expected in PULLS[name]["expected"] for shown in expected.get("expanded", [expected])]
