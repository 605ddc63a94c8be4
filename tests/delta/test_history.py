"""The commits of a table as a catalog shows them: read in pages, newest first; no catalog."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.delta.history import CatalogHistory
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS


class Catalog:
    """A table's commits; notes how many of them each read asks for."""

    def __init__(self, versions: int) -> None:
        self.commits = [entry(version) for version in range(versions)]
        self.asked: list[int | None] = []

    def read(self, limit: int | None) -> list[dict[str, Any]]:
        self.asked.append(limit)
        newest_first = self.commits[::-1]
        return newest_first if limit is None else newest_first[:limit]

    def history(self) -> CatalogHistory:
        return CatalogHistory("shop.orders", NO_OPTIONS, self.read)


def entry(version: int, **more: Any) -> dict[str, Any]:
    return {"version": version, "timestamp": version * 1_000_000, "operation": "WRITE", **more}


def test_a_look_reads_one_page() -> None:
    catalog = Catalog(500)
    history = catalog.history()

    assert (history.refresh(), history.newest) == (499, 499)
    assert catalog.asked == [20]


def test_older_commits_are_read_page_by_page_until_they_are_enough() -> None:
    catalog = Catalog(500)
    history = catalog.history()
    history.refresh()

    below = history.commit_infos_below(490)

    assert [next(below)["version"] for _ in range(15)] == list(range(489, 474, -1))
    assert catalog.asked == [20, 200]
    assert [found["version"] for found in below] == list(range(474, -1, -1))
    assert catalog.asked == [20, 200, 2_000]


def test_a_version_that_the_history_has_forgotten_is_not_found() -> None:
    catalog = Catalog(30)
    history = catalog.history()
    history.refresh()
    del catalog.commits[:10]

    assert history.commit_info(9) is None
    assert history.commit_info(10) == entry(10)


def test_as_of_a_version_later_commits_are_left_out() -> None:
    history = Catalog(500).history().as_of(7)

    assert history.refresh() == 7
    assert history.commit_info(8) is None


def test_a_history_without_commits_is_an_error() -> None:
    with pytest.raises(DeltaError, match=r"The history of shop\.orders"):
        Catalog(0).history().refresh()


def test_the_mark_of_a_commit_distinguishes_it_from_another_table_s() -> None:
    one, other = Catalog(2), Catalog(2)
    other.commits[1] = entry(1, operation="DELETE")
    histories = [catalog.history() for catalog in (one, other)]
    for history in histories:
        history.refresh()

    marks = [history.commit_file(1) for history in histories]

    assert marks[0] != marks[1]
    assert marks[0] == one.history().as_of(1).commit_file(1)
