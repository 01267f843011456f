"""Files and words that a stranger wrote: read, or refused by an error of ours, and never anything else."""

import json
import sqlite3

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitrail
from vitrail.attribution import Attribution
from vitrail.evaluate import bench
from vitrail.methods import parse_spec
from vitrail.models.loading import find_class

FAST = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=3), max_leaves=8
)
WORDS = ("models", "data", "methods", "protocols", "metrics", "seed", "batch", "limit", "device", "dtype", "preset")
GOOD = {"models": ["photo"], "data": ["demo_pictures"], "methods": ["gae"], "protocols": ["vitrail"]}


def tried(act, *args):
    """Success or an error of ours."""
    try:
        return act(*args)
    except vitrail.VitrailError:
        return None


@pytest.mark.slow
@FAST
@given(changed=st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=4))
def test_a_plan_with_any_values(tmp_path, changed):
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **changed}, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
    tried(bench.read_plan, path)


@FAST
@given(data=st.binary(max_size=200))
def test_a_plan_of_any_bytes(tmp_path, data):
    path = tmp_path / "plan.yaml"
    path.write_bytes(data)
    tried(bench.read_plan, path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An attribution as a file of each kind."""
    folder = tmp_path_factory.mktemp("saved")
    made = Attribution(torch.rand(2, 6), "gae", vitrail.targets.logit(1), "image", grid=(2, 3), size=(32, 48))
    return {ending: made.save(folder / f"a{ending}").read_bytes() for ending in (".json", ".npz")}


@FAST
@given(st.data())
def test_an_attribution_with_any_value_in_it(tmp_path, saved, data):
    content = json.loads(saved[".json"])
    content[data.draw(st.sampled_from(sorted(content)))] = data.draw(VALUES)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    tried(Attribution.load, path)


@FAST
@given(st.data())
def test_an_attribution_with_damaged_bytes(tmp_path, saved, data):
    ending = data.draw(st.sampled_from(sorted(saved)))
    content = bytearray(saved[ending])
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path / f"a{ending}"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    tried(Attribution.load, path)


@FAST
@given(st.data())
def test_results_with_damaged_bytes(tmp_path, data):
    path = tmp_path / "results.db"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA application_id = 1447646290; CREATE TABLE runs (id TEXT PRIMARY KEY, about TEXT)")
    connection.execute(
        "INSERT INTO runs VALUES ('a', ?)",
        (data.draw(st.text(max_size=20).map(lambda t: t.encode("utf-8", "replace").decode())),),
    )
    connection.commit()
    connection.close()
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    tried(bench.tables, path)


@FAST
@given(text=st.text(max_size=30), names=st.none() | st.lists(st.text(max_size=10), min_size=1, max_size=5))
def test_a_class_by_any_words(text, names):
    tried(find_class, text, names, 5)


@FAST
@given(text=st.text(max_size=40) | st.builds("gradtoken({})".format, st.text(max_size=20)))
def test_a_method_by_any_words(text):
    tried(parse_spec, text)
