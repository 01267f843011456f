import json

import pytest
import torch
from PIL import Image

from vitrail.models.loading import load
from vitrail.tools.rewrite import NOTICE

VIT, BERT = ("-m", "vit"), ("-m", "bert")


def failed(result):
    """The one line that a deliberate error leaves on stderr."""
    assert result.exit_code == 1, result.output
    (line,) = [x for x in result.stderr.splitlines() if not x.startswith("loading ")]
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("given", [("cat.png", *VIT, "-t", "boxer"), ("a dull film", *BERT, "-t", "good")])
def test_a_film_is_shown_and_written(terminal, run, tmp_path, given):
    files = [tmp_path / name for name in ("strip.png", "film.gif", "film.json")]
    result = run("transfer", *given, "--steps", 3, *(x for path in files for x in ("-o", path)))
    assert result.exit_code == 0, result.output
    assert "attention transfer: " in result.stdout
    assert len(json.loads(files[2].read_text())["scalar"]) == 4
    with Image.open(files[1]) as film:
        assert film.n_frames == 4
    assert files[0].read_bytes().startswith(b"\x89PNG")


def test_every_option_of_a_film_reaches_it(run, tmp_path):
    options = ("--eta", 0.01, "--steps", 2, "--direction", "toward", "--gradient", "leaf", "--renormalise")
    assert run("transfer", "cat.png", *VIT, *options, "-o", tmp_path / "film.json").exit_code == 0
    found = json.loads((tmp_path / "film.json").read_text())
    expected = {"eta": 0.01, "steps": 2, "direction": "toward", "gradient": "leaf", "renormalise": True}
    assert found["settings"] == expected
    assert found["deviation"] == 0


def test_a_picture_is_rewritten(terminal, run, place, tmp_path):
    loaded = load(str(place / "vit"))
    with Image.open(place / "cat.png") as image, torch.no_grad():
        second = loaded.model(**loaded.image(image).inputs).logits[0].argsort(descending=True)[1]
    name = loaded.class_name(int(second))
    files = {name: tmp_path / f"{name}.png" for name in ("output", "sheet", "difference")}
    named = [x for name, path in files.items() for x in (f"--{name}", path)]
    result = run("rewrite", "cat.png", *VIT, "-t", int(second), "--probability", 0.27, *named)
    assert result.exit_code == 0, result.output
    assert NOTICE in result.stdout
    for path in files.values():
        with Image.open(path) as image:
            assert NOTICE in image.text["Title"]
    answer = run("explain", files["output"], "--squash", *VIT).stdout.split("probability")[1]
    assert name in answer.splitlines()[2]


def test_a_folder_is_audited(run, place, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(2):
        Image.open(place / "cat.png").rotate(90 * number).save(folder / f"{number}.png")
    options = ("--linf", "8/255", "--linf", "1/255", "--steps", 3, "-o", tmp_path / "audit.json")
    result = run("rewrite", folder, *VIT, *options)
    assert result.exit_code == 0, result.output
    assert "Linf 1/255" in result.stdout
    assert NOTICE in result.stdout
    rows = json.loads((tmp_path / "audit.json").read_text())["rows"]
    assert [round(row["linf"] * 255) for row in rows] == [1, 8]
    (folder / "bad.png").write_bytes(b"no picture")
    broken = run("rewrite", folder, *VIT, "--l2", 0.5, "--steps", 1)
    assert broken.exit_code == 1
    assert "bad.png cannot be read" in broken.stderr


WRONG = [
    (("transfer", "cat.png", *VIT, "-t", "boxxer"), "Did you mean boxer"),
    (("transfer", "cat.png", *VIT, "--direction", "up"), "Known: away, toward"),
    (("transfer", "cat.png", *VIT, "--eta", 0), "above 0"),
    (("transfer", "cat.png", *VIT, "-o", "film.mp4"), "no known ending"),
    (("transfer", "vit", *VIT), "a film shows one input"),
    (("transfer", "dog.png", *VIT), "there is no file dog.png"),
    (("rewrite", "cat.png", *VIT), "--target CLASS"),
    (("rewrite", "cat.png", *VIT, "-t", "boxxer"), "Did you mean boxer"),
    (("rewrite", "cat.png", *VIT, "-t", "boxer", "--source", "boxer"), "source and target are both 'boxer'"),
    (("rewrite", "cat.png", *VIT, "-t", "boxer", "--linf", "two"), "such as 0.5, or 2/255"),
    (("rewrite", "cat.png", *VIT, "-t", "boxer", "--linf", "1/255", "--linf", "2/255"), "for a folder"),
    (("rewrite", "cat.png", *VIT, "-t", "boxer", "-o", "new.jpg"), "no known ending. Did you mean .png"),
    (("rewrite", "cat.png", *VIT, "-t", "boxer", "--probability", 2), "below 1"),
    (("rewrite", "vit/config.json", *VIT, "-t", "boxer"), "cannot be read as an image"),
    (("rewrite", "a dull film", *BERT, "-t", "good"), "reads text"),
    (("rewrite", "vit", *VIT, "--sheet", "sheet.png"), "--sheet is for one picture"),
    (("rewrite", "vit", *VIT), "there are no images"),
]


@pytest.mark.parametrize(("args", "words"), WRONG, ids=[words for _, words in WRONG])
def test_bad_input_is_one_line(run, args, words):
    assert words in failed(run(*args))


@pytest.mark.parametrize("command", ["transfer", "rewrite"])
def test_the_examples_of_the_help_are_not_broken(run, command):
    result = run(command, "--help", env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "Examples" in result.stdout
