"""Which labelled texts are attacked."""

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Iterator

import numpy as np

from fastadv.config.text_attack import AttackedTexts
from fastadv.data.labelled.find import LabelledTexts, open_labelled, read_labelled
from fastadv.data.labelled.labels import listed
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.classifier_attack import with_rows


@dataclass(frozen=True)
class AttackedData(AttackedTexts):
    """The texts that are attacked, to be read."""

    @property
    def words(self) -> str:
        """What is read, in words."""
        some = "all" if self.max_texts is None else f"at most {self.max_texts:,}"
        return f"{some} texts of {self.source} ({self.split})"

    def check(self) -> None:
        """UserError where there is no such source or column; reads no text."""
        opened = open_labelled(self.source, self.label_field, self.field, self.pair_field, self.split, **self.reading)
        self._check_roles(len(opened.text_columns))

    def _check_roles(self, num_texts: int) -> None:
        roles = self.pair_roles
        if roles is not None and (num_texts < 2 or roles[0] == roles[1]):
            found = "pairs" if num_texts == 2 else "texts alone"
            raise UserError(f"--pair_roles {' '.join(roles)}: expected two names, of pairs; {self.source} has {found}")

    def read(self) -> tuple[LabelledTexts, np.ndarray]:
        """The texts, and the row of each in its source, counted from 0.

        Raises:
            UserError: no such source, or a class that the data lack.
        """
        read = read_labelled(self.source, self.label_field, self.field, self.pair_field, self.split, **self.reading)
        self._check_roles(1 if read.second is None else 2)
        data = read if self.pair_roles is None else replace(read, columns=self.pair_roles)
        allowed = np.arange(len(data))
        if self.labels is not None:
            ids = data.label_map.label2id
            unknown = next((name for name in self.labels if name not in ids), None)
            if unknown is not None:
                known = listed(list(ids))
                raise UserError(f"--labels {unknown!r} is no class of {self.source}; expected some of {known}")
            allowed = np.flatnonzero(np.isin(data.labels, [ids[name] for name in self.labels]))
            if not len(allowed):
                raise UserError(f"{self.source} has no text of --labels {listed(self.labels)}")
        count = len(allowed) if self.max_texts is None else min(self.max_texts, len(allowed))
        # Not the first ones: a file may be sorted by class.
        rows = np.sort(allowed[np.random.default_rng(self.seed).permutation(len(allowed))[:count]])
        return with_rows(data, rows.tolist()), rows

    def described(self, data: LabelledTexts) -> dict:
        """What results say of ``data``, the texts that were read."""
        return {**vars(self), "num_texts": len(data), "hash": hash_of_texts(data)}


@contextmanager
def on_data(model: str, source: str) -> Iterator[None]:
    """A UserError of the block says which model and which texts it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{model} on {source}: {error}") from error


def hash_of_texts(data: LabelledTexts) -> str:
    """Of texts and labels in their order."""
    digest = hashlib.sha256()
    labels = [data.label_map.names[label] for label in data.labels]
    for row in zip(data.first, data.second or [None] * len(data), labels):
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()
