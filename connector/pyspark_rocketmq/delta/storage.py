"""Where a Delta table is: paths, URIs, storage options and file systems.

Without delta-rs, so that tasks can import it: a task whose table is on storage of other machines loads it
when it begins to write.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark_rocketmq.display import counted, masked
from pyspark_rocketmq.errors import OptionError

if TYPE_CHECKING:
    from pyarrow import fs

logger = logging.getLogger(__name__)

_WITHOUT_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What the system answers where a file system has no hard links."""
_SINGLE_SLASH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_NAME: Final = re.compile(r"(?:`(?:[^`]|``)+`|\w+)(?:\.(?:`(?:[^`]|``)+`|\w+))*")
_NAME_PART: Final = re.compile(r"`((?:[^`]|``)+)`|(\w+)")
_PLAIN: Final = re.compile(r"\w+")
_BLOB_URI: Final = re.compile(r"wasb(s?)://([^/@]+@[^/.]+)\.blob\.")


class TableName(NamedTuple):
    """A table of a catalog that Spark knows."""

    parts: tuple[str, ...]
    """Schema and table, or catalog, schema and table."""

    def __str__(self) -> str:
        """As SQL has it, with backquotes where they are needed."""
        return ".".join(part if _PLAIN.fullmatch(part) else quoted_name(part) for part in self.parts)

    @property
    def sql(self) -> str:
        """The same with all backquotes, for a word of SQL may be a name, too."""
        return ".".join(map(quoted_name, self.parts))

    @classmethod
    def of(cls, place: str | Path) -> TableName | None:
        """The name that users mean; None if it is a path or a URI, which has a slash.

        Raises:
            OptionError: If it could be either, or is none.
        """
        text = str(place)
        # A part of a name has a slash within backquotes alone, and none begins with it.
        is_path = isinstance(place, Path) or "://" in text or text.startswith(("/", ".", os.sep))
        if is_path or (("/" in text or os.sep in text) and "`" not in text):
            return None
        folder = f"for a folder write './{text}'" if "`" not in text else "for a folder write its path"
        where = "name of a Delta table"
        if _NAME.fullmatch(text) is None:
            problem = (
                f"'{text}' is no name of a table: write SCHEMA.TABLE or CATALOG.SCHEMA.TABLE, with "
                f"backquotes around a part that has other characters than letters, digits and _; {folder}"
            )
            raise OptionError((problem,), where=where)
        found = _NAME_PART.findall(text)
        parts = tuple(quoted.replace("``", "`") or plain for quoted, plain in found)
        if len(parts) == 2 and parts[0].lower() == "delta" and "/" in parts[1]:
            raise OptionError((f"'{text}' is Spark's way to write a path; write '{parts[1]}'",), where=where)
        if len(parts) not in (2, 3):
            problem = (
                f"'{text}' has {counted(len(parts), 'part')}; for a table of a catalog write SCHEMA.TABLE or "
                f"CATALOG.SCHEMA.TABLE, {folder} or an absolute path"
            )
            raise OptionError((problem,), where=where)
        if "`" not in text and Path(text, "_delta_log").is_dir():
            problem = (
                f"'{text}' could be a table of a catalog, or the Delta table in the folder of that name; "
                f"{folder}, for the catalog's {cls(parts).sql}"
            )
            raise OptionError((problem,), where=where)
        return cls(parts)

    @classmethod
    def is_one(cls, place: str | Path) -> bool:
        """Whether ``place`` is a name and nothing else."""
        try:
            return cls.of(place) is not None
        except OptionError:
            return False


def quoted_name(name: str) -> str:
    """A name of Spark's SQL in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def table_uri(path: str | Path) -> str:
    """Return a storage URI as it is and a local path made absolute: other processes work in other folders.

    Raises:
        OptionError: If it is a URI with a single slash, which would be a folder of that name below the one
            that the process works in.
    """
    text = str(path)
    blob = _BLOB_URI.match(text)
    if blob is not None:
        # Hadoop's older name for the same container, which delta-rs does not know.
        return f"abfs{blob[1]}://{blob[2]}.dfs.{text[blob.end() :]}"
    scheme = _SINGLE_SLASH.match(text)
    if scheme is None or isinstance(path, Path):
        return text if "://" in text else str(Path(path).absolute())
    if scheme[1].lower() == "file":
        # As Hadoop writes it, for which a percent sign is one.
        return text[scheme.end() - 1 :]
    rest = text[scheme.end() :]
    if scheme[1].lower() == "dbfs":
        problem = (
            f"'{text}' is a path of Spark's alone; write /dbfs/{rest}, or a folder of a volume: /Volumes/…"
        )
    else:
        problem = (
            f"'{text}' is neither a path nor a URI; write {scheme[1]}://AUTHORITY/{rest}, or for a folder of "
            f"that name ./{text}"
        )
    raise OptionError((problem,), where="path of a table")


def folder_here(path: str) -> str | None:
    """The folder on this machine that a path or a URI names; None for other storage."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    # Spark writes dbfs:/… and viewfs:/… with one slash.
    return None if "://" in path or _SINGLE_SLASH.match(path) else path


def check_exclusive_create(uri: str) -> None:
    """Refuse a folder of this machine in which two writers could create the same file.

    A Delta commit is a file that only one writer may create.  On a disk delta-rs links it into place, which
    fails if the name is taken; Databricks' volumes and many FUSE mounts have no links.

    Raises:
        OptionError: If links cannot be made there.  A folder that is missing or cannot be written is left to
            the first commit.
    """
    folder = folder_here(uri)
    if folder is None:
        return
    try:
        # Delta ignores names that begin so, if a process dies in between.
        with NamedTemporaryFile(prefix="_rocketmq-", dir=folder) as probe:
            os.link(probe.name, f"{probe.name}.link")
            Path(f"{probe.name}.link").unlink()
    except OSError as exc:
        if exc.errno in _WITHOUT_LINKS:
            problem = (
                f"{folder} is on storage that cannot create a file exclusively ({exc.strerror}), so two "
                "writers could overwrite each other's commits. Volumes and FUSE mounts are such. Name the "
                "table by the storage's own address (s3://…, abfss://…, gs://…), or put it on a disk or a "
                "network mount that has hard links."
            )
            raise OptionError((problem,), where="path of a table") from exc


_NO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""What a mount answers that has no ``fsync``."""


def keep_on_disk(path: str | Path) -> None:
    """Wait until a file or folder of this machine is on its disk, and would be there after a power cut.

    Raises:
        OSError: If the disk did not take it.
    """
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(opened)


def filesystem_of(uri: str, storage: StorageOptions | None = None) -> tuple[fs.FileSystem, str]:
    """Return the file system and folder of a table.

    Storage of other machines is reached as delta-rs reaches it, in tasks too: one set of options, of schemes
    and of ways to find credentials. A worker loads it in 18 ms and 19 MB, Arrow's S3 in 15 ms and 9 MB; from
    the first file on either has taken some 110 MB, and a small file takes 15 ms, with Arrow 19. Opening a
    file keeps the process's other threads waiting for one answer of the storage, which Arrow does not. A
    worker does not fork, and the daemon that does has not loaded it.

    Raises:
        OptionError: If delta-rs does not know the URI's scheme.
    """
    # Arrow is not loaded by whoever only needs a table's place.
    from pyarrow import fs

    folder = folder_here(uri)
    if folder is not None:
        return fs.LocalFileSystem(), str(Path(folder).absolute())
    from deltalake.exceptions import DeltaError
    from deltalake.fs import DeltaStorageHandler

    options = storage or NO_OPTIONS
    try:
        return fs.PyFileSystem(DeltaStorageHandler(uri, options.values_for(uri))), ""
    except (DeltaError, ValueError) as error:
        problem = (
            f"files cannot be written to {masked(uri)}: {options.told(error)} Use a path, or the URI of "
            "storage that delta-rs knows"
        )
        raise OptionError((problem,), where="storage of a Delta table") from None


Given = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Storage options as users give them."""


class StorageOptions:
    """How to reach storage: delta-rs' options by name, such as ``aws_access_key_id`` or ``allow_http``.

    Given once, or by a callable where credentials expire: it is called when a table is opened and when
    :meth:`renew` is, not in between. What the environment of this process says is added, where the options do
    not say it: tasks and planner may have another environment.

    No text shows a value: not ``repr``, not an error's.
    """

    def __init__(self, given: Given | None = None) -> None:
        """Keep the options; a callable is called when they are first needed.

        Raises:
            OptionError: If they are no mapping of names to texts, numbers or booleans.
        """
        self._given = given
        self._values: dict[str, str] | None = None if callable(given) else _texts_of(given or {})
        self._used: dict[str, str] = {}
        """The last values for a table."""

    @classmethod
    def of(cls, given: StorageOptions | Given | None) -> StorageOptions:
        """The same object if it is one already."""
        return given if isinstance(given, StorageOptions) else cls(given)

    @classmethod
    def parse(cls, text: str | None) -> StorageOptions:
        """Read a JSON object.

        Raises:
            ValueError: With the end of a sentence; the text is not shown.
        """
        if text is None:
            return NO_OPTIONS
        try:
            found = json.loads(text)
        except ValueError:
            raise ValueError("is no JSON") from None
        try:
            return cls(found)
        except OptionError as error:
            raise ValueError(f"is wrong: {'; '.join(error.problems)}") from None

    @property
    def is_renewable(self) -> bool:
        """Whether a callable gives them."""
        return callable(self._given)

    @property
    def values(self) -> Mapping[str, str]:
        """What was given, as of the last renewal; another object after each."""
        return self.renew() if self._values is None else self._values

    def values_for(self, uri: str) -> dict[str, str]:
        """What reaches the storage of ``uri``: environment and tries included; empty for a folder here."""
        if folder_here(uri) is not None:
            return {}
        given = _joined(self.values, _environment_for(uri))
        self._used = {**_patience_for(uri, given), **given}
        return self._used

    def renew(self) -> Mapping[str, str]:
        """Call the callable, if there is one; what the values are then: the same object if they are equal.

        If it fails, the values of before go on.

        Raises:
            OSError: If it fails the first time: what needs the options may be tried again, as when storage
                does not answer.
            OptionError: If what it returns are no options.
        """
        if callable(self._given):
            try:
                values = _texts_of(self._given())
            except OptionError:
                raise
            except Exception as error:
                failure = type(error).__name__
                if self._values is None:
                    raise OSError(
                        f"There are no storage options: their callable failed with {failure}. Look at the "
                        "error below it in the traceback, and start again."
                    ) from error
                # Not its text, which may hold anything.
                logger.warning(
                    "storage options could not be renewed, going on with those of before: %s", failure
                )
            else:
                self._values = self._values if values == self._values else values
        assert self._values is not None
        return self._values

    def as_of_now(self, uri: str) -> StorageOptions:
        """What tasks get: the values alone, the environment's included."""
        return StorageOptions(self.values_for(uri))

    def told(self, error: BaseException) -> str:
        """The text of an error of storage, on one line; values in it are ``***``, in its causes too."""
        values = {**self._used, **(self._values or {})}
        hidden = [
            text for name, text in values.items() if _SECRET.search(name) and len(text) >= _SHORTEST_HIDDEN
        ]
        # One may be a part of another.
        hidden.sort(key=len, reverse=True)
        seen: BaseException | None = error
        while seen is not None:
            seen.args = tuple(_without(arg, hidden) if isinstance(arg, str) else arg for arg in seen.args)
            seen = seen.__cause__ or seen.__context__
        text = _without(str(error), hidden)
        return text if text.endswith((".", "!")) else f"{text}."

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageOptions) and self._given == other._given

    def __hash__(self) -> int:
        return hash(repr(self))

    def __reduce__(self) -> tuple[type[StorageOptions], tuple[Any]]:
        return StorageOptions, (self._given,)

    def __repr__(self) -> str:
        names = ["a callable"] if self.is_renewable else sorted(self.values)
        return f"StorageOptions({', '.join(names)})"


_SECRET: Final = re.compile("key|secret|token|password|credential|sas|service_account", re.IGNORECASE)
"""Names whose values errors do not show."""
_SHORTEST_HIDDEN: Final = 6
"""Characters: shorter values may be part of any word."""


_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")


def _without(text: str, hidden: Iterable[str]) -> str:
    # delta-rs writes causes on lines of their own, in colours.
    text = masked(" ".join(_COLOUR.sub("", text).split()))
    for value in hidden:
        text = text.replace(value, "***")
    return text


def _texts_of(given: object) -> dict[str, str]:
    where = "storage options"
    if not isinstance(given, Mapping):
        raise OptionError(
            (f"they are a {type(given).__name__}, not a mapping of names to texts",), where=where
        )
    problems = [
        f"'{name}' is of type {type(value).__name__}; give it as text"
        for name, value in given.items()
        if not isinstance(value, str | bool | int)
    ]
    if problems:
        raise OptionError(tuple(problems), where=where)
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }


_FROM_ENVIRONMENT: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL",
        "AWS_ALLOW_HTTP",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
        "AWS_CONDITIONAL_PUT",
        "AWS_COPY_IF_NOT_EXISTS",
        "AWS_S3_LOCKING_PROVIDER",
        "AWS_SERVER_SIDE_ENCRYPTION",
        "AWS_SSE_KMS_KEY_ID",
        "AWS_SSE_BUCKET_KEY_ENABLED",
        "AWS_REQUEST_PAYER",
    ),
    "az": (
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_CLIENT_ID",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_STORAGE_TENANT_ID",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_STORAGE_USE_EMULATOR",
    ),
    "gs": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
}
"""What is true on any machine. A role's or a file's name is not: each process finds its own."""
_ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": (
        "AWS_PROFILE",
        "AWS_ROLE_ARN",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_SHARED_CREDENTIALS_FILE",
    ),
    "az": ("AZURE_FEDERATED_TOKEN_FILE", "IDENTITY_ENDPOINT", "MSI_ENDPOINT"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
}
_REGIONS: Final = frozenset({"AWS_REGION", "AWS_DEFAULT_REGION"})
"""Many machines have one, whatever their programs reach."""
_BRAND: Final = re.compile("^(?:aws|azure_storage|azure|google)_")
_SYNONYMS: Final = {
    "default_region": "region",
    "endpoint_url": "endpoint",
    "endpoint_url_s3": "endpoint",
    "token": "session_token",
    "access_key": "account_key",
    "master_key": "account_key",
    "sas_token": "sas_key",
}
_FAMILY_OF: Final = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("az", "adl", "azure", "abfs", "abfss"), "az"),
    "gs": "gs",
}


_PATIENCE: Final = {"backoff_config.max_backoff": "1s", "max_retries": "20"}
"""Some ten seconds.  delta-rs by itself tries ten times and sleeps for up to 15 s in between, however soon
the storage is back."""


def _patience_for(uri: str, given: Iterable[str]) -> dict[str, str]:
    if urlsplit(uri).scheme.lower() not in _FAMILY_OF:
        return {}
    # delta-rs knows each by several names, and which of two wins is left to chance.
    known = {name.rpartition(".")[2].lower() for name in given}
    return {name: text for name, text in _PATIENCE.items() if name.rpartition(".")[2] not in known}


def _environment_for(uri: str) -> dict[str, str]:
    names = _FROM_ENVIRONMENT.get(_FAMILY_OF.get(urlsplit(uri).scheme.lower(), ""), ())
    return {name: text for name in names if (text := os.environ.get(name))}


def is_reached_by_environment(uri: str) -> bool:
    """Whether this process's environment says more of the storage of ``uri`` than a region."""
    place = table_uri(uri)
    roles = _ROLES.get(_FAMILY_OF.get(urlsplit(place).scheme.lower(), ""), ())
    return not _environment_for(place).keys() <= _REGIONS or any(map(os.environ.get, roles))


def _joined(*layers: Mapping[str, str]) -> dict[str, str]:
    """One of each option, the first one; delta-rs would take any of those that have several names."""
    joined: dict[str, str] = {}
    known: set[str] = set()
    for name, text in (item for layer in layers for item in layer.items()):
        plain = _BRAND.sub("", name.lower())
        plain = _SYNONYMS.get(plain, plain)
        if plain not in known:
            joined[name] = text
        known.add(plain)
    return joined


NO_OPTIONS: Final = StorageOptions()
"""What the environment says, alone."""

_S3A: Final = {
    "access.key": "aws_access_key_id",
    "secret.key": "aws_secret_access_key",
    "session.token": "aws_session_token",
    "endpoint.region": "aws_region",
}
_AZURE: Final = {
    "account.key": "azure_storage_account_key",
    "sas.fixed.token": "azure_storage_sas_key",
    "account.oauth2.client.id": "azure_storage_client_id",
    "account.oauth2.client.secret": "azure_storage_client_secret",
    "account.oauth2.client.endpoint": "azure_storage_tenant_id",
}
_SSE: Final = {"AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse", "SSE-C": "sse-c"}
_CREDENTIAL: Final = re.compile(
    r"key|secret|token|password|credential|sas|encryption|impersonation|account\.email|assumed\.role\.arn"
)
"""Names of settings without which the storage may refuse, or keep what it is not to keep in the clear."""
_OF_OTHERS: Final = re.compile(r"bucket\.|.*\.(?:dfs|blob)\.|sas\.[^.]+$")
_OWN_PROVIDER: Final = re.compile(
    r"(?:.*\.)?(?:Simple|Temporary|Default|Instance|IAM|Environment|Container|WebIdentity)\w*"
)
"""Classes that find what delta-rs finds, too, or take the keys that it is given."""
_AWS_ENDPOINT: Final = re.compile(r"(?:https?://)?s3(?:[.-]([a-z]{2}-[a-z-]+-\d))?\.amazonaws\.com/?")
_ACCOUNT: Final = re.compile(r"fs\.azure\..*\.([^.]+)(?:\.z\d+)?\.(?:dfs|blob)\.")


def storage_options_of_spark(settings: Mapping[str, str], uri: str) -> dict[str, str]:
    """The storage options of a table for which Spark is told how to reach it by Hadoop's settings.

    | Hadoop | delta-rs |
    |---|---|
    | ``fs.s3a.access.key`` | ``aws_access_key_id`` |
    | ``fs.s3a.secret.key`` | ``aws_secret_access_key`` |
    | ``fs.s3a.session.token`` | ``aws_session_token`` |
    | ``fs.s3a.endpoint`` | ``aws_endpoint_url``; of AWS's own the region |
    | ``fs.s3a.endpoint.region`` | ``aws_region`` |
    | ``fs.s3a.path.style.access=false`` | ``aws_virtual_hosted_style_request=true``, the bucket in the host |
    | ``fs.s3a.connection.ssl.enabled=false``, an endpoint ``http://…`` | ``allow_http=true`` |
    | ``fs.s3a.encryption.algorithm`` | ``aws_server_side_encryption`` |
    | ``fs.s3a.encryption.key`` | ``aws_sse_kms_key_id``, ``aws_sse_customer_key_base64`` |
    | ``fs.azure.account.key`` | ``azure_storage_account_key`` |
    | ``fs.azure.sas.fixed.token``, ``fs.azure.sas.CONTAINER`` | ``azure_storage_sas_key`` |
    | ``fs.azure.account.oauth2.client.id`` | ``azure_storage_client_id`` |
    | ``fs.azure.account.oauth2.client.secret`` | ``azure_storage_client_secret`` |
    | ``fs.azure.account.oauth2.client.endpoint`` | ``azure_storage_tenant_id`` |
    | ``fs.gs.auth.service.account.json.keyfile`` | ``google_service_account`` |
    | ``fs.gs.auth.service.account.email``, ``….private.key``, ``….id`` | ``google_service_account_key`` |
    | ``fs.gs.storage.root.url`` | ``google_base_url`` |

    Settings of one bucket (``fs.s3a.bucket.BUCKET.…``) and one account
    (``fs.azure.….ACCOUNT.dfs.core.windows.net``, or with ``blob``) win; ``spark.hadoop.`` may stand before
    all of them. The older ``fs.s3a.server-side-encryption-algorithm`` is known, too. A URI that names no
    account, as ``az://``, has the only one that settings name. Another setting that may be a credential of
    this storage is warned of.

    Args:
        settings: Such as ``dict(spark.sparkContext.getConf().getAll())``.
        uri: Of the table: it says which bucket's or account's settings count.
    """
    plain = {key.removeprefix("spark.hadoop."): text for key, text in settings.items() if text}
    place = urlsplit(table_uri(uri))
    match _FAMILY_OF.get(place.scheme.lower()):
        case "s3":
            found = _HadoopSettings(plain, "fs.s3a.", rf"fs\.s3a\.bucket\.{re.escape(place.netloc)}\.(.+)")
            options = _of_s3a(found, place.netloc)
        case "az":
            container, _, host = place.netloc.rpartition("@")
            account = host.partition(".")[0] if "." in host else _only_account(plain, uri)
            form, account_form = r"fs\.azure\.(.+)\.", rf"{re.escape(account)}(?:\.z\d+)?"
            # Of a table's two names at Azure, the newer one's settings win.
            own = [form + account_form + rf"\.{service}\..+" for service in ("blob", "dfs") if account]
            found = _HadoopSettings(plain, "fs.azure.", *own, form + re.escape(host))
            options = _of_azure(found, account, container or host)
        case "gs":
            found = _HadoopSettings(plain, "fs.gs.")
            options = _of_gs(found)
        case _:
            return {}
    if found.untold:
        logger.warning(
            "storage options of %s cannot say what these settings of Spark say: %s; give storage options "
            "instead if they are needed",
            masked(uri),
            ", ".join(found.untold),
        )
    return options


class _HadoopSettings:
    """Those for one place, by their names without a prefix, its bucket and its account."""

    def __init__(self, settings: Mapping[str, str], prefix: str, *own: str) -> None:
        """Patterns of names of its own tell the rest of the name, and win: the last one first."""
        self._settings = settings
        self._names = {key.removeprefix(prefix): key for key in settings if key.startswith(prefix)}
        for pattern in own:
            of_own = ((re.fullmatch(pattern, key), key) for key in settings)
            self._names.update({match[1]: key for match, key in of_own if match is not None})
        self._told: set[str] = set()

    def told(self, *names: str) -> str:
        """What the first of them says that is there, which an option tells; empty if there is none."""
        self._told.update(names)
        return next((self._settings[self._names[name]] for name in names if name in self._names), "")

    def options(self, by_name: Mapping[str, str]) -> dict[str, str]:
        """Those of settings that only have another name."""
        return {option: text for name, option in by_name.items() if (text := self.told(name))}

    def peek(self, name: str) -> str:
        """The same of a setting that an option may not tell."""
        return self._settings.get(self._names.get(name, ""), "")

    @property
    def untold(self) -> list[str]:
        """What users call those that may be credentials, and that no option tells."""
        return [
            key
            for name, key in self._names.items()
            if name not in self._told
            and _CREDENTIAL.search(name)
            and not _OF_OTHERS.match(name)
            and self._settings[key].lower() not in ("true", "false")
        ]


def _of_s3a(found: _HadoopSettings, bucket: str) -> dict[str, str]:
    options = _of_endpoint(found) | _of_encryption(found) | found.options(_S3A)
    if found.told("path.style.access").lower() == "false":
        options["aws_virtual_hosted_style_request"] = "true"
        if endpoint := options.get("aws_endpoint_url"):
            # delta-rs does not put it there, and would take the path's first part for the bucket.
            scheme, _, host = endpoint.partition("://")
            options["aws_endpoint_url"] = f"{scheme}://{bucket}.{host}"
    providers = "aws.credentials.provider"
    if all(map(_OWN_PROVIDER.fullmatch, found.peek(providers).replace(",", " ").split())):
        found.told(providers)
    return options


def _of_endpoint(found: _HadoopSettings) -> dict[str, str]:
    options: dict[str, str] = {}
    is_plain = found.told("connection.ssl.enabled").lower() == "false"
    endpoint = found.told("endpoint")
    of_aws = _AWS_ENDPOINT.fullmatch(endpoint)
    if of_aws is not None:
        # The one without a region is that of every region to Hadoop: delta-rs finds each by itself.
        options |= {"aws_region": of_aws[1]} if of_aws[1] else {}
        endpoint = ""
    if endpoint:
        scheme = "http" if is_plain else "https"
        options["aws_endpoint_url"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    if is_plain or endpoint.startswith("http://"):
        options["allow_http"] = "true"
    return options


def _of_encryption(found: _HadoopSettings) -> dict[str, str]:
    """Nothing of what the client does by itself, which delta-rs cannot."""
    names = ("encryption.algorithm", "encryption.key")
    if not found.peek(names[0]):
        names = ("server-side-encryption-algorithm", "server-side-encryption.key")
    algorithm, key = names
    kind = _SSE.get(found.peek(algorithm).upper())
    if kind is None:
        return {}
    found.told(algorithm)
    text = found.told(key)
    option = {"AES256": "", "sse-c": "aws_sse_customer_key_base64"}.get(kind, "aws_sse_kms_key_id")
    return {"aws_server_side_encryption": kind} | ({option: text} if option and text else {})


def _only_account(settings: Mapping[str, str], uri: str) -> str:
    """The one that settings name; empty if they name none or several."""
    matches = map(_ACCOUNT.match, settings)
    accounts = sorted({match[1] for match in matches if match is not None})
    if len(accounts) > 1:
        logger.warning(
            "%s names no account, and Spark has settings of accounts %s, so none of them is used; write "
            "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/… or give storage options",
            masked(uri),
            ", ".join(accounts),
        )
    return accounts[0] if len(accounts) == 1 else ""


def _of_azure(found: _HadoopSettings, account: str, container: str) -> dict[str, str]:
    options = found.options({f"sas.{container}": "azure_storage_sas_key", **_AZURE})
    if account:
        options["azure_storage_account_name"] = account
    tenant = options.get("azure_storage_tenant_id")
    if tenant is not None:
        # https://login.microsoftonline.com/TENANT/oauth2/token
        options["azure_storage_tenant_id"] = urlsplit(tenant).path.strip("/").partition("/")[0]
    return options


def _of_gs(found: _HadoopSettings) -> dict[str, str]:
    account = "auth.service.account"
    options = found.options({f"{account}.json.keyfile": "google_service_account"})
    if not options and found.peek(f"{account}.email") and found.peek(f"{account}.private.key"):
        parts = {
            "client_email": found.told(f"{account}.email"),
            # A setting has them on one line.
            "private_key": found.told(f"{account}.private.key").replace("\\n", "\n"),
            "private_key_id": found.told(f"{account}.private.key.id"),
        }
        options["google_service_account_key"] = json.dumps(parts)
    root = found.told("storage.root.url").rstrip("/")
    if root:
        options["google_base_url"] = root
    if root.startswith("http://"):
        options["allow_http"] = "true"
    return options
