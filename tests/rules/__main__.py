"""Writes tests/vectors/rules.json; with a folder, also recordings of it and of random histories, for forge.

python -m tests.rules [FOLDER]
"""

import json
import sys
from pathlib import Path

from tests.rules import vectors
from tests.support import recordings
from tests.support.market import history

if len(sys.argv) > 1:
    folder = Path(sys.argv[1])
    for stale in (*folder.glob("rules-*"), *folder.glob("history-*")):
        stale.unlink()
    recordings.write(folder, "rules", list(vectors.recording(json.loads(vectors.PATH.read_text()))))
    history.write(folder, range(12), 120)
    recordings.write_list(folder)
else:
    vectors.PATH.write_text(vectors.vectors())
