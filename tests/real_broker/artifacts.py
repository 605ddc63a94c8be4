"""Jars, fetched once through Maven: RocketMQ's with our Java programs compiled against them,
Spark's for Avro and for S3, and YARN's servers; packages of programs beside the tests, through pip and npm.

Everything lands in ``.cache/`` of the repository. A finished directory appears by one rename, so that an
interrupted or a second, concurrent run never leaves or sees half of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.real_broker.errors import HarnessError

_HERE = Path(__file__).parent
_POM = _HERE / "pom.xml"
_PROXY_POM = _HERE / "proxy.pom.xml"
_SPARK_POM = _HERE / "spark.pom.xml"
_HADOOP_POM = _HERE / "hadoop.pom.xml"
_S3A_POM = _HERE / "s3a.pom.xml"
_JAVA_SOURCES = _HERE / "java"
CACHE = _HERE.parents[1] / ".cache"
"""Where what was fetched is kept."""
OTHER_VERSIONS = ("4.9.7", "5.1.4", "5.2.0", "5.5.0")
"""Versions of RocketMQ's servers that the long tests use besides the suites' own."""
_STAMP = "complete"
_MAVEN_TIMEOUT_S = 900
_JAVAC_TIMEOUT_S = 120
_PACKAGES_TIMEOUT_S = 600


def rocketmq_version() -> str:
    """Version of the broker the suites are proved against, from the pom."""
    return _property("rocketmq.version", _POM)


def _property(name: str, pom: Path) -> str:
    match = re.search(f"<{re.escape(name)}>([^<]+)<", pom.read_text(encoding="utf-8"))
    if match is None:
        raise HarnessError(f"{pom} has no <{name}> property; restore it.")
    return match.group(1)


def require_program(name: str, remedy: str) -> str:
    """Absolute path of a program that must be installed."""
    path = shutil.which(name)
    if path is None:
        raise HarnessError(f"The tests marked 'real' need '{name}', which is not on PATH: {remedy}.")
    return path


def fetch_jars() -> Path:
    """Directory of all of RocketMQ's jars; downloads them if they are not there yet.

    Raises:
        HarnessError: If Maven is missing or could not fetch them.
    """
    return fetch_once(f"RocketMQ {rocketmq_version()}", _POM, _cache_of_this_version() / "lib")


def fetch_server_jars(version: str) -> Path:
    """Directory of the jars of RocketMQ's servers of a version; downloads them if they are not there yet.

    Raises:
        HarnessError: If Maven is missing or could not fetch them.
    """
    if version == rocketmq_version():
        return fetch_jars()
    lib = CACHE / f"rocketmq-{version}" / "lib"
    return fetch_once(f"RocketMQ {version}", _POM, lib, options=[f"-Drocketmq.version={version}"])


def fetch_proxy_jars() -> Path:
    """Directory of RocketMQ's proxy, of the suites' version; downloads it if it is not there yet.

    Raises:
        HarnessError: If Maven is missing or could not fetch it.
    """
    version = rocketmq_version()
    lib = CACHE / f"rocketmq-proxy-{version}"
    return fetch_once("RocketMQ's proxy", _PROXY_POM, lib, options=[f"-Drocketmq.version={version}"])


def spark_jars() -> Path:
    """Where :func:`fetch_spark_jars` puts them."""
    return CACHE / f"spark-avro-{_property('spark-avro.version', _SPARK_POM)}"


def fetch_spark_jars() -> Path:
    """Directory of what Spark needs to read Avro and does not bring; downloads it if it is not there yet.

    Raises:
        HarnessError: If Maven is missing or could not fetch it.
    """
    return fetch_once("Spark's package for Avro", _SPARK_POM, spark_jars())


def fetch_hadoop_jars() -> Path:
    """Directory of YARN's servers, beside the part of Hadoop that Spark brings; downloads them if they are
    not there yet.

    Raises:
        HarnessError: If Maven is missing or could not fetch them.
    """
    lib = CACHE / f"hadoop-{_property('hadoop.version', _HADOOP_POM)}"
    return fetch_once("YARN", _HADOOP_POM, lib)


def fetch_s3a_jars() -> Path:
    """Directory of what Spark needs to reach S3; downloads it if it is not there yet.

    Raises:
        HarnessError: If Maven is missing or could not fetch it.
    """
    lib = CACHE / f"s3a-{_property('hadoop.version', _S3A_POM)}"
    return fetch_once("Hadoop's part for S3", _S3A_POM, lib)


def fetch_once(
    what: str,
    pom: Path,
    lib: Path,
    unpack: Callable[[Path], None] = lambda _: None,
    *,
    options: Sequence[str] = (),
) -> Path:
    """Directory ``lib`` with the jars that a pom names; downloads them if they are not there yet.

    ``unpack`` is called with the directory when the jars are there and nobody sees them yet. ``options`` are
    Maven's; jars of other options have another ``lib``.

    Raises:
        HarnessError: If Maven is missing or could not fetch them.
    """
    stamp = lib / _STAMP
    pom_digest = _digest([pom])
    if stamp.is_file() and stamp.read_text(encoding="ascii") == pom_digest:
        return lib
    maven = require_program("mvn", "install Apache Maven 3.8 or later")
    sys.stderr.write(f"Fetching {what} with Maven into {lib} ...\n")
    lib.parent.mkdir(parents=True, exist_ok=True)
    with _partial_directory(lib) as partial:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        _run(
            [maven, "-B", "-q", *goal, *options, "-f", str(pom)],
            f"Maven could not fetch {what}",
            _MAVEN_TIMEOUT_S,
        )
        unpack(Path(partial))
        (Path(partial) / _STAMP).write_text(pom_digest, encoding="ascii")
        _put_in_place(Path(partial), lib)
    return lib


def fetch_packages(what: str, lock: Path, folder: Path) -> Path:
    """Directory of Python packages with versions of their own, for a program beside the tests;
    downloads them if they are not there yet.

    Raises:
        HarnessError: If pip could not fetch them.
    """

    def install(partial: Path) -> None:
        target = ["--no-deps", "--require-hashes", "--target", str(partial), "-r", str(lock)]
        command = [sys.executable, "-m", "pip", "install", "-q", *target]
        _run(command, f"pip could not fetch {what}", _PACKAGES_TIMEOUT_S)

    return _fetch_locked(what, [lock], folder, install)


def fetch_node_packages(what: str, locks: Path, folder: Path) -> Path:
    """The same of packages for Node.js, which ``package-lock.json`` in the folder ``locks`` names.

    Raises:
        HarnessError: If npm is missing or could not fetch them.
    """

    def install(partial: Path) -> None:
        npm = require_program("npm", "install Node.js 20 or later")
        for file in files:
            shutil.copy(file, partial)
        # npm takes a folder that it reaches by a link for a package.
        command = [
            npm,
            "ci",
            "--prefix",
            str(partial.resolve()),
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
        ]
        _run(command, f"npm could not fetch {what}", _PACKAGES_TIMEOUT_S)

    files = sorted(locks.glob("package*.json"))
    return _fetch_locked(what, files, folder, install)


def _fetch_locked(what: str, locks: list[Path], folder: Path, install: Callable[[Path], None]) -> Path:
    digest = _digest(locks)
    if (folder / _STAMP).is_file() and (folder / _STAMP).read_text(encoding="ascii") == digest:
        return folder
    sys.stderr.write(f"Fetching {what} into {folder} ...\n")
    with _partial_directory(folder) as partial:
        install(Path(partial))
        (Path(partial) / _STAMP).write_text(digest, encoding="ascii")
        _put_in_place(Path(partial), folder)
    return folder


def compile_java(lib: Path) -> Path:
    """Directory of our compiled Java programs; named after the sources, so a change compiles again.

    Raises:
        HarnessError: If the JDK is missing or the sources do not compile.
    """
    sources = sorted(_JAVA_SOURCES.glob("*.java"))
    classes = _cache_of_this_version() / f"classes-{_digest(sources)[:16]}"
    if (classes / _STAMP).is_file():
        return classes
    javac = require_program("javac", "install a JDK of version 17 or later")
    with _partial_directory(classes) as partial:
        command = [javac, "-nowarn", "-cp", str(lib / "*"), "-d", partial, *map(str, sources)]
        _run(command, "The Java programs of the tests did not compile", _JAVAC_TIMEOUT_S)
        (Path(partial) / _STAMP).touch()
        _put_in_place(Path(partial), classes)
    return classes


def _cache_of_this_version() -> Path:
    return CACHE / f"rocketmq-{rocketmq_version()}"


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _partial_directory(final: Path) -> tempfile.TemporaryDirectory[str]:
    # It is renamed away on success: then there is nothing left to clean up.
    return tempfile.TemporaryDirectory(dir=final.parent, prefix="partial-", ignore_cleanup_errors=True)


def _put_in_place(partial: Path, final: Path) -> None:
    """Move a finished directory to its name; the loser of a race keeps the winner's result."""
    shutil.rmtree(final, ignore_errors=True)
    try:
        partial.rename(final)
    except OSError:
        if not (final / _STAMP).is_file():
            raise


def _run(command: list[str], what_failed: str, timeout_s: float) -> None:
    # Without a terminal on stdin and with its output kept, a failure explains itself in the error text.
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
            env=os.environ,
        )
    except subprocess.TimeoutExpired as exc:
        raise HarnessError(f"{what_failed}: no result within {timeout_s:g} s.") from exc
    if done.returncode != 0:
        tail = done.stdout.decode(errors="replace")[-2000:]
        raise HarnessError(f"{what_failed}: exit code {done.returncode}, output ends with:\n{tail}")
