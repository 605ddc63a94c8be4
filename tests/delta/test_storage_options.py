"""How storage is reached: options given, renewed, from the environment, and from Hadoop's settings."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from pyspark_rocketmq.delta.hadoop_settings import storage_options_of_spark
from pyspark_rocketmq.delta.paths import local_path, table_uri
from pyspark_rocketmq.delta.storage_options import StorageOptions, filesystem_of
from pyspark_rocketmq.errors import OptionError

S3 = "s3://lake/orders"
SECRET = "marker-of-a-secret"
OAUTH = "https://login.microsoftonline.com/our-tenant/oauth2/token"


def test_values_are_texts_as_delta_rs_takes_them() -> None:
    """J1"""
    options = StorageOptions({"allow_http": True, "max_retries": 3, "aws_region": "eu"})

    assert options.values == {"allow_http": "true", "max_retries": "3", "aws_region": "eu"}
    assert StorageOptions.parse(json.dumps(options.values)).values == options.values
    assert StorageOptions.of(options) is options


@pytest.mark.parametrize("given", [[("a", "b")], "a=b", {"aws_secret_access_key": [SECRET]}, lambda: SECRET])
def test_what_is_no_mapping_of_texts_is_refused_without_being_shown(given: Any) -> None:
    """J1"""
    with pytest.raises(OptionError, match="storage options") as refusal:
        StorageOptions(given).renew()

    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        f"{{{SECRET}",
        f'["{SECRET}"]',
        f'{{"a": ["{SECRET}"]}}',
        pytest.param("[" * 100_000 + SECRET, id="deep"),
    ],
)
def test_a_text_that_is_no_options_is_refused_without_being_shown(text: str) -> None:
    """J1"""
    with pytest.raises(ValueError) as refusal:
        StorageOptions.parse(text)

    assert SECRET not in str(refusal.value)


def test_no_text_shows_a_value() -> None:
    """J1"""
    given = {"aws_secret_access_key": SECRET, "sas_token": f"sv=1&sig={SECRET}", "aws_region": "eu-1"}
    options = StorageOptions(given)
    cause = ValueError(f"key={SECRET}")
    error = OSError(f"\x1b[31m↳\x1b[0m refused sv=1&sig={SECRET}\n in eu-1")
    error.__cause__ = cause

    assert SECRET not in f"{options!r} {options} {StorageOptions(lambda: given)}"
    assert options.describe_error(error) == "↳ refused *** in eu-1."
    assert SECRET not in f"{error!r} {cause!r}"


TRIES = {"backoff_config.max_backoff": "1s", "max_retries": "20"}.items()


def test_a_folder_here_needs_no_options() -> None:
    """J1"""
    options = StorageOptions({"aws_region": "eu"})

    assert options.values_for("/lake/orders") == options.values_for("file:///lake/orders") == {}


def test_the_environment_says_what_the_options_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """J1: only of the kind of storage; a role's or a file's name is each process's own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the environment")
    monkeypatch.setenv("AWS_REGION", "us")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    options = StorageOptions({"AWS_REGION": "eu"})

    assert options.values_for("s3a://lake/a").items() - TRIES == {
        ("AWS_ACCESS_KEY_ID", "of the environment"),
        ("AWS_REGION", "eu"),
    }
    assert options.values_for("abfss://c@account.dfs.core.windows.net/a").items() - TRIES == {
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AWS_REGION", "eu"),
    }
    assert options.for_tasks(S3).values == options.values_for(S3)


@pytest.mark.parametrize(
    ("uri", "given", "variables", "options"),
    [
        (S3, {"aws_region": "eu"}, {"AWS_REGION": "us", "AWS_DEFAULT_REGION": "ap"}, {"aws_region": "eu"}),
        (S3, {"endpoint": "http://a"}, {"AWS_ENDPOINT_URL": "http://b"}, {"endpoint": "http://a"}),
        (
            S3,
            {},
            {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"},
            {"AWS_ENDPOINT_URL_S3": "http://b"},
        ),
        (
            "az://c/t",
            {"account_name": "a", "azure_storage_access_key": "k"},
            {"AZURE_STORAGE_ACCOUNT_NAME": "b", "AZURE_STORAGE_ACCOUNT_KEY": "l"},
            {"account_name": "a", "azure_storage_access_key": "k"},
        ),
    ],
)
def test_of_an_option_s_several_names_delta_rs_gets_one(
    uri: str,
    given: dict[str, str],
    variables: dict[str, str],
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J1: which of two wins is left to chance there, each time that a table is opened."""
    for name, text in variables.items():
        monkeypatch.setenv(name, text)

    assert StorageOptions(given).values_for(uri).items() - TRIES == options.items()


def test_a_path_that_spark_writes_with_one_slash_is_no_folder_here() -> None:
    assert local_path("dbfs:/checkpoints/orders") is None
    assert local_path("file:/check%20points") == "/check points"
    assert local_path("./a:b/c") == "./a:b/c"


def test_storage_that_is_back_is_tried_within_a_second() -> None:
    """J1: unless the options say otherwise."""
    assert StorageOptions().values_for(S3).items() >= TRIES
    given = {"max_retries": "3", "backoff.max_backoff": "2s"}
    assert StorageOptions(given).values_for(S3).items() & TRIES == set()


def test_a_callable_is_asked_when_options_are_renewed() -> None:
    """J1: an equal answer is the same object, so that nothing is opened again for it."""
    answers = [{"aws_session_token": "1"}, {"aws_session_token": "1"}, {"aws_session_token": "2"}]
    options = StorageOptions(lambda: answers.pop(0))

    first = options.values
    assert options.values is first
    assert options.renew() is first
    assert options.renew() == {"aws_session_token": "2"}
    assert options.values_for(S3)["aws_session_token"] == "2"


def test_options_that_cannot_be_renewed_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """J1: the keys of before may be good for a while."""
    answers: list[Mapping[str, str]] = [{"aws_session_token": "1"}]

    def ask() -> Mapping[str, str]:
        if not answers:
            raise TimeoutError(SECRET)
        return answers.pop()

    options = StorageOptions(ask)
    options.renew()
    with caplog.at_level(logging.WARNING):
        assert options.renew() == {"aws_session_token": "1"}
    assert "could not be renewed" in caplog.text
    assert SECRET not in caplog.text
    with pytest.raises(OSError, match="callable that returns the storage options failed with TimeoutError"):
        StorageOptions(ask).renew()


def test_a_task_gets_values_not_a_callable() -> None:
    """J1"""
    options = StorageOptions(lambda: {"aws_region": "eu"})

    sent = pickle.loads(pickle.dumps(options.for_tasks(S3)))

    assert not sent.is_renewable
    assert sent.values.items() - TRIES == {("aws_region", "eu")}


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("wasbs://c@acc.blob.core.windows.net/a/b", "abfss://c@acc.dfs.core.windows.net/a/b"),
        ("wasb://c@acc.blob.core.windows.net/a", "abfs://c@acc.dfs.core.windows.net/a"),
        ("az://c/a", "az://c/a"),
    ],
)
def test_an_azure_container_has_one_name(uri: str, expected: str) -> None:
    """J1: delta-rs does not know Hadoop's older one."""
    assert table_uri(uri) == expected


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://b/t", {"aws_region": "eu"}),
        ("s3a://b/t", {"aws_region": "eu"}),
        ("az://c/t", {"azure_storage_account_name": "acc"}),
        ("adl://c/t", {"azure_storage_account_name": "acc"}),
        ("abfss://c@acc.dfs.core.windows.net/t", {}),
        ("gs://b/t", {}),
    ],
)
def test_tasks_know_the_schemes_that_the_driver_knows(uri: str, options: dict[str, str]) -> None:
    """J1"""
    filesystem, folder = filesystem_of(uri, StorageOptions(options))

    assert filesystem.type_name.startswith("py::")
    assert folder == ""


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    """J1"""
    with pytest.raises(OptionError, match=r"files cannot be written to ftp://\*\*\*@host/t"):
        filesystem_of("ftp://user:password@host/t")


@pytest.mark.parametrize(
    ("uri", "settings", "options"),
    [
        (
            "s3a://lake/t",
            {
                "spark.hadoop.fs.s3a.access.key": "a",
                "fs.s3a.secret.key": "s",
                "fs.s3a.session.token": "t",
                "fs.s3a.endpoint": "minio:9000",
                "fs.s3a.endpoint.region": "eu",
                "fs.s3a.connection.ssl.enabled": "false",
                "fs.s3a.path.style.access": "true",
                "spark.app.name": "orders",
            },
            {
                "aws_access_key_id": "a",
                "aws_secret_access_key": "s",
                "aws_session_token": "t",
                "aws_endpoint_url": "http://minio:9000",
                "aws_region": "eu",
                "allow_http": "true",
            },
        ),
        (
            "s3://lake/t",
            {
                "fs.s3a.access.key": "of all",
                "fs.s3a.bucket.lake.access.key": "of lake",
                "fs.s3a.bucket.other.access.key": "of another",
                "fs.s3a.endpoint": "https://s3.example",
                "fs.s3a.path.style.access": "false",
            },
            {
                "aws_access_key_id": "of lake",
                "aws_endpoint_url": "https://lake.s3.example",
                "aws_virtual_hosted_style_request": "true",
            },
        ),
        (
            "s3://lake/t",
            {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.bucket.lake.encryption.key": "arn:of:it"},
            {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": "arn:of:it"},
        ),
        (
            "s3://lake/t",
            {"fs.s3a.server-side-encryption-algorithm": "DSSE-KMS", "fs.s3a.server-side-encryption.key": "n"},
            {"aws_server_side_encryption": "aws:kms:dsse", "aws_sse_kms_key_id": "n"},
        ),
        (
            "s3://lake/t",
            {"fs.s3a.encryption.algorithm": "SSE-C", "fs.s3a.encryption.key": "Zm9v"},
            {"aws_server_side_encryption": "sse-c", "aws_sse_customer_key_base64": "Zm9v"},
        ),
        ("s3://lake/t", {"fs.s3a.endpoint": "s3.amazonaws.com"}, {}),
        (
            "s3://lake/t",
            {"fs.s3a.endpoint": "s3.eu-central-1.amazonaws.com", "fs.s3a.path.style.access": "false"},
            {"aws_region": "eu-central-1", "aws_virtual_hosted_style_request": "true"},
        ),
        (
            "s3://lake/t",
            {"fs.s3a.endpoint": "s3.cn-north-1.amazonaws.com.cn"},
            {"aws_endpoint_url": "https://s3.cn-north-1.amazonaws.com.cn"},
        ),
        (
            "s3://lake/t",
            {"fs.s3a.encryption.algorithm": "AES256"},
            {"aws_server_side_encryption": "AES256"},
        ),
        (
            "wasbs://c@acc.blob.core.windows.net/t",
            {
                "fs.azure.account.key.acc.blob.core.windows.net": "k",
                "fs.azure.account.key.another.blob.core.windows.net": "l",
            },
            {"azure_storage_account_name": "acc", "azure_storage_account_key": "k"},
        ),
        (
            "abfss://c@acc.dfs.core.windows.net/t",
            {
                "fs.azure.account.key.acc.blob.core.windows.net": "older",
                "fs.azure.account.key.acc.dfs.core.windows.net": "k",
            },
            {"azure_storage_account_name": "acc", "azure_storage_account_key": "k"},
        ),
        (
            "wasbs://c@acc.blob.core.windows.net/t",
            {
                "fs.azure.sas.c.acc.blob.core.windows.net": "sig",
                "fs.azure.sas.another.acc.blob.core.windows.net": "sag",
            },
            {"azure_storage_account_name": "acc", "azure_storage_sas_key": "sig"},
        ),
        (
            "az://c/t",
            {"fs.azure.account.key.acc.dfs.core.windows.net": "k", "fs.azure.sas.c.acc.blob.other": "sig"},
            {
                "azure_storage_account_name": "acc",
                "azure_storage_account_key": "k",
                "azure_storage_sas_key": "sig",
            },
        ),
        (
            "abfss://c@acc.dfs.core.windows.net/t",
            {
                "fs.azure.account.oauth2.client.id": "i",
                "fs.azure.account.oauth2.client.secret.acc.dfs.core.windows.net": "s",
                "fs.azure.account.oauth2.client.endpoint": OAUTH,
                "fs.azure.sas.fixed.token.acc.dfs.core.windows.net": "sig",
            },
            {
                "azure_storage_account_name": "acc",
                "azure_storage_client_id": "i",
                "azure_storage_client_secret": "s",
                "azure_storage_tenant_id": "our-tenant",
                "azure_storage_sas_key": "sig",
            },
        ),
        (
            "gs://b/t",
            {"spark.hadoop.fs.gs.auth.service.account.json.keyfile": "/k.json", "fs.s3a.access.key": "a"},
            {"google_service_account": "/k.json"},
        ),
        (
            "gs://b/t",
            {
                "fs.gs.auth.service.account.email": "spark@example.org",
                "fs.gs.auth.service.account.private.key.id": "7",
                "fs.gs.auth.service.account.private.key": r"-----BEGIN\nEND-----",
                "fs.gs.storage.root.url": "http://store:4443/",
            },
            {
                "google_service_account_key": json.dumps(
                    {
                        "client_email": "spark@example.org",
                        "private_key": "-----BEGIN\nEND-----",
                        "private_key_id": "7",
                    }
                ),
                "google_base_url": "http://store:4443",
                "allow_http": "true",
            },
        ),
        ("/lake/t", {"fs.s3a.access.key": "a"}, {}),
    ],
)
def test_hadoop_s_settings_are_storage_options(
    uri: str, settings: dict[str, str], options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """J1"""
    assert storage_options_of_spark(settings, uri) == options
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("uri", "name", "text"),
    [
        ("s3://lake/t", "fs.s3a.assumed.role.arn", SECRET),
        ("s3://lake/t", "fs.s3a.bucket.lake.security.credential.provider.path", SECRET),
        ("s3://lake/t", "fs.s3a.aws.credentials.provider", f"org.example.{SECRET}"),
        ("s3://lake/t", "fs.s3a.encryption.algorithm", "CSE-KMS"),
        ("s3://lake/t", "fs.s3a.encryption.key", SECRET),
        ("abfss://c@acc.dfs.core.windows.net/t", "fs.azure.account.oauth2.refresh.token", SECRET),
        (
            "wasbs://c@acc.blob.core.windows.net/t",
            "fs.azure.account.keyprovider.acc.blob.core.windows.net",
            SECRET,
        ),
        ("gs://b/t", "fs.gs.auth.refresh.token", SECRET),
        ("gs://b/t", "fs.gs.auth.service.account.email", SECRET),
        ("gs://b/t", "fs.gs.auth.service.account.private.key", SECRET),
    ],
)
def test_a_credential_of_hadoop_s_that_delta_rs_gets_not_is_warned_of(
    uri: str, name: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """J1: only by its name."""
    settings = {f"spark.hadoop.{name}": text, "fs.s3a.endpoint.region": "eu"}

    assert SECRET not in json.dumps(storage_options_of_spark(settings, uri))

    [warning] = caplog.messages
    assert f": {name};" in warning
    assert text not in warning


@pytest.mark.parametrize(
    "settings",
    [
        {"fs.s3a.bucket.other.secret.key": "s", "fs.gs.auth.refresh.token": "t"},
        {"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"},
        {
            "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider, "
            "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
        },
    ],
)
def test_credentials_of_others_and_those_that_delta_rs_finds_are_not_warned_of(
    settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """J1"""
    assert storage_options_of_spark(settings, "s3://lake/t") == {}
    assert caplog.messages == []


def test_of_several_accounts_none_is_chosen_for_a_uri_that_names_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """J1"""
    settings = {
        "fs.azure.account.key.one.dfs.core.windows.net": SECRET,
        "fs.azure.account.key.two.dfs.core.windows.net": SECRET,
    }

    assert storage_options_of_spark(settings, "az://c/t") == {}

    [warning] = caplog.messages
    assert "so none of them is used: one, two" in warning
    assert SECRET not in warning
