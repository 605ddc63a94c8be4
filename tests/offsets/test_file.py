"""Offsets as files on this machine, as Java's LocalFileOffsetStore has them."""

from __future__ import annotations

import fcntl
import os
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Never

import pytest

from pyspark_rocketmq.errors import (
    OffsetCommitConflict,
    OffsetError,
    OffsetStoreUnavailable,
    OptionError,
    SchemaError,
)
from pyspark_rocketmq.offsets.file import FileOffsetStore
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.offsets.store import CLAIMED, OffsetStore
from tests.helpers.fake_clock import FakeClock
from tests.offsets.conformance import GROUP, Q0, Q1, START_S, OffsetStoreConformance, committed
from tests.offsets.store_workers import claim_and_commit

JAVAS = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"orders"
\t\t}:12
\t}
}"""


class TestFileOffsetStore(OffsetStoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path, clock: FakeClock) -> FileOffsetStore:
        return FileOffsetStore(tmp_path / "off sets é", clock=clock)

    @pytest.fixture
    def again(self, store: FileOffsetStore) -> Callable[[], OffsetStore]:
        return lambda: open_offset_store(store.spec)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "offsets"


@pytest.fixture
def main(folder: Path) -> Path:
    return folder / GROUP / "offsets.json"


def test_a_key_that_is_too_long_for_a_folder_is_refused_with_advice(tmp_path: Path) -> None:
    """B3: group and instance name are each short enough, but not the two together."""
    store = FileOffsetStore(tmp_path / "offsets")

    for call in (store.read, lambda key: store.claim(key, "me", {Q0: 0})):
        with pytest.raises(OffsetError, match=r"281 characters .* Shorten option consumerGroup"):
            call(f"{'g' * 180}@{'i' * 100}")


@pytest.mark.parametrize(
    "place", ["s3:/lake/offsets", "hdfs:/offsets", "s3://lake/offsets", "hdfs://host/offsets"]
)
def test_a_uri_of_other_storage_is_no_folder_below_the_current_one(place: str) -> None:
    """J1: two members with other current folders would have other offsets."""
    with pytest.raises(OptionError, match=re.escape(f"'{place}' is ")):
        FileOffsetStore(place)
    with pytest.raises(OptionError, match=re.escape(f"'{place}' is ")):
        open_offset_store(f"file:{place}")


@pytest.mark.parametrize("place", ["file:/off sets", "file:///off%20sets", "/off sets"])
def test_a_local_folder_may_be_a_uri(place: str) -> None:
    """J1"""
    assert FileOffsetStore(place).spec == "file:/off sets"


def filled(folder: Path, *offsets: int) -> FileOffsetStore:
    """A store whose queue went through ``offsets``."""
    store = FileOffsetStore(folder)
    epoch = store.claim(GROUP, "me", {Q0: 0})[Q0].epoch
    for batch_id, next_offset in enumerate(offsets):
        store.commit(GROUP, [committed(Q0, next_offset, epoch=epoch)], query_id="q", batch_id=batch_id)
    return store


def test_a_file_of_java_s_is_gone_on_from(folder: Path, main: Path) -> None:
    """F1, B3: a broadcasting consumer moves here with its file."""
    main.parent.mkdir(parents=True)
    main.write_bytes(JAVAS)

    row = FileOffsetStore(folder).read(GROUP)[Q0]
    claimed = FileOffsetStore(folder).claim(GROUP, "me", {Q0: 0})[Q0]

    assert (row.next_offset, row.epoch, row.batch_id) == (12, 0, CLAIMED)
    assert (claimed.next_offset, claimed.epoch) == (12, 1)


def test_the_offset_table_is_written_as_java_reads_it(folder: Path, main: Path) -> None:
    """F1: and a Java consumer may go on from ours."""
    filled(folder, 7)

    assert main.read_bytes().startswith(
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:7},'
    )


def test_the_content_before_stays_beside_it(folder: Path, main: Path) -> None:
    """F1: LocalFileOffsetStore keeps it as .bak and reads it if the file
    is missing or cannot be understood.
    """
    store = filled(folder, 7, 9)
    main.unlink()
    assert store.read(GROUP)[Q0].next_offset == 7

    main.write_bytes(b'{"offsetTable":{{"brok')
    assert store.read(GROUP)[Q0].next_offset == 7
    store.commit(GROUP, [committed(Q0, 11)], query_id="q", batch_id=5)
    assert store.read(GROUP)[Q0].next_offset == 11


def test_a_group_is_listed_once_and_only_if_it_can_be_read(folder: Path, main: Path) -> None:
    """F1: killed between the two renames there is no offsets.json;
    killed before the first change there is only a beginning.
    """
    store = filled(folder, 7)
    main.rename(main.with_name("offsets.json.tmp"))
    assert (store.groups(), store.read(GROUP)[Q0].next_offset) == ((GROUP,), 0)

    main.with_name("offsets.json.bak").unlink()
    assert (store.groups(), store.read(GROUP)) == ((), {})


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:-1}}']
)
def test_files_that_say_nothing_are_an_error_and_not_a_new_group(
    folder: Path, main: Path, content: bytes
) -> None:
    """F3"""
    store = filled(folder, 7)
    main.with_name("offsets.json.bak").unlink(missing_ok=True)
    main.write_bytes(content)

    calls: tuple[Callable[[], object], ...] = (
        lambda: store.read(GROUP),
        lambda: store.claim(GROUP, "you", {Q0: 0}),
    )
    for call in calls:
        with pytest.raises(
            OffsetError, match=r"can be read neither from .* nor from offsets.json.bak beside it"
        ):
            call()
    assert main.read_bytes() == content


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epoch", '"1"'),
        ("epoch", "true"),
        ("epoch", "null"),
        ("owner", "3"),
        ("suspendedUntil", '"x"'),
        ("updatedAt", "[]"),
    ],
)
def test_a_value_of_another_kind_is_an_error(folder: Path, main: Path, key: str, value: str) -> None:
    """F1: somebody's edit, which would have ended a batch later."""
    FileOffsetStore(folder).claim(GROUP, "me", {Q0: 4})
    content, found = re.subn(rf'("{key}": ?)[^,}}]+', rf"\g<1>{value}", main.read_text())
    main.write_text(content)
    assert found == 1
    main.with_name("offsets.json.bak").unlink(missing_ok=True)

    with pytest.raises(OffsetError, match=f"offsets.json: {key} of topic=.* that is not of type "):
        FileOffsetStore(folder).read(GROUP)


def test_a_file_of_a_newer_release_is_refused(folder: Path, main: Path) -> None:
    filled(folder, 7)
    main.write_bytes(main.read_bytes().replace(b'"version":2', b'"version":3'))

    with pytest.raises(
        SchemaError,
        match=r"has version 3, but this release reads versions up to 2. Use the release that wrote it",
    ):
        FileOffsetStore(folder).read(GROUP)


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("left", range(13))
def test_killed_between_any_two_file_operations_it_has_the_change_or_what_was_before(
    folder: Path, main: Path, monkeypatch: pytest.MonkeyPatch, left: int, is_damaged: bool
) -> None:
    """H1: never a half file, never nothing; and whoever comes next can write.

    If the file is damaged, the one beside it is the only copy.
    """
    store = filled(folder, 7, 9)
    if is_damaged:
        main.write_bytes(b"{")
    before = 7 if is_damaged else 9
    countdown = [left]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if countdown[0] == 0:
                raise Killed
            countdown[0] -= 1
            return original(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        for owner, name in (
            (Path, "mkdir"), (Path, "open"), (Path, "replace"), (os, "fsync"), (os, "open"), (os, "close"),
            (fcntl, "flock"),
        ):  # fmt: skip
            patch.setattr(owner, name, counted(getattr(owner, name)))
        try:
            store.commit(GROUP, [committed(Q0, 20)], query_id="q", batch_id=3)
            is_done = True
        except Killed:
            is_done = False

    after = FileOffsetStore(folder)
    assert after.read(GROUP)[Q0].next_offset in ((20,) if is_done else (before, 20))
    after.commit(GROUP, [committed(Q0, 21)], query_id="q", batch_id=4)
    assert after.read(GROUP)[Q0].next_offset == 21


def test_the_steps_of_a_commit_are_those_that_are_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above must stop each of them and let the last one pass."""
    store = filled(folder, 7)
    steps: list[str] = []

    def noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            steps.append(name)
            return original(*args, **kwargs)

        return step

    for owner, name in ((Path, "replace"), (os, "fsync"), (fcntl, "flock")):
        monkeypatch.setattr(owner, name, noted(name, getattr(owner, name)))

    store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=2)

    assert steps == ["flock", "fsync", "replace", "replace", "fsync"]


def test_a_lock_that_another_process_keeps_is_reported_after_a_while(folder: Path) -> None:
    """Nothing waits for ever."""
    clock = FakeClock(START_S)
    store = FileOffsetStore(folder, clock=clock, sleep=clock.advance)
    with (
        FileOffsetStore(folder)._locked(GROUP, folder / GROUP),
        pytest.raises(OffsetCommitConflict, match="Another process has held the lock for 10 s") as caught,
    ):
        store.claim(GROUP, "me", {Q0: 0})

    assert caught.value.retryable
    assert store.claim(GROUP, "me", {Q0: 0})[Q0].epoch == 1


def test_groups_do_not_wait_for_each_other(folder: Path) -> None:
    with FileOffsetStore(folder)._locked("slow", folder / "slow"):
        assert FileOffsetStore(folder).claim(GROUP, "me", {Q0: 0})[Q0].epoch == 1


def test_processes_that_write_one_group_lose_nothing(folder: Path) -> None:
    """C5, H5: planner and driver are two processes."""
    store = FileOffsetStore(folder)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        steps = [
            executor.submit(claim_and_commit, store.spec, GROUP, owner, 20, 5, shares_group=True)
            for owner in ("one", "two")
        ]
        accepted = [step.result() for step in steps]

    assert store.read(GROUP)[Q0].next_offset == sum(accepted)


@pytest.mark.parametrize("change", ["read", "write"])
def test_a_disk_that_does_not_do_its_work_is_an_error_that_may_pass(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """F3: no space left, no permission."""
    store = filled(folder, 7)

    def broken(*args: Any, **kwargs: Any) -> Never:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((Path, "read_bytes", broken) if change == "read" else (os, "fsync", broken)))

    with pytest.raises(OffsetStoreUnavailable, match="No space left on device") as caught:
        store.read(GROUP) if change == "read" else store.claim(GROUP, "you", {Q1: 0})
    assert caught.value.retryable


def test_many_commits_leave_few_files(folder: Path) -> None:
    """F1: four files a group, however long it runs."""
    filled(folder, *range(200))

    assert sorted(each.name for each in (folder / GROUP).iterdir()) == [
        "offsets.json",
        "offsets.json.bak",
        "offsets.lock",
    ]


def test_a_pickled_store_reads_the_same_files(folder: Path) -> None:
    store = filled(folder, 7)

    assert pickle.loads(pickle.dumps(store)).read(GROUP)[Q0].next_offset == 7


@pytest.mark.parametrize("group", [".", "..", "../x", "a/b", "%2E", "%2e%2e", "\uff0e\uff0e"])
def test_no_name_of_a_group_leaves_the_folder(folder: Path, group: str) -> None:
    """F1"""
    store = FileOffsetStore(folder)
    store.reset(group, {Q0: 3})

    (file,) = folder.parent.rglob("offsets.json")
    assert file.parent.parent == folder
    assert store.groups() == (group,)
    assert store.read(group)[Q0].next_offset == 3


def test_a_group_without_a_name_is_refused(folder: Path) -> None:
    with pytest.raises(OffsetError, match="has no name"):
        FileOffsetStore(folder).reset("", {Q0: 3})
    assert not folder.exists()


def test_nothing_is_written_through_a_link_in_the_place_of_the_new_file(folder: Path, main: Path) -> None:
    """F1"""
    victim = folder.parent / "victim"
    victim.write_text("precious")
    main.parent.mkdir(parents=True)
    main.with_name("offsets.json.tmp").symlink_to(victim)

    FileOffsetStore(folder).reset(GROUP, {Q0: 3})

    assert victim.read_text() == "precious"
    assert FileOffsetStore(folder).read(GROUP)[Q0].next_offset == 3
