"""Tries the wheel on every Python found here, with the lowest and the highest packages that it allows.

    python -m tests.packaging.python_check [--ends] WHEEL

Of each Python an environment is made with the lowest packages for which there is a file, and one with the
newest; a selection of the pure tests runs there against the installed wheel, and a read and a sink's commits
against the simulator. Into another environment of the newest Python ``WHEEL[spark]`` is installed as users
do, for the README's consumer and a batch read. It prints what was tried, and which Pythons are not here; it
fails without the Python that runs it and, where ``CI=true``, without the newest. With ``--ends`` it tries
only the lowest packages on the oldest Python, and the newest ones on the newest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

from tests.helpers.driver_process import REPO
from tests.packaging.platform_check import consumed_by

_OLDEST, _NEWEST = 11, 13
"""Minor versions of the Pythons that pyproject.toml names."""
_SELECTED = (
    "tests/wire/test_columnar.py",
    "tests/wire/test_messages.py",
    "tests/consume/test_fetch_window.py",
    "tests/consume/test_orderly.py",
    "tests/consume/test_plan.py",
    "tests/offsets/test_arrow_lists.py",
    "tests/source/test_queue_reader.py",
    "tests/sinks/delta/test_merge.py",
    "tests/sinks/delta/test_sink.py",
)
_TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.100")
_SPARK = ("pyspark", "py4j")


def pythons(path: str, home: Path) -> dict[int, Path]:
    """Minor versions of Python 3 → an interpreter, on ``PATH`` or of pyenv."""
    found: dict[int, Path] = {}
    for minor in range(_OLDEST - 1, _NEWEST + 1):
        on_path = [Path(folder, f"python3.{minor}") for folder in path.split(os.pathsep)]
        of_pyenv = sorted(home.glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
        for one in (*on_path, *of_pyenv):
            # Those of pyenv's shims may be for a version that is not chosen here.
            if one.is_file() and _says(one, "-c", "import sys; print(sys.version_info[1])") == str(minor):
                found[minor] = one
                break
    return found


def needed(*, is_strict: bool) -> set[int]:
    """Minor versions without which nothing is shown: this Python's and, where ``is_strict``, the newest."""
    return {sys.version_info[1], *([_NEWEST] if is_strict else [])}


def named(minors: Iterable[int]) -> str:
    """As people call them."""
    return ", ".join(f"3.{minor}" for minor in sorted(minors))


def requirements(wheel: Path) -> list[str]:
    """What the wheel needs without extras."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    return [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]


class Trial:
    """A folder with environments, and uv, which can resolve to the lowest versions."""

    def __init__(self, root: Path, wheel: Path) -> None:
        self._root = root
        self._wheel = wheel
        self._uv = shutil.which("uv") or self._installed_uv()

    def refusal(self, python: Path) -> str:
        """What an installer says of a Python that is too old."""
        folder = self._environment("old", python)
        done = self._pip(folder, "--no-deps", str(self._wheel), check=False)
        if done.returncode == 0:
            raise SystemExit(f"The wheel can be installed for {python}, where it does not work.")
        return "refused"

    def tests(self, minor: int, python: Path, resolution: str) -> str:
        """Run the selected tests; the packages they ran with."""
        folder = self._environment(f"3.{minor}-{resolution}", python)
        wanted = requirements(self._wheel)
        self._pip(folder, "--only-binary", ":all:", "--resolution", resolution, *wanted)
        # Spark is pure Python: that of this environment will do, of which there may be no other file.
        (site,) = folder.glob("lib/python3.*/site-packages")
        for name in _SPARK:
            spec = find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            (site / name).symlink_to(Path(spec.origin).parent)
        self._pip(folder, "--no-deps", str(self._wheel))
        packages = self._packages(folder, wanted)
        self._pip(folder, *_TOOLS)
        command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        # The wheel, not the checkout's connector.
        settings = ["-o", "pythonpath=.", "-o", "filterwarnings=default", "--disable-warnings"]
        marks = ["-m", "not spark and not real and not java and not long"]
        _run([*command, *settings, *marks, *_SELECTED], environment=_clean(), folder=REPO)
        return packages

    def readme(self, python: Path) -> str:
        """Install ``WHEEL[spark]`` and run the README's consumer and a batch read."""
        folder = self._root / "readme"
        _run([str(python), "-m", "venv", str(folder)])
        # By pip, which keeps the Spark that it builds; uv would build and keep another one each time.
        wheel = f"{self._wheel.resolve()}[spark]"
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", wheel])
        return consumed_by(folder / "bin" / "python", self._root)

    def _environment(self, name: str, python: Path) -> Path:
        folder = self._root / name
        _run([self._uv, "venv", "--quiet", "--no-python-downloads", "--python", str(python), str(folder)])
        return folder

    def _pip(self, folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        python = str(folder / "bin" / "python")
        return _run([self._uv, "pip", "install", "--quiet", "--python", python, *arguments], check=check)

    def _packages(self, folder: Path, wanted: Sequence[str]) -> str:
        listed = _says(Path(self._uv), "pip", "list", "--python", str(folder / "bin" / "python"))
        versions = dict(line.split()[:2] for line in listed.splitlines() if line)
        names = [each.split(" ")[0].split("<")[0].split(">")[0].split("=")[0] for each in wanted]
        return ", ".join(f"{name} {versions[name]}" for name in names)

    def _installed_uv(self) -> str:
        folder = self._root / "uv"
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
        return str(folder / "bin" / "uv")


def tried(wheel: Path, root: Path, *, only_ends: bool = False) -> Iterator[str]:
    """Try everything, or ``only_ends``; a line for each."""
    found = pythons(os.environ["PATH"], Path.home())
    lacking = needed(is_strict=os.environ.get("CI", "").lower() == "true") - found.keys()
    if lacking:
        raise SystemExit(f"Not found here, on PATH or of pyenv: Python {named(lacking)}. Install it first.")
    trial, newest = Trial(root, wheel), max(found)
    for minor, python in found.items():
        if minor < _OLDEST:
            yield f"Python 3.{minor}: {trial.refusal(python)}"
            continue
        for resolution in _resolutions(minor, newest, only_ends=only_ends):
            yield f"Python 3.{minor} {resolution}: {trial.tests(minor, python, resolution)}"
    missing = [minor for minor in range(_OLDEST, _NEWEST + 1) if minor not in found]
    if missing:
        yield f"not found here, so not tried: Python {named(missing)}"
    yield f"Python 3.{newest} with WHEEL[spark]: {trial.readme(found[newest])}"


def _resolutions(minor: int, newest: int, *, only_ends: bool) -> Sequence[str]:
    if not only_ends:
        return "lowest-direct", "highest"
    return [*(["lowest-direct"] if minor == _OLDEST else []), *(["highest"] if minor == newest else [])]


def _clean() -> Mapping[str, str]:
    return {key: text for key, text in os.environ.items() if not key.startswith(("PYTHONPATH", "SPARK_"))}


def _says(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        env=environment or _clean(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if check and done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done


if __name__ == "__main__":
    *options, built = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="pythons-") as work:
        for line in tried(Path(built), Path(work), only_ends=options == ["--ends"]):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
