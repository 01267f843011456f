import inspect
from pathlib import Path

import pytest

from vitrail.errors import InputError, OptionError, VitrailError
from vitrail.evaluate import data
from vitrail.evaluate.data import DATASETS, load

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_every_public_name_is_there_and_documented():
    page = PAGE.read_text()
    assert [name for name in data.__all__ if not hasattr(data, name)] == []
    assert [name for name in ("DATASETS", "Dataset", "IGNORE", "Span", "load", "resize_mask") if name not in page] == []


@pytest.mark.parametrize("name", DATASETS)
def test_every_set_says_what_it_is_and_stands_in_the_docs(name):
    entry = DATASETS[name]
    assert entry.name == name
    assert entry.kind in ("image", "text", "question")
    assert entry.needs
    assert entry.paper
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}`"))
    assert [option for option in entry.options if f"`{option}`" not in row] == []
    parameters = list(inspect.signature(entry.read).parameters.values())
    assert parameters[0].name == "source"
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters[1:])


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_every_set_names_a_place_where_it_is_not(name, place, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(VitrailError, match=place) as caught:
        load(name, tmp_path / place)
    assert isinstance(caught.value, InputError)
    assert "\n" not in str(caught.value)


def test_unknown_names_and_options_are_refused(tmp_path):
    with pytest.raises(OptionError, match=r"no data set 'sst'. Did you mean sst2"):
        load("sst", tmp_path)
    with pytest.raises(OptionError, match=r"squad has no option 'fold'. Known: split"):
        load("squad", tmp_path, fold=1)


def test_load_takes_a_part(tmp_path):
    (tmp_path / "dev.tsv").write_text("label\tsentence\n" + "".join(f"1\t{i}\n" for i in range(9)))
    assert [example.text for example in load("sst2", tmp_path, offset=1, every=2, limit=3)] == ["1", "3", "5"]
