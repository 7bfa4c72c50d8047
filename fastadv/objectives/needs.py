"""What an objective needs of the step and of the run, declared once; data alone."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AdversarialView:
    """What an objective needs of z_adv = f(X + delta), the view at a perturbation that is searched."""

    keys: bool = False
    """Whether z_adv is gathered over all ranks, for queries to be compared with."""
    tokens: bool = False
    """Whether the adversarial pass gives its token states too."""
    anchor: bool = False
    """Whether the inner loss compares the perturbed point with the unperturbed one."""
    methods: tuple[str, ...] | None = None
    """Values of ``perturbation.method`` that the system is made of; None: all."""
    raised_term: str | None = None
    """Name of the term that the passes of ``reuse: free`` raise, where the last pass has other terms too; None: the
    whole loss."""


@dataclass(frozen=True)
class TextView:
    """What an objective needs of z_text = f(x~), the view of the sentence's worst proposal (`perturbation.text`)."""

    keys: bool = False
    """Whether z_text is gathered over all ranks, for queries to be compared with."""
    is_positive: bool = False
    """Whether z_text takes the place of z+, which is then not computed: its keys are the positive keys."""


@dataclass(frozen=True)
class EpochAttack:
    """An attack on random training texts at the start of epochs, by the model as it is then (A2T, METHODS 4)."""

    recipe: str = "a2t"
    """Name of the attack, as `fastadv attack --recipe` knows it."""
    first_epoch: int = 1
    """First epoch that begins with an attack, counted from 0."""
    share: float = 0.2
    """Share of the training texts after which the attack ends: so many are fooled."""
    max_queries: int = 200
    """Most queries for one text."""
    word_vectors: str | None = None
    """File of `fastadv word-sets --vectors_out`, for a recipe that reads it."""
    attack_data: str | None = None
    """Folder of `fastadv prepare-attack-data`; None: the usual place."""


@dataclass(frozen=True)
class DetectionOptions:
    """How replaced token detection runs beside the views."""

    generator: str
    """Generator of replacements: unigram, or the folder or name of a masked language model of f's own vocabulary."""
    weight: float = 0.005
    """Weight of L_RTD in the loss, added to the objective's own."""
    mask_ratio: float = 0.3
    """Probability with which each token that is not special is masked."""
    fill: Literal["sample", "argmax"] = "sample"
    """Whether masked tokens are drawn from the generator's probabilities, or are the likeliest."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether L_RTD is the mean or the sum over all real tokens of the batch."""
    input: Literal["h", "z"] = "h"
    """Vector that the discriminator is given: pooled, or after the objective's head."""


@dataclass(frozen=True)
class Needs:
    """What the step and the run compute for an objective.

    A class states it as ``needs = Needs(...)``, as it is under the options' defaults; a constructor whose options
    change it sets ``self.needs = replace(self.needs, ...)``.
    """

    labels: bool = False
    """Whether batches have labels, that is, ``data.label_field`` names a column; then the constructor is given the
    classification head after ``hidden_size`` (`fastadv.objectives.classes.classification`)."""
    clean: bool = True
    """Whether the clean pass is made: not where the loss is of other passes alone."""
    positive: bool = False
    """Whether z+ is computed, a second clean view or that of a given positive text, and gathered over all ranks."""
    tokens: bool = False
    """Whether the clean pass and those of variants give their token states too."""
    adversarial: AdversarialView | None = None
    """View at a searched perturbation; None: nothing is searched."""
    text: TextView | None = None
    """View of the worst edited copy of each sentence that keeps its meaning; None: none is searched."""
    flip: bool = False
    """Whether the view of the nearest flipped copy of each sentence is computed, which says another thing."""
    variants: tuple[str, ...] = ()
    """Names of other texts of each sentence that the loss reads: fickle (synonyms: the label stays), obstinate (an
    antonym: it flips), adversarial (an attack's text, of ``data.pairs`` or of `epoch_attack`)."""
    epoch_attack: EpochAttack | None = None
    """Attack at the start of epochs that finds the adversarial texts; None: they are given."""
    second_network: bool = False
    """Whether a second encoder, which starts as the first one does, reads all texts too and is trained with it. Its
    head is ``objective.second_classifier``."""
    average: bool = False
    """Whether an average of encoder and ``classifier`` over steps is kept, whose logits the loss reads; it moves by
    ``objective.decay_of_average``."""
    victim: str | None = None
    """Folder or name of a trained classifier whose probabilities the loss reads: frozen, and outside of checkpoints."""
    original: bool = False
    """Whether the loss reads vectors of the sentences by the encoder as it was before training: a frozen copy, outside
    of checkpoints (`Objective.original_vectors`)."""
    detection: DetectionOptions | None = None
    """Replaced token detection, whose weighed loss is added to what the objective's ``loss`` gives; None: none runs."""
