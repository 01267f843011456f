import sqlite3
from contextlib import closing

import numpy as np
import pytest

from vitrail.errors import OutputError
from vitrail.evaluate.bench.measure import Column
from vitrail.evaluate.bench.plan import ResultRow
from vitrail.evaluate.bench.store import FORMAT, SCHEMA, identity, reading, writing
from vitrail.evaluate.bench.table import MethodSample, estimates

ABOUT = {"model": {"hash": "1"}, "method": {"options": {"depth": 2}}, "versions": {"torch": "2.15"}}


def rows(run, keys="ab", value=1.0):
    return [ResultRow(run, key, metric, {"x": value}) for key in keys for metric in ("positive", "negative")]


def test_a_row_is_written_once_and_never_overwritten(tmp_path):
    with writing(tmp_path / "r.db") as store:
        run = store.add_run(ABOUT)
        store.add(rows(run))
        store.add(rows(run, "abc", value=2.0))
        found = list(store.results(run))
    assert [(key, metric, value["x"]) for key, metric, value, _ in found] == [
        (key, metric, 2.0 if key == "c" else 1.0) for key in "abc" for metric in ("negative", "positive")
    ]


def test_what_is_done_is_known_by_example_and_metric(tmp_path):
    with writing(tmp_path / "r.db") as store:
        run = store.add_run(ABOUT)
        store.add([ResultRow(run, "a", "positive", {"x": 1}), ResultRow(run, "b", "positive", None, "it is broken")])
        assert store.done(run, ["a", "b", "c"]) == {("a", "positive"), ("b", "positive")}
        assert store.done("another", ["a"]) == set()


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"hash": "2"}},
        {"method": {"options": {"depth": 3}}},
        {"versions": {"torch": "2.16"}},
    ],
)
def test_another_model_option_or_version_is_another_run(changed):
    assert identity({**ABOUT, **changed}) != identity(ABOUT)


def test_a_failed_transaction_leaves_nothing_of_its_unit(tmp_path):
    with writing(tmp_path / "r.db") as store:
        run = store.add_run(ABOUT)
        with pytest.raises(sqlite3.IntegrityError):  # neither a value nor a reason
            store.add([ResultRow(run, "a", "positive", {"x": 1}), ResultRow(run, "b", "positive", None)])
        assert list(store.results(run)) == []


def test_a_second_writer_is_told_and_a_reader_is_not_disturbed(tmp_path):
    path = tmp_path / "r.db"
    with writing(path) as store:
        store.add(rows(store.add_run(ABOUT)))
        with pytest.raises(OutputError, match="another process is writing"), writing(path):
            pass
        with reading(path) as other:
            assert len(list(other.results(identity(ABOUT)))) == 4
    with writing(path):
        pass


def test_a_full_disk_loses_nothing_that_was_finished(tmp_path):
    with writing(tmp_path / "r.db") as store:
        run = store.add_run(ABOUT)
        store.add(rows(run))
        store.connection.execute("PRAGMA max_page_count = 6")
        with pytest.raises(OutputError, match=r"the disk is full\. Everything finished so far is kept"):
            store.add([ResultRow(run, str(i), "positive", {"x": [0.5] * 200}) for i in range(200)])
        assert len(list(store.results(run))) == 4


@pytest.mark.parametrize("begun", ["", "PRAGMA application_id = 1447646290", SCHEMA.split(";")[0]])
def test_a_half_made_file_is_finished_by_the_next_run(tmp_path, begun):
    path = tmp_path / "r.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA application_id = {FORMAT}; {begun};" if begun else "")
    path.touch()
    with pytest.raises(OutputError, match=r"r.db holds no results yet. vitrail bench run writes them"), reading(path):
        pass
    with writing(path) as store:
        store.add(rows(store.add_run(ABOUT)))
    with reading(path) as store:
        assert len(list(store.results(identity(ABOUT)))) == 4


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(OutputError, match="cannot be opened as a results file"), writing(tmp_path / "text.db"):
        pass
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE birds (name TEXT)")
    with pytest.raises(OutputError, match="not of vitrail's results"), writing(tmp_path / "other.db"):
        pass
    with pytest.raises(OutputError, match="there are no results at"), reading(tmp_path / "none.db"):
        pass
    with pytest.raises(OutputError, match="cannot be written"), writing(tmp_path / "no" / "r.db"):
        pass


def test_a_method_measured_on_few_examples_is_never_the_best():
    column = Column("share", ("share",), higher=True, features=np.asarray)
    few = np.arange(20) < 3
    samples = [MethodSample(np.full((20, 1), 0.5), few | True), MethodSample(np.full((20, 1), 0.9), few)]
    whole, part = estimates(column, samples, seed=0, resamples=50)
    assert (whole.best, part.best, part.count) == (True, False, 3)
