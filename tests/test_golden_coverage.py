"""Every recorded vector has a test: a new file, table or case of tests/golden fails here until one reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_TESTS = Path(__file__).parent
_GOLDEN = _TESTS / "golden"
_PROSE = frozenset({"made_by", "notes", "columns", "offset_msg_id_columns"})
"""Members that say how to read the others."""

_PULL_FLAGS = "PullSysFlag_buildSysFlag(commit,suspend,subscription,classFilter,litePull)"
_UNIQUE_IDS = "uniq_id_examples (MessageClientIDSetter.createUniqID and getters)"

CONSUMERS: dict[str, dict[str, tuple[int, str]]] = {
    "allocation.json": {
        "cases": (176, "consume/test_allocation.py"),
        "messagequeue_compareTo_order": (63, "consume/test_allocation.py"),
    },
    "concurrent_trace.json": {"scenarios": (9, "java/traces.py")},
    "filter.json": {
        "build": (10, "wire/test_subscription.py"),
        "buildSubscriptionData": (43, "wire/test_subscription.py"),
        "heartbeat_fingerprint": (1, "wire/test_java_numbers.py"),
        "heartbeat_json": (455, "wire/test_bodies.py"),
        "tagsString2tagsCode": (6, "wire/test_subscription.py"),
    },
    "hashing.json": {
        "other_types": (29, "wire/test_hashing.py"),
        "strings": (228, "wire/test_hashing.py"),
    },
    "messages.json": {
        "corrupt": (43, "wire/golden_messages.py"),
        "encoded_in_process": (34, "wire/golden_messages.py"),
        "inner_batch_send_results": (3, "broker_sim/test_java_rules.py"),
        "pulls": (21, "wire/golden_messages.py"),
        "raw_send_results": (14, "broker_sim/test_java_rules.py"),
    },
    "numbers.json": {
        "ClientConfig_buildMQClientId": (9, "wire/test_java_numbers.py"),
        "LanguageCode": (14, "wire/test_command.py"),
        "MQVersion_CURRENT_VERSION": (1, "wire/test_java_numbers.py"),
        "MQVersion_getVersionDesc": (16, "wire/test_java_numbers.py"),
        "MessageConst_reserved_property_names": (51, "test_java_defaults.py"),
        "MessageDecoder_messageProperties2String": (8, "wire/test_properties.py"),
        "MessageDecoder_string2messageProperties": (25, "wire/test_properties.py"),
        "MessageStoreConfig.messageDelayLevel_default": (58, "broker_sim/test_java_rules.py"),
        "MessageSysFlag": (17, "wire/test_java_numbers.py"),
        "MixAll_brokerVIPChannel": (8, "wire/test_java_numbers.py"),
        "MixAll_getRetryTopic_getDLQTopic": (5, "wire/test_java_numbers.py"),
        "NamespaceUtil": (68, "wire/test_namespace.py"),
        "PermName_perm2String": (16, "broker_sim/test_java_rules.py"),
        _PULL_FLAGS: (32, "wire/test_command.py"),
        "RequestCode": (158, "wire/test_command.py"),
        "ResponseCode": (66, "wire/test_command.py"),
        "UtilAll_bytes2string": (2, "wire/test_java_numbers.py"),
        "UtilAll_string2bytes": (3, "wire/test_java_numbers.py"),
        "Validators_checkMessage_and_putUserProperty": (9, "test_java_defaults.py"),
        "crc32": (7, "wire/test_java_numbers.py"),
        "decodeMessageId_odd_inputs": (10, "wire/test_message_id.py"),
        "defaults_DefaultLitePullConsumer": (46, "test_java_defaults.py"),
        "defaults_DefaultMQProducer": (48, "test_java_defaults.py"),
        "defaults_DefaultMQPushConsumer": (53, "test_java_defaults.py"),
        "defaults_SubscriptionGroupConfig_json": (332, "wire/test_admin_bodies.py"),
        "defaults_TopicConfig_json": (143, "wire/test_admin_bodies.py"),
        "name_limits": (2, "test_java_defaults.py"),
        "name_validation": (65, "broker_sim/test_java_rules.py"),
        "not_allowed_send_topics": (6, "broker_sim/test_java_rules.py"),
        "offset_msg_id": (49, "wire/test_message_id.py"),
        "system_topics": (10, "wire/test_namespace.py"),
        _UNIQUE_IDS: (8, "wire/test_message_id.py"),
    },
    "orderly_trace.json": {"scenarios": (10, "java/traces.py")},
    "remoting.json": {
        "acl": (5, "client/test_acl.py"),
        "batch_body": (1, "wire/test_messages.py"),
        "frames": (14, "wire/test_command.py"),
    },
}
"""File and member → number of cases and the module that reads all of them."""

_WHOLE_FILES = {
    "sequences.json": (65, "broker_sim/test_golden_sequences.py"),
    "frames.jsonl": (236, "broker_sim/recorded.py"),
}
"""Files without members: scenarios and pairs."""


def _members(file_name: str) -> dict[str, Any]:
    members = json.loads((_GOLDEN / file_name).read_text())
    return {name: cases for name, cases in members.items() if name not in _PROSE}


def _size(cases: Any) -> int:
    return 1 if isinstance(cases, int) else len(cases)


def test_every_golden_file_has_its_tests():
    """A file that nobody reads fails here."""
    assert {path.name for path in _GOLDEN.iterdir()} == CONSUMERS.keys() | _WHOLE_FILES.keys()


@pytest.mark.parametrize("file_name", CONSUMERS)
def test_every_member_of_a_golden_file_is_read_with_all_its_cases(file_name):
    """A new member, or another number of cases than its test was written for, fails here."""
    sizes = {name: _size(cases) for name, cases in _members(file_name).items()}

    assert sizes == {name: size for name, (size, _) in CONSUMERS[file_name].items()}


@pytest.mark.parametrize(
    ("member", "module"),
    [(member, module) for members in CONSUMERS.values() for member, (_, module) in members.items()],
)
def test_the_module_that_is_to_read_a_member_does(member, module):
    """Renaming or removing a consumer fails here."""
    assert f'"{member}"' in (_TESTS / module).read_text()


@pytest.mark.parametrize("file_name", _WHOLE_FILES)
def test_files_of_scenarios_and_pairs_are_read_whole(file_name):
    """Both header forms and every scenario: nothing is filtered out."""
    size, module = _WHOLE_FILES[file_name]
    text = (_GOLDEN / file_name).read_text()
    found = len(text.splitlines()) - 1 if file_name.endswith(".jsonl") else len(_members(file_name))

    assert found == size
    assert file_name in (_TESTS / module).read_text()
