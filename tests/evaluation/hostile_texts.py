"""Texts that an attack must come through, each in a row of its own."""

HOSTILE = {
    "stop words": "the of and to a in it is",
    "one character": "x",
    "emoji": "🙂 👩‍👩‍👧 🇺🇳 🎬🎬🎬",
    "look-alikes": "thе fіlm wаs gооd",
    "many words": "the dull film was not good " * 833 + "and never",
    "long word": "dull" * 60,
    "control characters": "the \x01 film \x07 was \x1b[31m good \x7f",
    "punctuation": "... !? -- '' \"\" ,;: ()",
    "lines": "the film\nwas\tgood\r\n.",
    "quotes": "it's \"good\" - 'dull' and don't",
    "right to left": "\u202egood film\u202c is dull",
    "combining": "go\u0301od fi\u0308lm",
    "other script": "这部电影很好 и фильм хорош",
}
