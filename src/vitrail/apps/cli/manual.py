"""The help texts that are more than a line. Lines stay under 78 letters, so that a small terminal breaks none."""

MANUAL = """See what a Transformer looked at, in an image or a text.

[bold]First steps[/]

  vitrail explain cat.png --model vit_tiny_patch16_224 -o map.png
  vitrail explain "A dull, lifeless film." --model ./my-sentiment-model
  vitrail compare cat.png --model vit_tiny_patch16_224 -o sheet.png

[bold]Choosing what to explain[/]

  --target boxer --target "tiger cat"   two rows, one for each class
  --target boxer --versus "tiger cat"   what speaks for one, not the other
  --target 281                          a class by its index
  --target none                         what the model predicts (the default)

[bold]Contrasts[/]

  vitrail guide cat.png -m photo        beside a picture of another class
  vitrail detail cat.png -m photo       the first class against the second
  vitrail audit photos/ -m photo        labels that the model doubts

[bold]Choosing how[/]

  vitrail methods                       every method, with its paper
  vitrail methods gradtoken             its options and presets
  --method gae --method "gradtoken(scheme=none, depth=2)" --preset paper

[bold]Models[/]

  vit_tiny_patch16_224                  a timm name
  google/vit-base-patch16-224           a Hugging Face id
  ./my-model                            a Hugging Face folder
  weights.safetensors --arch NAME       weights of a timm architecture

  Pickles (.bin, .pt, .pth) are refused, and code that comes with a model
  never runs. [bold]vitrail doctor MODEL[/] proves on your model that what is
  recorded is what it computed.

Errors are one line and exit code 1; --debug shows where they come from.
"""

EXPLAIN = """Explain one input, or every image of a folder.

Without -o the result is printed: the tokens of a text in colour,
the strongest patches of an image. An image becomes a map over
exactly what the model saw of it.

[bold]Examples[/]

  vitrail explain cat.png -m vit_tiny_patch16_224 --target tabby -o map.png
  vitrail explain cat.png -m weights.safetensors --arch vit_tiny_patch16_224
  vitrail explain photos/ -m vit_tiny_patch16_224 -o maps/
  vitrail explain "It never comes to life." -m ./sst2-bert --method attcat
  vitrail explain "A man sleeps." --pair "A man runs." -m ./nli-bert
  vitrail explain --question "Who?" --context story.txt -m ./squad-bert
  echo "The capital of France is" | vitrail explain - -m ./gpt2 -t " Paris"
"""

COMPARE = """Compare methods on one input; without --method, all that apply to it.

Methods are columns, targets are rows. The same method may appear with
several sets of options.

[bold]Examples[/]

  vitrail compare cat.png -m vit_tiny_patch16_224 -o sheet.png
  vitrail compare catdog.png -m weights.safetensors
      --arch vit_tiny_patch16_224 -t boxer -t "tiger cat" -o sheet.png
  vitrail compare cat.png -m vit_tiny_patch16_224 -o sheet.pdf
      --method tokentm --method "tokentm(ffn=false)"
"""
