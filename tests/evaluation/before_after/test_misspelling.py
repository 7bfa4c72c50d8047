"""Typing errors: one a word, reproducible, and no more than said."""

from fastadv.evaluation.before_after.misspelling import misspell

TEXT = "the acting was wonderful although somebody forgot about writing dialogue , e.g. jokes"


def test_a_mistake_swaps_drops_or_doubles_one_letter_and_keeps_the_first():
    seen = set()
    for number in range(200):
        words = misspell(TEXT, 0, number).split(" ")
        assert len(words) == len(TEXT.split(" "))
        for old, new in zip(TEXT.split(" "), words):
            if new == old:
                continue
            assert len(old) >= 4 and old.isalpha() and new[0] == old[0]
            seen.add(len(new) - len(old))
            swapped = {old[:i] + old[i + 1] + old[i] + old[i + 2 :] for i in range(1, len(old) - 1)}
            dropped = {old[:i] + old[i + 1 :] for i in range(1, len(old))}
            doubled = {old[:i] + old[i] + old[i:] for i in range(1, len(old))}
            assert new in swapped | dropped | doubled
    assert seen == {-1, 0, 1}


def test_it_depends_on_seed_and_number_alone():
    assert misspell(TEXT, 3, 5) == misspell(TEXT, 3, 5)
    assert len({misspell(TEXT, 3, number) for number in range(20)}) > 15
    assert misspell(TEXT, 4, 5) != misspell(TEXT, 3, 5)


def test_about_three_in_ten_of_the_longer_words_are_hit():
    text = " ".join(["wonderful"] * 2000)
    changed = sum(word != "wonderful" for word in misspell(text, 0, 0).split(" "))
    # Swapping the two equal letters of a word changes nothing; "wonderful" has none. Four standard deviations.
    assert abs(changed / 2000 - 0.3) < 4 * (0.3 * 0.7 / 2000) ** 0.5
    # Short words and empty texts stay.
    assert misspell("a b cd the", 0, 0) == "a b cd the" and misspell("", 0, 0) == ""
