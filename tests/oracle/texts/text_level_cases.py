"""Cases of the text-level systems: five classes, texts that are missing for none, some or all of a batch's rows."""

from dataclasses import dataclass, replace

from tests.oracle.sentences.cases import bare, framed
from tests.oracle.texts.bat import BATPairwise, BATTriplet
from tests.oracle.texts.text_level import A2T, ADA, SAFER, ADASoft, BaseAdv, BaseAdvSoft, Example, TextOptions
from tests.oracle.toy_encoder import SATURATED_WORDS

TRANSCRIBED = {
    "safer": SAFER,
    "base_adv": BaseAdv,
    "base_adv_soft": BaseAdvSoft,
    "ada": ADA,
    "ada_soft": ADASoft,
    "a2t": A2T,
    "bat_pairwise": BATPairwise,
    "bat_triplet": BATTriplet,
}


def texts(words, *of_variants):
    """A sentence's words and those of its fickle, obstinate and adversarial text, None for a missing one."""
    return [None if of_one is None else framed(of_one, 0) for of_one in (words, *of_variants)]


def example(label, sentence, fickle=None, obstinate=None, adversarial=None):
    return Example(sentence, label, fickle, obstinate, adversarial)


# Some rows have all texts, some none; lengths differ from the sentence's; some are of classes whose obstinate texts do
# not count where classes are named; words behind which there is no gradient; a text equal to the sentence.
MIXED = [
    example(3, *texts([2, 3, 4], [5, 3, 6], [2, 3, 9], [2, 7, 4, 8])),
    example(0, *texts([5, 2], [8, 2], None, [5])),
    example(1, *texts([6, 7, 3, 2], None, [6, 7, 10, 2], None)),
    example(4, *texts([8, 9], None, None, None)),
    example(2, *texts([10, SATURATED_WORDS[1], 2], [11, SATURATED_WORDS[1], 2], [10, SATURATED_WORDS[1], 5], None)),
    example(1, *texts([4, 11, 2], None, [4, 3, 2], [9, 11, 2])),
    example(0, *texts([3, 3, 9], [3, 3, 9], [3, 3, 4], [3, 3, 9])),
]
WHOLE = [
    example(2, *texts([2, 6], [3, 6], [2, 8], [2, 6, 6])),
    example(4, *texts([9, 4, 7], [9, 5, 7], [9, 4, 11], [10, 4, 7])),
    example(0, *texts([5, 5, 3], [5, 8, 3], [5, 5, 2], [4, 5])),
    example(3, bare([7], 0), bare([8], 0), bare([2], 0), bare([3, 4], 0)),
]
NONE = [replace(e, fickle=None, obstinate=None, adversarial=None) for e in WHOLE]
BATCHES = (MIXED, WHOLE, NONE)


@dataclass(frozen=True)
class TextCase:
    system: str
    options: TextOptions = TextOptions()
    has_dropout: bool = True


def cases():
    for system in TRANSCRIBED:
        yield system, TextCase(system)
        yield f"{system}-no-dropout", TextCase(system, has_dropout=False)
    for system in ("ada", "ada_soft", "a2t"):
        yield f"{system}-weighed", TextCase(system, TextOptions(weight_adversarial=0.6))
    weighed = TextOptions(weight_fickle=0.7, weight_obstinate=2.1, weight_triplet=0.4)
    for system in ("bat_pairwise", "bat_triplet"):
        yield f"{system}-weighed", TextCase(system, weighed)
        # Distances of the toy encoder lie between 0 and 1.7: a margin among them takes some rows' term to 0.
        yield f"{system}-narrow", TextCase(system, TextOptions(margin=0.5))
        yield f"{system}-classes", TextCase(system, TextOptions(obstinate_labels=(1, 2)))
        yield f"{system}-no-class", TextCase(system, TextOptions(obstinate_labels=()))
        for kind in ("mean", "max"):
            yield f"{system}-{kind}", TextCase(system, TextOptions(distance_of=kind))


CASES = dict(cases())
