"""Small pieces of markup; every text that comes from a file goes through here or through a table."""

from fastadv.pages.shown_text import shown


def paragraph(text: str, css: str = "note") -> str:
    """One paragraph, escaped."""
    return f'<p class="{css}">{shown(text)}</p>\n'


def bullets(texts) -> str:
    """A list, escaped; nothing of nothing."""
    items = "".join(f"<li>{shown(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>\n" if items else ""
