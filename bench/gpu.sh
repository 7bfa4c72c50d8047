#!/usr/bin/env bash
# The Triton kernels on one GPU, their results against float64, then their speed beside eager torch and torch.compile; then
# whole training steps at RoBERTa-large's size. In under eight minutes. Needs torch, its triton and transformers, nothing
# installed of this project.
#
#   bench/gpu.sh [--json FILE]     FILE takes the kernels' times, FILE.steps those of the steps
#   bench/gpu.sh --dry             the same on a CPU, in Triton's interpreter, at sizes that say nothing about speed
#
# PYTHON   the interpreter, python3 by default
#
# Where the package inf-cl is installed, its loss is timed beside InfoNCE.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
export PYTHONPATH="$PWD:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if [[ " $* " == *" --dry "* ]]; then export TRITON_INTERPRET=1; fi

# A wrong kernel has no speed: the first failure ends it.
"$python" -m bench.gpu.check "$@"
"$python" -m bench.gpu.time "$@"
"$python" -m bench.gpu.step "$@"
