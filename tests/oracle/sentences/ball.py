"""Norms, directions and projections of METHODS.md section 1 in numpy, of one sentence or one token."""

import numpy as np


def norm_of(x, norm):
    """The norm of all entries of ``x``, whatever its shape; 0 without entries."""
    entries = np.abs(x).ravel()
    if entries.size == 0:
        return 0.0
    if norm == "linf":
        return entries.max()
    if norm == "l2":
        return np.sqrt((entries * entries).sum())
    return entries.sum()


def direction(gradient, norm):
    """dir(g) = g / ||g||, scaled by the largest magnitude first; a zero gradient has a zero direction."""
    largest = np.abs(gradient).max(initial=0.0)
    if largest == 0:
        return np.zeros_like(gradient)
    scaled = gradient / largest
    return scaled / norm_of(scaled, norm)


def project(x, radius, norm):
    """The nearest point (Euclidean distance) of the ball of ``radius``; ``radius`` None is no ball."""
    if radius is None or norm_of(x, norm) <= radius:
        return x
    if norm == "linf":
        return np.minimum(np.maximum(x, -radius), radius)
    if norm == "l2":
        return x * (radius / norm_of(x, "l2"))
    if radius == 0:
        return np.zeros_like(x)
    return np.sign(x) * np.maximum(np.abs(x) - l1_threshold(x, radius), 0.0)


def l1_threshold(x, radius):
    """The theta with sum(max(|x| - theta, 0)) = radius, for ``x`` outside the l1 ball of ``radius`` > 0."""
    descending = np.sort(np.abs(x).ravel())[::-1]
    theta = 0.0
    total = 0.0
    for count, magnitude in enumerate(descending, start=1):
        total += magnitude
        candidate = (total - radius) / count
        if magnitude <= candidate:
            break
        theta = candidate
    return theta
