"""What the options of the jobs have in common; each job declares its own as the data source declares its."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from jobs.conf_file import gather_texts
from jobs.option_set import like_source
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options.declare import OptionSet
from pyspark_rocketmq.options.parsers import parses, text_value

SettingsT = TypeVar("SettingsT", bound=OptionSet)

GROUP_DOC = "The consumer group whose progress this is."
OFFSET_STORE_DOC = (
    "Where the consumer groups' progress is: path or URI of a Delta table, or as the data source takes it."
)


def load_settings(settings: type[SettingsT], job: str, conf: Path | None, pairs: Sequence[str]) -> SettingsT:
    """Read and parse the settings of one job.

    Raises:
        OptionError: With a sentence for every problem of the file, of ``--option`` and of the values.
    """
    texts, problems = gather_texts(conf, pairs)
    try:
        parsed = settings.parse(texts)
    except OptionError as error:
        problems += error.problems
    else:
        if not problems:
            return parsed
    raise OptionError(tuple(problems), where=f"settings of job '{job}'")


@parses("string")
def parse_location(text: str) -> str:
    """Parser of a path or storage URI; a relative path means the current directory's."""
    value = text_value(text)
    return value if "://" in value else str(Path(value).expanduser().absolute())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClusterAccess(OptionSet):
    """The options of every job that reads from a cluster which may be secured."""

    namespace: str | None = like_source("namespace", default=None)
    access_key: str | None = like_source("access_key", default=None)
    secret_key: str | None = like_source("secret_key", default=None)
    security_token: str | None = like_source("security_token", default=None)
    use_tls: bool = like_source("use_tls", default=False)
    tls_ca_file: str | None = like_source(
        "tls_ca_file", default=None, default_text="the system's authorities"
    )
    tls_cert_file: str | None = like_source("tls_cert_file", default=None)
    tls_key_file: str | None = like_source("tls_key_file", default=None, default_text="`tlsCertFile`")
    tls_key_password: str | None = like_source("tls_key_password", default=None)
    tls_verify_certificate: bool = like_source("tls_verify_certificate", default=True)
    tls_verify_hostname: bool = like_source("tls_verify_hostname", default=True)

    def access_options(self, namespace: str | None = None) -> dict[str, str]:
        """What was given of these, as the data source takes it; in ``namespace``, if it is not None, instead."""
        values = {
            field.metadata["spec"].key: getattr(self, field.name)
            for field in dataclasses.fields(ClusterAccess)
        }
        if namespace is not None:
            values["namespace"] = namespace or None
        return {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in values.items()
            if value is not None
        }
