"""Bars on a terminal, lines elsewhere, and nothing of work that is soon over."""

import io
import re

import pytest

from fastadv.files import progress
from fastadv.files.progress import Bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_once(monkeypatch):
    """Long work is what takes any time at all."""
    monkeypatch.setattr(progress, "SILENT_S", 1e-9)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)


def test_off_a_terminal_short_work_says_nothing():
    stream = io.StringIO()
    for _ in Bar(range(1000), desc="encode", unit="text", file=stream):
        pass
    assert stream.getvalue() == ""


def test_off_a_terminal_long_work_says_what_how_far_how_fast_and_how_long(at_once):
    stream = io.StringIO()
    with Bar(total=4, desc="attack", unit=" sentences", file=stream) as bar:
        for _ in range(4):
            bar.set_postfix_str("2/3 succeeded", refresh=False)
            bar.update()
    lines = stream.getvalue().splitlines()
    shape = r"attack: \d of 4 sentences, .*(/s|/ sentences|\?).*, [\d:?]+ left, 2/3 succeeded"
    assert lines and all(re.fullmatch(shape, line) for line in lines)
    assert lines[-1].startswith("attack: 4 of 4 sentences")
    assert "\r" not in stream.getvalue()


def test_without_a_total_the_time_so_far_is_said(at_once):
    stream = io.StringIO()
    with Bar(desc="tagging", unit="text", file=stream) as bar:
        bar.update(7)
    assert re.fullmatch(r"tagging: 7 text, .*, [\d:]+ so far", stream.getvalue().splitlines()[-1])


def test_a_disabled_one_says_nothing(at_once):
    stream = io.StringIO()
    assert sum(Bar(range(4), file=stream, disable=True)) == 6
    assert stream.getvalue() == ""


def test_a_terminal_has_a_bar_that_is_drawn_again():
    stream = Terminal()
    for _ in Bar(range(3), desc="encode", file=stream):
        pass
    assert "\r" in stream.getvalue() and "100%" in stream.getvalue()
