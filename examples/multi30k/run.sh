#!/usr/bin/env bash
# From the files of Multi30k to a table of scores: parse, segment, binarize, train, translate, score.
#
#   DATA=multi30k PARSER=models/en examples/multi30k/run.sh [CONFIGURATION] [options of fairseq-syntax experiment]
#
# CONFIGURATION  a file of this folder without its .yaml; what it is for stands at its top
#   English→German, small models on CPUs: cpu (the default), lstm, field, field-lstm, without-parser; trained: for longer,
#   and on control parses too; trained-longer: twice as long; without-parser-trained: after trained, with its models
#   of the papers' size: gpu
#   German→English on CPUs: lasyn; lasyn-trained: for longer, as many updates for every row
# DATA    folder with train.en, val.en, test_2016_flickr.en, test_2017_flickr.en and the .de beside them, plain or .gz;
#         with DOWNLOAD=1 they are fetched into it
# PARSER  folder with Stanza's pos.pt and depparse.pt for English; Stanza's own resources where it is not set
#
# For the plain Transformer and PASCAL alone:   … run.sh cpu --only transformer pascal
# Four models at a time:                        … run.sh cpu --jobs 4
# Whatever is done already is not done again.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${DATA:?the folder with the files of Multi30k}"
config=${1:-cpu}
shift || true
if [ ! -e "$here/$config.yaml" ]; then
  echo "no configuration $config; there are:" "$(cd "$here" && printf '%s ' *.yaml | sed 's/\.yaml / /g; s/ $//')" >&2
  exit 2
fi
case $config in
  gpu) data=$root/runs/multi30k/data-gpu; options=(--vocab-size 10000 --joint --device cuda) ;;
  *) data=$root/runs/multi30k/data; options=(--vocab-size 4000) ;;
esac
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONWARNINGS=ignore
[ -d "$root/.venv" ] && PATH=$root/.venv/bin:$PATH
[ -n "${PARSER:-}" ] && options+=(--model-dir "$PARSER")
[ -n "${DOWNLOAD:-}" ] && options+=(--download)

python "$root/preprocess/multi30k.py" --data "$DATA" --out "$data" --distributions --workers "${WORKERS:-2}" "${options[@]}"

# A grid goes on with the cells that it has, which must be of these data.
grid=$root/runs/multi30k/$config
made_of=$(cat "$data"/pieces/*.{en,de,conllu} "$data"/bin/dict.* | sha256sum)
if [ -e "$grid/.data" ] && [ "$(cat "$grid/.data")" != "$made_of" ]; then
  echo "$grid has models of other data: remove it, or move it away" >&2
  exit 2
fi
mkdir -p "$grid"
echo "$made_of" > "$grid/.data"

if [[ "$config" == trained || "$config" == trained-longer ]]; then
  # The same pieces with control parses, once each; the tokens are those of the real data.
  made_of=$(cat "$data"/pieces/*.conllu "$data"/bin/{dict,segmentation}.* | sha256sum)
  for control in linear random; do
    out=$(dirname "$data")/controls/$control
    [ "$(cat "$out/.done" 2> /dev/null)" = "$made_of" ] && continue
    mkdir -p "$out" "$out-parses"
    for split in train valid test test1; do
      python -m fairseq_syntax control "$control" --input "$data/pieces/$split.en.conllu" --output "$out-parses/$split.en.conllu"
      cp "$data/pieces/$split".{en,de} "$out-parses"
    done
    cp "$data"/bin/dict.* "$data"/bin/segmentation.* "$data"/bin/*.bin "$data"/bin/*.idx "$out"
    python -m fairseq_syntax binarize --destdir "$out" -s en -t de --only-source --trainpref "$out-parses/train" \
      --validpref "$out-parses/valid" --testpref "$out-parses/test,$out-parses/test1"
    echo "$made_of" > "$out/.done"
  done
fi
# Training on CPUs is faster where freed memory is kept: docs/how-to.md.
export MALLOC_MMAP_MAX_=${MALLOC_MMAP_MAX_-0} MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_-2147483647}
exec python -m fairseq_syntax experiment "$here/$config.yaml" "$@"
