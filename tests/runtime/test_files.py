"""Files are written whole or not at all, whatever they are; a step is done only if nothing has changed since."""

import bz2
import errno
import gzip
import io
import lzma
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from data_errors import data_error
from full_disk import files_no_larger_than

from fairseq_syntax.corpus.text_parts import text_parts
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import checksum, file_checksum, file_sha256, fingerprint, sha256, short_sha256
from fairseq_syntax.runtime.files import (
    COMPRESSED,
    atomic_open,
    atomic_path,
    check_output,
    files_below,
    instead,
    read_lines,
    read_raw_lines,
    read_stdin,
)
from fairseq_syntax.runtime.jobs import RecordedStep, record_path
from fairseq_syntax.runtime.locks import locked
from fairseq_syntax.runtime.parts import Parts
from fairseq_syntax.runtime.workers import in_workers

ROOT = Path(__file__).parents[2]


def write(path, text="new\n"):
    with atomic_open(path) as file:
        file.write(text)


def run(program: str, *arguments: str, **options) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'fairseq-syntax'\n" + textwrap.dedent(program)]
    return subprocess.Popen([*command, *map(str, arguments)], env=environment, **options)


# -- writing ----------------------------------------------------------------------------------------------------------


def test_digests_are_those_of_files_of_former_versions(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    whole = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_sha256(tmp_path / "a") == sha256(b"a", b"bc") == whole
    assert short_sha256(b"abc") == whole[:16]
    assert file_checksum(tmp_path / "a") == checksum(b"ab", b"c") == "78af5f94892f3950"
    assert fingerprint("é", 1, Path("b")) == fingerprint("é", 1, "b") == "6ba155f74fe19cca73d801d989f6afb9"


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    (tmp_path / "link2").symlink_to(tmp_path / "link")
    for text in ("one\n", "two\n"):  # a dangling link, then one to a file
        write(tmp_path / "link2", text)
        assert (tmp_path / "there/file").read_text() == text
    assert (tmp_path / "link").is_symlink() and (tmp_path / "link2").is_symlink()
    assert os.listdir(tmp_path / "there") == ["file"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_may_be_read_by_whom_the_umask_lets(tmp_path, umask):
    before = os.umask(umask)
    try:
        write(tmp_path / "file")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_fifo_and_a_device_are_written_directly(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    actual = []
    reader = threading.Thread(target=lambda: actual.append((tmp_path / "pipe").read_text()))
    reader.start()
    write(tmp_path / "pipe")
    reader.join()
    assert actual == ["new\n"] and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    (tmp_path / "null").symlink_to("/dev/null")
    write(tmp_path / "null")
    write("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode) and (tmp_path / "null").is_symlink()
    with data_error(path="/dev/full"):
        write("/dev/full")


def test_standard_output_is_added_to(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        program = """
            from fairseq_syntax.runtime.files import atomic_open
            print("before")
            with atomic_open("/dev/stdout") as file:
                file.write("new\\n")
            print("after")
        """
        assert run(program, stdout=log).wait() == 0
    assert (tmp_path / "log").read_text() == "before\nnew\nafter\n"


def test_a_folder_that_is_none_or_may_not_be_written(tmp_path):
    with data_error(path=tmp_path / "none" / "file"):
        write(tmp_path / "none" / "file")
    with data_error(path=tmp_path):
        write(tmp_path)


def test_a_read_only_folder(tmp_path, monkeypatch):
    """Who runs the tests may be allowed everything: so the system's answer is given in its place."""

    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with data_error(path=tmp_path / "file"):
        write(tmp_path / "file")
    monkeypatch.setattr(os, "open", refuse)
    with data_error(path=tmp_path / "file"), locked(tmp_path / "file"):
        pass


def test_a_full_disk_leaves_the_old_file(tmp_path):
    write(tmp_path / "file", "old\n")
    with files_no_larger_than(5000), data_error(path=tmp_path / "file"):
        write(tmp_path / "file", "x" * 100_000)
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "old\n"


def test_an_error_of_another_file_is_not_this_ones(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_open(tmp_path / "file"):
        (tmp_path / "missing").read_text()
    assert os.listdir(tmp_path) == []


def test_what_a_killed_run_left_is_removed_and_what_a_running_one_has_is_not(tmp_path):
    program = """
        import sys, time
        from fairseq_syntax.runtime.files import atomic_open
        with atomic_open(sys.argv[1]) as file:
            print("writing", flush=True)
            time.sleep(600)
    """
    runs = [run(program, tmp_path / "file", stdout=subprocess.PIPE) for _ in range(2)]
    for each in runs:
        assert each.stdout.readline() == b"writing\n"
    runs[0].kill()
    runs[0].wait()
    assert len(os.listdir(tmp_path)) == 2
    write(tmp_path / "other")
    assert len(os.listdir(tmp_path)) == 3, "leftovers of one file are not another's"
    write(tmp_path / "file")
    assert len(os.listdir(tmp_path)) == 3, "one of the two is still being written"
    runs[1].kill()
    runs[1].wait()
    with atomic_path(tmp_path / "file") as temporary:
        Path(temporary).write_text("by name\n")
    assert sorted(os.listdir(tmp_path)) == ["file", "other"] and (tmp_path / "file").read_text() == "by name\n"


@pytest.mark.parametrize("cut", [20, -8, None])
def test_a_damaged_archive_is_an_error_with_its_name(tmp_path, cut):
    packed = bytearray(gzip.compress("".join(f"line {i}\n" for i in range(1000)).encode()))
    if cut is None:
        packed[40:60] = bytes(20)
    (tmp_path / "text.gz").write_bytes(packed[:cut])
    with data_error(path="text.gz"):
        list(read_lines(tmp_path / "text.gz"))


# -- locks ------------------------------------------------------------------------------------------------------------


def test_the_second_waits_for_the_first_and_a_kill_frees_the_lock(tmp_path):
    program = """
        import sys, time
        from fairseq_syntax.runtime.locks import locked
        with locked(sys.argv[1]):
            print("locked", flush=True)
            time.sleep(600)
    """
    first = run(program, tmp_path / "file", stdout=subprocess.PIPE)
    assert first.stdout.readline() == b"locked\n"
    order = []

    def second():
        with locked(tmp_path / "file"):
            order.append("second")

    waiting = threading.Thread(target=second)
    waiting.start()
    time.sleep(0.2)
    assert order == []
    first.kill()
    first.wait()
    waiting.join(30)
    assert order == ["second"] and os.listdir(tmp_path) == []


def test_many_take_turns(tmp_path):
    inside, seen = [], []

    def take(number):
        for _ in range(20):
            with locked(tmp_path / "file"):
                inside.append(number)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {1} and len(seen) == 80 and os.listdir(tmp_path) == []


# -- done or not ------------------------------------------------------------------------------------------------------


def test_a_step_is_done_only_as_it_stands(tmp_path):
    outputs = (tmp_path / "a", tmp_path / "b")
    step = RecordedStep(outputs, fingerprint("input", {"option": 1}))
    with step.making() as record:
        assert record is None
        step.begin()
        for path in outputs:
            write(path)
        assert step.record() is None, "begun is not done"
        step.finish({"lines": 1})
    assert step.record()["note"] == {"lines": 1}
    assert RecordedStep(outputs, fingerprint("input", {"option": 2})).record() is None
    assert RecordedStep(outputs[:1], step.made_from).record() is None
    os.utime(outputs[0], (0, 0))
    assert step.record() is not None, "times say nothing"
    write(outputs[1], "old\n")
    assert step.record() is None
    write(outputs[1])
    assert step.record() is not None
    outputs[0].unlink()
    assert step.record() is None
    write(outputs[0])
    for damage in ("", "[]", "{}", '{"made_from": 1}'):
        record_path(outputs[0]).write_text(damage)
        assert step.record() is None


# -- parts and workers ------------------------------------------------------------------------------------------------


def test_parts_are_whole_or_made_again_and_never_anothers(tmp_path):
    parts = Parts(tmp_path / "out", "f" * 32)
    parts.folder.mkdir()
    assert not parts.is_whole((0, 5))
    parts.commit((0, 5), b"one\ntwo")
    assert parts.is_whole((0, 5)) and parts.body((0, 5)) == b"one\ntwo" and not parts.is_whole((5, 9))
    raw = parts.path((0, 5)).read_bytes()
    for at in range(0, len(raw), 7):
        changed = bytearray(raw)
        changed[at] ^= 1
        parts.path((0, 5)).write_bytes(changed)
        assert not parts.is_whole((0, 5))
        with data_error(path=parts.path((0, 5))):
            parts.body((0, 5))
    parts.commit((0, 5), b"again")
    other = Parts(tmp_path / "out", "0" * 32)
    assert not other.is_whole((0, 5))
    other.commit((0, 5), b"other")
    assert parts.body((0, 5)) == b"again" and other.body((0, 5)) == b"other"
    other.remove()
    assert parts.is_whole((0, 5)) and not other.is_whole((0, 5))
    other.remove(of_all_jobs=True)
    assert not parts.folder.exists()


def test_leftovers_of_parts_are_looked_for_when_a_job_begins_and_not_at_each_part(tmp_path, monkeypatch):
    parts, spans = Parts(tmp_path / "out", "f" * 32), [(0, 5), (5, 9)]
    parts.make_folder(spans)
    left = [parts.folder / f".{parts.path(span).name}.abc_1234.part" for span in [*spans, (9, 12)]]
    for path in left:
        path.touch()
    scan, scanned = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: scanned.append(path) or scan(path))
    parts.make_folder(spans)
    assert [path.exists() for path in left] == [False, False, True], "the last one is another shard's"
    for span in spans:
        parts.commit(span, b"x")
    assert scanned == [parts.folder]
    parts.make_folder()
    assert not left[2].exists() and parts.is_whole((0, 5))


def _square(number: int) -> int:
    if number == -1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == -2:
        raise SyntaxDataError("bad", path="file", line=3)
    time.sleep(0.002 * (number % 3))
    return number * number


@pytest.mark.parametrize("workers", [1, 2])
def test_every_result_comes_and_the_source_is_not_read_ahead(workers):
    taken = []

    def source():
        for number in range(40):
            taken.append(number)
            yield number

    results = []
    for result in in_workers(_square, source(), workers=workers):
        results.append(result)
        assert len(taken) <= len(results) + 2 * workers + 1
    assert sorted(results) == [n * n for n in range(40)]


def test_a_killed_worker_is_an_error_and_not_an_endless_wait():
    with data_error("killed"):
        list(in_workers(_square, [1, 2, -1, *range(30)], workers=2))
    with data_error(path="file", line=3):
        list(in_workers(_square, [1, -2, 3], workers=2))


def test_a_killed_worker_leaves_progress_bars_to_the_others():
    """tqdm has one lock for a process and all its forks."""
    program = """
        import os, signal
        from tqdm import tqdm
        from fairseq_syntax.errors import SyntaxDataError
        from fairseq_syntax.runtime.workers import in_workers

        def work(number):
            with tqdm.get_lock():
                os.kill(os.getpid(), signal.SIGKILL)

        tqdm(disable=True)
        try:
            list(in_workers(work, range(9), workers=2))
        except SyntaxDataError:
            tqdm(disable=True)
            print("goes on")
    """
    process = run(program, stdout=subprocess.PIPE)
    try:
        assert process.communicate(timeout=100)[0] == b"goes on\n"
    finally:
        process.kill()


class _BadModel:
    """Fails where it is first used, as a model that cannot be loaded."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, number: int) -> int:
        raise self.error


@pytest.mark.parametrize("error", [SyntaxDataError("no model", path="file"), SystemExit(3)])
def test_an_error_at_the_start_of_a_worker_is_that_of_one_process(error, capfd):
    for workers in (1, 2):
        with pytest.raises(type(error)) as actual:
            list(in_workers(_BadModel(error), range(30), workers=workers))
        assert str(actual.value) == str(error)
    assert capfd.readouterr().err == ""


def test_an_output_is_no_input_but_for_what_nothing_is_overwritten_of(tmp_path):
    for name in ("/dev/null", "/dev/stdout", "-"):
        check_output(name, name)
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").symlink_to("a")
    with data_error(path=tmp_path / "a"):
        check_output(tmp_path / "b", tmp_path / "a")


IN_PROCESSES = "time.sleep(10_000)", "list(in_workers(work, range(30), workers=2))"
IN_A_LIBRARY = "hashlib.pbkdf2_hmac('sha256', b'', b'', 1 << 30)", "interruptible(partial(work, 1))"


@pytest.mark.parametrize("work, call", [IN_PROCESSES, IN_A_LIBRARY])
def test_an_interrupt_does_not_wait_for_the_tasks_under_way(tmp_path, work, call):
    code = f"""
import hashlib, sys, time
from functools import partial
from pathlib import Path
from fairseq_syntax.runtime.workers import in_workers, interruptible
def work(number):
    Path(sys.argv[1], str(number)).touch()
    {work}
try:
    {call}
except KeyboardInterrupt:
    sys.exit(130)
"""
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    argv = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=heed)
    while len(list(tmp_path.iterdir())) < (2 if "workers" in call else 1) and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it, too
    assert process.wait(timeout=100) == 130


def test_text_has_neither_a_mark_nor_nuls(tmp_path, monkeypatch):
    """In files and at standard input, decoded or not; UTF-16 is named as what it is, with a mark or without one."""
    path = tmp_path / "text"

    def standard_input() -> list[str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
        return list(read_stdin())

    readers = [lambda: [*read_lines(path)], lambda: [line.decode().rstrip() for line in read_raw_lines(path)]]
    readers += [standard_input, lambda: [*next(text_parts(path, 9)).texts()]]
    for read in readers:
        path.write_text("\ufeffa\ufeff\nb\n", encoding="utf-8")
        assert read() == ["a\ufeff", "b"]
        for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
            path.write_text("a line\n", encoding=encoding)
            with data_error("iconv"):
                read()
        path.write_bytes(b"a\nb\0\n")
        with pytest.raises(SyntaxDataError) as error:
            read()
        assert error.value.line == 2


def test_compressed_files_are_read_by_their_content_or_named(tmp_path):
    text = b"a line\nanother\n"
    zstd = bytes.fromhex("28b52ffd0458790000") + text + bytes.fromhex("9d6e473c")  # as the program zstd writes it
    compressed = {".gz": gzip.compress(text), ".bz2": bz2.compress(text), ".xz": lzma.compress(text), ".zst": zstd}
    assert compressed.keys() == COMPRESSED.keys()
    for ending, packed in compressed.items():
        for name in (f"text{ending}", f"text{ending}.renamed"):
            (tmp_path / name).write_bytes(packed)
            assert list(read_lines(tmp_path / name)) == ["a line", "another"]
        with atomic_open(tmp_path / f"written{ending}") as file:
            file.write(text.decode())
        assert (tmp_path / f"written{ending}").read_bytes()[:4] == packed[:4]
        assert list(read_lines(tmp_path / f"written{ending}")) == ["a line", "another"]
    for name, content in (("empty.gz", b""), ("plain.gz", text), ("cut.gz", gzip.compress(text)[:-6]), ("a.bz2", b"")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "cut.xz").write_bytes(lzma.compress(text)[:-9])
    (tmp_path / "alone.lzma").write_bytes(lzma.compress(text, format=lzma.FORMAT_ALONE))
    (tmp_path / "cut.zst").write_bytes(zstd[:-3])
    with data_error("decompress", path=tmp_path / "alone.lzma"):
        list(read_lines(tmp_path / "alone.lzma"))
    for name in ("empty.gz", "plain.gz", "cut.gz", "a.bz2", "cut.xz", "cut.zst"):
        with pytest.raises(SyntaxDataError) as error:
            list(read_lines(tmp_path / name))
        assert error.value.path == tmp_path / name
    (tmp_path / "empty").write_bytes(b"")
    assert list(read_lines(tmp_path / "empty")) == []


def test_files_in_linked_folders_are_found_once(tmp_path):
    for name in ("data/own/train.en", "data/valid.en", "big/test.en", "big/more/test.en"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    data = tmp_path / "data"
    for link, target in (("a", "own"), ("big", "../big"), ("own/back", ".."), ("again", "../big/more"), ("gone", "x")):
        (data / link).symlink_to(target)
    names = [path.relative_to(data).as_posix() for path in files_below(data)]
    assert sorted(names) == ["again/test.en", "big/test.en", "own/train.en", "valid.en"]
    assert [path.name for path in files_below(data, "own/*.en")] == ["train.en"]


def test_a_missing_file_is_told_with_what_may_have_been_meant(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.en").write_text("a\n")
    (tmp_path / "text" / "link.en").symlink_to("gone")
    for name, hint in (
        ("text/link.en", f"{tmp_path}/text/link.en is a link to gone, where there is nothing"),
        ("text/link.en/a", f"{tmp_path}/text/link.en is a link to gone, where there is nothing"),
        ("text/trian.en", f"did you mean {tmp_path}/text/train.en?"),
        ("txet/train.en", f"did you mean {tmp_path}/text?"),
        ("another/train.en", f"there is no {tmp_path}/another"),
        ("text/quite-another", None),
    ):
        with pytest.raises(SyntaxDataError) as caught:
            list(read_lines(tmp_path / name))
        assert caught.value.path == tmp_path / name and caught.value.hint == hint
    assert instead(tmp_path / "text" / "train.en" / "x") is None


def test_a_line_larger_than_the_memory_is_an_error_of_its_file(tmp_path, monkeypatch):
    """As in an archive of one line, which may have a thousand times the size of its file."""

    def too_large(*_: object) -> None:
        raise MemoryError

    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a\n"))
    monkeypatch.setattr("fairseq_syntax.runtime.files._decompressed", too_large)
    with data_error(path=path):
        list(read_lines(path))


@pytest.mark.parametrize("name", ["text", "text.gz", "text.bz2", "text.xz", "text.zst"])
def test_a_line_has_a_bound_in_every_format(tmp_path, monkeypatch, name):
    monkeypatch.setattr("fairseq_syntax.runtime.files.LONGEST_LINE", 9)
    path = tmp_path / name
    for lines, too_long in ((["abcdefgh", "b"], None), (["a", "abcdefghi", "b"], 2)):  # nine bytes with the line end
        with atomic_open(path) as file:
            file.writelines(f"{line}\n" for line in lines)
        if too_long is None:
            assert list(read_lines(path)) == lines
        else:
            with data_error(path=path, line=too_long):
                list(read_lines(path))
