from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.open import open_offset_store

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.mark.parametrize("prefix", ["delta:", ""])
def test_a_path_opens_a_delta_store_with_or_without_its_kind(tmp_path: Path, prefix: str) -> None:
    store = open_offset_store(f"{prefix}{tmp_path / 'offsets'}")

    store.claim("g", "client-1", {QUEUE: 3})

    assert store.spec == f"delta:{tmp_path / 'offsets'}"
    assert open_offset_store(store.spec).read("g")[QUEUE].next_offset == 3


def test_a_file_uri_opens_a_delta_store(tmp_path: Path) -> None:
    uri = (tmp_path / "offsets").as_uri()

    open_offset_store(uri).claim("g", "client-1", {QUEUE: 3})

    assert open_offset_store(f"delta:{tmp_path / 'offsets'}").read("g")[QUEUE].next_offset == 3


def test_a_storage_uri_is_kept_as_it_is() -> None:
    assert open_offset_store("s3://lake/_offsets").spec == "delta:s3://lake/_offsets"


def test_a_memory_store_is_the_same_for_the_whole_process() -> None:
    store = open_offset_store("memory:registry-test")

    assert open_offset_store(store.spec) is store
    assert open_offset_store("memory:registry-test-2") is not store


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("redis:localhost", "unknown kind 'redis'"),
        ("http://lake/_offsets", "unknown scheme 'http'"),
        ("", "is empty"),
        ("delta:", "nothing after the colon"),
        ("memory:", "nothing after the colon"),
        ("file:", "nothing after the colon"),
        ("broker:somewhere", "after 'broker:', where nothing may follow"),
    ],
)
def test_an_unusable_spec_is_refused_in_a_sentence(spec: str, why: str) -> None:
    with pytest.raises(OptionError, match=why) as refusal:
        open_offset_store(spec)

    assert "Use a path, a storage URI or delta:PATH" in str(refusal.value)


def test_a_folder_on_this_machine_is_asked_for_by_its_kind(tmp_path: Path) -> None:
    store = open_offset_store(f"file:{tmp_path / 'offsets'}")
    store.claim("g", "client-1", {QUEUE: 3})

    assert store.spec == f"file:{tmp_path / 'offsets'}"
    assert open_offset_store(store.spec).read("g")[QUEUE].next_offset == 3


def test_the_brokers_need_a_group_to_ask_for(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="names the offsets at the brokers, which only a query can use"):
        open_offset_store("broker:")


def test_importing_the_registry_loads_neither_delta_nor_arrow() -> None:
    """Executors import it, and delta-rs must not be in a process that forks."""
    code = (
        "import sys, pyspark_rocketmq.offsets.open, pyspark_rocketmq.offsets.rules;"
        "print(sorted({'deltalake', 'pyarrow', 'pyspark'} & set(sys.modules)))"
    )
    env = {"PYTHONPATH": ":".join(sys.path)}

    printed = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True
    )

    assert printed.stdout.strip() == "[]"
