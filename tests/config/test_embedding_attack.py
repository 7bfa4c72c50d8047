"""Settings of an attack: what is left out is filled in as documented, and a mistake is one line."""

import pytest

from fastadv.config.embedding_attack import AttackSettings
from fastadv.errors import UserError


def test_defaults_are_the_protocol():
    pgd = AttackSettings()
    assert (pgd.method, pgd.norm, pgd.num_steps, pgd.num_restarts) == ("pgd", "l2", 10, 1)
    assert pgd.step_sizes == (0.25,)  # 2.5 / 10
    assert pgd.epsilons == (0.02, 0.075, 0.1, 0.25, 0.5, 1.0)
    assert AttackSettings(num_steps=20).step_sizes == (0.125,)
    assert AttackSettings(method="apgd").step_sizes == (2.0,)
    for method, norm in (("fgm", "l2"), ("fgsm", "linf")):
        one_step = AttackSettings(method=method)
        assert (one_step.norm, one_step.num_steps, one_step.step_sizes) == (norm, 1, (1.0,))
    assert AttackSettings(method="fgsm").epsilons[0] == pytest.approx(0.0002)


def test_radii_ascend_and_plain_values_come_back():
    settings = AttackSettings(epsilons=(1, 0.5, 0), step_sizes=(0.3, 0.1))
    assert settings.epsilons == (0.0, 0.5, 1.0) and settings.step_sizes == (0.3, 0.1)
    plain = settings.as_dict()
    assert plain["epsilons"] == [0.0, 0.5, 1.0] and plain["method"] == "pgd"
    assert AttackSettings(**{k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}) == settings


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"method": "cw"}, ["'cw'", "apgd"]),
        ({"norm": "l1"}, ["'l1'", "linf"]),
        ({"method": "fgm", "norm": "linf"}, ["linf", "fgm", "l2"]),
        ({"method": "fgsm", "norm": "l2"}, ["l2", "fgsm", "linf"]),
        ({"method": "fgm", "num_steps": 10}, ["fgm", "num_steps", "pgd"]),
        ({"method": "fgsm", "num_restarts": 2}, ["fgsm", "num_restarts"]),
        ({"method": "fgm", "step_sizes": (0.5,)}, ["fgm", "step_sizes"]),
        ({"num_steps": 0}, ["num_steps", "0", "1 or more"]),
        ({"num_restarts": 0}, ["num_restarts", "0"]),
        ({"epsilons": (0.1, -1)}, ["epsilons", "-1", "at least 0"]),
        ({"epsilons": (float("nan"),)}, ["epsilons", "nan"]),
        ({"epsilons": (0.1, 0.1)}, ["epsilons", "0.1", "twice"]),
        ({"epsilons": ()}, ["epsilons", "none"]),
        ({"step_sizes": (0.0,)}, ["step_sizes", "0", "above 0"]),
        ({"step_sizes": (float("inf"),)}, ["step_sizes", "inf"]),
    ],
)
def test_a_mistake_is_one_line(given, expected):
    with pytest.raises(UserError) as caught:
        AttackSettings(**given)
    line = str(caught.value)
    assert "\n" not in line and all(words in line for words in expected), line
