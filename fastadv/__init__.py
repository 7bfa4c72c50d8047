"""fastadv: text encoders that keep their meaning under attack, and an adversarial step that is nearly free."""

from importlib import import_module

__version__ = "0.1.0"

# Loaded at first use: DeepSpeed alone takes seconds to import, and `fastadv encode` never needs it.
_HOMES = {
    "Config": "fastadv.config.schema",
    "PerturbationConfig": "fastadv.config.schema",
    "load_config": "fastadv.launch.load",
    "Encoder": "fastadv.encoder",
    "PackedBatch": "fastadv.data.packing",
    "Adversary": "fastadv.perturbation",
    "EtaTable": "fastadv.perturbation",
    "Search": "fastadv.perturbation",
    "Needs": "fastadv.objectives.needs",
    "Objective": "fastadv.objectives",
    "Step": "fastadv.engine.step.step",
    "Classifier": "fastadv.encoder.classifier.text_classifier",
    "Trainer": "fastadv.engine.loop",
    "Callback": "fastadv.engine.callbacks",
    "UserError": "fastadv.errors",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'fastadv' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
