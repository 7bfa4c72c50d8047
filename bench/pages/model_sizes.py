"""The sizes of RoBERTa-large and of DistilRoBERTa, from which no weights are needed."""

from transformers import RobertaConfig

LARGE = RobertaConfig(
    vocab_size=50265,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    max_position_embeddings=514,
    type_vocab_size=1,
)
DISTILLED = RobertaConfig(
    vocab_size=50265,
    hidden_size=768,
    num_hidden_layers=6,
    num_attention_heads=12,
    intermediate_size=3072,
    max_position_embeddings=514,
    type_vocab_size=1,
)
