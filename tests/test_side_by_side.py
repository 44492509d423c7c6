"""benchmarks/side_by_side.py: commands at once, stopped in time by Ctrl-C, and those that were not started named."""

import re
import sys

from benchmarks.side_by_side import run

PROGRAM = """#!/bin/sh
# Called as PROGRAM -m omg WORD: a word is how it behaves.
trap 'echo saved; exit 130' INT
case $3 in
  quick) echo finished ;;
  broken) echo no such thing; exit 2 ;;
  long) echo begun; while :; do sleep 0.1; done ;;
esac
"""


def test_commands_run_at_once_and_are_stopped_in_time(tmp_path, monkeypatch, capfd):
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert not run([["long"], ["broken"], ["quick"], ["long"], ["quick"]], 2, 2.0, tmp_path / "logs")
    printed = capfd.readouterr().out
    # How many seconds each took depends on the machine.
    assert re.search(r"00_long stopped after \d+ s: saved", printed)
    assert re.search(r"01_broken failed \(2\) after \d+ s: no such thing", printed)
    assert re.search(r"02_quick done after \d+ s: finished", printed)
    assert "03_long stopped" in printed
    assert "1 not started: the same call starts them." in printed
    assert run([["quick"]], 2, 2.0, tmp_path / "logs")
