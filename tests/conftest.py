"""Models every test can afford: random, tiny, made on the spot; and the packaged MiniLM where it is installed."""

import logging
import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Its threads wait for each other in a loop: two processes of two threads on two cores take ten times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tests say what happens on a CPU, where a machine has GPUs too; processes that they start inherit it.
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.small_runs import make_config, make_config_in, scored_pairs, step_lines, stop_after  # noqa: E402, F401

# Every run of a property's test is the same run, however slow the machine.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

# Tests that were started by nohup see hang-ups as those that were not.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

WORDS = (
    "the a an film movie story was is not very good bad great dull slow sharp funny sad and but with of in to it "
    "this that actor scene plot ending music camera wonderful terrible love hate never always almost every one"
).split()


def write_tiny_bert(folder, hidden_size=32, num_layers=2, initializer_range=0.2):
    """A random BERT with a WordPiece tokenizer of some words and all lower-case letters, saved at ``folder``."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *WORDS,
        *letters,
        *[f"##{c}" for c in letters],
        ".",
        ",",
        "!",
        "?",
    ]
    tokens = list(dict.fromkeys(tokens))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        intermediate_size=2 * hidden_size,
        max_position_embeddings=64,
        # Wider than the usual 0.02, so that vectors of different sentences differ by much more than rounding.
        initializer_range=initializer_range,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _linear_as_before():
    """An engine of stage 3 that a test leaves behind must not keep its own linear layer in every later test."""
    linear = torch.nn.functional.linear
    yield
    torch.nn.functional.linear = linear


@pytest.fixture(autouse=True)
def _log_as_before():
    """The command sends the library's log to the terminal for good; the next test may want it elsewhere."""
    log = logging.getLogger("fastadv")
    handlers, level, propagate = list(log.handlers), log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)


@pytest.fixture(scope="session")
def tiny_bert_dir(tmp_path_factory):
    return write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture
def tiny_encoder(tiny_bert_dir):
    """A factory of fresh encoders: ``tiny_encoder(dtype=torch.float64, pooling="mean", dropout=0.0, ...)``."""

    def make(dtype=torch.float64, **options):
        from fastadv.encoder import Encoder

        return Encoder.from_pretrained(str(tiny_bert_dir), dtype=dtype, **options)

    return make


@pytest.fixture(scope="session")
def minilm_dir():
    """The folder of the packaged MiniLM. The `demo` extra belongs to the test set-up, so its absence is a failure."""
    from fastadv.data.sources.demo import resolve_model

    return resolve_model("demo:minilm")


@pytest.fixture
def sentences():
    return [
        "the film was not very good .",
        "a wonderful story !",
        "it is dull",
        "the actor was great , but the plot was slow and the ending was almost terrible .",
        "never",
        "love this camera and this music .",
        "the film was not very good .",
    ]


class Recorded:
    """A Step, the perturbations its searches found, and the gradients of one forward and backward."""

    def __init__(self, step):
        self.step = step
        self.found = []
        if step.search is None:
            return
        search = step.search.search

        def record(*arguments):
            self.found.append(search(*arguments))
            return self.found[-1]

        step.search.search = record

    def run(self, batch):
        """The loss of ``batch`` and the gradient of every parameter by name."""
        self.step.zero_grad(set_to_none=True)
        loss = self.step(batch)
        loss.backward()
        return loss.detach(), {n: p.grad.clone() for n, p in self.step.named_parameters() if p.grad is not None}


@pytest.fixture
def make_step(tiny_encoder):
    """A factory of recorded steps; by default RobustSentEmbed on the tiny encoder in float64 without dropout."""

    def make(
        objective="robustsentembed",
        objective_options=None,
        dropout=0.0,
        dtype=torch.float64,
        pooling="cls",
        path="auto",
        perturb_at="embedding",
        micro_batch_size=None,
        joint_views=False,
        checkpoint_activations=False,
        compute_dtype=None,
        on_nonfinite="raise",
        **perturbation,
    ):
        from fastadv.config.schema import PerturbationConfig
        from fastadv.engine.step.step import Step
        from fastadv.objectives import resolve_objective

        encoder = tiny_encoder(
            dtype=dtype,
            dropout=dropout,
            pooling=pooling,
            path=path,
            perturb_at=perturb_at,
            checkpoint_activations=checkpoint_activations,
        )
        torch.manual_seed(1)
        kind, given = resolve_objective(objective), (encoder.hidden_size,)
        if kind.needs.labels:
            from fastadv.encoder.classifier.classification_head import ClassificationHead

            # Five classes.
            given = (*given, ClassificationHead(encoder.hidden_size, 5))
        built = kind(*given, **(objective_options or {})).to(dtype)
        relative = {"epsilon_relative": 0.1, "alpha": 0.5, "beta": 0.4, "gamma": 0.7}
        settings = perturbation if "epsilon" in perturbation else {**relative, **perturbation}
        if built.needs.original:
            from fastadv.objectives.original import OriginalEncoder

            built.original_vectors = OriginalEncoder(encoder)
        detection = None
        if built.needs.detection is not None:
            from fastadv.objectives.sentences.rtd import build_detection

            counts = torch.ones(encoder.vocab_size, dtype=torch.int64)
            detection = build_detection(built.needs.detection, encoder, lambda: counts).to(dtype)
        step = Step(
            encoder,
            built,
            PerturbationConfig(**settings),
            detection,
            joint_views=joint_views,
            micro_batch_size=micro_batch_size,
            compute_dtype=compute_dtype,
            on_nonfinite=on_nonfinite,
        )
        return Recorded(step.train())

    return make
