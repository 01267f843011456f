#!/bin/sh
# The tables of docs/answers.md about quality, on one GPU, by several processes; the same command goes on where it ended.
#
#     sh benchmarks/answers_gpu.sh ./lm out [processes] [minutes]
#
# The model is a folder with SmolLM2-135M-Instruct. Results are out/lines.*, tables out/quality.md and out/seconds.md.
set -e
LM=${1:?a folder with a language model}
OUT=${2:?a folder for the results}
PROCESSES=${3:-8}
MINUTES=${4:-60}
export OMP_NUM_THREADS=1
END=$(($(date +%s) + MINUTES * 60))
mkdir -p "$OUT"
run() { # a name for the files, then the arguments of every process
    name=$1
    shift
    left=$((END - $(date +%s)))
    for part in $(seq 0 $((PROCESSES - 1))); do
        python3 benchmarks/answers_quality.py --model "$LM" --part "$part/$PROCESSES" --lines "$OUT/lines.$name.$part" \
            --minutes "$(echo "$left" | awk '{print $1 / 60}')" "$@" 2>"$OUT/errors.$part" || cat "$OUT/errors.$part" &
    done
    wait
}
# Which passages an answer of one sentence rests on.
run people --kind people --method random --method position --method gae --method tokentm --method attn_lrp \
    --method ifr --method flashtrace --method soft_ablation --method "soft_ablation(share=0)" \
    --method "soft_ablation(presence=0.1)" --method "soft_ablation(presence=0.1, share=0)" --method sentence_drop \
    --method context_cite
# Needles in 250 and 1,000 tokens, one and four.
run needles --kind needle --kind "four needles" --kind "long needle" --kind "four long needles" --method gae \
    --method ifr --method soft_ablation --method "soft_ablation(presence=0.1)"
python3 benchmarks/answers_quality.py --table "$OUT"/lines.* | tee "$OUT/quality.md"
# Seconds, by one process that runs alone.
rm -f "$OUT/alone"
python3 benchmarks/answers_quality.py --model "$LM" --kind people --contexts 4 --lines "$OUT/alone" --minutes 1 \
    --method gae --method tokentm --method attn_lrp --method ifr --method soft_ablation --method context_cite
python3 benchmarks/answers_quality.py --table "$OUT/alone" | tee "$OUT/seconds.md"
