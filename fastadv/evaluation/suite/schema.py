"""The form of an evaluation's results: what ``fastadv evaluate all`` writes and ``fastadv report`` reads.

``evaluation.json`` holds ``format``, ``systems``, ``models``, ``parts``, ``quantities``, ``numbers``, ``differences``,
``warnings``, ``versions`` and ``seed``. A number names its quantity by part, set, metric and epsilon; what is true of
a quantity in every model (unit, task, what it is attacked from) stands in ``quantities``.
"""

from typing import NamedTuple, Sequence, Tuple

FORMAT = 2

SIMILARITY, CLASSIFICATION, FEATURES = "semantic-similarity", "text-classification", "feature-extraction"
"""tasks, as the Hub calls them"""

ABSOLUTE, OF_RMS = " (absolute)", "·RMS(X)"
"""what a radius is measured in: the embeddings' own unit, or multiples of their root mean square"""

NUMBER_COLUMNS = "part set metric epsilon system model value low high spread num unit better why seed".split()
DIFFERENCE_COLUMNS = "part set metric epsilon system baseline value low high p_value p_holm test num".split()

Counterpart = Tuple[str, str, str]
"""part, set and metric of a number without an attack"""

STS_B: Counterpart = ("sts", "STS-B", "spearman")
"""what a number under attack is set against where its own part measured nothing without the attack"""


class System(NamedTuple):
    """A name, and the models that stand for it, a seed each."""

    name: str
    models: Tuple[str, ...]


class Quantity(NamedTuple):
    """What a number is of."""

    part: str
    set: str
    metric: str
    epsilon: float | None = None
    unit: str = "x 100"
    better: str | None = "higher"
    task: str = CLASSIFICATION
    radius_unit: str = ""
    attacked_from: Tuple[Counterpart, ...] = ()
    """clean counterparts of a number under attack, the nearest first; empty without an attack"""

    @classmethod
    def of(cls, values: Sequence) -> "Quantity":
        """From a list of its fields as JSON holds it; fields that an earlier version did not have may be absent."""
        *others, attacked_from = values if len(values) == len(cls._fields) else (*values, ())
        return cls(*others)._replace(attacked_from=tuple(map(tuple, attacked_from)))

    def under_attack(self, **changed) -> "Quantity":
        """The quantity that an attack makes of this clean one, with what else it ``changed``."""
        return self._replace(attacked_from=((self.part, self.set, self.metric), STS_B), **changed)

    @property
    def place(self) -> dict:
        """What names the quantity in a row of numbers or differences."""
        return {"part": self.part, "set": self.set, "metric": self.metric, "epsilon": self.epsilon}

    @property
    def radius_words(self) -> str:
        """The radius with its unit, after a comma; nothing where there is none."""
        return "" if self.epsilon is None else f", ε {self.epsilon:g}{self.radius_unit}"


def quantities_of(evaluation: dict) -> dict[tuple, Quantity]:
    """The quantities that a record has, by part, set, metric and epsilon."""
    found = (Quantity.of([one[name] for name in Quantity._fields]) for one in evaluation["quantities"])
    return {tuple(one.place.values()): one for one in found}


def quantity_of(row: dict, quantities: dict[tuple, Quantity]) -> Quantity:
    """The quantity of a row of numbers or differences; what the record does not know is as the row says."""
    place = {name: row[name] for name in ("part", "set", "metric", "epsilon")}
    found = quantities.get(tuple(place.values()))
    return Quantity(**place, unit=row.get("unit") or "", better=row.get("better")) if found is None else found
