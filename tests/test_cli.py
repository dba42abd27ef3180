"""The command `leakbench`, as a user types it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leakbench.cli import LISTABLE, main
from leakbench.records import read_record
from leakbench.report.checks import Theorem
from leakbench.report.findings import Finding

ROOT = Path(__file__).resolve().parents[1]
# The quickest job there is: it counts parameters, and reads no data.
RECORD = "results/smoke/optimal_defense/architecture/digits/simpleconvnet/none/inventory/all.json"


def test_jobs_of_a_cluster_keep_a_copy(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake sets the variable there; were the command of its rules another one, everything would run again."""
    monkeypatch.setenv("LEAKBENCH_KEEP", "1")
    assert main(["run", RECORD]) == 0
    made = read_record(checkout / RECORD)
    (checkout / RECORD).unlink()
    assert main(["run", RECORD]) == 0
    assert read_record(checkout / RECORD) == made  # the same second, not only the same numbers


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration in a folder of its own, which is the current one."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path / "data"))  # the command sets it where it is unset
    return tmp_path


def listing(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["list", *arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert isinstance(rows, list) and rows
    assert all(isinstance(row, dict) and row["name"] for row in rows)
    return rows


def test_help_imports_little() -> None:
    code = """
import sys
from leakbench.cli import main
try:
    main(["--help"])
except SystemExit as stop:
    assert stop.code == 0
print(sorted({"yaml", "pydantic", "torch", "numpy", "pandas", "matplotlib", "rich", "snakemake"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *text, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert text[0].startswith("usage: leakbench")
    commands = [
        "list",
        "run",
        "show",
        "stage",
        "merge",
        "draw",
        "judge",
        "claims",
        "scorecard",
        "check",
        "cost",
        "status",
        "schemas",
    ]
    for command in commands:
        assert any(line.strip().startswith(command) for line in text)


def test_the_installed_command_and_the_module_are_one() -> None:
    command = [str(Path(sys.executable).with_name("leakbench")), "--help"]
    installed = subprocess.run(command, capture_output=True, text=True, check=True)
    module = subprocess.run([sys.executable, "-m", "leakbench", "--help"], capture_output=True, text=True, check=True)
    assert installed.stdout == module.stdout


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("what", [*LISTABLE[:6]])
def test_list_components(capsys: pytest.CaptureFixture[str], what: str) -> None:
    rows = listing(capsys, what)
    names = [row["name"] for row in rows]
    assert names == sorted(names)
    expected = {
        "datasets": {"digits", "photos", "mnist", "fashion_mnist", "cifar10", "svhn", "celeba", "imagenet"},
        "models": {"linear", "mlp", "simpleconvnet", "convnet"},
        "defenses": {"none", "gaussian_noise", "clipped_noise", "magnitude_pruning", "optimal_pruning"},
        "attacks": {"analytic", "mean_image", "grey", "noise"},
        "membership_attacks": {"threshold", "four_branch", "lira"},
        "model_inversions": {"mean_start"},
    }
    assert set(names) >= expected[what]
    for row in rows:
        assert row["version"] >= 1 and row["summary"]
        assert all(isinstance(kind, str) for kind in row["parameters"].values())


@pytest.mark.usefixtures("checkout")
def test_list_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in listing(capsys, "experiments") if row["paper"] == "optimal_defense"}
    assert rows["undefended"]["jobs"] == 5 and rows["noise"]["jobs"] == 4 and rows["architecture"]["jobs"] == 1
    assert {row["scale"] for row in rows.values()} == {"smoke"}
    assert {row["scale"] for row in listing(capsys, "experiments", "--scale", "full")} == {"full"}


@pytest.mark.usefixtures("checkout")
def test_list_artifacts(capsys: pytest.CaptureFixture[str]) -> None:
    rows = listing(capsys, "artifacts", "--scale", "laptop")
    ours = [row for row in rows if row["paper"] == "optimal_defense"]
    supplements = {("figure", f"S{n}") for n in range(1, 7)} | {("table", f"S{n}") for n in range(1, 6)}
    own = {("table", 1), *(("figure", n) for n in range(1, 15))}
    assert {(row["kind"], row["number"]) for row in ours} == own | supplements
    for row in ours:
        extension = {"figure": "pdf", "table": "csv"}[row["kind"]]
        assert row["path"] == f"figures/laptop/optimal_defense/{row['name']}.{extension}"


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("what", LISTABLE)
def test_list_for_people(capsys: pytest.CaptureFixture[str], what: str) -> None:
    assert main(["--set", "compare={name: gaussian_noise, scale: 0.1}", "list", what]) == 0
    printed = capsys.readouterr().out
    assert what in printed and len(printed.splitlines()) > 4


@pytest.mark.usefixtures("checkout")
def test_an_empty_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "compared"]) == 0
    assert capsys.readouterr().out == "compared: none\n"


@pytest.fixture
def quick_theorems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theorems that are not checked, since that takes seconds."""
    verdict = Finding("reproduced", effect=0.25, meaning="slack", note="3 random cases")
    monkeypatch.setattr(Theorem, "__call__", lambda *_: verdict)


@pytest.mark.usefixtures("checkout", "quick_theorems")
def test_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--paper", "optimal_defense", "--scale", "laptop", "--json"]) == 0
    rows = {row["claim"]: row for row in json.loads(capsys.readouterr().out)}
    numbered = [key for key in rows if key.strip("ET").isdigit()]
    assert numbered == [f"E{number}" for number in (*range(1, 13), 14)] + [f"T{number}" for number in range(1, 8)]
    assert {row["verdict"] for row in rows.values()} == {"reproduced", "not run"}
    assert {(row["paper"], row["scale"]) for row in rows.values()} == {("optimal_defense", "laptop")}
    assert (rows["T1"]["effect"], rows["T1"]["low"], rows["T1"]["meaning"]) == (0.25, None, "slack")
    tables = " ".join(
        f"results/laptop/optimal_defense/{name}/records.parquet" for name in ("cifar_references", "cifar_pruning")
    )
    assert rows["E2"]["note"] == f"make the tables with `snakemake --cores all {tables}`"


@pytest.mark.usefixtures("checkout", "quick_theorems")
def test_claims_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Each verdict is a sign and a word; at the scale smoke they come with a warning."""
    assert main(["claims"]) == 0
    printed = capsys.readouterr().out
    assert "claims of optimal_defense, scale smoke" in printed
    assert re.search(r"T1 +│ ✔ reproduced", printed) and re.search(r"E1 +│ – not run", printed)
    assert "verdicts say little about the paper" in printed
    assert main(["claims", "--scale", "full"]) == 0
    assert "verdicts say little" not in capsys.readouterr().out


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["claims", "--paper", "optimal_defence"], "--paper: unknown paper 'optimal_defence'; did you mean"),
        (["claims", "--scale", "smok"], "--scale: unknown scale 'smok'; did you mean 'smoke'?"),
        (["judge", "figures/smoke/optimal_defense/fig02.png"], "expected figures/<scale>/<paper>/claims."),
        (["judge", "figures/smoke/optimal_defense/claims.md"], "missing; make it with `leakbench merge results/smoke"),
    ],
)
def test_claims_that_cannot_be_judged(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_reader_that_leaves_gets_no_traceback(checkout: Path, options: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does when it has seen enough
    command = [sys.executable, "-m", "leakbench", "list", "artifacts", *options]
    done = subprocess.run(command, cwd=checkout, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode in (1, 128 + signal.SIGPIPE)


def test_run(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", RECORD]) == 0
    assert capsys.readouterr().out.startswith(f"{RECORD}: ok, 0.")
    record = read_record(checkout / RECORD)
    assert record.job["experiment"] == "architecture" and record.job["defense"]["name"] == "none"
    assert record.provenance.versions["torch"] and record.cost.peak_memory_bytes > 2**20
    assert record.replicates[0].metrics["conv_layers.0.weight"] == 288


@pytest.mark.parametrize(
    ("folder", "path"),
    [
        (".", "{root}/" + RECORD),
        ("results", RECORD.removeprefix("results/")),
        ("config/scales", f"../../{RECORD}"),
        (".", f"./config/../{RECORD}"),
    ],
    ids=["absolute", "below", "beside", "detour"],
)
def test_run_from_anywhere(checkout: Path, monkeypatch: pytest.MonkeyPatch, folder: str, path: str) -> None:
    (checkout / folder).mkdir(exist_ok=True)
    monkeypatch.chdir(checkout / folder)
    assert main(["run", path.format(root=checkout)]) == 0
    assert (checkout / RECORD).is_file()


def test_run_where_results_are_elsewhere(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Results often lie on another file system, behind a link."""
    scratch = tmp_path_factory.mktemp("scratch")
    (checkout / "results").symlink_to(scratch)
    assert main(["run", str(checkout / RECORD)]) == 0
    assert (scratch / RECORD.removeprefix("results/")).is_file()


def test_run_in_another_checkout(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("outside"))
    assert main(["--root", str(checkout), "run", RECORD]) == 0
    assert (checkout / RECORD).is_file()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["run", RECORD.replace("digits", "digit")], "unknown dataset 'digit'; did you mean 'digits'? Allowed: "),
        (["run", "results/x.json"], "results/x.json: not a record's path; expected results/<scale>/<paper>/"),
        (["run", "/elsewhere/all.json"], "/elsewhere/all.json: not a record's path"),
        (["--set", "scale=typo", "list", "models"], "command line: scale: unknown scale 'typo'"),
        (["--set", "sclae=full", "list", "models"], "command line: sclae: unknown key 'sclae'; did you mean 'scale'?"),
        (["--set", "scale", "list", "models"], "--set scale: expected KEY=VALUE"),
        (["list", "artifacts", "--scale", "ful"], "--scale: unknown scale 'ful'; did you mean 'full'?"),
        (["--set", "scale=[", "list", "models"], "--set scale=[: the value is no YAML: while parsing"),
        (["check", "none", "scale"], "leakbench check: scale: expected NAME=VALUE"),
        (["merge", "results/smoke/optimal_defense/nosie/records.parquet"], "unknown experiment 'nosie'; did you mean"),
        (["merge", "results/smoke/records.parquet"], "not a tidy table's path; expected results/<scale>/<paper>/"),
        (["merge", "results/smoke/optimal_defense/architecture/records.parquet"], "all.json: missing; make it with"),
        (["draw", "figures/smoke/optimal_defense/fig15.png"], "unknown artifact 'fig15'; did you mean 'fig"),
        (["draw", "figures/smok/optimal_defense/fig02.png"], "unknown scale 'smok'; did you mean 'smoke'?"),
        (["draw", "figures/smoke/optimal_defense/fig02.png"], "undefended/records.parquet: missing; make it with"),
        (["scorecard", "results/smoke/scorecard.html"], ".csv: missing; make it with `leakbench "),
        (["scorecard", "results/scorecard.html"], "results/scorecard.html: expected results/<scale>/scorecard.html"),
        (["stage", "mnits"], "did you mean 'mnist'?"),
        (["show", RECORD], "all.json: missing; make it with `leakbench run results/smoke/"),
        (["show", RECORD, "--output", "a.gif"], "a.gif: unknown format 'gif'. Allowed: pdf, png, svg."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
@pytest.mark.usefixtures("checkout")
def test_mistakes_are_explained_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], fault: str
) -> None:
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("leakbench: ") and fault in printed.err
    assert len(printed.err.splitlines()) == 1 and printed.out == ""


@pytest.mark.parametrize("part", ["ab", "0", "nan"])
def test_a_part_is_a_number_above_0_and_at_most_1(capsys: pytest.CaptureFixture[str], part: str) -> None:
    with pytest.raises(SystemExit):
        main(["submit", "x", "--part", part])
    assert f"argument --part: {part}: expected a part, above 0 and at most 1" in capsys.readouterr().err


def test_a_mistake_in_a_process_of_its_own(checkout: Path) -> None:
    command = [sys.executable, "-m", "leakbench", "run", "results/nothing.json"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("leakbench: results/nothing.json: not a record's path")
    assert len(done.stderr.splitlines()) == 1


def test_outside_of_a_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list", "models"]) == 1
    assert "run from a checkout of the project, or give --root" in capsys.readouterr().err


def test_show(checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = "results/smoke/optimal_defense/undefended/digits16/small/none"
    records = [f"{folder}/{attack}/all.json" for attack in ("mean_image", "grey")]
    assert main(["run", *records]) == 0
    capsys.readouterr()
    monkeypatch.chdir(checkout / folder)
    assert main(["show", "mean_image/all.json", "grey/all.json", "--seed", "1"]) == 0
    picture = checkout / folder / "mean_image" / "all.png"
    assert capsys.readouterr().out == f"{picture}\n" and picture.read_bytes().startswith(b"\x89PNG")
    assert main(["show", "grey/all.json", "--output", "here.pdf"]) == 0
    assert Path("here.pdf").read_bytes().startswith(b"%PDF")
    assert main(["show", "grey/all.json", "--seed", "9"]) == 1
    assert "no seed 9. Allowed: 0, 1, 2, 3, 4, 5." in capsys.readouterr().err


def test_a_record_without_pictures(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", RECORD]) == 0
    assert main(["show", RECORD]) == 1
    fault = capsys.readouterr().err
    assert fault == f"leakbench: {RECORD}: holds no reconstructions: a job of kind 'inventory'\n"


@pytest.mark.usefixtures("checkout")
def test_set_overrides_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--set", "scale=full", "list", "artifacts", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["path"].startswith("figures/full/")
    assert main(["--set", "papers=[]", "list", "experiments", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_data_root_of_the_configuration(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAKBENCH_DATA")
    assert main(["--set", "data_root=staged", "list", "models"]) == 0
    assert os.environ["LEAKBENCH_DATA"] == str(checkout / "staged")
    monkeypatch.setenv("LEAKBENCH_DATA", "mine")
    assert main(["list", "models"]) == 0
    assert os.environ["LEAKBENCH_DATA"] == "mine"


@pytest.mark.usefixtures("checkout")
def test_embedded_data_need_no_staging(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage", "digits", "photos"]) == 0
    printed = capsys.readouterr().out
    assert "digits" in printed and "photos" in printed


def test_schemas(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schemas"]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.name for path in written} == {path.name for path in (ROOT / "workflow" / "schemas").iterdir()}
    assert all(path.parent == checkout / "workflow" / "schemas" for path in written)


@pytest.mark.usefixtures("checkout")
def test_staging_an_embedded_set_says_that_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage", "digits"]) == 0
    assert capsys.readouterr().out == "digits: ships with the installation; nothing to stage\n"
