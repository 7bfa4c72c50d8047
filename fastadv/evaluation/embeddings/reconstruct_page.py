"""reconstruct.html: adversarial texts to look at, with the words that changed marked; one file, no network."""

from typing import Sequence

from fastadv.pages.html_page import html_page, html_table
from fastadv.pages.shown_text import marked, shown

MAX_SHOWN = 200
"""texts of a model, those of the smallest radius first; the table has all"""


def page(results: dict, examples: Sequence) -> str:
    """The whole page.

    Args:
        results: what ``reconstruct.json`` holds.
        examples: `fastadv.evaluation.embeddings.reconstruct_run.Example`, of all models.
    """
    data = results["data"]
    lead = shown(f"{data['num_texts']:,} texts of {data['source']} ({data['split']})")
    sections = [f'<header><h1>Adversarial text</h1><p class="lead">{lead}</p></header>\n', _how(results)]
    sections.append(_rates(results))
    for model in results["models"]:
        sections.append(_texts(model["name"], [one for one in examples if one.model == model["name"]]))
    return html_page("Adversarial text", "".join(sections))


def _how(results: dict) -> str:
    settings, maker = results["settings"], results["protocol"]["transfer_from"]
    by = f"by {maker}, for all models," if maker else "by each model itself"
    has_reconstructor = {model["has_reconstructor"] for model in results["models"]}
    how = {
        frozenset([True]): "the word its reconstructor says",
        frozenset([False]): "the word whose embedding is nearest",
    }.get(frozenset(has_reconstructor), "the word the model's reconstructor says, or where it has none the nearest one")
    return (
        f'<p class="note">Embeddings are perturbed {shown(by)} in {settings["num_steps"]} steps of PGD in the '
        f"{settings['norm']} ball of a text; then every token becomes {how}. The text is tokenised anew before it is "
        "classified. A text is attacked where the model is right without that.</p>\n"
    )


def _rates(results: dict) -> str:
    few, share = results["max_words"], results["max_share"]
    head = ["", "epsilon", "attacked", "fooled", f"by ≤ {few} words", f"by ≤ {share:.0%} of the words", "words changed"]
    lines = []
    for model in results["models"]:
        for row in model["epsilons"]:
            by_class = ", ".join(f"{k} {v['num_fooled']} of {v['num_attacked']}" for k, v in row["per_class"].items())
            columns = "".join(f"<td>{shown(cell)}</td>" for cell in rate_cells(row))
            lines.append(f'<tr title="{shown(by_class)}"><td>{shown(model["name"])}</td>{columns}</tr>')
    return html_table([shown(cell) for cell in head], lines)


def _texts(name: str, examples: Sequence) -> str:
    """The texts that fooled a model, each at the smallest radius that did."""
    fooled, seen = [], set()
    for one in sorted(examples, key=lambda one: (one.epsilon, one.row)):
        if one.is_fooled and one.row not in seen:
            seen.add(one.row)
            fooled.append(one)
    title = f"<h2>{shown(name)}: {len(fooled):,} texts</h2>\n"
    if not fooled:
        return f'{title}<p class="note">No text fooled it.</p>\n'
    more = f'<p class="note">The first {MAX_SHOWN} of them.</p>\n' if len(fooled) > MAX_SHOWN else ""
    table = html_table(("row", "epsilon", "said", "text"), [_text(one) for one in fooled[:MAX_SHOWN]], "texts")
    return f"{title}{more}{table}"


def _text(one) -> str:
    said = f"{shown(one.predicted)} → {shown(one.predicted_after)}"
    text = marked(one.text, one.reconstructed)
    return f"<tr><td>{one.row}</td><td>{one.epsilon:g}</td><td>{said}</td><td>{text}</td></tr>"


def rate_cells(row: dict) -> list[str]:
    """A radius of a model in a table: radius, texts attacked, shares fooled, and the share of words that changed."""
    names = ("success", "success_few_words", "success_small_share", "share_of_words_changed")
    shares = ("none" if row[name] is None else f"{row[name]:.1%}" for name in names)
    return [f"{row['epsilon']:g}", f"{row['num_attacked']:,}", *shares]
