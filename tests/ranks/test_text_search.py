"""The step with views of texts on 1, 2 and 3 ranks is that of one process on the global batch: loss and gradients."""

import pytest

from tests.ranks.cases import text_search
from tests.ranks.cases_tests import CasesOnRanks

pytestmark = pytest.mark.several_processes


class TestTextSearch(CasesOnRanks):
    cases = text_search
