"""Translation of a Spark session's Hadoop settings into delta-rs' storage options."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from pyspark_rocketmq.delta.paths import table_uri
from pyspark_rocketmq.delta.storage_options import FAMILY_OF
from pyspark_rocketmq.display import masked

logger = logging.getLogger(__name__)

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
"""Pattern of the names of settings that storage may need to give access or to encrypt data."""
_OTHER_PLACE: Final = re.compile(r"bucket\.|.*\.(?:dfs|blob)\.|sas\.[^.]+$")
"""Pattern of the names of settings that belong to one bucket, account or container."""
_OWN_PROVIDER: Final = re.compile(
    r"(?:.*\.)?(?:Simple|Temporary|Default|Instance|IAM|Environment|Container|WebIdentity)\w*"
)
"""Pattern of the names of Hadoop's credential providers that need no storage option of their own.

delta-rs finds the same credentials itself, or they are keys in other settings, which are translated.
"""
_AWS_ENDPOINT: Final = re.compile(r"(?:https?://)?s3(?:[.-]([a-z]{2}-[a-z-]+-\d))?\.amazonaws\.com/?")
_ACCOUNT: Final = re.compile(r"fs\.azure\..*\.([^.]+)(?:\.z\d+)?\.(?:dfs|blob)\.")


def storage_options_of_spark(settings: Mapping[str, str], uri: str) -> dict[str, str]:
    """Return the storage options of a table that Spark reaches through Hadoop's settings.

    There are none for storage other than S3, Azure's and Google's.

    | Hadoop | delta-rs |
    |---|---|
    | ``fs.s3a.access.key`` | ``aws_access_key_id`` |
    | ``fs.s3a.secret.key`` | ``aws_secret_access_key`` |
    | ``fs.s3a.session.token`` | ``aws_session_token`` |
    | ``fs.s3a.endpoint`` | ``aws_endpoint_url``; for an endpoint of AWS only its region, as ``aws_region`` |
    | ``fs.s3a.endpoint.region`` | ``aws_region`` |
    | ``fs.s3a.path.style.access=false`` | ``aws_virtual_hosted_style_request=true``, the bucket in the host |
    | ``fs.s3a.connection.ssl.enabled=false``, an endpoint or root URL ``http://…`` | ``allow_http=true`` |
    | ``fs.s3a.encryption.algorithm`` | ``aws_server_side_encryption`` |
    | ``fs.s3a.encryption.key`` | ``aws_sse_kms_key_id``, ``aws_sse_customer_key_base64`` |
    | ``fs.azure.account.key`` | ``azure_storage_account_key`` |
    | ``fs.azure.sas.fixed.token``, ``fs.azure.sas.CONTAINER`` | ``azure_storage_sas_key`` |
    | ``fs.azure.account.oauth2.client.id`` | ``azure_storage_client_id`` |
    | ``fs.azure.account.oauth2.client.secret`` | ``azure_storage_client_secret`` |
    | ``fs.azure.account.oauth2.client.endpoint`` | ``azure_storage_tenant_id`` |
    | ``fs.gs.auth.service.account.json.keyfile`` | ``google_service_account`` |
    | ``fs.gs.auth.service.account.email`` and ``….private.key`` | ``google_service_account_key`` |
    | ``fs.gs.auth.service.account.private.key.id`` | part of ``google_service_account_key`` |
    | ``fs.gs.storage.root.url`` | ``google_base_url`` |

    Settings of one bucket (``fs.s3a.bucket.BUCKET.…``) or one account
    (``fs.azure.….ACCOUNT.dfs.core.windows.net``, or with ``blob``) override general ones. All names may begin
    with ``spark.hadoop.``. The older ``fs.s3a.server-side-encryption-algorithm`` is translated, too. If the
    URI names no account, as with ``az://``, the account is the one that the settings name, if they name only
    one. A warning lists the names of other settings that may be credentials of this storage.

    Args:
        settings: Spark's settings, such as ``dict(spark.sparkContext.getConf().getAll())``.
        uri: The table's URI; it selects the settings of its bucket or account.
    """
    plain = {key.removeprefix("spark.hadoop."): text for key, text in settings.items() if text}
    place = urlsplit(table_uri(uri))
    match FAMILY_OF.get(place.scheme.lower()):
        case "s3":
            found = _HadoopSettings(plain, "fs.s3a.", rf"fs\.s3a\.bucket\.{re.escape(place.netloc)}\.(.+)")
            options = _s3a_options(found, place.netloc)
        case "az":
            container, _, host = place.netloc.rpartition("@")
            account = host.partition(".")[0] if "." in host else _only_account(plain, uri)
            form, account_form = r"fs\.azure\.(.+)\.", rf"{re.escape(account)}(?:\.z\d+)?"
            # A table has two host names at Azure; settings of the newer one (dfs) win.
            own = [form + account_form + rf"\.{service}\..+" for service in ("blob", "dfs") if account]
            found = _HadoopSettings(plain, "fs.azure.", *own, form + re.escape(host))
            options = _azure_options(found, account, container or host)
        case "gs":
            found = _HadoopSettings(plain, "fs.gs.")
            options = _gs_options(found)
        case _:
            return {}
    if found.untranslated:
        logger.warning(
            "for %s, these settings of Spark are not used, because delta-rs has no storage option for them: "
            "%s; if they are needed, give storage options",
            masked(uri),
            ", ".join(found.untranslated),
        )
    return options


class _HadoopSettings:
    """The settings for one bucket or storage account, by name without prefix, bucket and account."""

    def __init__(self, settings: Mapping[str, str], prefix: str, *own: str) -> None:
        """Find the settings; those of the one bucket or account override the general ones.

        Args:
            settings: Spark's settings, without ``spark.hadoop.`` before their names.
            prefix: Beginning of the names of all settings for this kind of storage.
            own: Regular expressions, each for full names of settings of the one bucket or account. Group 1 is
                the name that remains. Settings that match a later expression override earlier ones.
        """
        self._settings = settings
        self._names = {key.removeprefix(prefix): key for key in settings if key.startswith(prefix)}
        for pattern in own:
            matches = ((re.fullmatch(pattern, key), key) for key in settings)
            self._names.update({match[1]: key for match, key in matches if match is not None})
        self._translated: set[str] = set()

    def take(self, *names: str) -> str:
        """Return the value of the first of these settings that is set, or "" if none is.

        From then on, :attr:`untranslated` has none of these names.
        """
        self._translated.update(names)
        return next((self._settings[self._names[name]] for name in names if name in self._names), "")

    def options(self, by_name: Mapping[str, str]) -> dict[str, str]:
        """Return delta-rs' options for the settings in ``by_name`` (setting → option), with their values."""
        return {option: text for name, option in by_name.items() if (text := self.take(name))}

    def get(self, name: str) -> str:
        """Return a setting, or "" if it is not set; unlike :meth:`take`, leave ``untranslated`` as it is."""
        return self._settings.get(self._names.get(name, ""), "")

    @property
    def untranslated(self) -> list[str]:
        """Names of set, credential-like settings that :meth:`take` did not read; a warning lists them."""
        return [
            key
            for name, key in self._names.items()
            if name not in self._translated
            and _CREDENTIAL.search(name)
            and not _OTHER_PLACE.match(name)
            and self._settings[key].lower() not in ("true", "false")
        ]


def _s3a_options(found: _HadoopSettings, bucket: str) -> dict[str, str]:
    options = _endpoint_options(found) | _encryption_options(found) | found.options(_S3A)
    if found.take("path.style.access").lower() == "false":
        options["aws_virtual_hosted_style_request"] = "true"
        if endpoint := options.get("aws_endpoint_url"):
            # delta-rs does not put the bucket into the host, and would read the path's first part as bucket.
            scheme, _, host = endpoint.partition("://")
            options["aws_endpoint_url"] = f"{scheme}://{bucket}.{host}"
    providers = "aws.credentials.provider"
    if all(map(_OWN_PROVIDER.fullmatch, found.get(providers).replace(",", " ").split())):
        found.take(providers)
    return options


def _endpoint_options(found: _HadoopSettings) -> dict[str, str]:
    options: dict[str, str] = {}
    is_plain = found.take("connection.ssl.enabled").lower() == "false"
    endpoint = found.take("endpoint")
    aws_endpoint = _AWS_ENDPOINT.fullmatch(endpoint)
    if aws_endpoint is not None:
        # Without a region Hadoop uses this endpoint for every region; delta-rs finds the right one itself.
        options |= {"aws_region": aws_endpoint[1]} if aws_endpoint[1] else {}
        endpoint = ""
    if endpoint:
        scheme = "http" if is_plain else "https"
        options["aws_endpoint_url"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    if is_plain or endpoint.startswith("http://"):
        options["allow_http"] = "true"
    return options


def _encryption_options(found: _HadoopSettings) -> dict[str, str]:
    """Return the options of server-side encryption; delta-rs has no client-side encryption."""
    names = ("encryption.algorithm", "encryption.key")
    if not found.get(names[0]):
        names = ("server-side-encryption-algorithm", "server-side-encryption.key")
    algorithm, key = names
    kind = _SSE.get(found.get(algorithm).upper())
    if kind is None:
        return {}
    found.take(algorithm)
    text = found.take(key)
    option = {"AES256": "", "sse-c": "aws_sse_customer_key_base64"}.get(kind, "aws_sse_kms_key_id")
    return {"aws_server_side_encryption": kind} | ({option: text} if option and text else {})


def _only_account(settings: Mapping[str, str], uri: str) -> str:
    """Return the storage account that the settings name; an empty string if they name none or several."""
    matches = map(_ACCOUNT.match, settings)
    accounts = sorted({match[1] for match in matches if match is not None})
    if len(accounts) > 1:
        logger.warning(
            "%s names no storage account, and Spark has settings for several, so none of them is used: %s; "
            "write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/… or give storage options",
            masked(uri),
            ", ".join(accounts),
        )
    return accounts[0] if len(accounts) == 1 else ""


def _azure_options(found: _HadoopSettings, account: str, container: str) -> dict[str, str]:
    options = found.options({f"sas.{container}": "azure_storage_sas_key", **_AZURE})
    if account:
        options["azure_storage_account_name"] = account
    tenant = options.get("azure_storage_tenant_id")
    if tenant is not None:
        # https://login.microsoftonline.com/TENANT/oauth2/token
        options["azure_storage_tenant_id"] = urlsplit(tenant).path.strip("/").partition("/")[0]
    return options


def _gs_options(found: _HadoopSettings) -> dict[str, str]:
    account = "auth.service.account"
    options = found.options({f"{account}.json.keyfile": "google_service_account"})
    if not options and found.get(f"{account}.email") and found.get(f"{account}.private.key"):
        parts = {
            "client_email": found.take(f"{account}.email"),
            # In a setting the key is on one line, with \n for line ends.
            "private_key": found.take(f"{account}.private.key").replace("\\n", "\n"),
            "private_key_id": found.take(f"{account}.private.key.id"),
        }
        options["google_service_account_key"] = json.dumps(parts)
    root = found.take("storage.root.url").rstrip("/")
    if root:
        options["google_base_url"] = root
    if root.startswith("http://"):
        options["allow_http"] = "true"
    return options
