"""estimate, import and export from outside: files in, files out, exit codes, one message for bad input."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.cli.command import main
from torchsplit_core.cli.tables import file_name
from torchsplit_core.files import read_file
from torchsplit_core.profiling.library import library_profile
from torchsplit_core.values import Profile

EXAMPLES = ROOT / "examples" / "profiles"
TRITON = ROOT / "tests" / "tables" / "data"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_estimate_of_the_example_as_a_command_of_its_own(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torchsplit_core", "estimate"),
            *(str(EXAMPLES / "measured.csv"), str(EXAMPLES / "query.csv"), "-o", "out.csv"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "leave-one-out error of the measured rows" in done.stderr
    truth = {
        (row.profile, row.batch_size): row.throughput_rps
        for row in library_profile("resnet50").rows
        if row.processes == 1
    }
    slices = {"2": "2g.20gb", "3": "3g.40gb", "4": "4g.40gb"}
    with (tmp_path / "out.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    with (EXAMPLES / "query.csv").open(newline="") as stream:
        asked = list(csv.DictReader(stream))
    assert [{name: row[name] for name in asked[0]} for row in rows] == asked
    errors = sorted(
        abs(float(row["throughput_rps"]) / truth[slices[row["compute_slices"]], int(row["batch_size"])] - 1)
        for row in rows
    )
    assert errors[len(errors) // 2] < 0.05


def test_estimate_prints_csv_or_json(capsys, tmp_path):
    command = ("estimate", str(EXAMPLES / "measured.csv"), str(EXAMPLES / "query.csv"))
    assert main(command) == 0
    text = capsys.readouterr().out
    assert text.startswith("model,compute_slices,batch_size,processes,throughput_rps,")
    assert main((*command, "--json", "-o", str(tmp_path / "o.csv"))) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (tmp_path / "o.csv").read_text() == text
    assert len(printed) == len(text.splitlines()) - 1


def test_the_whole_library_goes_out_and_comes_in_again(tmp_path):
    table, folder = tmp_path / "rows.csv", tmp_path / "profiles"
    assert main(("export", "library", "-o", str(table))) == 0
    assert main(("import", str(table), "-o", str(folder))) == 0
    found = {path.name: read_file(path, expected="torchsplit.profile")[1] for path in folder.iterdir()}
    assert len(found) == 11
    assert found["bert.profile.json"].rows == library_profile("bert").rows
    assert main(("export", *map(str, sorted(folder.iterdir())), "-o", str(tmp_path / "again.csv"))) == 0
    assert (tmp_path / "again.csv").read_text() == table.read_text()


def test_one_model_is_one_file_or_standard_output(tmp_path, capsys, stderr_of):
    source = str(EXAMPLES / "other_columns.csv")
    assert "'QPS' as throughput_rps" in stderr_of("import", source, "-o", tmp_path / "bert.json", code=0)
    profile = read_file(tmp_path / "bert.json", expected="torchsplit.profile")[1]
    assert profile.source == "import:bert"
    assert {row.throughput_rps for row in profile.rows} <= {
        row.throughput_rps for row in library_profile("bert").rows
    }
    assert main(("import", source, "-o", str(tmp_path))) == 0
    assert (tmp_path / "bert.profile.json").exists()
    capsys.readouterr()
    assert main(("import", source)) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "torchsplit.profile"


def test_several_models_want_a_folder(tmp_path, capsys):
    table = tmp_path / "t.csv"
    table.write_text("model,compute_slices,batch_size,throughput_rps\n../a,7,8,100\nA?,7,8,50\n,7,8,9\n")
    assert "line 4, model" in refused(capsys, "import", str(table), "-o", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    kept = ("import", str(table), "--skip-bad")
    assert "a folder" in refused(capsys, *kept)
    assert "a folder" in refused(capsys, *kept, "-o", str(tmp_path / "x.json"))
    assert main((*kept, "-o", str(tmp_path / "out"))) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "A-2.profile.json",
        "a.profile.json",
    ]
    assert "note: " in capsys.readouterr().err
    assert main((*kept, "--json")) == 0
    assert [item["source"] for item in json.loads(capsys.readouterr().out)] == ["import:../a", "import:A?"]


def test_columns_are_mapped_and_what_is_lacking_is_given(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("size,a=b\n4,100\n")
    assert (
        main((
            *("import", str(table), "-o", str(tmp_path / "p.json"), "--map", "batch_size=size"),
            *("--map", "throughput_rps=a=b", "--model", "m", "--gpu-type", "A30-24GB", "--slice", "1g"),
        ))
        == 0
    )  # fmt: skip
    (row,) = read_file(tmp_path / "p.json")[1].rows
    assert (row.gpu_type, row.profile, row.batch_size, row.throughput_rps) == ("A30-24GB", "1g.6gb", 4, 100)


def test_triton_s_files_and_one_profile_of_several(tmp_path):
    for batch in ("1", "8"):
        assert (
            main((
                *("import", str(TRITON / "perf_analyzer.csv"), "--model", "m", "--batch-size", batch),
                *("--instances", "2", "--slice", "2g.20gb", "-o", str(tmp_path / f"{batch}.json")),
            ))
            == 0
        )  # fmt: skip
    both = tmp_path / "both.json"
    assert main(("import", str(tmp_path / "1.json"), str(tmp_path / "8.json"), "-o", str(both))) == 0
    profile = read_file(both)[1]
    assert [(row.batch_size, row.processes, row.profile) for row in profile.rows] == [
        (1, 2, "2g.20gb"),
        (8, 2, "2g.20gb"),
    ]


@pytest.mark.parametrize(("content", "words"), [
    (b"", "is empty"),
    (b"\x89PNG\r\n\x1a\n\x00", "UTF-8"),
    (b"model,compute_slices,batch_size,throughput_rps\n", "has a header but no rows"),
    (b"one column\n1\n", "has only one column"),
    (b'{"format": "torchsplit.plan"}', "torchsplit.profile"),
    (b"{not json", "JSON"),
    (b"model,compute_slices,batch_size,throughput_rps\nm,7,8,much\n", "line 2, throughput_rps"),
])  # fmt: skip
def test_what_is_no_table_is_one_message_and_exit_code_2(content, words, tmp_path, capsys):
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    told = refused(capsys, "import", str(path), "-o", str(tmp_path / "out.json"))
    assert words in told and "mine.csv" in told and "Traceback" not in told
    assert not (tmp_path / "out.json").exists()
    assert "Traceback" not in refused(capsys, "estimate", str(path), str(path))


def test_files_and_arguments_that_are_wrong(tmp_path, capsys):
    table = str(EXAMPLES / "measured.csv")
    query = str(EXAMPLES / "query.csv")
    assert "nowhere.csv: cannot be read: no such file" in refused(capsys, "estimate", table, "nowhere.csv")
    assert "directory" in refused(capsys, "import", str(tmp_path))
    assert "OURS=THEIRS" in refused(capsys, "import", table, "--map", "bs")
    assert "unknown GPU type 'A1000'. Did you mean A100-80GB" in refused(
        capsys, "import", table, "--gpu-type", "A1000"
    )
    assert "library" in refused(capsys, "export", "library:nothing")
    assert "torchsplit.profile" in refused(capsys, "export", str(ROOT / "examples" / "plan.json"))
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(capsys, "estimate", table, query, "-o", str(tmp_path / "file" / "o.csv"))


def test_a_table_beyond_the_limit_is_refused_unread(tmp_path, capsys):
    path = tmp_path / "huge.csv"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    assert "64 MiB" in refused(capsys, "import", str(path))


@pytest.mark.parametrize(("name", "taken", "expected"), [
    ("bert", (), "bert.profile.json"),
    ("bert", ("BERT.profile.json",), "bert-2.profile.json"),
    ("../../etc/passwd", (), "etc_passwd.profile.json"),
    ("…", (), "model.profile.json"),
    ("x" * 300, (), "x" * 80 + ".profile.json"),
])  # fmt: skip
def test_file_names_are_safe(name, taken, expected):
    assert file_name(Profile(f"import:{name}", ""), taken) == expected


def test_other_commands_do_not_load_the_tables():
    program = (
        "import sys; from torchsplit_core.cli import command; command._parser(); "
        "sys.exit(any(name in sys.modules for name in ('scipy', 'torch', 'torchsplit_core.tables')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


MEASURED = """model,compute_slices,batch_size,processes,throughput_rps,latency_ms
net,1,8,1,100,80
net,1,32,1,110,290
net,7,8,1,500,16
net,7,32,1,700,46
"""


def test_estimate_to_other_types_has_the_tables_columns_and_imports_beside_it(tmp_path, stderr_of):
    measured, estimated = tmp_path / "measured.csv", tmp_path / "estimated.csv"
    measured.write_text(MEASURED)
    to = "H100-SXM5-80GB,L4-24GB"
    assert "none of them measured" in stderr_of("estimate", measured, "--to", to, "-o", estimated, code=0)
    with estimated.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0])[:6] == MEASURED.splitlines()[0].split(",")
    assert {row["gpu_type"] for row in rows} == set(to.split(",")) and {row["basis"] for row in rows} == {
        "estimated"
    }
    whole = [row for row in rows if row["gpu_type"] == "L4-24GB"]
    assert whole and all(row["profile"] == row["compute_slices"] == "" for row in whole)
    assert all(float(r["low_rps"]) < float(r["throughput_rps"]) < float(r["high_rps"]) for r in rows)
    assert main(["import", str(measured), str(estimated), "-o", str(tmp_path / "net.json")]) == 0
    profile = read_file(tmp_path / "net.json")[1]
    assert {row.basis for row in profile.rows} == {"measured", "estimated"}
    assert len(profile.rows) == 4 + len(rows)


def test_a_request_for_a_fleet_without_figures_is_mended_by_the_named_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = json.loads((ROOT / "examples" / "mixes" / "s1_fair_2gpus.json").read_text())
    asked["gpus"] = [{"type": "H100-SXM5-80GB", "count": 1}]
    asked["models"] = asked["models"][:1]
    Path("REQUEST.json").write_text(json.dumps(asked))
    err = refused(capsys, "plan", "REQUEST.json")
    assert "no model has figures for H100-SXM5-80GB, only for A100-80GB" in err
    command = err[err.index("torchsplit estimate") :].strip().rstrip(".").split()
    assert main(command[1:]) == 0
    assert main(["plan", "REQUEST2.json", "-o", "plan.json"]) == 0
    # Of the points on the fleet's type, which all are: those of the A100 are of no use to this plan.
    match = re.search(r"of which (\d+) of (\d+) are estimated", capsys.readouterr().err)
    assert match and match[1] == match[2]
    before, after = (read_file(Path(name))[1] for name in ("REQUEST.json", "REQUEST2.json"))
    was, now = (one.models[0].variants[0].stages[0].points for one in (before, after))
    assert now[: len(was)] == was and {point.basis for point in now[len(was) :]} == {"estimated"}


@pytest.mark.parametrize(("text", "to", "told"), [
    (MEASURED, "H100-SXM-80GB", "H100-SXM5-80GB"),
    (MEASURED, "CPU-8c", "no published peaks"),
    (MEASURED, ",", "names no GPU type"),
    (MEASURED, "A100-80GB", "nothing to estimate for A100-80GB: A100-80GB: rows of it are there already"),
    (MEASURED.splitlines()[0] + "\n", "L4-24GB", "no rows"),
    ("model,gpu_type,batch_size,throughput_rps\nnet,CPU,8,100\n", "L4-24GB", "(GPU types of the rows: CPU)"),
    ("model,gpu_type,batch_size,throughput_rps\nnet,A1000,8,100\n", "L4-24GB", "A1000"),
    (
        "model,gpu_type,profile,batch_size,throughput_rps,basis\n"
        "net,CPU,,8,100,measured\nnet,A100-80GB,1g.10gb,8,100,estimated\n", "L4-24GB",
        "no measured row is of a GPU type with published peaks (GPU types of the measured rows: CPU)",
    ),
    ("", "L4-24GB", "empty"),
])  # fmt: skip
def test_estimate_to_refuses_what_it_cannot_estimate(text, to, told, tmp_path, capsys):
    (tmp_path / "rows.csv").write_text(text)
    assert told in refused(capsys, "estimate", str(tmp_path / "rows.csv"), "--to", to)


def test_estimate_wants_a_query_or_types(capsys):
    example = str(EXAMPLES / "measured.csv")
    assert "QUERY.csv: is missing" in refused(capsys, "estimate", example)
    assert "--to too" in refused(capsys, "estimate", example, example, "--to", "L4-24GB")
