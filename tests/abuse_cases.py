# ruff: noqa: E501
"""Bad input, one line a case: a command line, or a piece of Python. Paths are those that `make_place` writes."""

import io
import json
import os
import sqlite3
import struct
import zipfile
import zlib
from itertools import product
from pathlib import Path

from bombs import bomb
from PIL import Image

LONG = "x" * 300 + ".png"


def make_place(folder: Path) -> None:
    """Write every file that the cases name."""
    Image.new("RGB", (40, 30), "red").save(folder / "ok.png")
    (folder / "ok.txt").write_text("a dull film")
    _pictures(folder)
    _texts(folder)
    _models(folder)
    _saved_models(folder)
    _results(folder)
    for name, text in PLANS.items():
        (folder / f"{name}.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "photos").mkdir()
    Image.new("RGB", (40, 30), "blue").save(folder / "photos" / "one.png")
    (folder / "empty").mkdir()
    (folder / "old.json").write_text("{}")
    (folder / "link.png").symlink_to("ok.png")
    os.link(folder / "ok.png", folder / "hard.png")


def _pictures(folder: Path) -> None:
    png = (folder / "ok.png").read_bytes()
    ps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    gif = io.BytesIO()
    Image.new("L", (5, 5)).save(gif, "GIF")
    files = {
        "zero.png": b"",
        "cut.png": png[: len(png) // 2],
        "head.png": png[:8],
        "words.png": b"this is no picture",
        "nul.png": bytes(1000),
        "script.png": ps,
        "script.jpg": ps,
        "bomb.png": bomb(50_000, 50_000),
        "edge.png": bomb(11_000, 11_000),
        "wide.png": bomb(2**31 - 1, 1),
        "flat.png": bomb(0, 5),
        "cut.jpg": b"\xff\xd8\xff\xe0" + bytes(50),
        "cut.webp": b"RIFF\x10\x00\x00\x00WEBPVP8 ",
        "cut.tiff": b"II*\x00\xff\xff\xff\xff",
        "cut.gif": gif.getvalue()[:12],
        "page.png": b"<html><script>alert(1)</script></html>",
        "drawing.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "zip.png": b"PK\x03\x04" + bytes(40),
        "pdf.png": b"%PDF-1.4\n",
        "crc.png": png[:40] + bytes([png[40] ^ 255]) + png[41:],
        "text_bomb.png": png[:33] + _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(50_000_000))) + png[33:],
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    Image.new("I", (4, 4), 70000).save(folder / "deep.tiff")
    Image.new("F", (4, 4), float("nan")).save(folder / "nan.tiff")
    os.mkfifo(folder / "pipe.png")
    for name, target in {"loop.png": "loop.png", "zero_device.png": "/dev/zero"}.items():
        (folder / name).symlink_to(target)


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


BAD_IMAGES = (
    "zero.png", "cut.png", "head.png", "words.png", "nul.png", "script.png", "script.jpg", "bomb.png", "edge.png",
    "wide.png", "flat.png", "cut.jpg", "cut.webp", "cut.tiff", "cut.gif", "page.png", "drawing.png", "zip.png",
    "pdf.png", "deep.tiff", "absent.png", LONG, "https://example.org/cat.png", "model.json", "crc.png", "text_bomb.png",
    "nan.tiff", "pipe.png", "loop.png", "zero_device.png", "/proc/self/mem", "file:///etc/passwd", "ok.png/",
)  # fmt: skip


def _texts(folder: Path) -> None:
    files = {
        "zero.txt": b"",
        "blank.txt": b" \n\t\n",
        "latin.txt": "caf\xe9".encode("latin-1"),
        "wide.txt": "a film".encode("utf-16"),
        "bytes.txt": bytes(range(128, 256)),
        "hidden.txt": "\u200b\u200d\u2060".encode(),
        "long.txt": b"a film " * 4000,
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)


BAD_TEXTS = (
    "zero.txt", "blank.txt", "latin.txt", "wide.txt", "bytes.txt", "hidden.txt", "long.txt", "absent.txt", "", "   ",
    "\u200b", "ok.png", "\udcff\udcfe",
)  # fmt: skip


def _header(tensors: dict) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


def _models(folder: Path) -> None:
    vit = {
        "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8, "image_size": 32, "patch_size": 16,
    }  # fmt: skip
    empty = _header({})
    models = {
        "no_config": {"readme.md": b"nothing"},
        "broken_config": {"config.json": b"{"},
        "list_config": {"config.json": b"[1, 2]"},
        "no_weights": {"config.json": json.dumps(vit).encode()},
        "no_task": {"config.json": json.dumps({**vit, "architectures": ["ViTModel"]}).encode()},
        "no_names": {"config.json": json.dumps({**vit, "architectures": None}).encode()},
        "unknown_type": {"config.json": json.dumps({**vit, "model_type": "nonsense"}).encode()},
        "deep": {"config.json": json.dumps({**vit, "num_hidden_layers": 200_000}).encode(), "model.safetensors": empty},
        "huge": {"config.json": json.dumps({**vit, "hidden_size": 2**40}).encode(), "model.safetensors": empty},
        "outside": {
            "config.json": json.dumps(vit).encode(),
            "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": {"a": "../ok.png"}}).encode(),
        },
        "own_code": {"config.json": json.dumps({**vit, "auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"})
                     .encode(), "evil.py": b"import os; os._exit(3)"},
        "garbage": {"config.json": json.dumps(vit).encode(), "model.safetensors": b"garbage"},
        "pickled": {"config.json": json.dumps(vit).encode(), "pytorch_model.bin": b"garbage"},
        "bare": {"config.json": json.dumps(vit).encode(), "model.safetensors": empty},
    }  # fmt: skip
    for name, files in models.items():
        (folder / name).mkdir()
        for file, data in files.items():
            (folder / name / file).write_bytes(data)
    (folder / "model.json").write_text("{}")
    (folder / "cat.pth").write_bytes(b"garbage")
    (folder / "garbage.safetensors").write_bytes(b"garbage")
    (folder / "empty.safetensors").write_bytes(empty)
    huge = {"head.weight": {"dtype": "F32", "shape": [100_000_000, 0], "data_offsets": [0, 0]}}
    (folder / "hollow.safetensors").write_bytes(_header(huge))
    (folder / "announced.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")


PROCESSOR = {
    "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 32, "width": 32}, "resample": 2,
    "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip
ODD_PROCESSORS = {
    "size 64": {"size": {"height": 64, "width": 64}}, "size huge": {"size": {"height": 100_000, "width": 100_000}},
    "size zero": {"size": {"height": 0, "width": 0}}, "size negative": {"size": {"height": -4, "width": 32}},
    "size word": {"size": "big"}, "std zero": {"image_std": [0, 0, 0]}, "mean nan": {"image_mean": [float("nan")] * 3},
    "two means": {"image_mean": [0.5, 0.5]}, "no such class": {"image_processor_type": "NoSuchProcessor"},
}  # fmt: skip
ODD_CONFIGS = {
    "few labels": {"id2label": {"0": "a"}}, "labels a word": {"id2label": "abc"}, "no layers": {"num_hidden_layers": -1},
    "no heads": {"num_attention_heads": 0}, "three heads": {"num_attention_heads": 3}, "no patch": {"patch_size": 0},
    "large patch": {"patch_size": 64}, "activation": {"hidden_act": "os.system"}, "dtype": {"dtype": "float3"},
    "int8": {"dtype": "int8"}, "another class": {"architectures": ["BertForSequenceClassification"]},
    "number for a class": {"architectures": [3]}, "another type": {"model_type": "bert"}, "grey": {"num_channels": 1},
    "quantised": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
}  # fmt: skip
ODD_INDEXES = {"up": "../outside.safetensors", "absolute": "/etc/passwd", "number": 3}


def _saved_models(folder: Path) -> None:
    """One small model again and again, each time with something that does not fit."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=32,
        patch_size=16,
        num_labels=3,
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder / "good")
    weights = (folder / "good" / "model.safetensors").read_bytes()
    config_text = json.loads((folder / "good" / "config.json").read_text())

    def save(name: str, config: dict | None = None, processor: dict | None = None) -> Path:
        place = folder / name
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps({**config_text, **(config or {})}))
        (place / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **(processor or {})}))
        (place / "model.safetensors").write_bytes(weights)
        return place

    for name, changed in ODD_PROCESSORS.items():
        save(f"processor {name}", processor=changed)
    for name, changed in ODD_CONFIGS.items():
        save(f"config {name}", config=changed)
    tensors = load_file(save("good") / "model.safetensors")
    (folder / "outside.safetensors").write_bytes(weights)
    for name, file in ODD_INDEXES.items():
        place = save(f"index {name}")
        (place / "model.safetensors").unlink()
        (place / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(tensors, file)})
        )
    changes = {
        "shape": {"classifier.weight": torch.zeros(3, 9)},
        "nan": {n: x * float("nan") for n, x in tensors.items()},
    }
    for name, changed in changes.items():
        save_file({**tensors, **changed}, save(f"weights {name}") / "model.safetensors", metadata={"format": "pt"})
    (save("weights cut") / "model.safetensors").write_bytes(weights[:-100])
    save("no processor").joinpath("preprocessor_config.json").unlink()


ODD_MODELS = (
    *(f"processor {name}" for name in ODD_PROCESSORS), *(f"config {name}" for name in ODD_CONFIGS),
    *(f"index {name}" for name in ODD_INDEXES), "weights shape", "weights nan", "weights cut", "no processor",
)  # fmt: skip
BAD_MODELS = (
    "phto", "sentimnt", "vit_tiny_patch16_223", "./absent", "no_config", "broken_config", "list_config", "no_weights",
    "no_task", "no_names", "unknown_type", "deep", "huge", "outside", "own_code", "garbage", "pickled", "bare",
    "cat.pth", "garbage.safetensors", "empty.safetensors", "absent.safetensors", "", "x" * 2000, "ok.png",
    "PHOTO", "photo ", "photo\u200b", "hf-hub:", "timm/", "a/b/c/d", "owner/name\n", "~", "https://example.org/model",
    *ODD_MODELS,
)  # fmt: skip
BAD_WEIGHTS = ("garbage", "empty", "hollow", "announced", "absent")


def _results(folder: Path) -> None:
    (folder / "zero.db").write_bytes(b"")
    (folder / "words.db").write_bytes(b"this is no data base")
    (folder / "cut.db").write_bytes(b"SQLite format 3\x00" + bytes(20))
    for name, script in {
        "other.db": "CREATE TABLE t (x)",
        "half.db": "PRAGMA application_id = 1447646290",
        "newer.db": "PRAGMA application_id = 1447646290; PRAGMA user_version = 99",
    }.items():
        connection = sqlite3.connect(folder / name)
        connection.executescript(script)
        connection.close()
    with zipfile.ZipFile(folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(5_000_000))
        archive.writestr("../outside.png", b"x")


PLANS = {
    "plan_empty": "", "plan_list": "- 1\n", "plan_word": "hello", "plan_bytes": b"\xff\xfe\x00", "plan_tab": "a:\n\t- b",
    "plan_unknown": "modles: [photo]", "plan_models": "models: photo", "plan_number": "models: [3]",
    "plan_seed": "models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]\nseed: 1e40",
    "plan_big_seed": f"models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]\nseed: {2**70}",
    "plan_batch": "models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]\nbatch: many",
    "plan_zero": "models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]\nbatch: 0",
    "plan_limit": "models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]\nlimit: -3",
    "plan_method": "models: [photo]\ndata: [demo_pictures]\nmethods: [gea]\nprotocols: [vitrail]",
    "plan_option": "models: [photo]\ndata: [demo_pictures]\nmethods: ['gradtoken(dept=1)']\nprotocols: [vitrail]",
    "plan_method_map": "models: [photo]\ndata: [demo_pictures]\nmethods: [{a: 1}]\nprotocols: [vitrail]",
    "plan_options_word": "models: [photo]\ndata: [demo_pictures]\nmethods: [{name: gae, options: x}]\nprotocols: [vitrail]",
    "plan_protocol": "models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [chefr]",
    "plan_metrics": "models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]\nmetrics: 3",
    "plan_data": "models: [photo]\ndata: [nowhere]\nmethods: [gae]\nprotocols: [vitrail]",
    "plan_data_path": "models: [photo]\ndata: ['pets=absent']\nmethods: [gae]\nprotocols: [vitrail]",
    "plan_device": "models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]\ndevice: abacus",
    "plan_dtype": "models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]\ndtype: float3",
    "plan_null": "models: null\ndata: null\nmethods: null\nprotocols: null",
    "plan_code": "models: !!python/object/apply:os.system ['touch evil']",
    "plan_nested": "models: [[[photo]]]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]",
    "plan_target": "models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]\ntarget: nobody",
    "plan_preset": "models: [photo]\ndata: [demo_pictures]\nmethods: [gae]\nprotocols: [vitrail]\npreset: best",
    "plan_key": "3: [photo]", "plan_deep": "[" * 600, "plan_date": "models: [2020-01-01]\ndata: [demo_pictures]",
    "plan_merge": "<<: 3\nmodels: [photo]", "plan_two": "models: [photo]\n---\nmodels: [photo]",
}  # fmt: skip

PHOTO, FEELING = ("-m", "photo"), ("-m", "sentiment")
ON_IMAGES = ("explain", "guide", "rewrite")
ON_TEXTS = ("explain", "transfer")
MORE = {"rewrite": ("-t", "church")}
BAD_OPTIONS = {
    "method": ("--method", "gea"), "option": ("--method", "gradtoken(dept=1)"), "value": ("--method", "tokentm(ffn=x)"),
    "bracket": ("--method", "gae("), "empty method": ("--method", ""), "preset": ("--preset", "best"),
    "device": ("--device", "abacus"), "meta": ("--device", "meta"), "no such gpu": ("--device", "cuda:99"),
    "class": ("-t", "golf bal"), "index": ("-t", "10"), "negative": ("-t", "-1"), "large": ("-t", str(2**70)),
    "fraction": ("-t", "1.5"), "versus alone": ("--versus", "church"), "same": ("-t", "8", "--versus", "8"),
    "unknown": ("--nope",), "no value": ("--method",), "twice": ("-o", "a.png", "-o", "b.png"),
    "two models": ("-m", "sentiment"), "pair": ("--pair", "x"), "question": ("--question", "x"),
    "arch": ("--arch", "vit_tiny_patch16_224"), "surrogate": ("-t", "\udcff"), "huge number": ("--method", "gradtoken(depth=" + "9" * 400 + ")"),
    "infinite": ("--method", "consensus(power=inf)"), "auto option": ("--method", "auto(nope=1)"),
    "upper case": ("--method", "GAE"), "two methods": ("--method", "gae,rollout"), "no class": ("-t", ""),
    "hexadecimal": ("-t", "0x8"), "no preset": ("--preset", ""), "no device": ("--device", ""),
    "layer": ("--method", "rollout(start_layer=99)"), "code": ("--method", "__import__('os')"),
    "twice an option": ("--method", "gradtoken(depth=1,depth=2)"), "for texts": ("--method", "context_cite"),
    "two arguments": ("second.png",), "steps": ("--method", "integrated_gradients(steps=0)"),
}  # fmt: skip
BAD_OUTPUTS = {
    "ending": "map.gif", "no ending": "map", "folder": "empty", "no folder": "absent/map.png", "input": "ok.png",
    "link": "link.png", "hard link": "hard.png", "long": LONG, "under a file": "ok.png/map.png", "loop": "loop.png",
    "space": "map.png ", "address": "https://x/y.png", "home": "~/x.png", "up": "absent/../map.png",
}  # fmt: skip
BENCH = {
    "nothing": ("run",), "no data": ("run", "-m", "photo"), "no model": ("run", "-d", "photos"),
    "quick and more": ("run", "--quick", "-m", "photo"), "no such data": ("run", "-m", "photo", "-d", "nowhere=x"),
    "absent data": ("run", "-m", "photo", "-d", "absent/"), "empty data": ("run", "-m", "photo", "-d", "empty/"),
    "protocol": ("run", "-m", "photo", "-d", "photos", "--protocol", "chefr"),
    "metric": ("run", "-m", "photo", "-d", "photos", "--metric", "nothing"),
    "engine": ("run", "-m", "photo", "-d", "photos", "--engine", "steam"),
    "seed": ("run", "-m", "photo", "-d", "photos", "--seed", str(2**64)),
    "dtype": ("run", "-m", "photo", "-d", "photos", "--dtype", "float3"),
    "limit": ("run", "-m", "photo", "-d", "photos", "--limit", "0"),
    "bomb": ("run", "-m", "photo", "-d", "imagenette=bomb.zip"),
    "on a picture": ("run", "-m", "photo", "-d", "photos", "-o", "ok.png"),
    "absent plan": ("run", "--plan", "absent.yaml"), "table absent": ("table", "absent.db"),
    "table words": ("table", "words.db"), "table cut": ("table", "cut.db"), "table other": ("table", "other.db"),
    "table zero": ("table", "zero.db"), "table newer": ("table", "newer.db"), "table half": ("table", "half.db"),
    "table folder": ("table", "photos"), "table seed": ("table", "half.db", "--seed", str(2**64)),
    "plot absent": ("plot", "absent.db"), "plot words": ("plot", "words.db"), "plot ending": ("plot", "words.db", "-o", "x.gif"),
    "format": ("table", "half.db", "-f", "docx"), "recommend": ("recommend", "photo", "absent/"),
    "recommend model": ("recommend", "phto", "photos"), "sanity": ("sanity", "photo", "empty/"),
    "agreement": ("agreement", "photo", "photos", "--method", "gea"),
}  # fmt: skip
OTHER = {
    "no command": ("explan",), "methods": ("methods", "gea"), "doctor": ("doctor", "phto"), "doctor none": ("doctor",),
    "audit absent": ("audit", "absent", *PHOTO), "audit empty": ("audit", "empty", *PHOTO),
    "audit page": ("audit", "photos", *PHOTO, "-o", "a.png"), "audit text": ("audit", "photos", *FEELING),
    "audit method": ("audit", "photos", *PHOTO, "--method", "gae"), "report absent": ("report", "absent"),
    "report no model": ("report", "photos"), "report page": ("report", "photos", *PHOTO, "-o", "r.png"),
    "report zero": ("report", "zero.txt", *FEELING), "report latin": ("report", "latin.txt", *FEELING),
    "report results": ("report", "cut.db", "-o", "r.html"), "report model": ("report", "words.db", *PHOTO),
    "demo": ("demo", "-o", "ok.png"), "guide absent": ("guide", "ok.png", *PHOTO, "--guide", "absent.png"),
    "guide broken": ("guide", "ok.png", *PHOTO, "--guide", "cut.png"), "layout": ("guide", "ok.png", *PHOTO, "--layout", "round"),
    "side": ("guide", "ok.png", *PHOTO, "--side", "up"), "size": ("guide", "ok.png", *PHOTO, "--size", "tiny"),
    "guide text": ("guide", "a film", *FEELING), "form": ("detail", "ok.png", *PHOTO, "--form", "cubic"),
    "top": ("detail", "ok.png", *PHOTO, "--top", "3"), "top one": ("detail", "ok.png", *PHOTO, "--top", "1", "-o", "m.png"),
    "detail same": ("detail", "ok.png", *PHOTO, "-t", "church", "--versus", "4"), "eta": ("transfer", "ok.png", *PHOTO, "--eta", "-1"),
    "eta nan": ("transfer", "ok.png", *PHOTO, "--eta", "nan"), "steps": ("transfer", "ok.png", *PHOTO, "--steps", "0"),
    "direction": ("transfer", "ok.png", *PHOTO, "--direction", "up"), "rewrite none": ("rewrite", "ok.png", *PHOTO),
    "linf": ("rewrite", "ok.png", *PHOTO, "-t", "church", "--linf", "x"), "linf zero": ("rewrite", "ok.png", *PHOTO, "-t", "church", "--linf", "1/0"),
    "two budgets": ("rewrite", "ok.png", *PHOTO, "-t", "church", "--l2", "1", "--l2", "2"),
    "probability": ("rewrite", "ok.png", *PHOTO, "-t", "church", "--probability", "2"),
    "rewrite text": ("rewrite", "a film", *FEELING, "-t", "negative"), "port": ("app", "--port", "99999"),
    "folder": ("explain", "photos", *PHOTO), "folder same": ("explain", "photos", *PHOTO, "-o", "photos"),
    "folder file": ("explain", "photos", *PHOTO, "-o", "maps.png"), "folder stdout": ("explain", "photos", *PHOTO, "-o", "-"),
    "folder empty": ("explain", "empty", *PHOTO, "-o", "maps"), "folder text": ("explain", "photos", *FEELING, "-o", "maps"),
    "image for text": ("explain", "ok.png", *FEELING), "text for image": ("explain", "a dull film", *PHOTO),
    "pair file": ("explain", "a film", *FEELING, "--pair", "absent.txt"),
}  # fmt: skip


MATRIX = {
    'explain no args': ('explain',), 'explain only model': ('explain', '-m', 'photo'), 'photo word': ('explain', 'golf_ball', '-m', 'photo'),
    'photo sentence': ('explain', 'a long sentence about a film', '-m', 'photo'), 'sentiment png': ('explain', 'absent.png', '-m', 'sentiment'),
    'pair photo': ('explain', 'ok.png', '--pair', 'x', '-m', 'photo'),
    'context sentiment': ('explain', 'a film', '--context', 'x', '-m', 'sentiment'),
    'question sentiment': ('explain', 'a film', '--question', 'x', '-m', 'sentiment'),
    'target empty': ('explain', 'ok.png', '-m', 'photo', '-t', ''), 'target blank': ('explain', 'ok.png', '-m', 'photo', '-t', ' '),
    'target nul': ('explain', 'ok.png', '-m', 'photo', '-t', '10'), 'target neg': ('explain', 'ok.png', '-m', 'photo', '-t', '-3'),
    'target huge': ('explain', 'ok.png', '-m', 'photo', '-t', "9" * 400), 'target float': ('explain', 'ok.png', '-m', 'photo', '-t', '1.5'),
    'target arabic': ('explain', 'ok.png', '-m', 'photo', '-t', '٣٣'), 'target superscript': ('explain', 'ok.png', '-m', 'photo', '-t', '²'),
    'versus same': ('explain', 'ok.png', '-m', 'photo', '-t', 'church', '--versus', 'church'),
    'versus alone': ('explain', 'ok.png', '-m', 'photo', '--versus', 'nothing'), 'device int': ('explain', 'ok.png', '-m', 'photo', '--device', '9'),
    'device cuda99': ('explain', 'ok.png', '-m', 'photo', '--device', 'cuda:99'),
    'device empty': ('explain', 'ok.png', '-m', 'photo', '--device', ''), 'method empty': ('explain', 'ok.png', '-m', 'photo', '--method', ''),
    'method open paren': ('explain', 'ok.png', '-m', 'photo', '--method', 'gae('),
    'method nested': ('explain', 'ok.png', '-m', 'photo', '--method', 'gae(gae(gae()))'),
    'method code': ('explain', 'ok.png', '-m', 'photo', '--method', "gae(x=__import__('os').system('touch pwned'))"),
    'method long': ('explain', 'ok.png', '-m', 'photo', '--method', "g" * 100_000),
    'method dup option': ('explain', 'ok.png', '-m', 'photo', '--method', 'gradtoken(depth=1,depth=2)'),
    'method neg depth': ('explain', 'ok.png', '-m', 'photo', '--method', 'gradtoken(depth=-1)'),
    'method huge depth': ('explain', 'ok.png', '-m', 'photo', '--method', 'gradtoken(depth=999)'),
    'ig zero': ('explain', 'ok.png', '-m', 'photo', '--method', 'integrated_gradients(steps=0)'),
    'ig neg': ('explain', 'ok.png', '-m', 'photo', '--method', 'integrated_gradients(steps=-5)'),
    'ig nan': ('explain', 'ok.png', '-m', 'photo', '--method', 'integrated_gradients(steps=nan)'),
    'rollout start': ('explain', 'ok.png', '-m', 'photo', '--method', 'rollout(start_layer=99)'),
    'preset for none': ('explain', 'ok.png', '-m', 'photo', '--preset', ''),
    'o twice': ('explain', 'ok.png', '-m', 'photo', '-o', 'a.png', '-o', 'b.png'),
    'o is input': ('explain', 'ok.png', '-m', 'photo', '-o', 'ok.png'), 'o is link': ('explain', 'ok.png', '-m', 'photo', '-o', 'link.png'),
    'o hard link': ('explain', 'ok.png', '-m', 'photo', '-o', 'hard.png'), 'o no ending': ('explain', 'ok.png', '-m', 'photo', '-o', 'map'),
    'o dot': ('explain', 'ok.png', '-m', 'photo', '-o', '.'), 'o folder': ('explain', 'ok.png', '-m', 'photo', '-o', 'photos'),
    'o nul': ('explain', 'ok.png', '-m', 'photo', '-o', 'a\udcff/b.png'), 'o long': ('explain', 'ok.png', '-m', 'photo', '-o', "y" * 260 + ".png"),
    'folder empty': ('explain', 'empty/', '-m', 'photo', '-o', 'maps/'),
    'format bad': ('explain', 'photos/', '-m', 'photo', '-o', 'maps/', '--format', 'doc'), 'model empty': ('explain', 'ok.png', '-m', ''),
    'model dot': ('explain', 'ok.png', '-m', '.'), 'model dotdot': ('explain', 'ok.png', '-m', '..'),
    'model file': ('explain', 'ok.png', '-m', 'ok.png'), 'model yaml': ('explain', 'ok.png', '-m', 'plan_list.yaml'),
    'model url': ('explain', 'ok.png', '-m', 'https://huggingface.co/x/y'), 'model slash': ('explain', 'ok.png', '-m', 'a/b/c/d'),
    'model arch': ('explain', 'ok.png', '-m', 'photo', '--arch', 'vit_tiny_patch16_224'), 'model bidi': ('explain', 'ok.png', '-m', 'ph\u202eoto'),
    'model upper': ('explain', 'ok.png', '-m', 'PHOTO'), 'compare none': ('compare', 'ok.png'),
    'compare bad': ('compare', 'ok.png', '-m', 'photo', '--method', 'gae', '--method', 'gea'),
    'compare o': ('compare', 'ok.png', '-m', 'photo', '-o', 'x.csv'),
    'detail same': ('detail', 'ok.png', '-m', 'photo', '-t', 'church', '--versus', 'church'), 'guide text': ('guide', 'a film', '-m', 'sentiment'),
    'transfer bad': ('transfer', 'ok.png', '-m', 'photo', '--steps', '0'), 'rewrite none': ('rewrite', 'ok.png', '-m', 'photo'),
    'rewrite class': ('rewrite', 'ok.png', '-m', 'photo', '-t', 'dragon'), 'doctor none': ('doctor',), 'doctor bad': ('doctor', '-m', 'nope_nope'),
    'doctor file': ('doctor', 'ok.png'), 'report none': ('report',), 'report bad': ('report', 'photos', '-m', 'photo', '-o', 'r.doc'),
    'report absent': ('report', 'absent', '-m', 'photo', '-o', 'r.html'), 'answer none': ('answer',),
    'answer photo': ('answer', 'what', '-m', 'photo'), 'answer length': ('answer', 'what', '-m', 'sentiment', '--length', '0'),
    'app port': ('app', '--port', '99999999'), 'app port neg': ('app', '--port', '-1'), 'app host': ('app', '--host', 'not a host'),
    'app pixels': ('app', '--max-pixels', '0'), 'demo o file': ('demo', '-o', 'ok.png'), 'audit none': ('audit',),
    'audit bad': ('audit', '-m', 'photo', 'absent'), 'bench': ('bench', 'run'),
    'bench limit': ('bench', 'run', '-m', 'photo', '-d', 'photos', '--limit', '-1'),
    'bench limit0': ('bench', 'run', '-m', 'photo', '-d', 'photos', '--limit', '0'),
    'bench data': ('bench', 'run', '-m', 'photo', '-d', 'nothing=photos'),
    'bench data opt': ('bench', 'run', '-m', 'photo', '-d', 'imagenet(fold=x)=photos'),
    'bench o dir': ('bench', 'run', '-m', 'photo', '-d', 'photos', '-o', 'photos'),
    'bench o png': ('bench', 'run', '-m', 'photo', '-d', 'photos', '-o', 'ok.png'), 'bench table dir': ('bench', 'table', 'photos'),
    'bench table absent': ('bench', 'table', 'absent.db'), 'bench plot': ('bench', 'plot', 'words.db', '-o', 'a.png'),
    'bench recommend': ('bench', 'recommend', 'photo', 'absent'), 'bench recommend empty': ('bench', 'recommend', 'photo', 'empty'),
    'bench sanity text': ('bench', 'sanity', 'sentiment', 'photos'), 'bench agreement': ('bench', 'agreement', 'photo', 'zero.txt'),
    'bench dtype': ('bench', 'run', '--quick', '--dtype', 'int8'), 'bench batch': ('bench', 'run', '--quick', '--batch', '0'),
    'bench metric': ('bench', 'run', '-m', 'photo', '-d', 'photos', '--metric', 'nope'),
    'bench protocol': ('bench', 'run', '-m', 'photo', '-d', 'photos', '--protocol', 'nope'), 'unknown': ('explian', 'ok.png'),
    'unknown option': ('explain', 'ok.png', '-m', 'photo', '--verbos'), 'methods bad': ('methods', 'gaee'),
    'methods two': ('methods', 'gae', 'rollout'), 'double dash': ('explain', '--', '-m'), 'emoji': ('explain', '🙂🙂', '-m', 'photo'),
    'ansi': ('explain', '\x1b[31mred\x1b[0m.png', '-m', 'photo'), 'newline': ('explain', 'a\nb.png', '-m', 'photo'),
    'newline method': ('explain', 'ok.png', '-m', 'photo', '--method', 'ga\ne'), 'newline model': ('explain', 'ok.png', '-m', 'ph\noto'),
    'newline target': ('explain', 'ok.png', '-m', 'photo', '-t', 'go\nlf'), 'markup': ('explain', '[red]x[/red].png', '-m', 'photo'),
    'markup2': ('explain', '[/].png', '-m', 'photo'), 'markup method': ('explain', 'ok.png', '-m', 'photo', '--method', '[/bold]'),
    'stdin photo': ('explain', '-', '-m', 'photo'),
}  # fmt: skip
"""More of all kinds."""


def cli() -> dict[str, tuple[str, ...]]:
    """Every command line that has to fail."""
    cases = {f"{c} image {n[:30]}": (c, n, *PHOTO, *MORE.get(c, ())) for c, n in product(ON_IMAGES, BAD_IMAGES)}
    cases |= {f"{c} text {n[:30]!a}": (c, n, *FEELING) for c, n in product(ON_TEXTS, BAD_TEXTS)}
    cases |= {f"model {n[:30]}": ("explain", "ok.png", "-m", n) for n in BAD_MODELS}
    cases |= {
        f"weights {n}": ("explain", "ok.png", "-m", f"{n}.safetensors", "--arch", "test_vit") for n in BAD_WEIGHTS
    }
    cases |= {f"option {n}": ("explain", "ok.png", *PHOTO, *more) for n, more in BAD_OPTIONS.items()}
    outputs = product(ON_IMAGES, BAD_OUTPUTS.items())
    cases |= {f"{c} output {n}": (c, "ok.png", *PHOTO, *MORE.get(c, ()), "-o", o) for c, (n, o) in outputs}
    cases |= {f"bench {n}": ("bench", *more) for n, more in BENCH.items()}
    cases |= {f"bench {n}": ("bench", "run", "--plan", f"{n}.yaml") for n in PLANS}
    return cases | {f"other {n}": more for n, more in (OTHER | MATRIX).items()}


SETUP = """
import numpy as np, torch, vitrail
from PIL import Image
from pathlib import Path
from vitrail import zoo
from vitrail.attribution import Attribution
photo, sentiment = zoo.load("photo"), zoo.load("sentiment")
x, words = torch.zeros(1, 3, 160, 160), sentiment.preprocess("a dull film")
"""
PYTHON = {
    "name": "vitrail.explain('phto', x)", "none": "vitrail.explain(None, x)", "class": "vitrail.explain(torch.nn.Linear, x)",
    "number": "vitrail.explain(3, x)", "function": "vitrail.explain(lambda x: x, x)", "no path": "vitrail.explain(photo, 'absent.png')",
    "broken": "vitrail.explain(photo, 'cut.png')", "postscript": "vitrail.explain(photo, 'script.png')",
    "module and path": "vitrail.explain(photo.model, 'ok.png')", "module and picture": "vitrail.explain(photo.model, Image.open('ok.png'))",
    "module and array": "vitrail.explain(photo.model, np.zeros((3, 160, 160)))", "module and text": "vitrail.explain(sentiment.model, 'a film')",
    "no batch": "vitrail.explain(photo.model, x[0])", "no batch zoo": "vitrail.explain(photo, x[0])", "int picture": "vitrail.explain(photo, 3)",
    "array shape": "vitrail.explain(photo, np.zeros((2, 3, 4, 5)))", "array values": "vitrail.explain(photo, np.full((4, 4, 3), 7.0))",
    "array nan": "vitrail.explain(photo, np.full((4, 4, 3), np.nan))", "array empty": "vitrail.explain(photo, np.zeros((0, 4, 3)))",
    "list of tensors": "vitrail.explain(photo, [x, x])", "empty list": "vitrail.explain(photo, [])", "empty text": "vitrail.explain(sentiment, '')",
    "text number": "vitrail.explain(sentiment, 3)", "list number": "vitrail.explain(sentiment, ['a', 3])", "surrogate": "vitrail.explain(sentiment, '\\udcff')",
    "long text": "vitrail.explain(sentiment, 'film ' * 3000)", "nan": "vitrail.explain(photo.model, x * float('nan'))",
    "infinite": "vitrail.explain(photo.model, x + float('inf'))", "empty": "vitrail.explain(photo.model, x[:0])", "meta": "vitrail.explain(photo.model, x.to('meta'))",
    "ints": "vitrail.explain(photo.model, x.int())", "audio": "vitrail.explain(photo.model, x[0, 0])", "video": "vitrail.explain(photo.model, x[None])",
    "empty mapping": "vitrail.explain(sentiment.model, {})", "mapping of lists": "vitrail.explain(sentiment.model, {'input_ids': [[1, 2]]})",
    "unknown token": "vitrail.explain(sentiment.model, {'input_ids': torch.full((1, 4), 10**6)})", "negative token": "vitrail.explain(sentiment.model, {'input_ids': torch.full((1, 4), -5)})",
    "mask": "vitrail.explain(sentiment.model, {**words, 'attention_mask': words['attention_mask'] * 0})", "mask shape": "vitrail.explain(sentiment.model, {**words, 'attention_mask': torch.ones(1, 2)})",
    "method": "vitrail.explain(photo, x, 'gea')", "method type": "vitrail.explain(photo, x, 3)", "option": "vitrail.explain(photo, x, 'gae', depth=1)",
    "option type": "vitrail.explain(photo, x, 'gradtoken', depth='x')", "preset": "vitrail.explain(photo, x, 'gae', preset='best')", "backend": "vitrail.explain(photo, x, 'gae', backend='fast')",
    "rows": "vitrail.explain(photo, x, 'gae', backend='chunked', chunk_rows=0)", "target": "vitrail.explain(photo, x, 'gae', target=10)", "negative target": "vitrail.explain(photo, x, 'gae', target=-11)",
    "target text": "vitrail.explain(photo, x, 'gae', target='golf')", "target float": "vitrail.explain(photo, x, 'gae', target=1.5)", "target bool": "vitrail.explain(photo, x, 'gae', target=True)",
    "targets": "vitrail.explain(photo, x, 'gae', target=[1, 2, 3])", "two classes": "vitrail.explain(photo, x, 'gae', target=vitrail.targets.difference(8, 10))", "next token": "vitrail.explain(photo, x, 'gae', target=vitrail.targets.next_token(3))",
    "no methods": "vitrail.compare(photo, x, [])", "methods type": "vitrail.compare(photo, x, [3])", "vmap": "torch.vmap(lambda one: vitrail.explain(photo.model, one[None], 'gae').scores)(x)",
    "grad": "torch.func.grad(lambda one: vitrail.explain(photo.model, one, 'gae').scores.sum())(x)", "jvp": "torch.func.jvp(lambda one: vitrail.explain(photo.model, one, 'gae').scores, (x,), (x,))",
    "alpha": "vitrail.explain(photo, x, 'gae').plot(alpha=9)", "style": "vitrail.explain(photo, x, 'gae').plot(colour='red')", "plot image": "vitrail.explain(photo, x, 'gae').plot('ok.png')",
    "plot index": "vitrail.explain(photo, x, 'gae').plot(index=3)", "cmap": "vitrail.explain(photo, x, 'gae').plot(cmap='nothing')", "heatmap": "vitrail.explain(photo, x, 'gae').heatmap((0, 0))",
    "heatmap negative": "vitrail.explain(photo, x, 'gae').heatmap((-1, 5))", "heatmap text": "vitrail.explain(sentiment, 'a film', 'gae').heatmap()", "save ending": "vitrail.explain(photo, x, 'gae').save('map.doc')",
    "save folder": "vitrail.explain(photo, x, 'gae').save('absent/map.json')", "load absent": "Attribution.load('absent.json')", "load ending": "Attribution.load('ok.png')",
    "load words": "Attribution.load('model.json')", "load old": "Attribution.load('old.json')", "zoo": "zoo.load('phto')", "example": "zoo.example('cat')",
    "load model": "from vitrail.models.loading import load; load('phto')", "rewrite path": "vitrail.rewrite(photo, 'ok.png', 'church')", "rewrite class": "vitrail.rewrite(photo, Image.open('ok.png'), 'nothing')",
    "audit": "vitrail.audit(photo.model, 'absent', class_names=photo.class_names, preprocess=photo.preprocess)", "guide": "vitrail.guide(sentiment.model, words)",
    "detail same": "vitrail.detail(photo.model, x, 1, 1)", "transfer steps": "vitrail.transfer(photo.model, x, steps=0)", "record target": "vitrail.record(photo.model, x, 99)",
    "int8 weights": "import copy; m = copy.deepcopy(photo.model); m.classifier.weight = torch.nn.Parameter(m.classifier.weight.to(torch.int8), requires_grad=False); vitrail.explain(m, x, 'gae')",
    "same class": "vitrail.targets.difference(8, 8)", "same classes": "vitrail.targets.ratio([1, 2], [3, 2])", "nul path": "vitrail.explain(photo, 'a\\0.png')",
    "bytes": "vitrail.explain(photo, b'ok.png')", "complex": "vitrail.explain(photo.model, x.to(torch.complex64))", "sparse": "vitrail.explain(photo.model, x.to_sparse())",
    "truth values": "vitrail.explain(photo.model, x.bool())", "target nan": "vitrail.explain(photo, x, 'gae', float('nan'))", "no targets": "vitrail.explain(photo, x, 'gae', [])",
    "target of all": "vitrail.explain(photo, x, 'gae', lambda logits: logits)", "target none": "vitrail.explain(photo, x, 'gae', lambda logits: None)",
    "target detached": "vitrail.explain(photo, x, 'gae', lambda logits: logits[:, 0].detach())", "heatmap huge": "vitrail.explain(photo, x, 'rollout').heatmap((10**6, 10**6))",
    "heatmap three": "vitrail.explain(photo, x, 'rollout').heatmap((1, 2, 3))", "save none": "vitrail.explain(photo, x, 'rollout').save(None)",
    "save long": "vitrail.explain(photo, x, 'rollout').save('x' * 300 + '.json')", "load none": "Attribution.load(None)", "load folder": "Attribution.load('.')",
    "empty picture": "vitrail.explain(photo, Image.new('RGB', (0, 5)))", "cut picture": "vitrail.explain(photo, Image.open('cut.png'))", "nested list": "vitrail.explain(sentiment, [['a film']])",
    "mixed": "vitrail.explain(photo, ['ok.png', x])", "example path": "zoo.example('../golf_ball')", "to_html index": "vitrail.explain(photo, x, 'rollout').to_html(index=9)",
    "preprocess number": "photo.preprocess(3)", "record none": "vitrail.record(photo.model, None)", "generate": "vitrail.generate(photo.model, None, 'a')", "prepare": "vitrail.prepare(photo.model, x, 'gea')",
    "answer": "vitrail.answer(photo.model, x, 1)", "imagenet": "vitrail.data.load('imagenet', 'photos')",
    "plan": "vitrail.bench.read_plan('plan_list.yaml')", "results": "vitrail.bench.tables('words.db')", "report": "vitrail.report.of_results('words.db')",
    "target raises": "vitrail.explain(photo, x, 'gae', lambda logits: 1 / 0)", "target signature": "vitrail.explain(photo, x, 'gae', lambda a, b: a)", "target index": "vitrail.explain(photo, x, 'gae', lambda logits: logits[:, 99])",
    "target sum": "vitrail.explain(photo, x, 'gae', lambda logits: logits.sum())", "target nan function": "vitrail.explain(photo, x, 'gae', lambda logits: logits[:, 0] * float('nan'))",
    "target raises later": "vitrail.explain(photo, x, 'integrated_gradients', lambda logits: {}['k'])", "target raises in rules": "vitrail.explain(photo, x, 'attn_lrp', lambda logits: {}['k'])",
    "target raises by default": "vitrail.explain(photo, x, target=lambda logits: {}['k'])", "target raises in a recording": "vitrail.record(photo.model, x, lambda logits: {}['k'])",
    "target raises in prepare": "vitrail.prepare(photo.model, x, 'gae', target=lambda logits: {}['k'])", "target list": "vitrail.explain(photo, x, 'gae', lambda logits: [1.0])",
    "no sentence": "sentiment.preprocess(None)", "sentence number": "sentiment.preprocess(3)", "sentence mapping": "sentiment.preprocess({'a': 1})", "sentence bytes": "sentiment.preprocess(b'a film')",
    "data number": "vitrail.data.load('pets', 3)", "data none": "vitrail.data.load('pets', None)", "data name": "vitrail.data.load(3, 'photos')", "data list": "vitrail.data.load('imagenet', ['a'])",
    "data bytes": "vitrail.data.load('imagenet', b'photos')", "data limit": "vitrail.data.load('imagenet', 'photos', limit='x')", "data option": "vitrail.data.load('imagenet', 'photos', nonsense=1)",
    "picture none": "photo.preprocess(None)", "picture list": "photo.preprocess(['ok.png'])", "zoo none": "zoo.load(None)", "example none": "zoo.example(None)", "example list": "zoo.example([])",
    "load nothing": "from vitrail.models.loading import load; load(None)", "load a number": "from vitrail.models.loading import load; load(3)", "load a path": "from vitrail.models.loading import load; load(Path('absent/'))",
    "no preset": "vitrail.explain(photo, x, 'gae', preset=None)", "method list": "vitrail.explain(photo, x, ['gae'])", "anatomy text": "vitrail.explain(photo, x, 'gae', anatomy='x')", "steps text": "vitrail.explain(photo, x, 'integrated_gradients', steps='many')",
    "steps real": "vitrail.explain(photo, x, 'integrated_gradients', steps=2.5)", "steps true": "vitrail.explain(photo, x, 'integrated_gradients', steps=True)", "memory": "vitrail.explain(photo, x, 'gae', memory='tiny')",
    "compare none": "vitrail.compare(photo, x, [None])", "compare on_error": "vitrail.compare(photo, x, ['gae'], on_error='ignore')", "compare options": "vitrail.compare(photo, x, [('gae', 3)])",
    "small picture": "vitrail.explain('photo', torch.zeros(1, 3, 64, 64))", "grey picture": "vitrail.explain('photo', torch.zeros(1, 1, 160, 160))", "no pixels": "vitrail.explain(photo.model, torch.zeros(1, 3, 0, 0))", "one number": "vitrail.explain(photo.model, torch.tensor(1.0))",
    "ids none": "vitrail.explain(sentiment.model, {'input_ids': None})", "ids flat": "vitrail.explain(sentiment.model, {'input_ids': words['input_ids'][0]})", "ids long": "vitrail.explain(sentiment.model, {'input_ids': torch.ones(1, 600).long()})",
    "mask nan": "vitrail.explain(sentiment.model, {**words, 'attention_mask': words['attention_mask'] * float('nan')})", "logit of a text": "vitrail.explain(photo, x, 'gae', vitrail.targets.logit('a'))",
    "continuation": "vitrail.explain(photo, x, 'gae', vitrail.targets.continuation(1, 2))", "span": "vitrail.explain(sentiment, 'a film', 'gae', vitrail.targets.answer_span())", "similarity": "vitrail.explain(photo, x, 'gae', vitrail.targets.similarity(3))",
    "metric shapes": "vitrail.metrics.segmentation(torch.zeros(1, 2, 2), torch.zeros(2, 2, 2))", "metric none": "vitrail.metrics.segmentation(None, None)", "metric rule": "vitrail.metrics.area([], rule='x')", "metric lengths": "vitrail.metrics.aopc(torch.zeros(2), torch.zeros(3, 4))",
    "metric text": "vitrail.metrics.token_f1('a', 'b')", "plot number": "vitrail.explain(photo, x, 'gae').plot(3)", "plot array": "vitrail.explain(photo, x, 'gae').plot(np.zeros(3))", "heatmap text size": "vitrail.explain(photo, x, 'gae').heatmap('big')",
    "to_html text": "vitrail.explain(photo, x, 'gae').to_html(index='a')", "explore number": "vitrail.explain(photo, x, 'gae').explore(3)", "save number": "vitrail.explain(photo, x, 'gae').save(3)", "structure none": "vitrail.structure(photo.model, None)",
    "prepare none": "vitrail.prepare(None, x)", "generate none": "vitrail.generate(None, None, 'a')", "generate classes": "vitrail.generate(sentiment.model, sentiment.preprocess.tokenizer, 'a')", "rewrite number": "vitrail.rewrite(photo, 3, 'church')",
    "audit number": "vitrail.audit(photo.model, 3)", "plan number": "vitrail.bench.read_plan(3)", "run none": "vitrail.bench.run(None, 'x.db')", "tables none": "vitrail.bench.tables(None)", "report none": "vitrail.report.of_results(None)",
    "data text none": "vitrail.bench.parse_data(None)", "method number": "vitrail.bench.parse_trials([3])",
}  # fmt: skip
