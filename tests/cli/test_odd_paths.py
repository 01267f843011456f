"""Odd names, of files that are read and written, end in a result or in one line; never in a traceback."""

import os
from pathlib import Path

import pytest

import vitrail
from vitrail import zoo
from vitrail.api.many import picture_batches
from vitrail.attribution import Attribution
from vitrail.errors import InputError, ModelError, VitrailError
from vitrail.evaluate.bench import DataSpec, ModelSpec
from vitrail.evaluate.bench.opened import open_data, open_model
from vitrail.models.loading import load
from vitrail.plots import canvas
from vitrail.plots.report import of_inputs
from vitrail.storage import save_figure
from vitrail.tools.generations import Generation

LONG, DEEP = "x" * 300, "/".join(["d"] * 2100)
NOT_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.fixture
def odd(place, run, monkeypatch, tmp_path):
    """Run commands in a folder of their own that holds a picture, a folder and a link to itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.png").write_bytes((place / "cat.png").read_bytes())
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes((place / "cat.png").read_bytes())
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    return run


def check_one_line(result):
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code != 0
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error: ")
    assert len(result.stderr) < 600


COMMANDS = {
    "a picture": lambda name: ("explain", f"{name}.png", "-m", "photo"),
    "a model": lambda name: ("explain", "dull", "-m", name),
    "weights": lambda name: ("explain", "dull", "-m", f"{name}.safetensors", "--arch", "vit_tiny_patch16_224"),
    "a result": lambda name: ("explain", "dull", "-m", "sentiment", "-o", f"{name}.json"),
    "a folder of results": lambda name: ("explain", "photos", "-m", "photo", "-o", name),
    "a sheet": lambda name: ("compare", "cat.png", "-m", "photo", "-o", f"{name}.png"),
    "a document": lambda name: ("answer", "Anna:", "-m", "lookup", "--context", name),
    "an answering model": lambda name: ("answer", "Anna:", "-m", name),
    "inputs of a report": lambda name: ("report", name, "-m", "photo", "-o", "r.html"),
    "a report": lambda name: ("report", "photos", "-m", "photo", "-o", f"{name}.html"),
    "a results file": lambda name: ("bench", "run", "-m", "photo", "-d", "photos", "-o", f"{name}.db"),
    "data": lambda name: ("bench", "run", "-m", "photo", "-d", name, "--method", "gae", "-o", "q.db"),
    "a table": lambda name: ("bench", "table", f"{name}.db"),
    "a plot": lambda name: ("bench", "plot", name, "-o", "z.png"),
    "a plan": lambda name: ("bench", "run", "--plan", f"{name}.yaml"),
    "recommendations": lambda name: ("bench", "recommend", "photo", name),
    "a guide": lambda name: ("guide", "cat.png", "-m", "photo", "--guide", f"{name}.png"),
    "a labelled folder": lambda name: ("audit", name, "-m", "photo"),
    "a film": lambda name: ("transfer", "cat.png", "-m", "photo", "-o", f"{name}.gif"),
    "a rewritten picture": lambda name: ("rewrite", "cat.png", "-m", "photo", "-t", "church", "-o", f"{name}.png"),
    "a doctor's model": lambda name: ("doctor", name),
    "a demo": lambda name: ("demo", "-o", f"{name}/folder"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_name_that_no_file_system_takes_is_refused_in_one_line(odd, command):
    for name in (LONG, DEEP):
        check_one_line(odd(*command(name)))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_working_folder_that_is_gone_is_said_by_every_command(odd, command, tmp_path_factory, monkeypatch):
    gone = tmp_path_factory.mktemp("gone")
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = odd(*command("name"))
    check_one_line(result)
    assert "the working folder is gone" in result.stderr


def test_every_command_is_among_these_or_reads_no_file():
    from vitrail.apps.cli.app import BENCH
    from vitrail.apps.cli.app import COMMANDS as ALL

    covered = {words[0] for words in (command("name") for command in COMMANDS.values())}
    renamed = {"generate", "structure"}  # the same functions as answer and doctor
    assert set(ALL) - covered - renamed == {"detail", "methods", "app"}  # detail reads and writes as guide and transfer
    benches = {words[1] for words in (command("name") for command in COMMANDS.values()) if words[0] == "bench"}
    assert set(BENCH) - benches == {"sanity", "agreement"}


@pytest.mark.parametrize("name", ["a\nb c d.txt", f"{NOT_UTF8}.txt", " \x1b[1m.txt"])
def test_a_text_file_is_read_whatever_its_name(odd, name):
    Path(name).write_text("endless and dull", encoding="utf-8")
    result = odd("explain", name, "-m", "sentiment", "--method", "gae")
    if name.startswith(NOT_UTF8):  # arguments are text
        check_one_line(result)
        return
    assert result.exit_code == 0, result.output
    assert "endless" in result.output
    assert "not .txt" not in result.output


def test_a_text_with_a_line_break_that_is_no_file_stays_a_text(odd):
    result = odd("explain", "dull\nsaved as notes.txt", "-m", "sentiment", "--method", "gae")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", ["a\nb\x1b[1m", NOT_UTF8])
def test_results_are_written_whatever_their_names(odd, name):
    for command, ending in (
        (("explain", "dull", "-m", "sentiment", "--method", "gae"), ".json"),
        (("answer", "Anna: ring. Anna:", "-m", "lookup", "--method", "gae"), ".html"),
    ):
        result = odd(*command, "-o", f"{name}{ending}")
        assert result.exit_code == 0, (result.output, result.exception)
        assert Path(f"{name}{ending}").stat().st_size > 100
        assert "\x1b" not in result.output


def test_pictures_whose_names_are_not_utf8_are_reported_and_measured(odd):
    os.rename("photos/cat.png", f"photos/{NOT_UTF8}.png")
    result = odd("report", "photos", "-m", "photo", "--method", "gae", "-o", "r.html")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "caf" in Path("r.html").read_text(encoding="utf-8")
    result = odd(
        "bench", "run", "-m", "photo", "-d", "photos", "--method", "gae", "--metric", "insertion_deletion", "-o", "r.db"
    )
    assert isinstance(result.exception, SystemExit | None), result.exception


def test_folders_in_place_of_files_and_links_to_themselves_are_refused_in_one_line(odd):
    Path("folder.json").mkdir()
    Path("loop.json").symlink_to("loop.json")
    for name in ("folder.json", "loop.json", "folder"):
        check_one_line(odd("explain", "dull", "-m", "sentiment", "--method", "gae", "-o", name))
        check_one_line(odd("answer", "Anna:", "-m", "lookup", "--context", name))
        check_one_line(odd("bench", "table", name))
    check_one_line(odd("explain", "./folder", "-m", "sentiment"))
    for name in ("folder", "loop", "folder.json"):
        check_one_line(odd("explain", "dull", "-m", f"./{name}"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_to_is_refused_in_one_line(odd):
    Path("folder").chmod(0o500)
    check_one_line(odd("explain", "dull", "-m", "sentiment", "--method", "gae", "-o", "folder/x.json"))


@pytest.fixture(scope="module")
def found():
    return vitrail.explain(zoo.load_plain("sentiment"), "a dull film", "gae")


@pytest.fixture(scope="module")
def photo():
    return load("photo")


NAMES = ["a\0b", "a\ud800b", LONG, DEEP]


@pytest.mark.parametrize("name", NAMES, ids=["NUL", "half", "long", "deep"])
def test_python_refuses_such_names_in_words(name, found, photo):
    figure = canvas.new_figure(1.0, 1.0)
    answer = Generation("a", ("a",), (), (), {}, {})
    doors = [
        *(lambda end=end: found.save(f"{name}{end}") for end in (".json", ".npz", ".png", ".html")),
        lambda: found.save(Path(f"{name}.json")),
        lambda: Attribution.load(f"{name}.json"),
        lambda: found.explore().save(f"{name}.html"),
        lambda: save_figure(figure, f"{name}.png"),
        lambda: answer.save(f"{name}.json"),
        lambda: Generation.load(f"{name}.json"),
        lambda: load(name),
        lambda: load(f"{name}.safetensors", arch="vit_tiny_patch16_224"),
        lambda: open_model(ModelSpec(name), "cpu"),
        lambda: open_data(DataSpec("pictures", name)),
        lambda: of_inputs(photo, name),
        lambda: vitrail.explain(photo, f"{name}.png"),
        lambda: vitrail.audit(photo.model, name),
        lambda: picture_batches(name, lambda image: image, size=2),
    ]
    for number, door in enumerate(doors):
        with pytest.raises(VitrailError) as caught:
            door()
        assert len(str(caught.value)) < 900, number


def test_the_word_for_it(found):
    with pytest.raises(
        InputError, match=r"an attribution cannot be at 'a\\x00b.json': no name holds the character NUL"
    ):
        found.save("a\0b.json")
    with pytest.raises(ModelError, match="cannot be the name of a model"):
        load(LONG)
