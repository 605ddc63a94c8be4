"""``python -m pyspark_rocketmq.cli``; also the script for spark-submit if the wheel is installed."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts a script's folder first on the path: a user's ``import settings`` must not find ours.
    folder = str(Path(__file__).parent)
    if folder in sys.path:
        sys.path.remove(folder)
    from pyspark_rocketmq.cli.main import main

    sys.exit(main())
