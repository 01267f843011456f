"""No door to a model folder opens pickled weights, whatever file names them."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from saved_models import save_bert, save_gpt2, save_vit
from transformers import GPT2LMHeadModel

from vitrail.apps.web.model_cache import ModelCache
from vitrail.errors import ModelError
from vitrail.evaluate import bench
from vitrail.evaluate.bench.opened import open_model
from vitrail.models.loading import load
from vitrail.plots.report import of_inputs

SAVED = {"vit": save_vit, "bert": save_bert, "gpt2": save_gpt2}


def pickle_weights(folder, name="pytorch_model.bin"):
    """Replace the safetensors of a folder by a pickle of the same weights."""
    weights = load_file(folder / "model.safetensors")
    torch.save({key: x.contiguous() for key, x in weights.items()}, folder / name)
    (folder / "model.safetensors").unlink()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("pickled")
    torch.manual_seed(0)
    for name, save in SAVED.items():
        save(place / name)
        pickle_weights(place / name)
    return place


DOORS = {
    "explain a picture": ("explain", "cat.png", "-m", "vit"),
    "explain a text": ("explain", "a dull film", "-m", "bert"),
    "explain a next token": ("explain", "the fox", "-m", "gpt2"),
    "explain a folder": ("explain", "photos", "-m", "vit", "-o", "maps"),
    "compare": ("compare", "cat.png", "-m", "vit", "--method", "gae"),
    "answer": ("answer", "the quick brown fox", "-m", "gpt2", "--answer", "a man"),
    "report": ("report", "photos", "-m", "vit", "-o", "report.html"),
    "bench run": ("bench", "run", "-m", "vit", "-d", "photos", "--method", "gae", "-o", "r.db"),
    "bench recommend": ("bench", "recommend", "vit", "photos", "--method", "gae", "-o", "r2.db"),
    "bench sanity": ("bench", "sanity", "vit", "photos", "--method", "gae", "-o", "r3.db"),
    "doctor": ("doctor", "vit"),
    "detail": ("detail", "cat.png", "-m", "vit"),
    "guide": ("guide", "cat.png", "-m", "vit"),
    "transfer": ("transfer", "cat.png", "-m", "vit", "-o", "map.png"),
    "rewrite": ("rewrite", "cat.png", "-m", "vit", "--target", "boxer", "-o", "new.png"),
    "audit": ("audit", "labelled", "-m", "vit"),
}


@pytest.mark.parametrize("arguments", DOORS.values(), ids=DOORS)
def test_no_command_opens_pickled_weights(arguments, run, place, folders, monkeypatch):
    monkeypatch.setattr(torch, "load", _never)
    given = [str(folders / one) if one in SAVED else one for one in arguments]
    for folder in ("photos", "labelled/boxer"):
        (place / folder).mkdir(parents=True, exist_ok=True)
        (place / folder / "cat.png").write_bytes((place / "cat.png").read_bytes())
    result = run(*given)
    assert result.exit_code != 0
    assert "Pickles" in result.output
    assert "safetensors" in result.output


def _never(*args, **kwargs):
    raise AssertionError("a pickle was opened")


def test_python_the_page_the_report_and_the_bench_open_no_pickled_weights(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "load", _never)
    vit = str(folders / "vit")
    for name in SAVED:
        with pytest.raises(ModelError, match="Pickles"):
            load(folders / name)
    with pytest.raises(ModelError, match="Pickles"):
        ModelCache([vit]).open(vit, "image")
    with pytest.raises(ModelError, match="Pickles"):
        ModelCache(any_model=True).open(vit, "image")
    with pytest.raises(ModelError, match="Pickles"):
        of_inputs(vit, tmp_path / "photos")
    with pytest.raises(ModelError, match="Pickles"):
        open_model(bench.ModelSpec(vit), "cpu")


def test_the_page_opens_them_if_it_is_told_to(folders):
    vit = str(folders / "vit")
    assert ModelCache([vit], pickles=True).open(vit, "image").loaded.classes == 4


def _adapter_of_the_config(folder):
    """The config names a pickle that transformers takes for an adapter's."""
    pickle_weights(folder, "adapter_model.bin")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": "adapter_model.bin"}))


def _adapter_beside_the_weights(folder):
    """The folder holds safetensors and the pickle of an adapter."""
    model = get_peft_model(GPT2LMHeadModel.from_pretrained(folder), LoraConfig(target_modules=["c_attn"], r=2))
    model.save_pretrained(folder)
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()


def _shard_of_the_index(folder):
    """The index of safetensors names a pickle."""
    weights = load_file(folder / "model.safetensors")
    pickle_weights(folder, "part.bin")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, "part.bin")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _shard_of_a_named_index(folder):
    _shard_of_the_index(folder)
    (folder / "model.safetensors.index.json").rename(folder / "other.safetensors.index.json")
    config = json.loads((folder / "config.json").read_text())
    named = {"transformers_weights": "other.safetensors.index.json"}
    (folder / "config.json").write_text(json.dumps(config | named))


def _capitals(folder):
    pickle_weights(folder, "pytorch_model.BIN")


WAYS = (
    pickle_weights, _adapter_of_the_config, _adapter_beside_the_weights, _shard_of_the_index, _shard_of_a_named_index,
    _capitals,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_pickles_are_refused_by_whatever_file_they_are_named(way, tmp_path, monkeypatch):
    torch.manual_seed(0)
    folder = save_gpt2(tmp_path / "gpt2")
    way(folder)
    monkeypatch.setattr(torch, "load", _never)
    with pytest.raises(ModelError, match="Pickles can run any code"):
        load(folder)


def test_a_folder_with_safetensors_and_an_adapter_in_safetensors_opens(tmp_path):
    torch.manual_seed(0)
    folder = save_gpt2(tmp_path / "gpt2")
    (folder / "training_args.bin").write_bytes(b"not read")
    assert load(folder).task == "causal"
    get_peft_model(GPT2LMHeadModel.from_pretrained(folder), LoraConfig(target_modules=["c_attn"], r=2)).save_pretrained(
        folder
    )
    assert any("lora" in name for name, _ in load(folder).model.named_parameters())


def test_an_answer_needs_a_causal_language_model(run):
    for name in ("bert", "sentiment", "photo", "vit"):
        result = run("answer", "who sleeps", "-m", name)
        assert result.exit_code == 1
        assert "a causal language model is needed" in result.output
    assert run("answer", "the quick brown fox", "-m", "gpt2", "--answer", "a man").exit_code == 0


def test_a_model_of_the_hub_is_read_from_safetensors_only(monkeypatch):
    import timm

    asked = []

    def create_model(name, **options):
        asked.append((name, options["pretrained_cfg_overlay"]))
        raise RuntimeError("offline")

    monkeypatch.setattr(timm, "create_model", create_model)
    for name in ("hf-hub:someone/model", "timm/vit_tiny"):
        with pytest.raises(ModelError, match="could not be fetched"):
            load(name)
    assert [overlay for _, overlay in asked] == [{"hf_hub_filename": "model.safetensors"}] * 2
