"""Files that are named by URIs: read, written whole or not at all, and parsed from and to an S3-compatible store."""

from __future__ import annotations

import gc
import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_server

from fairseq_syntax.cli import main
from fairseq_syntax.corpus.conllu import read_conllu
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import atomic_open, atomic_open_binary, is_replaced, read_lines
from fairseq_syntax.runtime.uris import Uri, location

needs_moto = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("moto", "flask", "flask_cors")),
    reason="moto, the S3-compatible server, is not installed",
)
LARGE = 11 << 20  # more than a part of an upload


def test_messages_show_neither_credentials_nor_settings():
    uri = location("s3://key:secret@bucket/dir/train.en?endpoint_override=127.0.0.1:1&scheme=http")
    assert isinstance(uri, Uri)
    assert str(uri) == os.fspath(uri) == "s3://bucket/dir/train.en"
    other = uri.with_name("out") / "part"
    assert other.uri == "s3://key:secret@bucket/dir/out/part?endpoint_override=127.0.0.1:1&scheme=http"
    assert (other.name, uri.name) == ("part", "train.en")
    assert pickle.loads(pickle.dumps(uri)) == uri
    assert is_replaced(uri)


def test_paths_stay_paths():
    assert (
        location("a/b") == Path("a/b") and location("C:/x") == Path("C:/x") and location("file:///a/b") == Path("/a/b")
    )
    with pytest.raises(SyntaxDataError, match="nosuch://host/x: cannot be opened"):
        location("nosuch://key@host/x")


@pytest.mark.parametrize("name", ["c#/train.en", "c?/train.en", "train.en?", "what?.en&scheme=http", "a?v=1&.en"])
@pytest.mark.parametrize("where", ["s3://corpora", "mock://", "file://"])
def test_no_part_of_a_name_is_left_out(where, name):
    with pytest.raises(SyntaxDataError, match=r"a # or \? is no part of a name in a URI .*%23"):
        location(f"{where}/{name}")
    if where != "file://":
        with pytest.raises(SyntaxDataError, match="%23"):
            Uri(f"{where}/{name}")


def test_odd_names_are_written_with_percent_signs():
    assert location("file:///a%20b%23/c%3F") == location("file://localhost/a%20b%23/c%3F") == Path("/a b#/c?")
    with pytest.raises(SyntaxDataError, match="host is a machine, not a folder"):
        location("file://host/a")
    folder = Uri("mock:///odd")
    folder.make_folder()
    with atomic_open(folder / "a%23%25%3F") as file:
        file.write("b")
    (found,) = folder.glob("*")
    assert found.read_bytes() == b"b" and found._place()[1].endswith("odd/a#%?")


def test_a_file_system_without_uploads_gets_a_temporary_name():
    out = Uri("mock:///dir/out")
    Uri("mock:///dir").make_folder()
    with atomic_open(out) as file:
        file.write("ä\n")
        assert not out.is_file()
    assert list(read_lines(out)) == ["ä"]
    with pytest.raises(ZeroDivisionError), atomic_open_binary(out) as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    assert out.read_bytes() == "ä\n".encode()
    assert [uri.name for uri in Uri("mock:///dir").glob("*")] == ["out"]
    with pytest.raises(SyntaxDataError, match="mock:///dir/none: cannot be read"):
        list(read_lines(Uri("mock:///dir/none")))


def test_an_existing_parse_is_passed_on_from_a_uri(tmp_path):
    Uri("mock:///parses").make_folder()
    rows = "1\ta\t_\tX\tX\t_\t0\troot\t_\t_\n\n"
    for name in ("parse.conllu", "parse.conllu.gz"):
        with atomic_open(Uri(f"mock:///parses/{name}")) as file:
            file.write(rows)
        out = tmp_path / name.removesuffix(".gz")
        assert main(["parse", "--parser", "conllu", "--input", f"mock:///parses/{name}", "--output", str(out)]) == 0
        assert out.read_text() == "# lines = 1\n# line = 1\n" + rows
        out.unlink()
    with pytest.raises(SyntaxDataError, match="mock:///parses/none: cannot be read"):
        list(read_conllu(Uri("mock:///parses/none")))


# ------------------------------------------------------------------------------------------------------------- S3


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server.s3_server() as address:
        yield address


def on(server: str, name: str) -> Uri:
    uri = location(f"s3://{name}?endpoint_override={server}&scheme=http&allow_bucket_creation=true")
    assert isinstance(uri, Uri)
    return uri


def make_bucket(server: str, name: str) -> None:
    system, path = on(server, name)._place()
    system.create_dir(path)


def keys(server: str, bucket: str) -> list[str]:
    from pyarrow import fs

    system, path = on(server, bucket)._place()
    found = system.get_file_info(fs.FileSelector(path, recursive=True))
    return sorted(info.path for info in found if info.is_file)


@needs_moto
@pytest.mark.slow
def test_an_upload_shows_when_it_is_complete_and_never_after_an_error(server):
    make_bucket(server, "whole")
    out = on(server, "whole/out")
    with atomic_open_binary(out) as file:
        file.write(bytes(LARGE))
        assert not out.is_file()
    assert len(out.read_bytes()) == LARGE
    for write in (atomic_open_binary, atomic_open):
        with pytest.raises(ZeroDivisionError), write(out) as file:
            file.write("half" if write is atomic_open else bytes(LARGE))
            raise ZeroDivisionError
        del file
        gc.collect()
        assert len(out.read_bytes()) == LARGE
    # The end of the process does not complete it either.
    source = f"""
from fairseq_syntax.runtime.uris import Uri
with Uri({out.with_name("late").uri!r}).atomic_open_binary() as file:
    file.write(bytes({LARGE}))
    1 / 0
"""
    died = subprocess.run([sys.executable, "-c", source], capture_output=True)
    assert b"ZeroDivisionError" in died.stderr
    assert keys(server, "whole") == ["whole/out"]


@needs_moto
@pytest.mark.slow
def test_a_corpus_is_parsed_from_and_to_a_bucket(server, tmp_path, capsys, monkeypatch):
    make_bucket(server, "corpus")
    text = "".join(f"line {number} of the text\n" for number in range(23))
    (tmp_path / "text").write_text(text)
    common = ["parse", "--parser", "chain_parser", "--part-lines", "5"]
    assert main([*common, "--input", str(tmp_path / "text"), "--output", str(tmp_path / "out")]) == 0
    with atomic_open(on(server, "corpus/in/text")) as file:
        file.write(text)
    source, target = on(server, "corpus/in/text").uri, on(server, "corpus/out/parse").uri
    there = [*common, "--input", source, "--output", target]
    assert main([*there, "--shard", "1/2"]) == 0
    assert len(keys(server, "corpus/out/parse.parts")) == 2
    assert main([*there, "--merge"]) == 1
    assert "s3://corpus/out/parse.parts: 3 of 5 parts are missing" in capsys.readouterr().err
    assert main(there) == 0
    assert keys(server, "corpus") == ["corpus/in/text", "corpus/out/parse"]
    whole = (tmp_path / "out").read_bytes()
    assert on(server, "corpus/out/parse").read_bytes() == whole
    assert main(there) == 0  # up to date
    assert main([*there, "--distributions"]) == 1
    assert "made from another text, with other options" in capsys.readouterr().err
    assert main([*there, "--distributions", "--overwrite"]) == 0
    assert on(server, "corpus/out/parse").read_bytes() != whole
    # The endpoint may be the environment's.
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server}")
    with atomic_open_binary(location("s3://corpus/in/text.gz")) as stream:
        stream.write(text.encode())
    assert main([*common, "--input", "s3://corpus/in/text.gz", "--output", "s3://corpus/gz"]) == 0
    assert on(server, "corpus/gz").read_bytes() == whole


@needs_moto
@pytest.mark.slow
def test_what_is_not_there_is_named_without_credentials(server, capsys, tmp_path):
    common = ["parse", "--parser", "chain_parser", "--output", str(tmp_path / "out"), "--input"]
    assert main([*common, f"s3://key:secret@none/text?endpoint_override={server}&scheme=http"]) == 1
    error = capsys.readouterr().err
    assert "s3://none/text: cannot be read" in error and "secret" not in error
