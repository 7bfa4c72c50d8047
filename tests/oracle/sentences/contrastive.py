"""L_con of METHODS.md section 2 row by row, and its derivative by the queries, in numpy.

Everything but the gradient also takes complex vectors, so that a test can differentiate it by a complex step.
"""

import numpy as np


def cosine(a, b):
    """sim(a, b); a zero vector has cosine 0 with everything. No conjugate: analytic in complex entries."""
    length_a, length_b = np.sqrt((a * a).sum()), np.sqrt((b * b).sum())
    if length_a == 0 or length_b == 0:
        return 0.0 * (a * b).sum()
    return (a * b).sum() / (length_a * length_b)


def log_sum_exp(values):
    values = np.asarray(values)
    shift = values.real.max()
    return shift + np.log(np.exp(values - shift).sum())


def minus_log_share(own, others):
    """-log(sum exp(own) / sum exp(own and others)), to its last digits also where it is near 0."""
    return np.log1p(np.exp(log_sum_exp(others) - log_sum_exp(own)))


def is_negative(row, column, ids, mask_duplicates):
    """Whether key ``column`` is a negative of query ``row``: another sentence, and no copy of this one."""
    return column != row and not (mask_duplicates and ids[row] == ids[column])


def row_loss(row, query, key_sets, ids, temperature, multi_positive, mask_duplicates):
    """The term of one query; the positive in each key set is the key of the same number."""
    logits = [[cosine(query, key) / temperature for key in keys] for keys in key_sets]
    columns = range(len(key_sets[0]))
    negative_columns = [j for j in columns if is_negative(row, j, ids, mask_duplicates)]
    if not negative_columns:
        return 0.0
    positives = [of_set[row] for of_set in logits]
    negatives = [[of_set[j] for j in negative_columns] for of_set in logits]
    all_negatives = [logit for of_set in negatives for logit in of_set]
    if multi_positive == "sum":
        return minus_log_share(positives, all_negatives)
    if multi_positive == "mean":
        others = [positives[:m] + positives[m + 1 :] + all_negatives for m in range(len(positives))]
        return sum(minus_log_share([p], rest) for p, rest in zip(positives, others, strict=True)) / len(positives)
    return sum(minus_log_share([p], of_set) for p, of_set in zip(positives, negatives, strict=True)) / len(positives)


def contrastive_sum(queries, key_sets, ids, temperature, multi_positive="sum", mask_duplicates=True):
    """The sum over rows; the inner loss with ``key_sets`` = [z_positive]."""
    rows = (
        row_loss(i, query, key_sets, ids, temperature, multi_positive, mask_duplicates)
        for i, query in enumerate(queries)
    )
    return sum(rows)


def contrastive_mean(queries, key_sets, ids, temperature, multi_positive="sum", mask_duplicates=True):
    """L_con, the mean over rows."""
    return contrastive_sum(queries, key_sets, ids, temperature, multi_positive, mask_duplicates) / len(queries)


def gradient_of_sum(queries, keys, ids, temperature, mask_duplicates=True):
    """d contrastive_sum(queries, [keys], ...) / d queries, one vector a row.

    d cos(q, k) / dq = (k/|k| - cos(q, k) q/|q|) / |q|; the coefficient of a negative's logit is its
    probability, of the positive's minus the negatives' total.
    """
    gradients = []
    for i, query in enumerate(queries):
        gradient = np.zeros_like(query)
        length = np.sqrt((query * query).sum())
        negatives = [j for j in range(len(keys)) if is_negative(i, j, ids, mask_duplicates)]
        if negatives and length > 0:
            columns = [i, *negatives]
            cosines = np.array([cosine(query, keys[j]) for j in columns])
            probabilities = np.exp(cosines / temperature - log_sum_exp(cosines / temperature))
            probabilities[0] = -probabilities[1:].sum()
            for coefficient, cos, j in zip(probabilities, cosines, columns, strict=True):
                key_length = np.sqrt((keys[j] * keys[j]).sum())
                if key_length > 0:
                    slope = (keys[j] / key_length - cos * query / length) / length
                    gradient = gradient + coefficient / temperature * slope
        gradients.append(gradient)
    return gradients
