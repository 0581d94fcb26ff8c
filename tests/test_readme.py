"""The README's example runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.serial, pytest.mark.slow, pytest.mark.xdist_group("launches")]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_example_trains(ranks, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "script.py"
    # Each to a file of its own: a launcher may run lines of several ranks into one.
    last = f"open(f'{tmp_path}/loss-{{kv.rank}}', 'w').write(str(float(error.mean())))\n"
    script.write_text(code + last)
    here = Path(sys.executable).parent
    found = [d for d in (here, *os.get_exec_path()) if (Path(d) / "mpiexec").exists()]
    launch = [str(Path(found[0]) / "mpiexec"), "-n", str(ranks)] if ranks > 1 else []

    ended = subprocess.run(
        [*launch, sys.executable, str(script)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert (ended.returncode, ended.stderr) == (0, "")
    losses = [float(path.read_text()) for path in tmp_path.glob("loss-*")]
    assert len(losses) == ranks
    assert max(losses) < 1.0
