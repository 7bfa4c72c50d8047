"""Vectors that are made once: kept on disk by the model's content, its pooling and length, and the texts.

A file holds the vectors of a chunk of texts, so that an encoding that was stopped goes on at its last whole chunk.
Nothing is ever looked up by a name: another model in the same folder, or changed texts, have other files.
"""

import hashlib
import logging
import os
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, List, Optional, Sequence

import numpy as np

from fastadv.data.tokenize_texts import say_tokens
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside
from fastadv.files.hashes import digest_of
from fastadv.files.progress import Bar

logger = logging.getLogger("fastadv")

CHUNK_SIZE = 8192
"""texts a file"""

# Part of every name: raise it when equal inputs would give other vectors.
_VERSION = 1

# Of a configuration: where it came from and how it is run, not what it computes.
_NOT_CONTENT = ("_name_or_path", "transformers_version", "_attn_implementation", "_attn_implementation_autoset")


def model_fingerprint(encoder) -> str:
    """Equal for encoders with equal weights (bit for bit, in one dtype), configuration, tokenizer, prompt and modules
    after the pooling."""
    import torch

    config = {key: value for key, value in encoder.hf.config.to_dict().items() if key not in _NOT_CONTENT}
    facts, state = [config, encoder.tokenizer_fingerprint], dict(encoder.hf.state_dict())
    files = encoder.files
    if encoder.after.files or files.truncate_dim or not files.pools_prompt:
        modules = [[file.kind, dict(file.config)] for file in encoder.after.files]
        facts.append([modules, files.truncate_dim, files.pools_prompt])
        state |= {f"after.{name}": tensor for name, tensor in encoder.after.state_dict().items()}
    digest = hashlib.blake2b(digest_of(facts).encode(), digest_size=16)
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class VectorCache:
    """The vectors of one encoder, in a folder that several may share.

    Args:
        folder: made where it is not there; the files ``vectors-*.npz`` in it may be deleted at any time.
        encoder: a `fastadv.Encoder`; its weights are hashed here, once.
        is_finished: False keeps h in place of the vectors (`fastadv.Encoder.finish`).

    Raises:
        UserError: no files can be made in ``folder``.
    """

    def __init__(self, folder: str | os.PathLike, encoder, is_finished: bool = True):
        self.folder = checked_cache_folder(folder)
        self.encoder, self.is_finished = encoder, is_finished
        self.encoder_key = [_VERSION, model_fingerprint(encoder), encoder.pooling, encoder.max_length]
        self.encoder_key += [] if is_finished else ["h"]

    def encode(self, texts: Sequence[str], batch_size: int = 64, bar: Optional[Bar] = None) -> np.ndarray:
        """Vectors (num_texts, D) in float32 as ``encode_texts`` gives them, read where an earlier run left them.

        Args:
            bar: is moved on by each text, kept or new.
        """
        chunks = [texts[at : at + CHUNK_SIZE] for at in range(0, len(texts), CHUNK_SIZE)]
        return np.concatenate([self._chunk(list(chunk), batch_size, bar) for chunk in chunks])

    def _chunk(self, texts: List[str], batch_size: int, bar: Optional[Bar]) -> np.ndarray:
        path = self.folder / f"vectors-{digest_of([self.encoder_key, texts])}.npz"
        vectors = self._kept(path, len(texts))
        if vectors is None:
            options = {} if self.is_finished else options_of_h(self.encoder)
            vectors = self.encoder.encode_texts(
                texts, batch_size=batch_size, on_batch=None if bar is None else bar.update, **options
            )
            # Not compressed, but zip keeps a checksum of what it holds.
            with writing_to_cache(self.folder), written_aside(path) as aside, aside.open("wb") as file:
                np.savez(file, vectors=vectors)
        elif bar is not None:
            bar.update(len(texts))
        return vectors

    def _kept(self, path: Path, num_texts: int) -> Optional[np.ndarray]:
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as arrays:
                vectors = arrays["vectors"]
            size = self.encoder.vector_size if self.is_finished else self.encoder.pooled_size
            if vectors.shape != (num_texts, size) or vectors.dtype != np.float32:
                raise ValueError(f"it holds {vectors.dtype} of shape {vectors.shape}")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            logger.warning("%s is damaged (%s); encoding again", path, str(error).split("\n")[0])
            return None
        return vectors


def options_of_h(encoder) -> dict:
    """The arguments with which ``encode_texts`` gives h; none where the encoder, one of another's, knows no other."""
    return {"is_finished": False} if hasattr(encoder, "finish") else {}


def encode_distinct(
    encoder,
    texts: Sequence[str],
    batch_size: int = 64,
    cache: Optional[VectorCache] = None,
    progress: bool = False,
    name: Optional[str] = None,
    is_finished: bool = True,
) -> np.ndarray:
    """Vectors (num_texts, D) of texts that differ.

    Args:
        encoder: anything with ``encode_texts(texts, batch_size, progress) -> (num_texts, D)``. Of one that has
            ``tokenize`` it is logged how many texts are cut.
        cache: that of this encoder; None: all are encoded.
        name: what the texts are called; None: that they are cut is not logged.
        is_finished: False gives h in place of the vectors, of a `fastadv.Encoder` and of a cache made for h.

    Raises:
        UserError: vectors that are not finite.
    """
    if name is not None:
        say_tokens(encoder, name, texts)
    if cache is None:
        options = {} if is_finished else options_of_h(encoder)
        vectors = np.asarray(encoder.encode_texts(list(texts), batch_size=batch_size, progress=progress, **options))
    else:
        with Bar(total=len(texts), unit="text", desc=f"{name or 'texts'} encode", disable=not progress) as bar:
            vectors = cache.encode(texts, batch_size, bar)
    num_broken = int((~np.isfinite(vectors).all(axis=1)).sum())
    if num_broken:
        raise UserError(f"the encoder gave vectors with NaN or infinity for {num_broken} of {len(texts)} texts")
    return vectors


def checked_cache_folder(folder: str | os.PathLike) -> Path:
    """The folder, made where it was not there. UserError where no file can be made in it."""
    folder = Path(folder).expanduser()
    with writing_to_cache(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"--cache_dir {str(folder)!r}: expected a folder that can be written to")
    return folder


@contextmanager
def writing_to_cache(folder: Path) -> Iterator[None]:
    """Turns an OSError of the block into the UserError that names the folder."""
    try:
        yield
    except OSError as error:
        raise UserError(f"--cache_dir {str(folder)!r} cannot be written to: {error.strerror or error}") from error
