"""How a set of sentence vectors lies on the unit sphere (Wang & Isola 2020; METHODS.md section 5).

Shapes: ``N`` sentences, ``D`` entries a vector. Every function normalises its input to length 1 itself, in float64;
a zero vector stays zero.
"""

import numpy as np

from fastadv.evaluation.intervals import Statistic

UNIFORMITY_SCALE = 2.0
"""t of exp(−t‖x − y‖²)"""


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """(N, D) float64, rows divided by their length; a zero row stays zero.

    Raises:
        ValueError: not a matrix of at least one finite row.
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or vectors.shape[0] == 0:
        raise ValueError(f"vectors must be a matrix (N, D) with N >= 1, got shape {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError("vectors hold NaN or infinity")
    # Largest magnitude first: the square of a tiny or huge entry would leave float64's range.
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scaled = vectors / np.where(largest > 0, largest, 1)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / np.where(norms > 0, norms, 1)


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """`unit_vectors` of float64 rows of a usual size, which are not checked."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def cosine_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(N,) 1 − cos of rows of x and y (N, D); 1 where one is zero, NaN where one is not finite."""
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return 1 - (x * y).sum(axis=1) / np.where(norms == 0, 1, norms)


def squared_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(N,) ‖f(x_i) − f(x⁺_i)‖² of each positive pair, whose mean is the alignment: 0 best, 2 for unrelated vectors.

    The published numbers take STS-B pairs scored above 4 as positives. Where no labelled pairs exist the field's
    positives are the unsupervised training pairs: one sentence under two dropout masks (SimCSE), which is what the
    table before → after uses; such values compare two models on the same sentences, never with published ones.

    Raises:
        ValueError: x and y differ in shape.
    """
    x, y = unit_vectors(x), unit_vectors(y)
    if x.shape != y.shape:
        raise ValueError(f"positive pairs need two matrices of one shape, got {x.shape} and {y.shape}")
    return ((x - y) ** 2).sum(axis=1)


def pair_kernel(x: np.ndarray) -> np.ndarray:
    """(N, N) exp(−2‖f(x_i) − f(x_j)‖²) with a zero diagonal: the terms of :func:`uniformity`."""
    x = unit_vectors(x)
    squares = (x**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * x @ x.T, 0)
    kernel = np.exp(-UNIFORMITY_SCALE * distances)
    np.fill_diagonal(kernel, 0)
    return kernel


def uniformity(x: np.ndarray) -> float:
    """log E over i ≠ j of exp(−2‖f(x_i) − f(x_j)‖²): 0 when all vectors coincide (worst), towards −4 when spread.

    Raises:
        ValueError: fewer than two vectors, for which there is no pair.
    """
    kernel = pair_kernel(x)
    num_vectors = kernel.shape[0]
    if num_vectors < 2:
        raise ValueError("uniformity is a mean over pairs: at least two vectors are needed, got 1")
    return float(np.log(kernel.sum() / (num_vectors * (num_vectors - 1))))


def singular_values(x: np.ndarray) -> np.ndarray:
    """(min(N, D),) of the centred unit vectors, largest first; those that are rounding alone are 0."""
    x = unit_vectors(x)
    singular = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
    # Centring equal rows leaves rounding, not variation.
    return np.where(singular > max(x.shape) * np.finfo(np.float64).eps, singular, 0)


def mean_cosine_statistic(x: np.ndarray) -> Statistic:
    """E of the cosine over pairs i ≠ j, the anisotropy of Ethayarajh 2019: 0 for spread directions, 1 for one.

    Two draws of one vector are no pair.
    """
    x = unit_vectors(x)
    squares = (x**2).sum(axis=1)

    def statistic(counts: np.ndarray) -> np.ndarray:
        pair_sum = ((counts @ x) ** 2).sum(axis=1) - counts**2 @ squares
        return pair_sum / (counts.sum(axis=1) ** 2 - (counts**2).sum(axis=1))

    return statistic


def spectral_statistic(x: np.ndarray) -> Statistic:
    """counts (R, N) -> (R, 2): effective rank and top share of each resample.

    The effective rank (Roy & Vetterli 2007) is exp of the entropy of the centred vectors' singular values, taken as
    shares: between 1 (all on a line) and min(N − 1, D). The top share is that of the centred vectors' variance along
    their first principal direction. Both are 0 where there is no variation at all (one vector, or all equal).
    From the eigenvalues of the D × D covariance, whose making and solving take O(N·D² + D³) a resample.
    """
    x = unit_vectors(x)

    def of_one(row: np.ndarray) -> tuple:
        drawn = row > 0
        share = row[drawn] / row.sum()
        centred = (x[drawn] - share @ x[drawn]) * np.sqrt(share)[:, None]
        eigenvalues = np.linalg.eigvalsh(centred.T @ centred)[::-1]
        floor = len(eigenvalues) * np.finfo(np.float64).eps * max(eigenvalues[0], np.finfo(np.float64).eps)
        singular = np.sqrt(np.where(eigenvalues > floor, eigenvalues, 0))
        singular = singular[singular > 0]
        if singular.size == 0:
            return 0.0, 0.0
        share = singular / singular.sum()
        return np.exp(-(share * np.log(share)).sum()), singular.max() ** 2 / (singular**2).sum()

    return lambda counts: np.array([of_one(row) for row in counts])
