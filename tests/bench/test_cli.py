import sys

import pytest
from typer.testing import CliRunner

from vitrail.apps.cli import bench as command
from vitrail.apps.cli.app import app
from vitrail.apps.cli.bench import changed, quick_plan
from vitrail.errors import InputError, OptionError
from vitrail.evaluate import bench
from vitrail.methods import METHODS


@pytest.fixture
def run(place, monkeypatch):
    monkeypatch.chdir(place)
    return lambda *args: CliRunner().invoke(app, ["bench", *map(str, args)])


def test_from_run_to_table_and_plot(run, tmp_path):
    path = tmp_path / "r.db"
    ran = run(
        "run", "-m", "vit", "-d", "pets=pets", "-d", "sst2=sst2", "-m", "bert", "--protocol", "chefer",
        "--protocol", "attcat", "--method", "gae", "--method", "gradtoken(scheme=none)", "--limit", 4, "-o", path,
    )  # fmt: skip
    assert (ran.exit_code, ran.stdout) == (0, "")
    assert "8 examples, 8 computed now" in ran.stderr
    again = run(
        "run", "-m", "vit", "-d", "pets=pets", "--protocol", "chefer", "--method", "gae", "--limit", 4, "-o", path
    )
    assert "4 examples, 0 computed now, 4 were there already" in again.stderr
    table = run("table", path)
    assert table.stdout.count("### ") == 2
    assert "`gradtoken(scheme=none)`" in table.stdout
    assert run("table", path, "-f", "csv", "-o", tmp_path / "t.csv").exit_code == 0
    assert (tmp_path / "t.csv").read_text().startswith("table,method,metric")
    assert run("plot", path, "-o", tmp_path / "c.png").exit_code == 0
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_methods_are_ranked_on_a_folder_of_pictures(run):
    result = run("recommend", "vit", "pets/images", "--method", "gae", "--method", "rollout", "--limit", 4)
    assert result.exit_code == 0
    assert "ABPC" in result.stdout
    head, *rows = (line.split("\t") for line in result.stdout.splitlines())
    assert head[:2] == ["rank", "method"]
    assert [row[0] for row in rows] == ["1", "2"]
    assert {row[1] for row in rows} == {"gae", "rollout"}
    assert rows[0][-1] == "best"


@pytest.mark.parametrize("command", ["recommend", "sanity", "agreement"])
def test_the_default_method_is_among_those_that_are_measured(command, run, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(bench, "measure", lambda plan, *args, **more: seen.append(plan) or sys.exit(7))
    assert run(command, "vit", "pets/images").exit_code == 7
    names = [trial.name for trial in seen[0].trials]
    assert names[0] == "consensus"
    assert len(set(names)) == len(names) > 10


def test_methods_are_ranked_on_a_file_of_texts(run, tmp_path):
    (tmp_path / "texts.txt").write_text("the quick brown fox\na dull film\n\nwho sleeps ?\n")
    result = run("recommend", "bert", tmp_path / "texts.txt", "--method", "gae", "-o", tmp_path / "kept.db")
    assert result.exit_code == 0
    assert "AOPC" in result.stdout
    assert bench.tables(tmp_path / "kept.db")[0].rows[0][1][0].count == 3


def test_a_plan_from_a_file_is_the_plan_of_the_flags(place, tmp_path):
    (tmp_path / "plan.yaml").write_text(
        """
models: [photo, {name: w.safetensors, arch: test_vit}]
data: ["imagenet(fold=1)=val", {name: sst2, path: glue, limit: 5}]
methods: [gae, "gradtoken(depth=2)", {name: tis, subset: 20}]
protocols: [chefer, {name: vtranm, fill: blur}]
metrics: [positive]
batch: 8
dtype: bfloat16
""",
        encoding="utf-8",
    )
    assert bench.read_plan(tmp_path / "plan.yaml") == bench.Plan(
        models=(bench.ModelSpec("photo"), bench.ModelSpec("w.safetensors", "test_vit")),
        data=(bench.DataSpec("imagenet", "val", {"fold": 1}), bench.DataSpec("sst2", "glue", limit=5)),
        trials=(bench.Trial("gae"), bench.Trial("gradtoken", {"depth": 2}), bench.Trial("tis", subset=20)),
        protocols=(bench.find_protocol("chefer"), bench.find_protocol("vtranm").with_(fill="blur")),
        metrics=("positive",),
        batch=8,
        dtype="bfloat16",
    )


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("modells: [photo]", OptionError, "Did you mean models"),
        ("models: photo", InputError, "models is a list"),
        ("- photo", InputError, "is no plan"),
        ("models: [photo", InputError, "cannot be read as a plan"),
        ("models: [{nam: photo}]", InputError, "is not a model"),
    ],
)
def test_a_plan_that_cannot_be_read_is_one_line(tmp_path, text, error, words):
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(error, match=words):
        bench.read_plan(tmp_path / "plan.yaml")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-m", "vit", "-d", "pets=pets", "--protocol", "attcat"), "protocol attcat measures"),
        (("-m", "bert", "-d", "pets=pets"), "bert reads text data"),
        (("-m", "vit", "-d", "petz=pets"), "Did you mean pets"),
        (("-m", "vit", "-d", "nowhere"), "neither a folder of pictures"),
        (("-m", "vit", "-d", "pets=nowhere"), "nowhere"),
        (("-m", "vit"), "a plan needs data"),
        (("--quick", "-m", "vit"), "--quick already names the data"),
        (("-m", "vit", "-d", "pets=pets", "--engine", "spark"), "there is no engine"),
        (("-m", "vit", "-d", "pets=pets", "-o", "no/r.db"), "cannot be written"),
    ],
)
def test_errors_are_one_line(run, tmp_path, args, words):
    output = () if "-o" in args else ("-o", tmp_path / "r.db")
    result = run("run", *args, "--method", "gae", *output) if "--quick" not in args else run("run", *args, *output)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_ray_is_asked_for_by_name(run, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    monkeypatch.setitem(__import__("sys").modules, "vitrail.evaluate.bench.engines_ray", None)
    result = run("run", "-m", "vit", "-d", "pets=pets", "--engine", "ray", "-o", tmp_path / "r.db")
    assert result.exit_code == 1
    assert "pip install 'vitrail[ray]'" in result.stderr


def test_the_quick_plan_needs_nothing_but_the_package():
    plan = quick_plan()
    assert {spec.name for spec in plan.data} == {"demo_pictures", "demo_sentences"}
    assert {spec.name for spec in plan.models} == {"photo", "sentiment"}


def test_settings_of_the_command_line_win_over_those_of_a_plan():
    plan = changed(quick_plan(), {"batch": 3, "dtype": "float32", "limit": None, "device": "cuda"})
    assert (plan.batch, plan.dtype, plan.limit, plan.device) == (3, "float32", None, "cuda")
    assert plan.trials == quick_plan().trials


def test_the_help_reads_like_a_manual(run):
    text = " ".join(run("--help").stdout.split())
    assert all(word in text for word in ("--quick", "Protocols", "chefer", "Kill a run whenever you like", "recommend"))


def test_the_inputs_of_the_package_are_always_the_same():
    from vitrail.evaluate.bench.opened import open_data

    pictures, sentences = open_data(bench.DataSpec("demo_pictures")), open_data(bench.DataSpec("demo_sentences"))
    assert len(set(pictures.keys)) == 24
    assert len({pictures[number].image.tobytes() for number in range(24)}) == 24
    assert len({example.text for example in sentences}) == 16


def test_all_stands_for_the_methods_that_apply_and_one_line_names_the_others(run, place, tmp_path):
    path, plan = tmp_path / "r.db", tmp_path / "plan.yaml"
    plan.write_text("models: [bert]\ndata: [sst2=sst2]\nmethods: all\nprotocols: [vitrail]\nlimit: 1\n")
    by_flags = ("-m", "bert", "-d", "sst2=sst2", "--method", "all", "--limit", 1)
    for given in (by_flags, ("--plan", plan)):  # the plan asks for the same, so that nothing is computed again
        ran = run("run", *given, "-o", path)
        assert ran.exit_code == 0
        (line,) = (line for line in ran.stderr.splitlines() if line.startswith("left out"))
        unused = set(line.partition(": ")[2].split(", "))
        assert {"tis", "vit_cx", "grad_eclip"} <= unused
        (table,) = bench.tables(path)
        assert {name for name, _ in table.rows} == {*METHODS, "random", "position"} - unused
    assert {"gae", "attcat", "integrated_gradients"} <= {name for name, _ in table.rows}


def test_a_method_that_is_named_and_does_not_apply_is_an_error(run, tmp_path):
    ran = run("run", "-m", "bert", "-d", "sst2=sst2", "--method", "all", "--method", "tis", "-o", tmp_path / "r.db")
    assert ran.exit_code == 1
    assert "tis explains image inputs" in ran.stderr


def test_all_with_a_preset_leaves_out_methods_without_it(run, tmp_path):
    given = ("-m", "bert", "-d", "sst2=sst2", "--method", "usual", "--preset", "official", "--limit", 1)
    ran = run("run", *given, "-o", tmp_path / "r.db")
    assert ran.exit_code == 0
    assert "left out" in ran.stderr


def test_help_names_what_the_bench_knows():
    assert all(name == measure.name for name, measure in bench.MEASURES.items())
    shown = " ".join(CliRunner().invoke(app, ["bench", "run", "--help"], env={"COLUMNS": "400"}).stdout.split())
    assert all(name in shown for name in bench.MEASURES)
    assert set(command.PROTOCOLS) == set(bench.PROTOCOLS)
