import pytest
import timm
from safetensors.torch import save_file

import vitrail


def failed(result):
    """The one line that a deliberate error leaves on stderr."""
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("loading ")]
    assert line.startswith("error: ")
    return line


VIT, BERT = ("-m", "vit"), ("-m", "bert")
WRONG = [
    (("cat.png", *VIT, "--method", "gea"), "Did you mean gae"),
    (("cat.png", *VIT, "--method", "gradtoken(dept=1)"), "Did you mean depth"),
    (("cat.png", *VIT, "--method", "gradtoken(depth=one)"), "not a whole number"),
    (("cat.png", *VIT, "--method", "tokentm(ffn=maybe)"), "not true or false"),
    (("cat.png", *VIT, "--method", "gradtoken(depth"), "name(option=value"),
    (("cat.png", *VIT, "--method", "gradtoken(depth)"), "write option=value"),
    (("cat.png", *VIT, "--method", "gradtoken(depth=1,depth=1)"), "twice"),
    (("cat.png", *VIT, "--method", "gradtoken(scheme=all)"), "not a choice"),
    (("cat.png", *VIT, "--method", "gradtoken(depth=9)"), "blocks 1 to 1"),
    (("cat.png", *VIT, "--preset", "best"), "no preset 'best'"),
    (("cat.png", *VIT, "-t", "4"), "out of range: the model has 4 classes, 0 to 3"),
    (("cat.png", *VIT, "-t", "boxxer"), "Did you mean boxer"),
    (("cat.png", *VIT, "-t", "crane"), "2 (crane); 3 (Crane)"),
    (("cat.png", *VIT, "--versus", "boxer"), "name one with --target"),
    (("cat.png", *VIT, "--pair", "x"), "--pair does not apply"),
    (("cat.png", *VIT, "--device", "abacus"), "abacus"),
    (("dog.png", *VIT), "there is no file dog.png"),
    (("vit/config.json", *VIT), "cannot be read as an image"),
    (VIT, "nothing to explain"),
    (("cat.png", *BERT), "not .txt"),
    ((" ", *BERT), "empty"),
    (("absent.txt", *BERT), "there is no file absent.txt"),
    (("a " * 20, *BERT), "22 tokens"),
    (("a film", *BERT, "--question", "who"), "--question does not apply"),
    (("a film", "-m", "question_bert"), "--question TEXT and --context TEXT"),
    (("a", "--question", "b", "-m", "question_bert", "-t", "1"), "leave out --target"),
    (("a", "-m", "gpt2", "-t", "fox man"), "2 tokens"),
    (("vit", *VIT), "-o FOLDER"),
    (("vit", *VIT, "-o", "maps"), "there are no images"),
    (("vit", *BERT, "-o", "maps"), "reads text"),
    (("cat.png", "-m", "cat.pth"), "pickle"),
    (("cat.png", "-m", "weights.safetensors", "--arch", "test_efficientnet"), "no classifier.weight"),
]


@pytest.mark.parametrize(("args", "words"), WRONG, ids=[words for _, words in WRONG])
def test_bad_input_is_one_line(run, args, words):
    assert words in failed(run("explain", *args))


@pytest.mark.parametrize(
    ("output", "words"), [("out.gif", "no known ending"), ("no/out.png", "no folder"), ("vit", "is a folder")]
)
def test_an_output_that_cannot_be_written_is_found_before_the_model_loads(run, output, words):
    result = run("explain", "cat.png", "-m", "no-such-model", "-o", output)
    assert words in failed(result)
    assert "loading" not in result.stderr


def test_an_output_without_permission_is_found_before_the_model_loads(run, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # whoever runs as root may write anywhere
    assert "no permission" in failed(run("explain", "cat.png", "-m", "no-such-model", "-o", "out.png"))


def test_a_model_without_anatomy_is_one_line(run, tmp_path):
    model = timm.create_model("test_efficientnet", num_classes=3)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    result = run("explain", "cat.png", "-m", tmp_path / "w.safetensors", "--arch", "test_efficientnet")
    assert "no attention was seen in EfficientNet" in failed(result)


def test_debug_lets_the_error_through(run):
    result = run("explain", "dog.png", "-m", "vit", "--debug")
    assert isinstance(result.exception, vitrail.VitrailError)
