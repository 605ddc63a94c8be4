"""``python -m fuzz.child TARGET SECONDS SEED BLIND FOLDER``: the process that runs one target; see :mod:`fuzz.run`."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from fuzz.engine import CurrentInput, Session, has_coverage_engine, run_blindly, run_by_coverage
from fuzz.run import CURRENT, FOLDER, RESULT


def main(name: str, seconds: float, seed: int, work: Path, *, is_blind: bool) -> NoReturn:
    """Run, write the result, and end the process at once, since libFuzzer never returns."""
    faulthandler.enable()
    by_coverage = has_coverage_engine() and not is_blind
    with ExitStack() as instrumented:
        if by_coverage:
            import atheris

            instrumented.enter_context(atheris.instrument_imports(include=["pyspark_rocketmq", "broker_sim"]))
        from fuzz.targets import TARGETS

    session = Session(TARGETS[name], seed, CurrentInput(work / CURRENT))
    began_s = time.monotonic()

    def done() -> NoReturn:
        found = [str(finding.save(FOLDER)) for finding in session.findings.values()]
        result = {
            "engine": "coverage" if by_coverage else "blind",
            "inputs": session.inputs,
            "seconds": time.monotonic() - began_s,
            "findings": found,
        }
        (work / RESULT).write_text(json.dumps(result), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)

    if by_coverage:
        run_by_coverage(session, seed=seed, seconds=seconds, corpus=work / "corpus", done=done)
    else:
        run_blindly(session, goes_on=lambda _: time.monotonic() - began_s < seconds)
    done()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[5]), is_blind=sys.argv[4] == "1")
