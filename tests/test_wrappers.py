"""What people hand in as a model: wrapped, offloaded, quantized, held by an object of another library, or no model."""

import copy
import os

import pytest
import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from applying import cheaply
from tiny_models import BERT, MODELS
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.capture.provenance import fingerprint
from vitrail.errors import InputError, OptionError, TargetError, VitrailError

INPUTS = MODELS["hf_bert"].inputs(dtype=torch.float32)
SOME = ["gae", "attn_lrp", "auto"]


def bert():
    torch.manual_seed(0)
    return MODELS["hf_bert"].build().eval()


def check_same(model, methods=SOME, **tolerance):
    for method in methods:
        found, expected = (vitrail.explain(m, INPUTS, method, 1) for m in (model, bert()))
        assert found.method == expected.method
        assert_close(found.scores, expected.scores, msg=lambda m, method=method: f"{method}: {m}", **tolerance)


def test_data_parallelism_is_explained_as_the_model_inside_under_its_own_name_and_hash():
    found, expected = (vitrail.explain(m, INPUTS, "gae", 1) for m in (nn.DataParallel(bert()), bert()))
    assert torch.equal(found.scores, expected.scores)
    for key in ("model", "model_class", "model_hash"):
        assert found.provenance[key] == expected.provenance[key]
    hashes = {a.provenance["model_hash"] for a in vitrail.compare(nn.DataParallel(bert()), INPUTS, SOME, 1)}
    assert hashes == {expected.provenance["model_hash"]}
    assert vitrail.explain(nn.DataParallel(bert()), INPUTS, "attn_lrp").provenance["model_hash"] in hashes


@pytest.fixture
def one_process():
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29571")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_distributed_wrappers_are_passed_through_or_refused_with_words():
    check_same(nn.parallel.DistributedDataParallel(bert()), ["gae", "attn_lrp"])
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = bert()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(VitrailError, match=r"spread.* over processes"):
        vitrail.explain(sharded, INPUTS, "gae", 1)


def offloaded(how, folder):
    accelerate = pytest.importorskip("accelerate")
    device = torch.device("cpu")
    if how == "cpu":
        return accelerate.cpu_offload(bert(), execution_device=device)
    if how == "disk":
        return accelerate.disk_offload(bert(), str(folder), execution_device=device)
    where = {"bert": "cpu", "dropout": "cpu", "classifier": "disk"}
    return accelerate.dispatch_model(bert(), where, main_device="cpu", offload_dir=str(folder))


@pytest.mark.parametrize("how", ["cpu", "disk", "dispatch"])
def test_offloaded_models_are_explained_and_the_hash_says_what_it_lacks(how, tmp_path):
    model = offloaded(how, tmp_path)
    check_same(model)
    found = vitrail.explain(model, INPUTS, "gae", 1)
    lacking = 2 if how == "dispatch" else sum(1 for _ in model.parameters())
    assert found.provenance["model_hash_lacks"] == f"the values of {lacking} weights"
    assert [p.device.type for p in model.classifier.parameters()] == ["meta", "meta"]


def test_weights_of_torchao_are_read_for_the_hash():
    torchao = pytest.importorskip("torchao.quantization")
    first, other = bert(), bert()
    nn.init.normal_(other.classifier.weight)
    for model in (first, other):
        torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    check_same(first, ["gae"], atol=1e-3, rtol=1e-2)
    explained = vitrail.explain(first, INPUTS, "auto", 1)
    assert explained.method == "consensus"
    assert "model_hash_lacks" not in explained.provenance
    assert fingerprint(first) == fingerprint(copy.deepcopy(first)) != fingerprint(other)


def test_kernels_without_a_gradient_are_refused_with_words():
    torchao = pytest.importorskip("torchao.quantization")
    model = bert()
    torchao.quantize_(model, torchao.Int8DynamicActivationInt8WeightConfig())
    for method in SOME:
        with pytest.raises(VitrailError, match=r"8-bit kernels|does not run in float64"):
            vitrail.explain(model, INPUTS, method, 1)


class EightBit(nn.Module):
    """Integers that are made numbers of one dtype in the forward pass, as 8-bit layers do."""

    def __init__(self, layer, dtype):
        super().__init__()
        scale = layer.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        self.weight = nn.Parameter((layer.weight.detach() / scale).round().to(torch.int8), requires_grad=False)
        self.scale, self.bias, self.dtype = scale, layer.bias, dtype

    def forward(self, x):
        weight = self.weight.to(self.dtype) * self.scale.to(self.dtype)
        return F.linear(x, weight, None if self.bias is None else self.bias.to(self.dtype))


def with_eight_bits(model, dtype):
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, EightBit(child, dtype))
    return model


def test_eight_bit_layers_run_as_they_are_and_another_precision_is_refused_with_words():
    model = with_eight_bits(bert(), torch.float32)
    check_same(model, ["gae", "auto"], atol=2e-2, rtol=5e-2)
    with pytest.raises(OptionError, match=r"does not run in float64.*precision='float32'"):
        vitrail.explain(model, INPUTS, "attn_lrp", 1, precision="float64")
    found = vitrail.explain(model, INPUTS, "attn_lrp", 1)
    assert_close(found.scores, vitrail.explain(bert(), INPUTS, "attn_lrp", 1).scores, atol=1e-3, rtol=5e-2)


def test_the_default_explains_eight_bit_layers_in_the_precision_they_keep():
    model = with_eight_bits(bert().bfloat16(), torch.bfloat16)
    found = vitrail.explain(model, INPUTS, target=1)
    assert found.method == "consensus"
    assert "default" not in found.provenance
    single = vitrail.explain(with_eight_bits(bert(), torch.float32), INPUTS, target=1).scores
    assert_close(single, vitrail.explain(bert(), INPUTS, target=1).scores, atol=2e-2, rtol=5e-2)


def tokenizer_and_model(folder, labels):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt"))
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**{**BERT, "num_labels": labels}))
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return tokenizer, model.eval()


def test_a_cross_encoder_is_explained_as_the_model_inside(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    tokenizer, model = tokenizer_and_model(tmp_path, labels=1)
    encoder = library.CrossEncoder(str(tmp_path), device="cpu")
    inputs = tokenizer(["a b c", "d"], ["e f", "g h i"], return_tensors="pt", padding=True)
    for method in SOME:
        found, expected = (vitrail.explain(m, inputs, method, 0) for m in (encoder, model))
        assert_close(found.scores, expected.scores, atol=1e-6, rtol=1e-4)
        assert found.tokens == expected.tokens


def test_a_sentence_embedding_is_explained_by_a_function_of_it(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    tokenizer, _ = tokenizer_and_model(tmp_path, labels=1)
    parts = library.sentence_transformer.modules if hasattr(library, "sentence_transformer") else library.models
    transformer = parts.Transformer(str(tmp_path))
    model = library.SentenceTransformer(modules=[transformer, parts.Pooling(24)], device="cpu")
    inputs = tokenizer(["a b c", "d e f"], return_tensors="pt")
    other = torch.randn(1, 24)
    likeness = lambda embedding: F.cosine_similarity(embedding, other)  # noqa: E731
    for wrong in (None, 3, [0, 1]):
        with pytest.raises(TargetError, match=r"embedding.*target=lambda embedding"):
            vitrail.explain(model, inputs, "gae", wrong)
    found = vitrail.explain(model, inputs, "input_x_gradient", likeness, level="inputs_embeds").scores

    inner = copy.deepcopy(model[0].auto_model).eval()
    words = inner.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    mean = inner(inputs_embeds=words, attention_mask=inputs["attention_mask"]).last_hidden_state.mean(dim=1)
    (gradient,) = torch.autograd.grad(likeness(mean).sum(), words)
    assert_close(found, (words * gradient).sum(dim=2).detach(), atol=1e-6, rtol=1e-4)
    assert vitrail.explain(model, inputs, "gae", likeness).scores.shape == (2, 5)


@pytest.mark.parametrize("normalised", [False, True])
def test_the_similarity_of_sentence_embeddings_is_that_of_the_model_inside(tmp_path, normalised):
    library = pytest.importorskip("sentence_transformers")
    tokenizer, _ = tokenizer_and_model(tmp_path, labels=1)
    parts = library.sentence_transformer.modules if hasattr(library, "sentence_transformer") else library.models
    last = [parts.Normalize()] if normalised else []
    steps = [parts.Transformer(str(tmp_path)), parts.Pooling(24), *last]
    model = library.SentenceTransformer(modules=steps, device="cpu")
    inner = copy.deepcopy(model[0].auto_model).eval()
    alike = targets.similarity(model.encode(["d e f", "g a"]))
    inputs = tokenizer(["a b c", "d e f g h"], return_tensors="pt", padding=True)
    for method, options in cheaply(["auto", "gae", "tokentm", "attcat", "attn_lrp", "integrated_gradients"]):
        found, expected = (vitrail.explain(m, inputs, method, alike, **options) for m in (model, inner))
        assert_close(found.scores, expected.scores, atol=1e-6, rtol=1e-4)
        assert found.tokens == expected.tokens
        assert float(found.scores.abs().sum()) > 0
    alone = vitrail.explain(model, tokenizer("a b c", return_tensors="pt"), "gae", targets.similarity(alike.other[:1]))
    assert_close(alone.scores, vitrail.explain(model, inputs, "gae", alike).scores[:1, :5], atol=1e-6, rtol=1e-4)


def test_a_pipeline_stands_for_its_model(tmp_path):
    tokenizer, model = tokenizer_and_model(tmp_path, labels=3)
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    inputs = tokenizer(["a b c"], return_tensors="pt")
    found, expected = (vitrail.explain(m, inputs, "gae", 1).scores for m in (pipeline, model))
    assert torch.equal(found, expected)


class Holder:
    def __init__(self):
        self.model = bert()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "None"),
        (transformers.BertForSequenceClassification, "the class BertForSequenceClassification"),
        (lambda x: x, "a function"),
        (Holder(), r"a Holder, which holds one: pass its \.model"),
        (3, "int"),
    ],
)
@pytest.mark.parametrize("call", [vitrail.explain, vitrail.record, lambda m, x: vitrail.compare(m, x, ["gae"])])
def test_what_is_no_model_is_one_clear_error(given, words, call):
    with pytest.raises(InputError, match=f"a model is a torch.nn.Module, but this is .*{words}"):
        call(given, INPUTS)


@pytest.mark.parametrize("options", [{"reg_tokens": 4}, {"reg_tokens": 4, "class_token": False}, {}])
def test_a_pooling_query_that_leaves_out_the_prefix_gives_it_nothing(options):
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=64,
        depth=2,
        num_classes=3,
        global_pool="map",
        **{"class_token": True, **options},
    )
    model = model.double().eval()
    for attention in (*(block.attn for block in model.blocks), model.attn_pool):
        attention.fused_attn = False
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    maps = []
    softmax = torch.Tensor.softmax

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if func is softmax:
                maps.append(out)
            return out

    with Watch():
        logits = model(x)
    gradients = torch.autograd.grad(logits[:, 1].sum(), maps)
    mixing = [(a * g).clamp(min=0).mean(dim=1).detach() for a, g in zip(maps, gradients, strict=True)]
    prefix = model.num_prefix_tokens
    relevance = F.pad(mixing[-1], (prefix, 0)).mean(dim=1, keepdim=True)
    for step in reversed(mixing[:-1]):
        relevance = relevance + relevance @ step
    found = vitrail.explain(model, x, "gae", 1)
    assert_close(found.scores, relevance[:, 0, prefix:])
    for method in ("rollout", "tokentm", "le_grad", "att_grads", "agcam", "gradtoken", "auto"):
        assert vitrail.explain(model, x, method, 1).scores.shape == (2, 16)
