"""The supervised systems that are compared, on the batches of `cases.py` with a class each."""

from dataclasses import dataclass, replace

from tests.oracle.classes.classification import AdversarialTraining, ClassifierOptions, FineTuning, FreeLB
from tests.oracle.classes.scal import SCAL, SCALWithoutAttack, SCALWithoutContrast
from tests.oracle.classes.smart import SMART
from tests.oracle.sentences.cases import BATCHES, RELATIVE, SIZES

# All of the five classes, and the two equal sentences in two of them.
LABELS = [[3, 0, 4, 1], [2, 2, 0, 1, 4], [1, 3, 0]]
LABELLED = [
    [replace(sentence, label=label) for sentence, label in zip(batch, labels, strict=True)]
    for batch, labels in zip(BATCHES, LABELS, strict=True)
]
# Each batch three times: the average of SMART changes its pace after two steps of twenty.
LONG = 2 * LABELLED


@dataclass(frozen=True)
class Case:
    system: str
    """objective by name, and an ablation behind a plus"""
    options: ClassifierOptions
    head: str = "none"
    """of the contrastive term"""
    has_dropout: bool = True
    learning_rate: float = 0.0
    """above 0: parameters move after every step, each side by its own gradients"""

    @property
    def batches(self):
        return LONG if self.learning_rate else LABELLED


TRANSCRIBED = {
    "fine_tuning": FineTuning,
    "adversarial_training": AdversarialTraining,
    "freelb": FreeLB,
    "scal": SCAL,
    "scal+cl": SCALWithoutAttack,
    "scal+at": SCALWithoutContrast,
    "smart": SMART,
}
ONE_STEP = {"epsilon": 0.4, "inner_dropout": "frozen", "sigma": 0.0, "use_eta": False, "norm": "l1"}
FREE = {"method": "freelb", "start": "sentence", "norm": "l2", "num_pgd_steps": 3, "alpha": 0.3, "use_eta": False}
SMARTER = {
    "method": "pgd",
    "start": "normal",
    "norm": "linf",
    "num_pgd_steps": 1,
    "inner_dropout": "frozen",
    "use_eta": False,
    "sigma": 0.05,
    "epsilon": 0.08,
    "alpha": 0.06,
}


def options(**changes):
    return ClassifierOptions(**changes)


def pgd(norm, **changes):
    sizes = {name: SIZES[norm][name] for name in ("epsilon", "alpha")}
    return options(
        **{"method": "pgd", "norm": norm, "num_pgd_steps": 3, "use_eta": False, "sigma": 0.1, **sizes, **changes}
    )


def fine_tuning():
    yield "fine_tuning", Case("fine_tuning", options())
    yield "fine_tuning-no-dropout", Case("fine_tuning", options(), has_dropout=False)
    yield "fine_tuning-moving", Case("fine_tuning", options(), learning_rate=0.05)


def adversarial_training():
    name = "adversarial_training"
    for method in ("fgm", "fgsm"):
        yield f"{name}-{method}", Case(name, options(method=method, **ONE_STEP))
        off = {**ONE_STEP, "inner_dropout": "off", "perturb_special_tokens": False}
        yield f"{name}-{method}-off-spare-special", Case(name, options(method=method, **off))
        relative = {**ONE_STEP, "epsilon": None, "epsilon_relative": 0.2}
        yield f"{name}-{method}-relative", Case(name, options(method=method, **relative))
    for norm in SIZES:
        yield f"{name}-pgd-{norm}", Case(name, pgd(norm))
        yield f"{name}-pgd-{norm}-frozen", Case(name, pgd(norm, inner_dropout="frozen", sigma=0.0))
    relative = {"epsilon": None, "epsilon_relative": RELATIVE["epsilon_relative"], "alpha": RELATIVE["alpha"]}
    yield f"{name}-pgd-relative", Case(name, pgd("l2", **relative))
    yield f"{name}-pgd-sentence", Case(name, pgd("l2", start="sentence", sigma=0.4))
    yield f"{name}-pgd-normal", Case(name, pgd("linf", start="normal", sigma=0.05))
    yield f"{name}-moving", Case(name, options(method="fgm", **ONE_STEP), learning_rate=0.05)
    yield f"{name}-no-dropout", Case(name, pgd("l2"), has_dropout=False)


def freelb():
    yield "freelb-no-ball", Case("freelb", options(**FREE, sigma=0.6, epsilon=None))
    yield "freelb-ball", Case("freelb", options(**FREE, sigma=0.6, epsilon=0.4))
    yield "freelb-zero-start", Case("freelb", options(**FREE, sigma=0.0, epsilon=None))
    yield "freelb-one-pass", Case("freelb", options(**{**FREE, "num_pgd_steps": 1}, sigma=0.6, epsilon=None))
    yield "freelb-spare-special", Case("freelb", options(**FREE, sigma=0.6, epsilon=None, perturb_special_tokens=False))
    yield "freelb-no-dropout", Case("freelb", options(**FREE, sigma=0.6, epsilon=None), has_dropout=False)
    yield "freelb-moving", Case("freelb", options(**FREE, sigma=0.6, epsilon=0.4), learning_rate=0.05)


def scal():
    for method in ("fgm", "fgsm"):
        attack = options(method=method, **ONE_STEP)
        yield f"scal-{method}", Case("scal", attack, head="mlp")
        yield f"scal-{method}-no-head", Case("scal", attack)
        yield f"scal-{method}-no-dropout", Case("scal", attack, has_dropout=False)
    yield (
        "scal-warm-duplicates",
        Case("scal", options(method="fgm", **ONE_STEP, temperature=0.5, mask_duplicates=False)),
    )
    yield "scal-moving", Case("scal", options(method="fgm", **ONE_STEP), learning_rate=0.05)
    yield "scal-cl", Case("scal+cl", options(), head="mlp")
    yield "scal-cl-no-head", Case("scal+cl", options())
    yield "scal-at", Case("scal+at", options(method="fgm", **ONE_STEP))


def smart():
    weights = {"weight_smoothness": 0.6, "weight_momentum": 1.7}
    yield "smart-plain", Case("smart", options(**SMARTER))
    yield "smart-weighed", Case("smart", options(**SMARTER, **weights))
    yield "smart-off", Case("smart", options(**{**SMARTER, "inner_dropout": "off"}))
    yield "smart-no-dropout", Case("smart", options(**SMARTER), has_dropout=False)
    yield "smart-spare-special", Case("smart", options(**SMARTER, perturb_special_tokens=False))
    yield "smart-three-steps", Case("smart", options(**{**SMARTER, "num_pgd_steps": 3, "norm": "l2", "epsilon": 0.3}))
    yield "smart-moving", Case("smart", options(**SMARTER, **weights), learning_rate=0.3)


CASES = {**dict(fine_tuning()), **dict(adversarial_training()), **dict(freelb()), **dict(scal()), **dict(smart())}
