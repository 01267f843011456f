#!/bin/sh
# What the ledger of docs/answers.md still lacks, on one GPU: 100 contexts of each kind, resumable.
#
#     sh benchmarks/answers_gpu.sh ./lm results.db
#
# The model is a folder with SmolLM2-135M-Instruct. Every line goes on where it was if it is called again.
set -e
LM=${1:?a folder with a language model}
OUT=${2:-answers.db}
METHODS="--method soft_ablation --method gae --method tokentm --method attn_lrp --method ifr --method flashtrace --method context_cite --method sentence_drop"
run() { vitrail bench run -m "$LM" --device cuda --batch 8 -o "$OUT" "$@"; }
# Which passages an answer of one sentence rests on: log-probability and log-odds, on the same held-out ablations.
run -d people --protocol answers --protocol "answers(scalar=log_odds)" $METHODS
# Needles: 250 and 1,000 tokens, one and four; more contexts than 100, since only right answers count.
for needles in 1 4; do
    run -d "needle(count=150, sentences=16, needles=$needles)" --protocol answers --metric gold_recall --metric gold_rank $METHODS
    run -d "needle(count=300, sentences=66, needles=$needles)" --protocol answers --metric gold_recall --metric gold_rank $METHODS
done
run -d "variables(count=300)" --protocol answers --metric gold_recall --metric gold_rank $METHODS
vitrail bench table "$OUT"
