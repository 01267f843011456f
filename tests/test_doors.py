"""Python, the command line, the page, the report and the bench: the same input gives the same numbers and refusals."""

import base64
import json

import numpy as np
import pytest
import scipy
import torch
from PIL import Image
from saved_models import WORDS, save_bert, save_vit
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch.testing import assert_close
from transformers import (
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
    ViTForImageClassification,
)
from typer.testing import CliRunner

import vitrail
from vitrail.apps.cli.app import app
from vitrail.apps.web import Limits, actions, removing
from vitrail.apps.web.explaining import Explorer, Results
from vitrail.apps.web.guard import ASKS
from vitrail.apps.web.model_cache import ModelCache
from vitrail.apps.web.payload import INTEGERS
from vitrail.apps.web.sessions import Sessions
from vitrail.apps.web.workers import Job
from vitrail.errors import VitrailError
from vitrail.evaluate import bench, metrics
from vitrail.evaluate.bench.plan import PRIORS
from vitrail.evaluate.bench.store import reading
from vitrail.evaluate.removal import seen_pixels
from vitrail.models.loading import load
from vitrail.models.loading.images import open_image
from vitrail.plots.report import of_inputs

TEXT = "  the quick zzz fox who sleeps . "
ALSO = "gae", "tokentm", "attcat", "rollout", "integrated_gradients"
LEVELS = tuple(removing.LEVELS)


def save_gpt2_classifier(folder):
    """The prediction is read at the last word, which may be removed."""
    folder.mkdir()
    words = {word: i for i, word in enumerate(["<pad>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(" ", "removed")
    marks = {"unk_token": "<unk>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(folder)
    config = GPT2Config(
        vocab_size=len(words), n_positions=16, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0,
        pad_token_id=0, num_labels=3,
    )  # fmt: skip
    GPT2ForSequenceClassification(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doors")
    save_bert(folder / "bert")
    save_gpt2_classifier(folder / "gpt2")
    save_vit(folder / "vit")
    classes = {
        "bert": BertForSequenceClassification, "gpt2": GPT2ForSequenceClassification, "vit": ViTForImageClassification,
    }  # fmt: skip
    for name, model_class in classes.items():  # weights so large that what is removed changes the prediction
        model, generator = model_class.from_pretrained(folder / name), torch.Generator().manual_seed(1)
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.data = 0.4 * torch.randn(weight.shape, generator=generator)
        model.double().save_pretrained(folder / name)
    (folder / "photos").mkdir()
    noise = np.random.default_rng(0).integers(256, size=(9, 13, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((60, 44)).save(folder / "photos" / "cat.png")
    (folder / "photos" / "cut.png").write_bytes((folder / "photos" / "cat.png").read_bytes()[:300])
    return folder


@pytest.fixture(scope="module")
def page(place):
    """A function that hands an input in and asks one question about it."""
    limits = Limits()
    sessions = Sessions(limits)
    models = ModelCache([str(place / name) for name in ("bert", "gpt2", "vit")])
    explorer = Explorer(models, sessions, Results(limits.results), limits)
    session = sessions.new()

    def ask(action, given, **asked):
        take = actions.take_text if isinstance(given, str) else actions.take_picture
        content = given if isinstance(given, str) else given.read_bytes()
        (kept,) = [step for step in take(explorer, session, content) if isinstance(step, dict)]
        question = ASKS[action](id="a", input=kept["input"], **asked)
        return [s for s in actions.ACTIONS[action](explorer, session, question, Job(session.id)) if isinstance(s, dict)]

    yield ask
    sessions.close()


def in_python(model, given, method="gae", target=None):
    loaded = load(model)
    sample = loaded.text(given) if isinstance(given, str) else loaded.image(open_image(given))
    return vitrail.explain(loaded.model, sample.inputs, method, target)


def by_command(tmp_path, model, given, method="gae", target=None):
    """The saved explanation; raises what the command said."""
    arguments = ["explain", str(given), "-m", str(model), "--method", method, "-o", str(tmp_path / "map.json")]
    ran = CliRunner().invoke(app, [*arguments, *(["--target", str(target)] if target is not None else [])])
    if ran.exit_code:
        raise VitrailError(ran.output)
    return vitrail.Attribution.load(tmp_path / "map.json")


def source_of(tmp_path, given):
    """A file with one line, or a folder with one picture."""
    if isinstance(given, str):
        (tmp_path / "texts.txt").write_text(f"{given}\n")
        return tmp_path / "texts.txt"
    (tmp_path / "pictures").mkdir(exist_ok=True)
    (tmp_path / "pictures" / given.name).write_bytes(given.read_bytes())
    return tmp_path / "pictures"


def by_report(tmp_path, model, given, *methods, target=None):
    found = of_inputs(str(model), source_of(tmp_path, given), methods or ["gae"], targets=[target], curves=True)
    return found.entries[0]


def by_bench(tmp_path, model, given, *methods, protocol="vitrail", **changes):
    """For each method, metric -> what is stored of the only example."""
    data = "sentences" if isinstance(given, str) else "pictures"
    plan = bench.Plan(
        models=(bench.ModelSpec(str(model)),),
        data=(bench.DataSpec(data, str(source_of(tmp_path, given))),),
        trials=bench.parse_trials(methods or ("gae",)),
        protocols=(bench.find_protocol(protocol).with_(**changes),),
    )
    bench.run(plan, tmp_path / "results.db")
    with reading(tmp_path / "results.db") as store:
        found = {}
        for run, about in store.runs().items():
            if about["method"]["name"] in PRIORS:
                continue
            for _, metric, value, why in store.results(run):
                if why is not None:
                    raise VitrailError(why)
                found.setdefault(about["method"]["name"], {})[metric] = value
    return found


def unpacked(data):
    whole = np.frombuffer(base64.b64decode(data["int16"]), "<i2").astype(float)
    return whole * data["scale"]


@pytest.mark.parametrize("model", ["bert", "gpt2", "vit"])
def test_scores_classes_and_probabilities_are_the_same(model, place, page, tmp_path):
    given, folder = place / "photos" / "cat.png" if model == "vit" else TEXT, place / model
    (shown, *maps) = page("explain", given, model=str(folder), methods=ALSO)
    maps = {one["map"]["method"]: one["map"] for one in maps if "map" in one}
    entry = by_report(tmp_path, folder, given, *ALSO)
    ranks = by_bench(tmp_path, folder, given, *ALSO, protocol="agreement", view="crop")
    for method in ALSO:
        found = in_python(folder, given, method)
        scores, best = found.scores[0].double().numpy(), found.target.first[0]
        saved = by_command(tmp_path, folder, given, method)
        assert_close(saved.scores, found.scores, atol=0, rtol=0)
        most = found.shown.abs().max().item()
        np.testing.assert_allclose(unpacked(maps[method]["scores"]), found.shown[0], atol=most / INTEGERS + 1e-6)
        assert ranks[method]["ranks"]["ranks"] == (2 * scipy.stats.rankdata(scores)).astype(int).tolist()
        assert shown["case"]["target"]["index"] == best
        likely = found.provenance["probability"][0]
        for other in (shown["case"]["target"]["probability"], entry.probability, entry.rows[0].probability):
            assert other == pytest.approx(likely, rel=1e-5)
    assert entry.answer == shown["case"]["target"]["name"]


@pytest.mark.parametrize("model", ["bert", "gpt2"])
@pytest.mark.parametrize("method", ALSO)
def test_words_are_removed_in_the_order_of_the_scores_everywhere(model, method, place, page, tmp_path):
    """The model of GPT-2 reads its answer at a word that pictures of a map leave out."""
    folder, loaded = place / model, load(place / model)
    (removed,) = page("remove", TEXT, model=str(folder), method=method)
    (shown,) = by_report(tmp_path, folder, TEXT, method).rows[0].maps
    stored = by_bench(tmp_path, folder, TEXT, method)[method]["text_deletion"]
    sample = loaded.text(TEXT)
    found, ids = in_python(folder, TEXT, method), sample.inputs["input_ids"]

    def score(ids, mask):
        with torch.no_grad():
            return loaded.model(input_ids=ids, attention_mask=mask).logits

    special = set(loaded.tokenizer.all_special_ids) - {loaded.tokenizer.unk_token_id}
    expected = metrics.text_curve(
        score, [*ids], [*found.scores], torch.tensor(found.target.first), special=special, how="cut",
        pad=loaded.tokenizer.pad_token_id,
    )  # fmt: skip
    expected = [*expected.p_k[0]]
    for curve in (removed["curve"], shown.curve, stored["p_k"]):
        np.testing.assert_allclose(curve, expected, atol=1e-6)
    assert stored["p"] == pytest.approx(expected[0], abs=1e-6)


@pytest.mark.parametrize("model", ["bert", "gpt2", "vit"])
def test_two_methods_agree_as_much_everywhere(model, place, page, tmp_path):
    given, folder = place / "photos" / "cat.png" if model == "vit" else TEXT, place / model
    both = ("gae", "attcat")
    matrix = page("compare", given, model=str(folder), methods=both)[0]["agreement"]
    ranks = by_bench(tmp_path, folder, given, *both, protocol="agreement", view="crop")
    expected = np.corrcoef([ranks[method]["ranks"]["ranks"] for method in both])[0, 1]
    assert matrix[0][1] == pytest.approx(expected, abs=1e-6)
    assert by_report(tmp_path, folder, given, *both).rows[0].mean_agreement == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", ["gae", "tokentm", "integrated_gradients"])
def test_patches_are_removed_in_the_order_of_the_scores(method, place, page, tmp_path):
    """On the page, where they can be pointed at, and by a protocol of the bench."""
    folder, given = place / "vit", place / "photos" / "cat.png"
    (removed,) = page("remove", given, model=str(folder), method=method, fill="black")
    (stored,) = by_bench(tmp_path, folder, given, method, levels=list(LEVELS), view="crop", units="patches").values()
    np.testing.assert_allclose(removed["curve"], stored["positive"]["probability"], atol=1e-6)


@pytest.mark.parametrize("method", ["gae", "tokentm", "integrated_gradients(level=pixels)"])
def test_pixels_are_removed_in_the_order_of_the_scores(method, place, tmp_path):
    """By the report, and by the bench as most papers do.

    A map that is made larger has equal scores at its rim, between which the last digit decides. It is not the same in
    the bench, which scales a batch of pictures by itself.
    """
    folder, given, (name, options) = place / "vit", place / "photos" / "cat.png", vitrail.methods.parse_spec(method)
    (shown,) = of_inputs(str(folder), given, [(name, options)], curves=True).entries[0].rows[0].maps
    if options:
        (stored,) = by_bench(tmp_path, folder, given, method, levels=list(LEVELS), view="crop").values()
        expected = stored["positive"]["probability"]
    else:
        loaded, found = load(folder), in_python(folder, given, name)
        pixels = seen_pixels(loaded, loaded.image(open_image(given)).picture)
        maps = found.scores.reshape(1, *found.grid)
        (expected,) = metrics.perturbation_curve(
            loaded.logits, pixels, maps, torch.tensor(found.target.first), levels=LEVELS
        ).curve
    np.testing.assert_allclose(shown.curve, expected, atol=1e-6)


def test_an_answer_rests_on_the_same_passages_everywhere(page, tmp_path):
    prompt, loaded = "Anna: ring. Boris: key. Clara: lamp. Boris:", load("lookup")
    found = vitrail.generate(loaded.model, loaded.tokenizer, prompt, max_new_tokens=4)
    arguments = ["answer", prompt, "-m", "lookup", "--tokens", "4", "-o", str(tmp_path / "answer.json")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    saved = json.loads((tmp_path / "answer.json").read_text())
    (shown,) = page("answer", prompt, model="lookup", length=4)
    assert found.text == saved["text"] == shown["text"] == "key."
    (table,), (scores,) = found.tables.values(), saved["tables"].values()
    np.testing.assert_array_equal(np.array(scores, dtype=np.float32), np.float32(table))
    most = np.abs(scores).max()
    prompt_scores = np.ravel(scores)[: len(shown["prompt"])]
    np.testing.assert_allclose(unpacked(shown["scores"]), prompt_scores, atol=most / INTEGERS)
    cited = [(one.passage.source, one.passage.text.strip(), one.score) for one in found.cite(2)[0]]
    assert [(one["source"], one["text"]) for one in shown["cited"][0][:2]] == [one[:2] for one in cited]
    assert [one["share"] for one in shown["cited"][0][:2]] == pytest.approx([one[2] for one in cited], abs=1e-6)


DOORS = ("python", "command", "page", "report", "bench")
REFUSALS = {
    "a method that does not exist": ("vit", "cat.png", "gea", None, "unknown method 'gea'. Did you mean gae?", DOORS),
    "a method of pictures": ("bert", TEXT, "tis", None, "tis explains image inputs, but these are text.", DOORS),
    "a method of texts": ("vit", "cat.png", "ifr", None, "ifr explains text inputs, but these are image.", DOORS),
    "a damaged picture": ("vit", "cut.png", "gae", None, "cannot be read as an image", DOORS),
    "a text with nothing to see": ("bert", "\u200b", "gae", None, "is empty: there is nothing to explain.", DOORS),
    "a text that is too long": ("bert", "fox " * 40, "gae", None, "the text has 42 tokens, but Bert", DOORS[:4]),
    "a class that does not exist": (
        "vit", "cat.png", "gae", 4, "target 4 is out of range: the model has 4 classes, 0 to 3.", DOORS[:4],
    ),
}  # fmt: skip
"""Model, input, method, target, words, and the doors that take it; the bench cuts texts as the papers do."""


@pytest.mark.parametrize(("case", "door"), [(case, door) for case, known in REFUSALS.items() for door in known[5]])
def test_the_same_input_is_refused_in_the_same_words(case, door, place, page, tmp_path):
    model, given, method, target, words, _ = REFUSALS[case]
    folder, given = place / model, place / "photos" / given if given.endswith(".png") else given

    def ask():
        if door == "python":
            return in_python(folder, given, method, target)
        if door == "command":
            return by_command(tmp_path, folder, given, method, target)
        if door == "page":
            return page("explain", given, model=str(folder), methods=(method,), target=target)
        if door == "report":
            return by_report(tmp_path, folder, given, method, target=target)
        return by_bench(tmp_path, folder, given, method)

    with pytest.raises(VitrailError) as caught:
        ask()
    assert words in " ".join(str(caught.value).split())
