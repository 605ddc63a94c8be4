"""The script that ``./spark-submit.sh`` starts: the command line, from a checkout."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark_rocketmq.cli.main import main

if __name__ == "__main__":
    # Python puts a script's folder first on the path: a user's listeners.py must not be ours.
    sys.path.remove(str(Path(__file__).parent))
    sys.exit(main())
