"""English prose into sentences by rules: small, quick, deterministic, and good enough to train on.

A sentence may end after ``.``, ``!``, ``?``, ``...`` or the one-character ellipsis, with the quotes and
brackets that close behind it. Whether it does depends on the word before and the character after:

==============================================  ==========================================================
``!``, ``?``                                    ends before anything but a lower-case letter
an ellipsis                                     ends before anything but a lower-case letter
``.`` after an abbreviation that needs a word   never ends ("Mr.", "vs.", "e.g.")
``.`` after an initial ("J.", not "I.")         never ends
``.`` after "U.S." or "etc." and their like     ends only before a word that commonly opens a sentence
``.`` after a number that opens the sentence    never ends ("1. The plot")
``.`` after "No.", before a digit               never ends
any other ``.``                                 ends, before a lower-case letter too: reviewers write so
``.``, ``!``, ``?`` glued to a capital          ends ("so bad.The end"), except in an address ("www.IMDb.com")
==============================================  ==========================================================
"""

import re
from typing import List

_NEEDS_A_WORD = frozenset(
    "mr mrs ms dr prof st rev fr gen col capt cmdr lt sgt maj sen rep gov pres hon messrs mt ft vs v cf "
    "e.g i.e eg approx feat dept ca viz vol fig".split()
)
_MAY_END = frozenset(
    "etc jr sr co inc ltd corp bros est al esq min mins hr hrs sec secs yr yrs "
    "jan feb mar apr jun jul aug sep sept oct nov dec "
    "a.m p.m b.c a.d ph.d m.d u.s u.s.a u.k l.a n.y d.c t.v i.q".split()
)
_OPENERS = frozenset(
    "the a an this that these those it it's its he he's she she's they they're we we're you i i'm i've my "
    "his her their our your there there's here in on at as but and or so if when while although though after "
    "before because with for from to by of what why how who where which not no yes one some most all many "
    "also however even only just now then overall anyway please don't do does is was are did let".split()
)
_CLOSING = "\"'”’»)\\]"
_OPENING = "\"'“‘«(\\["
# Only the start of a run of marks is tried: a line of a thousand dots would else be scanned a thousand times.
# The lookbehind stands behind the first mark: a pattern that opens with a set is searched much faster.
_CANDIDATE = re.compile(
    rf"(?P<end>[.!?…](?<![.!?…]{{2}})[.!?…]*)(?P<close>[{_CLOSING}]*)"
    rf"(?:\s+(?P<open>[{_OPENING}]*)(?P<next>\S)|(?<=[a-z]{{2}}[.!?])(?=[A-Z][a-z]))"
)
_WORD = re.compile(r"[^\s\"“”‘«»()\[\],;:!?/]+$")
_NEXT_WORD = re.compile(r"[\w'’]+")
_INITIAL = re.compile(r"[A-HJ-Z]")
_DOTTED = re.compile(r"(?:[a-z]\.)+[a-z]")
_ADDRESS = re.compile(r"(?:\bwww\b|https?:|@)\S*$", re.IGNORECASE)
_LONGEST_WORD = 40


def split_sentences(text: str) -> List[str]:
    """The sentences of one paragraph in order, stripped; nothing else is changed."""
    sentences, start = [], 0
    for match in _CANDIDATE.finditer(text):
        if _ends(text, start, match):
            sentences.append(text[start : match.end("close")].strip())
            start = match.end("close")
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends(text: str, start: int, match: re.Match) -> bool:
    """Whether the sentence that began at ``start`` ends at ``match``."""
    # No abbreviation is longer; searching a whole sentence at every full stop would take most of the time.
    before = text[max(start, match.start() - _LONGEST_WORD) : match.start()]
    following = match["next"]
    if following is None:
        return not _ADDRESS.search(before)
    if match["end"] != ".":
        return not following.islower()
    word = _WORD.search(before)
    if word is None:
        return True
    token = word[0]
    lowered = token.lower()
    if lowered in _NEEDS_A_WORD or _INITIAL.fullmatch(token):
        return False
    if lowered == "no" and following.isdigit():
        return False
    if token.isdigit() and not text[start : match.start() - len(token)].strip():
        return False
    if lowered in _MAY_END or _DOTTED.fullmatch(lowered):
        following_word = _NEXT_WORD.match(text, match.start("next"))
        opener = following_word[0].replace("’", "'") if following_word else ""
        return opener[:1].isupper() and opener.lower() in _OPENERS
    return True
