"""Settings of commands: declared like the data source's options, read from a TOML file and ``--option``.

``--option key=value`` overrides the file. Tables in the file only group options: ``[listener]
outputSchema = …`` is the option ``outputSchema``. The exceptions are ``[storageSecrets]`` and
``[brokerAddresses]``, each of which is one option.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark_rocketmq.delta.paths import TableName, expanded_uri, has_one_slash, local_path
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options.connection import connection_problems, implied_namespace
from pyspark_rocketmq.options.consumer import ConsumerOptions
from pyspark_rocketmq.options.declare import OptionSet, OptionSpec, option, specs_of
from pyspark_rocketmq.options.parsers import Parser, instance_name, parses, resource_name, text_value
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.store_spec import StoreKind, StoreSpec
from pyspark_rocketmq.options.write import WriteOptions

SettingsT = TypeVar("SettingsT", bound=OptionSet)

_MAPS: Final = frozenset({"storagesecrets", "brokeraddresses"})
"""Tables that are one option each, in lower case."""
GROUP_DOC = "The consumer group whose progress this is."
OFFSET_STORE_DOC = (
    "Where the consumer groups' progress is: path or URI of a Delta table, or as the data source takes it."
)
STORAGE_DOC = (
    "How to reach the storage of tables: delta-rs' options, as a table of the --conf file or in JSON; they "
    "stay the same while the command runs."
)


class JobFailed(Exception):
    """The command could not do its work; the text is a sentence for the user. Exit code 1."""


def like_source(name: str, **given: Any) -> Any:
    """Declare a command's option like the data source's option with field ``name``.

    ``given`` may set another ``default``, ``default_text``, ``doc`` or ``parse``, or ``required=True``.
    """
    return _like(ReadOptions, name, **given)


@parses("string")
def stored_group(text: str) -> str:
    """Parse a name in an offset store: ``GROUP``, or ``GROUP@INSTANCE`` for one of a broadcasting group."""
    name, at, instance = text.strip().partition("@")
    group = resource_name("consumer group", 255)(name)
    return f"{group}@{instance_name(instance)}" if at else group


def like_stored_group(**given: Any) -> Any:
    """Declare option ``consumerGroup`` of a command that looks a group up in the offset store."""
    return like_source("consumer_group", parse=stored_group, **given)


def like_writer(name: str, **given: Any) -> Any:
    """Declare a command's option like the option with field ``name`` of writes with format ``rocketmq``.

    ``given`` may set another ``default``, ``default_text`` or ``doc``, or ``required=True``.
    """
    return _like(WriteOptions, name, **given)


def like_consumer(name: str, **given: Any) -> Any:
    """Declare a command's option like the consumer's option with field ``name``.

    ``given`` may set another ``default``, ``default_text`` or ``doc``, or ``required=True``.
    """
    return _like(ConsumerOptions, name, **given)


def _like(
    options: type[OptionSet],
    name: str,
    *,
    required: bool = False,
    default: Any = dataclasses.MISSING,
    default_text: str | None = None,
    doc: str | None = None,
    parse: Parser[Any] | None = None,
) -> Any:
    """Declare an option like field ``name`` of ``options``, except for the arguments that are given.

    Key and unit are always the same. Give ``doc`` if the option means something else in the command,
    ``default`` if the command has another default.
    """
    field = next(field for field in dataclasses.fields(options) if field.name == name)
    spec: OptionSpec = field.metadata["spec"]
    has_own = default is dataclasses.MISSING
    is_required = required or (spec.required and has_own)
    known: dict[str, Any] = {"instead": spec.instead}
    if not is_required:
        own_text = spec.default_text if has_own else None
        known = {"default": field.default if has_own else default, "default_text": default_text or own_text}
    return option(spec.key, parse or spec.parse, unit=spec.unit, secret=spec.secret, **known).doc(
        doc or spec.doc
    )


def gather_texts(conf: Path | None, pairs: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Merge file ``conf`` and the ``--option`` pairs; return strings by key, and a sentence for each problem.

    A pair replaces the file's value of its key. Keys are merged without regard to case, as Spark treats them.
    """
    problems: list[str] = []
    texts: dict[str, str] = {}
    for source in (_file_entries(conf, problems), _pair_entries(pairs, problems)):
        entries = dict(source)
        overridden = {key.lower() for key in entries}
        texts = {key: text for key, text in texts.items() if key.lower() not in overridden} | entries
    return texts, problems


def _pair_entries(pairs: Sequence[str], problems: list[str]) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if separator and key.strip():
            yield key.strip(), text
        else:
            # The text after it may be a secret.
            begin = re.match(r"\w*", pair)
            assert begin is not None
            problems.append(f"--option '{begin[0]}{'…' * (begin.end() < len(pair))}' is not key=value")


def _file_entries(conf: Path | None, problems: list[str]) -> Iterator[tuple[str, str]]:
    if conf is None:
        return
    try:
        document = tomllib.loads(conf.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"--conf {conf} cannot be read: {error.strerror}")
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"--conf {conf} is not TOML: {error}")
        return
    seen: set[str] = set()
    for key, value in _flatten(document):
        if key.lower() in seen:
            problems.append(f"--conf {conf} sets '{key}' twice")
            continue
        seen.add(key.lower())
        text = _to_text(value)
        if text is None:
            problems.append(
                f"--conf {conf}: '{key}' must be a string, a number, true or false, or a list of these"
            )
        else:
            yield key, text


def _flatten(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if key.lower() in _MAPS and isinstance(value, dict):
            unfit = {name: each for name, each in value.items() if _to_text(each) is None}
            yield from ((f"{key}.{name}", each) for name, each in unfit.items())
            yield key, json.dumps({name: each for name, each in value.items() if name not in unfit})
        elif isinstance(value, dict):
            yield from _flatten(value)
        else:
            yield key, value


def _to_text(value: Any) -> str | None:
    """Return a TOML value as the text that a user would type after ``key=``; None for tables and dates."""
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case list():
            parts = [_to_text(part) for part in value]
            return None if None in parts else ",".join(part for part in parts if part is not None)
        case _:
            return None


def load_settings(settings: type[SettingsT], job: str, conf: Path | None, pairs: Sequence[str]) -> SettingsT:
    """Read and parse the settings of one command.

    Raises:
        OptionError: With a sentence for every problem of the file, of ``--option`` and of the values.
    """
    texts, problems = gather_texts(conf, pairs)
    try:
        parsed = settings.parse(texts)
    except OptionError as error:
        problems += [*error.problems, *(_store_problems(texts) if job.startswith("offsets ") else ())]
    else:
        if not problems:
            return parsed
    raise OptionError(tuple(problems), where=f"settings of pyspark-rocketmq {job}")


def _store_problems(texts: Mapping[str, str]) -> list[str]:
    """Return a sentence if option ``offsetStore`` names a local Delta table that is missing, else ``[]``.

    This check runs only if there are other problems, so that the user sees all of them together.
    """
    given = next((text for key, text in texts.items() if key.lower() == "offsetstore"), "")
    try:
        spec = StoreSpec.parse(given)
    except ValueError:
        return []
    folder = local_path(spec.place) if spec.kind is StoreKind.DELTA else None
    if folder is None or Path(folder, "_delta_log").is_dir():
        return []
    return [f"option offsetStore='{given}' is wrong: there is no offset table at {spec.place}"]


@parses("string")
def parse_location(text: str) -> str:
    """Parser of a path or storage URI; a relative path is resolved against the current directory.

    ``file:/…`` becomes a path. Other URIs with a single slash are refused.
    """
    value = text_value(text)
    try:
        return expanded_uri(value)
    except OptionError as error:
        raise ValueError(f"cannot be used: {'; '.join(error.problems)}") from None


@parses("string")
def parse_location_of_spark(text: str) -> str:
    """Parser of a path or URI that only Spark reads, such as ``dbfs:/…``; a URI stays as it is."""
    value = text_value(text)
    return value if has_one_slash(value) else parse_location(value)


@parses("string")
def parse_table(text: str) -> str:
    """Parser of a path, a storage URI or the name of a table, which has a dot and no slash."""
    try:
        name = TableName.of(text_value(text))
    except OptionError as error:
        raise ValueError(f"is ambiguous: {'; '.join(error.problems)}") from None
    return parse_location(text) if name is None else str(name)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClusterAccess(OptionSet):
    """Options of every command that reads from a cluster, which may be secured."""

    namespace: str | None = like_source("namespace")
    namespace_v2: str | None = like_source("namespace_v2")
    broker_addresses: tuple[tuple[str, str], ...] = like_source("broker_addresses")
    access_key: str | None = like_source("access_key")
    secret_key: str | None = like_source("secret_key")
    security_token: str | None = like_source("security_token")
    use_tls: bool = like_source("use_tls")
    tls_ca_file: str | None = like_source("tls_ca_file")
    tls_cert_file: str | None = like_source("tls_cert_file")
    tls_key_file: str | None = like_source("tls_key_file")
    tls_key_password: str | None = like_source("tls_key_password")
    tls_verify_certificate: bool = like_source("tls_verify_certificate")
    tls_verify_hostname: bool = like_source("tls_verify_hostname")

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``{"namespace": …}`` if a name server's host name contains a cloud instance's namespace.

        Otherwise, or if a namespace is given, return an empty dictionary.
        """
        return implied_namespace(values)

    def cross_field_problems(self) -> list[str]:
        """Return a sentence for each connection option that lacks another option or excludes another one.

        The data source would find these problems only after Spark's start or the read of a store.
        """
        return connection_problems(self)

    def access_options(self, namespace: str | None = None) -> dict[str, str]:
        """Return the options of this class that are given, as strings by the data source's keys.

        A ``namespace`` other than None replaces option ``namespace``; an empty one removes it.
        """
        texts = _texts(self, (field.metadata["spec"].key for field in dataclasses.fields(ClusterAccess)))
        named = {} if namespace is None else {"namespace": namespace}
        return {key: text for key, text in (texts | named).items() if text}

    def options_for(self, options: type[OptionSet], *, but: Container[str] = ()) -> dict[str, str]:
        """Return this command's values of the options in ``options``, as strings by key.

        Options that the command lacks, and empty values, are left out.

        Args:
            options: Options of reads or of writes with format ``rocketmq``.
            but: Keys that are left out.
        """
        return _texts(self, (spec.key for spec in specs_of(options) if spec.key not in but))


def _texts(settings: OptionSet, keys: Iterable[str]) -> dict[str, str]:
    """Return this command's values of the options ``keys`` as strings by key.

    Keys that the command lacks, and those whose value is None or an empty tuple, are left out.
    """
    values = {
        field.metadata["spec"].key: getattr(settings, field.name) for field in dataclasses.fields(settings)
    }
    return {key: _text_of(values[key]) for key in keys if values.get(key) not in {None, ()}}


def _text_of(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, tuple):
        return str(value)
    is_list = isinstance(value[0], str)
    return ";".join(value) if is_list else json.dumps(dict(value))
