"""The envelope against Java's bytes, its limits, and what malformed frames do."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.wire import codes
from pyspark_rocketmq.wire.codes import LanguageCode, PullSysFlag, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, SerializeType, decode_frame, encode_frame
from tests.helpers.golden import RecordedCommand, golden, recorded_commands

JAVA_FRAMES = golden("remoting.json")["frames"]

int16 = st.integers(-(1 << 15), (1 << 15) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
texts = st.text(max_size=20)
filled_texts = st.text(min_size=1, max_size=20)


@st.composite
def commands(draw: st.DrawFn) -> RemotingCommand:
    """Commands that both header forms can carry without loss."""
    return RemotingCommand(
        code=draw(int16),
        opaque=draw(int32),
        flag=draw(int32),
        language=draw(st.sampled_from(LanguageCode)),
        version=draw(int16),
        remark=draw(st.none() | filled_texts),
        ext_fields=draw(st.dictionaries(filled_texts, filled_texts, max_size=5)),
        body=draw(st.binary(max_size=50)),
        serialize_type=draw(st.sampled_from(SerializeType)),
    )


def json_frame(header: str | bytes, body: bytes = b"") -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return len(raw).to_bytes(4, "big") + raw + body


def binary_frame(header: bytes, body: bytes = b"") -> bytes:
    return (1 << 24 | len(header)).to_bytes(4, "big") + header + body


BINARY_FIXED = struct.pack(">hBhii", 105, 3, 409, 1, 0)
NO_TEXT = bytes(4)


def entry(name: bytes, value: bytes) -> bytes:
    return len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value


def binary_header(*entries: bytes, remark: bytes = b"") -> bytes:
    fields = b"".join(entries)
    return BINARY_FIXED + len(remark).to_bytes(4, "big") + remark + len(fields).to_bytes(4, "big") + fields


class TestAgainstJava:
    @pytest.mark.parametrize(
        "vector", JAVA_FRAMES, ids=lambda v: f"{v['serialize']}-{v['java_decodes_as']['code']}"
    )
    def test_java_s_frames_are_read_as_java_reads_them(self, vector: dict[str, Any]) -> None:
        """A1: both header forms."""
        expected = vector["java_decodes_as"]

        command = decode_frame(bytes.fromhex(vector["frame_hex"])[4:])

        assert command.serialize_type.name == vector["serialize"]
        assert command.code == expected["code"]
        assert LanguageCode(command.language).name == expected["language"]
        assert command.version == expected["version"]
        assert command.opaque == expected["opaque"]
        assert command.flag == expected["flag"]
        assert command.remark == expected["remark"]
        # An ext field that Java shows as null is absent here.
        shown = {name: value for name, value in (expected["extFields"] or {}).items() if value is not None}
        assert command.ext_fields == shown
        assert command.body.hex() == (expected["body_hex"] or "")
        assert command.is_oneway == expected["oneway"]
        assert command.is_response == expected["response"]

    @pytest.mark.parametrize(
        "vector", JAVA_FRAMES, ids=lambda v: f"{v['serialize']}-{v['java_decodes_as']['code']}"
    )
    def test_java_s_frames_are_written_byte_for_byte(self, vector: dict[str, Any]) -> None:
        """A1: the same command gives the same bytes as in Java, an empty value in the binary form aside."""
        frame = bytes.fromhex(vector["frame_hex"])
        command = decode_frame(frame[4:])

        if None in (vector["java_decodes_as"]["extFields"] or {}).values():
            assert decode_frame(encode_frame(command)[4:]) == command
        else:
            assert encode_frame(command) == frame

    @pytest.mark.parametrize("recorded", recorded_commands(), ids=str)
    def test_every_recorded_frame_is_read(self, recorded: RecordedCommand) -> None:
        """A1: 452 frames between Java clients, a name server and a broker."""
        command = decode_frame(recorded.frame)

        assert command.code == recorded.code
        assert command.is_response == recorded.is_response
        assert command.language == LanguageCode.JAVA
        assert command.body == recorded.body
        if not recorded.is_binary:
            header = json.loads(recorded.header)
            assert command.ext_fields == (header.get("extFields") or {})
            assert command.remark == header.get("remark")
            assert command.opaque == header["opaque"]

    @pytest.mark.parametrize("recorded", recorded_commands(), ids=str)
    def test_every_recorded_frame_survives_writing_and_reading(self, recorded: RecordedCommand) -> None:
        command = decode_frame(recorded.frame)

        assert decode_frame(encode_frame(command)[4:]) == command

    @pytest.mark.parametrize(
        ("enum", "name"),
        [(RequestCode, "RequestCode"), (ResponseCode, "ResponseCode"), (LanguageCode, "LanguageCode")],
    )
    def test_the_code_tables_are_java_s(
        self, enum: type[LanguageCode] | type[RequestCode] | type[ResponseCode], name: str
    ) -> None:
        java = golden("numbers.json")[name]

        assert {each.name: each.value for each in enum} == {each.name: java[each.name] for each in enum}

    def test_the_pull_flags_are_java_s(self) -> None:
        bits = [
            PullSysFlag.COMMIT_OFFSET,
            PullSysFlag.SUSPEND,
            PullSysFlag.SUBSCRIPTION,
            PullSysFlag.CLASS_FILTER,
            PullSysFlag.LITE_PULL,
        ]
        table = golden("numbers.json")[
            "PullSysFlag_buildSysFlag(commit,suspend,subscription,classFilter,litePull)"
        ]

        for *switches, expected in table:
            assert sum(bit for bit, is_on in zip(bits, switches, strict=True) if is_on) == expected

    def test_the_shown_version_means_standard_json_and_no_go_away(self) -> None:
        assert 401 <= codes.CLIENT_VERSION <= 475


class TestRoundTrip:
    @given(commands())
    def test_a_command_is_read_back_as_it_was_written(self, command: RemotingCommand) -> None:
        """A1: both header forms."""
        frame = encode_frame(command)

        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert decode_frame(frame[4:]) == command
        assert decode_frame(memoryview(frame)[4:]) == command

    @given(st.dictionaries(texts, texts), texts)
    def test_json_keeps_empty_names_values_and_remarks(self, ext_fields: dict[str, str], remark: str) -> None:
        command = RemotingCommand(code=1, ext_fields=ext_fields, remark=remark)

        assert decode_frame(encode_frame(command)[4:]) == command

    def test_a_pop_code_goes_out_with_the_json_header_only(self) -> None:
        command = RemotingCommand(code=RequestCode.POP_MESSAGE)

        assert decode_frame(encode_frame(command)[4:]).code == RequestCode.POP_MESSAGE
        for code in RequestCode:
            if code > 200_000:
                binary = RemotingCommand(code=code, serialize_type=SerializeType.ROCKETMQ)
                with pytest.raises(LocalProtocolError, match=f"{code.value}.*JSON header"):
                    encode_frame(binary)

    def test_an_empty_value_is_absent_after_the_binary_header(self) -> None:
        command = RemotingCommand(
            code=15, ext_fields={"a": "", "b": "x"}, remark="", serialize_type=SerializeType.ROCKETMQ
        )

        decoded = decode_frame(encode_frame(command)[4:])

        assert decoded.ext_fields == {"b": "x"}
        assert decoded.remark is None

    def test_a_response_echoes_the_opaque_and_the_header_form(self) -> None:
        """A1: answers are matched by flag bit 0 and opaque."""
        request = RemotingCommand(code=40, opaque=-7, serialize_type=SerializeType.ROCKETMQ)

        response = request.response(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="no", ext_fields={"a": "b"}
        )

        assert (response.code, response.opaque, response.flag) == (3, -7, 1)
        assert response.serialize_type is SerializeType.ROCKETMQ
        assert response.is_response
        assert not response.is_oneway
        assert not request.is_response
        assert decode_frame(encode_frame(response)[4:]) == response


class TestWhatCannotBeSent:
    @pytest.mark.parametrize("serialize_type", SerializeType)
    @pytest.mark.parametrize(
        "wrong",
        [
            {"code": 1 << 31},
            {"code": -(1 << 31) - 1},
            {"code": 1, "opaque": 1 << 31},
            {"code": 1, "flag": -(1 << 31) - 1},
            {"code": 1, "version": 1 << 31},
            {"code": 1, "ext_fields": {"queueId": 3}},
            {"code": 1, "ext_fields": {"queueId": None}},
            {"code": 1, "ext_fields": {"topic": "half \ud800"}},
            {"code": 1, "ext_fields": {"half \udc00": "x"}},
            {"code": 1, "remark": "half \ud800"},
        ],
        ids=str,
    )
    def test_a_value_without_a_wire_form_is_refused(
        self, wrong: dict[str, Any], serialize_type: SerializeType
    ) -> None:
        with pytest.raises(LocalProtocolError):
            encode_frame(RemotingCommand(**wrong, serialize_type=serialize_type))

    @pytest.mark.parametrize("serialize_type", SerializeType)
    def test_a_string_that_utf8_cannot_carry_is_shown(self, serialize_type: SerializeType) -> None:
        fields = {"a": "x" * 100, "topic": "the half \ud83d of one"}
        command = RemotingCommand(code=310, ext_fields=fields, serialize_type=serialize_type)

        with pytest.raises(LocalProtocolError) as caught:
            encode_frame(command)

        assert r"the half \ud83d of one" in str(caught.value)
        assert len(str(caught.value)) < 200

    @pytest.mark.parametrize("name", ["", "x" * 32768])
    def test_a_name_without_a_binary_form_is_refused(self, name: str) -> None:
        command = RemotingCommand(code=1, ext_fields={name: "v"}, serialize_type=SerializeType.ROCKETMQ)

        with pytest.raises(LocalProtocolError, match="1 to 32767 bytes"):
            encode_frame(command)

    def test_a_frame_longer_than_servers_accept_is_refused(self) -> None:
        empty = len(encode_frame(RemotingCommand(code=10)))
        longest = RemotingCommand(code=10, body=bytes(100))

        assert len(encode_frame(longest, max_frame_length=empty + 100)) == empty + 100
        with pytest.raises(LocalProtocolError, match=f"{empty + 100} bytes"):
            encode_frame(longest, max_frame_length=empty + 99)
        with pytest.raises(LocalProtocolError, match="16777216"):
            encode_frame(RemotingCommand(code=10, body=bytes(16 * 1024 * 1024)))

    def test_a_header_of_more_than_24_bits_of_length_is_refused(self) -> None:
        command = RemotingCommand(code=10, remark="x" * 0x1000000)

        with pytest.raises(LocalProtocolError, match=r"^The header .*at most 16777215 are"):
            encode_frame(command, max_frame_length=1 << 30)


class TestMalformedFrames:
    @pytest.mark.parametrize(
        "vector", JAVA_FRAMES, ids=lambda v: f"{v['serialize']}-{v['java_decodes_as']['code']}"
    )
    def test_a_frame_cut_anywhere_in_its_header_raises(self, vector: dict[str, Any]) -> None:
        frame = bytes.fromhex(vector["frame_hex"])[4:]
        header_end = 4 + int.from_bytes(frame[1:4], "big")

        for end in range(header_end):
            with pytest.raises(RemoteProtocolError):
                decode_frame(frame[:end])

    @pytest.mark.parametrize(
        "vector", JAVA_FRAMES, ids=lambda v: f"{v['serialize']}-{v['java_decodes_as']['code']}"
    )
    def test_a_header_cut_anywhere_raises_though_its_length_is_right(self, vector: dict[str, Any]) -> None:
        frame = bytes.fromhex(vector["frame_hex"])[4:]
        header = frame[4 : 4 + int.from_bytes(frame[1:4], "big")]

        for end in range(len(header)):
            cut = frame[:1] + end.to_bytes(3, "big") + header[:end]
            with pytest.raises(RemoteProtocolError):
                decode_frame(cut)

    @given(st.binary(max_size=200))
    def test_random_bytes_raise_nothing_but_remote_protocol_errors(self, data: bytes) -> None:
        for frame in (data, json_frame(data), binary_frame(data), binary_frame(BINARY_FIXED + data)):
            try:
                decode_frame(frame)
            except RemoteProtocolError as exc:
                assert str(exc)  # noqa: PT017 - most inputs raise, some do not

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | texts,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["code", "opaque", "flag", "extFields", "remark", "language", "version", "x"]
                    ),
                    inner,
                    max_size=6,
                )
            ),
            max_leaves=10,
        )
    )
    def test_any_json_raises_nothing_but_remote_protocol_errors(self, value: Any) -> None:
        try:
            command = decode_frame(json_frame(json.dumps(value)))
        except RemoteProtocolError:
            return
        assert all(isinstance(text, str) for text in command.ext_fields.values())
        assert type(command.code) is int

    @pytest.mark.parametrize("serialize_type", [2, 3, 127, 255])
    def test_an_unknown_serialize_type_raises(self, serialize_type: int) -> None:
        with pytest.raises(RemoteProtocolError, match=f"{serialize_type} is neither"):
            decode_frame(bytes([serialize_type, 0, 0, 0]))

    @pytest.mark.parametrize(
        "header",
        [
            "",
            "[]",
            "null",
            "7",
            '{"code":0}',
            '{"opaque":0}',
            '{"code":null,"opaque":0}',
            '{"code":"0","opaque":0}',
            '{"code":true,"opaque":0}',
            '{"code":1.0,"opaque":0}',
            '{"code":1e3,"opaque":0}',
            '{"code":2147483648,"opaque":0}',
            '{"code":0,"opaque":-2147483649}',
            '{"code":0,"opaque":0,"flag":"1"}',
            '{"code":0,"opaque":0,"version":[]}',
            '{"code":0,"opaque":0,"remark":5}',
            '{"code":0,"opaque":0,"extFields":[]}',
            '{"code":0,"opaque":0,"extFields":"a"}',
            '{"code":0,"opaque":0,"extFields":{"a":{}}}',
            '{"code":0,"opaque":0,"extFields":{"a":["b"]}}',
            '{"code":0,"opaque":0,"extFields":{"a":NaN}}',
            '{"code":0,"opaque":Infinity}',
            '{"code":0,"opaque":0}}',
            '{"code":0,"opaque":0} x',
            '{"code":0,"opaque":' + "9" * 5000 + "}",
            '{"code":0,"opaque":0,"x":' + "[" * 100_000,
            b'\xff{"code":0,"opaque":0}',
            b'{"code":0,"opaque":0,"remark":"\xe8\xae"}',
        ],
        ids=lambda header: repr(header[:60]),
    )
    def test_a_json_header_of_the_wrong_shape_raises(self, header: bytes | str) -> None:
        with pytest.raises(RemoteProtocolError):
            decode_frame(json_frame(header))

    @pytest.mark.parametrize(
        "header",
        [
            BINARY_FIXED,
            BINARY_FIXED + NO_TEXT,
            BINARY_FIXED + NO_TEXT + NO_TEXT + b"\0",
            BINARY_FIXED + NO_TEXT + b"\xff\xff\xff\xff",
            BINARY_FIXED + b"\xff\xff\xff\xff" + NO_TEXT,
            BINARY_FIXED + b"\x00\x00\x00\x05" + NO_TEXT,
            binary_header(remark=b"\xff"),
            binary_header(entry(b"", b"v")),
            binary_header(entry(b"\xc3", b"v")),
            binary_header(entry(b"k", b"\xc3")),
            binary_header(b"\xff\xffk"),
            binary_header(b"\x00\x01k\xff\xff\xff\xffv"),
            binary_header(b"\x00"),
            binary_header(b"\x00\x01k"),
        ],
        ids=lambda header: header[13:].hex(),
    )
    def test_a_binary_header_of_the_wrong_shape_raises(self, header: bytes) -> None:
        with pytest.raises(RemoteProtocolError):
            decode_frame(binary_frame(header))


class TestTolerance:
    def test_ext_fields_that_are_no_text_are_read_as_fastjson_reads_them(self) -> None:
        header = '{"code":0,"opaque":1,"extFields":{"i":-5,"f":1.50,"t":true,"n":null,"s":"x"}}'

        assert decode_frame(json_frame(header)).ext_fields == {"i": "-5", "f": "1.50", "t": "true", "s": "x"}

    def test_of_a_name_given_twice_the_last_counts_in_both_forms(self) -> None:
        header = '{"code":0,"code":7,"opaque":1,"extFields":{"a":"1","a":"2"}}'
        in_json = decode_frame(json_frame(header))
        in_binary = decode_frame(binary_frame(binary_header(entry(b"a", b"1"), entry(b"a", b"2"))))
        nulled = decode_frame(binary_frame(binary_header(entry(b"a", b"1"), entry(b"a", b""))))

        assert in_json.code == 7
        assert in_json.ext_fields == in_binary.ext_fields == {"a": "2"}
        assert nulled.ext_fields == {}

    def test_unknown_keys_order_space_and_null_fields_do_not_matter(self) -> None:
        header = (
            '\n{ "version" : 1, "zzz" : {"a":[1]}, "remark":null, "extFields":null, "opaque":2, "code":3 }\t'
        )

        command = decode_frame(json_frame(header))

        assert (command.code, command.opaque, command.version, command.flag) == (3, 2, 1, 0)
        assert command.ext_fields == {}
        assert command.remark is None

    @pytest.mark.parametrize(("language", "expected"), [('"GO"', 9), ('"COBOL"', 7), ("null", 7), ("12", 7)])
    def test_an_unknown_language_is_other(self, language: str, expected: int) -> None:
        command = decode_frame(json_frame(f'{{"code":0,"opaque":0,"language":{language}}}'))

        assert command.language == expected

    def test_a_language_number_without_a_name_is_sent_as_other_in_json(self) -> None:
        unknown = RemotingCommand(code=0, language=200)

        assert decode_frame(encode_frame(unknown)[4:]).language == LanguageCode.OTHER

    def test_negative_numbers_are_kept(self) -> None:
        for serialize_type in SerializeType:
            command = RemotingCommand(code=-1000, opaque=-1, flag=-3, serialize_type=serialize_type)

            assert decode_frame(encode_frame(command)[4:]) == command


def test_a_binary_header_is_weighed_by_its_fields() -> None:
    """A1: as texts they take fifty times as much as on the wire."""
    few = RemotingCommand(code=1, ext_fields={"a": "x" * 4_000_000}, serialize_type=SerializeType.ROCKETMQ)
    many = RemotingCommand(
        code=1,
        ext_fields={f"{at:x}": "x" for at in range(120_000)},
        serialize_type=SerializeType.ROCKETMQ,
    )

    assert decode_frame(encode_frame(few)[4:]) == few
    with pytest.raises(RemoteProtocolError, match=r"with more than [0-9]+ fields was refused: it would take"):
        decode_frame(encode_frame(many)[4:])
