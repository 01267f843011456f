import pytest
from html_reader import Reader
from saved_models import ARCH
from typer.testing import CliRunner

from vitrail.apps.cli.app import app
from vitrail.evaluate import bench


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, ["report", *map(str, args)])


def test_a_folder_becomes_a_page(run, place, pictures, tmp_path):
    (pictures / "bad.jpg").write_text("no picture")
    result = run(
        pictures, "-m", place / "weights.safetensors", "--arch", ARCH, "--method", "gae", "--method", "attcat",
        "-t", "none", "-t", "3", "--curves", "-o", "page.html",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "wrote page.html: 3 of 4 inputs explained" in result.stderr
    assert "left out bad.jpg:" in result.stderr
    found = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert len(found.tables[0]) == 1 + 3 * 2
    assert len(found.all("article")) == 3


def test_results_of_the_bench_become_a_page(run, place, tmp_path):
    plan = bench.Plan(
        models=(bench.ModelSpec(str(place / "bert")),),
        data=(bench.DataSpec("demo_sentences", limit=2),),
        trials=(bench.Trial("gae"),),
        protocols=bench.protocols_of(("vitrail",)),
    )
    bench.run(plan, tmp_path / "results.db")
    assert run("results.db").exit_code == 0
    assert "results.db: 1 table of the bench" in Reader((tmp_path / "report.html").read_text(encoding="utf-8")).text
    result = run("results.db", "-m", "photo")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: results.db holds results of the bench: only -o goes with it.\n",
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["absent", "-m", "photo"], "there is no folder or file absent"),
        ([".", "-m", "photo"], "there are no images in ."),
        (["."], "which model explains .?"),
        ([".", "-m", "photo", "-o", "page.png"], "a report is a page"),
        ([".", "-m", "photo", "-o", "absent/page.html"], "there is no folder"),
        ([".", "-m", "photo", "--method", "gea"], "Did you mean gae?"),
    ],
)
def test_an_error_is_one_line(run, args, words):
    result = run(*args)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.output
