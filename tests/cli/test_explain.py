import json

import pytest
from PIL import Image
from saved_models import ARCH

import vitrail
from vitrail.methods import READABLE
from vitrail.models.loading import load


def test_an_image_is_explained_in_the_terminal(terminal, run):
    result = run("explain", "cat.png", "-m", "vit", "-t", "Tabby Cat", "--method", "gae", "--method", "rollout")
    assert result.exit_code == 0
    assert "strongest patches for tabby" in result.stdout
    assert all(word in result.stdout for word in ("probability", "gae", "rollout", "boxer"))


@pytest.mark.parametrize("ending", [".png", ".pdf", ".html"])
@pytest.mark.parametrize("given", [("cat.png", "-m", "vit"), ("a dull film", "-m", "bert")])
def test_the_ending_decides_what_is_written(run, tmp_path, ending, given):
    path = tmp_path / f"out{ending}"
    assert run("explain", *given, "--method", "gae", "--method", "attcat", "-o", path).exit_code == 0
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF", ".html": b"<!doctype html>"}
    assert path.read_bytes().startswith(starts[ending])


@pytest.mark.parametrize("ending", [".json", ".npz"])
def test_the_numbers_are_those_of_the_library(run, place, tmp_path, ending):
    path = tmp_path / f"out{ending}"
    assert run("explain", "a dull film", "-m", "bert", "-t", "good", "--method", "gae", "-o", path).exit_code == 0
    loaded = load(str(place / "bert"))
    expected = vitrail.explain(loaded.model, loaded.text("a dull film").inputs, "gae", target=1)
    found = vitrail.Attribution.load(path)
    assert found.tokens == expected.tokens
    assert bool((found.scores == expected.scores).all())


def test_several_methods_and_targets_become_several_files_of_numbers(run, tmp_path):
    methods = ("--method", "gae", "--method", "gradtoken(scheme=none,heads=mean)")
    result = run("explain", "cat.png", "-m", "vit", *methods, "-t", "boxer", "-t", 0, "-o", tmp_path / "o.json")
    assert result.exit_code == 0
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {
        f"o-{target}-{method}.json"
        for target in ("boxer", "tabby")
        for method in ("gae", "gradtoken_scheme=none_heads=mean")
    }


def test_one_method_may_appear_with_two_sets_of_options(run, tmp_path):
    methods = ("--method", "tokentm", "--method", "tokentm(ffn=false)")
    model = ("-m", "weights.safetensors", "--arch", ARCH)
    assert run("explain", "cat.png", *model, *methods, "-o", tmp_path / "two.html").exit_code == 0
    page = (tmp_path / "two.html").read_text()
    assert "<strong>tokentm</strong>" in page
    assert "<strong>tokentm(ffn=False)</strong>" in page


def test_compare_takes_a_readable_set_of_methods_for_every_target_the_default_first(run, tmp_path):
    path = tmp_path / "c.json"
    result = run("compare", "cat.png", "-m", "vit", "-t", "boxer", "-t", 0, "-o", path)
    assert result.exit_code == 0, result.output
    wrote = [line.removeprefix("wrote ") for line in result.stderr.splitlines()]
    assert len(wrote) == len(list(tmp_path.iterdir())) == 2 * len(READABLE["image"])
    assert wrote[0].endswith("c-boxer-consensus.json")
    assert len(READABLE["image"]) <= 6


def test_versus_explains_a_difference(run, tmp_path):
    assert (
        run("explain", "a film", "-m", "bert", "-t", "good", "--versus", "bad", "-o", tmp_path / "d.json").exit_code
        == 0
    )
    target = json.loads((tmp_path / "d.json").read_text())["target"]
    assert (target["name"], target["first"], target["second"]) == ("difference", [1], [0])


def test_text_comes_from_the_argument_a_file_or_stdin(terminal, run, tmp_path):
    (tmp_path / "film.txt").write_text("a dull film\n", encoding="utf-8")
    ways = [run("explain", "a dull film", "-m", "bert"), run("explain", tmp_path / "film.txt", "-m", "bert")]
    ways.append(run("explain", "-", "-m", "bert", input="a dull film\n"))
    assert {way.exit_code for way in ways} == {0}
    assert len({way.stdout for way in ways}) == 1
    assert "[CLS] a dull film [SEP]" in ways[0].stdout


def test_pairs_questions_and_next_tokens(terminal, run):
    pair = run("explain", "a man", "--pair", "the fox", "-m", "bert")
    assert "[CLS] a man [SEP] the fox [SEP]" in pair.stdout
    asked = run("explain", "--question", "who sleeps", "--context", "the fox", "-m", "question_bert")
    assert "answer" in asked.stdout
    assert run("compare", "the fox", "--question", "who sleeps", "-m", "question_bert").exit_code == 0
    assert "[CLS] who sleeps [SEP] the fox [SEP]" in asked.stdout
    assert "'fox' rather than 'man'" in run("explain", "the quick", "-m", "gpt2", "-t", "fox", "--versus", "man").stdout


def test_a_broken_file_does_not_stop_a_folder(run, place, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.png", "b.png", "b.jpg"):
        Image.open(place / "cat.png").save(folder / name)
    (folder / "broken.jpg").write_bytes(b"nothing")
    (folder / "notes.txt").write_text("no image")
    result = run("explain", folder, "-m", "vit", "-o", tmp_path / "maps")
    assert result.exit_code == 1
    assert "wrote 3 of 4" in result.stderr
    assert "broken.jpg cannot be read" in result.stderr
    assert {p.name for p in (tmp_path / "maps").iterdir()} == {"a.png", "b.png.png", "b.jpg.png"}
    (folder / "broken.jpg").unlink()
    assert run("explain", folder, "-m", "vit", "-o", tmp_path / "maps").exit_code == 0


def test_a_default_method_that_the_model_cannot_give_is_left_out(run, monkeypatch):
    wanted = [("gae", {}), ("gradtoken", {"depth": 9})]
    monkeypatch.setattr("vitrail.apps.cli.session.readable_set", lambda preset, kind: wanted)
    result = run("compare", "cat.png", "-m", "vit")
    assert result.exit_code == 0
    assert "left out gradtoken: depth=9" in result.stderr


@pytest.mark.parametrize("command", ["explain", "compare"])
def test_auto_and_a_number_of_blocks_are_understood(run, tmp_path, command):
    given = ("--method", "auto", "--method", "le_grad(blocks=1)", "--method", "auto(power=1)")
    result = run(command, "cat.png", "-m", "vit", *given, "-o", tmp_path / "m.json")
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["m-consensus.json", "m-consensus_power=1.0.json", "m-le_grad_blocks=1.json"]


def test_a_folder_becomes_a_data_set_that_is_resumed(run, place, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    folder, maps = tmp_path / "photos", tmp_path / "maps"
    folder.mkdir()
    for name in ("a.png", "b.jpg"):
        Image.open(place / "cat.png").save(folder / name)
    (folder / "broken.jpg").write_bytes(b"nothing")
    command = ("explain", folder, "-m", "vit", "--method", "gae", "-t", "1", "-o", maps, "--format", "parquet")
    result = run(*command)
    assert result.exit_code == 1
    assert "left out: broken.jpg" in result.stderr
    (folder / "broken.jpg").unlink()
    result = run(*command)
    assert result.exit_code == 0
    assert "2 images in" in result.stderr
    assert "0 of them explained now" in result.stderr
    rows = parquet.read_table(maps).to_pylist()
    assert [(row["name"], row["target"], row["method"]) for row in rows] == [("a.png", 1, "gae"), ("b.jpg", 1, "gae")]
    assert "another run (names" in run(*command, "--squash").stderr
    Image.open(place / "cat.png").save(folder / "c.png")
    assert "another run (names" in run(*command).stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--format", "parquet"), "is for a folder"),
        (("--format", "csv"), "is not a choice"),
        (("--engine", "ray"), "--format parquet"),
        (("--ray-address", "127.0.0.1:1"), "is for --engine ray"),
        (("--ray-workers", "2"), "is for --engine ray"),
    ],
)
def test_formats_are_for_folders(run, more, words):
    result = run("explain", "cat.png", "-m", "vit", *more)
    assert result.exit_code == 1
    assert words in result.stderr


def test_the_map_lies_over_the_photograph_and_not_over_what_was_cut_out_of_it(run, place, tmp_path):
    wide = tmp_path / "wide.png"
    Image.open(place / "cat.png").resize((600, 200)).save(wide)
    assert run("explain", wide, "-m", "photo", "--method", "gae", "-o", tmp_path / "map.png").exit_code == 0
    width, height = Image.open(tmp_path / "map.png").size
    assert width > 1.5 * height
    squeezed = ("--squash", "-o", tmp_path / "squeezed.html")
    assert run("explain", wide, "-m", "photo", "--method", "gae", *squeezed).exit_code == 0
