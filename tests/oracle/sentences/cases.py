"""What is compared: options by name, and the batches of three consecutive steps.

Sizes are chosen for X of RMS 0.5 so that in most cases some projections act and some do not.
"""

import itertools
import random
from dataclasses import dataclass, replace

from tests.oracle.toy_encoder import CLS, SATURATED_WORDS, SEP, Sentence
from tests.oracle.transcription import Options

NORMS = ("linf", "l2", "l1")
SIZES = {
    "linf": {"epsilon": 0.1, "alpha": 0.04, "beta": 0.05, "gamma": 0.06},
    "l2": {"epsilon": 0.3, "alpha": 0.12, "beta": 0.05, "gamma": 0.2},
    "l1": {"epsilon": 1.0, "alpha": 0.4, "beta": 0.04, "gamma": 0.5},
}
RELATIVE = {"epsilon_relative": 0.2, "epsilon": None, "alpha": 0.5, "beta": 0.4, "gamma": 0.7}


def framed(words, identity):
    """A sentence between its special tokens."""
    tokens = (CLS, *words, SEP)
    return Sentence(tokens, tuple(i in (0, len(tokens) - 1) for i in range(len(tokens))), identity)


def bare(words, identity):
    """A sentence without special tokens."""
    return Sentence(tuple(words), (False,) * len(words), identity)


BATCHES = [
    # Words repeat within and between sentences; the last sentence is the first again, under the same id.
    [framed([2, 3, 4], 7), framed([5, 2], 8), framed([6, 7, 3, 2], 9), framed([2, 3, 4], 7)],
    # Only special tokens; a word twice in a row; saturated words alone, so no gradient, and among others.
    [
        framed([8], 10),
        framed([], 11),
        framed([3, 3, 9], 12),
        bare([*SATURATED_WORDS, SATURATED_WORDS[0]], 13),
        framed([10, SATURATED_WORDS[1], 2], 14),
    ],
    # A single token; SEP's own word also in the middle, where it is no special token.
    [framed([11, 4], 15), bare([5], 16), framed([2, SEP, 3], 17)],
]
# No negative is left for anybody: one sentence, or one sentence three times.
DEGENERATE_BATCHES = [
    [framed([2, 3], 1)],
    3 * [framed([4, 2], 2)],
    [framed([5], 3), framed([5], 3), framed([6], 4)],
]


@dataclass(frozen=True)
class Case:
    options: Options
    head: str = "mlp"
    has_dropout: bool = True
    reuse: str = "exact"
    objective: str = "robustsentembed"
    is_degenerate: bool = False
    learning_rate: float = 0.0
    """above 0: parameters move after every step, each side by its own gradients"""

    @property
    def batches(self):
        return DEGENERATE_BATCHES if self.is_degenerate else BATCHES


def sized(norm, **changes):
    """Options of a norm with its sizes, and a start that reaches beyond no ball."""
    return replace(Options(norm=norm, num_pgd_steps=3, num_fgsm_steps=2, sigma=0.2, **SIZES[norm]), **changes)


def every_combination():
    """norm x eta_scaling x gradient x rho, K != T_s."""
    axes = itertools.product(NORMS, ("after", "before", "none"), ("shared", "separate"), (0, 0.3, 1))
    for norm, scaling, gradient, rho in axes:
        options = sized(norm, eta_scaling=scaling, gradient=gradient, rho=rho)
        yield f"{norm}-{scaling}-{gradient}-rho{rho}", Case(options)


VARIATIONS = {
    "fgsm-longer": {"num_pgd_steps": 1, "num_fgsm_steps": 4},
    "pgd-longer-separate": {"num_pgd_steps": 4, "num_fgsm_steps": 1, "gradient": "separate"},
    "no-pgd-step": {"num_pgd_steps": 0, "num_fgsm_steps": 2},
    "no-fgsm-step": {"num_pgd_steps": 2, "num_fgsm_steps": 0},
    "no-step": {"num_pgd_steps": 0, "num_fgsm_steps": 0},
    "no-step-zero-start": {"num_pgd_steps": 0, "num_fgsm_steps": 0, "sigma": 0.0},
    "fgsm-only-shorter": {"rho": 0, "num_pgd_steps": 4, "num_fgsm_steps": 2},
    "pgd-only-shorter": {"rho": 1, "num_pgd_steps": 2, "num_fgsm_steps": 4},
    "no-eta": {"use_eta": False},
    "no-eta-separate": {"use_eta": False, "gradient": "separate"},
    "spare-special": {"perturb_special_tokens": False},
    "spare-special-relative": {"perturb_special_tokens": False, **RELATIVE},
    "spare-special-before": {"perturb_special_tokens": False, "eta_scaling": "before"},
    "zero-start": {"sigma": 0.0},
    "zero-start-spare-special": {"sigma": 0.0, "perturb_special_tokens": False},
    "start-outside-ball": {"sigma": 4.0},
    "no-ball": {"epsilon": None},
    "no-ball-but-token": {"epsilon": None, "epsilon_token": 0.05},
    "zero-ball": {"epsilon": 0.0},
    "zero-ball-own-token": {"epsilon": 0.0, "epsilon_token": 0.05},
    "own-token-ball": {"epsilon_token": 0.04},
    "no-token-ball": {"epsilon_token": None},
    "zero-token-ball": {"epsilon_token": 0.0},
    "relative": RELATIVE,
    "relative-separate-none": {**RELATIVE, "gradient": "separate", "eta_scaling": "none"},
    "relative-own-steps": {**RELATIVE, "alpha": 0.1, "beta": 0.05, "gamma": 0.1, "step_relative": False},
    "absolute-relative-steps": {
        "alpha": 0.5,
        "beta": 0.3,
        "gamma": 0.6,
        "step_relative": True,
        "epsilon_token": 0.2,
    },
    "positives-mean": {"multi_positive": "mean"},
    "positives-separate": {"multi_positive": "separate"},
    "duplicates-kept": {"mask_duplicates": False},
    "duplicates-kept-mean": {"mask_duplicates": False, "multi_positive": "mean"},
    "frozen-dropout": {"inner_dropout": "frozen"},
    "frozen-dropout-separate": {"inner_dropout": "frozen", "gradient": "separate", "eta_scaling": "before"},
    "weight-half": {"weight_adversarial": 0.5},
    "weight-zero": {"weight_adversarial": 0.0},
    "warm": {"temperature": 0.5},
}
SETTINGS = {
    "no-dropout": {"has_dropout": False},
    "no-head": {"head": "none"},
    "reuse-none": {"reuse": "none"},
    "simcse": {"objective": "simcse"},
    "moving-parameters": {"learning_rate": 0.05},
    "degenerate": {"is_degenerate": True},
}


def variations():
    """One option at a time away from the base, for every norm."""
    for norm in NORMS:
        for name, changes in VARIATIONS.items():
            yield f"{norm}-{name}", Case(sized(norm, **changes))
        for name, settings in SETTINGS.items():
            yield f"{norm}-{name}", Case(sized(norm), **settings)
        for name in ("positives-mean", "positives-separate", "zero-start", "relative"):
            yield f"{norm}-degenerate-{name}", Case(sized(norm, **VARIATIONS[name]), is_degenerate=True)
        for name in ("frozen-dropout-separate", "spare-special-relative", "relative-separate-none"):
            yield f"{norm}-reuse-none-{name}", Case(sized(norm, **VARIATIONS[name]), reuse="none")


def drawn_combinations(count, seed=0):
    """Options drawn together, so that each also meets the others."""
    draw = random.Random(seed)
    for number in range(count):
        norm = draw.choice(NORMS)
        chosen = dict(
            eta_scaling=draw.choice(["after", "before", "none"]),
            gradient=draw.choice(["shared", "separate"]),
            rho=draw.choice([0, 0.3, 0.5, 1]),
            num_pgd_steps=draw.randrange(4),
            num_fgsm_steps=draw.randrange(4),
            use_eta=draw.random() < 0.8,
            perturb_special_tokens=draw.random() < 0.5,
            sigma=draw.choice([0.0, 0.2, 2.0]),
            inner_dropout=draw.choice(["off", "frozen"]),
            multi_positive=draw.choice(["sum", "mean", "separate"]),
            mask_duplicates=draw.random() < 0.7,
            temperature=draw.choice([0.05, 0.3]),
        )
        ball = draw.choice([{}, RELATIVE, {"epsilon": None}, {"epsilon_token": 0.05}, {"epsilon_token": None}])
        case = Case(
            sized(norm, **chosen, **ball),
            head=draw.choice(["mlp", "none"]),
            has_dropout=draw.random() < 0.7,
            reuse=draw.choice(["exact", "none"]),
        )
        yield f"drawn{number}-{norm}", case


USCAL_VARIATIONS = {
    "plain": {},
    "relative": {"epsilon": None, "epsilon_relative": 0.2},
    "spare-special": {"perturb_special_tokens": False},
    "spare-special-relative": {"perturb_special_tokens": False, "epsilon": None, "epsilon_relative": 0.2},
    "dropout-off": {"inner_dropout": "off"},
    "zero-ball": {"epsilon": 0.0},
    "duplicates-kept": {"mask_duplicates": False},
}
"""away from FGM and FGSM on frozen masks; norm and everything else of the mixed search must have no say"""
RTD_VARIATIONS = {
    "plain": {},
    "sum": {"rtd_reduction": "sum"},
    "of-z": {"rtd_input": "z"},
    "no-eta": {"use_eta": False},
    "spare-special": {"perturb_special_tokens": False},
}


def one_step_attacks():
    """USCAL by both attacks, under a norm that is neither's."""
    base = {"norm": "l1", "epsilon": 0.15, "inner_dropout": "frozen", "use_eta": False, "weight_adversarial": 0.5}
    for method in ("fgm", "fgsm"):
        for name, changes in USCAL_VARIATIONS.items():
            options = Options(method=method, **{**base, **changes})
            yield f"uscal-{method}-{name}", Case(options, objective="uscal")
        yield f"uscal-{method}-reuse-none", Case(Options(method=method, **base), objective="uscal", reuse="none")
        for name in ("no-dropout", "no-head", "moving-parameters", "degenerate"):
            settings = {**SETTINGS[name], "objective": "uscal"}
            yield f"uscal-{method}-{name}", Case(Options(method=method, **base), **settings)


def with_detection():
    """RobustSentEmbed with replaced token detection, weighed so that its gradient is seen."""
    for name, changes in RTD_VARIATIONS.items():
        yield f"rtd-{name}", Case(sized("linf", weight_rtd=0.5, **changes), objective="robustsentembed-rtd")
    for name in ("no-dropout", "no-head", "reuse-none", "moving-parameters", "degenerate"):
        settings = {**SETTINGS[name], "objective": "robustsentembed-rtd"}
        yield f"rtd-{name}", Case(sized("linf", weight_rtd=0.5), **settings)


CASES = {
    **dict(every_combination()),
    **dict(variations()),
    **dict(drawn_combinations(60)),
    **dict(one_step_attacks()),
    **dict(with_detection()),
}

# What is repeated under other random numbers: every place where rounding could be amplified (relative sizes reach
# far, starts lie outside balls, gradients vanish), and options drawn together.
REPEATED = [
    *(
        f"{norm}-{name}"
        for norm in NORMS
        for name in (
            "after-shared-rho0.3",
            "before-separate-rho0.3",
            "none-shared-rho1",
            "relative",
            "relative-separate-none",
            "spare-special-relative",
            "start-outside-ball",
            "frozen-dropout-separate",
            "reuse-none-relative-separate-none",
            "degenerate-relative",
        )
    ),
    *[name for name in CASES if name.startswith("drawn")][:12],
    *(
        f"uscal-{method}-{name}"
        for method in ("fgm", "fgsm")
        for name in ("plain", "relative", "spare-special-relative", "reuse-none", "degenerate")
    ),
    *(f"rtd-{name}" for name in ("plain", "of-z", "spare-special", "reuse-none", "degenerate")),
]
