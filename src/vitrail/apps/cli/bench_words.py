"""The manual of `vitrail bench` and the words of its command line."""

from pathlib import Path
from typing import Annotated

import typer

from vitrail.evaluate import bench

MANUAL = """Measure explanations: which one to trust on your model.

Every method runs on the same inputs; one recording of a batch serves all.
Each paper measured in its own way, so every table names its protocol, and
numbers of two protocols cannot be compared.

[bold]First steps[/]

  vitrail bench run --quick              two embedded models, three minutes
  vitrail bench recommend photo photos/  rank the methods on your pictures
  vitrail bench sanity photo photos/     do maps depend on weights and class?
  vitrail bench agreement photo photos/  which methods show the same?
  vitrail bench run -m photo -d imagenette=val.zip --protocol chefer
      --limit 500 -o results.db
  vitrail bench table results.db
  vitrail bench plot results.db -o curves.png

[bold]Data[/]

  -d pets=PATH                           a published set and where it lies
  -d "imagenet(fold=0)=PATH"             with an option of its reader
  -d photos/  -d reviews.txt             your own pictures, or a text a line
  --limit 200                            so many, at even distances

[bold]Protocols[/]

  chefer      mean threshold; 10 % steps, pixels, black; token-F1
  vtranm      5 % steps, area over 0..1; also AOPC and LOdds
  gradtoken   best of ten thresholds; VOC's classes; token-F1, k = 10, ..., 80
  attcat      text: AOPC, LOdds, Kendall as its code; Precision@20
  cui         a guide beside each picture, whole patches, the label
  vitrail     ours: small, no labels needed
  sanity      weights randomised from the output down; another class
  agreement   rank correlation between methods

[bold]Breaking off and going on[/]

  Results go into one SQLite file, batch by batch. Kill a run whenever you
  like; the same command goes on where it was and computes nothing twice.
  Another model, option or version makes new rows, never mixed with the old.
"""

RUN = """Run models on data sets by methods and protocols, and keep the results.

Without --method: all that need one forward and one backward pass.
[bold]--method all[/] adds those that run the model again; --subset N gives them
N examples only. One line says which do not apply to the data and are left out.

[bold]Examples[/]

  vitrail bench run --quick
  vitrail bench run -m sentiment -d sst2=SST-2 --protocol attcat --limit 200
  vitrail bench run -m vit.safetensors --arch vit_tiny_patch16_224
      -d pets=oxford-pets --protocol chefer --protocol gradtoken
      --method all --subset 50 --device cuda --dtype bfloat16
  vitrail bench run -m photo -d imagenette=val.zip --ablation vtranm
      --protocol vtranm
  vitrail bench run --plan plan.yaml -o results.db
"""

RECOMMEND = """Rank the methods on your own model and inputs by how faithful they are.

Pictures: pixels are removed, highest-scored first and lowest-scored first;
the further the two curves of the predicted class lie apart, the better
(ABPC). Texts: the drop of its probability when the highest-scored tokens are
deleted (AOPC). No labels are needed.
"""

SANITY = """Test whether the maps depend on what the model has learned, and on the class.

The weights are randomised part by part from the output down, and the maps
compared with those of the trained model by the size of their rank
correlation: a map that stays the same explains something else. Class
sensitivity is the rank correlation of the maps of the predicted class and of
the likeliest other one: near 1, the class plays no part.
"""

AGREEMENT = """Show how far the methods agree: rank correlations of their maps, mean over the inputs."""

WHAT, HOW, KEEP = "What to measure", "How to run", "Result"
RESULTS = Path("results.db")

Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="As for explain. May be repeated.", show_default=False, rich_help_panel=WHAT),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        "-d",
        metavar="NAME=PATH",
        help="A data set, or a folder of pictures, or a .txt file. May be repeated.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help='A name, "name(option=value)", or all. May be repeated.',
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Protocols = Annotated[
    list[str] | None,
    typer.Option(
        "--protocol",
        help=f"{', '.join(bench.PROTOCOLS)}. May be repeated. Default: vitrail.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        help=f"In place of the protocol's: {', '.join(bench.MEASURES)}.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Ablation = Annotated[
    str | None, typer.Option(help="Add the variants of vtranm (Table 4) or gradtoken.", rich_help_panel=WHAT)
]
Class = Annotated[
    str | None,
    typer.Option("--target", help="Explain the predicted class, or the label of the data set.", rich_help_panel=WHAT),
]
PlanFile = Annotated[
    Path | None,
    typer.Option("--plan", help="A YAML file in place of all these.", show_default=False, rich_help_panel=WHAT),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="The embedded models on inputs in the package.", rich_help_panel=WHAT)
]
Limit = Annotated[
    int | None, typer.Option(help="At most so many examples of every data set.", min=1, rich_help_panel=WHAT)
]
Subset = Annotated[
    int | None,
    typer.Option(help="So many examples for methods that run the model again.", min=1, rich_help_panel=WHAT),
]
Size = Annotated[int, typer.Option("--batch", help="Examples recorded together.", min=1, rich_help_panel=HOW)]
Forward = Annotated[
    int, typer.Option("--forward-batch", help="Perturbed inputs run together.", min=1, rich_help_panel=HOW)
]
Precision = Annotated[
    str, typer.Option(help="Of the perturbed passes: float32, bfloat16, float16.", rich_help_panel=HOW)
]
Seed = Annotated[int, typer.Option(help="Of noise, sampling and bootstrap.", rich_help_panel=HOW)]
EngineName = Annotated[str, typer.Option("--engine", help="local, or ray for a cluster.", rich_help_panel=HOW)]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        help="Of a running cluster. Default: one on this machine.",
        show_default=False,
        rich_help_panel=HOW,
    ),
]
RayWorkers = Annotated[
    int | None,
    typer.Option(
        "--ray-workers", help="Default: one a CPU core, or one a GPU.", min=1, show_default=False, rich_help_panel=HOW
    ),
]
RayShare = Annotated[float, typer.Option("--ray-gpu-share", help="Part of a GPU each takes.", rich_help_panel=HOW)]
Results = Annotated[
    Path, typer.Option("--output", "-o", help="The results file; gone on with if it is there.", rich_help_panel=KEEP)
]
ResultsArgument = Annotated[Path, typer.Argument(metavar="RESULTS", help="What bench run wrote.")]
