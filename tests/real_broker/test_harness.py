from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.helpers.backend_counts import BackendCounts
from tests.helpers.cluster import ClusterUnderTest
from tests.real_broker import plain_remoting
from tests.real_broker.artifacts import require_program
from tests.real_broker.errors import HarnessError
from tests.real_broker.harness import RealCluster
from tests.real_broker.homes import new_home
from tests.real_broker.ports import free_ports


def test_missing_java_is_a_sentence_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(HarnessError, match=r"need 'java', which is not on PATH: install a JDK\.$"):
        require_program("java", "install a JDK")


def test_free_ports_can_all_be_bound_and_leave_room_below() -> None:
    port = free_ports(-2, 0, 1)

    assert 20_000 <= port < 32_000


def test_a_broker_s_files_are_in_memory_while_the_disk_is_nearly_full() -> None:
    disk = Path(tempfile.gettempdir())
    home = new_home("home-", used=lambda folder: 0.8 if folder == disk else 0.1)
    home.rmdir()

    assert disk not in home.parents


def test_without_room_a_broker_s_user_hears_where_there_is_none() -> None:
    with pytest.raises(HarnessError, match=r"90 % full.* 92 %.*TMPDIR\.$"):
        new_home("home-", used=lambda _: 0.92)


def test_a_run_that_leaves_the_real_broker_out_is_noticed() -> None:
    counts = BackendCounts(is_strict=True)
    counts.select({"a": ["sim"], "b": ["real", "timeout"], "c": []})
    counts.carried_out("a")

    assert counts.left_out == ("real",)
    assert counts.summary() == "Tests run by backend: 1 of 1 on sim, 0 of 1 on real, 0 of 0 on java."


def test_a_run_of_chosen_tests_needs_only_their_backends() -> None:
    counts = BackendCounts(is_strict=True)
    counts.select({"a": ["sim", "java"]})
    counts.carried_out("a")

    assert not counts.left_out


def test_a_run_of_everything_needs_every_backend() -> None:
    counts = BackendCounts(is_strict=True)
    counts.select({"a": ["sim"], "b": ["real"]}, is_everything=True)
    counts.carried_out("a")
    counts.carried_out("b")

    assert counts.left_out == ("java",)


@pytest.mark.real
def test_a_program_that_fails_says_what_it_printed(real_cluster: RealCluster) -> None:
    with pytest.raises(HarnessError, match="NoSuchProgram"):
        real_cluster.java("NoSuchProgram")


def test_a_request_code_nobody_knows_is_answered_with_code_3(cluster: ClusterUnderTest) -> None:
    """A1: both kinds of server refuse an unknown request and keep serving."""
    for address in (cluster.name_servers, cluster.broker_addresses["broker-a"]):
        assert plain_remoting.call(address, 9999).code == 3
