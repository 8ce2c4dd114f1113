import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bixse.data.collection import Document
from bixse.data.pydocs import collection as pydocs
from bixse.data.pydocs import extract
from bixse.errors import BixseError, InvalidFileError, StorageError

GRADED_IDS = 3864
IDS_3_11 = Path(__file__).with_name("pydocs-ids-3.11.txt")
PACKAGE = Path(extract.__file__).parent
SHIPPED = ("queries.jsonl", *(f"qrels/{split}.tsv" for split in pydocs.SPLITS))

# Runs the script under a hook of its own that sees each audit event before the script's guard does.
RECORDER = """
import json, runpy, sys
script, output, report = sys.argv[1:]
watched = ("socket.", "subprocess.", "webbrowser.", "urllib.", "smtplib.", "ftplib.", "os.")
events = []
def record(event, values):
    flags = values[2] if event == "open" else 0
    if event.startswith(watched) or isinstance(flags, int) and flags & 3:
        events.append([event, str(values[0]) if values else ""])
report_file = open(report, "w")
sys.addaudithook(record)
sys.argv = [script, output]
try:
    runpy.run_path(script, run_name="__main__")
except SystemExit as error:
    assert not error.code, error.code
report_file.write(json.dumps(events))
"""


@pytest.fixture(scope="module")
def loaded():
    return pydocs.load_pydocs()


@pytest.fixture
def damaged(tmp_path, monkeypatch):
    """A copy of the shipped files that a test may damage."""
    for name in SHIPPED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(PACKAGE / name, tmp_path / name)
    monkeypatch.setattr(pydocs, "resource_folder", lambda: tmp_path)
    monkeypatch.setattr(pydocs, "extract_documents", lambda cache: {"copy.copy": Document("copy.copy", "copies")})
    return tmp_path


def use_script(tmp_path, monkeypatch, source):
    """Let the child process run `source`; sys.argv[1] is where its answer goes."""
    script = tmp_path / "child.py"
    script.write_text(f"import json, os, sys, time\n{source}\n")
    monkeypatch.setattr(extract, "SCRIPT", script)


# --- the child process fails ---


def test_a_child_that_hangs_is_stopped(tmp_path, monkeypatch):
    use_script(tmp_path, monkeypatch, "time.sleep(60)")
    with pytest.raises(BixseError, match=r"got no answer after 0.5 s; expected .*; fix: "):
        extract.extract_documents(timeout_seconds=0.5)


def test_a_child_that_fails_shows_its_last_line(tmp_path, monkeypatch):
    use_script(tmp_path, monkeypatch, "raise SystemError('broken library')")
    with pytest.raises(BixseError, match=r"exit status 1 \(SystemError: broken library\).*fix: reinstall"):
        extract.extract_documents()


def test_no_documents_is_an_error(tmp_path, monkeypatch):
    use_script(tmp_path, monkeypatch, "open(sys.argv[1], 'w').write('{}')")
    with pytest.raises(BixseError, match="got no documents"):
        extract.extract_documents()


def test_an_answer_cut_short_is_an_error(tmp_path, monkeypatch):
    use_script(tmp_path, monkeypatch, "open(sys.argv[1], 'w').write('{\"os.pa')")
    with pytest.raises(BixseError, match=r"got an unreadable answer .*fix"):
        extract.extract_documents()


@pytest.mark.parametrize("executable", ["", "/nowhere/python"])
def test_an_interpreter_that_cannot_be_started(monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(BixseError, match=r"does not start .*fix: run bixse with a regular Python"):
        extract.extract_documents()


# --- the child process does no harm ---


def test_the_child_gets_no_display_no_settings_no_input(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    monkeypatch.setenv("BROWSER", "firefox")
    monkeypatch.setenv("PYTHONSTARTUP", "startup.py")
    use_script(
        tmp_path,
        monkeypatch,
        "print('noise'); print('noise', file=sys.stderr)\n"
        "flags = [sys.flags.isolated, sys.flags.no_site, sys.flags.dont_write_bytecode, sys.flags.utf8_mode]\n"
        "answer = {'folder': [os.getcwd(), sys.stdin.read()], 'environment': [' '.join(os.environ), str(flags)]}\n"
        "json.dump(answer, open(sys.argv[1], 'w'))",
    )
    answer = extract.extract_documents()
    names = answer["environment"].title.split()
    assert not {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "PYTHONSTARTUP"} & set(names)
    assert "PATH" in names
    assert answer["environment"].text == "[1, 1, 1, 1]"
    folder, typed = answer["folder"]
    assert folder != os.getcwd() and not Path(folder).exists()  # noqa: PTH109
    assert typed == ""
    assert capfd.readouterr() == ("", "")


def test_reading_tries_no_connection_process_browser_or_write(tmp_path):
    """Not even attempts, which the guard would refuse; nothing is printed and no file is left behind."""
    output, report, folder = tmp_path / "documents.json", tmp_path / "events.json", tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "recorder.py").write_text(RECORDER)
    command = [sys.executable, "-I", "-S", "-B", tmp_path / "recorder.py", extract.SCRIPT, output, report]
    child = subprocess.run(command, cwd=folder, capture_output=True, env=extract.child_environment(str(folder)))
    assert (child.returncode, child.stdout, child.stderr) == (0, b"", b"")
    harmless = {"os.listdir", "os.scandir"}
    events = [event for event in json.loads(report.read_text()) if event[0] not in harmless]
    assert events == [["open", str(output)]]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "act",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.socket().connect(('127.0.0.1', 9))",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "import webbrowser; webbrowser.GenericBrowser('echo').open('http://localhost')",
        "import subprocess, sys; subprocess.run([sys.executable, '-V'])",
        "import os; os.system('echo loud')",
        "open('made.txt', 'w')",
        "import os; os.open('made.txt', os.O_CREAT | os.O_WRONLY)",
        "import os; os.mkdir('made')",
        "import os; os.remove('kept.txt')",
    ],
)
def test_the_guard_refuses(tmp_path, act):
    (tmp_path / "kept.txt").write_text("kept")
    guarded = (
        f"import runpy; runpy.run_path({str(extract.SCRIPT)!r})['forbid_side_effects']()\n"
        f"try:\n    {act}\nexcept PermissionError as error:\n    assert 'is forbidden' in str(error)\n"
        "else:\n    raise SystemExit('went through')"
    )
    child = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", guarded], cwd=tmp_path, capture_output=True)
    assert (child.returncode, child.stdout, child.stderr) == (0, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_loading_prints_nothing_and_keeps_the_folder(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    extract.extract_documents()
    assert capfd.readouterr() == ("", "")
    assert Path.cwd() == tmp_path and list(tmp_path.iterdir()) == []


# --- what is read ---


def test_two_hash_seeds_give_the_same_bytes(tmp_path):
    answers = []
    for seed in ("1", "2"):
        output = tmp_path / seed
        command = [sys.executable, "-S", "-B", extract.SCRIPT, output]
        subprocess.run(command, check=True, cwd=tmp_path, env=os.environ | {"PYTHONHASHSEED": seed})
        answers.append(output.read_bytes())
    assert answers[0] == answers[1]


def test_the_script_without_arguments_explains_itself():
    child = subprocess.run([sys.executable, "-I", "-S", "-B", extract.SCRIPT], capture_output=True, text=True)
    assert child.returncode == 2
    assert "OUTPUT.json" in child.stderr


@pytest.mark.skipif(
    sys.version_info[:3] != (3, 11, 7) or sys.platform != "linux", reason="the list is of Python 3.11.7 under Linux"
)
def test_the_ids_are_those_that_were_graded(loaded):
    collection, coverage = loaded
    assert list(collection.corpus) == IDS_3_11.read_text().splitlines()
    assert (coverage.graded_found, coverage.graded_total, coverage.fraction) == (GRADED_IDS, GRADED_IDS, 1.0)
    assert coverage.missing == () and coverage.queries_dropped == ()
    queries = {name: len(table) for name, table in collection.qrels.items()}
    assert queries == {"train": 679, "dev": 109, "test": 266, "guard": 45}
    assert sum(len(row) for table in collection.qrels.values() for row in table.values()) == 12_883


def test_coverage_of_this_python(loaded):
    collection, coverage = loaded
    assert coverage.fraction >= 0.95
    assert coverage.documents == len(collection.corpus) > 4000
    assert coverage.graded_found + len(coverage.missing) == coverage.graded_total == GRADED_IDS
    kept = {document for table in collection.qrels.values() for row in table.values() for document in row}
    assert kept <= collection.corpus.keys()
    assert len(kept) <= coverage.graded_found
    for table in collection.qrels.values():
        assert all(max(row.values()) >= pydocs.PYDOCS_RELEVANT_GRADE for row in table.values())


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_coverage_of_other_pythons(version):
    interpreter = shutil.which(f"python{version}")
    if interpreter is None or subprocess.run([interpreter, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip(f"no python{version}")
    command = [interpreter, "-I", "-S", "-B", extract.SCRIPT, "--coverage"]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert line.startswith(f"Python {version}.")
    assert f" of {GRADED_IDS} graded ids" in line
    assert float(line.rpartition("(")[2].rstrip("%)\n")) >= 95


def test_documents_follow_the_rules(loaded):
    corpus = loaded[0].corpus
    assert list(corpus) == sorted(corpus)
    assert len({document.text for document in corpus.values()}) == len(corpus)
    for identifier, document in corpus.items():
        assert document.title.startswith(identifier)
        assert len(document.title) <= 120 or document.title == identifier
        assert document.text == " ".join(document.text.split())
        assert len(document.text.split()) >= 6
        assert " at 0x" not in document.title + document.text
        assert sys.executable not in document.title and sys.prefix not in document.text
    assert corpus["json.dump"].title == "json.dump"  # its signature is longer than a title may be
    assert corpus["textwrap.indent"].title == "textwrap.indent(text, prefix, predicate=None)"
    assert corpus["pathlib.Path.cwd"].title == "pathlib.Path.cwd()"
    assert corpus["threading"].title == "threading"
    assert "os.path.join" in corpus and "posixpath.join" not in corpus
    assert "collections.Counter.most_common" in corpus and "collections.Counter.__add__" not in corpus
    assert not any(name.split(".")[0] in ("this", "antigravity", "tkinter", "test") for name in corpus)


def test_every_query_has_a_kind_and_one_split(loaded):
    collection, coverage = loaded
    assert pydocs.query_kinds().keys() == collection.queries.keys()
    assert set(pydocs.query_kinds().values()) == {"howto", "keyword", "symptom", "concept", "task"}
    in_splits = [query for table in collection.qrels.values() for query in table]
    assert sorted([*in_splits, *coverage.queries_dropped]) == sorted(collection.queries)


def test_judgements_of_absent_documents_are_left_out(damaged):
    (damaged / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "copy", "kind": "howto"}\n{"_id": "q2", "text": "move", "kind": "howto"}\n'
    )
    head = "query-id\tcorpus-id\tscore\n"
    (damaged / "qrels/train.tsv").write_text(f"{head}q1\tcopy.copy\t3\nq1\tgone\t2\n")
    (damaged / "qrels/dev.tsv").write_text(f"{head}q2\tcopy.copy\t1\nq2\tgone\t3\nq2\tlost\t0\n")
    for split in ("test", "guard"):
        (damaged / f"qrels/{split}.tsv").write_text(f"{head}q1\tcopy.copy\t2\n")
    collection, coverage = pydocs.load_pydocs()
    relevant = {"q1": {"copy.copy": 2.0}}
    assert collection.qrels == {"train": {"q1": {"copy.copy": 3.0}}, "dev": {}, "test": relevant, "guard": relevant}
    assert collection.queries == {"q1": "copy", "q2": "move"}
    assert (coverage.graded_found, coverage.graded_total, coverage.missing) == (1, 3, ("gone", "lost"))
    assert coverage.queries_dropped == ("q2",)
    assert coverage.fraction == pytest.approx(1 / 3)


# --- damaged files of the package ---


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore", "query\tdocument\tgrade", r"got 'query.*expected 'query-id"),
        ("qrels/dev.tsv", "conc-003\tasyncio.Condition.notify\t0", "conc-003\tasyncio.Condition.notify", "row 1: got"),
        ("qrels/dev.tsv", "asyncio.Condition.notify\t0", "asyncio.Condition.notify\t4", "row 1: got .*from 0 to 3"),
        ("qrels/dev.tsv", "conc-003\tasyncio.Condition.notify\t0", "x\tasyncio.Condition.notify\t0", "row 1: got 'x"),
        ("queries.jsonl", '{"_id": "conc-002"', '{"id": "conc-002"', "row 1: got .*an object with _id"),
        ("queries.jsonl", '{"_id": "conc-002"', '"_id": "conc-002"', "row 1: got"),
    ],
)
def test_a_damaged_line_names_file_and_row(damaged, name, old, new, message):
    text = (damaged / name).read_text(encoding="utf-8")
    assert old in text
    (damaged / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InvalidFileError, match=f"(?s){name}: .*{message}.*fix: reinstall bixse"):
        pydocs.load_pydocs()


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00"], ids=["missing", "empty", "not text"])
def test_a_file_that_cannot_be_read(damaged, name, content):
    if content is None:
        (damaged / name).unlink()
    else:
        (damaged / name).write_bytes(content)
    with pytest.raises(InvalidFileError, match=f"(?s){name}: .*fix: reinstall bixse"):
        pydocs.load_pydocs()


# --- the cache ---


def test_the_cache_is_used_and_a_bad_one_replaced(tmp_path, monkeypatch):
    runs = []
    answer = {"copy.copy": ["copy.copy(x)", "Shallow copy operation on arbitrary Python objects."]}
    monkeypatch.setattr(extract, "run_script", lambda seconds: runs.append(seconds) or answer)
    cache = tmp_path / "new" / "pydocs.json"
    first = extract.extract_documents(cache)
    fresh = cache.read_text()
    assert first == {"copy.copy": Document(*answer["copy.copy"])}
    assert [path.name for path in cache.parent.iterdir()] == ["pydocs.json"]
    assert extract.extract_documents(cache) == first
    assert len(runs) == 1
    kept = json.loads(fresh)
    other_python = json.dumps(kept | {"stamp": "another Python"})
    wrong_shape = json.dumps(kept | {"documents": {"copy.copy": "copies"}})
    for bad in ("", "[]", "{}", fresh[:100], other_python, wrong_shape):
        runs.clear()
        cache.write_text(bad)
        assert extract.extract_documents(cache) == first
        assert len(runs) == 1
        assert cache.read_text() == fresh


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="expected a file that can be written; fix"):
        extract.extract_documents(tmp_path / "file" / "pydocs.json")
