"""One name and one look for every system of the page, so that it is called and drawn alike in all sections."""

from typing import Dict, List, NamedTuple, Sequence, Tuple, TypeVar

from fastadv.evaluation.model_names import short_names
from fastadv.report.records import EmbeddingAttack, Geometry, TextAttack
from fastadv.report.sources import Source

Kind = TypeVar("Kind")


class Found(NamedTuple):
    """A record, and where it is from."""

    source: str
    place: str
    """within the source's folder; "" is the folder itself"""
    record: object


def found(sources: Sequence[Source], kind: str) -> List[Found]:
    """All records of one kind, ``kind`` being the field of `Source`."""
    return [Found(one.name, place, record) for one in sources for place, record in getattr(one, kind).items()]


def system_names(records: Sequence[Found]) -> Dict[Tuple[str, str, str], str]:
    """(source, place, the record's own name) -> what the page calls it.

    A path is cut to what tells it from the record's others. One name in records of different attacks is one system;
    where two records say something of that name about the same, the record's place goes before it.
    """
    short: Dict[Tuple[str, str, str], str] = {}
    met: Dict[Tuple[object, str], set] = {}
    for source, place, record in records:
        own = _models(record)
        for name, cut in zip(own, short_names(own) if len(own) > 1 else own):
            short[source, place, name] = cut or name
            met.setdefault((_subject(record), cut or name), set()).add((source, place))
    ambiguous = {name for (_, name), places in met.items() if len(places) > 1}
    return {
        (source, place, own): f"{'/'.join(filter(None, (source, place)))}: {name}" if name in ambiguous else name
        for (source, place, own), name in short.items()
    }


def _subject(record: object) -> object:
    """Equal for records whose models of one name would be two points of one thing."""
    if isinstance(record, EmbeddingAttack):
        return record.group
    return record.attack if isinstance(record, TextAttack) else (record.data, record.positives)


def _models(record: object) -> List[str]:
    if isinstance(record, EmbeddingAttack):
        return list(record.models)
    if isinstance(record, (TextAttack, Geometry)):
        return [model.name for model in record.models]
    raise TypeError(type(record).__name__)


class Looks:
    """Hands out numbers of looks, the same one for the same name."""

    def __init__(self, names: Sequence[str] = ()):
        self._numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}

    def of(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))
