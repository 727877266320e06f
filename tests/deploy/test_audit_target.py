"""`make audit` with a stand-in for pip-audit that reports what it is told to, in the words of
pip-audit 2.10: the real one needs the advisory service."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

AUDIT = Path(__file__).parents[2] / ".ci" / "audit"
WEAK = """Found 1 known vulnerability in 1 package
"""
TABLE = """Name   Version ID             Fix Versions
------ ------- -------------- ------------
jinja2 2.4.1   PYSEC-2014-8   2.7.2
"""
DOWN = """ERROR:pip_audit._cli:Tried to connect to the advisory service but it did not answer
"""
CLEAN = "No known vulnerabilities found\n"


def audit(tmp_path: Path, *reports: tuple[int, str, str]) -> subprocess.CompletedProcess[str]:
    """reports: (status, stdout, stderr) of pip-audit, one for each constraint file."""
    files = []
    for n, (code, out, err) in enumerate(reports):
        file = tmp_path / f"{n}.txt"
        file.write_text("jinja2==2.4.1\nnumpy==1.0\n")
        files.append(str(file))
        for name, text in (("out", out), ("err", err), ("code", str(code))):
            (tmp_path / f"{n}.txt.{name}").write_text(text)
    stand_in = tmp_path / "pip-audit"
    stand_in.write_text(
        '#!/bin/sh\nfor file; do :; done\ncat "$file.out"\ncat "$file.err" >&2\n'
        'exit "$(cat "$file.code")"\n'
    )
    stand_in.chmod(0o755)
    env = os.environ | {"PIP_AUDIT": str(stand_in)}
    return subprocess.run([AUDIT, *files], capture_output=True, text=True, env=env, check=False)


def test_no_known_weakness(tmp_path: Path) -> None:
    done = audit(tmp_path, (0, "", CLEAN), (0, "", CLEAN))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no known weakness in 2 packages") == 2
    assert "NOT AUDITED" not in done.stdout + done.stderr


def test_a_weak_package_fails_and_is_named(tmp_path: Path) -> None:
    """Also when it is in the first of two files and the other has none."""
    done = audit(tmp_path, (1, TABLE, WEAK), (0, "", CLEAN))
    assert done.returncode == 1
    assert "PYSEC-2014-8" in done.stdout
    assert "0.txt: Found 1 known vulnerability" in done.stdout
    assert "1.txt: no known weakness" in done.stdout


@pytest.mark.parametrize("other", [(0, "", CLEAN), (1, TABLE, WEAK)])
def test_without_the_service_nothing_is_known(tmp_path: Path, other: tuple[int, str, str]) -> None:
    """A package that the first file was found weak for does not hide it either."""
    done = audit(tmp_path, other, (1, "", DOWN))
    assert done.returncode == 2
    assert "NOT AUDITED: " in done.stderr
    assert "1.txt" in done.stderr
    assert "did not answer" in done.stderr
