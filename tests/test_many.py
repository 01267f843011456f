"""Whole data sets: rows in order, parts renamed into place, resumable after a kill."""

import copy
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
import vitrail.many
from vitrail import targets, zoo
from vitrail.api.many import Batch, PartStore, picture_batches
from vitrail.errors import EngineError, InputError, OptionError
from vitrail.evaluate.bench.engines import Cluster

pytest.importorskip("pyarrow")


def pictures(count=7):
    return torch.randn(
        count, *MODELS["timm_vit"].inputs().shape[1:], generator=torch.Generator().manual_seed(0)
    ).double()


def test_rows_are_what_explain_gives_whatever_batches_and_parts_they_come_in(tmp_path):
    model, x = tiny("timm_vit"), pictures()
    batches = [(some, [f"picture {i}" for i in range(3 * n, 3 * n + len(some))]) for n, some in enumerate(x.split(3))]
    found = vitrail.explain_many(model, batches, "gae", output=tmp_path / "maps", part_size=2, progress=False)
    rows = found.table().to_pylist()
    expected = vitrail.explain(model, x, "gae")
    assert [row["index"] for row in rows] == list(range(7))
    assert [row["name"] for row in rows] == [f"picture {i}" for i in range(7)]
    assert [row["target"] for row in rows] == list(expected.target.first)
    assert_close(torch.tensor([row["scores"] for row in rows]), expected.scores.float())
    assert sorted(p.name for p in (tmp_path / "maps").glob("*.parquet")) == [
        f"part-{start:012d}-{min(start + 2, 7):012d}.parquet" for start in (0, 2, 4, 6)
    ]
    assert (found.inputs, found.explained, found.manifest["inputs"]) == (7, 7, 7)


def test_text_comes_with_its_tokens_and_without_its_padding(tmp_path):
    model, inputs = tiny("hf_bert"), dict(MODELS["hf_bert"].inputs())
    inputs["attention_mask"] = inputs["attention_mask"].clone()
    inputs["attention_mask"][1, -2:] = 0
    rows = vitrail.explain_many(model, [inputs], "gae", 1, output=tmp_path / "t", progress=False).table().to_pylist()
    expected = vitrail.explain(model, inputs, "gae", 1)
    assert len(rows[1]["scores"]) == len(rows[1]["tokens"]) == inputs["input_ids"].shape[1] - 2
    assert_close(torch.tensor(rows[1]["scores"]), expected.scores[1, :-2].float())


def test_what_is_written_is_neither_loaded_nor_explained_again(tmp_path):
    model, x, loaded = tiny("timm_vit"), pictures(6), []

    def batch(start):
        return Batch([str(start), str(start + 1)], lambda: loaded.append(start) or x[start : start + 2])

    def run():
        return vitrail.explain_many(model, map(batch, (0, 2, 4)), "gae", output=tmp_path, part_size=2, progress=False)

    first = run().table()
    (tmp_path / "part-000000000002-000000000004.parquet").unlink()
    (tmp_path / ".part-000000000004-000000000006.parquet").write_bytes(b"half")
    loaded.clear()
    again = run()
    assert loaded == [2]
    assert again.explained == 2
    assert again.table().equals(first)
    assert not list(tmp_path.glob(".part-*"))


def test_another_run_does_not_mix_with_this_one(tmp_path):
    model, x = tiny("timm_vit"), pictures(2)
    vitrail.explain_many(model, [x], "gae", output=tmp_path, progress=False)
    with pytest.raises(OptionError, match="method: gae there, rollout now"):
        vitrail.explain_many(model, [x], "rollout", output=tmp_path, progress=False)
    with pytest.raises(OptionError, match="more now"):
        vitrail.explain_many(model, [x, x], "gae", output=tmp_path, progress=False)
    (tmp_path / "_manifest.json").unlink()
    with pytest.raises(OptionError, match="not empty"):
        vitrail.explain_many(model, [x], "gae", output=tmp_path, progress=False)


def test_errors_of_the_loader_and_of_names_are_raised(tmp_path):
    model, x = tiny("timm_vit"), pictures(2)

    def broken():
        yield x
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        vitrail.explain_many(model, broken(), "gae", output=tmp_path / "a", progress=False)
    with pytest.raises(InputError, match="1 names"):
        vitrail.explain_many(model, [(x, ["one"])], "gae", output=tmp_path / "b", progress=False)


def test_after_a_part_that_cannot_be_written_no_other_is(tmp_path, monkeypatch):
    own = PartStore.write

    def write(store, rows):
        if rows[0]["index"] == 2:
            raise OSError("the disk is full")
        own(store, rows)

    monkeypatch.setattr(PartStore, "write", write)
    batches = list(pictures(12).split(1))
    with pytest.raises(OSError, match="the disk is full"):
        vitrail.explain_many(tiny("timm_vit"), batches, "gae", output=tmp_path, part_size=1, progress=False)
    assert len(list(tmp_path.glob("*.parquet"))) == 2


def test_inputs_are_loaded_by_a_thread_that_python_does_not_wait_for_and_few_at_a_time(tmp_path):
    """A loader may block for ever, and whole data sets do not fit into memory."""
    daemons, made, taken = [], 0, []

    def loader():
        nonlocal made
        for one in pictures(9).split(1):
            daemons.append(threading.current_thread().daemon)
            made += 1
            yield one

    def seen(logits):
        taken.append(made)
        return logits[:, 1]

    vitrail.explain_many(tiny("timm_vit"), loader(), "gae", target=seen, output=tmp_path, progress=False)
    assert daemons == [True] * 9
    assert taken[0] <= 4  # one that is explained, three ahead of it


def test_a_folder_of_pictures_is_explained_in_the_order_of_names(tmp_path):
    photo, folder = zoo.load("photo"), Path(vitrail.__file__).parent / "apps" / "demo" / "pictures"
    batches = picture_batches(folder, photo.preprocess, size=1)
    rows = vitrail.explain_many(photo.model, batches, "gae", output=tmp_path, progress=False).table().to_pylist()
    assert [row["name"] for row in rows] == ["golf_ball.jpg", "temple.jpg"]
    shown = photo.preprocess(Image.open(folder / "temple.jpg").convert("RGB"))
    assert_close(torch.tensor(rows[1]["scores"])[None], vitrail.explain(photo.model, shown, "gae").scores)


def test_another_folder_is_another_run(tmp_path):
    model, x = tiny("timm_vit"), pictures(2)
    vitrail.explain_many(model, [Batch(["a", "b"], lambda: x)], "gae", output=tmp_path, progress=False)
    with pytest.raises(OptionError, match="names"):
        vitrail.explain_many(model, [Batch(["a", "c"], lambda: x)], "gae", output=tmp_path, progress=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (targets.similarity(torch.tensor([1.0, 2.0])), targets.similarity(torch.tensor([2.0, -1.0]))),
        (targets.similarity(torch.ones(2)), targets.similarity(torch.ones(2), pooling="last")),
        (targets.answer_span(absolute=True), targets.answer_span()),
    ],
)
def test_a_run_is_resumed_with_its_own_target_only(one, other, tmp_path):
    def run(target):
        vitrail.explain_many(tiny("timm_vit"), [], "gae", target, output=tmp_path, progress=False)

    run(one)
    run(copy.deepcopy(one))
    with pytest.raises(OptionError, match=r"another run \(target: "):
        run(other)


def test_a_picture_that_was_replaced_moved_or_prepared_otherwise_is_another_run(tmp_path):
    """A run was once resumed with other pixels under the same names, and with `--squash` added."""
    x, folders = pictures(1), [tmp_path / "cats", tmp_path / "dogs"]

    def draw(folder, color):
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), color).save(folder / "0.bmp")  # the same number of bytes

    def run(folder=folders[0], preparation=""):
        batches = picture_batches(folder, lambda image: x, preparation=preparation)
        output = tmp_path / "maps"
        return vitrail.explain_many(tiny("timm_vit"), batches, "gae", output=output, progress=False).explained

    for folder in folders:
        draw(folder, "red")
    assert [run(), run()] == [1, 0]
    for changed in ({"preparation": "squash=True"}, {"folder": folders[1]}):
        with pytest.raises(OptionError, match=r"another run \(names: "):
            run(**changed)
    draw(folders[0], "blue")
    with pytest.raises(OptionError, match=r"another run \(names: "):
        run()


def test_engines_say_what_they_need(tmp_path):
    model, x = tiny("timm_vit"), pictures(2)
    for given, words in (
        ({"engine": "rai"}, "ray"),
        ({"workers": 2}, "engine='ray'"),
        ({"address": "127.0.0.1:1"}, "engine='ray'"),
        ({"engine": "ray"}, "a list of"),
    ):
        with pytest.raises(OptionError, match=words):
            vitrail.explain_many(model, [x], "gae", output=tmp_path / "maps", progress=False, **given)
    assert not (tmp_path / "maps").exists()


@pytest.mark.slow
def test_workers_of_ray_write_the_same_rows(tmp_path):
    engine = pytest.importorskip("vitrail.evaluate.bench.engines_ray")
    model, x = tiny("timm_vit"), pictures(7)
    batches = [
        Batch([str(i) for i in range(2 * n, 2 * n + len(some))], some.clone) for n, some in enumerate(x.split(2))
    ]
    how = {"method": "gae", "part_size": 3, "progress": False}
    here = vitrail.explain_many(model, batches, output=tmp_path / "here", **how)
    with engine.connected(Cluster(workers=2)):  # one cluster for both runs; tests/bench/test_ray.py starts its own
        there = vitrail.explain_many(model, batches, output=tmp_path / "there", engine="ray", workers=2, **how)
        assert (there.inputs, there.explained) == (7, 7)
        assert there.table().equals(here.table())
        (tmp_path / "there" / "part-000000000003-000000000006.parquet").unlink()
        again = vitrail.explain_many(model, batches, output=tmp_path / "there", engine="ray", workers=1, **how)
        elsewhere = {"output": tmp_path / "elsewhere", "address": "127.0.0.1:1", **how}
        with pytest.raises(EngineError, match="already connected to the Ray cluster"):
            vitrail.explain_many(model, batches, engine="ray", **elsewhere)
    assert again.explained == 3
    assert again.table().equals(here.table())


SCRIPT = """
    import sys, time
    sys.path[:0] = {paths!r}
    import torch, vitrail
    from vitrail.api.many import Batch
    torch.set_num_threads(1)
    own = vitrail.zoo.load_plain("sentiment")  # needs no library of models
    def batch(i):
        return Batch([str(i)], lambda: (time.sleep({pause}), dict(own.preprocess(["a fine film " * (i + 1)])))[1])
    batches = map(batch, range(12))
    found = vitrail.explain_many(own.model, batches, "gae", output={folder!r}, part_size=2, progress=False)
"""


def script(folder, pause):
    paths = [str(Path(vitrail.__file__).parents[1])]
    return textwrap.dedent(SCRIPT).format(paths=paths, folder=str(folder), pause=pause)


def explained_here(folder):
    """What the script finds in this process."""
    names, threads = {}, torch.get_num_threads()
    exec(script(folder, 0), names)
    torch.set_num_threads(threads)
    return names["found"]


@pytest.mark.slow
def test_a_run_that_was_killed_is_resumed(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-c", script(killed, 0.5)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waited = time.monotonic()
    while len(list(killed.glob("part-*"))) < 2 and time.monotonic() - waited < 300:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert json.loads((killed / "_manifest.json").read_text())["inputs"] is None
    resumed = explained_here(killed)
    assert 0 < resumed.explained <= 8
    assert resumed.table().equals(explained_here(whole).table())
