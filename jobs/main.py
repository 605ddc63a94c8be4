"""The script that spark-submit.sh starts."""

from __future__ import annotations

import sys
from pathlib import Path

from jobs.cli import main

if __name__ == "__main__":
    # Python puts a script's folder first on the path: a user's listeners.py must not be ours.
    sys.path.remove(str(Path(__file__).parent))
    sys.exit(main())
