"""MiniLM's transfer scores on the real sets, beside those of a script that shares no code with the package.

Runs where FASTADV_SENTEVAL names a folder in SentEval's layout: half an hour on two cores. FASTADV_SENTEVAL_SETS may
name some of the sets, FASTADV_CACHE a folder for the vectors.
"""

import os

import pytest

from fastadv.evaluation.vectors.transfer_sets import TRANSFER_SETS
from tests.evaluation.vectors import transfer_by_hand

FOLDER = os.environ.get("FASTADV_SENTEVAL")
SETS = os.environ.get("FASTADV_SENTEVAL_SETS", " ".join(TRANSFER_SETS)).split()


@pytest.fixture(scope="module")
def models(request):
    from fastadv.data.sources.demo import resolve_model
    from fastadv.encoder import Encoder

    encoder = Encoder.from_pretrained("demo:minilm", pooling="mean", max_length=128)
    return encoder, transfer_by_hand.load_model(resolve_model("demo:minilm"), max_length=128)


@pytest.mark.skipif(FOLDER is None, reason="FASTADV_SENTEVAL names no folder of SentEval's data")
@pytest.mark.parametrize("name", SETS)
def test_scores_are_within_0_3_of_the_script_written_apart(models, name):
    from fastadv.evaluation.vectors.transfer import transfer_results, transfer_scores

    encoder, other = models
    scores = transfer_scores(transfer_results(encoder, FOLDER, [name], cache_dir=os.environ.get("FASTADV_CACHE")))
    accuracy, f1, _ = transfer_by_hand.scores(FOLDER, other, [name])[name]
    print(f"{name}: {scores[name]:.2f}, by hand {accuracy:.2f}")
    assert scores[name] == pytest.approx(accuracy, abs=0.3)
    if name == "MRPC":
        assert scores["MRPC_F1"] == pytest.approx(f1, abs=0.3)
