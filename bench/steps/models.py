"""Random-weight models that the step benchmarks need beside ``demo:minilm``, written to folders."""

from pathlib import Path

import torch

from fastadv.encoder.weights.source import find_model, load_tokenizer


def write_base_encoder(folder: Path) -> str:
    """BERT of base size (12 layers, D = 768) with MiniLM's tokenizer."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    tokenizer = load_tokenizer(find_model("demo:minilm"))
    BertModel(BertConfig(vocab_size=len(tokenizer)), add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_masked_lm(encoder: str, folder: Path) -> str:
    """A masked language model of the encoder's size and vocabulary."""
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    source = find_model(encoder)
    BertForMaskedLM(source.config).save_pretrained(folder)
    load_tokenizer(source).save_pretrained(folder)
    return str(folder)
