"""The corpus scripts, from files of each corpus' own layout to binarized data."""

import errno
import gzip
import hashlib
import http.server
import io
import os
import random
import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import ClassVar

import pytest
import toy_data

from fairseq_syntax.corpus.conllu import read_conllu, text_of
from fairseq_syntax.corpus.parsing.base import Parser, SentenceParse
from fairseq_syntax.corpus.store import SyntaxStore, store_path
from fairseq_syntax.errors import SyntaxDataError

SCRIPTS = Path(__file__).resolve().parents[2] / "preprocess"
sys.path.insert(0, str(SCRIPTS))
try:
    import iwslt
    import multi30k
    import nc11_wmt16
    import pipeline
    import sources
finally:
    sys.path.remove(str(SCRIPTS))

ENGLISH = ["A man sees the dog.", "Two girls & a boat", "The dog doesn't see it.", "She said: go home!"]
GERMAN = ["Ein Mann sieht den Hund.", "Zwei Mädchen & ein Boot", "Der Hund sieht es nicht.", "Sie sagte: geh heim!"]


class ChainParser(Parser):
    """Every word attaches to the one before it; to the first one where its model says so, and one stops it."""

    def parse_sentences(self, sentences):
        model = fingerprint(self.options)
        if model == "broken":
            raise KeyboardInterrupt
        return [
            SentenceParse(
                [0] + [1] * (len(s) - 1) if model == "first" else list(range(len(s))),
                ["root"] + ["dep"] * (len(s) - 1),
                ["X"] * len(s),
                ["_"] * len(s),
            )
            for s in sentences
        ]


def fingerprint(options) -> str:
    """The content of the parser's model."""
    return Path(options.model_dir, "model").read_text("utf-8") if options.model_dir else "chain"


def load(options):
    """Makes this module a parser: ``--parser test_preprocess_scripts``."""
    return ChainParser(options)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode("utf-8")))
    else:
        path.write_text(text, encoding="utf-8")


def lines(side: list[str], count: int) -> list[str]:
    return [f"{number} {side[number % len(side)]}" for number in range(count)]


def segments(side: list[str], count: int) -> str:
    escaped = (line.replace("&", "&amp;") for line in lines(side, count))
    rows = (f'<seg id="{number}"> {line} </seg>\n' for number, line in enumerate(escaped, start=1))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n<doc docid="1">\n{"".join(rows)}</doc>\n</mteval>\n'


def tagged(side: list[str], count: int, more: str = "") -> str:
    head = "<url>http://x</url>\n<keywords>talks</keywords>\n<talkid>1</talkid>\n"
    talk = f"<title>{side[0]}</title>\n<description>{side[1]}</description>\n"
    return head + more + talk + "".join(f"{line}\n" for line in lines(side, count))


@pytest.fixture
def in_process(monkeypatch):
    """Runs the scripts' commands in this process; returns their list."""
    commands = []

    def run(words, check, env):
        commands.append(words)
        if "fairseq_syntax" in words:
            status = toy_data.syntax_command(*words[words.index("fairseq_syntax") + 1 :])
            if status:
                raise subprocess.CalledProcessError(status, words)
        else:
            words = words[words.index("fairseq_cli.preprocess") + 1 :]
            at = words.index("--user-dir")
            toy_data.fairseq("preprocess", *words[:at], *words[at + 2 :])

    monkeypatch.setattr(pipeline.subprocess, "run", run)
    return commands


def run_script(module, monkeypatch, *options) -> int:
    monkeypatch.setattr(sys, "argv", ["script", *map(str, options), "--parser", __name__])
    if hasattr(module, "main"):
        return module.main()
    return pipeline.run(pipeline.arguments(module.__doc__, max_length=100).parse_args(), module.take)


def check_data(out: Path, langs: tuple[str, str], counts: dict[str, int]) -> None:
    """The binarized data has so many sentences, the text of each is right, and the stores have their parses."""
    for split, count in counts.items():
        assert len(SyntaxStore(store_path(out / "bin", split, *langs, langs[0]))) == count
        parses = list(read_conllu(out / "pieces" / f"{split}.{langs[0]}.conllu", n_lines=count))
        folder = "filtered" if split == "train" else "text"
        texts = (out / folder / f"{split}.{langs[0]}").read_text(encoding="utf-8").splitlines()
        assert [text_of(parse) for parse in parses] == texts


@pytest.mark.slow
def test_multi30k(tmp_path, in_process, monkeypatch, capsys):
    data, out = tmp_path / "data", tmp_path / "out"
    for split, count in (("train", 60), ("val", 6), ("test_2016_flickr", 5), ("test_2017_flickr", 4)):
        ending = ".gz" if split in ("train", "val") else ""
        write(data / f"{split}.en{ending}", "".join(f"{line}\n" for line in lines(ENGLISH, count)))
        write(data / f"{split}.de{ending}", "".join(f"{line}\n" for line in lines(GERMAN, count)))
    options = ("--data", data, "--output", out, "--vocab-size", 60)
    assert run_script(multi30k, monkeypatch, *options) == 0
    check_data(out, ("en", "de"), {"train": 60, "valid": 6, "test": 5, "test1": 4})
    assert len(in_process) == 8 and "fairseq-syntax parse" in capsys.readouterr().out

    # Nothing is made twice; what depends on a changed file is, and no more.
    before = made(out)
    assert run_script(multi30k, monkeypatch, *options) == 0
    assert made(out) == before
    write(data / "test_2017_flickr.en", "".join(f"{line}\n" for line in lines(ENGLISH[1:], 4)))
    assert run_script(multi30k, monkeypatch, *options) == 0
    after = made(out)
    assert {name for name in after if after[name] != before[name]} == {
        *(
            f"{folder}/test1.en{more}"
            for folder, more in (("parsed", ".conllu"), ("pieces", ""), ("pieces", ".conllu"))
        ),
        *(f"bin/test1.en-de.en{ending}" for ending in (".bin", ".idx", ".syntax.arrow")),
    }
    check_data(out, ("en", "de"), {"train": 60, "test1": 4})


def made(out: Path) -> dict[str, int]:
    """When the files were made that cost time."""
    names = ("filtered/*", "parsed/*", "pieces/*", "bin/*.bin", "bin/*.idx", "bin/*.arrow")
    return {
        str(path.relative_to(out)): path.stat().st_mtime_ns
        for name in names
        for path in out.glob(name)
        if path.name[0] != "."
    }


def test_what_is_done_is_known_by_content(tmp_path, in_process, monkeypatch, capsys):
    """A parser's model that has changed, files that are gone, a kill while a parse is replaced, a folder that moved."""
    data, out, model = tmp_path / "data", tmp_path / "out", tmp_path / "m" / "model"
    for split in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        write(data / f"{split}.en", "".join(f"{line}\n" for line in lines(ENGLISH, 20)))
        write(data / f"{split}.de", "".join(f"{line}\n" for line in lines(GERMAN, 20)))

    def run(out=out, size=60, *more):
        options = ("--data", data, "--output", out, "--model-dir", model.parent, "--joint", "--vocab-size", size)
        return run_script(multi30k, monkeypatch, *options, *more)

    def third_head(out=out):
        store = SyntaxStore(store_path(out / "bin", "valid", "en", "de", "en"))
        return int(store.fetch([0]).head[2])

    write(model, "chain")
    assert run() == 0 and third_head() == 1
    write(model, "broken")
    assert run() == 1 and "run the script again" in capsys.readouterr().err
    write(model, "first")
    assert run() == 0 and third_head() == 0
    before = made(out)
    gone = ["bin/train.en-de.en.bin", "bin/valid.en-de.en.syntax.arrow", "pieces/valid.en.conllu"]
    for name in gone:
        (out / name).unlink()
    assert run() == 0
    after = made(out)
    assert after.keys() == before.keys() and {name for name in after if after[name] != before[name]} >= set(gone)
    moved = Path(shutil.copytree(out, tmp_path / "elsewhere"))  # fairseq logs into the folder as long as it runs
    before = made(moved)
    assert run(moved, 60, "--workers", 1, "--device", "cpu") == 0
    assert made(moved) == before
    assert run(moved, 70) == 0
    models = [(moved / "pieces" / f"segmentation.{lang}.model").read_bytes() for lang in ("en", "de")]
    assert models[0] == models[1]
    dictionaries = [(moved / "bin" / f"dict.{lang}.txt").read_bytes() for lang in ("en", "de")]
    assert dictionaries[0] == dictionaries[1]
    assert run(data / "out") == 1 and "lies in --data" in capsys.readouterr().err


def test_joint_pieces_and_a_parsed_target(tmp_path, in_process, monkeypatch):
    data, out = tmp_path / "data", tmp_path / "out"
    for split in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        write(data / f"{split}.en", "".join(f"{line}\n" for line in lines(ENGLISH, 20)))
        write(data / f"{split}.de", "".join(f"{line}\n" for line in lines(GERMAN, 20)))
    options = ("--data", data, "--output", out, "--vocab-size", 80, "--joint", "--parse-target")
    assert run_script(multi30k, monkeypatch, *options, "--segmentation", "subword_nmt") == 0
    check_data(out, ("en", "de"), {"train": 20})
    assert len(SyntaxStore(store_path(out / "bin", "valid", "en", "de", "de"))) == 20
    dictionaries = [(out / "bin" / f"dict.{lang}.txt").read_bytes() for lang in ("en", "de")]
    models = [(out / "pieces" / f"segmentation.{lang}.model").read_bytes() for lang in ("en", "de")]
    assert dictionaries[0] == dictionaries[1] and models[0] == models[1]


@pytest.mark.slow
def test_iwslt(tmp_path, in_process, monkeypatch):
    data, out = tmp_path / "data", tmp_path / "out"
    write(data / "de-en" / "train.tags.de-en.de", tagged(GERMAN, 67, "<translator href='x'>Somebody</translator>\n"))
    write(data / "de-en" / "train.tags.de-en.en", tagged(ENGLISH, 67))
    path = data / "de-en" / "train.tags.de-en.de"  # one side much longer than the other
    path.write_text(path.read_text(encoding="utf-8").replace("7 Sie", "7 " + "a " * 12 + "Sie", 1), encoding="utf-8")
    for name in ("dev2010", "tst2010", "tst2011"):
        write(data / "de-en" / f"IWSLT14.TED.{name}.de-en.de.xml", segments(GERMAN, 5))
        write(data / "de-en" / f"IWSLT14.TED.{name}.de-en.en.xml", segments(ENGLISH, 5))
    options = ("--data", data, "--source-lang", "de", "--target-lang", "en", "--vocab-size", 60)
    assert run_script(iwslt, monkeypatch, *options, "--output", out, "--test", "tst2010", "tst2011") == 0
    # 67 sentences, a title and a description; the 10th goes, and every 23rd of the others is for validation.
    check_data(out, ("de", "en"), {"train": 66, "valid": 2, "test": 10})
    text = (out / "text" / "test.de").read_text(encoding="utf-8").splitlines()
    assert text[1] == "1 Zwei Mädchen & ein Boot" and text[:5] == text[5:]
    valid = (out / "text" / "valid.en").read_text(encoding="utf-8").splitlines()
    everything = [*ENGLISH[:2], *lines(ENGLISH, 67)]
    del everything[9]
    assert valid == everything[22::23]

    # The other direction, with a development set of its own.
    options = ("--data", data, "--valid", "dev2010", "--test", "tst2010", "--vocab-size", 60)
    assert run_script(iwslt, monkeypatch, *options, "--output", tmp_path / "other") == 0
    check_data(tmp_path / "other", ("en", "de"), {"train": 69, "valid": 5, "test": 5})


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        ([1, 1], True),
        ([0, 1], False),
        ([175, 175], True),
        ([176, 176], False),
        ([2, 3], True),
        ([3, 2], True),
        ([5, 8], False),
    ],
)
def test_pairs_that_moses_keeps(tokens, kept):
    assert iwslt.is_kept(tokens) == kept


def test_nc11_and_wmt16(tmp_path, in_process, monkeypatch):
    data = tmp_path / "data"
    long_line = " ".join(["word"] * 90)
    for name in ("news-commentary-v11", "europarl-v7", "commoncrawl"):
        write(data / "training" / f"{name}.de-en.en", "".join(f"{x}\n" for x in [*lines(ENGLISH, 20), long_line, "a"]))
        write(data / "training" / f"{name}.de-en.de", "".join(f"{x}\n" for x in [*lines(GERMAN, 20), "kurz", ""]))
    write(data / "dev" / "newstest2015-ende-src.en.sgm", segments(ENGLISH, 6))
    write(data / "dev" / "newstest2015-ende-ref.de.sgm", segments(GERMAN, 6))
    write(data / "test" / "newstest2016.en", "".join(f"{line}\n" for line in lines(ENGLISH, 7)))
    write(data / "test" / "newstest2016.de", "".join(f"{line}\n" for line in lines(GERMAN, 7)))
    options = ("--data", data, "--vocab-size", 70)
    assert run_script(nc11_wmt16, monkeypatch, *options, "--output", tmp_path / "nc11") == 0
    # The pair of 90 words and the one without a target are filtered.
    check_data(tmp_path / "nc11", ("en", "de"), {"train": 20, "valid": 6, "test": 7})
    assert run_script(nc11_wmt16, monkeypatch, *options, "--output", tmp_path / "wmt16", "--corpora", "wmt16") == 0
    check_data(tmp_path / "wmt16", ("en", "de"), {"train": 60, "valid": 6, "test": 7})


def test_wrong_data_is_an_error(tmp_path, in_process, monkeypatch, capsys):
    data = tmp_path / "data"

    def error_of(*options):
        assert run_script(multi30k, monkeypatch, "--data", data, "--output", tmp_path / "out", *options) == 1
        return capsys.readouterr().err

    data.mkdir()
    assert "no file train.en below" in error_of() and not in_process
    write(data / "train.en", "a\nb\n")
    write(data / "train.de", "a\nb\nc\n")
    assert "ends after 2 sentences" in error_of()
    write(data / "sub" / "train.en", "a\n")
    assert "several files are called train.en" in error_of()
    (data / "sub" / "train.en").unlink()
    write(data / "train.en", "\n")
    write(data / "train.de", "")
    assert "ends after 0 sentences" in error_of()
    (data / "train.de").write_bytes(b"")
    (data / "train.en").write_bytes(b"")
    assert "holds no sentences" in error_of()


def test_a_failed_command_is_named_and_repeated(tmp_path, in_process, monkeypatch, capsys):
    data, out = tmp_path / "data", tmp_path / "out"
    for split in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        write(data / f"{split}.en", "".join(f"{line}\n" for line in lines(ENGLISH, 20)))
        write(data / f"{split}.de", "".join(f"{line}\n" for line in lines(GERMAN, 20)))
    options = ("--data", data, "--output", out)
    assert run_script(multi30k, monkeypatch, *options, "--vocab-size", 2) == 1
    assert "run the script again" in capsys.readouterr().err
    before = {name: at for name, at in made(out).items() if name.startswith(("filtered", "parsed"))}
    assert run_script(multi30k, monkeypatch, *options, "--vocab-size", 60) == 0
    assert len(before) == 6 and before.items() <= made(out).items()


@pytest.mark.parametrize("filters", [True, False], ids=["this Python", "Python 3.11.3"])
def test_downloads_are_kept_and_unpacked_safely(tmp_path, monkeypatch, filters):
    if not filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)

    def archive(name, content, kind=tarfile.REGTYPE, points_to=""):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, points_to
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        return buffer.getvalue()

    site = {
        "https://site/a.tgz": archive("corpus/train.en", b"a\n"),
        "https://site/b.gz": gzip.compress(b"b\n"),
        "https://site/evil.tgz": archive("../outside", b"x"),
        "https://site/link.tgz": archive("link", b"", tarfile.SYMTYPE, "/etc"),
    }
    asked = []

    class Response(io.BytesIO):
        status = 200
        headers: ClassVar[dict] = {}

    def urlopen(request, timeout):
        url = request.full_url
        asked.append(url)
        if url not in site:
            raise sources.urllib.error.URLError("no such host")
        return Response(site[url])

    monkeypatch.setattr(sources.urllib.request, "urlopen", urlopen)
    data = tmp_path / "data"
    for _ in range(2):
        sources.download(["https://site/a.tgz", "https://site/b.gz"], data)
    assert len(asked) == 2
    assert sources.find(data, "train.en").read_bytes() == b"a\n"
    assert list(sources.read_text(sources.find(data, "b"))) == ["b"]
    with pytest.raises(SyntaxDataError, match="no such host"):
        sources.download(["https://site/none.gz"], data)
    for evil in ("evil", "link"):
        with pytest.raises(SyntaxDataError, match="cannot be unpacked"):
            sources.download([f"https://site/{evil}.tgz"], data)
    assert not (data / "link").exists() and not (tmp_path / "outside").exists() and not (data / "evil.tgz").exists()


def test_a_damaged_archive_is_fetched_again_and_a_full_disk_costs_nothing(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo("train.en")
        member.size = 300_000
        tar.addfile(member, io.BytesIO(bytes(random.Random(1).choices(range(97, 123), k=member.size))))
    right = buffer.getvalue()
    wrong = right[:2000] + bytes(2000) + right[4000:]
    served = [wrong]

    class Response(io.BytesIO):
        status = 200
        headers: ClassVar[dict] = {}

    def urlopen(request, timeout):
        if request.headers.get("Range"):
            raise sources.urllib.error.HTTPError(request.full_url, 416, "nothing after that", {}, None)
        return Response(served[0])

    monkeypatch.setattr(sources.urllib.request, "urlopen", urlopen)
    for name in ("a.tgz", "a.gz"):
        with pytest.raises(SyntaxDataError, match=rf"{name}\.part: cannot be unpacked"):
            sources.download([f"https://site/{name}"], tmp_path / "data")
        assert not list((tmp_path / "data").glob("*.part"))
    served[0] = right

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", full)
        patch.setattr(tarfile.TarFile, "extract", full)
        with pytest.raises(SyntaxDataError, match=r"data: cannot be written: No space left .*make room"):
            sources.download(["https://site/a.tgz"], tmp_path / "data")
    assert (tmp_path / "data" / "a.tgz.part").read_bytes() == right
    served[0] = b"not asked for"
    sources.download(["https://site/a.tgz"], tmp_path / "data")
    assert sources.find(tmp_path / "data", "train.en").stat().st_size == 300_000


class _CutOff(http.server.BaseHTTPRequestHandler):
    """Gives at most 1,000 bytes an answer, whatever it promises; goes on from where it is asked to."""

    content = bytes(range(256)) * 10

    def do_GET(self):
        begin = int((self.headers["Range"] or "bytes=0-")[6:-1])
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(self.content) - begin))
        self.end_headers()
        self.wfile.write(self.content[begin : begin + 1000])

    def log_message(self, *arguments):
        pass


def test_a_download_that_was_cut_off_goes_on(tmp_path):
    server = http.server.HTTPServer(("127.0.0.1", 0), _CutOff)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/file"
    right = hashlib.sha256(_CutOff.content).hexdigest()
    for size in (1000, 2000):
        with pytest.raises(SyntaxDataError, match=f"was cut off: {size} of 2560 bytes.*to go on"):
            sources.download([url], tmp_path, {"file": right})
        assert os.listdir(tmp_path) == ["file.part"]
    sources.download([url], tmp_path, {"file": right})
    assert (tmp_path / "file").read_bytes() == _CutOff.content and os.listdir(tmp_path) == ["file"]
    (tmp_path / "file").rename(tmp_path / "file.part")
    with pytest.raises(SyntaxDataError, match="SHA-256 differs"):
        sources.fetch(url, tmp_path / "file", "0" * 64)
    assert os.listdir(tmp_path) == []
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_script_runs_from_anywhere(tmp_path):
    command = [sys.executable, SCRIPTS / "iwslt.py", "--help"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "--segmentation" in done.stdout and iwslt.__doc__.split("\n")[0] in done.stdout
