import json
import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from saved_models import save_bert, save_vit
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
)
from type_checks import unchecked

import vitrail
from vitrail import compare, targets
from vitrail.api import explainer
from vitrail.apps.web import removing
from vitrail.capture.recording.forward import predict
from vitrail.errors import MethodError, OptionError
from vitrail.evaluate import bench, data, metrics
from vitrail.evaluate.bench import worker
from vitrail.evaluate.bench.store import reading
from vitrail.evaluate.data import resize_mask
from vitrail.evaluate.metrics import texts
from vitrail.evaluate.stitch import open_shipped
from vitrail.models.loading import load
from vitrail.plots import report


def values(path, label, metric):
    """Key -> stored value of a metric, for the one run of a method."""
    with reading(path) as store:
        (run,) = (run for run, about in store.runs().items() if about["method"]["label"] == label)
        return {key: value for key, name, value, _ in store.results(run) if name == metric}


def pets_inputs(place):
    """The pets as the papers show them to a model: squashed, in 0..1, with masks and labels."""
    loaded, pets = load(str(place / "vit")), data.load("pets", place / "pets")
    pictures = [loaded.image(example.image, squash=True).picture for example in pets]
    images = torch.stack([torch.from_numpy(np.array(p)).permute(2, 0, 1) / 255 for p in pictures])
    masks = torch.stack([resize_mask(example.mask, (32, 32)) for example in pets])
    return loaded.model, images, masks, torch.tensor([example.label for example in pets])


def test_a_table_holds_the_numbers_of_direct_calls(place, plan_of, tmp_path):
    bench.run(plan_of(), tmp_path / "r.db")
    model, images, masks, labels = pets_inputs(place)

    def score(x):
        return model((x - 0.5) / 0.5).logits

    with torch.no_grad():
        predicted = score(images).argmax(dim=1)
    (gae,) = compare(model, (images - 0.5) / 0.5, ["gae"], predicted)
    maps = gae.scores.reshape(-1, 4, 4)
    expected = metrics.segmentation(maps, masks)
    curve = metrics.perturbation_curve(score, images, maps, labels, levels=np.arange(10) / 10)
    negative = metrics.perturbation_curve(score, images, maps, labels, levels=np.arange(10) / 10, order="negative")
    (table,) = bench.tables(tmp_path / "r.db")
    (row,) = (row for name, row in table.rows if name == "gae")
    found = {column.name: estimate.value for column, estimate in zip(table.columns, row, strict=True)}
    np.testing.assert_allclose(
        [found[name] for name in ("pixel accuracy", "mIoU", "mAP", "mF1", "positive AUC", "negative AUC")],
        [
            100 * expected.pixel_accuracy,
            100 * expected.mean_iou,
            100 * expected.mean_ap,
            100 * expected.mean_f1,
            metrics.area(curve.hits),
            metrics.area(negative.hits),
        ],
        rtol=1e-4,  # single precision, other batches
    )
    rows = values(tmp_path / "r.db", "gae", "positive")
    hits = np.array([row["hits"] for row in rows.values()])
    assert len(np.unique(hits, axis=0)) > 2  # else swapped axes would not be seen
    assert len(np.unique(hits, axis=1)) > 2
    np.testing.assert_array_equal(hits, curve.hits.T)
    likely = metrics.perturbation_curve(score, images, maps, predicted, levels=np.arange(10) / 10).probability
    np.testing.assert_allclose([row["probability"] for row in rows.values()], likely.T, rtol=1e-4)


def test_text_rows_are_those_of_direct_calls(place, text_plan_of, tmp_path):
    bench.run(text_plan_of(trials=(bench.Trial("gae"),)), tmp_path / "r.db")
    loaded, reviews = load(str(place / "bert")), data.load("sst2", place / "sst2")
    rows = values(tmp_path / "r.db", "gae", "text_deletion")
    assert list(rows) == reviews.keys
    for example in reviews:
        inputs = loaded.text(example.text).inputs
        (gae,) = compare(loaded.model, inputs, ["gae"], example.label)
        curve = metrics.text_curve(
            lambda ids, mask: loaded.model(input_ids=ids, attention_mask=mask).logits,
            [inputs["input_ids"][0]],
            [gae.scores[0]],
            [example.label],
            special={0, 2, 3},
            mode="attcat",
        )
        np.testing.assert_allclose(rows[example.key]["p_k"], curve.p_k[0], rtol=1e-4)


def saved_classifier(folder, kind):
    """BERT with special tokens, or GPT-2 without; its tokenizer has one mark for all ends, or an unknown word too."""
    if kind == "bert":
        model, tokenizer = BertForSequenceClassification.from_pretrained(save_bert(folder)), None
    else:
        marks = ["<end>"] if kind == "gpt2" else ["<end>", "<unk>"]
        words = WordLevel({word: i for i, word in enumerate([*marks, *SPOKEN])}, unk_token=marks[-1])
        inner = Tokenizer(words)
        inner.pre_tokenizer = Split(" ", "removed")
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=inner, unk_token=marks[-1], bos_token="<end>", eos_token="<end>", pad_token="<end>"
        )
        if kind == "no_unk":
            tokenizer.unk_token = None
        tokenizer.save_pretrained(folder)
        size = {"vocab_size": len(marks) + len(SPOKEN), "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3}
        ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        model = GPT2ForSequenceClassification(GPT2Config(**size, **ends))
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.4, generator=torch.Generator().manual_seed(weight.numel()))
    model.save_pretrained(folder)
    return folder


SPOKEN = ["the", "quick", "brown", "fox", "sleeps", "."]
TEXT = "the quick zzz fox sleeps ."


@pytest.mark.parametrize(
    ("kind", "kept"),
    [("bert", [2, 3]), ("gpt2", [0]), ("gpt2_unk", []), ("no_unk", [])],  # GPT-2's one mark is no ordinary word
)
def test_the_page_the_report_and_the_bench_remove_the_same_words(kind, kept, tmp_path, text_plan_of, monkeypatch):
    """The page once kept words that the tokenizer does not know: the curves of one sentence differed."""
    text = TEXT if kind != "no_unk" else TEXT.replace("zzz", "brown")
    folder = saved_classifier(tmp_path / "model", kind)
    (tmp_path / "one.txt").write_text(text)
    left, plain = [], texts.perturbed_ids
    monkeypatch.setattr(texts, "perturbed_ids", lambda *a, **k: left.append(plain(*a, **k)) or left[-1])

    plan = text_plan_of(
        models=(bench.ModelSpec(str(folder)),),
        data=(bench.DataSpec("sentences", str(tmp_path / "one.txt")),),
        trials=(bench.Trial("gae"),),
        protocols=bench.protocols_of(("vitrail",)),
        metrics=("text_deletion",),
    )
    bench.run(plan, tmp_path / "r.db")
    (measured,) = values(tmp_path / "r.db", "gae", "text_deletion").values()

    loaded = load(str(folder))
    (entry,) = report.of_inputs(loaded, tmp_path / "one.txt", "gae", curves=True).entries

    opened = SimpleNamespace(loaded=loaded)
    opened.twin = opened
    case = SimpleNamespace(kind="text", opened=opened, sample=loaded.text(text))
    gae = vitrail.explain(loaded.model, case.sample.inputs, "gae")
    with unchecked():
        (on_page,) = removing._curves(case, int(gae.target.first[0]), gae, gae.scores.double(), "")
        removed_at, _ = removing._removed_tokens(case, gae, gae.scores.double())

    np.testing.assert_allclose(on_page, measured["p_k"], rtol=1e-4)
    np.testing.assert_allclose(on_page, entry.rows[0].maps[0].curve, rtol=1e-4)
    assert np.ptp(on_page) > 0.01
    ids = case.sample.inputs["input_ids"][0].numpy()
    assert ids[removed_at == 255].tolist() == kept
    assert [levels[-1].tolist() for levels in left if len(levels) == 11] == [kept or [0]] * len(left)


def test_the_page_the_report_and_the_bench_have_the_same_curve_of_a_picture(place, plan_of, tmp_path, monkeypatch):
    folder = tmp_path / "pictures"
    folder.mkdir()
    open_shipped("temple").save(folder / "temple.png")
    (protocol,) = bench.protocols_of(("vitrail",))
    plan = plan_of(
        data=(bench.DataSpec("pictures", str(folder)),),
        trials=(bench.Trial("gae"),),
        protocols=(protocol.with_(levels=list(removing.LEVELS), view="crop", units="patches"),),
        metrics=("positive",),
    )
    bench.run(plan, tmp_path / "r.db")
    (measured,) = values(tmp_path / "r.db", "gae", "positive").values()

    loaded = load(str(place / "vit"))
    sample = loaded.image(open_shipped("temple"))
    best = targets.logit(int(predict(loaded.model, sample.inputs).logits.argmax()))
    (entry,) = report.of_inputs(loaded, folder, "gae", targets=[best], curves=True).entries

    opened = SimpleNamespace(loaded=loaded)
    opened.twin = opened
    case = SimpleNamespace(kind="image", opened=opened, sample=sample)
    gae = vitrail.explain(loaded.model, sample.inputs, "gae", best)
    label = int(gae.target.first[0])
    with unchecked():
        (on_page,) = removing._curves(case, label, gae, gae.scores, "black")
        monkeypatch.setattr(removing, "unit_of", lambda like: "pixels")  # as the report removes them
        (of_pixels,) = removing._curves(case, label, gae, gae.scores, "black")

    assert np.ptp(on_page) > 0.01
    np.testing.assert_allclose(on_page, measured["probability"], rtol=1e-5)
    np.testing.assert_allclose(of_pixels, entry.rows[0].maps[0].curve, rtol=1e-5)


def test_a_second_run_computes_nothing_and_changes_nothing(plan_of, tmp_path, monkeypatch):
    path = tmp_path / "r.db"
    first = bench.run(plan_of(), path)
    before = path.read_bytes()
    monkeypatch.setattr(explainer, "compare", None)
    again = bench.run(plan_of(), path)
    assert (first.fresh, again.fresh, again.done) == (6, 0, 6)
    assert path.read_bytes() == before


def test_more_methods_metrics_or_examples_leave_old_rows_alone(plan_of, tmp_path):
    path = tmp_path / "r.db"
    bench.run(plan_of(limit=3, metrics=("segmentation",)), path)
    old = values(path, "gae", "segmentation")
    bench.run(plan_of(trials=(bench.Trial("gae"), bench.Trial("attcat"))), path)
    new = values(path, "gae", "segmentation")
    assert len(old) == 3
    assert len(new) == 6
    assert {key: new[key] for key in old} == old
    assert len(values(path, "gae", "positive")) == 6
    assert len(values(path, "rollout", "segmentation")) == 3
    assert len(bench.tables(path)) == 1


def test_other_options_are_other_rows(plan_of, tmp_path):
    path = tmp_path / "r.db"
    for scheme in ("none", "average_matmul"):
        bench.run(plan_of(trials=(bench.Trial("gradtoken", {"scheme": scheme}),)), path)
    assert len(values(path, "gradtoken(scheme=none)", "positive")) == len(values(path, "gradtoken", "positive")) == 6
    (table,) = bench.tables(path)
    assert [name for name, _ in table.rows] == ["centre", "gradtoken", "gradtoken(scheme=none)", "random"]


def test_an_option_given_with_its_default_is_the_same_run(plan_of, tmp_path):
    bench.run(plan_of(trials=(bench.Trial("gradtoken"),)), tmp_path / "r.db")
    again = bench.run(plan_of(trials=(bench.Trial("gradtoken", {"depth": 1}),)), tmp_path / "r.db")
    assert again.fresh == 0


def test_another_model_of_the_same_name_is_never_mixed_in(plan_of, tmp_path):
    path = tmp_path / "r.db"
    for seed, folder in enumerate(("one", "two")):
        torch.manual_seed(seed)
        (tmp_path / folder).mkdir()
        save_vit(tmp_path / folder / "vit")
        bench.run(plan_of(models=(bench.ModelSpec(str(tmp_path / folder / "vit")),), limit=2), path)
    one, two = bench.tables(path)
    assert one.title == two.title
    assert one.notes[1] != two.notes[1]  # the hash of the weights


def test_broken_examples_are_counted_and_the_others_measured(place, plan_of, tmp_path):
    pets = tmp_path / "pets"
    shutil.copytree(place / "pets", pets)
    (pets / "images" / "pug_1.jpg").write_bytes(b"no picture")
    shutil.copy(place / "pets" / "trimaps" / "pug_2.png", pets / "trimaps" / "pug_2.png")
    empty(pets / "trimaps" / "pug_2.png")
    found = bench.run(plan_of(data=(bench.DataSpec("pets", str(pets)),)), tmp_path / "r.db")
    # Both methods and both priors: all three metrics of one picture, segmentation of another.
    assert found.skipped == 4 * (3 + 1)
    (table,) = bench.tables(tmp_path / "r.db")
    estimates = dict(zip([c.name for c in table.columns], table.rows[0][1], strict=True))
    assert (estimates["mIoU"].count, estimates["positive AUC"].count) == (4, 5)
    note = table.notes[-1]
    assert note.startswith("Skipped: 8 results of 2 examples")
    assert "pug_1: " in note
    assert "pug_2: the mask has no foreground" in note


def empty(path):
    from PIL import Image

    with Image.open(path) as mask:
        size = mask.size
    Image.new("L", size, 2).save(path)


def test_a_map_of_nan_is_skipped_with_its_reason(plan_of, tmp_path, monkeypatch):
    real = worker._shown

    def spoiled(batch, trial, attribution, classes):
        shown = real(batch, trial, attribution, classes)
        if attribution.method == "gae":
            shown.maps[1] = torch.nan
        return shown

    monkeypatch.setattr(worker, "_shown", spoiled)
    bench.run(plan_of(batch=6), tmp_path / "r.db")
    assert values(tmp_path / "r.db", "gae", "segmentation")["pug_1"] is None
    assert sum(v is not None for v in values(tmp_path / "r.db", "gae", "positive").values()) == 5
    assert sum(v is not None for v in values(tmp_path / "r.db", "rollout", "positive").values()) == 6


def test_a_method_the_model_cannot_give_does_not_stop_the_others(plan_of, tmp_path):
    trials = (bench.Trial("gae"), bench.Trial("gradtoken", {"depth": 9}))
    bench.run(plan_of(trials=trials, limit=2), tmp_path / "r.db")
    (table,) = bench.tables(tmp_path / "r.db")
    rows = dict(table.rows)
    assert rows["gradtoken(depth=9)"] == (None,) * len(table.columns)
    assert all(rows["gae"])
    assert "depth=9" in table.notes[-1]


def test_an_expensive_method_is_measured_on_a_subset(plan_of, tmp_path):
    trials = (bench.Trial("gae"), bench.Trial("rollout", subset=2))
    bench.run(plan_of(trials=trials), tmp_path / "r.db")
    assert list(values(tmp_path / "r.db", "rollout", "positive")) == ["pug_0", "pug_3"]
    assert len(values(tmp_path / "r.db", "gae", "positive")) == 6


def test_data_and_methods_are_known_by_their_options_also_by_lists():
    for spec in (bench.DataSpec, bench.Trial):
        found = {spec(name="name", options={"classes": [number]}) for number in (1, 2, 1)}
        assert len(found) == 2


def test_one_recording_serves_all_methods_and_protocols(plan_of, tmp_path, monkeypatch):
    calls = []
    real = explainer.compare

    def counted(model, inputs, methods, *rest, **more):
        calls.append(len(methods))
        return real(model, inputs, methods, *rest, **more)

    monkeypatch.setattr(explainer, "compare", counted)
    protocols = bench.protocols_of(("chefer", "gradtoken", "vtranm"))
    bench.run(plan_of(protocols=protocols, batch=6), tmp_path / "r.db")
    assert calls == [2]


def test_the_explained_class_can_be_chosen(plan_of, tmp_path):
    bench.run(plan_of(target="label", metrics=("positive",)), tmp_path / "r.db")
    (table,) = bench.tables(tmp_path / "r.db")
    assert "protocol chefer(target=label)" in table.title
    assert table.notes[0].endswith("explained class label.")


def test_road_is_measured_in_both_orders(plan_of, tmp_path):
    bench.run(plan_of(trials=(bench.Trial("gae"),), metrics=("road_positive", "road_negative")), tmp_path / "r.db")
    (table,) = bench.tables(tmp_path / "r.db")
    assert [column.title for column in table.columns] == ["ROAD positive accuracy ↓", "ROAD negative accuracy ↑"]
    first = values(tmp_path / "r.db", "gae", "road_positive")["pug_0"]
    assert len(first["hits"]) == len(first["probability"]) == 10
    assert first["hits"][0] in (0, 1)


def test_insertion_boxes_and_patches_run(plan_of, tmp_path):
    every = ("segmentation", "pointing", "positive", "insertion", "deletion")
    bench.run(plan_of(metrics=every, limit=2, protocols=bench.protocols_of(("cui",))), tmp_path / "r.db")
    (table,) = bench.tables(tmp_path / "r.db")
    names = [column.name for column in table.columns]
    assert {"pointing", "positive AUC", "insertion", "deletion"} <= set(names)


def test_questions_are_measured_by_the_tokens_of_the_answer(place, plan_of, tmp_path):
    context = "the quick brown fox sleeps ."
    qas = [
        {"id": "a", "question": "who sleeps", "answers": [{"text": "brown fox", "answer_start": 10}]},
        {"id": "b", "question": "who", "answers": []},
    ]
    content = {"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(content))
    plan = plan_of(
        models=(bench.ModelSpec(str(place / "asker")),),
        data=(bench.DataSpec("squad2", str(tmp_path / "dev.json")),),
        protocols=bench.protocols_of(("attcat",)),
    )
    assert bench.run(plan, tmp_path / "r.db").skipped == 4  # both methods and both priors
    assert values(tmp_path / "r.db", "gae", "precision_at_k") == {"a": {"answer": 2, "count": 2}, "b": None}


def test_rationales_are_measured_word_by_word(place, plan_of, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "r1").write_text("the dull film sleeps\nthe quick brown fox")
    evidence = [[{"start_token": 1, "end_token": 3}]]
    line = {"annotation_id": "r1", "classification": "NEG", "evidences": evidence}
    (tmp_path / "val.jsonl").write_text(json.dumps(line))
    plan = plan_of(
        models=(bench.ModelSpec(str(place / "bert")),),
        data=(bench.DataSpec("eraser_movies", str(tmp_path)),),
        protocols=bench.protocols_of(("gradtoken",)),
    )
    bench.run(plan, tmp_path / "r.db")
    (row,) = values(tmp_path / "r.db", "gae", "token_f1").values()
    assert row == {"hits": [2] * 8, "chosen": [8] * 8, "gold": 2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"protocols": bench.protocols_of(("attcat",))},
            r"attcat measures .* the data here is pets \(image with label",
        ),
        ({"metrics": ("token_f1",)}, "measures token_f1, but the data here is pets"),
        ({"metrics": ("positiv",)}, "Did you mean positive"),
        ({"data": (bench.DataSpec("pets"),)}, "the path of pets is missing"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_runs(plan_of, tmp_path, changes, words):
    with pytest.raises(OptionError, match=words):
        bench.run(plan_of(**changes), tmp_path / "r.db")
    assert not (tmp_path / "r.db").exists()


def test_a_model_and_data_of_another_kind_are_refused(plan_of, text_plan_of, tmp_path):
    with pytest.raises(OptionError, match=r"vit reads image data, but the data here is sst2"):
        bench.run(plan_of(data=text_plan_of().data), tmp_path / "r.db")
    with pytest.raises(MethodError, match="tis explains image inputs"):
        bench.run(text_plan_of(trials=(bench.Trial("tis"),)), tmp_path / "r.db")
    own = (bench.DataSpec("pictures", str(tmp_path)),)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(OptionError, match="explains the label, but the data here is pictures"):
        bench.run(plan_of(data=own, protocols=bench.protocols_of(("cui",))), tmp_path / "r.db")


def test_a_plan_says_what_it_lacks(plan_of):
    for changes, words in (
        ({"trials": ()}, "needs methods or an ablation"),
        ({"models": ()}, "needs models"),
        ({"dtype": "float8"}, "there is no dtype"),
        ({"batch": 0}, "a whole number from 1"),
        ({"ablation": "vtram"}, "Did you mean vtranm"),
    ):
        with pytest.raises(OptionError, match=words):
            plan_of(**changes)


def test_a_worker_and_its_unit_can_be_sent_elsewhere(plan_of, tmp_path):
    sent = []

    def elsewhere(units, work):
        for unit in units:
            sent.append(unit)
            yield pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(unit)))))

    bench.run(plan_of(), tmp_path / "sent.db", engine=elsewhere)
    bench.run(plan_of(), tmp_path / "here.db")
    assert len(sent) == 2
    texts = [bench.render(bench.tables(tmp_path / f"{name}.db")) for name in ("sent", "here")]
    assert texts[0] == texts[1]


def test_units_may_finish_in_any_order_and_twice(plan_of, tmp_path):
    def disorderly(units, work):
        finished = [work(unit) for unit in units]
        yield from [*reversed(finished), finished[0]]

    bench.run(plan_of(batch=2), tmp_path / "wild.db", engine=disorderly)
    bench.run(plan_of(batch=2), tmp_path / "tame.db")
    texts = [bench.render(bench.tables(tmp_path / f"{name}.db")) for name in ("wild", "tame")]
    assert texts[0] == texts[1]


def test_a_label_the_model_does_not_know_is_no_miss_but_skipped(place, plan_of, tmp_path):
    pets = tmp_path / "pets"
    shutil.copytree(place / "pets", pets)
    labels = (pets / "labels.csv").read_text().replace("pug_0,0,", "pug_0,254,")
    (pets / "labels.csv").write_text(labels)
    bench.run(plan_of(data=(bench.DataSpec("pets", str(pets)),), trials=(bench.Trial("gae"),)), tmp_path / "r.db")
    assert values(tmp_path / "r.db", "gae", "positive")["pug_0"] is None
    assert values(tmp_path / "r.db", "gae", "segmentation")["pug_0"] is not None
    assert "the label 254 is none of the model's 4 classes" in bench.tables(tmp_path / "r.db")[0].notes[-1]


def test_half_precision_is_another_run(plan_of, tmp_path):
    for dtype in ("float32", "bfloat16"):
        bench.run(plan_of(dtype=dtype, limit=2), tmp_path / "r.db")
    notes = [table.notes[1] for table in bench.tables(tmp_path / "r.db")]
    assert ["bfloat16" in note for note in notes] == [True, False]


def test_ablations_expand_to_the_blocks_of_the_model(plan_of, tmp_path):
    bench.run(plan_of(trials=(), ablation="gradtoken", limit=1, metrics=("segmentation",)), tmp_path / "r.db")
    (table,) = bench.tables(tmp_path / "r.db")
    assert len(table.rows) == 2 + 6  # priors, five schemes, the plain mean of heads; two blocks leave no other depth
    bench.run(plan_of(trials=(), ablation="vtranm", limit=1, metrics=("segmentation",)), tmp_path / "v.db")
    assert len(bench.tables(tmp_path / "v.db")[0].rows) == 2 + 6


def test_a_text_of_which_the_tokenizer_leaves_nothing_is_skipped_and_the_others_measured(place, text_plan_of, tmp_path):
    """A zero-width space, and an accent without a letter, which this tokenizer strips."""
    shutil.copytree(place / "sst2", tmp_path / "sst2")
    with (tmp_path / "sst2" / "dev.tsv").open("a", encoding="utf-8") as file:
        file.write("\u200b\t1\n\u0301\t0\n")
    plan = text_plan_of(data=(bench.DataSpec("sst2", str(tmp_path / "sst2")),), trials=(bench.Trial("gae"),))
    bench.run(plan, tmp_path / "r.db")
    found = list(values(tmp_path / "r.db", "gae", "text_deletion").values())
    assert sum(value is None for value in found) == 2
    assert len(found) == 10
