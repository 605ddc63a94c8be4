"""Access to a Delta table's storage: options of the user and of the environment, and file systems.

This module does not load delta-rs, so that tasks can import it.  A task whose table is on remote storage
loads delta-rs when it begins to write.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pyspark_rocketmq.delta.paths import local_path, table_uri
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError

if TYPE_CHECKING:
    from pyarrow import fs

logger = logging.getLogger(__name__)

GivenOptions = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Storage options as the user passes them."""

_SECRET: Final = re.compile("key|secret|token|password|credential|sas|service_account", re.IGNORECASE)
"""Pattern of the names of options whose values are hidden in errors."""
_SHORTEST_HIDDEN: Final = 6
"""Length of the shortest value that is hidden, in characters; a shorter one may be part of any word."""
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")
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
"""Environment variables that are passed on to tasks, by kind of storage; they are valid on any machine.

Variables that name roles or files (``_ROLES``) are not passed on: each process reads its own.
"""
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
"""Variables that only name a region. Many machines set one, even if they use other storage."""
_PREFIX: Final = re.compile("^(?:aws|azure_storage|azure|google)_")
_SYNONYMS: Final = {
    "default_region": "region",
    "endpoint_url": "endpoint",
    "endpoint_url_s3": "endpoint",
    "token": "session_token",
    "access_key": "account_key",
    "master_key": "account_key",
    "sas_token": "sas_key",
}
FAMILY_OF: Final = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("az", "adl", "azure", "abfs", "abfss"), "az"),
    "gs": "gs",
}
_RETRY_OPTIONS: Final = {"backoff_config.max_backoff": "1s", "max_retries": "20"}
"""Options with which delta-rs tries again for some ten seconds.

By default it tries ten times and sleeps for up to 15 s in between, even if the storage is back sooner.
"""


class StorageOptions:
    """Options for delta-rs to reach storage, by name, such as ``aws_access_key_id`` or ``allow_http``.

    They are a fixed mapping or, where credentials expire, a callable that returns one. The callable is called
    when the options are first needed and by :meth:`renew`. Options that are not given are taken from the
    environment of this process and passed on, since tasks and planner may have another environment.

    ``repr`` shows no value, and :meth:`describe_error` hides secret ones.
    """

    def __init__(self, given: GivenOptions | None = None) -> None:
        """Store the options. A callable is called when the options are first needed.

        Raises:
            OptionError: If ``given`` is not a mapping of names to strings, integers or booleans.
        """
        self._given = given
        self._values: dict[str, str] | None = None if callable(given) else _texts_of(given or {})
        self._used: dict[str, str] = {}
        """The values that :meth:`values_for` returned last."""

    @classmethod
    def of(cls, given: StorageOptions | GivenOptions | None) -> StorageOptions:
        """Create the options from ``given``, or return ``given`` if it is a ``StorageOptions`` already."""
        return given if isinstance(given, StorageOptions) else cls(given)

    @classmethod
    def parse(cls, text: str | None) -> StorageOptions:
        """Create the options from the text of a JSON object; return no options for None.

        Raises:
            ValueError: If the text is invalid.  Its message ends a sentence of the caller, such as "is not
                JSON", and does not show the text.
        """
        if text is None:
            return NO_OPTIONS
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("is not JSON") from None
        try:
            return cls(found)
        except OptionError as error:
            raise ValueError(f"is wrong: {'; '.join(error.problems)}") from None

    @property
    def is_renewable(self) -> bool:
        """Whether the options come from a callable."""
        return callable(self._given)

    @property
    def values(self) -> Mapping[str, str]:
        """The given options as they were last renewed, without those of the environment.

        A renewal that changes the options replaces this mapping object.
        """
        return self.renew() if self._values is None else self._values

    def values_for(self, uri: str) -> dict[str, str]:
        """Return all options for the storage of ``uri``; empty for a folder on this machine.

        They include options from the environment and those for retries.
        """
        if local_path(uri) is not None:
            return {}
        given = _joined(self.values, _environment_for(uri))
        self._used = {**_retry_options_for(uri, given), **given}
        return self._used

    def renew(self) -> Mapping[str, str]:
        """Call the callable, if there is one, and return :attr:`values`.

        If the values have not changed, the same mapping object is returned as before. If the callable fails,
        the earlier values stay in use.

        Raises:
            OSError: If the callable fails, and has not succeeded before.  The caller may try again, as if
                the storage did not answer.
            OptionError: If the callable returns something other than options.
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
                        f"The callable that returns the storage options failed with {failure}, which the "
                        "traceback shows. Correct the callable, and start again."
                    ) from error
                # Do not log the error's text, which may contain anything.
                logger.warning("storage options could not be renewed, using the previous ones: %s", failure)
            else:
                self._values = self._values if values == self._values else values
        assert self._values is not None
        return self._values

    def for_tasks(self, uri: str) -> StorageOptions:
        """Return fixed options for tasks to reach ``uri``: those last renewed, and the environment's."""
        return StorageOptions(self.values_for(uri))

    def describe_error(self, error: BaseException) -> str:
        """Return the text of a storage error on one line, with secrets as ``***``.

        Secrets in the texts of the error and of its causes are replaced in place, too.
        """
        values = {**self._used, **(self._values or {})}
        hidden = [
            text for name, text in values.items() if _SECRET.search(name) and len(text) >= _SHORTEST_HIDDEN
        ]
        # The longest first, since one may be part of another.
        hidden.sort(key=len, reverse=True)
        seen: BaseException | None = error
        while seen is not None:
            seen.args = tuple(_redacted(arg, hidden) if isinstance(arg, str) else arg for arg in seen.args)
            seen = seen.__cause__ or seen.__context__
        text = _redacted(str(error), hidden)
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


def _redacted(text: str, hidden: Iterable[str]) -> str:
    # delta-rs writes each cause on its own line, in colours.
    text = masked(" ".join(_COLOUR.sub("", text).split()))
    for value in hidden:
        text = text.replace(value, "***")
    return text


def _texts_of(given: object) -> dict[str, str]:
    where = "storage options"
    if not isinstance(given, Mapping):
        raise OptionError(
            (f"storage options are of type {type(given).__name__}; give a mapping of names to values",),
            where=where,
        )
    problems = [
        f"storage option '{name}' is of type {type(value).__name__}; give a string"
        for name, value in given.items()
        if not isinstance(value, str | bool | int)
    ]
    if problems:
        raise OptionError(tuple(problems), where=where)
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }


def _retry_options_for(uri: str, given: Iterable[str]) -> dict[str, str]:
    if urlsplit(uri).scheme.lower() not in FAMILY_OF:
        return {}
    # delta-rs has several names for each option, and it is random which of two wins.
    known = {name.rpartition(".")[2].lower() for name in given}
    return {name: text for name, text in _RETRY_OPTIONS.items() if name.rpartition(".")[2] not in known}


def _environment_for(uri: str) -> dict[str, str]:
    names = _FROM_ENVIRONMENT.get(FAMILY_OF.get(urlsplit(uri).scheme.lower(), ""), ())
    return {name: text for name in names if (text := os.environ.get(name))}


def is_reached_by_environment(uri: str) -> bool:
    """Return whether the environment has a variable that configures access to the storage of ``uri``.

    A variable that only names a region does not count.
    """
    place = table_uri(uri)
    roles = _ROLES.get(FAMILY_OF.get(urlsplit(place).scheme.lower(), ""), ())
    return not _environment_for(place).keys() <= _REGIONS or any(map(os.environ.get, roles))


def _joined(*layers: Mapping[str, str]) -> dict[str, str]:
    """Join mappings of options; of several values of an option, keep the one in the first mapping.

    delta-rs has several names for some options. If it got two of them, it might use either.
    """
    joined: dict[str, str] = {}
    known: set[str] = set()
    for name, text in (item for layer in layers for item in layer.items()):
        plain = _PREFIX.sub("", name.lower())
        plain = _SYNONYMS.get(plain, plain)
        if plain not in known:
            joined[name] = text
        known.add(plain)
    return joined


NO_OPTIONS: Final = StorageOptions()
"""No given options: only those of the environment apply."""


def filesystem_of(uri: str, storage: StorageOptions | None = None) -> tuple[fs.FileSystem, str]:
    """Return a file system and the table's folder in it; the folder is an empty string for remote storage.

    Remote storage is reached through delta-rs, in tasks too, so that the same options, schemes and ways to
    find credentials apply everywhere. Loading delta-rs in a worker is safe: workers do not fork, and the
    daemon that forks them does not load it.

    Measured beside Arrow's S3: a worker loads delta-rs in 18 ms and 19 MB (Arrow: 15 ms and 9 MB), and writes
    a small file in 15 ms (Arrow: 19 ms). From the first file on, either needs some 110 MB. While delta-rs
    opens a file, the process's other threads wait for one answer of the storage; with Arrow they go on.

    Raises:
        OptionError: If delta-rs does not know the URI's scheme.
    """
    # Imported here, so that code which only needs a table's place does not load Arrow.
    from pyarrow import fs

    folder = local_path(uri)
    if folder is not None:
        return fs.LocalFileSystem(), str(Path(folder).absolute())
    from deltalake.exceptions import DeltaError
    from deltalake.fs import DeltaStorageHandler

    options = storage or NO_OPTIONS
    try:
        return fs.PyFileSystem(DeltaStorageHandler(uri, options.values_for(uri))), ""
    except (DeltaError, ValueError) as error:
        problem = (
            f"files cannot be written to {masked(uri)}: {options.describe_error(error)} "
            "Use a path, or the URI of "
            "storage that delta-rs knows"
        )
        raise OptionError((problem,), where="Delta table storage") from None
