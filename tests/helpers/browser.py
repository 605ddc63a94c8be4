"""A real browser without a window, for pages that must work in one.

Chromium on the PATH, or the one that ``fetch`` unpacked into ``.cache/chromium`` from Debian's packages,
without installing them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_HOME = Path(__file__).parents[2] / ".cache" / "chromium"
_BINARY = _HOME / "usr/lib/chromium/chromium"
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio")
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_S = 240


def find_browser() -> Path | None:
    """Return the program to run, or None if there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return Path(found)
    return _BINARY if _BINARY.exists() else None


class Browser:
    """Opens one page at a time, each in a new browser."""

    def __init__(self, program: Path, profile: Path) -> None:
        self._program = program
        self._profile = profile

    def document(self, page: Path, screenshot: Path, *, width: int = 1300, height: int = 950) -> str:
        """Return the page's document after its scripts have run; write what a person would see
        as a PNG to ``screenshot``.
        """
        libraries = os.pathsep.join(str(_HOME / each) for each in _LIBRARIES)
        done = subprocess.run(
            [
                str(self._program), "--headless", "--no-sandbox", "--disable-gpu",
                "--virtual-time-budget=10000",
                f"--user-data-dir={self._profile}", f"--window-size={width},{height}", "--dump-dom",
                f"--screenshot={screenshot}", page.as_uri(),
            ],
            env={**os.environ, "LD_LIBRARY_PATH": libraries} if self._program == _BINARY else None,
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=True,
        )  # fmt: skip
        return done.stdout


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """Return the browser; skip the test if there is none."""
    program = find_browser()
    if program is None:
        pytest.skip(
            "there is no Chromium; python -m tests.helpers.browser fetches one from Debian's packages"
        )
    return Browser(program, tmp_path / "profile")


def fetch() -> bool:
    """Unpack Chromium and its libraries into ``.cache/chromium``; return whether there is a browser now."""
    if find_browser() is not None:
        return True
    asked = ["apt-get", "install", "--print-uris", "--yes", "--no-install-recommends", "chromium"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    names = re.findall(r"^'\S+' ([^_\s]+)_", told, re.MULTILINE)
    packages = _HOME.with_name("chromium-packages")
    packages.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["apt-get", "download", *names], cwd=packages, check=True, timeout=600, capture_output=True
        )
        for package in packages.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(_HOME)], check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        shutil.rmtree(packages)
    return find_browser() is not None


if __name__ == "__main__":
    # Tests are skipped, not failed, where Debian's packages cannot be downloaded.
    fetch()
