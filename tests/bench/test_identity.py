"""Everything that decides a number is part of a run's identity."""

import csv
import json
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest
import torch
from PIL import Image
from saved_models import save_vit
from transformers import ViTForImageClassification

from vitrail.apps.cli.bench import note_older
from vitrail.capture.provenance import fingerprint
from vitrail.errors import EngineError
from vitrail.evaluate import bench, data
from vitrail.evaluate.bench.opened import example_hash, hash_of, set_hash, weights_hash
from vitrail.evaluate.bench.store import reading
from vitrail.evaluate.data.examples import Box, GoldAnswer, ImageExample, QuestionExample, Span, TextExample

ONE = {"trials": (bench.Trial("gae"),)}


@pytest.fixture
def own(place, tmp_path):
    """A copy of the models and data that may be changed."""
    for name in ("vit", "pets", "bert", "sst2"):
        shutil.copytree(place / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def pets_plan(plan_of, own):
    def make(**changes):
        given = {
            **ONE,
            "models": (bench.ModelSpec(str(own / "vit")),),
            "data": (bench.DataSpec("pets", str(own / "pets")),),
            "metrics": ("segmentation",),
        }
        return plan_of(**{**given, **changes})

    return make


def repaint(path, *, number=7):
    rng = np.random.default_rng(number)
    size = Image.open(path).size
    Image.fromarray(rng.integers(256, size=(size[1], size[0], 3), dtype=np.uint8)).save(path)


def other_picture(own):
    repaint(own / "pets" / "images" / "pug_3.jpg")


def other_mask(own):
    trimap = np.full((40, 48), 2, dtype=np.uint8)
    trimap[8:19, 3:17] = 1
    Image.fromarray(trimap).save(own / "pets" / "trimaps" / "pug_2.png")


def other_label(own):
    path = own / "pets" / "labels.csv"
    rows = list(csv.reader(path.open(newline="")))
    rows[2][1] = str((int(rows[2][1]) + 1) % 4)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def other_class_name(own):
    path = own / "pets" / "labels.csv"
    path.write_text(path.read_text().replace(",pug", ",dachshund"))


def other_weight(own):
    """One weight of one tensor, between those that a sample of 256 looks at."""
    model = ViTForImageClassification.from_pretrained(own / "vit")
    before = fingerprint(model)
    weight = model.vit.layers[0].mlp.fc1.weight if hasattr(model.vit, "layers") else biggest(model)
    weight.data.view(-1)[1] += 0.5
    assert fingerprint(model) == before or weight.numel() <= 512
    model.save_pretrained(own / "vit")


def biggest(model):
    return max(model.parameters(), key=lambda x: x.numel())


def other_config(own):
    change_json(own / "vit" / "config.json", layer_norm_eps=0.1)


def other_processor(own):
    change_json(own / "vit" / "preprocessor_config.json", image_mean=[0.1, 0.5, 0.5])


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


CHANGES = (
    other_picture, other_mask, other_label, other_class_name, other_weight, other_config, other_processor,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_what_decides_a_number_is_measured_anew(pets_plan, own, change):
    path = own / "r.db"
    assert bench.run(pets_plan(), path).fresh == 6
    assert bench.run(pets_plan(), path).fresh == 0
    old = bench.render(bench.tables(path))
    change(own)
    again = bench.run(pets_plan(), path)
    assert (again.fresh, again.done) == (6, 6)
    assert again.older == 3  # the method, and the rows random and centre
    assert bench.run(pets_plan(), path).fresh == 0
    made = bench.tables(path)
    assert len(made) == 2
    assert old in [bench.render([table]) for table in made]  # the old numbers are kept, and not mixed


@pytest.mark.parametrize("edit", [("\t1", "\t0"), ("film", "fox")], ids=["label", "word"])
def test_an_edited_text_or_label_is_measured_anew(text_plan_of, own, edit):
    path, file = own / "r.db", own / "sst2" / "dev.tsv"
    spec = {"data": (bench.DataSpec("sst2", str(file.parent)),), **ONE}
    assert bench.run(text_plan_of(**spec), path).fresh == 8
    lines = file.read_text().splitlines()
    place = next(i for i in reversed(range(1, len(lines))) if edit[0] in lines[i])
    lines[place] = lines[place].replace(*edit, 1)
    file.write_text("\n".join(lines) + "\n")
    assert bench.run(text_plan_of(**spec), path).fresh == 8


def test_another_tokenizer_is_another_run(text_plan_of, own):
    spec = {"models": (bench.ModelSpec(str(own / "bert")),), **ONE}
    bench.run(text_plan_of(**spec), own / "r.db")
    path = own / "bert" / "tokenizer.json"
    rules = json.loads(path.read_text())
    words = rules["model"]["vocab"]
    words["fox"], words["film"] = words["film"], words["fox"]
    path.write_text(json.dumps(rules))
    again = bench.run(text_plan_of(**spec), own / "r.db")
    assert again.fresh == 8
    assert again.changed == ("model",)


def test_data_put_back_finds_its_old_results(pets_plan, own):
    path, picture = own / "r.db", own / "pets" / "images" / "pug_3.jpg"
    before = picture.read_bytes()
    bench.run(pets_plan(), path)
    repaint(picture)
    bench.run(pets_plan(), path)
    picture.write_bytes(before)
    assert bench.run(pets_plan(), path).fresh == 0


def test_more_examples_go_on_and_a_change_among_those_measured_before_does_not(pets_plan, own):
    """With a limit only some examples are hashed; those that were measured before are hashed again beside them."""
    path = own / "r.db"
    assert bench.run(pets_plan(limit=3), path).fresh == 3  # 0, 2, 4
    assert bench.run(pets_plan(limit=6), path).fresh == 3
    repaint(own / "pets" / "images" / "pug_5.jpg")
    assert bench.run(pets_plan(limit=3), path).fresh == 3  # never mixed with a set that holds the old pug_5
    assert bench.run(pets_plan(limit=6), path).fresh == 3
    with reading(path) as store:
        counts = sorted(len(store.examples(run)) for run in store.runs())
        assert counts == [6] * 6  # the method and two priors, each twice


def test_an_example_that_was_never_measured_may_change(pets_plan, own):
    path = own / "r.db"
    bench.run(pets_plan(limit=3), path)
    repaint(own / "pets" / "images" / "pug_1.jpg")
    assert bench.run(pets_plan(limit=3), path).fresh == 0
    assert bench.run(pets_plan(limit=6), path).fresh == 3


def test_a_moved_folder_is_the_same_data(pets_plan, own):
    bench.run(pets_plan(), own / "r.db")
    (own / "pets" / "images" / "pug_4.jpg").write_bytes(b"broken")
    bench.run(pets_plan(), own / "r.db")
    shutil.move(own / "pets", own / "elsewhere")
    moved = pets_plan(data=(bench.DataSpec("pets", str(own / "elsewhere")),))
    assert bench.run(moved, own / "r.db").fresh == 0


def test_a_repaired_file_is_measured(pets_plan, own):
    picture = own / "pets" / "images" / "pug_4.jpg"
    whole = picture.read_bytes()
    picture.write_bytes(b"broken")
    assert bench.run(pets_plan(), own / "r.db").skipped == 3  # of the method and of two priors
    picture.write_bytes(whole)
    again = bench.run(pets_plan(), own / "r.db")
    assert (again.fresh, again.skipped) == (6, 0)


def test_data_that_changes_during_the_run_is_refused(pets_plan, own):
    def slow(units, work):
        for number, unit in enumerate(units):
            if number:
                repaint(own / "pets" / "images" / f"{unit.keys[0]}.jpg")
            yield work(unit)

    with pytest.raises(EngineError, match="pug_4 of pets is not what the driver read"):
        bench.run(pets_plan(), own / "r.db", engine=slow)


def test_a_file_of_version_0_1_0_opens_and_its_rows_are_kept(pets_plan, own, capsys):
    """Its runs lack what is hashed now, so they match nothing; they stay in tables of their own."""
    path = own / "r.db"
    bench.run(pets_plan(), path)
    with closing(sqlite3.connect(path)) as file, file:
        for number, (name, about) in enumerate(file.execute("SELECT id, about FROM runs").fetchall()):
            about = json.loads(about)
            del about["data"]["set"], about["model"]["setup"]
            file.execute("UPDATE results SET run = ? WHERE run = ?", (f"old {number}", name))
            file.execute("UPDATE runs SET id = ?, about = ? WHERE id = ?", (f"old {number}", json.dumps(about), name))
        file.execute("DROP TABLE contents")
    old = bench.render(bench.tables(path))
    found = bench.run(pets_plan(), path)
    assert (found.fresh, found.older) == (6, 3)
    assert set(found.changed) == {"data", "model"}
    assert len(bench.tables(path)) == 2
    assert old in [bench.render([table]) for table in bench.tables(path)]
    note_older(found, path)
    assert "3 older runs of the same names, which differ in data, model" in capsys.readouterr().err


def picture(pixels, **more):
    return ImageExample("key", lambda: Image.fromarray(pixels), **more)


def masked(values):
    return lambda: torch.tensor(values)


PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
TEXT = TextExample("k", "a b", label=1, rationale=(Span(0, 1),))
QUESTION = QuestionExample("k", "who", "a man", (GoldAnswer("man", 2),))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (picture(PIXELS), picture(PIXELS.reshape(3, 2, 3))),
        (picture(PIXELS), picture(PIXELS[::-1])),
        (picture(PIXELS), picture(PIXELS, label=0)),
        (picture(PIXELS, boxes=(Box(0.0, 0.0, 1.0, 1.0),)), picture(PIXELS, boxes=(Box(0.0, 0.0, 1.0, 2.0),))),
        (picture(PIXELS, boxes=(Box(0.0, 0.0, 1.0, 1.0, 3),)), picture(PIXELS, boxes=(Box(0.0, 0.0, 1.0, 1.0, 4),))),
        (picture(PIXELS, open_mask=masked([[0, 1]])), picture(PIXELS, open_mask=masked([[0], [1]]))),
        (picture(PIXELS, open_mask=masked([[0, 1]])), picture(PIXELS, open_mask=masked([[0, -1]]))),
        (picture(PIXELS, open_mask=masked([[0, 1]])), picture(PIXELS)),
        (TEXT, TextExample("k", "a b", label=0, rationale=(Span(0, 1),))),
        (TEXT, TextExample("k", "a b", label=1, rationale=(Span(0, 2),))),
        (TEXT, TextExample("k", "a  b", label=1, rationale=(Span(0, 1),))),
        (TextExample("k", "a", "b"), TextExample("k", "ab")),
        (QUESTION, QuestionExample("k", "who", "a man", (GoldAnswer("a", 0),))),
        (QUESTION, QuestionExample("k", "who ", "a man", (GoldAnswer("man", 2),))),
    ],
)
def test_two_examples_that_differ_in_one_thing_have_two_hashes(one, other):
    assert example_hash(one) != example_hash(other)


@pytest.mark.parametrize("name", ["pets", "sst2"])
def test_reading_again_gives_the_same_hashes(place, name):
    first, second = data.load(name, place / name), data.load(name, place / name)
    assert [hash_of(first, i) for i in first.order] == [hash_of(second, i) for i in second.order]
    assert len({hash_of(first, i) for i in first.order}) == len(first)
    assert set_hash(first) == set_hash(second)
    assert set_hash(first) != set_hash(first[::-1])


def test_every_single_weight_counts_and_the_place_does_not(tmp_path):
    save_vit(tmp_path / "vit")
    model = ViTForImageClassification.from_pretrained(tmp_path / "vit")
    before = weights_hash(model)
    assert weights_hash(ViTForImageClassification.from_pretrained(tmp_path / "vit")) == before
    weight = biggest(model).data.view(-1)
    for number in (0, 1, len(weight) // 2 + 1, len(weight) - 1):
        kept = float(weight[number])
        weight[number] = kept + 1
        assert weights_hash(model) != before
        weight[number] = kept
    assert weights_hash(model) == before
    assert weights_hash(model.bfloat16()) != before
