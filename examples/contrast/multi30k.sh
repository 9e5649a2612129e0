#!/usr/bin/env bash
# The models of examples/multi30k/trained.yaml on contrastive sets: how often is the right translation more probable?
#
#   SETS=distil-lingeval/data PARSER=models/en examples/contrast/multi30k.sh [SYSTEM/SEED ...]
#
# SETS    folder with the sets of DistilLingEval (https://github.com/ZurichNLP/distil-lingeval, its folder data): NAME.mt/src.en
#         and so on, or NAME.mt.src.en in one folder; plain or .gz
# PARSER  folder with Stanza's pos.pt and depparse.pt for English; Stanza's own resources where it is not set
# Without systems: seed 1 of all whose models are there, with the plain Transformer as the baseline. Where a system needs it,
# the sources are parsed once, into runs/contrast, and made into the control parses that it was trained on. Writes MULTI30K.md and multi30k.json beside this file.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${SETS:?the folder with the contrastive sets}"
models=$root/runs/multi30k/trained/models work=$root/runs/contrast
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONWARNINGS=ignore
[ -d "$root/.venv" ] && PATH=$root/.venv/bin:$PATH
mkdir -p "$work"

if [ $# = 0 ]; then
  set -- $(cd "$models" && ls -d ./*/1/checkpoint_last.pt | sed 's|^\./||; s#/checkpoint.*##' | grep -v '^transformer/')
  [ ! -e "$models/transformer/1/checkpoint_last.pt" ] || set -- transformer/1 "$@"
fi
sets=() names=(subj_verb_agreement np_agreement clause_omission)
for name in "${names[@]}"; do
  for side in src.en tgt.correct.de tgt.incorrect.de; do
    file=$SETS/$name.mt/$side
    [ -e "$SETS/$name.mt" ] || file=$SETS/$name.mt.$side
    if [ -e "$file.gz" ]; then gzip -dc "$file.gz" > "$work/$name.$side"; else cp "$file" "$work/$name.$side"; fi
  done
  sets+=("$name=$work/$name.src.en,$work/$name.tgt.correct.de,$work/$name.tgt.incorrect.de")
done

# A system that was trained on control parses is scored with such parses, and so the kinds are scored one after the other.
for kind in real linear random; do
  systems=() parses=() data=$root/runs/multi30k/data/bin
  [ "$kind" = real ] || data=$root/runs/multi30k/controls/$kind
  for cell; do
    case $cell in *.linear/*) of=linear ;; *.random/*) of=random ;; *) of=real ;; esac
    [ "$of" != "$kind" ] || systems+=("${cell/\//_}=$models/$cell/checkpoint_last.pt")
  done
  [ "${#systems[@]}" -gt 0 ] || continue
  if printf '%s\n' "${systems[@]}" | grep -qvE '^(transformer|C?SH.*|PSH.*)_'; then
    for name in "${names[@]}"; do
      python -m fairseq_syntax parse --input "$work/$name.src.en" --output "$work/$name.real.conllu" --lang en \
        --distributions ${PARSER:+--model-dir "$PARSER"}
      if [ "$kind" != real ]; then
        python -m fairseq_syntax control "$kind" --input "$work/$name.real.conllu" --output "$work/$name.$kind.conllu"
      fi
      parses+=("$work/$name.$kind.conllu")
    done
  fi
  python -m fairseq_syntax contrast "${systems[@]}" --set "${sets[@]}" ${parses:+--conllu "${parses[@]}"} \
    --data "$data" --device cpu --write-scores "$work/scores" > "$work/$kind.txt"
done
scores=()
for cell; do scores+=("${cell%/*}=$work/scores/${cell/\//_}.scores"); done

cat > "$work/page.md" <<PAGE
# Contrastive accuracy of the models trained on Multi30k

Written by \`examples/contrast/multi30k.sh $*\`. The sets are DistilLingEval's, of news; the models know captions, so the
accuracies serve to compare systems with each other. \`SYSTEM/N\`: training seed N. Summed scores favour the shorter
translation: where the wrong one lacks words (\`clause_omission\`) hardly any is right, which says nothing of the models.

PAGE
python -m fairseq_syntax contrast --set "${sets[@]}" --scores "${scores[@]}" --format markdown --json "$here/multi30k.json" \
  >> "$work/page.md"
mv "$work/page.md" "$here/MULTI30K.md"
cat "$here/MULTI30K.md"
