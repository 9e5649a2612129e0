#!/usr/bin/env bash
# The models of examples/multi30k/trained.yaml on contrastive sets: how often is the right translation more probable?
#
#   SETS=distil-lingeval/data PARSER=models/en examples/contrast/multi30k.sh [SYSTEM/SEED ...]
#
# SETS    folder with the sets of DistilLingEval (https://github.com/ZurichNLP/distil-lingeval, its folder data): NAME.mt/src.en
#         and so on, or NAME.mt.src.en in one folder; plain or .gz
# PARSER  folder with Stanza's pos.pt and depparse.pt for English; Stanza's own resources where it is not set
# Without systems: seed 1 of all that are trained, with the plain Transformer as the baseline. Where a system needs it, the
# sources are parsed once, into runs/contrast. Writes MULTI30K.md and multi30k.json beside this file.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${SETS:?the folder with the contrastive sets}"
models=$root/runs/multi30k/trained work=$root/runs/contrast
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONWARNINGS=ignore
[ -d "$root/.venv" ] && PATH=$root/.venv/bin:$PATH
mkdir -p "$work"

if [ $# = 0 ]; then
  set -- $(cd "$models" && ls -d ./*/1/test1.txt | sed 's|^\./||; s|/test1.txt||' | grep -v '^transformer/')
  [ -e "$models/transformer/1/test1.txt" ] && set -- transformer/1 "$@"
fi
systems=() sets=() parses=()
for cell; do systems+=("${cell%/*}=$models/$cell/model/checkpoint_last.pt"); done
for name in subj_verb_agreement np_agreement clause_omission; do
  for side in src.en tgt.correct.de tgt.incorrect.de; do
    file=$SETS/$name.mt/$side
    [ -e "$SETS/$name.mt" ] || file=$SETS/$name.mt.$side
    if [ -e "$file.gz" ]; then gzip -dc "$file.gz" > "$work/$name.$side"; else cp "$file" "$work/$name.$side"; fi
  done
  if printf '%s\n' "$@" | grep -qvE '^(transformer|C?SH.*|PSH.*)/'; then
    python -m fairseq_syntax parse --input "$work/$name.src.en" --output "$work/$name.src.en.conllu" --lang en \
      ${PARSER:+--model-dir "$PARSER"}
    parses+=("$work/$name.src.en.conllu")
  fi
  sets+=("$name=$work/$name.src.en,$work/$name.tgt.correct.de,$work/$name.tgt.incorrect.de")
done

cat > "$work/page.md" <<PAGE
# Contrastive accuracy of the models trained on Multi30k

Written by \`examples/contrast/multi30k.sh $*\`. The sets are DistilLingEval's, of news; the models know captions, so the
accuracies serve to compare systems with each other. \`SYSTEM/N\`: training seed N.

PAGE
python -m fairseq_syntax contrast --set "${sets[@]}" ${parses:+--conllu "${parses[@]}"} --model "${systems[@]}" --device cpu \
  --data "$root/runs/multi30k/data/bin" --format markdown --json "$here/multi30k.json" >> "$work/page.md"
mv "$work/page.md" "$here/MULTI30K.md"
cat "$here/MULTI30K.md"
