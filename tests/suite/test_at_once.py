"""Running all tests in several processes finds what one process would."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import at_once
from tests.helpers.backend_counts import COUNTS_FILE
from tests.helpers.driver_process import ENVIRONMENT, REPO
from tests.helpers.taken_files import LONGEST, PART, RUN, TAKEN_FOLDER, Part, Taken
from tests.helpers.wait import PATIENCE_S, wait_until

BACKENDS = {"sim": 1, "real": 1, "java": 1}


def leave(folder: Path, collected: int = 0, **parts: dict[str, int]) -> None:
    Taken(folder / "spark").begin(collected, ["tests/a/test_a.py"])
    for name, counts in parts.items():
        (folder / f"{name}.json").write_text(json.dumps(counts))


def test_backends_may_be_tested_by_any_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, spark={"real": 2, "skipped": 1}, others={"sim": 1, "real": 1, "java": 4, "skipped": 2})

    assert at_once._judge(tmp_path) == 0
    assert "1 on sim, 3 on real, 4 on java; 3 skipped." in capsys.readouterr().out


def test_a_backend_that_no_part_tested_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(tmp_path, spark={"sim": 2}, others={"sim": 1, "java": 4})

    assert at_once._judge(tmp_path) == 1
    assert "no test marked 'real'" in capsys.readouterr().out


def test_a_test_that_no_part_ran_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, 12, spark={**BACKENDS, "run": 5}, others={"run": 6})

    assert at_once._judge(tmp_path) == 1
    assert "of 12 tests 11 were run" in capsys.readouterr().out


def test_a_file_is_taken_once_and_what_is_left_is_known(tmp_path: Path) -> None:
    one, two = Taken(tmp_path / "spark"), Taken(tmp_path / "spark")
    assert one.left() is None
    one.begin(20, ["tests/a/test_a.py", "tests/a/test_b.py"])

    assert one.take("tests/a/test_a.py")
    assert not two.take("tests/a/test_a.py")
    assert two.left() == ["tests/a/test_b.py"]
    # Whoever looked only there has found fewer.
    two.begin(5, ["tests/a/test_b.py"])
    assert two.take("tests/a/test_b.py")
    assert one.left() == []
    assert one.collected() == 20


class Commands:
    """Stands for the processes; those for which there is no code end with 0."""

    def __init__(self, codes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.called: list[str] = []
        self.files: list[str] = []
        self._codes = codes
        monkeypatch.setattr(at_once.Line, "_call", lambda line, command, *_: self.call(line, command))

    def call(self, line: at_once.Line, command: Sequence[str]) -> None:
        name = next((each for each in command if "spark and" in each or each == "spark-test"), "")
        self.called.append(name)
        self.files += [each for each in command if each.endswith(".py")]
        line._codes.append(self._codes.get(name, 0))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(at_once, "_judge", lambda _: 0)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({}, 0),
        ({"not spark and long": 3}, 3),
        ({"spark and long": 2}, 2),
        ({"spark-test": 4}, 4),
    ],
)
def test_a_part_that_fails_fails_the_run(
    codes: dict[str, int], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(codes, monkeypatch)

    assert at_once._run("long", tmp_path, at_once._SPARK_TEST) == expected
    assert set(commands.called) == {"spark and long", "not spark and long", "spark-test"}


@pytest.mark.usefixtures("quiet")
def test_a_later_part_of_the_long_tests_runs_in_three_processes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands({}, monkeypatch)

    assert at_once._run("long", tmp_path) == 0
    assert sorted(commands.called)[:2] == ["not spark and long"] * 2
    assert "spark and long" in commands.called
    assert "spark-test" not in commands.called


def test_ci_and_the_long_tests_try_every_spark_together() -> None:
    """Row J4: what CI leaves out for its time, the long tests try."""
    given = {
        name: dict(each.split("=", 1) for each in command[3:]) for name, command in at_once._OTHERS.items()
    }
    every = re.search(r"^SPARKS +\?= (.*)$", (REPO / "Makefile").read_text(), re.MULTILINE)
    assert every is not None

    assert sorted([*given["--sparks"]["SPARKS"].split(), given["--long"]["SPARKS"]]) == every[1].split()
    assert "ENDS" not in given["--long"]
    assert given["--all"] == {}


@pytest.mark.usefixtures("quiet")
def test_who_has_done_its_kind_helps_with_the_other_while_files_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands({}, monkeypatch)
    Taken(tmp_path / "spark").begin(20, ["tests/a/test_a.py", "tests/a/test_b.py"])
    of_others = Taken(tmp_path / "not spark")
    of_others.begin(20, ["tests/a/test_a.py"])
    of_others.take("tests/a/test_a.py")

    assert at_once._run("not long", tmp_path) == 0
    assert sorted(commands.called) == ["not spark and not long", *["spark and not long"] * 2]
    assert commands.files == ["tests/a/test_a.py", "tests/a/test_b.py"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tests/wire", "-x"], ["tests/wire", "-x"]),
        (["--long", "tests/go_client"], ["-m", "long", "tests/go_client"]),
    ],
)
def test_arguments_for_pytest_are_run_by_one_process(
    arguments: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    def call(command: list[str]) -> int:
        called.append(command)
        return 0

    monkeypatch.setattr("subprocess.call", call)

    assert at_once.main(arguments) == 0
    assert called[0][3:] == expected


def test_files_that_are_begun_first_are_there() -> None:
    """A file that is renamed would be begun last and waited for."""
    assert [name for name in LONGEST if not (REPO / name).is_file()] == []


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_each_file_is_in_one_part(parts: int) -> None:
    names = [str(path.relative_to(REPO)) for path in (REPO / "tests").rglob("test_*.py")]

    found = [
        [each for each in names if Part.parse(f"{part}/{parts}").has(each)] for part in range(1, parts + 1)
    ]

    assert sorted(name for part in found for name in part) == sorted(names)
    assert all(found)


@pytest.mark.parametrize("part", ["0/3", "4/3", "2", "a/b", "1/0"])
def test_what_is_no_part_is_refused_before_anything_is_started(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PART, part)

    with pytest.raises(ValueError, match=f"PART={part} is none"):
        at_once.main(["--long"])


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("part", "is_tried"), [("", True), ("1/3", True), ("2/3", False)])
def test_other_sparks_are_tried_with_the_first_part(
    part: str, is_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PART, part)
    commands = Commands({}, monkeypatch)

    assert at_once.main(["--long"]) == 0
    assert ("spark-test" in commands.called) == is_tried


def test_a_part_need_not_have_tests_of_each_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PART, "2/3")
    leave(tmp_path, 5, spark={"sim": 3, "run": 5})

    assert at_once._judge(tmp_path) == 0


_HANGS = """
import threading
from pathlib import Path

def test_that_hangs():
    Path(__file__).with_name("begun").touch()
    threading.Event().wait()
"""
_ASKABLE = """
from tests.helpers import stacks

def pytest_configure(config):
    stacks.print_when_asked()
"""


def test_a_run_that_takes_too_long_shows_where_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_hangs.py").write_text(_HANGS)
    (tmp_path / "conftest.py").write_text(_ASKABLE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    monkeypatch.setattr(at_once, "_pytest", lambda *_: command)
    line = at_once.Line("hangs", tmp_path, "not long")
    line.start(["not spark"], shown=False)
    wait_until((tmp_path / "begun").exists)

    assert at_once._end_within(0.0, [line])
    assert line.wait() != 0
    shown = capfd.readouterr()
    assert "hangs was not done after 0 minutes" in shown.out
    assert "in test_that_hangs" in shown.err


def test_a_run_that_is_done_in_time_is_waited_for(tmp_path: Path) -> None:
    line = at_once.Line("short", tmp_path, "not long")
    line.start([[sys.executable, "-c", "pass"]], shown=False)

    assert not at_once._end_within(PATIENCE_S, [line])
    assert line.wait() == 0


_SHARED = """
import pytest

@pytest.fixture(scope="module", autouse=True)
def part(request):
    print(f"begin {request.module.__name__}")
    yield
    print(f"end {request.module.__name__}")

def test_one():
    pass

def test_two():
    assert __name__ != "test_b"
"""


_CONFTEST = """
from pathlib import Path
from tests.helpers.taken_files import Taken, TakenFiles

def pytest_configure(config):
    config.pluginmanager.register(TakenFiles(Taken(Path(__file__).parent / "taken")))
"""


def test_processes_that_share_files_run_each_test_once(tmp_path: Path) -> None:
    """Fixtures of a file end with it, and what fails fails the process that ran it."""
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(_SHARED)
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-v", "-s", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {
        name: text for name, text in ENVIRONMENT.items() if name not in (COUNTS_FILE, TAKEN_FOLDER)
    }
    processes = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    together = "".join(process.communicate(timeout=PATIENCE_S)[0] for process in processes)

    assert sorted(process.returncode for process in processes) == [0, 1], together
    assert together.count("PASSED") == 5
    assert sorted(re.findall("begin (.*)", together)) == ["test_a", "test_b", "test_c"]
    assert sorted(re.findall("end (.*)", together)) == ["test_a", "test_b", "test_c"]
    taken = tmp_path / "taken"
    counts = [json.loads(each.read_text())[RUN] for each in taken.glob("*.json")]
    assert len(counts) == 2
    assert sum(counts) == Taken(taken).collected() == 6


_REAL_CONFTEST = """
from pathlib import Path
import pytest
from tests.helpers.taken_files import REAL_CLUSTER, Taken, TakenFiles

def pytest_configure(config):
    config.pluginmanager.register(TakenFiles(Taken(Path(__file__).parent / "taken")))

@pytest.fixture(scope="session")
def real(pytestconfig):
    class Cluster:
        def close(self):
            print("closed")
    pytestconfig.stash[REAL_CLUSTER] = Cluster()
    yield
    print("end of run")
"""
_OF_FILES = {
    "a": "def test_a(): print('a')",
    "b": "import pytest\n@pytest.mark.real\ndef test_b(real): print('b')",
    "c": "def test_c(): print('c')",
    "d": "import pytest\ndef test_d1(): print('d')\n@pytest.mark.real\ndef test_d(real): print('d real')",
}


@pytest.mark.parametrize("taken", [(), ("d",), ("a", "b", "c")])
def test_the_real_rocketmq_ends_after_the_last_test_that_needs_it(
    tmp_path: Path, taken: Sequence[str]
) -> None:
    """Whichever files another process has taken."""
    for name, text in _OF_FILES.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    (tmp_path / "conftest.py").write_text(_REAL_CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  real\n")
    for name in taken:
        (tmp_path / "taken").mkdir(exist_ok=True)
        assert Taken(tmp_path / "taken").take(f"test_{name}.py")

    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )

    ran = {"b": ["b"], "d": ["d", "d real"], "a": ["a"], "c": ["c"]}
    expected = [each for name in ("b", "d") if name not in taken for each in ran[name]]
    expected += ["closed", *(each for name in ("a", "c") if name not in taken for each in ran[name])]
    assert re.findall(r"^\.*(a|b|c|d|d real|closed)$", done.stdout, re.MULTILINE) == expected
