"""Writes tests/vectors/rules.json anew; with a folder, its recording there, for ChainReplay in forge.

python -m tests.rules [FOLDER]
"""

import json
import sys
from pathlib import Path

from tests.rules import vectors
from tests.support import recordings

if len(sys.argv) > 1:
    folder = Path(sys.argv[1])
    for stale in folder.glob("rules-*"):
        stale.unlink()
    recordings.write(folder, "rules", list(vectors.recording(json.loads(vectors.PATH.read_text()))))
    recordings.write_list(folder)
else:
    vectors.PATH.write_text(vectors.vectors())
