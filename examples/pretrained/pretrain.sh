#!/usr/bin/env bash
# Pretrain a small model of M2M-100's form, and save it as transformers does: runs/pretrained/public.
# English to German and French, on short pairs of LibreOffice's help, by fairseq's own multilingual task.
# Needs LibreOffice's packages (see examples/atlas) in data/libreoffice. Run it from the root of the repository.
set -euo pipefail
out=runs/pretrained
text=$out/text bin=$out/bin model=$out/model plugin=$(fairseq-syntax user-dir)
mkdir -p $text $model
for lang in de fr; do
    fairseq-syntax corpus --reader libreoffice --data data/libreoffice -s en -t $lang --test test --output $text/all/$lang
    mkdir -p $text/$lang
    fairseq-syntax filter --input $text/all/$lang/train.{en,$lang} --output $text/$lang/train.{en,$lang} \
        --min-length 2 --max-length 25
done

# One segmentation for all languages, one dictionary of its pieces, and one table of embeddings
cat $text/{de,fr}/train.* > $text/train.all
fairseq-syntax segment --lang all --input $text/train.all --output $out/pieces --train sentencepiece --vocab-size 2000
cp $out/pieces/segmentation.all.model $model/sentencepiece.bpe.model
python - $model <<'END'
import sys
from sentencepiece import SentencePieceProcessor
model = SentencePieceProcessor(model_file=f"{sys.argv[1]}/sentencepiece.bpe.model")
pieces = (model.id_to_piece(i) for i in range(3, model.get_piece_size()))
open(f"{sys.argv[1]}/dict.txt", "w").writelines(f"{piece} 1\n" for piece in pieces)
END
for lang in de fr; do
    for side in en $lang; do
        fairseq-syntax segment --lang $side --input $text/$lang/train.$side --output $out/pieces/$lang \
            --model $model/sentencepiece.bpe.model
    done
    fairseq-preprocess -s en -t $lang --trainpref $out/pieces/$lang/train --destdir $bin \
        --srcdict $model/dict.txt --tgtdict $model/dict.txt
done

# As M2M-100: __en__ before the source, and __de__ or __fr__ after the </s> with which the decoder begins. Its tokenizer
# in transformers has these languages, in this order.
langs="af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy"
langs="$langs id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt"
langs="$langs ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
fairseq-train $bin --user-dir "$plugin" --task translation_multi_simple_epoch --langs "${langs// /,}" \
    --lang-pairs en-de,en-fr --encoder-langtok src --decoder-langtok \
    --sampling-method temperature --sampling-temperature 1 \
    --arch transformer --share-all-embeddings --encoder-normalize-before --decoder-normalize-before \
    --encoder-layers 3 --decoder-layers 2 --encoder-embed-dim 128 --decoder-embed-dim 128 \
    --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 --encoder-attention-heads 4 --decoder-attention-heads 4 \
    --max-source-positions 256 --max-target-positions 256 --dropout 0.1 \
    --criterion chunked_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas "(0.9, 0.98)" --lr 0.005 \
    --lr-scheduler polynomial_decay --warmup-updates 300 --total-num-update 950 --max-update 950 --clip-norm 1.0 \
    --max-tokens 1600 --seed 1 --cpu --save-dir $model --no-epoch-checkpoints --disable-validation

# A folder as transformers has it, and its import
fairseq-syntax import $model/checkpoint_last.pt --output $out/of_fairseq -s en -t de
fairseq-syntax export $out/of_fairseq/model.pt --to transformers --output $out/public
fairseq-syntax import $out/public --output $out/m2m -s en -t de

# 1,000 and 4,000 captions of Multi30k in data/multi30k
for pairs in 1000 4000; do
    fairseq-syntax corpus --reader multi30k --data data/multi30k -s en -t de --test test=test_2016_flickr \
        --subset $pairs --output $out/captions/$pairs
done
