"""The sample of sentences to be read, before and after."""

from bench.word_sets_sample import main
from fastadv.data.variants.word_sets import WordSets


def test_pairs_of_sentences_are_printed_and_drawn_by_the_seed(tmp_path, capsys):
    WordSets({"film": ["movie"], "good": ["fine"]}, {"good": ["bad"]}).save(tmp_path / "sets.json")
    texts = [f"a good film, the {number} of 8" for number in range(8)]
    (tmp_path / "texts.txt").write_text("\n".join([*texts, "nothing of theirs is in this one"]), encoding="utf-8")

    def printed(*more):
        assert main(["--word_sets", str(tmp_path / "sets.json"), "--data", str(tmp_path / "texts.txt"), *more]) == 0
        return capsys.readouterr().out

    said = printed("--num_sentences", "3", "--num_antonyms", "2")
    assert said == printed("--num_sentences", "3", "--num_antonyms", "2")
    lines = said.splitlines()
    assert lines[0] == "synonyms:" and "antonym:" in lines and len(lines) == 2 + 2 * (3 + 2)
    at = lines.index("antonym:")
    for before, after in zip(lines[1:at:2], lines[2:at:2]):
        assert before[4:] in texts and after.replace("fine", "good").replace("movie", "film").strip() == before[4:]
        assert before[4:] != after.strip()
    assert all(
        after.strip() == before[4:].replace("good", "bad")
        for before, after in zip(lines[at + 1 :: 2], lines[at + 2 :: 2])
    )
    assert printed("--seed", "1") != printed()


def test_a_missing_file_is_said(capsys):
    assert main(["--word_sets", "none.json"]) == 2
    assert "none.json" in capsys.readouterr().err
