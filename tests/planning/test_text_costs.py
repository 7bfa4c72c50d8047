"""What views of texts cost, against what torch counts."""

from dataclasses import replace

import pytest
import torch

from fastadv.config.text_search import TextSearchConfig
from fastadv.planning.costs import BatchSize, StepCosts
from tests.planning.test_costs import counted, make_batch, make_config, make_step, model_config

CASES = {
    "instead": ({"text_positive": "instead"}, {}),
    "random": ({"text_positive": "instead"}, {"choose": "random"}),
    "keep": ({"text_positive": "instead", "weight_keep": 1.0}, {}),
    "gradient": ({"text_positive": "instead"}, {"choose": "gradient"}),
    "beside, anchor and flip": ({"text_positive": "beside", "weight_text": 0.5, "weight_flip": 0.5}, {}),
}


@pytest.mark.parametrize("base", ["simcse", "exact, N = 1"])
@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_torch_counts(base, case):
    config, hf_config, batch = make_config(base), model_config(), make_batch()
    options, text = CASES[case]
    config.objective_options = {**config.objective_options, **options}
    config.perturbation.text = TextSearchConfig(["typos"], 3, flips=["negation"], num_flips=2, precision="fp32", **text)
    step, model = make_step(config, hf_config, (), {"text": config.perturbation.text}), StepCosts(config, hf_config)
    drawn = replace(make_batch(), is_present=torch.ones(batch.num_sentences).bool())
    texts = [drawn] * 3
    if case == "gradient":
        own = replace(drawn, words=torch.full((drawn.num_tokens,), -1))
        texts = [own, replace(own, num_edits=torch.zeros(batch.num_sentences, dtype=torch.int64))]
    batch = replace(batch, proposals={"text": texts, "flip": [drawn] * 2})
    found = model.flops(BatchSize(batch.num_sentences, batch.num_tokens, batch.max_seqlen))
    # Flips are compared by cosines, which are no matrix product.
    assert sum(found.values()) == pytest.approx(counted(step, batch), rel=0.002)
    assert ("text search" in found) == (case != "random") and found["text views"] > 0
