"""Whole runs of CARL and RAR on labelled texts: what is logged and exported."""

import pytest
import torch
from safetensors.torch import load_file

from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.engine.checkpoints.checkpoint import EXTRA_STATE
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from tests.quick_trainer import Trainer
from fastadv.evaluation.embeddings.reconstruct import load_reconstructor

from tests.engine.systems import CLASSES
from tests.small_runs import SENTENCES

def weights_of(folder):
    return load_file(folder / "model" / "model.safetensors")


def extra_state_of(folder):
    return load_file(newest_checkpoint(folder) / EXTRA_STATE)


def test_carls_log_says_when_the_contrast_begins(make_system, step_lines):
    """The first epoch fills the bank."""
    folder = Trainer(make_system("carl", **{"train.max_steps": 6})).fit()
    has_contrast = ["loss_contrast_original" in line for line in step_lines(folder) if "loss" in line]
    assert has_contrast == [False, False, True, True, True, True]
    for line in step_lines(folder):
        if "loss_contrast_original" in line:
            parts = ("loss_classification", "loss_contrast_original", "loss_contrast_adversarial")
            assert line["loss"] == pytest.approx(sum(line[part] for part in parts), rel=1e-5)
    assert extra_state_of(folder)["carl_is_written"].all()


@pytest.mark.parametrize("system", ["carl", "rar"])
def test_the_export_is_a_classifier_and_nothing_more(make_system, step_lines, system):
    folder = Trainer(make_system(system)).fit()
    assert not any("reconstructor" in name or "bank" in name for name in weights_of(folder))
    classifier = Classifier.from_pretrained(str(folder / "model"))
    assert tuple(classifier.label_map.names) == CLASSES
    assert classifier.classify_texts(list(SENTENCES[:3])).shape == (3, 4)
    # What `fastadv attack --method reconstruct` reads.
    assert (load_reconstructor(folder / "model", classifier.encoder) is not None) == (system == "rar")
    assert system == "carl" or all("loss_reconstruction" in line for line in step_lines(folder))
