"""Plausible mistakes, planted one at a time in a transcription or in the torch code; a comparison must see each.

A mutant is data: lines of ``function: text => replacement`` under its name and the cases that must show it. The text is
replaced in the function's source, which is compiled again; a text that the source no longer has is an error. The
files beside this one are read as follows.

    == A family of mistakes
    GROUP = case case
    NameOfTheMistake: GROUP case
        function: text => replacement
            and more of this replacement
        other_function: text =>

`make test` plants the first mutant of each family in its first case, `make test-mutants` all of them.
"""

import inspect
import textwrap
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tests.oracle import toy_encoder
from tests.oracle.classes import classification, scal
from tests.oracle.sentences import ball, contrastive

# What an edit may name besides what the edited module has itself.
OF_NUMPY = {**vars(ball), **vars(contrastive), **vars(toy_encoder), **vars(classification), **vars(scal), "np": np}
OF_NUMPY["replace"] = replace
OF_TORCH = {"torch": torch, "replace": replace}


@dataclass(frozen=True)
class Mutant:
    name: str
    family: str
    cases: tuple
    edits: tuple
    """(function, text, replacement) each; several of one function follow one another"""

    def functions(self):
        """The edits by function: (function, ((text, replacement), ...)) each."""
        names = dict.fromkeys(name for name, _, _ in self.edits)
        return [(name, tuple(edit[1:] for edit in self.edits if edit[0] == name)) for name in names]


def read(name):
    """The mutants of the file ``name``, in order."""
    mutants, groups, family = [], {}, None
    text = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").replace("\n        ", " ")
    for line in filter(str.strip, text.splitlines()):
        if line.startswith("== "):
            family = line[3:]
        elif line.startswith("    "):
            function, _, edit = line.strip().partition(": ")
            old, _, new = f"{edit} ".partition(" => ")
            mutants[-1] = replace(mutants[-1], edits=(*mutants[-1].edits, (function, old, new.strip())))
        else:
            left, separator, right = line.partition(" = " if " = " in line else ": ")
            cases = tuple(case for word in right.split() for case in groups.get(word, (word,)))
            if separator == " = ":
                groups[left] = cases
            else:
                mutants.append(Mutant(left, family, cases, ()))
    return mutants


def parametrized(*names):
    """Mutants of files with a case each, as parameters of a test; all but the first of a family are marked."""
    parameters, families = [], set()
    for name in names:
        for mutant in read(name):
            for case in mutant.cases:
                marks = [pytest.mark.mutants] if (name, mutant.family) in families else []
                families.add((name, mutant.family))
                parameters.append(pytest.param(mutant, case, id=f"{mutant.name}-{case}", marks=marks))
    return pytest.mark.parametrize(("mutant", "name"), parameters)


def recompiled(function, edits, names, owner=None):
    """A function anew from its edited source; ``names`` is what it may name besides its module's globals."""
    function = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in edits:
        assert old in source, f"{function.__qualname__} has no text {old!r}"
        source = source.replace(old, new)
    known, made = {**names, **function.__globals__, "_owner": owner}, {}
    code = compile(source.replace("super()", "super(_owner, self)"), f"<mutant of {function.__qualname__}>", "exec")
    exec(code, known, made)
    return made[function.__name__]


@lru_cache(maxsize=None)
def transcribed(mutant, kind):
    """The class ``kind`` of a transcription with the mistake in its methods."""
    methods = {}
    for name, edits in mutant.functions():
        owner = next(base for base in kind.__mro__ if name in vars(base))
        methods[name] = recompiled(vars(owner)[name], edits, OF_NUMPY, owner)
    return type(mutant.name, (kind,), methods)


@contextmanager
def in_torch(mutant):
    """The torch code has the mistake inside the block; functions are named by where they are looked up."""
    with ExitStack() as stack:
        for target, edits in mutant.functions():
            stack.enter_context(patch(target, recompiled(resolve_name(target), edits, OF_TORCH)))
        yield
