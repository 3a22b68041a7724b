"""What a verifier is made of."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_no_part_of_a_verifier_loads_torch() -> None:
    code = (
        "import json, sys; import verifier.cli, verifier.service, lockstep.cli.replay;"
        "print(json.dumps([m for m in sys.modules if m.split('.')[0] in ('torch', 'coordinator', 'worker')]))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert loaded == []
