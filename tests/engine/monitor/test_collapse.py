"""The alarm sounds when vectors have collapsed, and does not where they are merely near each other."""

import logging
import math

import numpy as np
import pytest
import torch

from fastadv.engine.monitor.collapse import ENOUGH_ROWS, Collapsed, CollapseWatch, Geometry
from fastadv.evaluation.vectors.geometry import uniformity
from tests.quick_trainer import Trainer

D = 96


def two_views(num_rows, common=0.0, sentence=1.0, noise=0.3):
    """Vectors of a part that all share, one of each sentence and one of each pass, and their second views."""
    shared, own = common * torch.ones(D), sentence * torch.randn(num_rows, D)
    return [shared + own + noise * torch.randn(num_rows, D) for _ in range(2)]


def warnings_of(caplog, views, mode="warn"):
    """What is said of batches of (z, z+)."""
    watch = CollapseWatch(mode)
    with caplog.at_level(logging.WARNING):
        for step, (z, z_positive) in enumerate(views, start=1):
            watch.look(step, z, z_positive, torch.arange(len(z)))
    return [record.getMessage() for record in caplog.records]


def test_uniformity_is_the_one_of_the_evaluation():
    z, z_positive = two_views(20, common=2.0)
    assert Geometry.of(z, z_positive).uniformity == pytest.approx(uniformity(z.numpy()), abs=1e-6)


@pytest.mark.parametrize("num_rows", [20, 3 * D])
def test_rank_is_that_of_the_covariance_eigenvalues(num_rows):
    z = torch.randn(num_rows, D) * torch.linspace(0.1, 3, D)
    units = (z / z.norm(dim=1, keepdim=True)).double().numpy()
    values = np.linalg.eigvalsh(np.cov(units.T))
    assert Geometry.of(z, None).rank == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-6)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_rank_counts_equal_directions(rank):
    """Unit vectors to and fro along ``rank`` axes: as many equal eigenvalues."""
    axes = torch.eye(D)[:rank]
    assert Geometry.of(torch.cat([axes, -axes] * 4), None).rank == pytest.approx(rank)


def test_equal_vectors_vary_in_nothing():
    geometry = Geometry.of(torch.randn(D).expand(12, D), None)
    assert geometry.rank == 0 and geometry.uniformity == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("num_rows", [8, 64])
def test_constant_vectors_are_reported_once(caplog, num_rows, scale):
    z = (scale * torch.randn(D)).expand(num_rows, D) * (1 + 1e-6 * torch.randn(num_rows, D))
    (message,) = warnings_of(caplog, [(z, z)] * 3)
    assert message.startswith("step 1: vectors of different sentences are nearly alike") and "\n" not in message


def test_vectors_on_a_line_are_reported(caplog):
    z = torch.randn(16, 1) * torch.randn(D) + 0.01 * torch.randn(16, D)
    (message,) = warnings_of(caplog, [(z, z + 0.001 * torch.randn_like(z))])
    assert message.startswith("step 1: the vectors lie on a line (rank 1")


@pytest.mark.parametrize("num_rows", [8, 16, 64])
def test_vectors_that_are_dropout_noise_are_reported(caplog, num_rows):
    """Cosines of 0.9, by far not alike; but no sentence is nearer to itself than to another."""
    views = [two_views(num_rows, common=3.0, sentence=0.0, noise=1.0) for _ in range(1 + ENOUGH_ROWS // num_rows)]
    messages = warnings_of(caplog, views)
    assert len(messages) == 1 and "as near as two views of one" in messages[0]


@pytest.mark.parametrize("num_rows", [2, 8, 64, 700])
@pytest.mark.parametrize("sentence", [1.0, 0.045])
def test_near_is_not_alike(caplog, num_rows, sentence):
    """Down to the mean cosine of 0.998 that pretrained encoders' first tokens can have."""
    views = [two_views(num_rows, common=1.0, sentence=sentence, noise=0.5 * sentence) for _ in range(3)]
    if sentence < 1:
        cosines = torch.nn.functional.normalize(views[0][0], dim=1) @ torch.nn.functional.normalize(
            views[0][0][0], dim=0
        )
        assert cosines[1:].mean() == pytest.approx(0.998, abs=1e-3)
    assert warnings_of(caplog, views) == []


def test_a_batch_of_one_sentence_over_and_over_is_no_collapse(caplog):
    watch = CollapseWatch("raise")
    z = torch.ones(64, D)
    assert watch.look(1, z, z, torch.zeros(64, dtype=torch.int64)) == {}
    ids = torch.arange(64) % 3
    # Three sentences span a plane at most, and say nothing of the encoder.
    assert watch.look(2, torch.eye(D)[ids], None, ids)["vector_rank"] == pytest.approx(2)


def test_off_looks_at_nothing():
    assert CollapseWatch("off").look(1, None, None, None) == {}


@pytest.mark.parametrize("mode", ["warn", "raise", "off"])
def test_a_run_whose_vectors_are_all_one(make_config, step_lines, caplog, mode):
    config = make_config(
        objective="tests.ranks.cases.planted:Flat", **{"train.collapse": mode, "data.max_sentences": 8}
    )
    if mode == "raise":
        with pytest.raises(Collapsed, match="step 1: vectors of different sentences are nearly alike.*usual causes"):
            Trainer(config).fit()
        return
    lines = step_lines(Trainer(config).fit())
    found = [record.getMessage() for record in caplog.records if record.name == "fastadv.engine.monitor.collapse"]
    assert len(found) == (1 if mode == "warn" else 0)
    if mode == "warn":
        assert [(line["vector_rank"], line["uniformity"]) for line in lines] == [(0, pytest.approx(0, abs=1e-5))] * 4
    else:
        assert not {"vector_rank", "uniformity"} & lines[0].keys()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_pretrained_encoder_raises_no_alarm(minilm_dir, caplog, pooling):
    from fastadv import Encoder

    encoder = Encoder.from_pretrained(str(minilm_dir), pooling=pooling, max_length=32, dropout=0.1).train()
    words = "film plot actor music scene story camera ending".split()
    texts = [f"the {a} was better than the {b}" for a in words for b in words if a != b]
    batch = encoder.pack(texts[:ENOUGH_ROWS])
    with torch.no_grad():
        views = [(encoder.encode(encoder.embed(batch), batch), encoder.encode(encoder.embed(batch), batch))]
    assert warnings_of(caplog, views) == []


def test_metrics_are_finite_at_every_size():
    for num_rows in (2, 3, 8):
        found = CollapseWatch("warn").look(1, torch.randn(num_rows, D), None, torch.arange(num_rows))
        assert found.keys() == {"uniformity", "vector_rank"} and all(map(math.isfinite, found.values()))
