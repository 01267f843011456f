import json
import shutil

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.tools.guide import open_shipped

VIT = ("-m", "vit")


def failed(result):
    assert result.exit_code == 1, result.output
    (line,) = [x for x in result.stderr.splitlines() if not x.startswith(("loading ", "warning: "))]
    assert line.startswith("error: ")
    return line


@pytest.fixture(scope="module")
def zebra(place):
    noise = np.random.default_rng(1).integers(256, size=(90, 70, 3), dtype=np.uint8)
    Image.fromarray(noise).save(place / "zebra.png")
    return "zebra.png"


@pytest.fixture(scope="module")
def labelled(place):
    shutil.rmtree(place / "labelled", ignore_errors=True)  # a worker may come back to this file
    for name in ("boxer", "tabby", "unicorn"):
        (place / "labelled" / name).mkdir(parents=True)
        for number in range(2):
            Image.open(place / "cat.png").rotate(number * 90).save(place / "labelled" / name / f"{number}.png")
    (place / "labelled" / "boxer" / "bad.png").write_bytes(b"no picture")
    return "labelled"


@pytest.mark.parametrize("more", [(), ("--layout", "mosaic", "--side", "top_right"), ("--size", "native")])
def test_a_guided_map_is_drawn(run, zebra, more, tmp_path):
    result = run("guide", "cat.png", *VIT, "--guide", zebra, "-t", "boxer", "-o", tmp_path / "map.png", *more)
    assert result.exit_code == 0, result.stderr
    assert Image.open(tmp_path / "map.png").size[0] > 800


def test_the_numbers_are_those_of_python(run, place, zebra, tmp_path):
    result = run(
        "guide", "cat.png", *VIT, "--guide", zebra, "-t", "boxer", "--method", "gae", "-o", tmp_path / "a.json"
    )
    assert result.exit_code == 0, result.stderr
    from vitrail.models.loading import load
    from vitrail.models.loading.images import open_image

    loaded = load(str(place / "vit"))
    inputs, guide = (loaded.image(open_image(place / name)).inputs for name in ("cat.png", zebra))
    with pytest.warns(UserWarning, match="the guide|the model"):
        expected = vitrail.guide(loaded.model, inputs, guide, 1, method="gae")
    assert expected.scores.allclose(vitrail.Attribution.load(tmp_path / "a.json").scores)


def test_the_embedded_model_is_guided_by_the_package(terminal, run, tmp_path):
    open_shipped("temple").save(tmp_path / "temple.png")
    result = run("guide", tmp_path / "temple.png", "-m", "photo")
    assert result.exit_code == 0
    assert "strongest patches for church, guided by golf ball" in result.stdout
    assert "warning" not in result.stderr
    again = run("guide", tmp_path / "temple.png", "-m", "photo", "--guide", tmp_path / "temple.png")
    assert "warning: the guide shows the target itself, church" in again.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("guide", "cat.png", *VIT, "--guide", "lion.png"), "there is no guide at lion.png"),
        (("guide", "cat.png", *VIT, "--guide", "vit/config.json"), "cannot be read as an image"),
        (("guide", "cat.png", *VIT, "--layout", "round"), "there is no layout 'round'"),
        (("guide", "cat.png", *VIT, "--side", "top"), "no side 'top'"),
        (("guide", "cat.png", *VIT, "--size", "huge"), "there is no size 'huge'"),
        (("guide", "cat.png", *VIT, "-t", "boxxer"), "Did you mean boxer"),
        (("guide", "vit", *VIT), "takes one picture"),
        (("guide", "dog.png", *VIT), "there is no file dog.png"),
        (("guide", "cat.png", "-m", "bert"), "For text: vitrail detail"),
        (("detail", "cat.png", *VIT, "-t", "boxer", "--versus", "1"), "name the same class, boxer"),
        (("detail", "cat.png", *VIT, "--form", "sum"), "there is no form 'sum'"),
        (("detail", "cat.png", *VIT, "-t", "boxxer"), "Did you mean boxer"),
        (("detail", "vit", *VIT), "For a folder: vitrail audit"),
        (("detail", "cat.png", *VIT, "--top", "2"), "with -o"),
        (("detail", "cat.png", *VIT, "--top", "2", "-t", "boxer", "-o", "x.png"), "leave out --target"),
        (("detail", "cat.png", *VIT, "--top", "9", "-o", "x.png"), "2 to 4 classes"),
        (("detail", "a film", "-m", "question_bert"), "--question"),
        (("audit", "absent", *VIT), "there is no folder with a folder of pictures for each class at absent"),
        (("audit", "vit", *VIT), "no folder of pictures"),
        (("audit", "vit", "-m", "bert"), "reads text"),
        (("audit", "vit", *VIT, "-o", "x.png"), "no .html file"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(run, zebra, args, words):
    assert words in failed(run(*args))


def test_a_detail_names_its_classes_and_its_form(run, tmp_path):
    result = run("detail", "cat.png", *VIT, "-t", "boxer", "--versus", "tabby", "-o", tmp_path / "d.json")
    assert result.exit_code == 0
    assert "form: difference (" in result.stderr
    assert json.loads((tmp_path / "d.json").read_text())["target"]["name"] == "difference"


def test_details_of_a_text_are_coloured(run):
    result = run("detail", "the dull film .", "-m", "bert", "--form", "difference")
    assert result.exit_code == 0
    assert "blue: " in result.stdout
    assert "red: " in result.stdout


@pytest.mark.parametrize(("given", "model"), [("cat.png", "vit"), ("the dull film .", "bert")])
def test_a_matrix_is_drawn(run, tmp_path, given, model):
    result = run("detail", given, "-m", model, "--top", "3", "-o", tmp_path / "m.png")
    assert result.exit_code == 0, result.stderr
    assert min(Image.open(tmp_path / "m.png").size) > 200


def test_an_audit_is_a_page(run, labelled, tmp_path):
    result = run("audit", labelled, *VIT, "-o", tmp_path / "audit.html")
    assert result.exit_code == 0, result.stderr
    assert "4 pictures: " in result.stdout
    assert "left out the folder unicorn: the model has no class 'unicorn'" in result.stderr
    assert "could not read boxer/bad.png" in result.stderr
    assert (tmp_path / "audit.html").read_text().startswith("<!doctype html>")
