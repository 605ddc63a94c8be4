from __future__ import annotations

import dataclasses
import warnings

import pytest

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options.connection import ConnectionOptions
from pyspark_rocketmq.options.consumer import ConsumerOptions
from pyspark_rocketmq.options.declare import FormerKey, OptionSet, OptionSpec, option, specs_of
from pyspark_rocketmq.options.parsers import int_between, secret_value, text_value
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.write import WriteOptions
from scripts.pages import meaning_of
from tests.docs.pages import ROOT


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Pulls(OptionSet):
    topic: str = option(
        "topic", text_value, formerly=(FormerKey("subject", "0.2", "0.4"), FormerKey("channel", "0.3", "0.5"))
    ).doc("Whose messages.")
    batch_size: int = option(
        "pullBatchSize", int_between(1, 32), 32, formerly=(FormerKey("pullSize", "0.2", "0.4"),)
    ).doc("Messages per pull.")
    secret: str | None = option(
        "secretKey", secret_value, None, secret=True, formerly=(FormerKey("password", "0.2", "0.4"),)
    ).doc("Proof.")


def spec_of(key: str) -> OptionSpec:
    return next(spec for spec in specs_of(Pulls) if spec.key == key)


def test_a_former_key_sets_the_option_and_warns_with_the_new_key_and_the_end() -> None:
    with pytest.warns(FutureWarning) as caught:
        parsed = Pulls.parse({"SUBJECT": "orders", "pullsize": "8"})

    assert (parsed.topic, parsed.batch_size) == ("orders", 8)
    assert [str(warning.message) for warning in caught] == [
        "option 'subject' is deprecated since 0.2 and will be removed in 0.4; use 'topic'",
        "option 'pullSize' is deprecated since 0.2 and will be removed in 0.4; use 'pullBatchSize'",
    ]


def test_the_new_key_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        assert Pulls.parse({"topic": "orders"}).topic == "orders"


def test_an_option_given_under_two_of_its_keys_is_refused() -> None:
    with pytest.raises(OptionError, match="'subject' is the former name of 'topic', which is given too"):
        Pulls.parse({"subject": "orders", "topic": "orders"})
    with (
        pytest.warns(FutureWarning),
        pytest.raises(OptionError, match=r"'channel' is the former name of 'topic'.*remove 'channel'"),
    ):
        Pulls.parse({"subject": "orders", "channel": "orders"})


def test_a_wrong_value_is_reported_under_the_new_key() -> None:
    with pytest.warns(FutureWarning), pytest.raises(OptionError) as caught:
        Pulls.parse({"subject": "orders", "pullSize": "64"})

    assert caught.value.problems == ("option pullBatchSize='64' is not between 1 and 32",)


def test_a_secret_under_its_former_key_is_not_shown() -> None:
    """A5"""
    with pytest.warns(FutureWarning) as caught:
        parsed = Pulls.parse({"topic": "orders", "password": "canary"})

    assert parsed.secret == "canary"
    assert "canary" not in repr(parsed) + "".join(str(warning.message) for warning in caught)


def test_the_options_page_names_former_keys() -> None:
    assert meaning_of(spec_of("pullBatchSize")) == (
        "Messages per pull. Formerly `pullSize`, which is refused from 0.4 on."
    )


def test_every_former_key_is_free_and_listed_among_the_names_that_change() -> None:
    listed = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("## Names that change")[2]
    for options in (ConnectionOptions, ReadOptions, WriteOptions, ConsumerOptions):
        specs = specs_of(options)
        former = [key.key for spec in specs for key in spec.formerly]

        assert {key.lower() for key in former}.isdisjoint(spec.key.lower() for spec in specs)
        assert len(former) == len({key.lower() for key in former})
        assert [key for key in former if f"`{key}`" not in listed] == []
