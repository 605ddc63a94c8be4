"""Every recorded case has a test that runs it: a new file,
member or case of tests/golden fails here until one does.

What runs is what pytest collects, skipped tests left out. A case either is a parameter of a collected test,
or belongs to a member that a test takes as a whole; whatever is neither is listed with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.broker_sim.test_golden_sequences import NOT_OF_CLIENTS, SEQUENCES
from tests.helpers.collected import parameters_of, sources_of
from tests.helpers.golden import golden, recorded_commands
from tests.named_tests import source_of

_TESTS = Path(__file__).parents[1]
_GOLDEN = _TESTS / "golden"
_PROSE = frozenset({"made_by", "notes", "columns", "offset_msg_id_columns"})
"""Members that say how to read the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """A member whose cases are parameters of tests."""

    count: int
    tests: tuple[str, ...]
    named: Callable[[int, Any], object] = lambda _at, case: case
    """What a test has as its parameter for a case: the case itself, or a name of it."""
    left_out: int = 0
    because: str = ""
    """Why ``left_out`` of the cases, at most, are no test's."""

    def not_run(self, session: pytest.Session, cases: Iterable[Any]) -> list[object]:
        """What no collected test has as its parameter."""
        had = [
            value
            for test in self.tests
            for params in parameters_of(session, f"tests/{test}")
            for value in (*params.values(), list(params.values()))
        ]
        wanted = [self.named(at, case) for at, case in enumerate(cases)]
        return [name for name in wanted if not any(value is name or value == name for value in had)]


@dataclass(frozen=True, slots=True)
class Whole:
    """A member that a test compares as one value, or plays as one story."""

    count: int
    test: str


def each(count: int, *tests: str, **how: Any) -> Each:
    return Each(count=count, tests=tests, **how)


_PULL_FLAGS = "PullSysFlag_buildSysFlag(commit,suspend,subscription,classFilter,litePull)"
_UNIQUE_IDS = "uniq_id_examples (MessageClientIDSetter.createUniqID and getters)"
_NUMBERS_TEST, _RULES_TEST = "wire/test_java_numbers.py", "broker_sim/test_java_rules.py"
_DEFAULTS_TEST, _MESSAGES_TEST = "options/test_java_defaults.py", "wire/test_messages.py"
_COMMAND_TEST = "wire/test_command.py::TestAgainstJava"

MEMBERS: dict[str, dict[str, Each | Whole]] = {
    "allocation.json": {
        "cases": each(
            176, "consume/test_allocation.py::test_every_strategy_gives_what_java_gives_in_javas_order"
        ),
        "messagequeue_compareTo_order": Whole(63, "consume/test_allocation.py::test_queues_sort_as_in_java"),
    },
    "concurrent_trace.json": {
        "scenarios": each(
            9, "java/test_traces.py::test_a_concurrent_listener_sees_and_leaves_what_was_recorded"
        )
    },
    "filter.json": {
        "build": each(10, "wire/test_subscription.py::test_an_expression_type_is_treated_as_in_java"),
        "buildSubscriptionData": each(
            43,
            "wire/test_subscription.py::test_a_tag_expression_is_read_as_java_reads_it",
            "wire/test_subscription.py::test_only_separators_are_an_option_error_that_names_topic_and_remedy",
            named=lambda _at, case: case["expr"] if "error" in case else case,
        ),
        "heartbeat_fingerprint": Whole(
            1, f"{_NUMBERS_TEST}::test_the_fingerprint_of_a_heartbeat_is_the_hash_of_what_does_not_change"
        ),
        "heartbeat_json": Whole(
            1, "wire/test_bodies.py::TestHeartbeat::test_java_s_heartbeat_is_written_byte_for_byte"
        ),
        "tagsString2tagsCode": each(6, "wire/test_subscription.py::test_the_stored_tag_code_is_java_s"),
    },
    "hashing.json": {
        "other_types": each(
            29,
            "wire/test_hashing.py::test_a_java_character_hashes_like_the_text_of_it",
            left_out=28,
            because="a sharding key is text here: of other types only a character hashes like its text",
        ),
        "strings": each(228, "wire/test_hashing.py::test_a_key_goes_to_the_queue_java_chooses"),
    },
    "messages.json": {
        "corrupt": each(
            43,
            f"{_MESSAGES_TEST}::test_corrupt_messages_are_shown_whole_or_raise",
            named=lambda _at, case: case["case"],
        ),
        "encoded_in_process": each(
            34,
            f"{_MESSAGES_TEST}::test_messages_encoded_by_java_decode_and_encode_to_the_same_bytes",
            named=lambda at, case: f"{at}: {case['how'].rpartition('.')[2]}",
        ),
        "inner_batch_send_results": Whole(
            3, f"{_RULES_TEST}::test_sends_to_an_inner_batch_queue_are_counted_by_members"
        ),
        "pulls": each(
            21,
            f"{_MESSAGES_TEST}::test_a_pulled_body_decodes_to_what_java_shows",
            f"{_MESSAGES_TEST}::test_the_undecompressable_message_java_drops_silently_raises_and_names_its_place",
            named=lambda at, case: f"{case['name']}-{at}",
        ),
        "raw_send_results": Whole(14, f"{_RULES_TEST}::test_odd_sends_are_answered_as_by_a_broker"),
    },
    "numbers.json": {
        "ClientConfig_buildMQClientId": each(
            9,
            f"{_NUMBERS_TEST}::test_a_client_id_is_any_text_with_the_host_before_the_first_at_sign",
        ),
        "LanguageCode": Whole(14, f"{_COMMAND_TEST}::test_the_code_tables_are_java_s"),
        "MQVersion_CURRENT_VERSION": Whole(
            1, f"{_NUMBERS_TEST}::test_our_version_is_one_that_java_knows_by_name"
        ),
        "MQVersion_getVersionDesc": Whole(
            16, f"{_NUMBERS_TEST}::test_our_version_is_one_that_java_knows_by_name"
        ),
        "MessageConst_reserved_property_names": Whole(
            51, f"{_DEFAULTS_TEST}::test_the_properties_we_write_are_names_java_reserves"
        ),
        "MessageDecoder_messageProperties2String": each(
            8,
            "wire/test_properties.py::test_properties_are_written_as_java_does_unless_a_consumer_would_misread_them",
        ),
        "MessageDecoder_string2messageProperties": each(
            25, "wire/test_properties.py::test_a_properties_string_is_parsed_as_java_does"
        ),
        "MessageStoreConfig.messageDelayLevel_default": Whole(
            1, f"{_RULES_TEST}::test_the_delay_levels_are_java_s"
        ),
        "MessageSysFlag": each(17, f"{_NUMBERS_TEST}::test_the_bits_of_sysflag_are_java_s"),
        "MixAll_brokerVIPChannel": each(
            8, f"{_NUMBERS_TEST}::test_a_broker_is_called_at_the_address_of_its_route"
        ),
        "MixAll_getRetryTopic_getDLQTopic": each(
            5, f"{_NUMBERS_TEST}::test_retry_and_dead_letter_topics_are_named_as_in_java"
        ),
        "NamespaceUtil": each(
            68,
            "wire/test_namespace.py::test_names_are_wrapped_and_unwrapped_as_java_does",
            left_out=4,
            because="there is no null name here",
        ),
        "PermName_perm2String": each(16, f"{_RULES_TEST}::test_permissions_are_spelled_as_in_java"),
        _PULL_FLAGS: Whole(32, f"{_COMMAND_TEST}::test_the_pull_flags_are_java_s"),
        "RequestCode": Whole(158, f"{_COMMAND_TEST}::test_the_code_tables_are_java_s"),
        "ResponseCode": Whole(66, f"{_COMMAND_TEST}::test_the_code_tables_are_java_s"),
        "UtilAll_bytes2string": each(2, f"{_NUMBERS_TEST}::test_bytes_are_written_as_upper_case_hex"),
        "UtilAll_string2bytes": each(
            3, f"{_NUMBERS_TEST}::test_ids_are_read_in_either_case_but_never_with_half_a_byte"
        ),
        "Validators_checkMessage_and_putUserProperty": each(
            9,
            f"{_DEFAULTS_TEST}::test_a_message_is_refused_before_sending_where_java_refuses_it",
            named=lambda _at, case: case["case"],
            left_out=6,
            because="nothing is null here, and RocketMQ's own property names are how tags and keys are given",
        ),
        "crc32": each(7, f"{_NUMBERS_TEST}::test_the_checksum_of_a_body_is_java_s"),
        "decodeMessageId_odd_inputs": each(
            10,
            "wire/test_message_id.py::test_an_odd_offset_message_id_is_read_only_if_it_is_whole_and_hex",
            named=lambda _at, case: case["id"],
        ),
        "defaults_DefaultLitePullConsumer": each(
            46,
            f"{_DEFAULTS_TEST}::test_source_defaults_are_those_of_java_s_lite_pull_consumer",
            named=lambda _at, case: case[0],
            left_out=39,
            because="the source has no such setting",
        ),
        "defaults_DefaultMQProducer": each(
            48,
            f"{_DEFAULTS_TEST}::test_producer_defaults_are_those_of_java",
            named=lambda _at, case: case[0],
            left_out=38,
            because="the producer has no such setting",
        ),
        "defaults_DefaultMQPushConsumer": each(
            53,
            f"{_DEFAULTS_TEST}::test_consumer_defaults_are_those_of_java",
            named=lambda _at, case: case[0],
            left_out=37,
            because="the consumer has no such setting",
        ),
        "defaults_SubscriptionGroupConfig_json": Whole(
            1, "wire/test_admin_bodies.py::test_defaults_are_java_s"
        ),
        "defaults_TopicConfig_json": Whole(1, "wire/test_admin_bodies.py::test_defaults_are_java_s"),
        "name_limits": Whole(
            2, f"{_DEFAULTS_TEST}::test_topics_are_limited_to_127_characters_and_groups_to_255"
        ),
        "name_validation": each(65, f"{_RULES_TEST}::test_topic_names_are_judged_as_by_a_broker"),
        "not_allowed_send_topics": each(
            6, f"{_RULES_TEST}::test_every_topic_java_closes_to_producers_is_closed"
        ),
        "offset_msg_id": each(49, "wire/test_message_id.py::test_offset_message_ids_are_those_of_java"),
        "system_topics": each(10, "wire/test_namespace.py::test_system_topics_belong_to_no_namespace"),
        _UNIQUE_IDS: each(8, "wire/test_message_id.py::test_unique_keys_are_laid_out_as_in_java"),
    },
    "orderly_trace.json": {
        "scenarios": each(
            10, "java/test_traces.py::test_an_orderly_listener_sees_and_leaves_what_was_recorded"
        )
    },
    "remoting.json": {
        "acl": each(5, "client/test_acl.py::test_a_signature_is_javas"),
        "batch_body": each(1, f"{_MESSAGES_TEST}::test_a_batch_is_encoded_and_decoded_as_java_does"),
        "frames": each(14, f"{_COMMAND_TEST}::test_java_s_frames_are_read_as_java_reads_them"),
    },
}

_SCENES = "tests/broker_sim/test_golden_scenes.py"
_REPLAY = "tests/broker_sim/test_golden_replay.py"
FRAMES_OF_THEIR_OWN = {
    15: f"{_SCENES}::test_the_simulator_asks_for_a_transaction_as_the_real_broker_did",
    95: f"{_SCENES}::test_a_heartbeat_whose_expression_is_no_sql_is_answered_all_the_same",
    **dict.fromkeys((147, 236), f"{_REPLAY}::test_the_simulator_sends_its_clients_what_the_real_broker_sent"),
}
"""Pairs with the test that is about them, besides those that are a parameter."""
FRAMES_OF_POP = {124, 126, 127, 128, 129}
"""POP consumption, which is no part of the simulator (docs/how-to/simulator.md)."""

_PULLS, _SENDS = "tests/both/test_pulls.py", "tests/both/test_sends.py"
_OFFSETS, _FACTS = "tests/both/test_offsets.py", "tests/both/test_golden_facts.py"
_TRACES, _SEQUENCES = "tests/java/test_traces.py", "tests/java/test_sequences.py"
FACTS: dict[int, tuple[str, ...]] = {
    1: (
        f"tests/{_MESSAGES_TEST}::test_corrupt_messages_are_shown_whole_or_raise",
        f"tests/{_MESSAGES_TEST}::test_the_undecompressable_message_java_drops_silently_raises_and_names_its_place",
    ),
    2: (f"{_SENDS}::test_messages_of_a_batch_follow_each_other_and_show_one_message_id",),
    3: (
        f"{_SENDS}::test_a_message_sent_back_comes_again_in_the_retry_topic",
        "tests/both/test_send_back.py::test_an_orderly_consumer_s_message_is_a_dead_letter_by_an_ordinary_send",
        f"{_TRACES}::test_a_concurrent_listener_sees_and_leaves_what_was_recorded",
    ),
    4: (f"tests/{_RULES_TEST}::test_odd_sends_are_answered_as_by_a_broker",),
    5: (f"{_SENDS}::test_a_message_sent_back_comes_again_in_the_retry_topic",),
    6: ("tests/wire/test_message_id.py::test_unique_keys_are_laid_out_as_in_java",),
    7: (
        f"tests/{_MESSAGES_TEST}::test_a_pulled_body_decodes_to_what_java_shows",
        f"tests/{_MESSAGES_TEST}::test_the_next_offset_counts_each_message_that_is_shown",
        f"tests/{_RULES_TEST}::test_sends_to_an_inner_batch_queue_are_counted_by_members",
    ),
    8: (f"{_SENDS}::test_a_large_body_travels_compressed_and_is_read_whole",),
    9: (
        f"{_PULLS}::test_asking_for_no_message_brings_one",
        f"{_PULLS}::test_a_filter_without_any_tag_is_refused",
        "tests/both/test_sql92.py::test_a_pull_with_an_expression_that_does_not_compile_gets_everything",
        "tests/both/test_sql92.py::test_the_client_learns_whether_its_expression_compiles",
    ),
    10: (
        f"{_PULLS}::test_a_held_pull_is_answered_when_a_message_comes",
        "tests/client/test_broker.py::test_a_held_pull_is_given_up_only_after_the_broker_s_scan",
    ),
    11: (
        "tests/broker_sim/test_administration.py::test_a_reset_wakes_no_held_pull",
        "tests/both/test_administration.py::test_a_reset_is_taken_by_one_pull_and_shuts_out_commits_until_then",
    ),
    12: (f"{_PULLS}::test_an_offset_outside_the_queue_is_corrected",),
    13: (
        f"{_OFFSETS}::test_a_group_no_broker_has_heard_of_cannot_commit",
        f"{_OFFSETS}::test_any_offset_is_stored_as_it_is",
        f"{_OFFSETS}::test_a_stored_minus_1_counts_as_none",
        f"{_FACTS}::test_an_offset_is_stored_for_a_queue_that_does_not_exist",
    ),
    14: (f"{_SEQUENCES}::test_a_lite_pull_consumer_of_assigned_queues_lives_as_recorded",),
    15: (f"{_REPLAY}::test_the_simulator_answers_as_the_real_broker_did",),
    16: (
        f"{_OFFSETS}::test_a_new_group_on_a_young_queue_gets_0_unless_it_asks_otherwise",
        f"{_FACTS}::test_a_new_group_begins_a_new_topic_at_0_and_has_no_offset_for_its_retry_topic",
    ),
    17: (
        "tests/both/test_groups.py::test_a_queue_that_does_not_exist_can_be_locked",
        "tests/both/test_groups.py::test_a_locked_queue_is_refused_to_others_and_renewed_for_its_holder",
        f"{_FACTS}::test_a_lock_request_without_a_readable_body_is_an_error",
    ),
    18: (
        f"{_FACTS}::test_a_read_only_topic_takes_messages_and_a_write_only_one_gives_none",
        f"{_SENDS}::test_a_topic_of_the_broker_s_own_is_closed_to_producers",
        f"{_REPLAY}::test_the_simulator_answers_as_the_real_broker_did",
    ),
    19: ("tests/java/test_producer.py::test_a_message_is_stored_as_java_sent_it",),
    20: (
        f"{_TRACES}::test_an_orderly_listener_sees_and_leaves_what_was_recorded",
        "tests/consume/test_orderly_as_java.py::test_java_made_the_same_deliveries_and_dead_letters",
        "tests/both/test_traces_in_both_modes.py::test_a_listener_sees_and_leaves_what_java_s_was_recorded_to",
        f"{_SENDS}::test_a_retry_of_a_group_that_holds_a_lock_is_a_dead_letter_at_once",
    ),
    21: (
        f"{_TRACES}::test_a_concurrent_listener_sees_and_leaves_what_was_recorded",
        "tests/both/test_traces_in_both_modes.py::test_a_listener_sees_and_leaves_what_java_s_was_recorded_to",
        "tests/client/test_topic_routes.py::test_a_retry_topic_need_not_be_there_and_is_found_soon_after_it_was_made",
    ),
    22: (
        f"tests/{_DEFAULTS_TEST}::test_topics_are_limited_to_127_characters_and_groups_to_255",
        f"tests/{_DEFAULTS_TEST}::test_topic_and_group_options_take_the_names_java_takes",
        f"tests/{_RULES_TEST}::test_topic_names_are_judged_as_by_a_broker",
    ),
    23: (
        "tests/wire/test_subscription.py::test_a_tag_expression_is_read_as_java_reads_it",
        "tests/wire/test_subscription.py::test_only_separators_are_an_option_error_that_names_topic_and_remedy",
    ),
    24: (
        f"{_SEQUENCES}::test_a_lite_pull_consumer_lives_as_recorded",
        f"tests/{_DEFAULTS_TEST}::test_a_pull_asks_for_as_many_messages_as_the_push_consumer_s",
    ),
    25: ("tests/client/test_answers.py::test_a_success_is_judged_only_by_its_code",),
    26: (f"{_FACTS}::test_without_a_timer_wheel_a_topic_is_deleted_and_the_answer_is_an_error",),
}
"""The 26 facts that the recordings pin down, with the tests that would fail if we behaved otherwise.

Fact 26 also says that POP is refused then; the simulator has none.
"""


def _members(file_name: str) -> dict[str, Any]:
    members = json.loads((_GOLDEN / file_name).read_text())
    return {name: cases for name, cases in members.items() if name not in _PROSE}


def _cases(member: Any) -> list[Any]:
    if isinstance(member, dict):
        return [list(item) for item in member.items()]
    return member if isinstance(member, list) else [member]


def test_every_golden_file_has_its_tests() -> None:
    """A file that nobody reads fails here."""
    others = {"sequences.json", "frames.jsonl", "change_data"}
    assert {path.name for path in _GOLDEN.iterdir()} == MEMBERS.keys() | others


def test_every_recording_of_change_data_is_read_by_a_test() -> None:
    """A recording that no test of the envelopes names fails here."""
    tests = "".join(path.read_text() for path in (_TESTS / "change_data").glob("*.py"))
    recordings = [path.stem for path in (_GOLDEN / "change_data").glob("*.jsonl")]
    assert recordings
    # Debezium's are named by what follows their prefix, too.
    names = {name: (name, name.removeprefix("debezium_")) for name in recordings}
    assert [name for name, each in names.items() if not any(f'"{one}"' in tests for one in each)] == []


@pytest.mark.parametrize("file_name", MEMBERS)
def test_every_member_of_a_golden_file_is_known_with_all_its_cases(file_name: str) -> None:
    """A new member, or another number of cases than its test was written for, fails here."""
    sizes = {name: len(_cases(member)) for name, member in _members(file_name).items()}

    assert sizes == {name: expected.count for name, expected in MEMBERS[file_name].items()}


@pytest.mark.parametrize(
    ("file_name", "member"), [(file, member) for file, members in MEMBERS.items() for member in members]
)
def test_every_case_of_a_member_is_run(file_name: str, member: str, request: pytest.FixtureRequest) -> None:
    """Renaming, skipping or removing a test, or taking a case from it, fails here."""
    expected = MEMBERS[file_name][member]
    if isinstance(expected, Whole):
        file, _, _ = expected.test.partition("::")
        assert parameters_of(request.session, f"tests/{expected.test}")
        assert f'"{member}"' in (_TESTS / file).read_text()
        return
    not_run = expected.not_run(request.session, _cases(golden(file_name)[member]))
    assert len(not_run) <= expected.left_out, not_run
    assert bool(expected.because) == bool(expected.left_out)


def test_every_recorded_frame_goes_through_the_codec(request: pytest.FixtureRequest) -> None:
    """452 requests and responses, in both header forms."""
    test = "tests/wire/test_command.py::TestAgainstJava::test_every_recorded_frame_is_read"
    read = {params["recorded"] for params in parameters_of(request.session, test)}

    assert read == set(recorded_commands())
    assert len(read) == 452
    assert {command.is_binary for command in read} == {False, True}


def test_every_recorded_pair_is_played_against_the_simulator(request: pytest.FixtureRequest) -> None:
    """What a client asked is asked again;
    what the broker asked of a client is compared with what ours asks.
    """

    def parameters(test: str) -> Iterator[Mapping[str, Any]]:
        yield from parameters_of(request.session, test)

    answers = "test_the_simulator_answers_as_the_real_broker_did"
    asked = {params["pair_id"] for params in parameters(f"{_SCENES}::{answers}")}
    asked |= {params["pair"]["id"] for params in parameters(f"{_REPLAY}::{answers}")}
    pushes = f"{_SCENES}::test_the_simulator_sends_its_clients_what_the_real_broker_sent"
    pushed = {params["pushed"] for params in parameters(pushes)}
    own = {pair for pair, test in FRAMES_OF_THEIR_OWN.items() if list(parameters(test))}

    assert asked | pushed | own == {command.pair_id for command in recorded_commands()} - FRAMES_OF_POP


def test_every_recorded_scenario_is_known_to_the_simulator(request: pytest.FixtureRequest) -> None:
    """65 sequences of requests."""
    module = "tests/broker_sim/test_golden_sequences.py"
    test = f"{module}::test_every_request_of_a_recorded_scenario_is_a_recorded_frame_the_simulator_knows"
    known = {params["scenario"] for params in parameters_of(request.session, test)}

    assert known == _members("sequences.json").keys()
    assert len(known) == 65


def test_every_recorded_scenario_of_a_client_is_lived_through_again(request: pytest.FixtureRequest) -> None:
    """By Java's own clients, against the simulator; what is not a client's is listed with its reason."""
    modules = [f"tests/java/{name}.py" for name in ("test_sequences", "test_sequences_of_admin")]
    sends = parameters_of(request.session, f"{modules[0]}::test_a_producer_sends_as_recorded")
    told = " ".join(source for module in modules for source in sources_of(request.session, module))
    lived = {params["scenario"] for params in sends} | {name for name in SEQUENCES if f'"{name}"' in told}

    assert lived == SEQUENCES.keys() - NOT_OF_CLIENTS.keys()
    assert len(lived) == 45


@pytest.mark.parametrize("fact", range(1, 27))
def test_every_fact_has_its_tests(fact: int) -> None:
    """Renaming, skipping or removing one of them fails here."""
    for test in FACTS[fact]:
        source = source_of(test)
        assert source is not None, test
        assert "mark.skip" not in source, test
