"""One name and one look for every system of the page, so that it is called and drawn alike in all sections.

Records know models by fingerprint and folder, those of an evaluation's parts by its names too. An evaluation says which
system a model is a seed of; a run on the page is known by its own folder.
"""

from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from fastadv.evaluation.model_names import short_names
from fastadv.report.records import EmbeddingAttack, Evaluation, Model, Number, TextAttack
from fastadv.report.sources import Source


class Found(NamedTuple):
    """A record, and where it is from."""

    source: str
    place: str
    """within the source's folder; "" is the folder itself"""
    record: object


class Looks:
    """Hands out numbers of looks, the same one for the same name."""

    def __init__(self, names: Sequence[str] = ()):
        self._numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}

    def of(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def share(self, name: str, other: str) -> None:
        """``name`` is drawn as ``other`` is."""
        self._numbers[name] = self.of(other)


def found(sources: Sequence[Source], kind: str) -> List[Found]:
    """All records of one kind, ``kind`` being the field of `Source`."""
    return [Found(one.name, place, record) for one in sources for place, record in getattr(one, kind).items()]


def evaluations_of(sources: Sequence[Source]) -> List[Tuple[str, Evaluation]]:
    """(name of the source, evaluation)"""
    return [(one.name, one.evaluation) for one in sources if one.evaluation is not None]


def system_name(source: str, system: str, evaluations: Sequence[Tuple[str, Evaluation]]) -> str:
    """With the source's name before it where another evaluation has a system of that name."""
    is_shared = sum(system in evaluation.systems for _, evaluation in evaluations) > 1
    return f"{source}: {system}" if is_shared else system


def means_of(evaluations: Sequence[Tuple[str, Evaluation]]) -> Iterator[Tuple[str, Number]]:
    """What the page calls a system, and a mean over its models."""
    for source, evaluation in evaluations:
        for number in evaluation.numbers:
            if number.model is None:
                yield system_name(source, number.system, evaluations), number


def looks_of(sources: Sequence[Source]) -> Looks:
    """Runs first, so that a run looks alike in every chart; a system of one model that is a run on the page as it."""
    evaluations = evaluations_of(sources)
    runs = [one.name for one in sources if one.run is not None]
    looks = Looks(runs)
    for source, evaluation in evaluations:
        for system, models in evaluation.systems.items():
            name = system_name(source, system, evaluations)
            run = _run_of(sources, models[0].folder) if len(models) == 1 else None
            if run is None or name in runs:
                looks.of(name)
            else:
                looks.share(name, run)
    return looks


def system_names(sources: Sequence[Source], records: Sequence[Found], looks: Looks) -> Dict[Tuple[str, str, str], str]:
    """(source, place, the record's own name) -> what the page calls it.

    A model of an evaluation has its system's name and look, with what tells it from the system's other models behind
    it; one of a run has the run's. Of others the path is cut to what tells it from the record's others, and one name in
    records of different attacks is one system. Where two records say something of one name about the same, the record's
    place goes before it.
    """
    called: Dict[Tuple[str, str, str], str] = {}
    drawn: Dict[Tuple[str, str, str], str] = {}
    met: Dict[Tuple[object, str], set] = {}
    told_apart: Set[Tuple[str, str, str]] = set()
    for one in records:
        for own, (name, system) in _names_of_record(sources, one).items():
            at = (one.source, one.place, own)
            called[at], drawn[at] = name, system
            met.setdefault((one.record.subject, name), set()).add((one.source, one.place))
            if system and isinstance(one.record, TextAttack):
                # Its points and rows have the attack's name beside them.
                told_apart.add(at)
    ambiguous = {name for (_, name), places in met.items() if len(places) > 1}
    for at, name in called.items():
        if name in ambiguous and at not in told_apart:
            called[at] = f"{'/'.join(filter(None, at[:2]))}: {name}"
        if drawn[at]:
            looks.share(called[at], drawn[at])
    return called


def _names_of_record(sources: Sequence[Source], one: Found) -> Dict[str, Tuple[str, str]]:
    """Own name -> name, and the system or run that it looks like, "" where it is none that is known."""
    given, controls = _given(one.record), _controls(one.record)
    own = list(given)
    names = {name: (cut or name, "") for name, cut in zip(own, short_names(own) if len(own) > 1 else own)}
    known = {name: _known(sources, one, name, model) for name, model in given.items() if name not in controls}
    known = {name: pair for name, pair in known.items() if pair is not None}
    # Two models of one name would be one: then each keeps its own.
    taken = [pair[0] for pair in known.values()] + [names[name][0] for name in own if name not in known]
    names.update({name: pair for name, pair in known.items() if taken.count(pair[0]) == 1})
    for name, (baseline, robust) in controls.items():
        between = name.removeprefix(baseline).removesuffix(robust)
        if baseline in names and robust in names and f"{baseline}{between}{robust}" == name:
            names[name] = (f"{names[baseline][0]}{between}{names[robust][0]}", "")
    return names


def _known(sources: Sequence[Source], one: Found, own: str, given: Model) -> Optional[Tuple[str, str]]:
    """The name and the system of a model that an evaluation, the record's own first, or a run on the page has."""
    evaluations = evaluations_of(sources)
    for source, evaluation in sorted(evaluations, key=lambda pair: pair[0] != one.source):
        is_part = source == one.source and one.place != ""
        every = [(system, model) for system, models in evaluation.systems.items() for model in models]
        # A part calls models as its evaluation does; those with a probe on top lie in another folder.
        at = [pair for pair in every if is_part and pair[1].name == own]
        at = at or [pair for pair in every if pair[1].is_same(given)]
        if len(at) == 1:
            ((system, model),) = at
            name, folders = system_name(source, system, evaluations), [m.folder for m in evaluation.systems[system]]
            if len(folders) == 1:
                return name, name
            return f"{name} ({short_names(folders)[folders.index(model.folder)]})", name
    run = _run_of(sources, given.folder)
    return None if run is None else (run, run)


def _run_of(sources: Sequence[Source], folder: str) -> Optional[str]:
    """The name of the run on the page whose model, as it exports it, lies in ``folder``."""
    models = {one.name: one.folder.resolve() / "model" for one in sources if one.run is not None}
    path = Path(folder).expanduser()
    if path.is_absolute() or path.exists():
        at = [name for name, model in models.items() if path.resolve() == model]
    else:
        # Given from another folder than this one: what is known of it is its end.
        parts = tuple(part for part in path.parts if part != "..")
        at = [name for name, model in models.items() if len(parts) > 1 and model.parts[-len(parts) :] == parts]
    return at[0] if len(at) == 1 else None


def _given(record: object) -> Dict[str, Model]:
    """Name of a model in its record -> the model."""
    if isinstance(record, EmbeddingAttack):
        return {name: record.given[name] for name in record.models}
    return {model.name: getattr(model, "given", Model(model.name)) for model in record.models}


def _controls(record: object) -> Dict[str, Tuple[str, str]]:
    models = record.models if isinstance(record, TextAttack) else []
    return {model.name: model.control_of for model in models if model.control_of is not None}
