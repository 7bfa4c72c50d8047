"""Every command line of README, docs, CONTRIBUTING and the configs' comments is one that its program takes."""

import pytest

from tests.docs.documented_commands import CONFIGS, PAGES, ROOT, Wrong, check, commands_of, is_command

COMMANDS = {path: commands_of(path) for path in [*PAGES, *CONFIGS]}


@pytest.mark.parametrize("path", [path for path in COMMANDS if COMMANDS[path]], ids=lambda path: path.name)
def test_the_commands_are_taken_as_printed(path):
    wrong = []
    for command in COMMANDS[path]:
        try:
            check(command.text)
        except Wrong as error:
            wrong.append(f"{command.place}: {error}")
    assert not wrong, "\n".join(wrong)


def test_commands_of_every_family_are_found():
    texts = [command.text for commands in COMMANDS.values() for command in commands]
    for beginning in (
        "fastadv train",
        "fastadv attack",
        "make ",
        "deepspeed ",
        "DS_ACCELERATOR=cpu deepspeed",
        "torchrun",
    ):
        assert any(text.startswith(beginning) for text in texts), beginning
    for beginning in ("python -m bench.", "python fastadv/train.py", "srun "):
        assert any(text.startswith(beginning) for text in texts), beginning


def test_what_a_page_writes_becomes_the_lines_of_a_shell(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.documented_commands.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "fastadv is not a command here\n\n"
        '    more="--train.seed 3"\n'
        "    A=1 fastadv train $more \\\n        --train.max_steps 2   # a remark\n\n"
        "```python\nmake = 1\n```\n```bash\n$ make test\n```\nand `python -m\nbench.ops` too\n",
        encoding="utf-8",
    )
    assert [command.text for command in commands_of(page)] == [
        "A=1 fastadv train --train.seed 3 --train.max_steps 2   # a remark",
        "make test",
        "python -m bench.ops",
    ]
    config = tmp_path / "config.yaml"
    config.write_text("# Make it first:\n#   fastadv train\n#   --train.seed 1\nmake: 1\n", encoding="utf-8")
    assert [command.text for command in commands_of(config)] == ["fastadv train"]


@pytest.mark.parametrize(
    "line",
    [
        "fastadv train --config configs/quickstart.yaml --train.max_step 3",
        "fastadv train --config configs/quickstart.yaml --train.resume sometimes",
        "fastadv train --config configs/quickstart.yaml --train.max_steps",
        "fastadv train --config configs/no-such.yaml",
        "fastadv train --config configs/taichi.yaml --objective_options.ablation no_such",
        "fastadv train --config configs/quickstart.yaml --objective_options.margin 1",
        "fastadv train --config configs/quickstart.yaml --card h100",
        "fastadv train --config configs/quickstart.yaml --dry_run --card h101",
        "fastadv trian --config configs/quickstart.yaml",
        "fastadv encode --model demo:minilm --input sentences.txt",
        "fastadv encode --model demo:minilm --input a.txt --output b.npy --pool mean",
        "fastadv evaluate sts --model demo:minilm --data senteval/ --pooling median",
        "fastadv evaluate stss --model demo:minilm --data senteval/",
        "fastadv evaluate adv-sts --model demo:minilm --data senteval/ --set STS-B --recipes pwws --out runs/a",
        "fastadv attack --model m --data demo:imdb --out runs/a --method pdg",
        "fastadv attack --model m --data demo:imdb --out runs/a --recipe textfoole",
        "fastadv attack --model m --data demo:imdb --out runs/a --recipe pwws --epsilons 1",
        "fastadv word-sets --vectors v.txt --counterfit --out sets.json",
        "fastadv reshape-checkpoint runs/mine --num_ranks none",
        "make quikstart",
        "make test soack",
        "make soak ROUND=3",
        "deepspeed --num_gpuz 2 fastadv/train.py --config my.yaml",
        "deepspeed --num_gpus two fastadv/train.py --config my.yaml",
        "deepspeed --num_gpus 2 fastadv/trian.py --config my.yaml",
        "deepspeed --num_gpus 2 fastadv/train.py --config my.yaml --train.batchsize 3",
        "A=1 deepspeed fastadv/train.py --config configs/no-such.yaml",
        "torchrun --standalone --nproc_per_nod_ 2 fastadv/train.py --config my.yaml",
        "torchrun --standalone fastadv/train.py --config my.yaml --engine.zero_stage 4",
        "srun --nodes 2 python fastadv/train.py --config my.yaml --engine.zero_stage 4",
        "python fastadv/train.py --config my.yaml --engine.precision fp16",
        "python -m bench.trainig_step",
        "python -m no_such.module",
        "python -m bench.summary",
        "python -m bench.summary steps.json --tabel steps.md",
        "python -m bench.training_step --dtypes fp16",
        "python -m bench.studies.supervised_study --arms scal --train.max_step 3",
        "python -m bench.studies.supervised_study --arms skal",
        "python -m pytest tests/no_such_test.py",
    ],
)
def test_a_mistake_is_caught(line):
    assert is_command(line)
    with pytest.raises(Wrong):
        check(line)


@pytest.mark.parametrize(
    "line",
    [
        "python -m bench.studies.supervised_study --arms scal --train.max_steps 3",
        "deepspeed --num_gpus 2 fastadv/train.py --config my.yaml --train.batch_size 3",
        "make soak ROUNDS=3 FIRST=2",
        "fastadv train --config configs/quickstart.yaml --dry_run --card h100  # --train.max_step is a remark",
    ],
)
def test_what_is_right_passes(line):
    check(line)


def test_no_check_writes_anything():
    before = {path for path in ROOT.iterdir()}
    check("fastadv train --config configs/quickstart.yaml --train.output_dir never-made")
    check("python -m bench.ops --json never-made.json")
    assert {path for path in ROOT.iterdir()} == before
