"""No command replaces what it reads, and two results never share a file."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from vitrail.apps.cli.explain import _names
from vitrail.apps.cli.options import check_not_replaced, distinct
from vitrail.errors import OutputError
from vitrail.models.loading import load

VIT = ("-m", "vit")


@pytest.fixture
def kept(place, run, tmp_path, monkeypatch):
    """Runs a command in a folder of its own, and checks that it changes nothing there and loads no model."""
    for name in ("vit", "bert"):
        shutil.copytree(place / name, tmp_path / name)
    (tmp_path / "d" / "boxer").mkdir(parents=True)
    for name in ("p.png", "p.gif", "zebra.png", "d/a.png", "d/b.png", "d/boxer/c.jpg"):
        Image.open(place / "cat.png").convert("RGB").save(tmp_path / name)
    (tmp_path / "link.png").symlink_to("p.png")
    (tmp_path / "page.html").symlink_to(tmp_path / "d" / "a.png")
    (tmp_path / "table.csv").symlink_to(tmp_path / "d" / "b.png")
    (tmp_path / "classes.html").symlink_to(tmp_path / "d" / "boxer" / "c.jpg")
    os.link(tmp_path / "p.png", tmp_path / "hard.png")
    monkeypatch.chdir(tmp_path)

    def refused(*args):
        before = contents(tmp_path)
        result = run(*args)
        assert result.exit_code == 1, result.output
        assert contents(tmp_path) == before
        assert "loading" not in result.stderr
        return result.stderr

    return refused


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


SAME = [
    ("explain", "p.png", *VIT, "-o", "p.png"),
    ("explain", "p.png", *VIT, "-o", "./d/../p.png"),
    ("explain", "p.png", *VIT, "-o", "link.png"),
    ("explain", "link.png", *VIT, "-o", "p.png"),
    ("explain", "p.png", *VIT, "-o", "hard.png"),
    ("explain", "p.png", *VIT, "-o", "vit/config.json"),
    ("explain", "d", *VIT, "-o", "d"),
    ("explain", "d/", *VIT, "-o", "./d/boxer/.."),
    ("compare", "d", *VIT, "-o", "d"),
    ("compare", "p.png", *VIT, "-o", "p.png"),
    ("guide", "p.png", *VIT, "-o", "p.png"),
    ("guide", "p.png", *VIT, "--guide", "zebra.png", "-o", "zebra.png"),
    ("detail", "p.png", *VIT, "-o", "p.png"),
    ("detail", "p.png", *VIT, "--top", "2", "-o", "link.png"),
    ("transfer", "p.png", *VIT, "-o", "p.png"),
    ("transfer", "p.gif", *VIT, "-o", "strip.png", "-o", "p.gif"),
    ("rewrite", "p.png", *VIT, "-t", "0", "-o", "p.png"),
    ("rewrite", "p.png", *VIT, "-t", "0", "-o", "new.png", "--sheet", "hard.png"),
    ("rewrite", "p.png", *VIT, "-t", "0", "-o", "new.png", "--difference", "p.png"),
    ("rewrite", "d", *VIT, "-o", "table.csv"),
    ("audit", "d", *VIT, "-o", "classes.html"),
    ("report", "d", *VIT, "-o", "page.html"),
]


@pytest.mark.parametrize("args", SAME, ids=" ".join)
def test_an_input_is_never_replaced(kept, args):
    words = kept(*args)
    assert "the input itself" in words or "same file as the input" in words or "folder of the images" in words


def test_maps_that_land_on_images_by_a_link_are_refused(kept):
    Path("maps").mkdir()
    (Path("maps") / "a.png").symlink_to(Path("d/a.png").absolute())
    assert "same file as the input" in kept("explain", "d", *VIT, "-o", "maps")


def test_two_results_of_one_command_need_two_files(kept):
    words = kept("rewrite", "p.png", *VIT, "-t", "0", "-o", "new.png", "--sheet", "./NEW.png")
    assert "two results" in words


def test_a_table_does_not_replace_its_results(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("r.db").write_bytes(b"results")
    for args in (("table", "r.db", "-o", "./r.db"), ("plot", "r.db", "-o", "r.db")):
        result = run("bench", *args)
        assert result.exit_code == 1
        assert "the input" in result.stderr
    assert Path("r.db").read_bytes() == b"results"


def test_a_result_may_replace_an_older_result(tmp_path):
    (tmp_path / "map.png").write_bytes(b"old")
    (tmp_path / "p.png").write_bytes(b"picture")
    check_not_replaced([tmp_path / "map.png", None], [tmp_path / "p.png", None, "a text", "x" * 5000, "nul\0"])
    with pytest.raises(OutputError, match="the input itself"):
        check_not_replaced([tmp_path / "p.png"], [tmp_path / "p.png"])


def test_two_classes_of_one_name_are_told_apart_by_their_index(run, place, tmp_path):
    """The model's classes 2 and 3 are called crane and Crane."""
    result = run("explain", "cat.png", *VIT, "-t", "2", "-t", "3", "--method", "gae", "-o", tmp_path / "m.json")
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m-Crane_3-gae.json", "m-crane_2-gae.json"]
    loaded = load(str(place / "vit"))
    assert [loaded.class_name(i) for i in (2, 3)] == ["crane (2)", "Crane (3)"]
    assert "(" not in loaded.class_name(0)


def test_one_method_twice_writes_two_files(run, tmp_path):
    run("explain", "cat.png", *VIT, "--method", "gae", "--method", "gae", "-o", tmp_path / "m.npz")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m-gae-2.npz", "m-gae.npz"]


@pytest.mark.parametrize(
    "names",
    [
        ["a", "a", "a-2", "a"],
        ["crane", "Crane", "CRANE"],
        ["a-2", "a", "a"],
        ["a", "A-2", "a"],
        ["x"] * 5,
    ],
)
def test_distinct_names_differ_also_where_case_does_not_count(names):
    found = distinct(names)
    assert len({name.casefold() for name in found}) == len(names)
    assert found[0] == names[0]


def test_images_that_share_a_stem_or_look_like_a_map_get_names_of_their_own():
    images = [Path(name) for name in ("a.jpg", "a.png", "a.png.png", "A.gif", "b.jpg", "B.png.jpg", "b.png")]
    names = _names(images)
    assert len({name.casefold() for name in names.values()}) == len(images)
