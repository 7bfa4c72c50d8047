"""The exported model, whole and in full precision, out of what ZeRO has cut up or rounded."""

import copy

from torch import Tensor, nn

from fastadv.config.schema import Config
from fastadv.distributed import zero


class WholeModel:
    """Gives the weights of a model that is trained, and the model itself to be scored or attacked on the way.

    Made before DeepSpeed is told of the model.

    Args:
        model: an encoder, or a classifier around one.
        is_used_on_the_way: stage 3 cuts the weights to pieces; only where this is true there is a second model for
            them.
    """

    def __init__(self, model: nn.Module, config: Config, is_used_on_the_way: bool):
        self._model, self._copy = model, None
        self._frozen = zero.frozen_in_full(model, config)
        if config.engine.zero_stage == 3 and is_used_on_the_way:
            tokenizer = getattr(model, "encoder", model).tokenizer
            self._copy = copy.deepcopy(model, {id(tokenizer): tokenizer})
            # It is measured and never trained.
            getattr(self._copy, "encoder", self._copy).attention = "auto"

    def weights(self) -> dict[str, Tensor]:
        """The state dict of now, on the CPU and in full precision. All ranks call it."""
        return zero.full_precision_weights(self._model, self._frozen)

    def as_it_is(self) -> nn.Module:
        """The model with the weights of now. All ranks call it."""
        if self._copy is None:
            return self._model
        self._copy.load_state_dict(self.weights())
        return self._copy

    def finish(self, weights: dict[str, Tensor]) -> None:
        """Makes the model whole once the engine is destroyed; ``weights`` are the last. No copy is left."""
        self._copy = None
        zero.make_whole(self._model, weights)
