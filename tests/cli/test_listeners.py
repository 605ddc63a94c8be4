"""Finding a user's listener: by module and name, with a sentence for everything that can be wrong."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_rocketmq.cli.consume import check_listener
from pyspark_rocketmq.errors import OptionError


@pytest.fixture(autouse=True)
def clean_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def problem_of(name: str, *py_files: str) -> str:
    with pytest.raises(OptionError) as caught:
        check_listener(name, py_files, orderly=True)
    (problem,) = caught.value.problems
    return problem


def test_a_listener_is_found_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("def on(messages, context): return 'here'\n")

    check_listener("here:on", (), orderly=True)
    assert sys.modules["here"].on(None, None) == "here"


def test_a_listener_is_found_in_a_file_and_in_an_archive(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "in_file.py").write_text("def on(messages, context): return 'file'\n")
    with zipfile.ZipFile(folder / "some.zip", "w") as archive:
        archive.writestr("in_zip.py", "def on(messages, context): return 'zip'\n")
    py_files = (str(folder / "in_file.py"), str(folder / "some.zip"))

    for module, answer in (("in_file", "file"), ("in_zip", "zip")):
        check_listener(f"{module}:on", py_files, orderly=True)
        assert sys.modules[module].on(None, None) == answer


def test_a_missing_module_is_reported_with_where_it_was_looked_for() -> None:
    assert problem_of("no_such.module:on") == (
        "option listener='no_such.module:on' cannot be used: there is no module 'no_such' in pyFiles, in the "
        "current directory or on PYTHONPATH; correct the name, or add the module's file to pyFiles"
    )


def test_a_module_that_lacks_something_itself_is_distinguished(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text("import absent_thing\n")

    assert "its module needs 'absent_thing'; install it, or add it to pyFiles" in problem_of("needy:on")


def test_a_module_that_fails_is_reported_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no luck')\n")

    assert "importing its module failed: RuntimeError: no luck" in problem_of("broken:on")


def test_a_missing_function_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("on = 3\n")

    assert "module 'empty' has no 'off'" in problem_of("empty:off")
    assert "an object of type int is not a listener" in problem_of("empty:on")


def test_any_form_of_a_listener_will_do_and_an_async_one_where_order_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "forms.py").write_text(
        "class Opened:\n"
        "    def consume_message(self, messages, context): pass\n"
        "opened = Opened()\n"
        "async def later(messages, context): pass\n"
    )

    for name in ("forms:Opened", "forms:opened"):
        check_listener(name, (), orderly=True)
    assert "only a concurrent listener may be" in problem_of("forms:later")
    check_listener("forms:later", (), orderly=False)
