"""Running all tests in two processes finds what one process would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import in_two


def leave(folder: Path, **parts: dict[str, int]) -> None:
    for name, counts in parts.items():
        (folder / f"{name}.json").write_text(json.dumps(counts))


def test_backends_may_be_tested_by_either_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, spark={"real": 2, "skipped": 1}, others={"sim": 1, "real": 1, "java": 4, "skipped": 2})

    assert in_two._judge(tmp_path) == 0
    assert "1 on sim, 3 on real, 4 on java; 3 skipped." in capsys.readouterr().out


def test_a_backend_that_neither_tested_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(tmp_path, spark={"sim": 2}, others={"sim": 1, "java": 4})

    assert in_two._judge(tmp_path) == 1
    assert "no test marked 'real'" in capsys.readouterr().out


@pytest.mark.parametrize("chosen", ["long", "not long"])
@pytest.mark.parametrize(("codes", "expected"), [((0, 0), 1), ((0, 3), 3), ((2, 0), 2)])
def test_a_part_that_fails_fails_the_run(
    chosen: str, codes: tuple[int, int], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without failures the judge decides, and no backend was tested here."""
    left = dict(zip((f"spark and {chosen}", f"not spark and {chosen}"), codes, strict=True))

    class Part:
        def __init__(self, code: int) -> None:
            self.wait = lambda: code

    monkeypatch.setattr(in_two, "_start", lambda marker, folder, **streams: Part(left[marker]))
    monkeypatch.setattr("signal.signal", lambda *_: None)

    assert in_two._run_both(chosen, tmp_path) == expected


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

    assert in_two.main(arguments) == 0
    assert called[0][3:] == expected
