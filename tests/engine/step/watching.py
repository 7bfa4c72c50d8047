"""What the tests of a step watch in it, and how they compare gradients."""


def encodes_of(step):
    """A list that grows by one for each pass of the encoder."""
    encode, calls = step.encoder.encode, []
    step.encoder.encode = lambda *arguments, **options: calls.append(1) or encode(*arguments, **options)
    return calls


def shifts_of(step):
    """A list of the points that passes are made at, in order, less the step's X; without the passes at X itself."""
    shifts, known, encode, embedder = [], [], step.encoder.encode, step.encoder.embedder

    def watched_embedder(batch, dropout=None):
        embed = embedder(batch, dropout)
        return lambda: known.append(embed()) or known[-1]

    def watched_encode(x, batch, dropout=None):
        if all(x is not one for one in known):
            shifts.append((x - known[0]).detach())
        return encode(x, batch, dropout)

    step.register_forward_pre_hook(lambda *_: known.clear())
    step.encoder.embedder, step.encoder.encode = watched_embedder, watched_encode
    return shifts


def assert_same_gradients(grads, expected, tolerance=1e-12):
    """Equal but for rounding; the floor is for an attention key's bias, whose true gradient is 0."""
    assert grads.keys() == expected.keys()
    for name, grad in expected.items():
        assert (grads[name] - grad).abs().max() <= tolerance * max(1.0, grad.abs().max()), name
