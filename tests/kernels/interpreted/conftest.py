"""Triton's interpreter, made to round to bfloat16 as a GPU does.

The check_* files here run in a process of their own, started by test_triton_interpreted.py: TRITON_INTERPRET holds
for a process, and must be set before the kernels are imported.
"""

import os

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def bfloat16_rounds_to_nearest():
    """The interpreter cuts a float32's lower half off where a GPU rounds to the nearest, ties to even."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    original = InterpreterBuilder.cast_impl

    def cast_impl(self, source, target_type):
        if source.dtype.scalar == tl.float32 and target_type.scalar == tl.bfloat16:
            values = torch.from_numpy(np.array(source.data, dtype=np.float32))
            return TensorHandle(values.bfloat16().view(torch.uint16).numpy(), tl.bfloat16)
        return original(self, source, target_type)

    InterpreterBuilder.cast_impl = cast_impl
    yield
    InterpreterBuilder.cast_impl = original


@pytest.fixture(scope="session", autouse=True)
def functions_find_the_language_patched():
    """The interpreter patches the language for every function that a kernel calls, which a launch has done already."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch_language = interpreter._patch_lang

    def patch_once(fn):
        modules = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if any(tl.core.is_builtin(module.load) for module in modules):
            return patch_language(fn)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once
    yield
    interpreter._patch_lang = patch_language
