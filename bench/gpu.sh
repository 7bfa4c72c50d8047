#!/usr/bin/env bash
# What is to be known of a GPU, the most telling first, in ten minutes at most:
#
#   check      every Triton kernel against float64                                           2 min
#   step       whole training steps at RoBERTa-large's size, with and without CUDA graphs    4 min
#   info_nce   InfoNCE's times beside eager torch and torch.compile                          1.5 min
#   rest       the same of the other kernels                                                 2 min
#
#   bench/gpu.sh [--out FOLDER]    FOLDER takes a JSON file of each part, runs/gpu by default
#   bench/gpu.sh --dry             the same on a CPU, in Triton's interpreter, at sizes that say nothing about speed
#
# PYTHON   the interpreter, python3 by default
#
# A part that fails or is stopped leaves what it has measured, and the next one runs. Nothing is timed of a kernel that was
# not found right. The kernels need torch and its triton, nothing installed of this project; the steps transformers,
# pyarrow, pydantic, pyyaml and tqdm too. Where the package inf-cl is installed, its loss is timed beside InfoNCE.
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
export PYTHONPATH="$PWD:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if [[ " $* " == *" --dry "* ]]; then export TRITON_INTERPRET=1; fi

failed=()
# No row begins after SECONDS, and 20 seconds later what still runs is ended.
part() {
    local name=$1 seconds=$2
    shift 2
    echo "== $name"
    if ! timeout --kill-after=5 $((seconds + 20)) "$python" -m "$@" --seconds "$seconds"; then failed+=("$name"); fi
}
part check 100 bench.gpu.check "$@"
part step 220 bench.gpu.step "$@"
part info_nce 70 bench.gpu.time --ops info_nce "$@"
part rest 100 bench.gpu.time --ops rest "$@"
echo "${SECONDS} s; failed or stopped: ${failed[*]:-none}"
((${#failed[@]} == 0))
