"""The mutants of `make mutants`: every one has a place in the code and tests to kill it."""

import re

import pytest

from benchmarks.mutants import MUTANTS, ROOT, occurrences


def test_every_mutant_changes_one_place():
    assert len(MUTANTS) >= 60
    assert len({(m.file, m.text, m.replacement) for m in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.text != mutant.replacement
        assert occurrences(mutant) == 1, f"{mutant.file}: {mutant.text}"


@pytest.mark.parametrize("test", sorted({test for mutant in MUTANTS for test in mutant.tests}))
def test_every_mutant_names_a_test_that_exists(test):
    path, _, name = test.partition("::")
    source = (ROOT / path).read_text()
    assert not name or re.search(rf"^def {re.escape(name.split('[')[0])}\(", source, re.MULTILINE)
