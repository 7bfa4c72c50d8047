"""YAML as people mean it: ``off`` is a word, ``1e-5`` a number, a key given twice a mistake.

PyYAML follows YAML 1.1, where ``off``, ``no`` and ``on`` are booleans, ``1e-5`` is text, ``1:30`` is ninety
and ``012`` is ten. Here plain scalars follow YAML 1.2: null, true, false, decimal numbers, and everything
else is text. What is written is quoted wherever either version would read something else: any YAML library
reads it alike.
"""

import re
from itertools import count
from typing import Any, Iterator

import yaml

from fastadv.errors import UserError


def _float(word: str) -> float:
    return float(word.lower().replace(".inf", "inf").replace(".nan", "nan"))


_WORDS = {
    "null": (re.compile(r"(?:null|Null|NULL|~|)$"), lambda word: None),
    "bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), lambda word: word.lower() == "true"),
    "int": (re.compile(r"[-+]?[0-9]+$"), int),
    "float": (
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?$"
            r"|[-+]?[0-9]+[eE][-+]?[0-9]+$"
            r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
        ),
        _float,
    ),
}
"""Kind of a plain scalar: (how it is written, what it means)"""

# Values of a document, what an alias stands for counted each time: a few lines can stand for a billion.
_MAX_VALUES = 100_000


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict = {}


class _Dumper(yaml.SafeDumper):
    # A copy, so that PyYAML's own tables stay as they are for everybody else in the process.
    yaml_implicit_resolvers = {key: list(rules) for key, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()}

    def ignore_aliases(self, data):
        return True

    def represent_text(self, data):
        # PyYAML writes some line ends and controls bare, and reads them back as something else.
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')

    def represent_list(self, data):
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_list)
_Dumper.add_representer(tuple, _Dumper.represent_list)

for _kind, (_pattern, _) in _WORDS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _pattern, None)


def read_yaml(text: str, name: str) -> Any:
    """The one document in ``text``; None where there is none.

    Args:
        text: YAML.
        name: what a mistake is blamed on, such as the file's path.

    Raises:
        UserError: not YAML, several documents, a key given twice, a tag (``!!set``), or an endless value or number of
            values.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _value(node, (), count(1))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise UserError(f"{name}{where}: not valid YAML: {' '.join(str(problem).split())}") from None
    except RecursionError:
        raise UserError(f"{name}: not valid YAML: nested too deep") from None


def _value(node: yaml.Node, parents: tuple, counted: Iterator[int]) -> Any:
    def problem(what: str, at: yaml.Node = node) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=what, problem_mark=at.start_mark)

    if node in parents:
        raise problem("a value holds itself")
    if next(counted) > _MAX_VALUES:
        raise problem(f"more than {_MAX_VALUES:,} values, by aliases of aliases")
    kind = node.tag.rpartition(":")[2]
    if kind == "map" and isinstance(node, yaml.MappingNode):
        mapping, lines = {}, {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise problem("a key must be one word", key_node)
            key = _value(key_node, parents, counted)
            if key in lines:
                raise problem(f"the key {key!r} is given twice, first in line {lines[key]}", key_node)
            lines[key] = key_node.start_mark.line + 1
            mapping[key] = _value(value_node, (*parents, node), counted)
        return mapping
    if kind == "seq" and isinstance(node, yaml.SequenceNode):
        return [_value(item, (*parents, node), counted) for item in node.value]
    if kind == "str" and isinstance(node, yaml.ScalarNode):
        return node.value
    # A tag written out, as in `!!int x`, need not fit its value.
    if kind not in _WORDS or not isinstance(node, yaml.ScalarNode) or not _WORDS[kind][0].match(node.value):
        raise problem(f"the tag {node.tag} has no use here")
    try:
        return _WORDS[kind][1](node.value)
    except ValueError:
        raise problem("a number of too many digits") from None


def write_yaml(data: dict) -> str:
    """``data`` in its own order, a line a key, lists in brackets; ``read_yaml`` gives it back equal."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=2**31)
