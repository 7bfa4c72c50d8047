"""The arms of the sentence study: what each trains, with what it is compared, in which order they run, what they cost.

The study has two parts, each a `Design`. Here is that of searches over embeddings; that of searches over texts is in
`bench.studies.sentence.variants`.

Main arms are systems at equal steps, and again at equal training time: that of `exact`, so that cheaper systems get
more steps. Explorations are `exact` with one thing changed, of seed 0; of more where one is asked for by name.
"""

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Callable, Dict, List, Literal, Optional, Sequence, Tuple

STEPS, TIME, EXPLORATION = "steps", "time", "exploration"
BASELINE = "simcse"
"""with which systems are compared"""
REFERENCE = "exact"
"""whose training time is the equal one, and with which explorations are compared"""
UNTRAINED = "untrained"
"""the encoder as it is, which no seed changes"""

# What all arms share: the quickstart's settings, in bf16 and on one thread; its search, but for the norm, is `SEARCH`.
SHARED = {
    "encoder.model": "demo:minilm",
    "encoder.pooling": "mean",
    "encoder.max_length": "32",
    "data.train": "demo:imdb-train",
    "objective_options.head": "none",
    "optimizer.lr": "5.0e-5",
    "optimizer.warmup_ratio": "0.1",
    "train.log_every": "10",
    "engine.precision": "bf16",
    "engine.num_threads": "1",
}
SEARCH = {
    "objective": "robustsentembed",
    "objective_options.weight_adversarial": "1.0",
    "perturbation.norm": "linf",
    "perturbation.num_steps": "5",
    "perturbation.epsilon_relative": "0.2",
    "perturbation.alpha": "1.0",
    "perturbation.beta": "0.4",
    "perturbation.gamma": "0.7",
    "perturbation.sigma": "0.0",
}
# One step of FGM of exact's radius; USCAL's own radii are absolute, and far below what moves these vectors.
USCAL = {"objective": "uscal", "perturbation.method": "fgm", "perturbation.epsilon_relative": "0.2"}
# At the default agreement, 0.99, no gradient of this radius is reused, and the arm would be `exact` again; at 0.5 the
# first probe found three of five to be enough.
ADAPTIVE = {**SEARCH, "perturbation.reuse": "adaptive", "perturbation.agreement": "0.5"}
RTD = {"objective_options.rtd_generator": "unigram"}


@dataclass(frozen=True)
class Arm:
    """A system, for every seed of its group."""

    name: str
    settings: Optional[Dict[str, str]] = field(hash=False)
    """None: the encoder as it is, which no seed changes"""
    group: Literal["steps", "time", "exploration"] = STEPS
    baseline: str = BASELINE
    """the arm that it is compared with, of the same seed; its own name: with none"""
    about: str = ""
    """of an exploration: what is changed"""
    epsilon: Optional[float] = None
    """trained with, as a multiple of RMS(X)"""
    steps: float = 1.0
    """multiple of the study's steps"""
    system: str = ""
    """of an arm at equal time: the same at equal steps"""
    reference: str = REFERENCE
    """of an arm at equal time: the arm whose training time it has"""
    cost: float = 0.0
    """guessed seconds of one thread a step, for the plan"""


@dataclass(frozen=True)
class Sizes:
    """How much is trained and measured. Records of different sizes are not compared."""

    steps: int = 40
    batch_size: int = 32
    """40 steps of 32 sentences are the quickstart's"""
    num_sentences: int = 128
    """attacked at every radius, and retrieved among each other"""
    radii: Tuple[float, ...] = (0.1, 0.2, 0.3)
    num_attack_steps: int = 5
    num_probe_sentences: int = 192
    num_geometry: int = 1000
    num_texts: int = 200
    """attacked by DeepWordBug"""
    num_texts_pwws: int = 50
    """of the embeddings' part those of seed 0 at equal steps; 0: not run"""
    num_texts_textbugger: int = 0
    num_pairs: int = 0
    """pairs of STS-B that are attacked (AdvSTS)"""
    num_edited: int = 0
    """sentences whose edited copies are compared with them"""
    num_mistyped: int = 0
    """texts whose edited copies a probe classifies"""

    def as_dict(self) -> dict:
        """For JSON; without counts of what is not measured, which earlier records do not know."""
        later = ("num_texts_textbugger", "num_pairs", "num_edited", "num_mistyped")
        values = {**asdict(self), "radii": list(self.radii)}
        return {name: value for name, value in values.items() if value or name not in later}


SMOKE = Sizes(
    steps=3,
    batch_size=16,
    num_sentences=16,
    radii=(0.2,),
    num_attack_steps=2,
    num_probe_sentences=16,
    num_geometry=64,
    num_texts=6,
    num_texts_pwws=0,
)

_SYSTEMS = (
    Arm("simcse", {"objective": "simcse"}, cost=0.8),
    Arm(UNTRAINED, None),
    Arm("exact", SEARCH, epsilon=0.2, cost=2.2),
    Arm("uscal", USCAL, epsilon=0.2, cost=1.25),
    Arm("adaptive", ADAPTIVE, epsilon=0.2, cost=1.8),
    Arm("exact+rtd", {**SEARCH, **RTD}, epsilon=0.2, cost=2.7),
    Arm("adaptive+rtd", {**ADAPTIVE, **RTD}, epsilon=0.2, cost=2.3),
)


def _at_equal_time(arm: Arm) -> Arm:
    return replace(arm, name=f"{arm.name}, equal time", group=TIME, baseline="simcse, equal time", system=arm.name)


def _explored(name: str, about: str, cost: float = 2.2, epsilon: float = 0.2, steps: float = 1.0, **changed) -> Arm:
    settings = {**SEARCH, "perturbation.epsilon_relative": f"{epsilon:g}"}
    settings |= {key.replace("__", "."): str(value) for key, value in changed.items()}
    return Arm(name, settings, EXPLORATION, REFERENCE, about, epsilon, steps, cost=cost)


_REUSE = {"perturbation__reuse": "adaptive"}
_EXPLORATIONS = (
    _explored("eps-0.1", "half the radius", epsilon=0.1),
    _explored("eps-0.4", "twice the radius", epsilon=0.4),
    _explored("eps-0.8", "four times the radius", epsilon=0.8),
    _explored("word", "perturbed at the word embedding", perturbation__perturb_at="word"),
    _explored("steps-1", "one inner step", cost=1.3, perturbation__num_steps=1),
    _explored("l2", "l2 balls and directions", perturbation__norm="l2"),
    _explored(
        "weight-1/128", "the paper's weight of L_con(z_adv, {z+})", objective_options__weight_adversarial=1 / 128
    ),
    _explored("longer", "four times the steps", steps=4.0),
    _explored("steps-10", "ten inner steps", cost=3.6, perturbation__num_steps=10),
    _explored("weight-4", "four times the weight", objective_options__weight_adversarial=4.0),
    _explored(
        "rtd-0.05",
        "RTD of ten times the paper's weight",
        cost=2.7,
        objective_options__rtd_generator="unigram",
        objective_options__weight_rtd=0.05,
    ),
    _explored("agreement-0.99", "adaptive at the default agreement", **_REUSE, perturbation__agreement=0.99),
    _explored("agreement-0.1", "adaptive, hardly any agreement", cost=1.5, **_REUSE, perturbation__agreement=0.1),
    # An l1 ball of exact's multiple holds far longer spikes than its other balls: two steps at 0.2 had a loss of 7.
    _explored("l1", "l1 balls and directions, a quarter of the radius", epsilon=0.05, perturbation__norm="l1"),
)
_OF_TIME = tuple(_at_equal_time(arm) for arm in _SYSTEMS if arm.settings is not None and arm.name != REFERENCE)
# Those that others wait for come early: SimCSE, and SimCSE at equal time.
ARMS: Tuple[Arm, ...] = (*_SYSTEMS[:5], _OF_TIME[0], *_SYSTEMS[5:], *_OF_TIME[1:], *_EXPLORATIONS)
SMOKE_ARMS = ("simcse", "exact", "steps-1")

NEAR_ENOUGH = 0.1
"""a system whose step costs as much as the reference's, up to this share, is its own arm at equal time"""


@dataclass(frozen=True)
class Design:
    """A part of the study: its arms in their order, and how much of each is trained and measured."""

    name: str
    arms: Tuple[Arm, ...]
    sizes: Sizes
    smoke: Sizes
    smoke_arms: Tuple[str, ...]
    recipes: Tuple[str, ...]
    """attacks on texts through a probe, of every arm"""
    recipes_at_first: Tuple[str, ...] = ()
    """attacks of seed 0 at equal steps alone"""
    trained_from: Tuple[str, ...] = ()
    """arms whose encoders of seed 0 classifiers are fine-tuned from (`bench.studies.text_study`)"""
    has_all_sets: bool = False
    """Whether all seven sets of STS are measured, of seed 0 at equal steps."""

    @cached_property
    def by_name(self) -> Dict[str, Arm]:
        return {arm.name: arm for arm in self.arms}

    def sizes_of(self, is_smoke: bool) -> Sizes:
        return self.smoke if is_smoke else self.sizes


EMBEDDINGS = Design("embeddings", ARMS, Sizes(), SMOKE, SMOKE_ARMS, ("deepwordbug",), ("pwws",), has_all_sets=True)
BY_NAME = EMBEDDINGS.by_name


@dataclass(frozen=True)
class Job:
    """One arm with one seed."""

    arm: Arm
    seed: int
    design: Design = field(default=EMBEDDINGS, compare=False, repr=False)

    @property
    def key(self) -> str:
        """The name of its folder."""
        plain = "".join(c if c.isalnum() or c in "._+-" else "-" for c in self.arm.name.replace(", ", "-"))
        return plain if self.arm.settings is None else f"{plain}-seed{self.seed}"

    @property
    def is_first(self) -> bool:
        """Whether it is of seed 0 at equal steps."""
        return self.seed == 0 and self.arm.group == STEPS

    @property
    def has_all_sets(self) -> bool:
        """Whether all seven sets of STS are measured."""
        return self.design.has_all_sets and self.is_first

    def recipes(self, sizes: Sizes) -> Dict[str, int]:
        """Attack on texts → how many it attacks."""
        counts = {"pwws": sizes.num_texts_pwws, "textbugger": sizes.num_texts_textbugger}
        names = [*self.design.recipes, *(self.design.recipes_at_first if self.is_first else ())]
        return {name: count for name in names if (count := counts.get(name, sizes.num_texts))}

    @property
    def keeps_model(self) -> bool:
        """Whether others are compared with it, or train from it."""
        is_trained_from = self.seed == 0 and self.arm.name in self.design.trained_from
        return is_trained_from or any(arm.baseline == self.arm.name for arm in self.design.arms)

    @property
    def control(self) -> Optional["Job"]:
        """The job whose encoder, shifted to this one's class shares, is attacked beside it; of seed 0 alone."""
        is_compared = self.seed == 0 and self.arm.baseline != self.arm.name and self.arm.settings is not None
        return self.other(self.arm.baseline) if is_compared else None

    def other(self, name: str) -> "Job":
        """An arm of the same design, with seed 0."""
        return Job(self.design.by_name[name], 0, self.design)


def jobs_of(
    names: Sequence[str], seeds: Sequence[int], repeat_explorations: bool = False, design: Design = EMBEDDINGS
) -> List[Job]:
    """In the order in which they run: a study that is cut short has seed 0 of the main arms, then the explorations.

    Args:
        repeat_explorations: with every seed, like the main arms.
    """
    chosen = [arm for arm in design.arms if arm.name in names]
    jobs = [Job(arm, 0, design) for arm in chosen if 0 in seeds or arm.settings is None]
    repeated = [arm for arm in chosen if arm.settings is not None and (repeat_explorations or arm.group != EXPLORATION)]
    for seed in [seed for seed in seeds if seed != 0]:
        jobs += [Job(arm, seed, design) for arm in repeated]
    return jobs


def needed_by(job: Job) -> List[Job]:
    """What has to be done before: the control's encoder, and where time is equal the arms whose steps were timed."""
    needed = [] if job.control is None else [job.control]
    if job.arm.group == TIME:
        needed += [job.other(name) for name in (job.arm.reference, job.arm.system)]
    return list(dict.fromkeys(needed))


def steps_at_equal_time(job: Job, steps: int, seconds_a_step: Callable[[str], float]) -> Optional[int]:
    """So many steps take the time of ``steps`` of the reference; None where they are as many, up to `NEAR_ENOUGH`.

    Args:
        seconds_a_step: of a system, as its arm of seed 0 at equal steps measured them.
    """
    ratio = seconds_a_step(job.arm.reference) / seconds_a_step(job.arm.system)
    return None if abs(ratio - 1) <= NEAR_ENOUGH else max(1, round(steps * ratio))


# Seconds of one thread of a core with other work on it; measured once, for the plan alone.
_START = 10.0
_EMBEDDING_ATTACK_STEP = 0.0145
"""a sentence, of PGD"""
_PROBE = 12.0
"""2,048 sentences are encoded and fitted"""
_TEXT = {"deepwordbug": 0.2, "pwws": 0.9, "textbugger": 0.5}
_PAIR = 1.3
"""a pair of AdvSTS"""
_EDITED = {"compared": 0.13, "classified": 0.045}
"""a sentence with all its copies"""
_STS = {False: 35.0, True: 120.0}
"""two sets, all seven"""
_GEOMETRY = 10.0


def guessed_seconds(job: Job, sizes: Sizes, has_sts: bool) -> float:
    """Of one thread, training and measuring; what an arm at equal time trains for is known."""
    train = job.arm.cost * sizes.steps * job.arm.steps
    if job.arm.group == TIME:
        reference = job.other(job.arm.reference).arm
        train = reference.cost * sizes.steps
        if abs(reference.cost / job.arm.cost - 1) <= NEAR_ENOUGH:
            return 0.0
    embeddings = 0.0
    if sizes.num_sentences:
        attacks = sizes.num_sentences * len(sizes.radii) + 2 * sizes.num_probe_sentences
        embeddings = attacks * sizes.num_attack_steps * _EMBEDDING_ATTACK_STEP + _PROBE
    times = 2 if job.control is not None else 1
    text = sum(times * count * _TEXT[recipe] for recipe, count in job.recipes(sizes).items())
    # Attacks on equally many texts share a probe.
    text += _PROBE * len(set(job.recipes(sizes).values()))
    edited = _EDITED["compared"] * sizes.num_edited + _EDITED["classified"] * sizes.num_mistyped
    edited += _PROBE * (sizes.num_mistyped > 0)
    return (
        _START
        + train * sizes.batch_size / 32
        + embeddings
        + text
        + edited
        + (_STS[job.has_all_sets] + _PAIR * sizes.num_pairs) * has_sts
        + _GEOMETRY
    )
