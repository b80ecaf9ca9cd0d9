"""What the guide and the README show runs, and says what they say that it says."""

import pathlib
import re
import subprocess
import sys

import pytest

PYTHON = pathlib.Path(__file__).parents[1]
GUIDE = PYTHON.parents[1] / "docs" / "bindings.md"


def run(text):
    done = subprocess.run([sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_readme_runs():
    (block,) = re.findall(r"```python\n(.*?)```", (PYTHON / "README.md").read_text(), re.S)
    assert run(block) == ["<kvrail.Report: landed, 65536 bytes of 1 descriptors>"]


@pytest.mark.skipif(not GUIDE.is_file(), reason="the tests are alone, without the repository")
def test_the_guide_runs_and_its_output_is_real():
    found = re.search(r"```python\n(.*?)```\n\nsays\n\n((?:    [^\n]*\n)+)", GUIDE.read_text(), re.S)
    block, output = found.groups()
    assert run(block) == [line.strip() for line in output.splitlines()]
